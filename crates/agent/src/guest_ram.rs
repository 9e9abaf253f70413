//! Finds the RAM of a guest whose QEMU runs here, for the agent to read and write.

use skein_dataplane::{FindRam, RamNotFound};
use skein_guest_ram::FindError;
use skein_hypervisor::{Guest, ProcessId};
use tracing::info;

/// Finds the RAM of a guest that a process runs; `None` if its hypervisor does not tell where the RAM is.
pub(crate) fn find(guest: &dyn Guest, process: ProcessId) -> Option<FindRam> {
    let pid = process.pid;
    let blocks = guest.ram_blocks().inspect_err(|error| info!(pid, "QEMU does not tell of its RAM: {error}")).ok()?;
    Some(Box::new(move |info| {
        let block = blocks.iter().find(|block| block.name == info.name);
        let block = block.ok_or_else(|| RamNotFound::NoBlock(info.name.clone()))?;
        let ram = skein_guest_ram::find(pid, block)?;
        // What was found is this process's if the number is still the process's.
        match ProcessId::of(pid) {
            Ok(Some(now)) if now == process => Ok(ram),
            _ => Err(FindError::NoProcess(pid).into()),
        }
    }))
}
