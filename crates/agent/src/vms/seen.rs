//! Is what a guest had when its QEMU was last asked.

use serde::{Deserialize, Serialize};
use skein_hypervisor::Guest;
use skein_inventory::composition::Drive;

/// What a guest had when its QEMU was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Seen {
    /// The drives, with their images.
    pub(super) drives: Vec<Drive>,
    /// The bytes of RAM, by the QEMU's word; 0: it did not say.
    pub(super) ram_bytes: u64,
    /// The number of virtual CPUs; 0: the QEMU did not say.
    pub(super) cpus: u32,
}

impl Seen {
    pub(super) fn of(guest: &dyn Guest, drives: Vec<Drive>) -> Seen {
        let ram = guest.ram_size().unwrap_or_default();
        Seen { drives, ram_bytes: ram.total_bytes(), cpus: guest.cpus().unwrap_or(0) }
    }
}
