//! Says what a hypervisor's two states mean together, for a guest that is moved away.

use skein_handover::SourceGuest;
use skein_hypervisor::{MigrationStatus, RunState};

/// Returns what the run state and the migration's status mean together; `None`: they change just now.
pub(super) fn guest(state: &RunState, status: MigrationStatus) -> Option<SourceGuest> {
    use MigrationStatus as Status;
    let is_under_way = matches!(status, Status::Setup | Status::Active | Status::WaitUnplug | Status::Cancelling);
    match (state, status) {
        (RunState::FinishMigrate, Status::PreSwitchover) => Some(SourceGuest::PreSwitchover),
        (RunState::FinishMigrate, Status::Device) => Some(SourceGuest::Device),
        (RunState::FinishMigrate, _) => None,
        (RunState::PostMigrate, Status::Completed) => Some(SourceGuest::Completed),
        (RunState::PostMigrate, _) => Some(SourceGuest::Stopped),
        _ if is_under_way => Some(SourceGuest::Migrating),
        _ => Some(without_migration(state)),
    }
}

/// Returns what the run state means for a guest that is in no migration, or whose migration has failed.
pub(super) fn without_migration(state: &RunState) -> SourceGuest {
    match state {
        // A guest that sleeps counts as running: its QEMU wakes it.
        RunState::Running | RunState::Suspended => SourceGuest::Running,
        RunState::FinishMigrate | RunState::PostMigrate => SourceGuest::Stopped,
        _ => SourceGuest::Halted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_migration_stopped_counts_as_stopped() {
        use MigrationStatus as Status;
        let halted =
            [RunState::Paused, RunState::IoError, RunState::GuestPanicked, RunState::Shutdown, RunState::Watchdog];
        for state in halted {
            // Only the person or program that stopped the guest may resume it.
            assert_eq!(guest(&state, Status::Cancelled), Some(SourceGuest::Halted), "{state:?}");
            assert_eq!(guest(&state, Status::None), Some(SourceGuest::Halted), "{state:?}");
            assert_eq!(guest(&state, Status::Active), Some(SourceGuest::Migrating), "{state:?}");
        }
        assert_eq!(guest(&RunState::PostMigrate, Status::Cancelled), Some(SourceGuest::Stopped));
        assert_eq!(guest(&RunState::PostMigrate, Status::Completed), Some(SourceGuest::Completed));
        assert_eq!(guest(&RunState::FinishMigrate, Status::PreSwitchover), Some(SourceGuest::PreSwitchover));
        assert_eq!(guest(&RunState::FinishMigrate, Status::Device), Some(SourceGuest::Device));
        assert_eq!(guest(&RunState::FinishMigrate, Status::Cancelling), None);
        for state in [RunState::Running, RunState::Suspended] {
            assert_eq!(guest(&state, Status::Failed), Some(SourceGuest::Running), "{state:?}");
        }
    }
}
