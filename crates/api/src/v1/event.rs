//! Tells what happened in a migration.

use serde::{Deserialize, Serialize};

use super::copy::CopyProgress;
use super::phase::{FailureReason, MigrationPhase, Outcome, Report, Role};

/// An entry of a migration's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoggedEvent {
    /// The time: RFC 3339, milliseconds, UTC.
    pub time: String,
    /// The event itself.
    #[serde(flatten)]
    pub event: LogEntry,
}

/// Holds how a [`LogEntry::Note`] begins that says that the kernel killed some guest meanwhile.
pub const KERNEL_KILLED: &str = "the kernel killed guest ";

/// Holds how the [`LogEntry::Note`] begins that says what each path carried, at the end of a copy.
pub const PATHS_CARRIED: &str = "paths carried: ";

/// An entry of a migration's log, by kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", tag = "entry")]
pub enum LogEntry {
    /// The migration was asked for.
    Begun {
        /// The VM.
        vm: String,
        /// The end of the migration that this host is.
        role: Role,
        /// The source host.
        source: String,
        /// The target host.
        target: String,
    },
    /// The handover made a step.
    Handover {
        /// The step.
        event: MigrationEvent,
    },
    /// Another fact for people, in words: a decision, a QEMU's error, a path lost.
    Note {
        /// The words.
        text: String,
    },
    /// The figures of the copy, now and then and at its end.
    Copied {
        /// The figures.
        copy: Box<CopyProgress>,
    },
    /// How long the guest was stopped.
    Downtime {
        /// The milliseconds from QEMU's STOP until the target said that the guest runs.
        ms: u64,
    },
}

/// An event of the handover, for a migration's event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum MigrationEvent {
    /// The migration waits for a place.
    Queued,
    /// The migration is in another phase.
    Phase {
        /// The new phase.
        stage: MigrationPhase,
    },
    /// The other end reported where it stands.
    Reported {
        /// Where the other end stands.
        report: Report,
        /// The reason, if the other end called the migration off.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// The migration is called off.
    CalledOff {
        /// The reason, by its kind.
        why: FailureReason,
        /// The reason, in words.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// The guest is paused, and this end can do nothing about it.
    InDoubt,
    /// The migration was taken up after the agent was started again.
    Recovered,
    /// The journal could not be written.
    WriteFailed,
    /// The migration is over.
    Over {
        /// How it ended.
        outcome: Outcome,
    },
}
