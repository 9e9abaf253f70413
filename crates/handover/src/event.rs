//! What is told of a migration: its events, its phase, how it stands.

use serde::{Deserialize, Serialize};

use crate::record::{MigrationId, Role};
use crate::source::{Outcome, SourcePhase};
use crate::target::TargetPhase;
use crate::words::{FailureReason, Report};

/// Something worth telling of a migration, for its event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum MigrationEvent {
    /// It waits for a place.
    Queued,
    /// It is in another phase.
    Phase {
        /// The phase in which it is.
        stage: MigrationPhase,
    },
    /// The other end said where it stands.
    Reported {
        /// Where the other end stands.
        report: Report,
        /// And why, if it was called off.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// It is called off.
    CalledOff {
        /// The reason, by its kind.
        why: FailureReason,
        /// In words.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// The guest is paused, and this end can do nothing about it.
    InDoubt,
    /// It was taken up after the agent was started again.
    Recovered,
    /// The journal could not be written.
    WriteFailed,
    /// How it ended.
    Over {
        /// How it ended.
        outcome: Outcome,
    },
}

/// The phase of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// It waits for a place here.
    Queued,
    /// Of a source.
    Source(SourcePhase),
    /// Of a target.
    Target(TargetPhase),
}

/// A migration at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationSummary {
    /// The migration's number.
    pub id: MigrationId,
    /// As what this host takes part.
    pub role: Role,
    /// The VM.
    pub vm: String,
    /// The other host.
    pub peer: String,
    /// Its phase.
    pub stage: MigrationPhase,
    /// Greater goes first.
    pub priority: u8,
    /// Why it was called off, if it was.
    pub why: Option<FailureReason>,
    /// The same in words.
    pub detail: String,
    /// The guest is paused, and this end can do nothing about it.
    pub in_doubt: bool,
    /// How it ended, from the moment that this is certain.
    pub outcome: Option<Outcome>,
}
