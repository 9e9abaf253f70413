//! An agent asks whether a person may start a VM on its host.

use skein_api::cluster::{ClusterSettings, CreateVmRequest, FailoverSettings, OperationState, StartVmRequest};
use skein_api::{HostReport, Migration, Refusal, Reply, Request, Role, VmState};
use skein_cluster::{Answer, Ask, Asked, Input, Output, RefusedKind};

use crate::bench::{Bench, Hand, is_off};

fn by_hand(host: &str, vm: &str) -> Ask {
    Ask::StartByHand { host: host.into(), vm: vm.into(), is_here: true }
}

fn from_file(host: &str, vm: &str) -> Ask {
    Ask::StartByHand { host: host.into(), vm: vm.into(), is_here: false }
}

/// Asks, and returns whether the refusal may pass, and all of its words.
fn refused(bench: &mut Bench, ask: Ask) -> (bool, String) {
    let refused = bench.refused(ask);
    (refused.kind == RefusedKind::Changed, format!("{}; {}", refused.message, refused.cure))
}

#[test]
fn a_host_starts_what_it_has_and_what_nobody_knows() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm("alpha", "web", VmState::Stopped);
    assert_eq!(bench.ask(by_hand("alpha", "web")), Answer::Done);
    assert_eq!(bench.ask(from_file("alpha", "new")), Answer::Done);
    // It may have ended a moment ago, and its host knows best.
    bench.run_vm("alpha", "db");
    assert_eq!(bench.ask(by_hand("alpha", "db")), Answer::Done);
}

#[test]
fn a_guest_that_was_started_elsewhere_stays_there() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(12);
    // Its host counts as lost, and is back: it has its guests.
    bench.connect("alpha");
    assert_eq!(bench.ask(by_hand("alpha", "web")), Answer::Done);
    bench.disconnect("alpha");
    bench.wait_s(12);
    bench.begin(is_off("alpha"));
    // It is back while beta starts the guest.
    bench.boot_and_greet("alpha");
    bench.set_vm("alpha", "web", VmState::Stopped);
    let (passes, words) = refused(&mut bench, by_hand("alpha", "web"));
    assert!(!passes && words.contains("being started on 'beta'") && words.contains("skein migrate web"), "{words}");
    bench.obey_all();
    bench.set_vm("alpha", "web", VmState::Stopped);
    for ask in [by_hand("alpha", "web"), from_file("alpha", "web")] {
        let (passes, words) = refused(&mut bench, ask);
        assert!(!passes && words.contains("runs on 'beta'") && words.contains("skein migrate web"), "{words}");
    }
    // Also by the word of the records alone.
    bench.disconnect("beta");
    bench.change_leader();
    bench.connect("alpha");
    let (_, words) = refused(&mut bench, by_hand("alpha", "web"));
    assert!(words.contains("'beta'"), "{words}");
    bench.wait_s(12);
    let (passes, words) = refused(&mut bench, by_hand("alpha", "web"));
    assert!(!passes && words.contains("may run there") && words.contains("fence beta --is-off"), "{words}");
}

#[test]
fn what_is_the_clusters_to_start_is_started_by_the_cluster() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    let definition = "name = \"web\"\nmemory = \"1 GiB\"\n".to_owned();
    let request = CreateVmRequest { definition, start: false, on: None, dry_run: false };
    assert_eq!(bench.ask(Ask::CreateVm { request: Box::new(request) }), Answer::Done);
    let (passes, words) = refused(&mut bench, from_file("alpha", "web"));
    assert!(!passes && words.contains("skein vm start web --cluster --on alpha"), "{words}");
    // It is off on another host, which a person may have had forget it just now.
    bench.set_vm("beta", "old", VmState::Stopped);
    let (passes, words) = refused(&mut bench, from_file("alpha", "old"));
    assert!(passes && words.contains("off on 'beta'") && words.contains("--cluster --on alpha"), "{words}");
    bench.end_vm("beta", "old");
    let (passes, words) = refused(&mut bench, from_file("alpha", "old"));
    assert!(passes && words.contains("'beta' had 'old'"), "{words}");
    // A host that has not got its own any more: it went somewhere.
    let (passes, words) = refused(&mut bench, from_file("beta", "old"));
    assert!(passes && words.contains("does not have 'old' any more"), "{words}");
    bench.run_vm("gamma", "db");
    bench.disconnect("gamma");
    bench.wait_s(12);
    let failover = FailoverSettings { restart: false, ..FailoverSettings::default() };
    let settings = Box::new(ClusterSettings { failover, ..ClusterSettings::default() });
    assert_eq!(bench.ask(Ask::SetSettings { settings, version: None }), Answer::Done);
    assert_eq!(bench.ask(is_off("gamma")), Answer::Done);
    let (passes, words) = refused(&mut bench, from_file("alpha", "db"));
    assert!(!passes && words.contains("which is off") && words.contains("--cluster --on alpha"), "{words}");
}

#[test]
fn a_start_by_hand_waits_for_a_migration_and_for_the_hosts_first_report() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let hand = Hand { vm: "web", from: "alpha", to: "beta", id: 7, is_held: false };
    let migration = Migration { role: Role::Target, in_doubt: true, ..hand.migration() };
    bench.tell("beta", HostReport { migrations: vec![migration], ..HostReport::default() });
    bench.set_vm("alpha", "web", VmState::Stopped);
    let (passes, words) = refused(&mut bench, by_hand("alpha", "web"));
    assert!(!passes && words.contains("in a migration"), "{words}");
    bench.disconnect("alpha");
    let (passes, words) = refused(&mut bench, by_hand("alpha", "other"));
    assert!(passes && words.contains("has not reported"), "{words}");
}

#[test]
fn after_a_restore_a_start_by_hand_waits_for_all_hosts() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm("alpha", "web", VmState::Stopped);
    let backup = bench.backup();
    bench.restore(backup);
    bench.connect("alpha");
    for ask in [by_hand("alpha", "web"), from_file("alpha", "new")] {
        let (passes, words) = refused(&mut bench, ask);
        assert!(!passes && words.contains("restored") && words.contains("beta"), "{words}");
    }
    bench.connect("beta");
    assert_eq!(bench.ask(by_hand("alpha", "web")), Answer::Done);
}

#[test]
fn a_vm_that_the_cluster_starts_here_may_be_started_here() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm("alpha", "web", VmState::Stopped);
    let request = StartVmRequest { on: Some("alpha".into()), dry_run: false };
    bench.begin(Ask::StartVm { vm: "web".into(), request });
    assert_eq!(bench.ask(by_hand("alpha", "web")), Answer::Done);
    let (passes, words) = refused(&mut bench, from_file("beta", "web"));
    assert!(!passes && words.contains("being started on 'alpha'"), "{words}");
}

#[test]
fn a_yes_goes_out_once_the_store_has_a_record_of_it() {
    let mut bench = Bench::new(&["alpha"]);
    bench.set_vm("alpha", "web", VmState::Stopped);
    let asked = Asked {
        id: 4711,
        by: "host:alpha".into(),
        from: "192.0.2.1".into(),
        what: "start web by hand on alpha".into(),
        repeat: None,
        ask: by_hand("alpha", "web"),
    };
    bench.controller.handle(bench.now, Input::Asked(Box::new(asked))).unwrap();
    let mut written = None;
    while let Some(output) = bench.controller.output() {
        match output {
            Output::Write { write, changes, .. } => {
                assert!(changes.iter().any(|change| change.key().starts_with("audit/")), "{changes:?}");
                written = Some(write);
            }
            Output::Answer { asked: 4711, .. } => panic!("nobody has said that this controller still leads"),
            _ => {}
        }
    }
    bench.controller.handle(bench.now, Input::Written { write: written.unwrap(), revision: 99 }).unwrap();
    let mut outputs = std::iter::from_fn(|| bench.controller.output());
    let is_yes = |output: Output| matches!(output, Output::Answer { asked: 4711, answer: Answer::Done });
    assert!(outputs.any(is_yes));
}

#[test]
fn a_vm_that_a_person_had_its_host_forget_is_started_elsewhere_at_once() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm("alpha", "web", VmState::Stopped);
    bench.end_vm("alpha", "web");
    assert!(bench.controller.vm("web").is_some(), "it may be on its way");
    let forgotten = || HostReport { vms_forgotten: vec!["web".into()], ..HostReport::default() };
    // A host says that of its own VMs only.
    bench.tell("beta", forgotten());
    assert!(bench.controller.vm("web").is_some());
    bench.tell("alpha", forgotten());
    assert!(bench.controller.vm("web").is_none());
    assert_eq!(bench.ask(from_file("beta", "web")), Answer::Done);
    // What another host has by now stays.
    bench.run_vm("beta", "web");
    bench.tell("alpha", forgotten());
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("beta"));
    // So does what an operation is about.
    bench.set_vm("alpha", "db", VmState::Stopped);
    let request = StartVmRequest { on: Some("beta".into()), dry_run: false };
    bench.begin(Ask::StartVm { vm: "db".into(), request });
    bench.end_vm("alpha", "db");
    bench.tell("alpha", HostReport { vms_forgotten: vec!["db".into()], ..HostReport::default() });
    assert!(bench.controller.vm("db").is_some());
}

#[test]
fn who_is_faster_than_the_cluster_has_the_guest_where_it_was() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm("alpha", "web", VmState::Stopped);
    assert_eq!(bench.ask(by_hand("alpha", "web")), Answer::Done);
    // The cluster is to start it elsewhere before alpha has reported: it is beta's, once alpha has forgotten it.
    let request = StartVmRequest { on: Some("beta".into()), dry_run: false };
    let begun = bench.begin(Ask::StartVm { vm: "web".into(), request });
    bench.tell("alpha", HostReport::default());
    assert_eq!(bench.sent[0].request, Request::VmForget { name: "web".into() });
    bench.reply(Reply::Error(Refusal { message: "'web' is being started".into(), cure: String::new() }));
    bench.run_vm("alpha", "web");
    bench.wait_s(1);
    let over = bench.now(&begun);
    assert_eq!((over.state, over.message.as_str()), (OperationState::Failed, "somebody has started it on alpha"));
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("alpha"));
    bench.wait_s(10);
    assert!(!bench.sent.iter().any(|sent| sent.host == "beta"), "{:?}", bench.sent);
}
