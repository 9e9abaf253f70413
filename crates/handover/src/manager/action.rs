//! The inputs and the actions of the manager.

use std::time::Duration;

use crate::event::MigrationEvent;
use crate::message::Message;
use crate::record::{LastRecord, MigrationId, Record, Role};
use crate::source::{SourceInput, SourceOrder, SourceRecord};
use crate::target::{TargetInput, TargetOrder, TargetRecord};

/// A migration that is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMigration<O> {
    /// The migration's id, never used before.
    pub id: MigrationId,
    /// The VM, which runs here.
    pub vm: String,
    /// The host to move it to.
    pub peer: String,
    /// Priority: greater goes first.
    pub priority: u8,
    /// The offer to the target: see [`Message::Intent`].
    pub offer: O,
    /// How long the migration may take until the guest is stopped. `None`: the default,
    /// [`WaitTimes::precopy`](crate::WaitTimes::precopy).
    pub deadline: Option<Duration>,
    /// The hold. `None`: the guest switches as soon as it may.
    pub hold: Option<HoldLimits>,
}

/// How long a migration is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldLimits {
    /// How long the guest may be held. After that the migration is called off. `None`: the default,
    /// [`WaitTimes::hold`](crate::WaitTimes::hold).
    pub longest: Option<Duration>,
}

/// Why a migration does not switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedSwitch {
    /// There is no such migration.
    Unknown,
    /// The guest comes to this host: its source decides.
    IsTarget,
    /// The migration was never held.
    IsNotHeld,
    /// The migration is called off, or over.
    IsOver,
}

/// Why a migration was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedStart {
    /// This migration moves the VM already.
    UnderWay(MigrationId),
    /// There are too many migrations.
    TooMany,
}

/// An order to the QEMU of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Order {
    Source(SourceOrder),
    Target(TargetOrder),
}

/// Something that happened to an agent's migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<O> {
    /// A host sent a message.
    Message(String, Message<O>),
    /// A host can be reached (true), or not any more (false). Every new connection is reported, since whatever was sent
    /// before may be lost.
    Contact(String, bool),
    /// An input to a source's machine.
    Source(MigrationId, SourceInput),
    /// An input to a target's machine.
    Target(MigrationId, TargetInput),
    /// Why the event happened that is reported next, in words.
    Detail(MigrationId, String),
    /// What a QEMU said as it failed or ended. It is reported if there is no better reason.
    LastWords(MigrationId, String),
    /// A host's agent and this agent cannot read each other's messages; the second text says why.
    NotUnderstood(String, String),
    /// A source wants a migration whose offer this end cannot read.
    UnreadableOffer {
        /// The source's host.
        peer: String,
        /// The migration's id.
        id: MigrationId,
        /// The VM.
        vm: String,
        /// Why the offer cannot be read, in words.
        reason: String,
    },
}

/// The result of an [`Action::Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The records are on disk.
    OnDisk,
    /// The records may or may not be on disk.
    Unknown,
}

impl<O> Input<O> {
    /// Returns the input that reports the result of an [`Action::Write`]. `None`: there were no records.
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

/// What an agent has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<O> {
    /// Write these records into the journal, in this order, and report [`Input::written`].
    Write(Vec<Record>),
    /// Send a message to a host. If the host cannot be reached, nothing is lost.
    Send(String, Message<O>),
    /// Have the migration's QEMU do this, and report the QEMU's state afterwards, whatever came of it. An order that is
    /// under way is not begun again; other orders of the same migration come after it.
    Order(MigrationId, Order),
    /// Connect to a host and report that (true), or stop trying (false).
    Reach(String, bool),
    /// Report an event.
    Event(MigrationId, MigrationEvent),
    /// The migration's machine is gone: drop what the edge holds for the migration.
    Forget(MigrationId),
}
