//! What a guest is, by its hypervisor's word.

use skein_guest_ram::RamBlock;
use skein_inventory::Composition;
use skein_inventory::composition::{Drive, Malformed};

use super::error::GuestError;
use super::facts::{BlockNode, DeviceSnapshot, DirtyTracking, ImageSnapshot, InspectedGuest, RamSize};

/// What a guest is, by its hypervisor's word.
pub trait Inspect {
    /// What it is composed of, its files aside. Takes some milliseconds; the guest runs on.
    fn composition(&self) -> Result<Composition, CompositionError>;

    /// What its drives lie on: what a guest that stands still is compared by, as this takes a millisecond.
    fn drives(&self) -> Result<Vec<Drive>, CompositionError>;

    /// Which images its drives have, and which devices it has: what somebody could change of one that waits for its
    /// guest. Short, as the guest stands still meanwhile.
    fn devices(&self) -> Result<DeviceSnapshot, GuestError>;

    /// Which images its drives have: one question, to tell whether more have to be asked.
    fn images(&self) -> Result<ImageSnapshot, GuestError>;

    /// Those of its devices that were plugged in while it ran: `virtio-blk-pci "late"`.
    fn hot_plugged(&self, composition: &Composition) -> Result<Vec<String>, GuestError> {
        let _ = composition;
        Ok(Vec::new())
    }

    /// Where its RAM is in the memory of the process that runs it.
    fn ram_blocks(&self) -> Result<Vec<RamBlock>, GuestError> {
        Err(GuestError::Unsupported("tell where a guest's RAM is"))
    }

    /// How exactly it is known which pages the guest has written to.
    fn dirty_tracking(&self) -> DirtyTracking {
        DirtyTracking::Exact
    }

    /// How much RAM it has.
    fn ram_size(&self) -> Result<RamSize, GuestError>;

    /// How many virtual CPUs it has.
    fn cpus(&self) -> Result<u32, GuestError>;

    /// What it is made of, for a check. Takes some hundred questions, tens of milliseconds; the guest runs on.
    fn inspect(&self) -> Result<InspectedGuest, GuestError>;

    /// Its images and what is below them, also those that no device has.
    fn block_nodes(&self) -> Result<Vec<BlockNode>, GuestError>;

    /// Why it cannot be migrated, in the hypervisor's words, known before any migration. Empty is no promise: some
    /// reasons are only found when a migration begins.
    fn blocked_reasons(&self) -> Result<Vec<String>, GuestError>;

    /// The name that it was started with; empty: none.
    fn name(&self) -> Result<String, GuestError>;

    /// The versioned machine type that an alias stands for in what runs it: `pc-q35-7.2` for `q35`. None: it is not an
    /// alias, or that is not known.
    fn versioned_machine(&self, alias: &str) -> Option<String> {
        let _ = alias;
        None
    }
}

/// Why it is not known what a guest is composed of.
#[derive(Debug, thiserror::Error)]
pub enum CompositionError {
    /// The hypervisor does not answer, or will not.
    #[error("QMP")]
    Guest(#[from] GuestError),
    /// Its answers are not understood.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}
