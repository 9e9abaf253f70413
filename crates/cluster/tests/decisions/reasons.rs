//! Why a guest goes where it goes, and why another stays.

use std::collections::BTreeMap;

use skein_api::cluster::{
    HostSettings, MoveState, OperationState, OptimizeRequest, ResumeRequest, StartVmRequest, VmSettings,
};
use skein_api::{Refusal, Reply, VmState};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, preview};

fn set(bench: &mut Bench, vm: &str, settings: VmSettings) {
    assert_eq!(bench.ask(Ask::SetVm { vm: vm.into(), settings, version: None }), Answer::Done);
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns where a VM of alpha would go, and why.
fn why(bench: &mut Bench, vm: &str) -> (Option<String>, String) {
    let would = bench.shown(preview("alpha"));
    let of = would.moves.iter().find(|of| of.vm == vm).expect("it is told");
    (of.to.clone(), of.reason.clone())
}

#[test]
fn a_pinned_guest_stays_and_it_is_said_how_it_moves() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    ["pinned", "web"].iter().for_each(|vm| bench.run_vm("alpha", vm));
    set(&mut bench, "pinned", VmSettings { pinned: true, ..VmSettings::default() });
    let (to, reason) = why(&mut bench, "pinned");
    assert!(to.is_none() && reason.contains("it is pinned here: skein property set vm pinned pinned=no"), "{reason}");
    let begun = bench.drain("alpha");
    bench.obey_all();
    let over = bench.now(&begun);
    assert_eq!(
        (over.state, bench.has("alpha"), bench.has("beta")),
        (OperationState::Failed, vec!["pinned"], vec!["web"])
    );
    assert!(over.message.contains("1 VM cannot be moved and stays: pinned"), "{over:?}");
}

#[test]
fn a_drain_moves_nothing_off_another_host_in_maintenance() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    bench.run_vm("beta", "kept");
    set(&mut bench, "kept", VmSettings { owners: Some(names(&["beta"])), ..VmSettings::default() });
    bench.drain("beta");
    let would = bench.shown(preview("alpha"));
    let moved: Vec<(&str, Option<&str>)> = would.moves.iter().map(|of| (of.vm.as_str(), of.to.as_deref())).collect();
    assert_eq!(moved, [("web", Some("gamma"))]);
    // It is free to go, and its host's drain is over: this is not the other host's business.
    set(&mut bench, "kept", VmSettings::default());
    assert_eq!(bench.shown(preview("alpha")).moves.len(), 1);
}

#[test]
fn the_only_host_is_told_with_what_rules_out_the_others() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    set(&mut bench, "web", VmSettings { owners: Some(names(&["alpha", "beta"])), ..VmSettings::default() });
    let (to, reason) = why(&mut bench, "web");
    assert_eq!(to.as_deref(), Some("beta"));
    assert!(reason.starts_with("the only host that can take it (gamma: "), "{reason}");
    assert!(reason.contains("of memory stay free"), "{reason}");
    // Where there is no other, that is the reason.
    bench.drain("gamma");
    let (_, reason) = why(&mut bench, "web");
    assert!(reason.starts_with("the only host that can take it (no other takes guests)"), "{reason}");
}

#[test]
fn what_speaks_for_a_host_is_told() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    let (_, reason) = why(&mut bench, "web");
    assert!(reason.starts_with("one of 2 hosts that can take it, and none is better"), "{reason}");
    set(&mut bench, "web", VmSettings { preferred: names(&["gamma"]), ..VmSettings::default() });
    let (to, reason) = why(&mut bench, "web");
    assert_eq!(to.as_deref(), Some("gamma"));
    assert!(reason.starts_with("the best of 2 hosts that can take it (beta: "), "{reason}");
}

#[test]
fn a_failover_is_planned_once() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    ["a", "b", "c", "d"].iter().for_each(|vm| bench.run_vm("alpha", vm));
    bench.disconnect("alpha");
    bench.wait_s(12);
    let request = skein_api::cluster::FenceRequest { is_off: true };
    let begun = bench.begin(Ask::Fence { host: "alpha".into(), request });
    bench.obey_all();
    bench.wait_s(1);
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Done);
    let states: Vec<MoveState> = over.moves.iter().map(|of| of.state).collect();
    assert_eq!(states, [MoveState::Done; 4], "{over:?}");
    assert_eq!(bench.plans, 1);
}

#[test]
fn a_host_that_was_tried_is_told_with_what_came_of_it() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let begun = bench.drain("alpha");
    for _ in 0..100 {
        match bench.sent.is_empty() {
            true => bench.wait_s(10),
            false => {
                let held = Refusal { message: "web is being moved already".into(), cure: String::new() };
                bench.reply(Reply::Error(held));
            }
        }
    }
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Failed, "{over:?}");
    let reason = &over.moves.last().unwrap().reason;
    assert!(reason.contains("it was tried: web is being moved already") && !reason.contains("owners"), "{reason}");
}

#[test]
fn names_that_cannot_be_printed_are_refused_where_they_are_set() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.run_vm("a", "web");
    let odd = || BTreeMap::from([("rack".to_owned(), "\u{b}1".to_owned())]);
    let of_host = |settings| Ask::SetHost { host: "a".into(), settings, version: None };
    let of_vm = |settings| Ask::SetVm { vm: "web".into(), settings, version: None };
    for ask in [
        of_host(HostSettings { properties: odd(), ..HostSettings::default() }),
        of_host(HostSettings { areas: odd(), ..HostSettings::default() }),
        of_host(HostSettings { group: Some("a\nb".into()), ..HostSettings::default() }),
        of_vm(VmSettings { properties: odd(), ..VmSettings::default() }),
        of_vm(VmSettings { tenant: Some("\0".into()), ..VmSettings::default() }),
    ] {
        let words = format!("{ask:?}");
        let Answer::Refused(refused) = bench.ask(ask) else { panic!("{words} was taken") };
        assert!(refused.message.contains("has a control character"), "{refused:?}");
    }
    assert_eq!(
        bench.ask(of_host(HostSettings { group: Some("Büro 1".into()), ..HostSettings::default() })),
        Answer::Done
    );
}

#[test]
fn a_guest_that_is_brought_home_comes_home_because_that_was_asked_for() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.drain("alpha");
    bench.begin_commanded(8);
    bench.arrive_commanded(8);
    bench.wait_s(2);
    let request = ResumeRequest { bring_home: true };
    let home = bench.begin(Ask::Resume { host: "alpha".into(), request });
    bench.wait_s(1);
    assert_eq!(bench.now(&home).moves[0].reason, "it comes home, as was asked for");
}

#[test]
fn a_vm_is_started_where_it_is_because_its_host_has_it() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.set_vm("gamma", "web", VmState::Stopped);
    let start = |bench: &mut Bench| {
        let request = StartVmRequest { dry_run: true, ..StartVmRequest::default() };
        let id = bench.put(Ask::StartVm { vm: "web".into(), request });
        match bench.answer(id) {
            Some(Answer::Preview(operation)) => operation.moves[0].clone(),
            answer => panic!("{answer:?}"),
        }
    };
    let would = start(&mut bench);
    assert_eq!(would.to.as_deref(), Some("gamma"));
    assert!(would.reason.contains("'gamma' has it") && !would.reason.contains("preferred"), "{would:?}");
    set(&mut bench, "web", VmSettings { preferred: names(&["beta"]), ..VmSettings::default() });
    let would = start(&mut bench);
    assert!(would.reason.contains("'gamma' has it"), "{would:?}");
}

#[test]
fn an_optimisation_that_makes_no_move_says_what_the_best_would_cost_and_save() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm_of("alpha", "web", 1);
    bench.run_vm_of("alpha", "db", 58);
    let shown = bench.shown(Ask::Optimize { request: OptimizeRequest::default() });
    assert!(shown.moves.is_empty(), "{shown:?}");
    let message = &shown.message;
    assert!(message.starts_with("the best move, ") && message.contains("alpha to beta, costs "), "{message}");
    assert!(message.contains("at aggressiveness 3 it has to save "), "{message}");
}
