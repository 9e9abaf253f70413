//! Holds what hosts keep of a guest that went from one to the other, for its way back.

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_guest_ram::Ram;
use skein_pages::page_record::BlockInfo;
use skein_pages::{Key, Ledger};

/// A guest's way from one host to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trip {
    pub(crate) id: u64,
    /// The key of the marks of the guest's pages.
    pub(crate) key: Key,
    pub(crate) blocks: Vec<BlockInfo>,
}

/// The RAM that the host keeps that the guest left, as it was then. The guest's QEMU may be gone.
pub struct KeptRam {
    pub(crate) trip: Trip,
    pub(crate) ram: BTreeMap<u16, Arc<dyn Ram>>,
}

/// The RAM of a guest cannot be kept, as it is its QEMU's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the guest's RAM is its QEMU's own, and ends with that process")]
pub struct RamIsPrivate;

impl KeptRam {
    /// Returns how many bytes the RAM takes at most.
    pub fn bytes(&self) -> u64 {
        self.ram.values().map(|ram| ram.bytes()).sum()
    }
}

/// The marks of the guest's pages that the host keeps that the guest came to, as the guest came.
pub struct KeptMarks {
    pub(crate) trip: Trip,
    pub(crate) marks: Arc<Ledger>,
}

impl KeptMarks {
    /// Returns the bytes of the guest's RAM. The other host has to keep the RAM for the marks to be of use.
    pub fn ram_bytes(&self) -> u64 {
        self.trip.blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add)
    }
}
