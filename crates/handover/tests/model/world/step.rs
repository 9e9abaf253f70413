//! What may happen next.

use skein_handover::{Intent, Report, SourceOrder, SourceRecord, TargetGuest, TargetOrder, TargetRecord, Wait};

/// One end of the migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Source,
    Target,
}

/// What happens to a record that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    Done,
    FailedButThere,
    Failed,
}

/// A step that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The intent reaches the target.
    Intent(Intent),
    /// The report reaches the source.
    Report(Report),
    Contact(End, bool),
    /// An agent asks its QEMU for its state.
    SourceGuest,
    TargetGuest(TargetGuest),
    MigrationFailed,
    /// The source's agent has seen that the copy has converged.
    Converged,
    /// A person says that the guest may switch, or the window of the hold opens.
    Switch,
    /// The window of the hold is over.
    HoldOver,
    Elapsed(End, Wait),
    Cancel(End),
    /// A proof is given to this end.
    Proof(End),
    SourceWrites(SourceRecord),
    SourceWritten(SourceRecord, Write),
    TargetWrites(TargetRecord),
    TargetWritten(TargetRecord, Write),
    /// An order is given. Until it is carried out, the agent learns nothing about QEMU that speaks against the order.
    SourceOrders(SourceOrder),
    TargetOrders(TargetOrder),
    /// The order is carried out.
    SourceOrder(SourceOrder),
    /// `migrate_cancel`, after which the guest stays stopped.
    CancelStops,
    TargetOrder(TargetOrder),
    /// QEMU refuses `cont`.
    CannotRun,
    /// A person stops the guest, or the guest stops by itself.
    Halts,
    /// The source's agent has seen that the guest changed.
    GuestChanged,
    /// QEMU goes on with the migration: to pre-switchover, or to completed.
    MigrationGoesOn,
    MigrationFails,
    /// The last byte arrives at the target.
    Loaded,
    /// A write that a NIC began some time ago arrives.
    LateWrite,
    /// Processes of rails end, whose agent is gone.
    RailsEnd,
    IncomingFails,
    QemuEnds(End),
    /// The guest that was kept is migrated again, and the whole of it is copied.
    NextMigration,
    Crash(End),
    /// A crash when the first of the records of a refusal is on disk. (If the migration is refused before it began, the
    /// beginning is the first record.)
    CrashWhileRefusing,
    /// A crash right after the record reached the disk.
    CrashAfterWriting(End),
    Restart(End),
    HostOff(End),
    HostOn(End),
    /// The planted error happens.
    Err,
}
