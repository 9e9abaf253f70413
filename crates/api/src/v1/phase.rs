//! Tells the phase of a migration, its outcome, and the reason.

use serde::{Deserialize, Serialize};

/// An end of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MigrationRole))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The guest was at this host.
    Source,
    /// The guest is to come to this host.
    Target,
}

/// The phase of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SourcePhase {
    /// The beginning of the migration is being written to disk.
    Begin,
    /// The target's QEMU is started.
    Prepare,
    /// Pages are copied while the guest runs.
    Precopy,
    /// The guest is held: it would switch within its downtime limit, and is kept fresh until somebody says so.
    Held,
    /// The guest is stopped; the rest of it is copied.
    Switchover,
    /// The guest is the target's, once that is on disk. **From here on the source never resumes the guest by itself.**
    Grant,
    /// The target has the guest: this end's QEMU ends.
    Release,
    /// The migration is called off: the guest goes on here.
    Keep,
    /// Nothing is left to do.
    Done,
}

/// The phase of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TargetPhase {
    /// The beginning of the migration is being written to disk.
    Begin,
    /// The QEMU that is to take the guest starts.
    Prepare,
    /// The QEMU waits for the guest, or receives it.
    Ready,
    /// The QEMU has all of the guest, paused. The source decides whether the guest may run.
    Completed,
    /// The guest is this end's, and runs once that is on disk. **From here on the target alone decides.**
    Run,
    /// The guest runs, or ran and ended.
    Running,
    /// The migration is called off: the QEMU ends, and never ran the guest.
    Refuse,
    /// Nothing is left to do.
    Done,
}

/// The phase of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// The migration waits for a place here.
    Queued,
    /// The phase of a source.
    Source(SourcePhase),
    /// The phase of a target.
    Target(TargetPhase),
}

impl MigrationPhase {
    /// Returns the phase in a word, and as people read it while the phase lasts.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            MigrationPhase::Queued => ("queued", "waiting for a place"),
            MigrationPhase::Source(SourcePhase::Begin) => ("begin", "beginning"),
            MigrationPhase::Source(SourcePhase::Prepare) => ("prepare", "preparing the target"),
            MigrationPhase::Source(SourcePhase::Precopy) => ("precopy", "copying while it runs"),
            MigrationPhase::Source(SourcePhase::Held) => ("held", "held, kept fresh until it is to switch"),
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

/// Where the target stands, as it tells the source. Later reports are greater: an older report that arrives late is
/// ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Report {
    /// The target has no free place yet.
    Queued,
    /// The target's QEMU starts.
    Preparing,
    /// The target's QEMU waits for the guest, or receives it.
    Ready,
    /// The target's QEMU has all of the guest, paused.
    Completed,
    /// The target has decided to run the guest.
    Run,
    /// The target will not run the guest, and is killing its QEMU.
    Refusing,
    /// The guest runs at the target, or ran and ended.
    Running,
    /// The guest never ran at the target and never will; its QEMU is gone.
    Refused,
    /// The target has forgotten the migration.
    Settled,
}

/// The outcome of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Returns the outcome in words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Outcome::Moved => "the guest runs on the target",
            Outcome::CalledOff => "the guest stays at the source",
            Outcome::Ended => "the guest ended with its QEMU",
        }
    }
}

/// The reason why a migration did not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FailureReason {
    /// A person called the migration off.
    Cancelled,
    /// A phase took longer than it may.
    Deadline,
    /// The other host cannot be reached.
    ContactLost,
    /// The source's QEMU reports that the migration failed.
    MigrationFailed,
    /// While the guest was copied, it was stopped, or became another than the target's QEMU was started for.
    GuestChanged,
    /// The target called the migration off; its agent says why.
    TargetRefused,
    /// This end's QEMU ended.
    QemuEnded,
    /// This end's QEMU will not run the guest.
    CannotRun,
    /// The journal cannot be written.
    Journal,
    /// This end's agent was started again in the middle of the migration.
    AgentRestarted,
    /// The other host is off, by a person's word.
    Proof,
    /// The source called the migration off.
    Aborted,
    /// One of the two agents cannot read what the other says.
    NotUnderstood,
    /// The hypervisor stopped the guest for its switchover, though the migration is held.
    NotHeld,
    /// The migration was held for as long as it may be, and nothing had the guest switch.
    HoldOver,
    /// A reason that only a newer version knows. The words that come with it say the reason.
    #[serde(other)]
    Other,
}

impl FailureReason {
    /// Returns the reason in words, for people.
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
            FailureReason::NotHeld => "it could not be held: the guest would have moved before anybody said so",
            FailureReason::HoldOver => "it was held as long as it may be, and did not switch",
            FailureReason::Other => "for a reason that this version of skein does not know",
        }
    }
}
