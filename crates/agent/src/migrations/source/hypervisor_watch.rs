//! Hears a source's hypervisor: its events, whether events were missed, and whether the hypervisor lets go of a
//! migration that is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use skein_hypervisor::{Guest, MigrationStatus};

use crate::migrations::input::WorkerInput;

/// A hypervisor lets go of a migration that is over within milliseconds. A hypervisor that has not within this time
/// never will.
const LET_GO_TIME: Duration = Duration::from_secs(3);
/// A hypervisor that has not let go within this time may wait for the network.
const LET_GO_NETWORK_WAIT: Duration = Duration::from_millis(300);

/// Whether a hypervisor has let go of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetGo {
    /// The hypervisor has, or the migration is not over.
    Done,
    /// The hypervisor will soon.
    Soon,
    /// The hypervisor may wait for the network: its channels are to be closed.
    WaitsForNetwork,
    /// The hypervisor never will.
    Never,
}

/// Hears the hypervisor of one migration.
pub(super) struct HypervisorWatch {
    events: SyncSender<WorkerInput>,
    /// The connection whose events are heard.
    listened_to: Option<Arc<dyn Guest>>,
    /// Whether an event found no room, or may have come while there was no connection.
    missed_events: Arc<AtomicBool>,
    /// Since when the hypervisor has held a migration that is over; `None`: it holds none.
    held_since: Option<Duration>,
}

impl HypervisorWatch {
    /// Returns a watch that puts the hypervisor's events into `events`.
    pub(super) fn new(events: SyncSender<WorkerInput>) -> HypervisorWatch {
        HypervisorWatch { events, listened_to: None, missed_events: Arc::default(), held_since: None }
    }

    /// Takes the events of the connection to this guest, unless an open connection is heard already.
    pub(super) fn listen(&mut self, guest: &Arc<dyn Guest>) {
        if self.listened_to.as_ref().is_some_and(|heard| !heard.is_closed()) {
            return;
        }
        let (events, missed) = (self.events.clone(), self.missed_events.clone());
        missed.fetch_or(self.listened_to.is_some(), Ordering::SeqCst);
        guest.forward(Box::new(move |event| {
            if events.try_send(WorkerInput::Guest(event)).is_err() {
                missed.store(true, Ordering::SeqCst);
            }
            true
        }));
        self.listened_to = Some(guest.clone());
    }

    /// Returns whether events may have been missed since the beginning.
    pub(super) fn has_missed_events(&self) -> bool {
        self.missed_events.load(Ordering::SeqCst)
    }

    /// Returns whether the hypervisor has let go of a migration of this status: before, the hypervisor would refuse the
    /// next migration. `holds` returns whether the hypervisor says that it still holds a migration; `None`: no answer.
    pub(super) fn let_go(
        &mut self,
        now: Duration,
        status: MigrationStatus,
        holds: impl FnOnce() -> Option<bool>,
    ) -> LetGo {
        use MigrationStatus as Status;
        if !matches!(status, Status::Cancelling | Status::Cancelled | Status::Failed) {
            return LetGo::Done;
        }
        if holds() == Some(false) {
            self.held_since = None;
            return LetGo::Done;
        }
        match now.saturating_sub(*self.held_since.get_or_insert(now)) {
            held if held < LET_GO_NETWORK_WAIT => LetGo::Soon,
            held if held < LET_GO_TIME => LetGo::WaitsForNetwork,
            _ => LetGo::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use skein_fake_guest::{FakeGuest, GuestParameters, VirtualClock};
    use skein_hypervisor::GuestEvent;

    use super::*;

    #[test]
    fn a_migration_that_is_over_is_let_go_of_or_never() {
        let (events, _queue) = sync_channel(1);
        let mut watch = HypervisorWatch::new(events);
        let mut at = |ms, status, holds| watch.let_go(Duration::from_millis(ms), status, || holds);
        assert_eq!(at(0, MigrationStatus::Active, Some(true)), LetGo::Done, "it is not over");
        assert_eq!(at(0, MigrationStatus::Failed, Some(false)), LetGo::Done);
        assert_eq!(at(1000, MigrationStatus::Cancelling, Some(true)), LetGo::Soon);
        assert_eq!(at(1299, MigrationStatus::Cancelled, None), LetGo::Soon, "no answer says nothing");
        assert_eq!(at(1300, MigrationStatus::Cancelled, Some(true)), LetGo::WaitsForNetwork);
        assert_eq!(at(3999, MigrationStatus::Cancelled, Some(true)), LetGo::WaitsForNetwork);
        assert_eq!(at(4000, MigrationStatus::Cancelled, Some(true)), LetGo::Never);
        assert_eq!(at(4100, MigrationStatus::Cancelled, Some(false)), LetGo::Done);
        assert_eq!(at(9000, MigrationStatus::Failed, Some(true)), LetGo::Soon, "it is another time");
    }

    #[test]
    fn events_are_missed_where_there_is_no_room_and_while_nobody_listens() {
        let clock = VirtualClock::new();
        let guest = FakeGuest::running(&clock, GuestParameters::default());
        let handle: Arc<dyn Guest> = Arc::new(guest.clone());
        let (events, queue) = sync_channel(1);
        let mut watch = HypervisorWatch::new(events);
        watch.listen(&handle);
        watch.listen(&handle);
        guest.tell(GuestEvent::Reset);
        clock.advance(Duration::ZERO);
        assert!(matches!(queue.try_recv(), Ok(WorkerInput::Guest(GuestEvent::Reset))));
        assert!(queue.try_recv().is_err() && !watch.has_missed_events(), "it is heard once");
        guest.tell(GuestEvent::Reset);
        guest.tell(GuestEvent::Awake);
        clock.advance(Duration::ZERO);
        assert!(watch.has_missed_events(), "no room");

        let (events, _queue) = sync_channel(9);
        let mut watch = HypervisorWatch::new(events);
        watch.listen(&handle);
        guest.disconnect();
        assert!(!watch.has_missed_events());
        watch.listen(&(Arc::new(FakeGuest::running(&clock, GuestParameters::default())) as Arc<dyn Guest>));
        assert!(watch.has_missed_events(), "nobody listened for a while");
    }
}
