//! Inspects a guest, by its hypervisor's word.

use skein_guest_ram::RamBlock;
use skein_inventory::Composition;
use skein_inventory::composition::{Drive, Malformed};

use super::error::GuestError;
use super::facts::{BlockNode, DeviceSnapshot, DirtyTracking, ImageSnapshot, InspectedGuest, RamSize};

/// Tells what a guest is, by its hypervisor's word.
pub trait Inspect {
    /// Returns what the guest is composed of, without its files. Takes some milliseconds; the guest runs on.
    fn composition(&self) -> Result<Composition, CompositionError>;

    /// Returns what the guest's drives lie on. A guest that stands still is compared by that, as the call takes a
    /// millisecond.
    fn drives(&self) -> Result<Vec<Drive>, CompositionError>;

    /// Returns which images the drives have, and which devices the guest has: what could be changed of a guest that is
    /// waited for. The call is short, because the guest stands still meanwhile.
    fn devices(&self) -> Result<DeviceSnapshot, GuestError>;

    /// Returns which images the drives have: one question, which tells whether more have to be asked.
    fn images(&self) -> Result<ImageSnapshot, GuestError>;

    /// Returns the devices that were plugged in while the guest ran: `virtio-blk-pci "late"`.
    fn hot_plugged(&self, composition: &Composition) -> Result<Vec<String>, GuestError> {
        let _ = composition;
        Ok(Vec::new())
    }

    /// Returns where the guest's RAM is in the memory of the process that runs the guest.
    fn ram_blocks(&self) -> Result<Vec<RamBlock>, GuestError> {
        Err(GuestError::Unsupported("tell where a guest's RAM is"))
    }

    /// Returns how exactly the hypervisor knows which pages the guest has written to.
    fn dirty_tracking(&self) -> DirtyTracking {
        DirtyTracking::Exact
    }

    /// Returns how much RAM the guest has.
    fn ram_size(&self) -> Result<RamSize, GuestError>;

    /// Returns how many virtual CPUs the guest has.
    fn cpus(&self) -> Result<u32, GuestError>;

    /// Returns what the guest is made of, for a check. Takes some hundred questions, tens of milliseconds; the guest
    /// runs on.
    fn inspect(&self) -> Result<InspectedGuest, GuestError>;

    /// Returns the guest's images and what is below them, also those that no device has.
    fn block_nodes(&self) -> Result<Vec<BlockNode>, GuestError>;

    /// Returns why the guest cannot be migrated, in the hypervisor's words, as far as that is known before any
    /// migration. Empty is no promise: some reasons are only found when a migration begins.
    fn blocked_reasons(&self) -> Result<Vec<String>, GuestError>;

    /// Returns the name that the guest was started with; empty: none.
    fn name(&self) -> Result<String, GuestError>;

    /// Returns the versioned machine type that an alias stands for in what runs the guest: `pc-q35-7.2` for `q35`.
    /// `None`: the name is no alias, or that is not known.
    fn versioned_machine(&self, alias: &str) -> Option<String> {
        let _ = alias;
        None
    }
}

/// The reason why it is not known what a guest is composed of.
#[derive(Debug, thiserror::Error)]
pub enum CompositionError {
    /// The hypervisor does not answer, or refuses.
    #[error("QMP")]
    Guest(#[from] GuestError),
    /// The hypervisor's answers are not understood.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}
