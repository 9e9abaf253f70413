//! The words that the two halves share: what the source wants, where the target stands, why a migration ended, what is
//! waited for.

use serde::{Deserialize, Serialize};

/// What the source wants of the target. Repeated until it is answered; the answer is a [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Intent {
    /// Start a QEMU that waits for the guest.
    Prepare,
    /// It is called off: kill that QEMU, and never run it.
    Abort,
    /// The guest is yours.
    Grant,
    /// I know how it ended, and shall not ask again.
    Settle,
}

/// Where the target stands, as it tells the source. Later ones are greater: an older one that arrives late is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

/// Why a migration did not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// A wait of a machine; the edge knows how long each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Wait {
    /// Until the target's QEMU waits for the guest.
    Prepare,
    /// Until the guest is about to be stopped.
    Precopy,
    /// While the guest is stopped, until the target has it all.
    Switchover,
    /// Until the target confirms that it is called off; the guest is stopped meanwhile.
    Abort,
    /// Until a decision that nobody confirms is worth an alarm.
    Doubt,
    /// Until a target calls it off that nobody talks to any more, or whose QEMU does not answer an agent that was
    /// started again.
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
