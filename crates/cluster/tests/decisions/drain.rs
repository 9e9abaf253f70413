//! Drains, and the way home.

use std::collections::BTreeSet;

use skein_api::cluster::{HostMode, MigrateRequest, MoveState, Operation, OperationState, ResumeRequest};
use skein_api::{HostReport, Migration, Outcome, Refusal, Reply, Request, VmState};
use skein_cluster::{Answer, Ask};

use crate::bench::{Bench, Hand, RUNS_MS, Sent, drain, is_off, preview};

fn resume(host: &str) -> Ask {
    Ask::Resume { host: host.into(), request: ResumeRequest { bring_home: true } }
}

fn stays<'a>(operation: &'a Operation, vm: &str) -> &'a str {
    let of = operation.moves.iter().rfind(|of| of.vm == vm).expect("it is told");
    assert_eq!((of.state, &of.to), (MoveState::Left, &None));
    &of.reason
}

#[test]
fn a_host_with_a_guest_that_runs_elsewhere_too_is_not_called_empty() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    // Somebody starts it by hand.
    bench.run_vm("beta", "web");
    let would = bench.shown(preview("beta"));
    assert!(stays(&would, "web").contains("RUNS TWICE, on beta and alpha"), "{would:?}");
    for host in ["beta", "alpha"] {
        let begun = bench.drain(host);
        bench.obey_all();
        let over = bench.now(&begun);
        assert_eq!(over.state, OperationState::Failed, "{over:?}");
        assert!(over.message.contains("'web' RUNS TWICE") && over.message.contains("skein vm stop web"), "{over:?}");
        stays(&over, "web");
        assert_eq!(bench.has(host), ["web"]);
        bench.ask(Ask::Resume { host: host.into(), request: ResumeRequest::default() });
    }
    bench.end_vm("beta", "web");
    let begun = bench.drain("beta");
    assert_eq!(bench.now(&begun).state, OperationState::Done);
}

#[test]
fn a_host_that_does_not_report_is_not_drained() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("alpha");
    bench.wait_s(12);
    for ask in [drain("alpha"), preview("alpha")] {
        let refused = bench.refused(ask);
        assert!(refused.message.contains("'alpha' does not report"), "{refused:?}");
        assert!(refused.cure.contains("skein host fence alpha --is-off"), "{refused:?}");
    }
    bench.ask(is_off("alpha"));
    assert!(bench.refused(drain("alpha")).message.contains("its guests are being started elsewhere"));
    bench.obey_all();
    assert_eq!(bench.has("beta"), ["web"]);
    assert!(bench.refused(drain("alpha")).message.contains("nothing runs on it"));
}

#[test]
fn a_drain_waits_for_a_host_that_is_lost_and_ends_with_one_that_is_off() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let begun = bench.drain("alpha");
    bench.disconnect("alpha");
    bench.wait_s(12);
    assert!(!bench.now(&begun).state.is_over());
    bench.ask(is_off("alpha"));
    bench.sent.retain(|sent| sent.host == "beta");
    bench.obey_all();
    bench.wait_s(1);
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Failed, "{over:?}");
    assert!(over.message.contains("alpha is off"), "{over:?}");
    assert_eq!(bench.host("alpha").mode, HostMode::Maintenance);
}

#[test]
fn what_is_off_on_a_host_with_an_older_agent_stays_and_is_told() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.older.insert("alpha".into());
    bench.disconnect("alpha");
    bench.connect("alpha");
    bench.run_vm("alpha", "web");
    bench.set_vm("alpha", "old", VmState::Stopped);
    let would = bench.shown(preview("alpha"));
    assert!(would.message.contains("1 VM that is off stays defined on alpha: old"), "{would:?}");
    assert!(stays(&would, "old").contains("the agent of alpha is older"), "{would:?}");
    let begun = bench.drain("alpha");
    bench.obey_all();
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Done);
    assert!(over.message.contains("stays defined on alpha: old"), "{over:?}");
}

#[test]
fn the_guests_of_all_drains_since_come_home() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "first");
    bench.drain("alpha");
    bench.obey_all();
    // Somebody starts another there, and the host is emptied once more.
    bench.run_vm("alpha", "second");
    let again = bench.drain("alpha");
    bench.obey_all();
    assert_eq!(bench.now(&again).state, OperationState::Done);
    assert_eq!(bench.has("beta"), ["first", "second"]);
    let home = bench.begin(resume("alpha"));
    bench.obey_all();
    assert_eq!(bench.now(&home).state, OperationState::Done);
    assert_eq!(bench.has("alpha"), ["first", "second"]);
    // What is home is not asked for again.
    bench.drain("alpha");
    bench.ask(Ask::Resume { host: "alpha".into(), request: ResumeRequest::default() });
    assert_eq!(bench.host("alpha").drain, None);
}

#[test]
fn the_guests_of_a_drain_that_was_called_off_come_home() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    ["a", "b", "c"].iter().for_each(|vm| bench.run_vm("alpha", vm));
    let begun = bench.drain("alpha");
    assert_eq!(bench.sent.len(), 2, "as many at a time as the agents allow: links are shared");
    bench.ask(Ask::Cancel { operation: begun.id.clone() });
    bench.obey_all();
    assert_eq!(bench.now(&begun).state, OperationState::Cancelled);
    assert_eq!((bench.host("alpha").mode, bench.has("beta").len()), (HostMode::Active, 2));
    bench.begin(resume("alpha"));
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["a", "b", "c"]);
}

#[test]
fn two_drains_at_once_use_neither_host_as_a_target() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    for vm in 0..6 {
        bench.run_vm(["alpha", "beta"][vm % 2], &format!("v{vm}"));
    }
    let first = bench.drain("alpha");
    let second = bench.drain("beta");
    // What was begun before comes, and is moved on.
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    for (operation, host, other) in [(&first, "alpha", "beta"), (&second, "beta", "alpha")] {
        let over = bench.now(operation);
        assert_eq!(over.state, OperationState::Done, "{over:?}");
        assert!(bench.has(host).is_empty());
        let failed = over.moves.iter().filter(|of| of.state == MoveState::Failed).count();
        assert_eq!(failed, 0, "{over:?}");
        let _ = other;
    }
    assert_eq!(bench.has("gamma").len(), 6);
    // Alone, neither of the two would be planned for.
    let would = bench.shown(preview("gamma"));
    assert!(would.moves.iter().all(|of| of.to.is_none()), "{would:?}");
}

#[test]
fn a_drain_is_not_over_while_a_guest_is_on_its_way_to_the_host() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    let migrate = skein_api::cluster::MigrateRequest { to: Some("beta".into()), ..Default::default() };
    bench.begin(Ask::Migrate { vm: "web".into(), request: migrate, breaks: Vec::new() });
    assert_eq!(bench.sent.len(), 1);
    let begun = bench.drain("beta");
    assert!(!bench.now(&begun).state.is_over(), "{:?}", bench.now(&begun));
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert!(bench.has("beta").is_empty());
}

#[test]
fn maintenance_outlives_the_agents_connection() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.drain("alpha");
    assert_eq!(bench.host("alpha").mode, HostMode::Maintenance);
    bench.disconnect("alpha");
    bench.wait_s(12);
    bench.connect("alpha");
    assert_eq!(bench.host("alpha").mode, HostMode::Maintenance);
}

#[test]
fn a_move_that_failed_goes_where_the_rules_send_it_since() {
    let to = |bench: &Bench| match &bench.sent[0].request {
        Request::Migrate { vm, to, .. } if vm == "web" => to.clone(),
        other => panic!("{other:?}"),
    };
    for begin in
        [drain("alpha"), Ask::Migrate { vm: "web".into(), request: MigrateRequest::default(), breaks: Vec::new() }]
    {
        let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
        bench.run_vm("alpha", "web");
        let begun = bench.begin(begin);
        let first = to(&bench);
        let other = if first == "beta" { "gamma" } else { "beta" };
        bench.run_vm(&first, "db");
        let rule = serde_json::json!({"apart": {"of": {"guests": ["web", "db"]}, "force": "hard"}});
        assert_eq!(bench.ask(Ask::SetRule { name: "apart".into(), rule, version: None }), Answer::Done);
        assert_eq!(bench.sent.len(), 1, "what is under way goes on");
        bench.reply(Reply::Error(Refusal { message: "the link broke".into(), cure: String::new() }));
        bench.wait_s(1);
        assert_eq!((bench.sent.len(), to(&bench).as_str()), (1, other), "{:?}", bench.now(&begun));
        bench.obey_all();
        assert_eq!(bench.now(&begun).state, OperationState::Done);
        assert_eq!(bench.has(other), ["web"]);
    }
}

#[test]
fn a_drain_that_was_called_off_tells_the_truth_of_each_guest_after_a_restart() {
    const VMS: [&str; 3] = ["one", "two", "three"];
    // The hosts may have forgotten the migration, or the source may still have what is left of its guest.
    for (tells, is_left) in [(true, false), (false, false), (false, true)] {
        let mut bench = Bench::new(&["alpha", "beta"]);
        VMS.iter().for_each(|vm| bench.run_vm("alpha", vm));
        let begun = bench.drain("alpha");
        assert_eq!(bench.sent.len(), 2, "two may be under way");
        let asked = |sent: Sent| match sent.request {
            Request::Migrate { vm, .. } => VMS.into_iter().find(|known| *known == vm).expect("it is one of them"),
            other => panic!("{other:?} is no migration"),
        };
        let asked: Vec<&str> = std::mem::take(&mut bench.sent).into_iter().map(asked).collect();
        // The drain is called off, and its controller ends before the agent's answers come.
        bench.ask(Ask::Cancel { operation: begun.id.clone() });
        let away = Hand { vm: asked[0], from: "alpha", to: "beta", id: 7, is_held: false };
        bench.begin_by_hand(&away);
        bench.change_leader_after(RUNS_MS, |bench| {
            bench.end_by_hand(&away, Outcome::Moved);
            if is_left {
                bench.set_vm("alpha", away.vm, VmState::Moved);
            }
        });
        bench.connect("alpha");
        bench.connect("beta");
        if tells {
            let ended = Migration { outcome: Some(Outcome::Moved), ..away.migration() };
            bench.tell("alpha", HostReport { sequence: 3, migrations: vec![ended], ..HostReport::default() });
        }
        bench.wait_s(3);
        // The agents remember nothing of what was asked for.
        bench.obey_all();
        let over = bench.now(&begun);
        assert_eq!(over.state, OperationState::Cancelled, "{over:?}");
        for of in &over.moves {
            let expected = match asked.iter().position(|vm| *vm == of.vm) {
                Some(0) => (MoveState::Done, ""),
                Some(_) => (MoveState::Left, "it has not left alpha"),
                None => (MoveState::Left, "it was not begun any more"),
            };
            assert_eq!((of.state, of.detail.as_str()), expected, "{tells} {is_left} {over:?}");
        }
    }
}

fn plain(host: &str) -> Ask {
    Ask::Resume { host: host.into(), request: ResumeRequest::default() }
}

#[test]
fn guests_come_home_also_after_their_host_takes_guests_again() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    bench.drain("alpha");
    bench.obey_all();
    assert_eq!(bench.ask(plain("alpha")), Answer::Done);
    assert_eq!(bench.host("alpha").mode, HostMode::Active);
    let refused = bench.refused(plain("alpha"));
    assert!(refused.message.contains("takes guests already"), "{refused:?}");
    assert!(refused.cure.contains("skein host resume alpha --bring-home"), "{refused:?}");
    bench.begin(resume("alpha"));
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["web"]);
    // Nothing is away any more.
    let refused = bench.refused(resume("alpha"));
    assert!(!refused.cure.contains("--bring-home"), "{refused:?}");
}

#[test]
fn guests_that_were_left_where_they_went_are_no_part_of_a_later_drain() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "first");
    bench.drain("alpha");
    bench.obey_all();
    bench.ask(plain("alpha"));
    bench.run_vm("alpha", "second");
    bench.drain("alpha");
    bench.obey_all();
    bench.begin(resume("alpha"));
    bench.obey_all();
    assert_eq!((bench.has("alpha"), bench.has("beta")), (vec!["second"], vec!["first"]));
}

#[test]
fn a_drain_whose_moves_are_made_says_no_time_while_it_waits() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "db");
    bench.run_vm("alpha", "web");
    bench.begin_by_hand(&Hand { vm: "web", from: "alpha", to: "beta", id: 7, is_held: true });
    let begun = bench.drain("alpha");
    bench.obey_all();
    bench.wait_s(5);
    let waits = bench.now(&begun);
    assert!(waits.message.contains("web is held"), "{waits:?}");
    let progress = waits.progress;
    assert_eq!((waits.state, progress.moves_done, progress.left_ms), (OperationState::Running, 1, None));
}

#[test]
fn guests_of_a_drain_are_spread_over_hosts_that_are_as_good() {
    let mut bench = Bench::new(&["alpha", "beta", "delta", "gamma"]);
    for vm in ["a", "b", "c"] {
        bench.run_vm("alpha", vm);
    }
    let would = bench.shown(preview("alpha"));
    let to: BTreeSet<&str> = would.moves.iter().filter_map(|of| of.to.as_deref()).collect();
    assert_eq!(to.len(), 3, "{would:?}");
    // One that has a guest already gets the last.
    bench.run_vm("beta", "d");
    let would = bench.shown(preview("alpha"));
    let to_beta = would.moves.iter().filter(|of| of.to.as_deref() == Some("beta")).count();
    assert_eq!(to_beta, 1, "{would:?}");
}

#[test]
fn how_long_a_guest_stood_still_is_told_though_its_source_says_so_last() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let drain = bench.drain("alpha");
    bench.begin_commanded(7);
    bench.arrive_commanded(7);
    let over = bench.now(&drain);
    assert_eq!((over.moves[0].state, over.moves[0].downtime_ms), (MoveState::Done, Some(21)), "{over:?}");
}
