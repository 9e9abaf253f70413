//! Checks that the fake guest does what the tables of [`skein_hypervisor::migration`] say of QEMU.

use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use skein_fake_guest::{Command, Events, FakeGuest, Fault, GuestParameters, Oddities, Told, VirtualClock};
use skein_hypervisor::{
    Guest, GuestError, GuestEvent, Hold, Migrate, MigrationSettings, MigrationStatus, RunControl, RunState, Throttling,
};

const SETTINGS: MigrationSettings = MigrationSettings { channels: Some(2), downtime_limit_ms: 300 };
const GBIT: u64 = 125_000_000;

struct World {
    clock: VirtualClock,
    guest: FakeGuest,
    events: Receiver<GuestEvent>,
}

impl World {
    fn new(parameters: GuestParameters) -> World {
        let clock = VirtualClock::new();
        let guest = FakeGuest::running(&clock, parameters);
        let (sender, events) = sync_channel(1000);
        guest.forward(Box::new(move |event| sender.try_send(event).is_ok()));
        World { clock, guest, events }
    }

    /// Returns a guest in this state of a migration, with no events before.
    fn at(status: MigrationStatus, oddities: Oddities) -> World {
        let world = World::new(GuestParameters { oddities, ..GuestParameters::default() });
        world.guest.begin_outgoing(&SETTINGS, Throttling::Allowed, Hold::NotHeld, Path::new("/x")).unwrap();
        world.clock.advance(Duration::from_millis(20));
        if status != MigrationStatus::Active {
            world.clock.advance(Duration::from_secs(2));
        }
        if matches!(status, MigrationStatus::Device | MigrationStatus::Completed) {
            world.guest.continue_migration().unwrap();
        }
        if status == MigrationStatus::Completed {
            world.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(world.status(), status);
        world.heard();
        world
    }

    fn status(&self) -> MigrationStatus {
        self.guest.seen().1.status
    }

    fn heard(&self) -> Vec<GuestEvent> {
        self.events.try_iter().collect()
    }

    /// Returns the guest's state after a second, and the events until then.
    fn later(&self) -> (MigrationStatus, RunState, Vec<GuestEvent>) {
        self.clock.advance(Duration::from_secs(1));
        let (state, migration) = self.guest.seen();
        (migration.status, state, self.heard())
    }
}

fn status(status: MigrationStatus) -> GuestEvent {
    GuestEvent::Migration(status)
}

#[test]
fn a_guest_is_copied_stopped_and_completed() {
    use MigrationStatus::{Active, Completed, Device, PreSwitchover, Setup};
    let world = World::new(GuestParameters::default());
    world.guest.begin_outgoing(&SETTINGS, Throttling::Forbidden, Hold::NotHeld, Path::new("/x")).unwrap();
    world.clock.advance(Duration::from_secs(5));
    let expected = [status(Setup), status(Active), GuestEvent::Stopped, status(PreSwitchover)];
    assert_eq!((world.heard(), world.guest.run_state().unwrap()), (expected.into(), RunState::FinishMigrate));
    assert!(matches!(world.guest.resume(), Err(GuestError::Refused(_))), "not finalized yet");
    world.guest.continue_migration().unwrap();
    world.guest.continue_migration().expect("who had no answer may say it again");
    assert_eq!(world.later(), (Completed, RunState::PostMigrate, vec![status(Device), status(Completed)]));
    let copy = world.guest.migration().unwrap().copy.unwrap();
    assert_eq!((copy.remaining_bytes, copy.transferred_bytes), (0, 1 << 30));
    world.guest.cancel_migration().unwrap();
    assert_eq!(world.later().0, Completed, "nothing to cancel");
    world.guest.resume().unwrap();
    assert_eq!(world.later(), (Completed, RunState::Running, vec![GuestEvent::Resumed]));
}

#[test]
fn a_cancel_ends_with_a_guest_that_runs() {
    use MigrationStatus::{Active, Cancelled, Cancelling, Completed, Device, Failed, PreSwitchover};
    for at in [Active, PreSwitchover, Device] {
        let world = World::at(at, Oddities::default());
        world.guest.cancel_migration().unwrap();
        let resumed = (at != Active).then_some(GuestEvent::Resumed);
        let told = [status(Cancelling)].into_iter().chain(resumed).chain([status(Cancelled)]).collect();
        assert_eq!(world.later(), (Cancelled, RunState::Running, told), "{at:?}");
        assert!(!world.guest.holds_migration().unwrap());
        let world = World::at(at, Oddities { cancelled_says_failed: true, ..Oddities::default() });
        world.guest.cancel_migration().unwrap();
        let (status, state, _) = world.later();
        assert_eq!((status, state), (Failed, RunState::Running), "{at:?}");
    }
    let late = World::at(Device, Oddities { cancel_is_late: true, ..Oddities::default() });
    late.guest.cancel_migration().unwrap();
    assert_eq!(late.later().0, Completed);
}

#[test]
fn what_qemu_7_2_does_at_times() {
    use MigrationStatus::{Active, Cancelled, Cancelling, Failed, PreSwitchover};
    let missed = World::at(PreSwitchover, Oddities { cancel_misses_pause: true, ..Oddities::default() });
    missed.guest.cancel_migration().unwrap();
    assert_eq!(missed.later(), (Cancelling, RunState::FinishMigrate, vec![status(Cancelling)]));
    missed.guest.continue_cancelling().unwrap();
    assert_eq!(missed.later(), (Cancelled, RunState::Running, vec![GuestEvent::Resumed, status(Cancelled)]));
    assert!(matches!(missed.guest.continue_cancelling(), Err(GuestError::Refused(_))));
    let forever = World::at(Active, Oddities { cancels_for_ever: true, ..Oddities::default() });
    forever.guest.cancel_migration().unwrap();
    forever.clock.advance(Duration::from_secs(3600));
    assert_eq!((forever.status(), forever.guest.run_state().unwrap()), (Cancelling, RunState::Running));
    assert!(forever.guest.begin_outgoing(&SETTINGS, Throttling::Forbidden, Hold::NotHeld, Path::new("/x")).is_err());
    let stopped = World::at(PreSwitchover, Oddities { cancel_leaves_stopped: true, ..Oddities::default() });
    stopped.guest.cancel_migration().unwrap();
    assert_eq!(stopped.later(), (Failed, RunState::PostMigrate, vec![status(Failed)]));
    for (oddities, is_held) in [
        (Oddities { never_lets_go: true, ..Oddities::default() }, true),
        (Oddities { lets_go_after: Duration::from_secs(2), ..Oddities::default() }, true),
        (Oddities { lets_go_after: Duration::from_millis(500), ..Oddities::default() }, false),
    ] {
        let held = World::at(Active, oddities);
        held.guest.cancel_migration().unwrap();
        assert_eq!((held.later().0, held.guest.holds_migration().unwrap()), (Cancelled, is_held));
    }
}

#[test]
fn what_becomes_of_a_source_whose_target_dies() {
    use MigrationStatus::{Active, Completed, Device, Failed, PreSwitchover};
    let lost = |at| {
        let world = World::at(at, Oddities::default());
        world.guest.lose_target("the target died");
        world
    };
    assert_eq!(lost(Active).later(), (Failed, RunState::Running, vec![status(Failed)]));
    assert_eq!(lost(Device).later(), (Failed, RunState::Running, vec![status(Failed), GuestEvent::Resumed]));
    assert_eq!(lost(Completed).later(), (Completed, RunState::PostMigrate, vec![]));
    let paused = lost(PreSwitchover);
    assert_eq!(paused.later(), (PreSwitchover, RunState::FinishMigrate, vec![]), "it notices nothing");
    paused.guest.continue_migration().unwrap();
    assert_eq!(paused.later().0, Failed);
}

#[test]
fn in_the_switchover_nothing_is_heard_while_nobody_reads() {
    let world = World::at(MigrationStatus::PreSwitchover, Oddities::default());
    world.guest.set_link(0);
    world.guest.continue_migration().unwrap();
    let deaf = world.guest.with_patience(Duration::from_millis(200));
    let since = world.clock.now();
    assert!(matches!(deaf.cancel_migration(), Err(GuestError::Silent(_))));
    assert_eq!(world.clock.now() - since, Duration::from_millis(200));
    world.guest.lose_target("the main channel closed");
    assert!(deaf.cancel_migration().is_ok());
    let again = World::at(MigrationStatus::PreSwitchover, Oddities::default());
    again.guest.set_link(0);
    again.guest.continue_migration().unwrap();
    again.guest.set_link(GBIT);
    assert_eq!(again.later().0, MigrationStatus::Device, "a third of a gigabyte takes its time");
    again.clock.advance(Duration::from_secs(5));
    assert_eq!(again.status(), MigrationStatus::Completed);
}

#[test]
fn commands_fail_as_they_are_told_to() {
    let world = World::new(GuestParameters::default());
    let guest = world.guest.with_patience(Duration::from_secs(1));
    world.guest.fail(Command::Resume, Fault::Refused("no".into()), 1);
    assert_eq!(guest.resume().unwrap_err().to_string(), "Resume: no");
    guest.resume().unwrap();
    world.guest.fail_always(Command::RunState, Fault::Unheard);
    assert!(matches!(guest.run_state(), Err(GuestError::Silent(_))));
    world.guest.mend();
    world.guest.deafen(Duration::from_millis(1500));
    assert!(matches!(guest.run_state(), Err(GuestError::Silent(_))), "after a second");
    assert_eq!(guest.run_state().unwrap(), RunState::Running, "after half of one more");
    assert_eq!(world.clock.now(), Duration::from_millis(2500));
    let begin = || guest.begin_outgoing(&SETTINGS, Throttling::Forbidden, Hold::NotHeld, Path::new("/x"));
    world.guest.fail(Command::BeginOutgoing, Fault::Unanswered, 1);
    assert!(matches!(begin(), Err(GuestError::Silent(_))));
    assert!(world.guest.holds_migration().unwrap(), "it was done all the same");
    assert!(matches!(world.guest.told()[..], [Told::Resume, Told::BeginOutgoing { .. }]));
    world.guest.end();
    assert!(matches!(begin(), Err(GuestError::Gone(_))));
    assert_eq!((world.guest.is_alive(), world.heard().last()), (false, Some(&GuestEvent::Closed)));
}

#[test]
fn events_are_late_or_lost() {
    let world = World::new(GuestParameters::default());
    world.guest.delay_events(Duration::from_millis(100));
    world.guest.stop(RunState::Paused, None);
    assert_eq!(world.heard(), []);
    world.clock.advance(Duration::from_millis(100));
    assert_eq!(world.heard(), [GuestEvent::Stopped]);
    world.guest.lose_events(Events::Lost);
    world.guest.resume().unwrap();
    world.clock.advance(Duration::from_secs(1));
    assert_eq!((world.heard(), world.guest.run_state().unwrap()), (vec![], RunState::Running));
}

#[test]
fn a_hot_guest_ends_when_it_is_throttled() {
    let hot = GuestParameters { writes_bytes_per_s: 2_000_000_000, ..GuestParameters::default() };
    let world = World::new(hot);
    world.guest.begin_outgoing(&SETTINGS, Throttling::Allowed, Hold::NotHeld, Path::new("/x")).unwrap();
    world.guest.measure_dirty_rate(Duration::from_secs(1), 512).unwrap();
    world.clock.advance(Duration::from_secs(20));
    assert_eq!(world.status(), MigrationStatus::Active);
    assert_eq!(world.guest.dirty_rate().unwrap(), Some(1 << 30), "no more than all");
    world.guest.set_throttle(80).unwrap();
    world.clock.advance(Duration::from_secs(20));
    assert_eq!(world.status(), MigrationStatus::PreSwitchover);
}
