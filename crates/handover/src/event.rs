//! What is reported about a migration: its events, its phase, its summary.

use serde::{Deserialize, Serialize};

use crate::record::{MigrationId, Role};
use crate::source::{Outcome, SourcePhase};
use crate::target::TargetPhase;
use crate::words::{FailureReason, Report};

/// An event of a migration, for its event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum MigrationEvent {
    /// The migration waits for a free slot.
    Queued,
    /// The migration entered another phase.
    Phase {
        /// The new phase.
        stage: MigrationPhase,
    },
    /// The other end reported where it stands.
    Reported {
        /// Where the other end stands.
        report: Report,
        /// Why the other end called the migration off, in words. Empty: it did not.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// This end calls the migration off.
    CalledOff {
        /// The kind of reason.
        why: FailureReason,
        /// The reason in words. Empty: there is nothing to add to the kind.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// The guest is paused, and this end can do nothing about it.
    InDoubt,
    /// The migration was resumed after the agent was started again.
    Recovered,
    /// The journal could not be written.
    WriteFailed,
    /// The migration ended.
    Over {
        /// How it ended.
        outcome: Outcome,
    },
}

/// The phase of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// Waits for a free slot here.
    Queued,
    /// The phase of a source.
    Source(SourcePhase),
    /// The phase of a target.
    Target(TargetPhase),
}

/// A migration's state at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationSummary {
    /// The migration's id.
    pub id: MigrationId,
    /// Whether this host is the source or the target.
    pub role: Role,
    /// The VM.
    pub vm: String,
    /// The other host.
    pub peer: String,
    /// The migration's phase.
    pub stage: MigrationPhase,
    /// Priority: greater goes first.
    pub priority: u8,
    /// Whether the migration was begun as a hold.
    pub is_hold: bool,
    /// Whether nobody has said yet that the guest may switch.
    pub is_to_be_held: bool,
    /// Why the migration was called off. `None`: it was not.
    pub why: Option<FailureReason>,
    /// The same reason in words.
    pub detail: String,
    /// The guest is paused, and this end can do nothing about it.
    pub in_doubt: bool,
    /// How the migration ended, as soon as that is certain.
    pub outcome: Option<Outcome>,
}
