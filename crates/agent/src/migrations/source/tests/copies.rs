//! Tests what happens to a copy that is under way, and what is done for it.

use std::time::Duration;

use skein_fake_guest::{Abilities, GuestParameters, Oddities, Told};
use skein_handover::{SourceOrder, SourcePhase};
use skein_hypervisor::{GuestEvent, MigrationStatus, RunState, ShutdownCause, StopCause};
use skein_inventory::composition::Drive;
use skein_inventory::{Composition, QemuVersion};
use skein_pages::PageCounts;

use super::world::{World, busy, large, small};
use crate::migrations::input::WorkerInput;
use crate::migrations::source::links::PathSample;
use crate::migrations::source::worker::Work;
use crate::migrations::test_parts::offer;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a path that carries 100 MB/s, which is all that its NIC can carry.
fn path() -> PathSample {
    PathSample {
        nic: "eth0".into(),
        remote: "10.0.0.2".into(),
        connections: String::new(),
        is_usable: true,
        carried_bits_per_s: Some(800_000_000),
        received_bytes: 1,
        inflight_bytes: 1,
        ..PathSample::default()
    }
}

/// Has a busy guest copied over one such path for `time`.
fn busy_for(time: Duration, world: World) -> World {
    let mut world = world;
    {
        let mut agent = world.agent.lock();
        agent.paths = vec![path()];
        agent.carried_bits_per_s = 800_000_000;
        agent.nics_bits_per_s = Some(1e9);
    }
    world.order(SourceOrder::Migrate);
    world.pass(time);
    world
}

#[test]
fn what_does_not_converge_is_called_off_and_the_reason_stands() {
    let mut world = busy_for(seconds(30), World::new(busy()));
    let why = "will not converge: dirties 150 MB/s, moves 100 MB/s: needs 1 more NIC, or --allow-throttle 70";
    assert_eq!(world.take_told(), ["Migrating", &format!("detail {why:?}"), "failed"]);
    assert_eq!(world.notes(), [why]);
    // The owner calls the migration off.
    world.order(SourceOrder::CancelMigration);
    world.pass(seconds(1));
    assert_eq!(world.take_told(), ["Migrating", "failed", "Running"]);
}

#[test]
fn where_it_is_tried_until_a_deadline_it_goes_on_and_is_explained_then() {
    let until = crate::migrations::offer::Offer { has_deadline: true, ..offer() };
    let world = World::with(busy(), Some(until), SourcePhase::Prepare);
    let mut world = busy_for(seconds(30), world);
    let told = world.take_told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].starts_with("detail \"will not converge: "), "{told:?}");
    assert_eq!(world.status(), MigrationStatus::Active);
    // The guest comes to write less.
    world.guest.set_writes(0);
    world.pass(seconds(10));
    assert_eq!(world.take_told(), ["detail \"\"", "PreSwitchover"]);
}

#[test]
fn a_guest_is_throttled_as_far_as_is_allowed_and_what_that_cost_is_noted() {
    let allowed = crate::migrations::offer::Offer { allow_throttle: Some(80), ..offer() };
    let world = World::with(busy(), Some(allowed), SourcePhase::Prepare);
    let mut world = busy_for(seconds(40), world);
    assert_eq!(world.take_told(), ["Migrating", "PreSwitchover"]);
    assert!(world.agent.lock().progress.iter().any(|copy| copy.throttle_percent > 0));
    world.order(SourceOrder::CancelMigration);
    world.pass(Duration::from_millis(100));
    let notes = world.notes();
    assert!(notes[0].starts_with("throttles the guest's CPUs by "), "{notes:?}");
    assert!(notes.last().unwrap().starts_with("the guest was throttled by up to "), "{notes:?}");
}

#[test]
fn a_hypervisor_that_cannot_throttle_is_noted() {
    let abilities = Abilities { throttles: false, ..Abilities::default() };
    let allowed = crate::migrations::offer::Offer { allow_throttle: Some(80), ..offer() };
    let world = World::with(GuestParameters { abilities, ..busy() }, Some(allowed), SourcePhase::Prepare);
    let world = busy_for(seconds(10), world);
    let notes = world.notes();
    assert_eq!(notes[1], "QEMU does not throttle it: this hypervisor cannot throttle a guest", "{notes:?}");
}

#[test]
fn pages_of_a_guest_that_does_not_converge_may_wait() {
    let world = busy_for(seconds(2), World::new(busy()));
    assert_eq!(world.agent.lock().pages.0.lock().held_bytes_max, Some(0));
    let mut world = world;
    world.pass(seconds(8));
    let held_bytes_max = world.agent.lock().pages.0.lock().held_bytes_max;
    assert_eq!(held_bytes_max, Some(12_375_000), "half of 0.9 of 100 MB/s for 275 ms");
}

#[test]
fn the_hypervisor_is_told_what_fits() {
    let mut world = World::new(busy());
    world.agent.lock().carried_bits_per_s = 800_000_000;
    world.order(SourceOrder::Migrate);
    world.pass(Duration::from_millis(300));
    let told = world.guest.told();
    let limit = told.iter().find(|told| matches!(told, Told::SetSwitchover { .. }));
    assert_eq!(limit, Some(&Told::SetSwitchover { bytes: 24_750_000 / 16, limit_ms: 300 }), "{told:?}");
}

#[test]
fn a_guest_that_changes_while_it_is_copied_is_kept() {
    let old = QemuVersion { major: 8, minor: 2, micro: 0 };
    let job = |world: &World| {
        world.guest.recompose(|composition| composition.activities.extend(["block job x".to_owned()]));
    };
    let stop =
        |state: RunState, cause: Option<StopCause>| move |world: &World| world.guest.stop(state.clone(), cause.clone());
    let full = StopCause::DriveFull { drive: "d0".into() };
    type Happens<'a> = &'a dyn Fn(&World);
    let cases: [(&str, Happens<'_>, &str); 6] = [
        ("paused", &stop(RunState::Paused, None), "somebody paused it"),
        ("full", &stop(RunState::IoError, Some(full)), "its drive d0 has no space left"),
        ("panicked", &stop(RunState::GuestPanicked, Some(StopCause::Panicked)), "its kernel panicked"),
        ("asleep", &stop(RunState::Suspended, None), "QEMU 8.2.0 could wake it at both ends"),
        (
            "recomposed",
            &|world| {
                job(world);
                world.guest.tell(GuestEvent::Recomposed);
            },
            "the block job x was begun",
        ),
        ("recomposed unseen", &job, "the block job x was begun"),
    ];
    for (case, happens, why) in cases {
        let mut world = World::at(MigrationStatus::Active, GuestParameters { version: old, ..large() });
        happens(&world);
        world.pass(Duration::from_millis(600));
        let told = world.take_told();
        assert_eq!(told.len(), 2, "{case}: {told:?}");
        assert!(told[0].starts_with("detail ") && told[0].contains(why), "{case}: {told:?}");
        assert_eq!(told[1], "changed", "{case}");
        // What is refused after that is no reason, and the switchover is not reported any more.
        world.order(SourceOrder::Continue);
        assert_eq!(world.take_told(), ["Migrating"], "{case}");
    }
}

#[test]
fn a_guest_that_only_sleeps_or_is_reset_goes_on() {
    let mut world = World::at(MigrationStatus::Active, large());
    world.guest.stop(RunState::Suspended, None);
    world.guest.tell(GuestEvent::Reset);
    world.pass(Duration::from_millis(500));
    assert_eq!(world.take_told(), [""; 0]);
    assert_eq!(world.notes(), ["the guest went to sleep", "the guest was reset; the copy goes on"]);
}

#[test]
fn a_guest_that_changed_before_it_stood_still_is_found_at_the_end() {
    let drive = || Drive { device: "d0".into(), name: String::new(), removable: true, medium: None };
    type Change = fn(&mut Composition, Drive);
    let plugged: Change = |composition, drive| composition.drives.push(drive);
    let job: Change = |composition, _| composition.activities.extend(["block job x".to_owned()]);
    // Drives change without an event: they are compared. Other changes have an event: they are compared if events were
    // missed.
    for (change, events, is_found) in [(plugged, 0, true), (job, 0, false), (job, 70, true)] {
        let mut world = World::at(MigrationStatus::PreSwitchover, small());
        (0..events).for_each(|_| world.guest.tell(GuestEvent::Awake));
        world.clock.advance(Duration::ZERO);
        world.pass(Duration::from_millis(1));
        world.guest.recompose(|composition| change(composition, drive()));
        world.order(SourceOrder::Continue);
        world.pass(seconds(1));
        let told = world.take_told();
        match is_found {
            false => assert_eq!(told, ["Device", "Completed"]),
            true => {
                assert!(told[1].starts_with("detail "), "{told:?}");
                assert_eq!([&told[..1], &told[2..]].concat(), ["Device", "changed", "Completed"]);
            }
        }
    }
}

#[test]
fn a_guest_that_ends_says_why() {
    let mut world = World::at(MigrationStatus::Active, large());
    world.agent.lock().last_words = Some("terminating".into());
    world.guest.tell(GuestEvent::Stopping(StopCause::ShutDown(ShutdownCause::Guest)));
    world.clock.advance(Duration::ZERO);
    world.guest.end();
    world.pass(Duration::from_millis(300));
    let why = "the guest shut down; its QEMU said: terminating";
    assert_eq!(world.take_told(), [format!("detail {why:?}"), "Gone".into()]);
    assert_eq!(world.notes(), [why]);
    assert!(world.has_done("explained: the guest shut down"));
}

/// The owner's kill may come before the worker sees the order to end the hypervisor.
#[test]
fn a_hypervisor_that_let_go_of_its_guest_and_is_killed_has_no_reason_to_tell() {
    let mut world = World::at(MigrationStatus::Completed, small());
    world.agent.lock().last_words = Some("of an earlier migration".into());
    world.pass(Duration::from_millis(300));
    world.take_told();
    world.guest.end();
    world.pass(Duration::from_millis(300));
    assert_eq!((world.take_told(), world.notes()), (vec!["Gone".into()], Vec::<String>::new()));
}

#[test]
fn pages_that_cannot_be_mended_are_the_reason_whoever_was_first() {
    const WHY: &str = "could not be mended";
    for is_target_first in [true, false] {
        let mut world = World::at(MigrationStatus::Completed, small());
        {
            let agent = world.agent.lock();
            let mut pages = agent.pages.0.lock();
            (pages.failed, pages.failed_here) = (Some(WHY.into()), Some(WHY.into()));
        }
        if is_target_first {
            world.order(SourceOrder::CancelMigration);
            assert_eq!(world.take_told(), [format!("detail {WHY:?}"), "Completed".into()]);
            continue;
        }
        let mut world = World::at(MigrationStatus::Active, large());
        world.agent.lock().pages.0.lock().failed = Some(WHY.into());
        world.guest.lose_target("Broken pipe");
        world.queue_order(SourceOrder::CancelMigration);
        world.pass(Duration::from_millis(300));
        assert_eq!(world.take_told(), [format!("detail {WHY:?}"), "failed".into(), "Running".into(), "Running".into()]);
    }
}

#[test]
fn what_direct_placement_broke_is_tried_without_it() {
    let mut world = World::at(MigrationStatus::Active, large());
    {
        let agent = world.agent.lock();
        let mut pages = agent.pages.0.lock();
        (pages.failed, pages.direct_placement_failure) = (Some("postcopy".into()), Some("postcopy".into()));
    }
    world.guest.lose_target("Broken pipe");
    world.pass(Duration::from_millis(100));
    let told = world.take_told();
    let advice = "postcopy; without direct placement it can be moved, and is when it is tried again";
    assert_eq!(told, [format!("detail {advice:?}"), "failed".into(), "Running".into()]);
    assert!(world.has_done("indirect: postcopy"));
}

#[test]
fn a_channel_that_is_not_carried_calls_it_off_once() {
    let mut world = World::at(MigrationStatus::Active, large());
    world.agent.lock().channels_failure = Some("too many files".into());
    world.pass(Duration::from_millis(500));
    assert_eq!(world.take_told(), ["detail \"too many files\"", "failed"]);
    world.guest.lose_target("Broken pipe");
    world.pass(Duration::from_millis(100));
    assert_eq!(world.take_told(), ["failed", "Running"], "the reason stands");
}

#[test]
fn a_throttled_guest_does_not_wait_for_the_network() {
    let allowed = || crate::migrations::offer::Offer { allow_throttle: Some(80), ..offer() };
    for (offer, is_called_off) in [(allowed(), true), (offer(), false)] {
        let mut world = World::with(large(), Some(offer), SourcePhase::Prepare);
        world.agent.lock().paths = vec![path()];
        world.agent.lock().pages.0.lock().counts = PageCounts { pages: 9, ..PageCounts::default() };
        world.order(SourceOrder::Migrate);
        world.pass(Duration::from_millis(100));
        world.guest.set_link(0);
        world.take_told();
        world.pass(Duration::from_millis(4000));
        let why = "nothing got through to b for 3 s, and a throttled guest does not wait for it";
        match is_called_off {
            true => assert_eq!(world.take_told(), [format!("detail {why:?}"), "failed".into()]),
            false => assert_eq!(world.take_told(), [""; 0]),
        }
    }
}

#[test]
fn a_hypervisor_that_never_lets_go_is_said_to() {
    let oddities = Oddities { never_lets_go: true, ..Oddities::default() };
    let mut world = World::at(MigrationStatus::Active, GuestParameters { oddities, ..large() });
    world.order(SourceOrder::CancelMigration);
    world.pass(Duration::from_millis(2500));
    assert_eq!(world.take_told(), ["Migrating"]);
    assert!(world.has_done("gave up"), "it may wait for the network");
    world.pass(seconds(1));
    let told = world.take_told();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].contains("shut down and started again") && told[1..] == ["failed", "Running"], "{told:?}");
    assert_eq!(world.notes().len(), 1);
}

#[test]
fn a_cancel_that_misses_the_pause_is_woken() {
    let oddities = Oddities { cancel_misses_pause: true, ..Oddities::default() };
    let mut world = World::at(MigrationStatus::PreSwitchover, GuestParameters { oddities, ..small() });
    world.order(SourceOrder::CancelMigration);
    world.pass(Duration::from_millis(300));
    assert_eq!(world.take_told(), ["Migrating", "failed", "Running"]);
    assert!(world.told_guest().is_empty() && world.guest.told().contains(&Told::ContinueCancelling));
}

#[test]
fn progress_is_shown_and_logged_now_and_then() {
    let mut world = busy_for(seconds(3), World::new(busy()));
    world.agent.lock().pages.0.lock().direct = Some(true);
    world.pass(seconds(2));
    let agent = world.agent.lock();
    let last = agent.progress.last().unwrap();
    assert_eq!((last.total_bytes, last.bits_per_s / 1_000_000), (200_000_000, 800));
    assert!(last.pages.as_ref().is_some_and(|pages| pages.direct == Some(true)));
    assert!(agent.progress.len() > 40 && agent.logged == 0, "{}", agent.progress.len());
    assert_eq!(agent.notes, ["direct placement: yes"]);
}

#[test]
fn there_may_be_no_room_for_a_copy() {
    let mut world = World::new(small());
    world.agent.lock().no_room = Some("no room for it".into());
    world.order(SourceOrder::Migrate);
    assert_eq!(world.take_told(), ["detail \"no room for it\"", "failed", "Running"]);
    world.agent.lock().no_room = None;
    world.order(SourceOrder::Migrate);
    assert_eq!(world.take_told(), ["Running"], "an order that was repeated meanwhile begins nothing");
    assert_eq!(world.guest.told(), []);
}

#[test]
fn what_cannot_begin_says_why() {
    let begin = |world: &mut World| {
        world.order(SourceOrder::Migrate);
        world.take_told()
    };
    let mut world = World::new(small());
    world.agent.lock().promised = None;
    let told = begin(&mut world);
    assert!(told[0].contains("the target has not asked what the guest is composed of"), "{told:?}");
    assert_eq!(told[1..], ["failed", "Running"]);

    let mut world = World::new(small());
    world.guest.recompose(|composition| composition.machine = "pc-q35-9.0".into());
    let told = begin(&mut world);
    assert!(told[0].starts_with("detail \"QEMU: ") && told[0].contains("pc-q35-9.0"), "{told:?}");

    let mut world = World::new(small());
    world.agent.lock().is_vm_gone = true;
    assert_eq!(begin(&mut world), ["detail \"QEMU: it is gone\"", "failed", "Running"]);

    let mut world = World::with(small(), None, SourcePhase::Precopy);
    let why = "detail \"QEMU: it was begun by an agent that is gone\"";
    assert_eq!(begin(&mut world), [why, "failed", "Running"]);
    assert_eq!(world.guest.told().len(), 1, "settings of the agent before are taken back");
}

#[test]
fn an_agent_that_is_started_again_finds_the_guest_as_it_is() {
    use MigrationStatus as Status;
    for (status, told, guest) in [
        (Status::Active, "Migrating", "cancel, wake, forget settings"),
        (Status::PreSwitchover, "PreSwitchover", "cancel, wake, forget settings"),
        (Status::Completed, "Completed", "cancel"),
    ] {
        let mut world = World::at(status, large()).restarted(SourcePhase::Keep);
        world.worker.look();
        assert_eq!(world.take_told(), [told], "{status:?}");
        world.order(SourceOrder::CancelMigration);
        world.pass(Duration::from_millis(500));
        let last = world.take_told().pop().unwrap();
        assert_eq!(last, if status == Status::Completed { "Completed" } else { "Running" }, "{status:?}");
        let all = world.guest.told();
        assert!(all.contains(&Told::CancelMigration) && !guest.is_empty(), "{all:?}");
        let is_forgotten = all.contains(&Told::ForgetMigrationSettings);
        assert_eq!(is_forgotten, status != Status::Completed, "for the next migration: {status:?}");
    }
    // The guest is resumed once the end of its migration is known.
    let mut world = World::at(Status::Completed, small()).restarted(SourcePhase::Keep);
    world.order(SourceOrder::Resume);
    assert_eq!(world.take_told(), ["Running"]);
}

#[test]
fn a_migration_that_is_forgotten_leaves_the_guest_alone() {
    let mut world = World::at(MigrationStatus::Active, large());
    let did = world.guest.told().len();
    world.jobs.try_send(WorkerInput::Look).unwrap();
    let work = world.worker.work(WorkerInput::Forget, &world.queue);
    assert_eq!((work, world.guest.told().len()), (Work::IsOver, did));
    assert!(!world.has_done("left"));
}

#[test]
fn an_agent_that_ends_waits_for_what_it_told_the_hypervisor() {
    let mut world = World::at(MigrationStatus::Active, large());
    world.queue_order(SourceOrder::CancelMigration);
    world.queue_order(SourceOrder::CancelMigration);
    let work = world.worker.work(WorkerInput::Leave, &world.queue);
    assert_eq!(work, Work::IsLeft);
    let before = world.clock.now();
    world.worker.leave();
    assert_eq!(world.clock.now() - before, Duration::from_millis(800), "it is copied on, as nobody called it off");
    assert!(world.has_done("left") && !world.has_done("gave up"));

    // The order came before the agent was told to end.
    let mut world = World::at(MigrationStatus::Active, large());
    world.jobs.try_send(WorkerInput::Leave).unwrap();
    let cancel = WorkerInput::Order(skein_handover::Order::Source(SourceOrder::CancelMigration));
    assert_eq!(world.worker.work(cancel, &world.queue), Work::IsLeft);
    let before = world.clock.now();
    world.worker.leave();
    assert!(world.clock.now() - before < Duration::from_millis(50));
    assert_eq!(world.take_told(), ["Migrating", "failed", "Running"]);
    assert_eq!(world.status(), MigrationStatus::Cancelled);
}

#[test]
fn of_orders_that_wait_only_the_last_is_obeyed() {
    let mut world = World::at(MigrationStatus::PreSwitchover, small());
    world.queue_order(SourceOrder::Continue);
    world.order(SourceOrder::CancelMigration);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.take_told(), ["Migrating", "failed", "Running"]);
    assert!(!world.guest.told().contains(&Told::ContinueMigration));
}
