//! Tests each order with each way in which it goes wrong, and what becomes of a guest.

use std::time::Duration;

use skein_fake_guest::{Command, Events, Fault, GuestParameters};
use skein_handover::TargetOrder;
use skein_hypervisor::{GuestEvent, RunState};
use skein_inventory::QemuVersion;
use skein_inventory::composition::Drive;

use super::world::World;
use crate::migrations::input::WorkerInput;
use crate::migrations::target::worker::Work;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The hypervisor does not hear the order.
    Unheard,
    /// The hypervisor obeys the order, and its answer is lost.
    Unanswered,
    Refused,
    /// The hypervisor has ended.
    Gone,
    /// Another client has taken the connection's place.
    Disconnected,
    /// The hypervisor could not take the guest.
    Failed,
    EventsLost,
    /// Events come half a second late.
    EventsLate,
    /// The hypervisor hears nothing for 3 s.
    Deaf,
}

const ALL: [Wrong; 10] = [
    Wrong::Nothing,
    Wrong::Unheard,
    Wrong::Unanswered,
    Wrong::Refused,
    Wrong::Gone,
    Wrong::Disconnected,
    Wrong::Failed,
    Wrong::EventsLost,
    Wrong::EventsLate,
    Wrong::Deaf,
];

/// Has an order obeyed while something goes wrong. Returns what the owner is told within five seconds, what the guest
/// did, and what else was done.
fn cell(mut world: World, order: TargetOrder, wrong: Wrong) -> String {
    let guest = world.guest.clone();
    let command = match order {
        TargetOrder::Start => Command::BeginIncoming,
        TargetOrder::Continue => Command::Resume,
        TargetOrder::Kill => Command::Quit,
    };
    match wrong {
        Wrong::Nothing => {}
        Wrong::Unheard => guest.fail(command, Fault::Unheard, 1),
        Wrong::Unanswered => guest.fail(command, Fault::Unanswered, 1),
        Wrong::Refused => guest.fail(command, Fault::Refused("no".into()), 1),
        Wrong::Gone => guest.end(),
        Wrong::Disconnected => guest.disconnect(),
        Wrong::Failed => guest.fail_to_arrive("broken"),
        Wrong::EventsLost => guest.lose_events(Events::Lost),
        Wrong::EventsLate => guest.delay_events(Duration::from_millis(500)),
        Wrong::Deaf => guest.deafen(Duration::from_secs(3)),
    }
    world.agent.lock().done.clear();
    world.agent.lock().last_words = Some("bad section".into());
    world.queue_order(order);
    if order == TargetOrder::Kill {
        // The owner kills the hypervisor. The event of its end comes after the order.
        guest.end();
    }
    world.pass(Duration::from_secs(5));
    let (did, done) = (world.told_guest().join(", "), world.done());
    format!("{} | {did} | {done}", world.take_told().join(", "))
}

/// Compares each cell of an order's row with the expected one. Fails with all cells that differ.
///
/// # Panics
/// A cell differs, or `expected` leaves a failure out.
fn check(world: impl Fn() -> World, order: TargetOrder, expected: [(Wrong, &str); ALL.len()]) {
    assert_eq!(expected.map(|(wrong, _)| wrong), ALL, "each is tried");
    let cells = expected.map(|(wrong, expected)| (wrong, cell(world(), order, wrong), expected));
    let differ: Vec<String> = cells
        .iter()
        .filter(|(_, cell, expected)| cell != expected)
        .map(|(wrong, cell, expected)| format!("{wrong:?}\n  is        {cell}\n  expected  {expected}"))
        .collect();
    assert!(differ.is_empty(), "{order:?}:\n{}", differ.join("\n"));
}

#[test]
fn start() {
    check(
        || World::new(GuestParameters::default()),
        TargetOrder::Start,
        [
            (Wrong::Nothing, "Waiting | begin | hurried, opened"),
            (
                Wrong::Unheard,
                "detail \"QEMU: the guest did not answer BeginIncoming within 20000 ms\", \
                 Failed |  | ",
            ),
            (
                Wrong::Unanswered,
                "detail \"QEMU: the guest did not answer BeginIncoming within 20000 ms\", \
                 Failed | begin | ",
            ),
            (Wrong::Refused, r#"detail "QEMU: BeginIncoming: no", Failed, Waiting |  | "#),
            (Wrong::Gone, r#"detail "the guest's connection is closed", Failed, GoneUnrun |  | let go of RAM"#),
            (Wrong::Disconnected, r#"detail "the guest's connection is closed", Failed |  | "#),
            (Wrong::Failed, "Waiting | begin | hurried, opened"),
            (Wrong::EventsLost, "Waiting | begin | hurried, opened"),
            (Wrong::EventsLate, "Waiting | begin | hurried, opened"),
            (Wrong::Deaf, "Waiting | begin | hurried, opened"),
        ],
    );
}

#[test]
fn start_again() {
    check(
        World::waiting,
        TargetOrder::Start,
        [
            (Wrong::Nothing, "Waiting |  | "),
            (Wrong::Unheard, "Waiting |  | "),
            (Wrong::Unanswered, "Waiting |  | "),
            (Wrong::Refused, "Waiting |  | "),
            (
                Wrong::Gone,
                r#"words "QEMU of b said as it ended: bad section", GoneUnrun, GoneUnrun |  | let go of RAM"#,
            ),
            (
                Wrong::Disconnected,
                "detail \"its QEMU (pid 42), started by the agent before this one, does not \
                 answer\" |  | ",
            ),
            (Wrong::Failed, r#"words "QEMU of b said as it ended: bad section", Failed, Failed |  | "#),
            (Wrong::EventsLost, "Waiting |  | "),
            (Wrong::EventsLate, "Waiting |  | "),
            (Wrong::Deaf, "Waiting |  | "),
        ],
    );
}

#[test]
fn run() {
    check(
        World::loaded,
        TargetOrder::Continue,
        [
            (Wrong::Nothing, "continuing, Running | resume, announce | kept marks, let go of RAM"),
            (Wrong::Unheard, "continuing, Loaded |  | fenced"),
            (Wrong::Unanswered, "continuing, Running | resume | kept marks, let go of RAM"),
            (Wrong::Refused, r#"continuing, detail "QEMU: Resume: no", cannot run, Loaded |  | fenced"#),
            (
                Wrong::Gone,
                r#"words "QEMU of b said as it ended: bad section", GoneUnrun, GoneUnrun |  | let go of RAM"#,
            ),
            (
                Wrong::Disconnected,
                "detail \"its QEMU (pid 42), started by the agent before this one, does not \
                 answer\" |  | ",
            ),
            (Wrong::Failed, r#"words "QEMU of b said as it ended: bad section", Failed, Failed |  | "#),
            (Wrong::EventsLost, "continuing, Running | resume, announce | kept marks, let go of RAM"),
            (Wrong::EventsLate, "continuing, Running | resume, announce | kept marks, let go of RAM"),
            (Wrong::Deaf, "continuing, Running | resume, announce | kept marks, let go of RAM"),
        ],
    );
}

#[test]
fn kill_what_waits() {
    check(
        World::waiting,
        TargetOrder::Kill,
        [
            (Wrong::Nothing, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Unheard, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Unanswered, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Refused, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (
                Wrong::Gone,
                "words \"QEMU of b said as it ended: bad section\", GoneUnrun, GoneUnrun |  | \
                 closed, dropped, let go of RAM, room given back",
            ),
            (
                Wrong::Disconnected,
                "words \"QEMU of b said as it ended: bad section\", GoneUnrun, GoneUnrun |  | \
                 closed, dropped, let go of RAM, room given back",
            ),
            (
                Wrong::Failed,
                "words \"QEMU of b said as it ended: bad section\", GoneUnrun, GoneUnrun |  | \
                 closed, dropped, let go of RAM, room given back",
            ),
            (Wrong::EventsLost, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::EventsLate, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Deaf, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
        ],
    );
}

#[test]
fn kill_what_is_loaded() {
    check(
        World::loaded,
        TargetOrder::Kill,
        [
            (Wrong::Nothing, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Unheard, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Unanswered, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Refused, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (
                Wrong::Gone,
                "words \"QEMU of b said as it ended: bad section\", GoneUnrun, GoneUnrun |  | \
                 closed, dropped, let go of RAM, room given back",
            ),
            (
                Wrong::Disconnected,
                "words \"QEMU of b said as it ended: bad section\", GoneUnrun, GoneUnrun |  | \
                 closed, dropped, let go of RAM, room given back",
            ),
            (
                Wrong::Failed,
                "words \"QEMU of b said as it ended: bad section\", GoneUnrun, GoneUnrun |  | \
                 closed, dropped, let go of RAM, room given back",
            ),
            (Wrong::EventsLost, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::EventsLate, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
            (Wrong::Deaf, "GoneUnrun |  | closed, dropped, let go of RAM, room given back"),
        ],
    );
}

#[test]
fn what_cannot_be_let_in_says_why_and_begins_nothing() {
    type Cannot = fn(&World);
    let cases: [Cannot; 3] = [
        |world| world.agent.lock().cannot_start = Some("why".into()),
        |world| world.agent.lock().differs = Some("why".into()),
        |world| world.agent.lock().cannot_set_aside = Some("why".into()),
    ];
    for cannot in cases {
        let mut world = World::new(GuestParameters::default());
        cannot(&world);
        world.order(TargetOrder::Start);
        assert_eq!((world.take_told(), world.done()), (vec!["detail \"why\"".into(), "Failed".into()], String::new()));
        assert_eq!(world.guest.told(), []);
    }
}

#[test]
fn a_guest_that_came_without_all_it_needs_does_not_run_and_the_reason_is_told_once() {
    let tpm = "swtpm could not write";
    let drives = "its QEMU has other drives or devices than when the guest was compared with it";
    let rail = "a rail is not closed";
    for why in [tpm, rail, drives] {
        let mut world = World::waiting();
        match why {
            _ if why == tpm => world.agent.lock().lost_tpm_state = Some(tpm.into()),
            _ if why == rail => world.agent.lock().cannot_fence = Some(rail.into()),
            _ => world.guest.recompose(|composition| {
                let drive = Drive { device: "d0".into(), name: String::new(), removable: true, medium: None };
                composition.drives.push(drive);
            }),
        }
        world.guest.arrive(RunState::Paused);
        world.pass(Duration::from_secs(1));
        assert_eq!(world.take_told(), [format!("detail {why:?}"), "Failed".into()]);
        // The last words of a QEMU that is killed are no reason.
        world.agent.lock().last_words = Some("terminating".into());
        world.guest.end();
        world.order(TargetOrder::Kill);
        world.pass(Duration::from_secs(1));
        let told = world.take_told();
        assert!(told.iter().all(|told| told == "GoneUnrun") && !told.is_empty(), "{told:?}");
    }
}

#[test]
fn a_guest_that_sleeps_is_taken_only_where_nobody_wakes_it_at_both_ends() {
    let arrived = |minor| {
        let version = QemuVersion { major: 8, minor, micro: 0 };
        let mut world = World::new(GuestParameters { version, ..GuestParameters::default() });
        world.order(TargetOrder::Start);
        world.guest.arrive(RunState::Suspended);
        world.pass(Duration::from_secs(1));
        world.take_told()
    };
    let why = "the guest sleeps, and QEMU 8.2.0 could wake it at both ends";
    assert_eq!(arrived(2), ["Waiting".into(), format!("detail {why:?}"), "Failed".into()]);
}

#[test]
fn what_its_hypervisor_said_as_it_ended_is_told_once_and_at_both_ends() {
    let mut world = World::waiting();
    world.agent.lock().last_words = Some("bad section".into());
    world.guest.fail_to_arrive("broken");
    world.guest.end();
    world.pass(Duration::from_secs(1));
    let words = "QEMU of b said as it ended: bad section";
    assert_eq!(world.take_told(), [format!("words {words:?}"), "GoneUnrun".into()]);
    assert_eq!(world.agent.lock().notes, [words]);
}

#[test]
fn one_that_ran_and_ended_may_have_written() {
    let mut world = World::loaded();
    world.order(TargetOrder::Continue);
    world.guest.end();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.take_told(), ["continuing", "Running", "Gone"]);
    assert_eq!(world.done(), "fenced, hurried, kept marks, let go of RAM, opened");
}

#[test]
fn one_that_would_not_run_is_not_told_to_again() {
    let mut world = World::loaded();
    world.guest.fail(Command::Resume, Fault::Refused("no".into()), 1);
    world.order(TargetOrder::Continue);
    assert_eq!(world.take_told(), ["continuing", "detail \"QEMU: Resume: no\"", "cannot run"]);
    world.order(TargetOrder::Continue);
    assert_eq!((world.take_told(), world.told_guest()), (vec!["Loaded".into()], vec![]));
}

#[test]
fn an_agent_that_is_started_again_finds_what_is_there() {
    let mut world = World::waiting().restarted();
    world.worker.look();
    assert_eq!(world.take_told(), ["Waiting"]);

    let mut world = World::loaded().restarted();
    world.order(TargetOrder::Continue);
    assert_eq!(world.take_told(), ["continuing", "Running"]);

    // QEMU runs, and nobody hears it.
    let waiting = World::waiting();
    waiting.guest.disconnect();
    let mut world = waiting.restarted();
    world.pass(Duration::from_secs(1));
    let why = "its QEMU (pid 42), started by the agent before this one, does not answer";
    assert_eq!(world.take_told(), [format!("detail {why:?}")], "once");

    // Nothing is left. Nobody knows whether the guest ran.
    let mut world = World::new(GuestParameters::default()).restarted();
    world.worker.look();
    assert_eq!(world.take_told(), ["Gone"]);
}

#[test]
fn a_worker_ends_when_its_migration_is_forgotten_or_its_agent_ends() {
    for job in [WorkerInput::Forget, WorkerInput::Leave] {
        let mut world = World::waiting();
        let told = world.guest.told().len();
        assert_eq!(world.worker.work(job), Work::IsOver);
        assert_eq!((world.take_told(), world.guest.told().len()), (vec![], told));
    }
    assert_eq!(World::waiting().worker.work(WorkerInput::Guest(GuestEvent::Awake)), Work::GoesOn);
}
