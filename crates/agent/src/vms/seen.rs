//! What a guest had when somebody last looked.

use serde::{Deserialize, Serialize};
use skein_hypervisor::Guest;
use skein_inventory::composition::Drive;

/// What a guest had when somebody last looked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Seen {
    /// What is in its drives.
    pub(super) drives: Vec<Drive>,
    /// Bytes, by its QEMU's word; 0: it did not say.
    pub(super) ram_bytes: u64,
    /// Virtual CPUs; 0: it did not say.
    pub(super) cpus: u32,
}

impl Seen {
    pub(super) fn of(guest: &dyn Guest, drives: Vec<Drive>) -> Seen {
        let ram = guest.ram_size().unwrap_or_default();
        Seen { drives, ram_bytes: ram.total_bytes(), cpus: guest.cpus().unwrap_or(0) }
    }
}
