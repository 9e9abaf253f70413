//! Where a guest went that its host has no more: by the word of that host, and by no older word.

use skein_api::cluster::{MigrateRequest, OperationState, VmRunState, VmSettings};
use skein_api::{HostReport, Migration, MigrationId, Outcome, Reply, Request, Role, VmState};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, Hand, RUNS_MS, Sent, is_off};

const HAND: Hand = Hand { vm: "web", from: "beta", to: "gamma", id: 7, is_held: false };

fn migrate(to: &str) -> Ask {
    Ask::Migrate {
        vm: "web".into(),
        request: MigrateRequest { to: Some(to.into()), ..MigrateRequest::default() },
        breaks: Vec::new(),
    }
}

fn by_hand(to: &str, id: u64) -> Ask {
    let migration = Some(MigrationId(id));
    Ask::MoveByHand { host: "beta".into(), vm: "web".into(), to: to.into(), migration }
}

/// Returns a migration of beta's, begun at this hour of the host's clock, that is over if it has an outcome.
fn from_beta(to: &str, id: u64, hour: u64, outcome: Option<Outcome>) -> Migration {
    let begun = format!("2026-11-25T{hour}:00:00.000Z");
    Migration { begun, outcome, ..Migration::new(MigrationId(id), "web", Role::Source, "beta", to) }
}

/// Has beta report that it has the VM no more.
fn gone(bench: &mut Bench, sequence: u64, migrations: Vec<Migration>, is_forgotten: bool) {
    let vms_gone = vec!["web".to_owned()];
    let vms_forgotten = if is_forgotten { vms_gone.clone() } else { Vec::new() };
    bench.lose_vm("beta", "web");
    bench.tell("beta", HostReport { sequence, vms_gone, vms_forgotten, migrations, ..HostReport::default() });
}

/// Returns four hosts: a guest went from beta to gamma, which died with it, and was started on beta again.
fn home_again() -> Bench {
    let mut bench = Bench::new(&["beta", "gamma"]);
    bench.run_vm("beta", "web");
    gone(&mut bench, 3, vec![from_beta("gamma", 7, 13, Some(Outcome::Moved))], false);
    bench.run_vm("gamma", "web");
    bench.wait_s(1);
    bench.disconnect("gamma");
    bench.wait_s(12);
    bench.begin(is_off("gamma"));
    bench.wait_s(2);
    bench.obey_all();
    assert_eq!(bench.has("beta"), ["web"]);
    ["alpha", "delta"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(1);
    bench
}

fn place(bench: &Bench) -> Option<(String, VmRunState)> {
    let vm = bench.controller.vm("web")?;
    Some((vm.host.unwrap_or_default(), vm.state))
}

#[test]
fn an_older_departure_does_not_count_whatever_the_hosts_clock_says() {
    for by_operation in [false, true] {
        let mut bench = home_again();
        let begun = |outcome| from_beta("delta", 9, 12, outcome);
        if by_operation {
            bench.begin(migrate("delta"));
            bench.begin_commanded(9);
        } else {
            assert_eq!(bench.ask(by_hand("delta", 9)), Answer::Done);
        }
        bench.tell("beta", HostReport { sequence: 4, migrations: vec![begun(None)], ..HostReport::default() });
        bench.disconnect("delta");
        bench.set_vm("delta", "web", VmState::Running);
        gone(&mut bench, 5, vec![begun(Some(Outcome::Moved))], false);
        bench.wait_s(3);
        assert_eq!(place(&bench).map(|(host, _)| host).as_deref(), Some("delta"));
        assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    }
}

#[test]
fn a_guest_that_was_started_here_again_and_forgotten_is_nowhere() {
    for is_seen_off in [false, true] {
        let mut bench = home_again();
        bench.boot("gamma");
        bench.wait_s(3);
        bench.obey_all();
        bench.disconnect("gamma");
        bench.wait_s(12);
        if is_seen_off {
            bench.set_vm("beta", "web", VmState::Stopped);
            bench.wait_s(1);
        }
        gone(&mut bench, 9, Vec::new(), true);
        assert_eq!(place(&bench), None);
        assert_eq!(bench.ask(is_off("gamma")), Answer::Done);
        bench.wait_s(5);
        assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    }
}

/// The source forgets the VM, and its answer is lost.
#[test]
fn a_vm_that_is_moved_while_it_is_off_does_not_go_where_it_was_once() {
    for is_gamma_off in [false, true] {
        let mut bench = Bench::new(&["beta", "delta", "gamma"]);
        bench.run_vm("beta", "web");
        let first = from_beta("gamma", 7, 13, Some(Outcome::Moved));
        gone(&mut bench, 3, vec![first.clone()], false);
        bench.run_vm("gamma", "web");
        bench.set_vm("gamma", "web", VmState::Stopped);
        bench.begin(migrate("beta"));
        bench.obey_all();
        bench.wait_s(3);
        bench.obey_all();
        assert_eq!(bench.has("beta"), ["web"]);
        bench.disconnect("gamma");
        bench.wait_s(12);
        if is_gamma_off {
            bench.ask(is_off("gamma"));
        }
        let operation = bench.begin(migrate("delta"));
        for _ in 0..10 {
            if matches!(bench.sent[..], [Sent { request: Request::VmForget { .. }, .. }]) {
                break;
            }
            bench.obey();
            bench.wait_s(1);
        }
        let name = bench.sent.remove(0).request_id.expect("it has a name");
        bench.forgotten.insert(name, Reply::Done);
        bench.disconnect("beta");
        bench.lose_vm("beta", "web");
        bench.connect_with("beta", vec![first]);
        for _ in 0..60 {
            bench.obey_all();
            bench.wait_s(1);
        }
        assert_eq!(bench.now(&operation).state, OperationState::Done, "{:?}", bench.now(&operation));
        assert_eq!(place(&bench), Some(("delta".into(), VmRunState::Stopped)));
    }
}

#[test]
fn a_host_that_is_off_is_kept_while_a_silent_source_may_say_that_a_guest_went_there() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    assert_eq!(bench.ask(by_hand("gamma", HAND.id)), Answer::Done);
    bench.begin_by_hand(&HAND);
    ["beta", "gamma"].iter().for_each(|host| bench.disconnect(host));
    bench.wait_s(12);
    assert_eq!(bench.ask(is_off("gamma")), Answer::Done);
    let refused = bench.refused(Ask::RemoveHost { host: "gamma".into(), force: true });
    assert!(refused.message.contains("'web' may have gone from 'beta' to 'gamma'"), "{refused:?}");
    bench.lose_vm("beta", "web");
    bench.forget_hands();
    bench.connect_with("beta", vec![Migration { outcome: Some(Outcome::Moved), ..HAND.migration() }]);
    bench.wait_s(3);
    bench.obey_all();
    assert_eq!(bench.has("alpha").len() + bench.has("beta").len(), 1, "it is started elsewhere");
}

/// The move was called off, or its target died, before its agent was asked; a person moves the guest meanwhile.
#[test]
fn a_persons_migration_is_nobody_elses() {
    for is_target_off in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
        bench.run_vm("beta", "web");
        let operation = bench.begin(migrate("gamma"));
        bench.sent.clear();
        bench.disconnect("beta");
        if is_target_off {
            bench.disconnect("gamma");
            bench.wait_s(12);
            bench.ask(is_off("gamma"));
        } else {
            bench.begin(Ask::Cancel { operation: operation.id.clone() });
        }
        bench.begin_by_hand(&Hand { to: "delta", ..HAND });
        bench.connect("beta");
        bench.wait_s(2);
        assert!(matches!(bench.sent[0].request, Request::MigrationWithdraw { .. }), "{:?}", bench.sent);
        bench.obey();
        bench.wait_s(3);
        assert!(bench.sent.is_empty() && bench.now(&operation).state.is_over(), "{:?}", bench.sent);
        ["beta", "delta"].iter().for_each(|host| bench.disconnect(host));
        bench.wait_s(12);
        let failover = bench.begin(is_off("beta"));
        bench.wait_s(30);
        let words = bench.now(&failover).message;
        assert!(bench.sent.is_empty() && words.contains("moved them to delta"), "{words} {:?}", bench.sent);
    }
}

/// No controller led for a while, and agents tell of the last migrations only.
#[test]
fn a_move_that_neither_host_remembers_ends() {
    for place in ["nowhere", "delta"] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
        bench.run_vm("beta", "web");
        let operation = bench.begin(migrate("gamma"));
        bench.begin_commanded(7);
        bench.change_leader_after(RUNS_MS, |bench| drop(bench.lose_vm("beta", "web")));
        ["alpha", "delta", "gamma"].iter().for_each(|host| bench.connect(host));
        if place == "delta" {
            bench.run_vm("delta", "web");
        }
        bench.connect("beta");
        bench.wait_s(2);
        let over = bench.now(&operation);
        assert_eq!(over.state, OperationState::Failed, "{over:?}");
        assert!(over.message.contains("neither beta nor gamma has it"), "{over:?}");
    }
}

#[test]
fn a_move_whose_command_never_came_ends_once_its_target_is_off() {
    for is_cancelled in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
        bench.run_vm("beta", "web");
        let operation = bench.begin(migrate("gamma"));
        bench.sent.clear();
        ["beta", "gamma"].iter().for_each(|host| bench.disconnect(host));
        bench.wait_s(12);
        bench.ask(is_off("gamma"));
        if is_cancelled {
            bench.begin(Ask::Cancel { operation: operation.id.clone() });
            bench.wait_s(1);
            let told = &bench.now(&operation).moves[0].detail;
            assert!(told.contains("beta does not report"), "{told}");
        }
        bench.lose_vm("beta", "web");
        bench.run_vm("delta", "web");
        bench.connect("beta");
        for _ in 0..5 {
            bench.wait_s(1);
            bench.obey_all();
        }
        let over = bench.now(&operation);
        assert!(over.state.is_over() && over.moves[0].detail.contains("gamma is off"), "{over:?}");
    }
}

#[test]
fn a_guest_that_came_paused_is_where_it_came_to() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let operation = bench.begin(migrate("gamma"));
    bench.begin_commanded(7);
    bench.disconnect("beta");
    bench.set_vm("gamma", "web", VmState::Paused);
    bench.wait_s(12);
    assert_eq!(bench.ask(is_off("beta")), Answer::Done);
    let migration = Migration::new(MigrationId(7), "web", Role::Target, "beta", "gamma");
    let migrations = vec![Migration { outcome: Some(Outcome::Moved), ..migration }];
    bench.tell("gamma", HostReport { sequence: 3, migrations, ..HostReport::default() });
    bench.wait_s(3);
    assert_eq!(place(&bench), Some(("gamma".into(), VmRunState::Paused)));
    assert_eq!(bench.now(&operation).state, OperationState::Done);
}

/// The host was installed anew, or its disk is empty, and it joins as before.
#[test]
fn a_guest_of_a_host_that_is_back_without_its_vms_is_kept() {
    for (is_fenced, autostart) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut bench = Bench::new(&["alpha", "beta"]);
        bench.run_vm_of("beta", "web", 60);
        bench.run_vm_of("alpha", "big", 60);
        let settings = VmSettings { autostart, ..VmSettings::default() };
        bench.ask(Ask::SetVm { vm: "web".into(), settings, version: None });
        bench.disconnect("beta");
        bench.wait_s(12);
        if is_fenced {
            bench.begin(is_off("beta"));
        }
        bench.lose_vm("beta", "web");
        bench.boot("beta");
        bench.wait_s(120);
        bench.obey_all();
        if is_fenced || autostart {
            assert_eq!(bench.has("beta"), ["web"], "{is_fenced} {autostart}");
        } else {
            let vm = bench.controller.vm("web").expect("it is kept");
            assert!(vm.host.is_none() && vm.note.contains("it ended with a boot of 'beta'"), "{vm:?}");
        }
    }
}

/// Its QEMU hangs, and goes on later: what is there may run.
#[test]
fn a_guest_that_came_and_hangs_is_where_it_came_to() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    assert_eq!(bench.ask(by_hand("gamma", HAND.id)), Answer::Done);
    bench.begin_by_hand(&HAND);
    bench.disconnect("beta");
    bench.wait_s(12);
    bench.set_vm("gamma", "web", VmState::Unresponsive);
    assert_eq!(bench.ask(is_off("beta")), Answer::Done);
    bench.wait_s(30);
    assert_eq!(place(&bench), Some(("gamma".into(), VmRunState::Unresponsive)));
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
}

/// A connection tells of the migrations of the last minutes only.
#[test]
fn what_is_over_stays_over_though_a_connection_does_not_tell_of_it() {
    let mut bench = home_again();
    bench.disconnect("beta");
    bench.connect("beta");
    bench.wait_s(3);
    assert_eq!(bench.ask(by_hand("delta", 9)), Answer::Done);
    ["beta", "delta"].iter().for_each(|host| bench.disconnect(host));
    bench.lose_vm("beta", "web");
    bench.run_vm("delta", "web");
    bench.wait_s(1900);
    // By now the older one is told of, and the newer is not.
    bench.connect_with("beta", vec![from_beta("gamma", 7, 13, Some(Outcome::Moved))]);
    bench.wait_s(3);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    bench.connect("delta");
    bench.wait_s(3);
    assert_eq!(place(&bench), Some(("delta".into(), VmRunState::Running)));
}

#[test]
fn a_guest_that_left_the_cluster_long_ago_is_kept() {
    for boots in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        bench.run_vm("beta", "web");
        let settings = VmSettings { autostart: true, ..VmSettings::default() };
        bench.ask(Ask::SetVm { vm: "web".into(), settings, version: None });
        assert_eq!(bench.ask(by_hand("omega", 7)), Answer::Done);
        bench.disconnect("beta");
        bench.wait_s(900);
        bench.lose_vm("beta", "web");
        if boots {
            bench.boot("beta");
        } else {
            bench.connect("beta");
        }
        bench.wait_s(180);
        assert_eq!(place(&bench), Some(("beta".into(), VmRunState::Lost)), "{boots}");
        assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    }
}

/// A target has a QEMU before the guest has come, and while what is left of a failed migration is removed.
#[test]
fn a_qemu_at_a_target_is_no_proof_that_the_guest_has_come() {
    for state in [VmState::Starting, VmState::Unresponsive, VmState::Paused] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        bench.run_vm("beta", "web");
        bench.disconnect("beta");
        bench.wait_s(12);
        bench.set_vm("gamma", "web", state);
        bench.wait_s(2);
        let refused = bench.refused(Ask::RemoveHost { host: "beta".into(), force: false });
        assert!(refused.message.contains("'beta' has VMs that may run: web"), "{state:?} {refused:?}");
        bench.end_vm("gamma", "web");
        bench.wait_s(90);
        assert_eq!(place(&bench), Some(("beta".into(), VmRunState::Lost)), "{state:?}");
        bench.begin(is_off("beta"));
        bench.wait_s(2);
        bench.obey_all();
        assert_eq!(bench.has("alpha").len() + bench.has("gamma").len(), 1, "{state:?}");
    }
}

#[test]
fn a_guest_that_is_paused_on_a_second_host_is_told() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    bench.set_vm("alpha", "web", VmState::Paused);
    let told = bench.controller.attention();
    assert!(told.iter().any(|words| words.contains("'web' RUNS TWICE")), "{told:?}");
    assert!(bench.refused(Ask::RemoveHost { host: "alpha".into(), force: true }).message.contains("that run: web"));
}

/// The network was down for longer than agents tell of migrations.
#[test]
fn a_guest_that_went_to_a_host_that_died_is_started_however_late_its_source_is_heard() {
    for is_late in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        bench.run_vm("beta", "web");
        assert_eq!(bench.ask(by_hand("gamma", HAND.id)), Answer::Done);
        bench.begin_by_hand(&HAND);
        ["beta", "gamma"].iter().for_each(|host| bench.disconnect(host));
        bench.wait_s(900);
        assert_eq!(bench.ask(is_off("gamma")), Answer::Done);
        bench.lose_vm("beta", "web");
        bench.forget_hands();
        let over = Migration { outcome: Some(Outcome::Moved), ..HAND.migration() };
        bench.connect_with("beta", if is_late { Vec::new() } else { vec![over] });
        bench.wait_s(3);
        bench.obey_all();
        assert_eq!(bench.has("alpha").len() + bench.has("beta").len(), 1, "{is_late}");
    }
}

#[test]
fn of_many_migrations_the_last_are_remembered_and_written_once() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    let migrations: Vec<Migration> = (1..=60)
        .map(|id| Migration { outcome: Some(Outcome::Moved), ..from_beta("alpha", id, 10 + id % 12, None) })
        .collect();
    bench.tell("beta", HostReport { sequence: 3, migrations, ..HostReport::default() });
    let past = |bench: &Bench| bench.controller.tables().vms["web"].value.past_migrations.clone();
    for _ in 0..5 {
        let view = bench.vm_view("beta", "web");
        bench.tell("beta", HostReport { sequence: 4, vms: vec![view], ..HostReport::default() });
    }
    let before = bench.controller.tables().vms["web"].revision;
    let view = bench.vm_view("beta", "web");
    bench.tell("beta", HostReport { sequence: 5, vms: vec![view], ..HostReport::default() });
    assert_eq!((past(&bench).len(), bench.controller.tables().vms["web"].revision), (32, before));
}
