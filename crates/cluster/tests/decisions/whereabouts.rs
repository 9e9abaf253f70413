//! Where a guest is that the controller has not seen: nothing is started that may run there.

use skein_api::cluster::{
    Contact, MigrateRequest, MoveState, OperationKind, OperationState, StartVmRequest, StopVmRequest, VmRunState,
    VmSettings,
};
use skein_api::{HostReport, Migration, MigrationId, Outcome, Refusal, Reply, Request, Role, VmState};
use skein_cluster::{Answer, Ask, explained};

use crate::bench::{Bench, Hand, Sent, is_off};

const HAND: Hand = Hand { vm: "web", from: "beta", to: "gamma", id: 7, is_held: false };

fn start(vm: &str) -> Ask {
    Ask::StartVm { vm: vm.into(), request: StartVmRequest::default() }
}

fn lose(bench: &mut Bench, host: &str) {
    bench.disconnect(host);
    bench.wait_s(12);
    assert_eq!(bench.host(host).contact, Contact::Lost);
}

/// Returns three hosts, of which the second runs a VM and the third is lost.
fn without_gamma() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    lose(&mut bench, "gamma");
    bench
}

#[test]
fn a_boot_proves_nothing_of_what_a_restored_backup_says() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    let settings = VmSettings { autostart: true, ..VmSettings::default() };
    assert_eq!(bench.ask(Ask::SetVm { vm: "web".into(), settings, version: None }), Answer::Done);
    let backup = bench.backup();
    // Since the backup the guest was started elsewhere, and its host has it still, off.
    bench.set_vm("gamma", "web", VmState::Running);
    bench.restore(backup);
    bench.boot("alpha");
    bench.connect("beta");
    bench.wait_s(60);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    // Nor is it started for somebody.
    let started = bench.begin(start("web"));
    bench.wait_s(60);
    let words = bench.now(&started).message;
    assert!(bench.sent.is_empty() && words.contains("given to gamma since"), "{words}");
    bench.connect("gamma");
    bench.wait_s(12);
    assert!(bench.now(&started).state.is_over());
    let there = bench.controller.vm("web").unwrap();
    assert_eq!((there.host.as_deref(), there.state), (Some("gamma"), VmRunState::Running));
    // What its former host has left of it is to be forgotten there, and nothing is started.
    assert!(bench.sent.iter().all(|sent| matches!(sent.request, skein_api::Request::VmForget { .. })));
}

#[test]
fn a_guest_that_went_to_a_silent_host_is_that_hosts_and_outlives_the_one_it_left() {
    let mut bench = without_gamma();
    bench.begin_by_hand(&HAND);
    bench.end_by_hand(&HAND, Outcome::Moved);
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("gamma"));
    lose(&mut bench, "beta");
    bench.ask(is_off("beta"));
    bench.wait_s(120);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    // Once that host is off, too, the guest ended with it.
    let failover = bench.begin(is_off("gamma"));
    assert!(matches!(&failover.kind, OperationKind::Failover { host } if host == "gamma"));
    assert_eq!(bench.sent.len(), 1);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_guest_that_ended_with_the_host_to_which_it_had_come_does_not_count_as_running() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.drain("alpha");
    bench.begin_commanded(7);
    // The guest comes to beta, which is reset before anybody hears of that.
    lose(&mut bench, "alpha");
    lose(&mut bench, "beta");
    bench.set_vm("beta", "web", VmState::Running);
    bench.boot("beta");
    let migration = Migration::new(MigrationId(7), "web", Role::Target, "alpha", "beta");
    let migration = Migration { outcome: Some(Outcome::Moved), ..migration };
    bench.tell("beta", HostReport { sequence: 2, migrations: vec![migration], ..HostReport::default() });
    bench.wait_s(2);
    let there = bench.controller.vm("web").unwrap();
    assert_eq!((there.host.as_deref(), there.state), (Some("beta"), VmRunState::Stopped));
}

#[test]
fn a_guest_that_its_host_had_no_more_waits_for_each_host_that_is_silent() {
    let mut bench = without_gamma();
    bench.run_vm("beta", "db");
    bench.end_vm("beta", "web");
    lose(&mut bench, "beta");
    let failover = bench.begin(is_off("beta"));
    // What the host had until the end is started.
    bench.obey_all();
    bench.wait_s(120);
    assert_eq!(bench.has("alpha"), ["db"]);
    let now = bench.now(&failover);
    assert!(!now.state.is_over() && bench.sent.is_empty(), "{now:?}");
    assert!(now.message.starts_with("starts wait: ") && now.message.contains("gamma"), "{}", now.message);
    // It is nowhere else if that host does not have it.
    bench.connect("gamma");
    bench.wait_s(12);
    bench.obey_all();
    bench.wait_s(12);
    let now = bench.now(&failover);
    assert!(now.state.is_over(), "{now:?}");
    assert!(now.moves.iter().all(|of| of.state == MoveState::Done));
    assert_eq!(bench.has("alpha").contains(&"web") as usize + bench.has("gamma").contains(&"web") as usize, 1);
}

#[test]
fn a_guest_that_may_have_ended_with_a_host_is_not_forgotten() {
    let mut bench = without_gamma();
    bench.end_vm("beta", "web");
    bench.wait_s(300);
    let refused = bench.refused(start("web"));
    assert!(refused.message.contains("may be on 'gamma'"), "{refused:?}");
    bench.ask(is_off("gamma"));
    bench.wait_s(2);
    let missing = bench.controller.vm("web").expect("it is remembered");
    assert_eq!((missing.host, missing.state), (None, VmRunState::Stopped));
    assert!(missing.note.contains("ended with gamma"), "{}", missing.note);
    let started = bench.begin(start("web"));
    bench.wait_s(5);
    assert_eq!(bench.sent.len(), 1, "{:?}", bench.now(&started));
    bench.obey_all();
    bench.wait_s(5);
    assert!(bench.now(&started).state.is_over());
}

#[test]
fn a_drain_does_not_wait_for_a_guest_that_somebody_took_away() {
    // It is away before the drain, while the drain has the guest to move, or while nothing is begun yet.
    for begins_after_s in [70, 0] {
        let mut bench = without_gamma();
        bench.run_vm("beta", "db");
        let early = (begins_after_s == 0).then(|| bench.drain("beta"));
        bench.end_vm("beta", "web");
        bench.wait_s(begins_after_s);
        let drain = early.unwrap_or_else(|| bench.drain("beta"));
        for _ in 0..120 {
            let of_web = |of: &Sent| matches!(&of.request, Request::Migrate { vm, .. } if vm == "web");
            match bench.sent.first().map(of_web) {
                Some(true) => {
                    let refusal = Refusal { message: "there is no VM 'web'".into(), cure: String::new() };
                    bench.reply(Reply::Error(refusal));
                }
                Some(false) => drop(bench.obey()),
                None => {}
            }
            bench.wait_s(1);
        }
        let over = bench.now(&drain);
        assert_eq!((over.state, bench.has("alpha")), (OperationState::Done, vec!["db"]), "{over:?}");
        assert!(over.message.contains("no longer on beta, and not seen elsewhere: web"), "{}", over.message);
        // What it is: nobody knows whether it runs. It is not forgotten either.
        let web = bench.controller.vm("web").expect("it is remembered");
        assert_eq!((web.state, web.host.as_deref()), (VmRunState::Lost, Some("beta")));
        assert!(web.note.contains("'beta' has it no more"), "{}", web.note);
        assert_eq!((bench.host("beta").vms_running, bench.controller.vm_counts().lost), (0, 1));
        let asked = Ask::Migrate { vm: "web".into(), request: MigrateRequest::default(), breaks: Vec::new() };
        assert!(bench.refused(asked).message.contains("'beta' has 'web' no more"));
        bench.connect("gamma");
        bench.wait_s(70);
        assert_eq!(bench.controller.vm("web"), None);
    }
}

#[test]
fn a_vm_is_explained_where_it_is_and_not_where_it_goes() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    bench.drain("beta");
    assert_eq!(bench.sent.len(), 1, "it is to be moved");
    let vm = bench.controller.vm("web").expect("it is there");
    let found = explained(&bench.controller.placement(), "web", vm.host.as_deref()).unwrap();
    assert_eq!(found.expect("it runs").on.as_deref(), Some("beta"));
}

#[test]
fn of_a_guest_that_ran_twice_the_one_that_is_left_is_seen() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    bench.run_vm("gamma", "web");
    let doubled = bench.controller.vm("web").unwrap().host.unwrap();
    let other = if doubled == "beta" { "gamma" } else { "beta" };
    bench.set_vm(&doubled, "web", VmState::Stopped);
    let left = bench.controller.vm("web").unwrap();
    assert_eq!((left.host.as_deref(), left.state), (Some(other), VmRunState::Running));
}

#[test]
fn a_start_is_asked_for_no_more_once_its_guest_runs_on_the_host_that_is_back() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    lose(&mut bench, "beta");
    bench.begin(is_off("beta"));
    assert_eq!(bench.sent.len(), 1);
    // The agent that is to start it does not get the order, nor does the leader that gave it live on.
    bench.sent.clear();
    bench.change_leader();
    bench.connect("beta");
    bench.connect("alpha");
    bench.wait_s(60);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("beta"));
}

/// What a silent host last said is old: the guest may have left it since.
#[test]
fn a_guest_that_a_silent_host_had_waits_for_that_hosts_word() {
    for (has_it, is_asked_to_start) in [(false, false), (true, false), (false, true)] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        bench.run_vm("gamma", "web");
        // It leaves, and its host is cut off before it says so.
        bench.disconnect("gamma");
        bench.run_vm("beta", "web");
        assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("beta"));
        bench.wait_s(12);
        lose(&mut bench, "beta");
        let operation = bench.begin(is_off("beta"));
        bench.wait_s(60);
        let words = bench.now(&operation).message;
        assert!(bench.sent.is_empty() && words.contains("see that 'gamma' is on"), "{words} {:?}", bench.sent);
        if is_asked_to_start {
            bench.begin(Ask::Cancel { operation: operation.id });
            let operation = bench.begin(start("web"));
            bench.wait_s(3);
            let words = bench.now(&operation).message;
            assert!(bench.sent.is_empty() && words.contains("see that 'gamma' is on"), "{words} {:?}", bench.sent);
        }
        if !has_it {
            bench.end_vm("gamma", "web");
        }
        bench.connect("gamma");
        bench.wait_s(3);
        assert_eq!(bench.sent.iter().any(|sent| matches!(sent.request, Request::VmStart { .. })), !has_it);
    }
}

/// A report of an earlier term says nothing of where a host's guests went since.
#[test]
fn what_a_host_said_before_another_led_does_not_count() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    bench.disconnect("beta");
    bench.disconnect("gamma");
    bench.lead_again();
    bench.wait_s(30);
    let failover = bench.begin(is_off("beta"));
    bench.wait_s(30);
    let words = bench.now(&failover).message;
    assert!(bench.sent.is_empty() && words.contains("moved them to gamma"), "{words} {:?}", bench.sent);
}

#[test]
fn a_host_that_is_asked_for_its_word_is_not_removed_before_it_is_there() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    bench.change_leader();
    bench.mute.insert("gamma".into());
    ["alpha", "gamma"].iter().for_each(|host| bench.connect(host));
    bench.wait_s(12);
    bench.begin(is_off("beta"));
    let remove = || Ask::RemoveHost { host: "gamma".into(), force: true };
    assert!(bench.refused(remove()).message.contains("'web' may be on 'gamma'"));
    // It falls silent, and is not lost yet.
    bench.disconnect("gamma");
    assert!(bench.refused(remove()).cure.contains("skein host fence gamma --is-off"));
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
}

fn moved(id: u64, role: Role, (from, to): (&str, &str), begun: &str) -> Migration {
    let begun = format!("2026-11-25T{begun}:00:00.000Z");
    Migration { outcome: Some(Outcome::Moved), begun, ..Migration::new(MigrationId(id), "web", role, from, to) }
}

#[test]
fn a_guest_that_left_the_cluster_and_came_back_is_waited_for_no_more() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    let to_spare = moved(7, Role::Source, ("beta", "spare"), "12");
    let view = bench.lose_vm("beta", "web");
    let vms_gone = vec!["web".into()];
    bench.tell("beta", HostReport { sequence: 2, vms_gone, migrations: vec![to_spare], ..HostReport::default() });
    bench.wait_s(120);
    assert_eq!(bench.controller.vm("web").unwrap().state, VmRunState::Lost);
    bench.set_vm("beta", "web", view.state);
    let migrations = vec![moved(8, Role::Target, ("spare", "beta"), "13")];
    bench.tell("beta", HostReport { sequence: 3, migrations, ..HostReport::default() });
    lose(&mut bench, "beta");
    bench.begin(is_off("beta"));
    bench.wait_s(3);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_vm_that_came_back_and_was_forgotten_is_on_no_host_that_had_it_between() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let there = moved(7, Role::Source, ("beta", "gamma"), "12");
    let back = moved(8, Role::Target, ("gamma", "beta"), "13");
    bench.tell("beta", HostReport { sequence: 2, migrations: vec![there, back], ..HostReport::default() });
    lose(&mut bench, "gamma");
    bench.lose_vm("beta", "web");
    let (vms_gone, vms_forgotten) = (vec!["web".into()], vec!["web".into()]);
    bench.tell("beta", HostReport { sequence: 3, vms_gone, vms_forgotten, ..HostReport::default() });
    assert!(bench.controller.vm("web").is_none());
    assert_eq!(bench.ask(is_off("gamma")), Answer::Done, "it had nothing");
}

#[test]
fn a_guest_of_which_is_told_late_that_it_went_to_a_dead_host_starts_elsewhere() {
    for is_commanded in [false, true] {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        bench.run_vm("beta", "web");
        match is_commanded {
            false => bench.begin_by_hand(&HAND),
            true => {
                let request = MigrateRequest { to: Some("gamma".into()), ..MigrateRequest::default() };
                bench.begin(Ask::Migrate { vm: "web".into(), request, breaks: Vec::new() });
                bench.begin_commanded(HAND.id);
            }
        }
        lose(&mut bench, "beta");
        lose(&mut bench, "gamma");
        bench.ask(is_off("gamma"));
        bench.forget_hands();
        bench.lose_vm("beta", "web");
        bench.connect_with("beta", vec![moved(HAND.id, Role::Source, ("beta", "gamma"), "12")]);
        bench.wait_s(3);
        bench.sent.retain(|sent| matches!(sent.request, Request::VmStart { .. }));
        bench.obey_all();
        assert_eq!(bench.has("alpha").len() + bench.has("beta").len(), 1, "{is_commanded}");
    }
}

#[test]
fn a_silent_host_whose_vms_were_off_is_not_removed_by_force() {
    let mut bench = Bench::new(&["alpha", "gamma"]);
    bench.set_vm("gamma", "web", VmState::Stopped);
    // Somebody starts the VM there, and the host falls silent.
    assert_eq!(bench.ask(Ask::StartByHand { host: "gamma".into(), vm: "web".into(), is_here: true }), Answer::Done);
    bench.disconnect("gamma");
    let remove = || Ask::RemoveHost { host: "gamma".into(), force: true };
    for seconds in [0, 12] {
        bench.wait_s(seconds);
        assert!(bench.refused(remove()).cure.contains("skein host fence gamma --is-off"));
    }
    bench.ask(is_off("gamma"));
    assert_eq!(bench.ask(remove()), Answer::Done);
}

#[test]
fn a_deletion_ends_when_its_host_is_off() {
    let mut bench = Bench::new(&["alpha", "gamma"]);
    bench.set_vm("gamma", "web", VmState::Stopped);
    let deletion = bench.begin(Ask::DeleteVm { vm: "web".into() });
    lose(&mut bench, "gamma");
    bench.ask(is_off("gamma"));
    bench.wait_s(1);
    let deletion = bench.now(&deletion);
    assert!(deletion.state == OperationState::Failed && deletion.message.contains("gamma is off"), "{deletion:?}");
}

/// Whether it ended with its host is not known.
#[test]
fn a_stop_of_a_guest_that_may_have_gone_says_so() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let stop = StopVmRequest { timeout_s: 60, force: false };
    let stop = bench.begin(Ask::StopVm { vm: "web".into(), request: stop });
    bench.begin_by_hand(&HAND);
    bench.disconnect("beta");
    bench.disconnect("gamma");
    bench.wait_s(12);
    bench.ask(is_off("beta"));
    bench.wait_s(2);
    let words = bench.now(&stop).message;
    assert!(words.contains("waits for gamma"), "{words}");
}

#[test]
fn a_failover_after_a_restore_waits_for_each_host() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let backup = bench.backup();
    // It has gone since, and is said to be its former host's by the backup.
    bench.set_vm("gamma", "web", VmState::Running);
    bench.restore(backup);
    ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
    lose(&mut bench, "beta");
    let failover = bench.begin(is_off("beta"));
    bench.wait_s(60);
    let words = bench.now(&failover).message;
    assert!(bench.sent.is_empty() && words.contains("gamma"), "{words} {:?}", bench.sent);
    bench.connect("gamma");
    bench.wait_s(3);
    assert!(bench.sent.iter().all(|sent| !matches!(sent.request, Request::VmStart { .. })));
    assert!(bench.now(&failover).state.is_over());
}
