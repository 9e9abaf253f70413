use super::*;
use crate::event::MigrationPhase;
use crate::source::{SourceOrder, SourceRecord};
use crate::target::{TargetGuest, TargetOrder, TargetPhase, TargetRecord};

type Manager = super::Manager<&'static str>;
type Input = super::Input<&'static str>;
type Action = super::Action<&'static str>;

const ID: MigrationId = MigrationId(1);

fn intent(intent: Intent) -> Input {
    let message = Message::Intent { id: ID, intent, vm: "v".into(), priority: 0, offer: None, detail: "x".into() };
    Input::Message("a".into(), message)
}

/// Returns the pending actions without the events.
fn actions(manager: &mut Manager) -> Vec<Action> {
    let all = std::iter::from_fn(|| manager.poll_action());
    all.filter(|action| !matches!(action, Action::Event(..))).collect()
}

fn fed(manager: &mut Manager, inputs: impl IntoIterator<Item = Input>) -> Vec<Action> {
    inputs.into_iter().for_each(|input| manager.handle(Duration::ZERO, input));
    actions(manager)
}

fn target(input: TargetInput) -> Input {
    Input::Target(ID, input)
}

/// Returns an agent that was told to start a QEMU and has not reported that it did.
fn starting() -> Manager {
    let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
    let begin =
        [Input::Contact("a".into(), true), intent(Intent::Prepare), target(TargetInput::Written(TargetRecord::Begin))];
    let wanted = fed(&mut manager, begin);
    assert!(wanted.contains(&Action::Order(ID, Order::Target(TargetOrder::Start))), "{wanted:?}");
    manager
}

#[test]
fn a_qemu_that_is_being_started_is_killed_when_it_is_called_off() {
    let mut manager = starting();
    let wanted = fed(&mut manager, [intent(Intent::Abort)]);
    assert!(wanted.contains(&Action::Order(ID, Order::Target(TargetOrder::Kill))), "{wanted:?}");
}

#[test]
fn the_target_learns_why_it_was_called_off() {
    let mut manager = starting();
    fed(&mut manager, [intent(Intent::Prepare)]);
    assert_eq!(manager.summary(ID).unwrap().detail, "");
    fed(&mut manager, [intent(Intent::Abort), Input::Detail(ID, "its QEMU was killed".into())]);
    let summary = manager.summary(ID).unwrap();
    assert_eq!(
        (summary.why, summary.detail.as_str()),
        (Some(FailureReason::Aborted), "x"),
        "what follows is no reason"
    );
    let entry = &manager.entries[&ID];
    let Message::Report { detail, .. } = entry.report(ID, Report::Refusing, entry.why()) else { panic!() };
    assert_eq!(detail, "", "the source knows its own reason better");

    let mut manager = sending();
    manager.handle(Duration::ZERO, Input::Detail(ID, "somebody paused it".into()));
    let wanted = fed(&mut manager, [Input::Source(ID, SourceInput::GuestChanged)]);
    let told = "the guest changed while it was copied: somebody paused it";
    let is_told = |action: &Action| matches!(action, Action::Send(_, Message::Intent { detail, .. }) if detail == told);
    assert!(wanted.iter().any(is_told), "{wanted:?}");
}

#[test]
fn the_reason_of_a_target_stands_against_what_follows_from_it() {
    let refused = |detail: &str, last_words: &str| {
        let report = Message::Report {
            id: ID,
            report: Report::Refusing,
            why: Some(FailureReason::QemuEnded),
            detail: detail.into(),
            last_words: last_words.into(),
        };
        Input::Message("b".into(), report)
    };
    let follows = || Input::Detail(ID, "the target does not wait for this migration any more".into());
    let detail = |inputs: Vec<Input>| {
        let mut manager = sending();
        fed(&mut manager, inputs);
        let summary = manager.summary(ID).unwrap();
        assert_eq!(summary.why, Some(FailureReason::TargetRefused));
        summary.detail
    };
    assert_eq!(detail(vec![refused("swtpm could not write", "words"), follows()]), "swtpm could not write");
    // Last words are not a reason; what the source finds is.
    let found = || Input::Detail(ID, "could not be mended".into());
    assert_eq!(detail(vec![refused("", "words")]), "words");
    assert_eq!(detail(vec![refused("", "words"), found()]), "could not be mended");
    assert_eq!(detail(vec![found(), refused("", "words"), refused("", "words")]), "could not be mended");
}

#[test]
fn channels_that_end_before_the_word_of_who_called_it_off_there_are_not_the_reason() {
    let told = |why| {
        let mut manager = sending();
        let follows = Input::Detail(ID, "the target does not wait for this migration any more".into());
        let report = Message::Report {
            id: ID,
            report: Report::Refusing,
            why: Some(why),
            detail: "words".into(),
            last_words: String::new(),
        };
        let failed = Input::Source(ID, SourceInput::MigrationFailed);
        fed(&mut manager, [follows, failed, Input::Message("b".into(), report)]);
        let summary = manager.summary(ID).unwrap();
        (summary.why, summary.detail)
    };
    assert_eq!(told(FailureReason::Cancelled), (Some(FailureReason::TargetRefused), "words".into()));
    assert_eq!(told(FailureReason::QemuEnded).0, Some(FailureReason::MigrationFailed), "which may follow from that");
}

#[test]
fn what_a_qemu_says_that_a_person_had_ended_is_no_reason() {
    let said = || Input::LastWords(ID, "terminating on signal 15".into());
    let mut manager = sending();
    assert!(manager.cancel(Duration::ZERO, ID));
    fed(&mut manager, [said()]);
    let summary = manager.summary(ID).unwrap();
    assert_eq!((summary.why, summary.detail.as_str()), (Some(FailureReason::Cancelled), ""));
    let mut manager = sending();
    fed(&mut manager, [said(), Input::Source(ID, SourceInput::GuestChanged)]);
    assert_eq!(manager.summary(ID).unwrap().detail, "terminating on signal 15");
}

#[test]
fn agents_that_do_not_understand_each_other_call_it_off() {
    let words = || Input::NotUnderstood("b".into(), "are both of one release?".into());
    let mut manager = sending();
    fed(&mut manager, [Input::NotUnderstood("c".into(), String::new())]);
    assert_eq!(manager.summary(ID).unwrap().why, None, "another host's");
    fed(&mut manager, [words(), words()]);
    let summary = manager.summary(ID).unwrap();
    assert_eq!((summary.why, summary.outcome), (Some(FailureReason::NotUnderstood), Some(Outcome::CalledOff)));
    assert_eq!(summary.detail, "are both of one release?");

    let mut manager = starting();
    fed(&mut manager, [Input::NotUnderstood("a".into(), "are both of one release?".into())]);
    let summary = manager.summary(ID).unwrap();
    assert_eq!(
        (summary.why, summary.stage),
        (Some(FailureReason::NotUnderstood), MigrationPhase::Target(TargetPhase::Refuse))
    );
}

#[test]
fn an_offer_that_cannot_be_read_is_refused_with_its_reason() {
    let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
    let unreadable =
        |peer: &str| Input::UnreadableOffer { peer: peer.into(), id: ID, vm: "v".into(), reason: "too new".into() };
    let wanted = fed(&mut manager, [Input::Contact("a".into(), true), unreadable("a")]);
    let report = |action: &Action| match action {
        Action::Send(to, Message::Report { report, why, detail, .. }) if to == "a" => {
            Some((*report, *why, detail.clone()))
        }
        _ => None,
    };
    let why = Some(FailureReason::NotUnderstood);
    assert!(
        wanted.iter().any(|action| report(action) == Some((Report::Refusing, why, "too new".into()))),
        "{wanted:?}"
    );
    assert!(!wanted.iter().any(|action| matches!(action, Action::Order(..))), "no QEMU is touched: {wanted:?}");
    // A stranger's message changes nothing; the source's own message is answered each time.
    assert_eq!(fed(&mut manager, [unreadable("c")]), []);
    let wanted = fed(&mut manager, [target(TargetInput::Written(TargetRecord::Refused)), unreadable("a")]);
    assert!(wanted.iter().any(|action| report(action) == Some((Report::Refused, why, "too new".into()))), "{wanted:?}");
    let end = [intent(Intent::Settle), target(TargetInput::Written(TargetRecord::Settled)), unreadable("a")];
    let wanted = fed(&mut manager, end);
    assert_eq!(wanted.last().and_then(report), Some((Report::Settled, None, String::new())), "{wanted:?}");
    assert_eq!(manager.summaries(), [], "what comes late begins nothing anew");
}

#[test]
fn a_guest_that_may_run_here_stays_whatever_cannot_be_read() {
    let mut manager = starting();
    let running = [
        target(TargetInput::Guest(TargetGuest::Loaded)),
        intent(Intent::Grant),
        target(TargetInput::Written(TargetRecord::Run)),
    ];
    fed(&mut manager, running);
    let unreadable = Input::UnreadableOffer { peer: "a".into(), id: ID, vm: "v".into(), reason: String::new() };
    fed(&mut manager, [unreadable]);
    let summary = manager.summary(ID).unwrap();
    assert_eq!((summary.why, summary.stage), (None, MigrationPhase::Target(TargetPhase::Run)));
}

/// Returns a migration to b that is to begin.
fn new_migration(hold: Option<HoldLimits>) -> NewMigration<&'static str> {
    let (vm, peer, offer) = ("v".into(), "b".into(), "how");
    NewMigration { id: ID, vm, peer, priority: 0, offer, deadline: None, hold }
}

/// Returns an agent whose migration to b waits for b.
fn sending() -> Manager {
    let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
    manager.start(Duration::ZERO, new_migration(None)).unwrap();
    let written = Input::Source(ID, SourceInput::Written(SourceRecord::Begin));
    fed(&mut manager, [written, Input::Contact("b".into(), true)]);
    manager
}

#[test]
fn what_comes_late_begins_nothing_anew() {
    let mut manager = starting();
    let end = [
        intent(Intent::Abort),
        target(TargetInput::Guest(TargetGuest::GoneUnrun)),
        target(TargetInput::Written(TargetRecord::Refused)),
        intent(Intent::Settle),
        target(TargetInput::Written(TargetRecord::Settled)),
    ];
    assert!(fed(&mut manager, end).contains(&Action::Forget(ID)));
    for late in [Intent::Prepare, Intent::Abort, Intent::Grant] {
        let wanted = fed(&mut manager, [intent(late)]);
        let settled = matches!(&wanted[..], [Action::Send(_, Message::Report { report: Report::Settled, .. })]);
        assert!(settled && manager.summaries().is_empty(), "{late:?}: {wanted:?}");
    }
}

#[test]
fn a_wait_ends_though_things_go_on_happening() {
    let mut manager = starting();
    let prepare = MigrationLimits::default().waits.prepare;
    for second in 1.. {
        let now = Duration::from_secs(second);
        manager.handle(now, intent(Intent::Prepare));
        manager.handle_timeout(now);
        let why = manager.summary(ID).unwrap().why;
        assert_eq!(why, (now >= prepare).then_some(FailureReason::Deadline), "after {now:?}");
        if why.is_some() {
            return;
        }
    }
}

#[test]
fn of_a_migration_only_its_own_hosts_may_speak() {
    let mut manager = starting();
    let Input::Message(_, abort) = intent(Intent::Abort) else { unreachable!() };
    manager.handle(Duration::ZERO, Input::Message("c".into(), abort));
    assert_eq!(manager.summary(ID).unwrap().why, None);

    let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
    manager.start(Duration::ZERO, new_migration(None)).unwrap();
    manager.handle(Duration::ZERO, Input::Source(ID, SourceInput::Written(SourceRecord::Begin)));
    for (from, phase) in [("c", SourcePhase::Prepare), ("b", SourcePhase::Precopy)] {
        let ready = Message::Report {
            id: ID,
            report: Report::Ready,
            why: None,
            detail: String::new(),
            last_words: String::new(),
        };
        manager.handle(Duration::ZERO, Input::Message(from.into(), ready));
        assert_eq!(manager.summary(ID).unwrap().stage, MigrationPhase::Source(phase), "{from}");
    }
}

#[test]
fn after_a_crash_only_the_latest_migration_of_a_vm_gives_orders() {
    let begin = |id, peer: &str| Record::Begin { id, role: Role::Source, peer: peer.into(), vm: "v".into() };
    // By its id the first migration comes last.
    let (first, second) = (MigrationId(9), MigrationId(2));
    let records = [
        begin(first, "a"),
        Record::Source(first, SourceRecord::Keep),
        begin(second, "b"),
        Record::Source(second, SourceRecord::Grant),
    ];
    for records in [records.to_vec(), crate::needed(&records)] {
        let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &records);
        let guest = SourceInput::Guest(SourceGuest::Completed);
        let wanted = fed(&mut manager, [Input::Source(first, guest), Input::Source(second, guest)]);
        let orders = wanted.iter().filter(|action| matches!(action, Action::Order(..)));
        assert_eq!(orders.count(), 0, "{wanted:?}");
        manager.handle_timeout(Duration::from_secs(5));
        assert!(!actions(&mut manager).iter().any(|action| matches!(action, Action::Order(..))));
    }
}

const HOURS: Duration = Duration::from_secs(3600);

fn report_of_b(report: Report) -> Input {
    let (why, detail, last_words) = (None, String::new(), String::new());
    Input::Message("b".into(), Message::Report { id: ID, report, why, detail, last_words })
}

/// Returns an agent whose guest is held, and may be for two hours.
fn holding() -> Manager {
    let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
    manager.start(Duration::ZERO, new_migration(Some(HoldLimits { longest: Some(2 * HOURS) }))).unwrap();
    let begun = [
        Input::Contact("b".into(), true),
        Input::Source(ID, SourceInput::Written(SourceRecord::Begin)),
        report_of_b(Report::Ready),
        Input::Source(ID, SourceInput::Guest(SourceGuest::Migrating)),
        Input::Source(ID, SourceInput::Converged),
    ];
    fed(&mut manager, begun);
    assert_eq!(manager.summary(ID).unwrap().stage, MigrationPhase::Source(SourcePhase::Held));
    manager
}

#[test]
fn a_hold_lasts_as_long_as_it_may() {
    let mut manager = holding();
    manager.handle_timeout(2 * HOURS - Duration::from_secs(1));
    assert_eq!(manager.summary(ID).unwrap().why, None);
    manager.handle_timeout(2 * HOURS);
    assert_eq!(manager.summary(ID).unwrap().why, Some(FailureReason::HoldOver));
    assert_eq!(manager.switch(2 * HOURS, ID, None), Err(RefusedSwitch::IsOver));
}

#[test]
fn a_guest_that_is_to_switch_has_the_time_that_it_was_given() {
    let mut manager = holding();
    let minute = Duration::from_secs(60);
    assert_eq!(manager.switch(HOURS, ID, Some(minute)), Ok(()));
    let orders = |manager: &mut Manager| {
        actions(manager).into_iter().filter(|action| matches!(action, Action::Order(..))).collect::<Vec<_>>()
    };
    let switch = Action::Order(ID, Order::Source(SourceOrder::Switch));
    assert_eq!(orders(&mut manager), std::slice::from_ref(&switch));
    // As long as the guest is not stopped the order is repeated.
    manager.handle_timeout(HOURS + REPEAT_PERIOD);
    assert_eq!(orders(&mut manager), [switch]);
    assert_eq!(manager.switch(HOURS + minute / 2, ID, None), Ok(()), "twice");
    manager.handle_timeout(HOURS + minute);
    assert_eq!(manager.summary(ID).unwrap().why, Some(FailureReason::Deadline));
}

#[test]
fn only_the_source_of_a_hold_has_it_switch() {
    assert_eq!(holding().switch(HOURS, MigrationId(2), None), Err(RefusedSwitch::Unknown));
    assert_eq!(sending().switch(HOURS, ID, None), Err(RefusedSwitch::IsNotHeld));
    assert_eq!(starting().switch(HOURS, ID, None), Err(RefusedSwitch::IsTarget));
    let mut cancelled = holding();
    assert!(cancelled.cancel(HOURS, ID));
    assert_eq!(cancelled.switch(HOURS, ID, None), Err(RefusedSwitch::IsOver));
}

#[test]
fn what_is_to_switch_before_it_begins_is_not_held() {
    let limits = MigrationLimits { outgoing: 1, ..MigrationLimits::default() };
    let queued = || {
        let mut manager = Manager::new(Duration::ZERO, limits, &[]);
        let first = NewMigration { id: MigrationId(2), vm: "w".into(), ..new_migration(None) };
        manager.start(Duration::ZERO, first).unwrap();
        manager.start(Duration::ZERO, new_migration(Some(HoldLimits::default()))).unwrap();
        assert_eq!(manager.summary(ID).unwrap().stage, MigrationPhase::Queued);
        manager
    };
    let mut manager = queued();
    manager.switch(HOURS, ID, None).unwrap();
    let failed = Input::Source(MigrationId(2), SourceInput::WriteFailed(SourceRecord::Begin));
    fed(&mut manager, [failed, Input::Contact("b".into(), true)]);
    let begun = [
        Input::Source(ID, SourceInput::Written(SourceRecord::Begin)),
        report_of_b(Report::Ready),
        Input::Source(ID, SourceInput::Guest(SourceGuest::Migrating)),
    ];
    // The hypervisor was told to hold.
    let wanted = fed(&mut manager, begun);
    assert!(wanted.contains(&Action::Order(ID, Order::Source(SourceOrder::Switch))), "{wanted:?}");

    let mut manager = queued();
    manager.end_hold(HOURS, ID);
    assert!(manager.summary(ID).is_none());
    let mut plain = sending();
    plain.end_hold(HOURS, ID);
    assert_eq!(plain.summary(ID).unwrap().why, None, "what is not held has no end of a hold");
}
