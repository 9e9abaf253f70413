//! What the owner of the migrations is told, and what its workers are.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use skein_handover::{MigrationId, Order};
use skein_hypervisor::GuestEvent;
use skein_inventory::facts::MigrationSlots;

use super::offer::Offer;
use crate::peers::PeerEvent;
use crate::vms::Killed;

/// What is to be done about this agent's migrations.
pub(super) type Action = skein_handover::Action<Arc<Offer>>;
/// What happens to them.
pub(super) type Input = skein_handover::Input<Arc<Offer>>;
/// The one that decides about them.
pub(super) type Manager = skein_handover::Manager<Arc<Offer>>;
/// One that is to begin.
pub(super) type NewMigration = skein_handover::NewMigration<Arc<Offer>>;

/// What the owner is told.
pub(crate) enum OwnerInput {
    Peer(PeerEvent),
    Inputs(Vec<Input>),
    Start(Box<NewMigration>, SyncSender<Result<(), StartRefused>>),
    Cancel(MigrationId, SyncSender<bool>),
    Capacity(SyncSender<Capacity>),
    /// A guest of this host was killed: its name, and by whom.
    Killed(String, Killed),
    Stop,
}

/// What this host could still take on.
pub(crate) struct Capacity {
    pub(crate) incoming: MigrationSlots,
    pub(crate) outgoing: MigrationSlots,
    /// RAM of guests that left.
    pub(crate) kept_ram_bytes: u64,
    pub(crate) journal: Result<(), String>,
}

/// Asks the owner.
#[derive(Clone)]
pub(crate) struct Inquiry(pub(super) SyncSender<OwnerInput>);

impl Inquiry {
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        let (reply, answer) = sync_channel(1);
        self.0.send(OwnerInput::Capacity(reply)).ok()?;
        answer.recv().ok()
    }
}

/// Why a migration is not begun.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StartRefused {
    #[error("migration {0} moves this VM already: follow it with `skein migration watch {0}`")]
    UnderWay(MigrationId),
    #[error("too many migrations are under way or queued on this host: wait until some are over")]
    TooMany,
    #[error("the journal cannot be written: {0}")]
    Journal(String),
    #[error("the agent stops")]
    Stopping,
}

/// What a worker is told.
pub(crate) enum WorkerInput {
    /// Do this, and say how QEMU is then.
    Order(Order),
    /// Say how QEMU is.
    Look,
    Guest(GuestEvent),
    /// The migration is over and forgotten.
    Forget,
    /// The agent ends.
    Leave,
}
