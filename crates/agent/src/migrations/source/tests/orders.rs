//! Tests each order with each way in which it goes wrong.

use std::time::Duration;

use skein_fake_guest::{Command, Events, Fault, Oddities};
use skein_handover::SourceOrder;
use skein_hypervisor::{GuestEvent, MigrationStatus};

use super::world::{World, large, small};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The hypervisor does not hear the order.
    Unheard,
    /// The hypervisor obeys the order, and its answer is lost.
    Unanswered,
    Refused,
    /// The hypervisor has ended, and the event of that waits.
    Gone,
    /// Another client has taken the connection's place.
    Disconnected,
    /// The migration fails by itself, and the event is drained together with the order.
    Failed,
    /// The migration fails by itself right after the order.
    FailsThen,
    EventsLost,
    /// Events come half a second late.
    EventsLate,
    /// Each event of the migration comes twice.
    EventsTwice,
    /// The hypervisor hears nothing for 3 s.
    Deaf,
}

const ALL: [Wrong; 12] = [
    Wrong::Nothing,
    Wrong::Unheard,
    Wrong::Unanswered,
    Wrong::Refused,
    Wrong::Gone,
    Wrong::Disconnected,
    Wrong::Failed,
    Wrong::FailsThen,
    Wrong::EventsLost,
    Wrong::EventsLate,
    Wrong::EventsTwice,
    Wrong::Deaf,
];

fn command(order: SourceOrder) -> Command {
    match order {
        SourceOrder::Migrate => Command::BeginOutgoing,
        SourceOrder::Switch => Command::LimitRate,
        SourceOrder::Continue => Command::ContinueMigration,
        SourceOrder::CancelMigration => Command::CancelMigration,
        SourceOrder::Resume => Command::Resume,
        SourceOrder::Quit => Command::Quit,
    }
}

/// Has an order obeyed at this point of a copy while something goes wrong. Returns what the owner is told within five
/// seconds, what the guest did, and what else the worker did.
fn cell(mut world: World, order: SourceOrder, wrong: Wrong) -> String {
    let guest = world.guest.clone();
    match wrong {
        Wrong::Nothing | Wrong::FailsThen => {}
        Wrong::Unheard => guest.fail(command(order), Fault::Unheard, 1),
        Wrong::Unanswered => guest.fail(command(order), Fault::Unanswered, 1),
        Wrong::Refused => guest.fail(command(order), Fault::Refused("no".into()), 1),
        Wrong::Gone => guest.end(),
        Wrong::Disconnected => guest.disconnect(),
        Wrong::Failed => {
            guest.lose_target("reset by peer");
            guest.tell(GuestEvent::Migration(world.status()));
            world.clock.advance(Duration::ZERO);
        }
        Wrong::EventsLost => guest.lose_events(Events::Lost),
        Wrong::EventsLate => guest.delay_events(Duration::from_millis(500)),
        Wrong::EventsTwice => {}
        Wrong::Deaf => guest.deafen(Duration::from_secs(3)),
    }
    world.agent.lock().done.clear();
    if order == SourceOrder::Quit {
        // The owner kills the process before the order.
        guest.end();
    }
    world.order(order);
    if wrong == Wrong::FailsThen {
        guest.lose_target("reset by peer");
    }
    if wrong == Wrong::EventsTwice {
        guest.tell(GuestEvent::Migration(world.status()));
    }
    world.pass(Duration::from_secs(5));
    let done: Vec<String> = world.agent.lock().done.iter().cloned().collect();
    let did = world.told_guest().join(", ");
    format!("{} | {did} | {}", world.take_told().join(", "), done.join(", "))
}

/// Compares each cell of an order's row with the expected one. Fails with all cells that differ.
///
/// # Panics
/// A cell differs, or `expected` leaves a failure out.
fn check(world: impl Fn() -> World, order: SourceOrder, expected: [(Wrong, &str); ALL.len()]) {
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
fn migrate() {
    check(
        || World::new(small()),
        SourceOrder::Migrate,
        [
            (Wrong::Nothing, "Migrating, PreSwitchover | begin | stands still"),
            (
                Wrong::Unheard,
                "detail \"QEMU: the guest did not answer BeginOutgoing within 20000 ms\", \
                 failed, Running | forget settings | ",
            ),
            (
                Wrong::Unanswered,
                "detail \"QEMU: the guest did not answer BeginOutgoing within 20000 ms\", \
                 failed, PreSwitchover | begin | stands still",
            ),
            (Wrong::Refused, r#"detail "QEMU: BeginOutgoing: no", failed, Running | forget settings | "#),
            (Wrong::Gone, "Gone |  | "),
            (Wrong::Disconnected, " |  | "),
            (Wrong::Failed, "Migrating, PreSwitchover | begin | stands still"),
            (
                Wrong::FailsThen,
                "Migrating, words \"QEMU: reset by peer\", failed, Running | begin, \
                 forget settings | ",
            ),
            (Wrong::EventsLost, "Migrating, PreSwitchover | begin | "),
            (Wrong::EventsLate, "Migrating, PreSwitchover | begin | stands still"),
            (Wrong::EventsTwice, "Migrating, PreSwitchover | begin | stands still"),
            (Wrong::Deaf, "Migrating, PreSwitchover | begin | stands still"),
        ],
    );
}

#[test]
fn migrate_again() {
    check(
        || World::at(MigrationStatus::Active, large()),
        SourceOrder::Migrate,
        [
            (Wrong::Nothing, "Migrating, PreSwitchover |  | stands still"),
            (Wrong::Unheard, "Migrating, PreSwitchover |  | stands still"),
            (Wrong::Unanswered, "Migrating, PreSwitchover |  | stands still"),
            (Wrong::Refused, "Migrating, PreSwitchover |  | stands still"),
            (Wrong::Gone, "Gone, Gone |  | "),
            (Wrong::Disconnected, " |  | "),
            (Wrong::Failed, r#"words "QEMU: reset by peer", failed, Running, Running | forget settings | "#),
            (Wrong::FailsThen, r#"Migrating, words "QEMU: reset by peer", failed, Running | forget settings | "#),
            (Wrong::EventsLost, "Migrating, PreSwitchover |  | "),
            (Wrong::EventsLate, "Migrating, PreSwitchover |  | stands still"),
            (Wrong::EventsTwice, "Migrating, PreSwitchover |  | stands still"),
            (Wrong::Deaf, "PreSwitchover |  | stands still"),
        ],
    );
}

#[test]
fn go_on() {
    let world = || World::at(MigrationStatus::PreSwitchover, small());
    check(
        world,
        SourceOrder::Continue,
        [
            (Wrong::Nothing, "Device, Completed | continue | hurried"),
            (Wrong::Unheard, "PreSwitchover |  | hurried"),
            (Wrong::Unanswered, "Device, Completed | continue | hurried"),
            (Wrong::Refused, r#"detail "QEMU: ContinueMigration: no", PreSwitchover |  | hurried"#),
            (Wrong::Gone, "Gone, Gone |  | "),
            (Wrong::Disconnected, " |  | "),
            (
                Wrong::Failed,
                "Device, words \"QEMU: the target is gone\", failed, Running | continue, \
                 forget settings | hurried, stands still",
            ),
            (
                Wrong::FailsThen,
                "Device, words \"QEMU: reset by peer\", failed, Running | continue, \
                 forget settings | hurried",
            ),
            (Wrong::EventsLost, "Device, Completed | continue | hurried"),
            (Wrong::EventsLate, "Device, Completed | continue | hurried"),
            (Wrong::EventsTwice, "Device, Completed | continue | hurried"),
            (Wrong::Deaf, "PreSwitchover |  | hurried"),
        ],
    );
}

#[test]
fn cancel_in_precopy() {
    let world = || World::at(MigrationStatus::Active, large());
    check(
        world,
        SourceOrder::CancelMigration,
        [
            (Wrong::Nothing, "Migrating, failed, Running | cancel, wake, wake, forget settings | "),
            (Wrong::Unheard, "failed, Running | forget settings | gave up"),
            (Wrong::Unanswered, "failed, Running | cancel, forget settings | gave up"),
            (Wrong::Refused, "failed, Running | forget settings | gave up"),
            (Wrong::Gone, "Gone, Gone |  | gave up"),
            (Wrong::Disconnected, " |  | gave up"),
            (Wrong::Failed, r#"words "QEMU: reset by peer", failed, Running, Running | forget settings, cancel | "#),
            (Wrong::FailsThen, "Migrating, failed, Running | cancel, wake, wake, forget settings | "),
            (Wrong::EventsLost, "Migrating, failed, Running | cancel, wake, forget settings | "),
            (Wrong::EventsLate, "Migrating, failed, Running | cancel, wake, forget settings | "),
            (Wrong::EventsTwice, "Migrating, failed, Running | cancel, wake, wake, wake, forget settings | "),
            (Wrong::Deaf, "failed, Running | forget settings | gave up"),
        ],
    );
}

#[test]
fn cancel_before_the_switchover() {
    let world = || World::at(MigrationStatus::PreSwitchover, small());
    check(
        world,
        SourceOrder::CancelMigration,
        [
            (Wrong::Nothing, "Migrating, failed, Running | cancel, wake, wake, forget settings | "),
            (Wrong::Unheard, "PreSwitchover |  | gave up"),
            (Wrong::Unanswered, "failed, Running | cancel, forget settings | gave up"),
            (Wrong::Refused, "PreSwitchover |  | gave up"),
            (Wrong::Gone, "Gone, Gone |  | gave up"),
            (Wrong::Disconnected, " |  | gave up"),
            (Wrong::Failed, "Migrating, failed, Running | cancel, wake, wake, forget settings | stands still"),
            (Wrong::FailsThen, "Migrating, failed, Running | cancel, wake, wake, forget settings | "),
            (Wrong::EventsLost, "Migrating, failed, Running | cancel, wake, forget settings | "),
            (Wrong::EventsLate, "Migrating, failed, Running | cancel, wake, forget settings | "),
            (Wrong::EventsTwice, "Migrating, failed, Running | cancel, wake, wake, wake, forget settings | "),
            (Wrong::Deaf, "PreSwitchover |  | gave up"),
        ],
    );
}

#[test]
fn cancel_in_the_switchover() {
    let world = || World::at(MigrationStatus::Device, small());
    check(
        world,
        SourceOrder::CancelMigration,
        [
            (Wrong::Nothing, "Migrating, failed, Running | cancel, wake, wake, forget settings | "),
            (Wrong::Unheard, "failed, Running | forget settings | gave up"),
            (Wrong::Unanswered, "failed, Running | cancel, forget settings | gave up"),
            (Wrong::Refused, "failed, Running | forget settings | gave up"),
            (Wrong::Gone, "Gone, Gone |  | gave up"),
            (Wrong::Disconnected, " |  | gave up"),
            (Wrong::Failed, r#"words "QEMU: reset by peer", failed, Running, Running | forget settings, cancel | "#),
            (Wrong::FailsThen, "Migrating, failed, Running | cancel, wake, wake, forget settings | "),
            (Wrong::EventsLost, "Migrating, failed, Running | cancel, wake, forget settings | "),
            (Wrong::EventsLate, "Migrating, failed, Running | cancel, wake, forget settings | "),
            (Wrong::EventsTwice, "Migrating, failed, Running | cancel, wake, wake, wake, forget settings | "),
            (Wrong::Deaf, "failed, Running | forget settings | gave up"),
        ],
    );
}

#[test]
fn resume_what_is_completed() {
    let world = || World::at(MigrationStatus::Completed, small());
    check(
        world,
        SourceOrder::Resume,
        [
            (Wrong::Nothing, "Running | resume | "),
            (Wrong::Unheard, r#"detail "QEMU: the guest did not answer Resume within 20000 ms", Completed |  | "#),
            (
                Wrong::Unanswered,
                "detail \"QEMU: the guest did not answer Resume within 20000 ms\", \
                 Running | resume | ",
            ),
            (Wrong::Refused, r#"detail "QEMU: Resume: no", Completed |  | "#),
            (Wrong::Gone, "Gone, Gone |  | "),
            (Wrong::Disconnected, " |  | "),
            (Wrong::Failed, "Running | resume | "),
            (Wrong::FailsThen, "Running | resume | "),
            (Wrong::EventsLost, "Running | resume | "),
            (Wrong::EventsLate, "Running | resume | "),
            (Wrong::EventsTwice, "Running | resume | "),
            (Wrong::Deaf, "Running | resume | "),
        ],
    );
}

#[test]
fn resume_what_a_cancel_left_stopped() {
    let world = || {
        let oddities = Oddities { cancel_leaves_stopped: true, ..Oddities::default() };
        let mut world =
            World::at(MigrationStatus::PreSwitchover, skein_fake_guest::GuestParameters { oddities, ..small() });
        world.order(SourceOrder::CancelMigration);
        world.pass(Duration::from_millis(100));
        world.take_told();
        world
    };
    check(
        world,
        SourceOrder::Resume,
        [
            (Wrong::Nothing, "Running | resume | "),
            (Wrong::Unheard, "Stopped |  | "),
            (Wrong::Unanswered, "Running | resume | "),
            (Wrong::Refused, "Stopped |  | "),
            (Wrong::Gone, "Gone, Gone |  | "),
            (Wrong::Disconnected, " |  | "),
            (Wrong::Failed, "Running | resume | "),
            (Wrong::FailsThen, "Running | resume | "),
            (Wrong::EventsLost, "Running | resume | "),
            (Wrong::EventsLate, "Running | resume | "),
            (Wrong::EventsTwice, "Running | resume | "),
            (Wrong::Deaf, "Running | resume | "),
        ],
    );
}

#[test]
fn quit() {
    let world = || World::at(MigrationStatus::Completed, small());
    check(
        world,
        SourceOrder::Quit,
        [
            (Wrong::Nothing, "Gone, Gone |  | released"),
            (Wrong::Unheard, "Gone, Gone |  | released"),
            (Wrong::Unanswered, "Gone, Gone |  | released"),
            (Wrong::Refused, "Gone, Gone |  | released"),
            (Wrong::Gone, "Gone, Gone |  | released"),
            (Wrong::Disconnected, "Gone, Gone |  | released"),
            (Wrong::Failed, "Gone, Gone |  | released"),
            (Wrong::FailsThen, "Gone, Gone |  | released"),
            (Wrong::EventsLost, "Gone |  | released"),
            (Wrong::EventsLate, "Gone, Gone |  | released"),
            (Wrong::EventsTwice, "Gone, Gone |  | released"),
            (Wrong::Deaf, "Gone, Gone |  | released"),
        ],
    );
}
