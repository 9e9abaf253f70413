//! What goes into the manager and what comes out of it.

use std::time::Duration;

use crate::event::MigrationEvent;
use crate::message::Message;
use crate::record::{LastRecord, MigrationId, Record, Role};
use crate::source::{SourceInput, SourceOrder, SourceRecord};
use crate::target::{TargetInput, TargetOrder, TargetRecord};

/// A migration that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMigration<O> {
    /// Its name, new.
    pub id: MigrationId,
    /// The VM, which runs here.
    pub vm: String,
    /// The host to move it to.
    pub peer: String,
    /// Greater goes first.
    pub priority: u8,
    /// See [`Message::Intent`].
    pub offer: O,
    /// How long it may take until the guest is stopped, if not as long as others.
    pub deadline: Option<Duration>,
}

/// A migration that was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedStart {
    /// This one moves the VM already.
    UnderWay(MigrationId),
    /// There are too many.
    TooMany,
}

/// An order to the QEMU of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Order {
    Source(SourceOrder),
    Target(TargetOrder),
}

/// What happens to an agent's migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<O> {
    /// A host says something.
    Message(String, Message<O>),
    /// A host can be reached, or not any more. Each new connection is told, as whatever was said before may be lost.
    Contact(String, bool),
    /// To one source's machine.
    Source(MigrationId, SourceInput),
    /// To one target's machine.
    Target(MigrationId, TargetInput),
    /// Why what will be reported next happened, in words.
    Detail(MigrationId, String),
    /// What a QEMU said as it failed or ended: told where nobody gives a better reason.
    LastWords(MigrationId, String),
    /// A host's agent and this one cannot read each other's messages; in words.
    NotUnderstood(String, String),
    /// A source wants a migration whose offer this end cannot read.
    UnreadableOffer {
        /// The source's host.
        peer: String,
        /// Of which migration.
        id: MigrationId,
        /// The VM.
        vm: String,
        /// Why not, in words.
        reason: String,
    },
}

/// What became of [`Action::Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The records are on disk.
    OnDisk,
    /// They may or may not be on disk.
    Unknown,
}

impl<O> Input<O> {
    /// Tells what became of [`Action::Write`]. None: there were no records.
    pub fn written(records: &[Record], result: WriteResult) -> Option<Input<O>> {
        let (id, last) = match records.last()? {
            Record::Begin { id, role: Role::Source, .. } => (*id, LastRecord::Source(SourceRecord::Begin)),
            Record::Begin { id, role: Role::Target, .. } => (*id, LastRecord::Target(TargetRecord::Begin)),
            Record::Source(id, record) => (*id, LastRecord::Source(*record)),
            Record::Target(id, record) => (*id, LastRecord::Target(*record)),
        };
        Some(match (last, result) {
            (LastRecord::Source(record), WriteResult::OnDisk) => Input::Source(id, SourceInput::Written(record)),
            (LastRecord::Source(record), WriteResult::Unknown) => Input::Source(id, SourceInput::WriteFailed(record)),
            (LastRecord::Target(record), WriteResult::OnDisk) => Input::Target(id, TargetInput::Written(record)),
            (LastRecord::Target(record), WriteResult::Unknown) => Input::Target(id, TargetInput::WriteFailed(record)),
        })
    }
}

/// What an agent is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<O> {
    /// Put this into the journal, in this order, and say [`Input::written`].
    Write(Vec<Record>),
    /// Tell a host. If it cannot be told, nothing is lost.
    Send(String, Message<O>),
    /// Have the migration's QEMU do this, and tell how it is after that, whatever came of it. An order that is under
    /// way already is not begun again; others of the same migration come after it.
    Order(MigrationId, Order),
    /// Reach a host and say when that is done; or do not mind it any more.
    Reach(String, bool),
    /// Something worth telling.
    Event(MigrationId, MigrationEvent),
    /// The machine is gone: what the edge holds for it may go.
    Forget(MigrationId),
}
