//! Where a migration stands, how it ended, and why.

use serde::{Deserialize, Serialize};

/// Which end of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The guest was here.
    Source,
    /// The guest is to come here.
    Target,
}

/// Where the source stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SourcePhase {
    /// The migration is being written down.
    Begin,
    /// The target's QEMU is started.
    Prepare,
    /// Pages are copied while the guest runs.
    Precopy,
    /// The guest is stopped; the rest is copied.
    Switchover,
    /// The guest is the target's, once that is on disk. **From here on the source never resumes by itself.**
    Grant,
    /// The target has it: this end's QEMU ends.
    Release,
    /// Called off: the guest goes on here.
    Keep,
    /// Nothing is left to do.
    Done,
}

/// Where the target stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TargetPhase {
    /// The migration is being written down.
    Begin,
    /// The QEMU that is to take the guest starts.
    Prepare,
    /// It waits for the guest, or receives it.
    Ready,
    /// It has all of the guest, paused. Whether it may run is the source's to say.
    Completed,
    /// The guest is this end's: it runs once that is on disk. **From here on the target alone decides.**
    Run,
    /// It runs, or ran and ended.
    Running,
    /// Called off: the QEMU ends, and never ran the guest.
    Refuse,
    /// Nothing is left to do.
    Done,
}

/// The phase of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// It waits for a place here.
    Queued,
    /// Of a source.
    Source(SourcePhase),
    /// Of a target.
    Target(TargetPhase),
}

impl MigrationPhase {
    /// In a word, and as it is told to people while it lasts.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            MigrationPhase::Queued => ("queued", "waiting for a place"),
            MigrationPhase::Source(SourcePhase::Begin) => ("begin", "beginning"),
            MigrationPhase::Source(SourcePhase::Prepare) => ("prepare", "preparing the target"),
            MigrationPhase::Source(SourcePhase::Precopy) => ("precopy", "copying while it runs"),
            MigrationPhase::Source(SourcePhase::Switchover) => ("switchover", "stopped, copying the rest"),
            MigrationPhase::Source(SourcePhase::Grant) => ("grant", "handing over"),
            MigrationPhase::Source(SourcePhase::Release) => ("release", "runs on the target, clearing up"),
            MigrationPhase::Source(SourcePhase::Keep) => ("keep", "called off, clearing up"),
            MigrationPhase::Source(SourcePhase::Done) => ("done", "done"),
            MigrationPhase::Target(TargetPhase::Begin) => ("begin", "beginning"),
            MigrationPhase::Target(TargetPhase::Prepare) => ("prepare", "starting QEMU here"),
            MigrationPhase::Target(TargetPhase::Ready) => ("ready", "receiving"),
            MigrationPhase::Target(TargetPhase::Completed) => ("completed", "received, waiting for the word to run"),
            MigrationPhase::Target(TargetPhase::Run) => ("run", "taking over"),
            MigrationPhase::Target(TargetPhase::Running) => ("running", "runs here"),
            MigrationPhase::Target(TargetPhase::Refuse) => ("refuse", "called off, clearing up"),
            MigrationPhase::Target(TargetPhase::Done) => ("done", "done"),
        }
    }
}

/// Where the target stands, as it tells the source. Later ones are greater: an older one that arrives late is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Report {
    /// It has no free place yet.
    Queued,
    /// Its QEMU starts.
    Preparing,
    /// Its QEMU waits for the guest, or receives it.
    Ready,
    /// Its QEMU has all of the guest, paused.
    Completed,
    /// It has decided to run the guest.
    Run,
    /// It will not run the guest, and is killing its QEMU.
    Refusing,
    /// The guest runs there, or ran and ended.
    Running,
    /// The guest never ran there and never will; its QEMU is gone.
    Refused,
    /// It has forgotten the migration.
    Settled,
}

/// How a migration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The guest runs on the target.
    Moved,
    /// The guest runs on the source.
    #[serde(rename = "kept")]
    CalledOff,
    /// The guest ended with the QEMU that ran it.
    Ended,
}

impl Outcome {
    /// In words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Outcome::Moved => "the guest runs on the target",
            Outcome::CalledOff => "the guest stays at the source",
            Outcome::Ended => "the guest ended with its QEMU",
        }
    }
}

/// Why a migration did not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FailureReason {
    /// Somebody called it off.
    Cancelled,
    /// A phase took longer than it may.
    Deadline,
    /// The other host cannot be reached.
    ContactLost,
    /// The source's QEMU says that the migration failed.
    MigrationFailed,
    /// The guest was stopped, or became another than the target's QEMU was started for, while it was copied.
    GuestChanged,
    /// The target called it off; its agent says why.
    TargetRefused,
    /// This end's QEMU ended.
    QemuEnded,
    /// This end's QEMU will not run the guest.
    CannotRun,
    /// The journal cannot be written.
    Journal,
    /// This end's agent was started again in the middle of it.
    AgentRestarted,
    /// The other host is off, by somebody's word.
    Proof,
    /// The source called it off.
    Aborted,
    /// One of the two agents cannot read what the other one says.
    NotUnderstood,
    /// A reason that only a newer version knows; the words that come with it say it.
    #[serde(other)]
    Other,
}

impl FailureReason {
    /// In words, for people.
    pub fn words(self) -> &'static str {
        match self {
            FailureReason::Cancelled => "somebody called it off",
            FailureReason::Deadline => "its deadline ran out, or a step took longer than it may",
            FailureReason::ContactLost => "the other host could not be reached",
            FailureReason::MigrationFailed => "it could not be copied",
            FailureReason::GuestChanged => "the guest changed while it was copied",
            FailureReason::TargetRefused => "the target called it off",
            FailureReason::QemuEnded => "QEMU ended",
            FailureReason::CannotRun => "QEMU would not run the guest",
            FailureReason::Journal => "the journal cannot be written",
            FailureReason::AgentRestarted => "the agent was started again in the middle of it",
            FailureReason::Proof => "the other host is off, by somebody's word",
            FailureReason::Aborted => "the source called it off",
            FailureReason::NotUnderstood => "the two agents do not understand each other",
            FailureReason::Other => "for a reason that this version of skein does not know",
        }
    }
}
