//! Who may run the guest: the two state machines of a migration, and what they store on disk.
//!
//! ```text
//! source                                            target
//! Begin ─ written ──▶ Prepare ── intent Prepare ──▶ Begin ─ written ─▶ Prepare ─ QEMU waits ─▶ Ready
//!         Precopy  ◀── report Ready ───────────────                                             │
//!         (Held    the copy goes on, until somebody says that the guest may switch: Precopy)    │
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
//! If neither `Grant` nor `Refused` can reach the other end, somebody has to prove that the other host is off
//! ([`SourceInput::Proof`], [`TargetInput::Proof`]); until then the guest stays paused, *in doubt*.
//!
//! **The machines** take what happened (`handle`) and say what they want (`wants`): a record on disk, an order to QEMU,
//! an intent or a report for the other end, a time to wait. A want stands until something happens that changes it. So
//! it does no harm to carry out a want twice, late, or again after a crash, and messages may be lost, repeated and
//! reordered. `tests/model.rs` checks the machines exhaustively, `sim` in whole clusters. [`Manager`] runs all machines
//! of an agent, queues what is too much at once, and turns wants into actions.
//!
//! Not here: time, disks, sockets, QMP, and why a migration is worth it.
//!
//! # Invariants
//!
//! - **Wants are levels, not edges.** Orders, intents and reports are repeated until something changes them; carrying
//!   one out twice does no harm. So a crash needs no special case: the machines are built again from the journal and
//!   from what QEMU answers. Tests: the model (`tests/model`), `every_guest_runs_once_whatever_happens`.
//! - **A migration undoes only its own stops.** The source resumes a guest that a migration stopped, never a guest that
//!   stands still for another reason. Tests: `a_guest_that_somebody_stopped_stays_stopped`,
//!   `only_what_a_migration_stopped_counts_as_stopped`.

#![forbid(unsafe_code)]

mod event;
mod manager;
mod message;
mod record;
mod source;
mod target;
mod words;

pub use event::{MigrationEvent, MigrationPhase, MigrationSummary};
pub use manager::{
    Action, HoldLimits, Input, Manager, MigrationLimits, NewMigration, Order, RefusedStart, RefusedSwitch, WaitTimes,
    WriteResult,
};
pub use message::Message;
pub use record::{JournalledMigration, LastRecord, MigrationId, Record, Role, last_records, needed};
pub use source::{
    Outcome, SourceGuest, SourceHandover, SourceInput, SourceOrder, SourcePhase, SourceRecord, SourceWants,
};
pub use target::{TargetGuest, TargetHandover, TargetInput, TargetOrder, TargetPhase, TargetRecord, TargetWants};
pub use words::{FailureReason, Intent, Report, Wait};
