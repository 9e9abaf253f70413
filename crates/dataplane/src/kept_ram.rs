//! What hosts keep of a guest that went from one to the other, for its way back.

use std::collections::BTreeMap;
use std::sync::Arc;

use skein_guest_ram::Ram;
use skein_pages::page_record::BlockInfo;
use skein_pages::{Key, Ledger};

/// A guest's way from one host to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trip {
    pub(crate) id: u64,
    /// Of the marks of its pages.
    pub(crate) key: Key,
    pub(crate) blocks: Vec<BlockInfo>,
}

/// What the host that the guest left keeps: its RAM, as it was then, though QEMU be gone.
pub struct KeptRam {
    pub(crate) trip: Trip,
    pub(crate) ram: BTreeMap<u16, Arc<dyn Ram>>,
}

impl KeptRam {
    /// Bytes that it takes at most.
    pub fn bytes(&self) -> u64 {
        self.ram.values().map(|ram| ram.bytes()).sum()
    }
}

/// What the host that the guest came to keeps: the marks of its pages, as it came.
pub struct KeptMarks {
    pub(crate) trip: Trip,
    pub(crate) marks: Arc<Ledger>,
}

impl KeptMarks {
    /// Bytes of the guest's RAM, which the other host has to keep for them to be of use.
    pub fn ram_bytes(&self) -> u64 {
        self.trip.blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add)
    }
}
