//! What a VM has to do with a migration.

use skein_handover::{MigrationId, MigrationSummary, Outcome};

/// What a VM has to do with a migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Involvement {
    /// The VM has nothing to do with a migration: it is this host's, as any other.
    #[default]
    None,
    /// This migration moves the VM, away or here.
    Moving(MigrationId),
    /// The VM is paused, and this host cannot know whether the other host runs it.
    InDoubt(MigrationId),
    /// The migration's end is certain, and the migration is only tidied up.
    Settling(MigrationId, Outcome),
}

impl Involvement {
    /// Returns what a VM has to do with a migration in this state.
    pub(crate) fn of(summary: &MigrationSummary) -> Involvement {
        match summary.outcome {
            Some(outcome) => Involvement::Settling(summary.id, outcome),
            None if summary.in_doubt => Involvement::InDoubt(summary.id),
            None => Involvement::Moving(summary.id),
        }
    }

    /// Returns the migration.
    pub(crate) fn migration(self) -> Option<MigrationId> {
        match self {
            Involvement::None => None,
            Involvement::Moving(id) | Involvement::InDoubt(id) | Involvement::Settling(id, _) => Some(id),
        }
    }

    /// Returns the migration if its end is still open.
    pub(crate) fn moved_by(self) -> Option<MigrationId> {
        match self {
            Involvement::Moving(id) | Involvement::InDoubt(id) => Some(id),
            Involvement::None | Involvement::Settling(..) => None,
        }
    }
}
