//! Migrations that somebody began on a host, and not the controller.

use skein_api::cluster::{
    DrainRequest, HostMode, MigrateRequest, MoveState, OperationKind, OperationState, ResumeRequest,
};
use skein_api::{Attempt, FailureReason, HoldOptions, Migration, MigrationId, Outcome, Refusal, Reply, Request};
use skein_cluster::{Answer, Ask, MigrationAsk};

use crate::bench::{Bench, Hand, drain, preview};

const HELD: Hand = Hand { vm: "web", from: "alpha", to: "beta", id: 7, is_held: true };
const RUNS: Hand = Hand { is_held: false, ..HELD };

fn bench(hand: &Hand) -> Bench {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    bench.begin_by_hand(hand);
    bench
}

fn migrate(to: Option<&str>) -> Ask {
    Ask::Migrate {
        vm: "web".into(),
        request: MigrateRequest { to: to.map(str::to_owned), ..Default::default() },
        breaks: Vec::new(),
    }
}

fn evacuate(host: &str) -> Ask {
    Ask::Drain { host: host.into(), request: DrainRequest { evacuate: true, ..DrainRequest::default() } }
}

#[test]
fn a_migration_is_seen_whoever_began_it() {
    let mut bench = bench(&HELD);
    let seen = bench.controller.vm("web").unwrap().migration.expect("it is told");
    assert!(seen.is_held());
    assert_eq!((seen.operation, seen.target.as_str()), (None, "beta"));
    for host in ["alpha", "beta"] {
        assert_eq!(bench.host(host).migrations.len(), 1, "{host}");
    }
    assert!(bench.host("gamma").migrations.is_empty());
    let refused = bench.refused(migrate(None));
    assert!(refused.message.contains("is being moved to 'beta' already"), "{refused:?}");
    assert!(refused.cure.contains("skein migration switch web"), "{refused:?}");
    bench.end_by_hand(&HELD, Outcome::CalledOff);
    assert_eq!(bench.controller.vm("web").unwrap().migration, None);
    // One that an operation began says so.
    let begun = bench.begin(migrate(Some("gamma")));
    bench.begin_commanded(8);
    let seen = bench.controller.vm("web").unwrap().migration.expect("it is told");
    assert_eq!(seen.operation, Some(begun.id));
    assert!(bench.host("gamma").migrations.is_empty());
}

#[test]
fn a_drain_waits_for_a_migration_that_runs() {
    let mut bench = bench(&RUNS);
    bench.run_vm("alpha", "db");
    let would = bench.shown(preview("alpha"));
    let web = would.moves.iter().find(|of| of.vm == "web").expect("it is told");
    assert_eq!(web.to.as_deref(), Some("beta"));
    let begun = bench.drain("alpha");
    bench.obey_all();
    bench.wait_s(30);
    let waits = bench.now(&begun);
    assert_eq!(waits.state, OperationState::Running, "{waits:?}");
    assert!(waits.message.contains("web is on its way to beta already"), "{waits:?}");
    assert!(bench.sent.is_empty() && bench.has("alpha") == ["web"]);
    bench.end_by_hand(&RUNS, Outcome::Moved);
    let over = bench.now(&begun);
    assert_eq!((over.state, over.message.as_str()), (OperationState::Done, ""), "{over:?}");
    assert!(over.moves.iter().all(|of| of.state == MoveState::Done), "{over:?}");
    // What somebody else moved away does not come home.
    bench.begin(Ask::Resume { host: "alpha".into(), request: ResumeRequest { bring_home: true } });
    bench.obey_all();
    assert_eq!(bench.has("alpha"), ["db"]);
}

#[test]
fn a_drain_moves_the_guest_of_a_migration_that_was_called_off() {
    let mut bench = bench(&RUNS);
    let begun = bench.drain("alpha");
    bench.wait_s(3);
    bench.end_by_hand(&RUNS, Outcome::CalledOff);
    bench.obey_all();
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert!(bench.has("alpha").is_empty());
}

#[test]
fn a_drain_asks_for_a_persons_word_about_a_guest_that_is_held() {
    for outcome in [Outcome::Moved, Outcome::CalledOff] {
        let mut bench = bench(&HELD);
        let would = bench.shown(preview("alpha"));
        assert_eq!((would.moves.len(), &would.moves[0].to), (1, &None));
        assert!(would.moves[0].reason.contains("skein migration switch web"), "{would:?}");
        let begun = bench.drain("alpha");
        bench.wait_s(600);
        let waits = bench.now(&begun);
        assert_eq!(waits.state, OperationState::Running, "{waits:?}");
        assert!(waits.message.contains("web is held on its way to beta"), "{waits:?}");
        assert!(waits.message.contains("skein migration cancel web"), "{waits:?}");
        assert!(bench.sent.is_empty());
        bench.end_by_hand(&HELD, outcome);
        bench.obey_all();
        assert_eq!(bench.now(&begun).state, OperationState::Done);
        assert!(bench.has("alpha").is_empty());
    }
}

#[test]
fn a_move_that_is_called_off_for_its_drains_deadline_says_so() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let request = DrainRequest { deadline_s: Some(60), ..DrainRequest::default() };
    let begun = bench.begin(Ask::Drain { host: "alpha".into(), request });
    bench.begin_commanded(8);
    bench.wait_s(62);
    assert!(bench.sent.iter().any(|sent| matches!(sent.request, Request::MigrationCancel { .. })), "{:?}", bench.sent);
    bench.end_commanded(8, FailureReason::Cancelled);
    let over = bench.now(&begun);
    let web = &over.moves[0];
    assert_eq!((web.state, &*web.detail), (MoveState::Failed, "its deadline ran out"), "{over:?}");
}

#[test]
fn a_drains_deadline_ends_the_wait_for_a_hold() {
    let mut bench = bench(&HELD);
    let request = DrainRequest { deadline_s: Some(60), ..DrainRequest::default() };
    let begun = bench.begin(Ask::Drain { host: "alpha".into(), request });
    bench.wait_s(59);
    assert!(!bench.now(&begun).state.is_over());
    bench.wait_s(3);
    let over = bench.now(&begun);
    assert_eq!(over.state, OperationState::Failed, "{over:?}");
    assert!(over.message.contains("its deadline ran out: 1 VM stays"), "{over:?}");
    assert!(bench.sent.is_empty(), "the hold is somebody else's");
}

#[test]
fn what_is_held_on_its_way_to_a_drained_host_is_told_and_waited_for() {
    let mut bench = bench(&HELD);
    let would = bench.shown(preview("beta"));
    assert!(would.moves[0].reason.contains("skein migration cancel web"), "{would:?}");
    let begun = bench.drain("beta");
    bench.wait_s(5);
    let waits = bench.now(&begun);
    assert!(waits.message.contains("web is held on its way to beta: call that off"), "{waits:?}");
    assert!(!waits.state.is_over());
    bench.end_by_hand(&HELD, Outcome::CalledOff);
    bench.wait_s(1);
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert_eq!((bench.host("beta").mode, bench.has("alpha").len()), (HostMode::Maintenance, 1));
}

#[test]
fn an_evacuation_does_not_wait_for_holds() {
    // From the host: it switches.
    let mut bench = bench(&HELD);
    let begun = bench.begin(evacuate("alpha"));
    let sent = bench.sent.first().expect("it is asked");
    assert!(matches!(&sent.request, Request::MigrationSwitch { .. }) && sent.host == "alpha", "{sent:?}");
    bench.wait_s(1);
    assert_eq!(bench.sent.len(), 1, "once is enough");
    bench.obey_all();
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert_eq!(bench.has("beta"), ["web"]);
    // To the host: it is called off.
    let mut bench = self::bench(&HELD);
    let begun = bench.begin(evacuate("beta"));
    assert!(matches!(&bench.sent[0].request, Request::MigrationCancel { .. }), "{:?}", bench.sent);
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert_eq!(bench.has("alpha"), ["web"]);
    // To a host that takes no guests, or is silent: it is called off, and moved elsewhere.
    let mut bench = self::bench(&HELD);
    bench.disconnect("beta");
    bench.wait_s(12);
    bench.begin(evacuate("alpha"));
    assert!(matches!(&bench.sent[0].request, Request::MigrationCancel { .. }), "{:?}", bench.sent);
    let mut bench = self::bench(&HELD);
    bench.drain("beta");
    let begun = bench.begin(evacuate("alpha"));
    assert!(matches!(&bench.sent[0].request, Request::MigrationCancel { .. }), "{:?}", bench.sent);
    bench.obey_all();
    bench.wait_s(1);
    bench.obey_all();
    assert_eq!(bench.now(&begun).state, OperationState::Done);
    assert_eq!(bench.has("gamma"), ["web"]);
}

#[test]
fn a_plan_reckons_with_the_room_that_is_taken_at_its_target() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm_of("alpha", "web", 50);
    bench.run_vm_of("gamma", "big", 40);
    // beta has no room for both, and does not tell of web yet.
    bench.begin_by_hand(&Hand { id: 9, ..RUNS });
    let would = bench.shown(preview("gamma"));
    assert_eq!(would.moves[0].to, None, "{would:?}");
    bench.end_by_hand(&Hand { id: 9, ..RUNS }, Outcome::CalledOff);
    let would = bench.shown(preview("gamma"));
    assert_eq!(would.moves[0].to.as_deref(), Some("beta"), "{would:?}");
}

#[test]
fn a_migration_is_switched_limited_and_called_off_through_the_controller() {
    let mut bench = bench(&HELD);
    let asks = [
        MigrationAsk::Switch { deadline_s: Some(60) },
        MigrationAsk::Limit { rate_bits_per_s: Some(100_000_000) },
        MigrationAsk::Hold { hold: HoldOptions::default() },
        MigrationAsk::Throttle { percent: 60 },
        MigrationAsk::Cancel,
    ];
    for ask in asks {
        let asked = bench.put(Ask::OfMigration { vm: "web".into(), id: None, ask });
        assert_eq!((bench.sent.len(), bench.answer(asked)), (1, None), "the agent answers first");
        bench.reply(Reply::Migration(Box::new(HELD.migration())));
        let answer = bench.answer(asked);
        assert!(matches!(&answer, Some(Answer::Migration(of)) if of.vm == "web"), "{answer:?}");
    }
    let ask = Ask::OfMigration { vm: "web".into(), id: None, ask: MigrationAsk::Cancel };
    let asked = bench.put(ask.clone());
    bench.reply(Reply::Error(Refusal { message: "it is too late".into(), cure: String::new() }));
    let answer = bench.answer(asked);
    assert!(matches!(&answer, Some(Answer::Refused(of)) if of.message == "it is too late"), "{answer:?}");
    // Whoever looked at another migration of the VM means that one.
    let id = Some(MigrationId(HELD.migration().id.0 ^ 1));
    let other = bench.refused(Ask::OfMigration { vm: "web".into(), id, ask: MigrationAsk::Cancel });
    assert!(other.message.contains("in another migration") && bench.sent.is_empty(), "{other:?}");
    let id = Some(HELD.migration().id);
    let asked = bench.put(Ask::OfMigration { vm: "web".into(), id, ask: MigrationAsk::Cancel });
    bench.reply(Reply::Migration(Box::new(HELD.migration())));
    assert!(matches!(bench.answer(asked), Some(Answer::Migration(_))));
    // An agent that does not answer is not waited for without end, nor one that is gone.
    for gone in [false, true] {
        let asked = bench.put(ask.clone());
        if gone {
            bench.disconnect("alpha");
        }
        bench.wait_s(16);
        let answer = bench.answer(asked);
        assert!(matches!(&answer, Some(Answer::Refused(of)) if of.message.contains("did not answer")), "{answer:?}");
    }
    assert!(bench.refused(ask.clone()).message.contains("'alpha' does not report"));
    bench.run_vm("gamma", "db");
    let none = bench.refused(Ask::OfMigration { vm: "db".into(), id: None, ask: MigrationAsk::Cancel });
    assert!(none.message.contains("'db' is in no migration"), "{none:?}");
    bench.end_by_hand(&HELD, Outcome::CalledOff);
    bench.begin_by_hand(&HELD);
    for ask in [MigrationAsk::Limit { rate_bits_per_s: Some(1) }, MigrationAsk::Throttle { percent: 100 }] {
        assert!(matches!(bench.ask(Ask::OfMigration { vm: "web".into(), id: None, ask }), Answer::Refused(_)));
    }
}

#[test]
fn what_waits_for_its_next_attempt_is_called_off() {
    let mut bench = bench(&HELD);
    bench.end_by_hand(&HELD, Outcome::CalledOff);
    let ask = |ask| Ask::OfMigration { vm: "web".into(), id: None, ask };
    assert!(bench.refused(ask(MigrationAsk::Cancel)).message.contains("'web' is in no migration"));
    let attempt = Some(Attempt { number: 1, of: 3, not_begun: None, next_in_ms: Some(4000) });
    let over = Migration { outcome: Some(Outcome::CalledOff), hold: None, attempt, ..HELD.migration() };
    bench.report("alpha", &["web"], vec![over.clone()]);
    let asked = bench.put(ask(MigrationAsk::Cancel));
    assert!(matches!(&bench.sent[0].request, Request::MigrationCancel { id } if *id == over.id.to_string()));
    bench.reply(Reply::Migration(Box::new(Migration { attempt: None, ..over })));
    assert!(matches!(bench.answer(asked), Some(Answer::Migration(_))));
    assert!(bench.refused(ask(MigrationAsk::Cancel)).message.contains("'web' is in no migration"));
    assert!(matches!(bench.ask(ask(MigrationAsk::Throttle { percent: 60 })), Answer::Refused(_)));
}

#[test]
fn a_controllers_migration_is_limited_and_held() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    bench.run_vm("alpha", "web");
    let hold = Some(HoldOptions { longest_s: Some(600), window: None });
    let request = MigrateRequest { rate_bits_per_s: Some(50_000_000), hold: hold.clone(), ..Default::default() };
    let begun = bench.begin(Ask::Migrate { vm: "web".into(), request: request.clone(), breaks: Vec::new() });
    let sent = &bench.sent[0].request;
    let Request::MigrateHeld { options, hold: asked, detach: true, .. } = sent else { panic!("{sent:?}") };
    assert_eq!((options.rate_bits_per_s, Some(asked)), (Some(50_000_000), hold.as_ref()));
    // A hold that lasted as long as it may is not begun again.
    bench.begin_commanded(8);
    bench.end_commanded(8, skein_api::FailureReason::HoldOver);
    bench.wait_s(30);
    let over = bench.now(&begun);
    assert_eq!((over.state, bench.sent.len()), (OperationState::Failed, 0), "{over:?}");
    assert!(over.message.contains("held as long as it may be"), "{over:?}");
    let wrong = MigrateRequest { rate_bits_per_s: Some(1), ..MigrateRequest::default() };
    assert!(matches!(
        bench.ask(Ask::Migrate { vm: "web".into(), request: wrong, breaks: Vec::new() }),
        Answer::Refused(_)
    ));
}

/// Has a controller's migration of `web` held on its way from alpha to beta.
fn held_by_an_operation() -> Bench {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    let request = MigrateRequest {
        to: Some("beta".into()),
        hold: Some(HoldOptions { longest_s: Some(6000), window: None }),
        ..MigrateRequest::default()
    };
    bench.begin(Ask::Migrate { vm: "web".into(), request, breaks: Vec::new() });
    bench.begin_commanded(8);
    bench.begin_by_hand(&Hand { id: 8, ..HELD });
    bench
}

#[test]
fn a_drain_tells_of_what_another_operation_holds_and_an_evacuation_ends_the_hold() {
    let mut bench = held_by_an_operation();
    for (host, says) in [("alpha", "skein migration switch web"), ("beta", "skein migration cancel web")] {
        let would = bench.shown(preview(host));
        let told = would.moves.iter().find(|of| of.from == "alpha").expect("it is told");
        assert!(told.state == MoveState::Left && told.reason.contains(says), "{would:?}");
        let request = DrainRequest { deadline_s: Some(60), ..DrainRequest::default() };
        let begun = bench.begin(Ask::Drain { host: host.into(), request });
        bench.wait_s(30);
        let waits = bench.now(&begun);
        assert!(waits.message.contains("web is held on its way to beta") && !waits.state.is_over(), "{waits:?}");
        assert!(waits.moves.iter().all(|of| of.state != MoveState::Done), "{waits:?}");
        bench.wait_s(40);
        let over = bench.now(&begun);
        assert_eq!(over.state, OperationState::Failed, "{over:?}");
        assert!(over.message.contains("its deadline ran out"), "{over:?}");
        assert!(bench.sent.is_empty(), "the hold is another operation's");
        bench.ask(Ask::Resume { host: host.into(), request: ResumeRequest::default() });
    }
    for (host, switches) in [("alpha", true), ("beta", false)] {
        let mut bench = held_by_an_operation();
        let request = DrainRequest { evacuate: true, dry_run: true, ..DrainRequest::default() };
        let would = bench.shown(Ask::Drain { host: host.into(), request });
        assert!(would.moves.iter().any(|of| of.from == "alpha" && of.vm == "web"), "{would:?}");
        bench.begin(evacuate(host));
        bench.wait_s(3);
        let asked: Vec<&Request> = bench.sent.iter().map(|sent| &sent.request).collect();
        let is_right = match asked[..] {
            [Request::MigrationSwitch { .. }] => switches,
            [Request::MigrationCancel { .. }] => !switches,
            _ => false,
        };
        assert!(is_right, "{host}: {asked:?}");
    }
}

#[test]
fn a_migration_does_not_wait_for_a_host_that_is_lost() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.run_vm("alpha", "web");
    bench.disconnect("beta");
    bench.wait_s(20);
    let refused = bench.refused(migrate(Some("beta")));
    assert!(refused.message.contains("'beta' does not report"), "{refused:?}");
    bench.disconnect("alpha");
    bench.wait_s(20);
    let refused = bench.refused(migrate(Some("gamma")));
    assert!(refused.message.contains("'web' is on 'alpha', which does not report"), "{refused:?}");
}

#[test]
fn a_drain_that_waits_becomes_an_evacuation() {
    let mut bench = bench(&HELD);
    let begun = bench.drain("alpha");
    bench.wait_s(10);
    assert!(bench.now(&begun).message.contains("skein migration switch web"));
    assert!(bench.refused(drain("alpha")).message.contains("is being drained already"));
    let dry_run = DrainRequest { evacuate: true, dry_run: true, ..DrainRequest::default() };
    bench.shown(Ask::Drain { host: "alpha".into(), request: dry_run });
    assert!(matches!(bench.now(&begun).kind, OperationKind::Drain { evacuate: false, .. }), "it is only shown");
    let same = bench.begin(evacuate("alpha"));
    assert_eq!(same.id, begun.id);
    assert!(matches!(bench.now(&begun).kind, OperationKind::Drain { evacuate: true, .. }));
    bench.wait_s(1);
    assert!(bench.sent.iter().any(|sent| matches!(sent.request, Request::MigrationSwitch { .. })), "{:?}", bench.sent);
    bench.obey_all();
    bench.wait_s(1);
    assert_eq!(bench.now(&begun).state, OperationState::Done);
}
