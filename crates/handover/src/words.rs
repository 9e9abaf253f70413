//! The words that both halves use: what the source wants, where the target stands, why a migration ended, what a
//! machine waits for.

use serde::{Deserialize, Serialize};

/// What the source wants of the target. An intent is repeated until it is answered by a [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Intent {
    /// Start a QEMU that waits for the guest.
    Prepare,
    /// The migration is called off: kill that QEMU, and never run the guest in it.
    Abort,
    /// The guest is yours: run it.
    Grant,
    /// I know how the migration ended, and shall not ask again.
    Settle,
}

/// Where the target stands, as it tells the source. Later reports are greater: an older report that arrives late is
/// ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Report {
    /// The target has no free slot yet.
    Queued,
    /// The target's QEMU starts.
    Preparing,
    /// The target's QEMU waits for the guest, or receives it.
    Ready,
    /// The target's QEMU has the whole guest, paused.
    Completed,
    /// The target has decided to run the guest.
    Run,
    /// The target will not run the guest, and is killing its QEMU.
    Refusing,
    /// The guest runs at the target, or ran there and ended.
    Running,
    /// The guest never ran at the target and never will; the target's QEMU is gone.
    Refused,
    /// The target has forgotten the migration.
    Settled,
}

/// Why a migration was called off or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureReason {
    /// A person called it off.
    Cancelled,
    /// A phase took longer than it may.
    Deadline,
    /// The other host cannot be reached.
    ContactLost,
    /// The source's QEMU reports that the migration failed.
    MigrationFailed,
    /// While it was copied, the guest was stopped, or changed so that the target's QEMU no longer fits.
    GuestChanged,
    /// The target called it off; its agent says why.
    TargetRefused,
    /// This end's QEMU ended.
    QemuEnded,
    /// This end's QEMU will not run the guest.
    CannotRun,
    /// The journal cannot be written.
    Journal,
    /// This end's agent was started again during the migration.
    AgentRestarted,
    /// A person vouches that the other host is off.
    Proof,
    /// The source called it off.
    Aborted,
    /// One of the two agents cannot read the other's messages.
    NotUnderstood,
    /// The hypervisor stopped the guest for its switchover, though the migration is held.
    NotHeld,
    /// The migration was held for as long as it may be, and nothing had the guest switch.
    HoldOver,
    /// A reason that only a newer version knows. The words that come with it explain it.
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

/// A wait of a machine. The edge knows how long each wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Wait {
    /// Until the target's QEMU waits for the guest.
    Prepare,
    /// Until the guest is about to be stopped.
    Precopy,
    /// Until somebody says that a held guest may switch.
    Hold,
    /// Until the target has the whole guest; the guest is stopped meanwhile.
    Switchover,
    /// Until the target confirms that the migration is called off; the guest is stopped meanwhile.
    Abort,
    /// Until a decision that is not confirmed is worth an alarm.
    Doubt,
    /// Until a target calls off a migration that nobody talks to it about any more, or whose QEMU does not answer an
    /// agent that was started again.
    Abandoned,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_a_newer_version_is_some_reason() {
        let read = |text: &str| serde_json::from_str::<FailureReason>(text).unwrap();
        assert_eq!(read("\"not-understood\""), FailureReason::NotUnderstood);
        assert_eq!(read("\"moon-in-the-way\""), FailureReason::Other);
    }
}
