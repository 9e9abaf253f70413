//! For what moves and starts wait, and what goes ahead of them.

use skein_api::cluster::{MigrateRequest, MoveState, Operation, OperationState, VmSettings};
use skein_api::{FailureReason, HoldOptions, Request};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, is_off, preview};

fn migrate(vm: &str, to: &str, is_held: bool) -> Ask {
    let hold = is_held.then_some(HoldOptions { longest_s: Some(6000), window: None });
    let request = MigrateRequest { to: Some(to.into()), hold, ..MigrateRequest::default() };
    Ask::Migrate { vm: vm.into(), request, breaks: Vec::new() }
}

fn prefer(bench: &mut Bench, vm: &str, host: &str) {
    let settings = VmSettings { preferred: vec![host.into()], ..VmSettings::default() };
    assert_eq!(bench.ask(Ask::SetVm { vm: vm.into(), settings, version: None }), Answer::Done);
}

/// Has a host die, and somebody say so.
fn kill(bench: &mut Bench, host: &str) -> Operation {
    bench.disconnect(host);
    bench.wait_s(12);
    bench.begin(is_off(host))
}

/// Returns where starts were asked for.
fn starts(bench: &Bench) -> Vec<&str> {
    let is_start = |request: &Request| matches!(request, Request::VmStart { .. });
    bench.sent.iter().filter(|sent| is_start(&sent.request)).map(|sent| sent.host.as_str()).collect()
}

/// Returns four hosts: gamma has `leaves`, of so many GiB, on its way to alpha, and delta has `web`, which prefers
/// gamma.
fn leaving(gib: u64, is_held: bool) -> Bench {
    let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
    bench.run_vm_of("gamma", "leaves", gib);
    bench.run_vm_of("delta", "web", 30);
    prefer(&mut bench, "web", "gamma");
    bench.begin(migrate("leaves", "alpha", is_held));
    bench.begin_commanded(8);
    bench
}

#[test]
fn a_start_waits_for_no_guest_whose_room_it_does_not_need() {
    for is_held in [true, false] {
        let mut bench = leaving(20, is_held);
        let failover = kill(&mut bench, "delta");
        bench.wait_s(2);
        assert_eq!(starts(&bench), ["gamma"], "{:?}", bench.now(&failover));
        assert_eq!(bench.now(&failover).moves[0].after, Vec::<String>::new());
    }
}

#[test]
fn a_start_waits_for_room_that_is_made_and_says_so_and_not_for_what_is_held() {
    let mut bench = leaving(50, false);
    let failover = kill(&mut bench, "delta");
    bench.wait_s(2);
    let waits = bench.now(&failover);
    assert_eq!((&*waits.moves[0].after, &*waits.moves[0].detail), (&["leaves".to_owned()][..], WAITS), "{waits:?}");
    assert_eq!(starts(&bench), Vec::<&str>::new());
    bench.arrive_commanded(8);
    bench.wait_s(2);
    assert_eq!(starts(&bench), ["gamma"]);
    assert_eq!(bench.now(&failover).moves[0].detail, "");

    let mut bench = leaving(50, true);
    let failover = kill(&mut bench, "delta");
    bench.wait_s(2);
    assert_eq!(starts(&bench), ["beta"], "{:?}", bench.now(&failover));
}

const WAITS: &str = "it waits until leaves has left gamma";

#[test]
fn a_start_that_a_rule_keeps_apart_from_what_is_held_goes_elsewhere() {
    let mut bench = leaving(1, true);
    let rule = serde_json::json!({"apart": {"of": {"guests": ["web", "leaves"]}, "force": "hard"}});
    assert_eq!(bench.ask(Ask::SetRule { name: "apart".into(), rule, version: None }), Answer::Done);
    let failover = kill(&mut bench, "delta");
    bench.wait_s(2);
    let begun = bench.now(&failover);
    assert_eq!(starts(&bench), ["beta"], "{begun:?}");
}

#[test]
fn a_drain_does_not_wait_for_what_is_held_either() {
    let mut bench = leaving(20, true);
    let would = bench.shown(preview("delta"));
    assert_eq!((would.moves[0].to.as_deref(), would.moves[0].after.len()), (Some("gamma"), 0), "{would:?}");
    let begun = bench.drain("delta");
    bench.wait_s(2);
    assert_eq!(bench.now(&begun).moves[0].state, MoveState::Begun, "{:?}", bench.now(&begun));
}

#[test]
fn a_failover_goes_ahead_of_moves_that_have_not_begun() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    // Two of alpha's guests are under way to beta, whose slots are taken; the last waits, and would fill beta.
    bench.run_vm_of("alpha", "one", 5);
    bench.run_vm_of("alpha", "two", 5);
    bench.run_vm_of("alpha", "waits", 40);
    bench.run_vm_of("gamma", "lost", 40);
    for vm in ["one", "two", "waits"] {
        bench.begin(migrate(vm, "beta", false));
    }
    bench.begin_commanded(1);
    bench.begin_commanded(2);
    let failover = kill(&mut bench, "gamma");
    bench.wait_s(2);
    assert_eq!(starts(&bench), ["beta"], "{:?}", bench.now(&failover));
}

#[test]
fn a_migration_to_a_host_that_is_off_is_called_off_at_once_and_goes_elsewhere() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    prefer(&mut bench, "web", "beta");
    let drain = bench.drain("alpha");
    bench.begin_commanded(8);
    assert_eq!(bench.now(&drain).moves[0].to.as_deref(), Some("beta"));
    bench.disconnect("beta");
    bench.wait_s(12);
    assert!(bench.sent.is_empty(), "it is not known to be off: {:?}", bench.sent);
    bench.ask(is_off("beta"));
    bench.wait_s(1);
    let cancels = bench.sent.iter().filter(|sent| matches!(sent.request, Request::MigrationCancel { .. })).count();
    assert_eq!(cancels, 1, "{:?}", bench.sent);
    bench.sent.clear();
    bench.end_commanded(8, FailureReason::Cancelled);
    bench.wait_s(2);
    let goes_on = bench.now(&drain);
    assert_eq!(goes_on.moves[0].detail, "beta is off");
    let next = goes_on.moves.last().unwrap();
    assert_eq!((next.to.as_deref(), next.state), (Some("gamma"), MoveState::Begun), "{goes_on:?}");
    assert_eq!(goes_on.state, OperationState::Running);
}

#[test]
fn a_migration_that_somebody_called_off_leaves_its_operation_cancelled() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let begun = bench.begin(migrate("web", "beta", false));
    bench.begin_commanded(8);
    bench.end_commanded(8, FailureReason::Cancelled);
    bench.wait_s(1);
    let over = bench.now(&begun);
    assert_eq!((over.state, over.cancelled), (OperationState::Cancelled, true), "{over:?}");
    assert_eq!(over.message, "somebody called it off");
}
