//! Finds the RAM of a guest whose QEMU runs here, for the agent to read and write.

use skein_dataplane::{FindRam, RamNotFound};
use skein_hypervisor::Guest;
use tracing::info;

/// Finds the RAM of a guest that process `pid` runs; `None` if its hypervisor does not tell where the RAM is.
pub(crate) fn find(guest: &dyn Guest, pid: u32) -> Option<FindRam> {
    let blocks = guest.ram_blocks().inspect_err(|error| info!(pid, "QEMU does not tell of its RAM: {error}")).ok()?;
    Some(Box::new(move |info| {
        let block = blocks.iter().find(|block| block.name == info.name);
        let block = block.ok_or_else(|| RamNotFound::NoBlock(info.name.clone()))?;
        Ok(skein_guest_ram::find(pid, block)?)
    }))
}
