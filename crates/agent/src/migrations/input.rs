//! Holds the inputs of the migrations' owner and of its workers.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use skein_handover::{MigrationId, Order, RefusedSwitch};
use skein_hypervisor::GuestEvent;
use skein_inventory::facts::MigrationSlots;

use super::hold_terms::{HoldTerms, RefusedTerms};
use super::offer::Offer;
use crate::peers::PeerEvent;
use crate::vms::Killed;

/// An action for this agent's migrations.
pub(super) type Action = skein_handover::Action<Arc<Offer>>;
/// An event of this agent's migrations.
pub(super) type Input = skein_handover::Input<Arc<Offer>>;
/// The manager that decides about the migrations.
pub(super) type Manager = skein_handover::Manager<Arc<Offer>>;
/// A migration that is to begin.
pub(super) type NewMigration = skein_handover::NewMigration<Arc<Offer>>;

/// An input of the owner.
pub(crate) enum OwnerInput {
    Peer(PeerEvent),
    Inputs(Vec<Input>),
    Start(Box<NewMigration>, Option<HoldTerms>, SyncSender<Result<(), StartRefused>>),
    Cancel(MigrationId, SyncSender<bool>),
    /// Has a held guest switch, within this time.
    Switch(MigrationId, Option<Duration>, SyncSender<Result<(), RefusedSwitch>>),
    Capacity(SyncSender<Capacity>),
    /// A guest of this host was killed: its name, and how.
    Killed(String, Killed),
    Stop,
}

/// What this host could still take on.
pub(crate) struct Capacity {
    pub(crate) incoming: MigrationSlots,
    pub(crate) outgoing: MigrationSlots,
    /// The kept RAM of guests that left, in bytes.
    pub(crate) kept_ram_bytes: u64,
    /// Whether the journal takes more migrations. The error is the reason, in words.
    pub(crate) journal: Result<(), String>,
}

/// Asks the owner what this host could still take on.
#[derive(Clone)]
pub(crate) struct Inquiry(pub(super) SyncSender<OwnerInput>);

impl Inquiry {
    /// Returns the owner's answer; `None`: the agent ends.
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        let (reply, answer) = sync_channel(1);
        self.0.send(OwnerInput::Capacity(reply)).ok()?;
        answer.recv().ok()
    }
}

/// The reason why a migration is not begun.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StartRefused {
    #[error("migration {0} moves this VM already: follow it with `skein migration watch {0}`")]
    UnderWay(MigrationId),
    #[error("too many migrations are under way or queued on this host: wait until some are over")]
    TooMany,
    #[error("the journal cannot be written: {0}")]
    Journal(String),
    #[error(transparent)]
    Hold(#[from] RefusedTerms),
    #[error("the agent stops")]
    Stopping,
}

/// An input of a worker.
pub(crate) enum WorkerInput {
    /// Obey this order, and report QEMU's state afterwards.
    Order(Order),
    /// Report QEMU's state.
    Look,
    Guest(GuestEvent),
    /// End: the migration is over and forgotten.
    Forget,
    /// End: the agent ends.
    Leave,
}
