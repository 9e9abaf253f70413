//! Who may run the guest: the two state machines of a migration, and what they keep.
//!
//! ```text
//! source                                            target
//! Begin ─ written ──▶ Prepare ── intent Prepare ──▶ Begin ─ written ─▶ Prepare ─ QEMU waits ─▶ Ready
//!         Precopy  ◀── report Ready ───────────────                                             │
//!         Switchover   (the guest is stopped)                                             QEMU has it all
//!         Grant    ◀── report Completed ───────────                                             ▼
//!         written  ── intent Grant ───────────────▶ Run ─ written, cont ──▶ Running ◀────── Completed
//!         Release  ◀── report Running ─────────────
//!         QEMU ended ─ intent Settle ─────────────▶ Done
//!
//! Before Grant, everything that fails leads to Keep:  ── intent Abort ──▶ Refuse ─ QEMU killed, written
//!         the guest goes on at the source          ◀── report Refused ──
//! ```
//!
//! **The promise**: the guest never runs at both ends. The target runs it only once `Run` is on its disk, and writes
//! that only on the source's `Grant`, which is sent only once it is on the source's disk. From then on the source
//! resumes only on the target's `Refused`, which the target has on disk and after which it never runs the guest.
//! Where neither can be had, somebody has to prove that the other host is off ([`SourceInput::Proof`],
//! [`TargetInput::Proof`]); until then the guest stays paused, *in doubt*.
//!
//! **The machines** take what happened (`handle`) and say what they want (`wants`): a record on disk, an order
//! to QEMU, an intent or a report for the other end, a time to wait. Wants stand until something happens that changes
//! them, so doing them twice, late or again after a crash does no harm, and messages may be lost, repeated and
//! reordered. They are checked exhaustively by `tests/model.rs`, in whole clusters by `sim`. [`Manager`] runs all
//! machines of an agent, queues what is too much at once, and turns wants into actions.
//!
//! Not here: time, disks, sockets, QMP, and why a migration is worth it.
//!
//! # Invariants
//!
//! - **Wants are levels, not edges.** Orders, intents and reports are repeated until something changes them; doing one
//!   twice does no harm. So a crash needs no special case: the machines are made anew from the journal and from what
//!   QEMU answers. Tests: the model (`tests/model`), `every_guest_runs_once_whatever_happens`.
//! - **What stopped a guest is not a migration's to undo.** The source resumes what a migration stopped, never a guest
//!   that stands still for another reason. Tests: `a_guest_that_somebody_stopped_stays_stopped`,
//!   `only_what_a_migration_stopped_counts_as_stopped`.

#![forbid(unsafe_code)]

mod manager;
mod record;
mod source;
mod target;

use serde::{Deserialize, Serialize};

pub use manager::{
    Action, Input, Manager, Message, MigrationEvent, MigrationLimits, MigrationPhase, MigrationSummary, NewMigration,
    Order, RefusedStart, WaitTimes,
};
pub use record::{JournalledMigration, LastRecord, MigrationId, Record, Role, last_records, needed};
pub use source::{
    Outcome, SourceGuest, SourceHandover, SourceInput, SourceOrder, SourcePhase, SourceRecord, SourceWants,
};
pub use target::{TargetGuest, TargetHandover, TargetInput, TargetOrder, TargetPhase, TargetRecord, TargetWants};

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
