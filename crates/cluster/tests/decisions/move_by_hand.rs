//! An agent asks whether a person may move a guest from its host.

use skein_api::cluster::MigrateRequest;
use skein_api::{HostReport, Migration, MigrationId, Outcome, Request, Role, Term, VmState, VmView};
use skein_cluster::{Answer, Ask, RefusedKind};

use crate::bench::{Bench, Hand, is_off};

const HAND: Hand = Hand { vm: "web", from: "beta", to: "gamma", id: 7, is_held: false };

fn to(host: &str, vm: &str, to: &str, id: u64) -> Ask {
    Ask::MoveByHand { host: host.into(), vm: vm.into(), to: to.into(), migration: Some(MigrationId(id)) }
}

/// Returns three hosts, of which the second runs a guest that a person may move to the third.
fn allowed() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    assert_eq!(bench.ask(to("beta", "web", "gamma", HAND.id)), Answer::Done);
    bench
}

/// Has the source report that this has been asked for, and may begin yet.
fn still_asked(bench: &mut Bench, ids: &[u64]) {
    let moves_asked = ids.iter().map(|id| MigrationId(*id)).collect();
    bench.tell("beta", HostReport { sequence: 2, moves_asked, ..HostReport::default() });
}

/// Cuts both hosts of the migration off.
fn lose_both(bench: &mut Bench) {
    bench.disconnect("beta");
    bench.disconnect("gamma");
    bench.wait_s(12);
}

#[test]
fn a_guest_that_may_have_been_moved_waits_for_the_target() {
    for changes_leader in [false, true] {
        for runs in [false, true] {
            let mut bench = allowed();
            if changes_leader {
                bench.begin_by_hand(&HAND);
                bench.change_leader();
                ["alpha", "beta", "gamma"].iter().for_each(|host| bench.connect(host));
            }
            lose_both(&mut bench);
            let failover = bench.begin(is_off("beta"));
            bench.wait_s(300);
            let words = bench.now(&failover).message;
            assert!(bench.sent.is_empty() && words.contains("moved them to gamma"), "{words} {:?}", bench.sent);
            if runs {
                bench.set_vm("gamma", "web", VmState::Running);
            }
            bench.connect("gamma");
            bench.wait_s(12);
            bench.obey_all();
            assert!(bench.now(&failover).state.is_over());
            let host = bench.controller.vm("web").unwrap().host.unwrap();
            assert_eq!(bench.has(&host), ["web"]);
            assert_eq!(host == "gamma", runs || bench.has("alpha").is_empty());
        }
    }
}

#[test]
fn it_is_started_once_the_target_is_off_too() {
    let mut bench = allowed();
    lose_both(&mut bench);
    bench.begin(is_off("beta"));
    bench.wait_s(60);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    bench.ask(is_off("gamma"));
    bench.wait_s(12);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_guest_that_stayed_waits_for_nobody() {
    // Asked for by another name it may begin yet.
    for (told, waits) in [(Some(&[HAND.id][..]), true), (Some(&[3][..]), false), (Some(&[][..]), false), (None, false)]
    {
        let mut bench = allowed();
        match told {
            Some(ids) => still_asked(&mut bench, ids),
            None => {
                bench.begin_by_hand(&HAND);
                bench.end_by_hand(&HAND, Outcome::CalledOff);
            }
        }
        lose_both(&mut bench);
        bench.begin(is_off("beta"));
        bench.wait_s(12);
        bench.obey_all();
        assert_eq!(bench.has("alpha").is_empty(), waits, "{told:?}");
    }
}

#[test]
fn a_guest_that_has_come_while_its_source_fell_silent_is_its_new_hosts() {
    let mut bench = allowed();
    bench.begin_by_hand(&HAND);
    // The source does not tell any more, and nobody has noticed yet.
    let view = VmView { migration: None, ..bench.vm_view("beta", "web") };
    let migration = Migration { role: Role::Target, outcome: Some(Outcome::Moved), ..HAND.migration() };
    let report = HostReport { sequence: 2, vms: vec![view], migrations: vec![migration], ..HostReport::default() };
    bench.tell("gamma", report);
    let drain = bench.drain("gamma");
    bench.wait_s(2);
    let drain = bench.now(&drain);
    assert!(!drain.state.is_over() && drain.message.contains("web has come"), "{drain:?}");
    bench.begin(Ask::Cancel { operation: drain.id.clone() });
    bench.disconnect("beta");
    bench.wait_s(12);
    assert_eq!(bench.controller.vm("web").unwrap().host.as_deref(), Some("gamma"));
    bench.ask(is_off("beta"));
    bench.wait_s(12);
    assert!(bench.sent.iter().all(|sent| !matches!(sent.request, Request::VmStart { .. })), "{:?}", bench.sent);
    bench.disconnect("gamma");
    bench.wait_s(12);
    bench.begin(is_off("gamma"));
    bench.wait_s(2);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_guest_that_has_come_is_its_new_hosts_and_the_yes_is_over() {
    let mut bench = allowed();
    bench.begin_by_hand(&HAND);
    bench.end_by_hand(&HAND, Outcome::Moved);
    bench.set_vm("gamma", "web", VmState::Running);
    // It comes back by an operation, and only then its host dies, while the one where it was is lost.
    bench.end_vm("gamma", "web");
    bench.set_vm("beta", "web", VmState::Running);
    lose_both(&mut bench);
    bench.begin(is_off("beta"));
    bench.wait_s(12);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_target_outside_the_cluster_can_only_join_or_have_the_vm_deleted() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    assert_eq!(bench.ask(to("beta", "web", "omega", 7)), Answer::Done);
    bench.disconnect("beta");
    bench.wait_s(12);
    let failover = bench.begin(is_off("beta"));
    bench.wait_s(60);
    let words = bench.now(&failover).message;
    assert!(bench.sent.is_empty() && words.contains("omega, which is no host of this cluster"), "{words}");
}

#[test]
fn what_is_not_the_hosts_or_goes_where_nobody_reports_is_not_moved() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let refused = |bench: &mut Bench, ask: Ask| {
        let refused = bench.refused(ask);
        (refused.kind == RefusedKind::Changed, format!("{}; {}", refused.message, refused.cure))
    };
    let (passes, words) = refused(&mut bench, to("alpha", "web", "gamma", 7));
    assert!(!passes && words.contains("runs on 'beta'"), "{words}");
    let (passes, words) = refused(&mut bench, to("beta", "new", "gamma", 7));
    assert!(passes && words.contains("has not reported 'new'"), "{words}");
    bench.disconnect("gamma");
    let (passes, words) = refused(&mut bench, to("beta", "web", "gamma", 7));
    assert!(passes && words.contains("'gamma' does not report"), "{words}");
    bench.disconnect("beta");
    let (passes, words) = refused(&mut bench, to("beta", "web", "alpha", 7));
    assert!(passes && words.contains("'beta' has not reported"), "{words}");
}

/// The target is cut off, and its last reports are on their way yet: they do not count.
#[test]
fn a_report_from_before_the_proof_is_no_word_of_the_target() {
    for runs in [false, true] {
        let mut bench = allowed();
        bench.disconnect("beta");
        bench.wait_s(12);
        bench.mute.insert("gamma".into());
        let failover = bench.begin(is_off("beta"));
        bench.wait_s(60);
        assert!(bench.sent.is_empty() && !bench.now(&failover).state.is_over(), "{:?}", bench.sent);
        if runs {
            bench.set_vm("gamma", "web", VmState::Running);
        }
        bench.mute.clear();
        bench.disconnect("gamma");
        bench.connect("gamma");
        bench.wait_s(3);
        bench.obey_all();
        bench.wait_s(3);
        assert!(bench.now(&failover).state.is_over());
        assert_eq!(bench.has("gamma") == ["web"], runs || bench.has("alpha").is_empty());
    }
}

/// So it is if the leader was never asked: no controller was there, or the store was restored from a backup since.
#[test]
fn what_a_source_says_of_a_migration_is_written_down() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    bench.begin_by_hand(&HAND);
    bench.change_leader();
    ["alpha", "beta"].iter().for_each(|host| bench.connect(host));
    lose_both(&mut bench);
    let failover = bench.begin(is_off("beta"));
    bench.wait_s(60);
    let words = bench.now(&failover).message;
    assert!(bench.sent.is_empty() && words.contains("gamma"), "{words} {:?}", bench.sent);
    bench.ask(is_off("gamma"));
    bench.wait_s(3);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_guest_on_its_way_when_its_host_died_starts_once_the_target_has_dropped_it() {
    let mut bench = allowed();
    bench.begin_by_hand(&HAND);
    bench.set_vm("gamma", "web", VmState::Incoming);
    bench.disconnect("beta");
    bench.wait_s(12);
    let failover = bench.begin(is_off("beta"));
    bench.wait_s(60);
    let words = bench.now(&failover).message;
    assert!(bench.sent.is_empty() && words.contains("on its way to gamma"), "{words} {:?}", bench.sent);
    bench.end_vm("gamma", "web");
    bench.wait_s(3);
    bench.obey_all();
    bench.wait_s(3);
    assert!(bench.now(&failover).state.is_over());
    assert_eq!(bench.has("alpha").len() + bench.has("gamma").len(), 1);
}

#[test]
fn nobody_moves_a_guest_to_a_removed_host_and_none_is_removed_that_gets_one() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma", "delta"]);
    bench.run_vm("beta", "web");
    let remove = |host: &str| Ask::RemoveHost { host: host.into(), force: true };
    assert_eq!(bench.ask(remove("delta")), Answer::Done);
    let refused = bench.refused(to("beta", "web", "delta", 5));
    assert!(refused.message.contains("was removed from the cluster"), "{refused:?}");

    assert_eq!(bench.ask(to("beta", "web", "gamma", HAND.id)), Answer::Done);
    bench.begin_by_hand(&HAND);
    let refused = bench.refused(remove("gamma"));
    assert!(refused.message.contains("somebody moves 'web' from 'beta' to 'gamma'"), "{refused:?}");
    bench.disconnect("gamma");
    bench.wait_s(12);
    let refused = bench.refused(remove("gamma"));
    assert!(refused.cure.contains("skein host fence gamma --is-off"), "{refused:?}");
    // Its source may have to say yet that it went there, and ended.
    bench.disconnect("beta");
    bench.wait_s(12);
    bench.ask(is_off("gamma"));
    let refused = bench.refused(remove("gamma"));
    assert!(refused.message.contains("may have gone from 'beta' to 'gamma'"), "{refused:?}");
    assert!(refused.cure.contains("skein host fence beta --is-off"), "{refused:?}");
    bench.begin(is_off("beta"));
    assert_eq!(bench.ask(remove("gamma")), Answer::Done);
    bench.wait_s(3);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_guest_that_left_the_cluster_is_forgotten_only_by_a_person() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    let hand = Hand { to: "omega", ..HAND };
    assert_eq!(bench.ask(to("beta", "web", "omega", hand.id)), Answer::Done);
    let moved = Migration { outcome: Some(Outcome::Moved), ..hand.migration() };
    let report = HostReport { sequence: 2, migrations: vec![moved], ..HostReport::default() };
    bench.tell("beta", report);
    bench.end_vm("beta", "web");
    bench.wait_s(600);
    assert!(bench.controller.vm("web").is_some(), "it may run on omega");
    let start = Ask::StartByHand { host: "alpha".into(), vm: "web".into(), is_here: false };
    bench.refused(start);
    assert_eq!(bench.ask(Ask::DeleteVm { vm: "web".into() }), Answer::Done);
    assert!(bench.controller.vm("web").is_none());
}

/// Has an operation move the guest, and both hosts be cut off before it has come.
fn commanded() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let request = MigrateRequest { to: Some("gamma".into()), ..MigrateRequest::default() };
    bench.begin(Ask::Migrate { vm: "web".into(), request, breaks: Vec::new() });
    bench.begin_commanded(HAND.id);
    bench.disconnect("beta");
    bench.wait_s(12);
    bench
}

#[test]
fn a_move_of_an_operation_ends_by_words_from_after_the_proof_too() {
    for is_off_too in [false, true] {
        let mut bench = commanded();
        bench.mute.insert("gamma".into());
        bench.begin(is_off("beta"));
        bench.wait_s(60);
        assert!(bench.sent.is_empty(), "{:?}", bench.sent);
        bench.mute.clear();
        bench.disconnect("gamma");
        if is_off_too {
            bench.wait_s(12);
            bench.ask(is_off("gamma"));
        } else {
            bench.set_vm("gamma", "web", VmState::Running);
            bench.connect("gamma");
        }
        bench.wait_s(5);
        bench.obey_all();
        bench.wait_s(3);
        assert_eq!(bench.has("alpha") == ["web"], is_off_too);
        assert!(bench.controller.vm("web").unwrap().operation.is_none(), "the move is over");
    }
}

#[test]
fn no_host_is_removed_whose_guests_or_word_are_waited_for() {
    let remove = |host: &str| Ask::RemoveHost { host: host.into(), force: true };
    let mut bench = allowed();
    bench.begin_by_hand(&HAND);
    lose_both(&mut bench);
    bench.begin(is_off("beta"));
    bench.wait_s(12);
    for host in ["beta", "gamma"] {
        let refused = bench.refused(remove(host));
        assert!(refused.cure.contains("skein host fence gamma --is-off"), "{refused:?}");
    }
    bench.ask(is_off("gamma"));
    bench.wait_s(3);
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
    bench.wait_s(3);
    assert_eq!(bench.ask(remove("gamma")), Answer::Done);
    assert_eq!(bench.ask(remove("beta")), Answer::Done);
}

/// The last of several migrations counts, however often the source tells of all.
#[test]
fn a_guest_that_left_the_cluster_twice_is_where_it_went_last() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("beta", "web");
    bench.wait_s(1);
    let left = |id: u64, to: &'static str, begun: &str| {
        let migration = Hand { to, id, ..HAND }.migration();
        Migration { outcome: Some(Outcome::Moved), begun: begun.into(), ..migration }
    };
    let migrations = vec![left(9, "omega", "2026-11-25T12:00:00.000Z"), left(8, "psi", "2026-11-25T13:00:00.000Z")];
    bench.end_vm("beta", "web");
    bench.tell("beta", HostReport { sequence: 2, migrations, ..HostReport::default() });
    let target = |bench: &Bench| {
        let stored = bench.backup()["vm/web"].clone();
        serde_json::from_slice::<serde_json::Value>(&stored).unwrap()["move_by_hand"]["to"].clone()
    };
    for _ in 0..3 {
        assert_eq!(target(&bench), "psi");
        bench.wait_s(1);
    }
}

/// The controller was started again after the host died, and never heard the host.
#[test]
fn a_host_that_died_before_the_leader_began_can_be_removed() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.set_vm("beta", "web", VmState::Stopped);
    bench.disconnect("beta");
    bench.wait_s(12);
    bench.ask(is_off("beta"));
    bench.change_leader();
    bench.connect("alpha");
    bench.wait_s(3);
    assert_eq!(bench.ask(Ask::RemoveHost { host: "beta".into(), force: true }), Answer::Done);
}

#[test]
fn nobody_moves_a_guest_to_a_host_that_is_to_stay_empty() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    bench.drain("gamma");
    let refused = bench.refused(to("beta", "web", "gamma", HAND.id));
    assert!(refused.message.contains("in maintenance") && refused.cure == "skein host resume gamma", "{refused:?}");
}

/// A report that was made before its host heard the leader says nothing of what an earlier leader allowed.
#[test]
fn a_report_of_before_the_leader_ends_no_move_that_was_allowed() {
    for led in [None, Some(Term(1)), Some(Term(2))] {
        let mut bench = allowed();
        bench.change_leader();
        ["alpha", "gamma"].iter().for_each(|host| bench.connect(host));
        // A connection's first report is made before the leader has said so.
        bench.connect("beta");
        bench.tell_as("beta", HostReport { sequence: 2, led, ..HostReport::default() });
        lose_both(&mut bench);
        bench.begin(is_off("beta"));
        bench.wait_s(60);
        assert_eq!(bench.sent.is_empty(), led != Some(Term(2)), "{led:?}");
    }
}

#[test]
fn a_move_that_is_only_checked_is_kept_nowhere() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    let check =
        |target: &str| Ask::MoveByHand { host: "beta".into(), vm: "web".into(), to: target.into(), migration: None };
    let audited = bench.controller.tables().audit.len();
    assert_eq!(bench.ask(check("gamma")), Answer::Done);
    assert_eq!(bench.controller.tables().audit.len(), audited);
    lose_both(&mut bench);
    // Nobody waits for the target.
    bench.begin(is_off("beta"));
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
}

#[test]
fn a_move_by_the_controller_is_shown_before_it_is_begun() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("beta", "web");
    bench.set_vm("beta", "old", VmState::Stopped);
    for (vm, target) in [("web", Some("gamma")), ("web", None), ("old", Some("gamma")), ("old", None)] {
        let to = target.map(str::to_owned);
        let request = MigrateRequest { to, dry_run: true, ..MigrateRequest::default() };
        let shown = bench.shown(Ask::Migrate { vm: vm.into(), request, breaks: Vec::new() });
        assert!(shown.message.contains("nothing was begun"), "{shown:?}");
        assert_eq!((shown.moves.len(), bench.sent.len()), (1, 0));
    }
}
