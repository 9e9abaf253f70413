//! What happened in a migration.

use serde::{Deserialize, Serialize};

use super::copy::CopyProgress;
use super::phase::{FailureReason, MigrationPhase, Outcome, Report, Role};

/// An entry of a migration's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LoggedEvent {
    /// When: RFC 3339, milliseconds, UTC.
    pub time: String,
    /// The event itself.
    #[serde(flatten)]
    pub event: LogEntry,
}

/// How a [`LogEntry::Note`] begins that tells of a guest which the kernel killed meanwhile, whichever that is.
pub const KERNEL_KILLED: &str = "the kernel killed guest ";

/// What is kept in a migration's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "entry")]
pub enum LogEntry {
    /// It was asked for.
    Begun {
        /// The VM.
        vm: String,
        /// As what this host takes part.
        role: Role,
        /// Source host.
        source: String,
        /// Target host.
        target: String,
    },
    /// The protocol went on.
    Handover {
        /// What happened.
        event: MigrationEvent,
    },
    /// Something else worth telling, in words: a decision, a QEMU's error, a path lost.
    Note {
        /// The words.
        text: String,
    },
    /// The figures of the copy, now and then and at its end.
    Copied {
        /// The figures.
        copy: CopyProgress,
    },
    /// The guest was stopped for so long.
    Downtime {
        /// Milliseconds, from QEMU's STOP until the target said that it runs.
        ms: u64,
    },
}

/// Something worth telling of a migration, for its event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
