//! The RAM of a guest whose QEMU runs here, for the agent to read and write.

use std::io;

use skein_dataplane::target::{FindRam, Ram, RamError};
use skein_guest_ram::{AccessError, Memory};
use skein_hypervisor::Guest;
use tracing::info;

use crate::error_chain;

struct GuestRam(Memory);

fn failed(error: impl std::error::Error) -> RamError {
    RamError(error_chain(&error))
}

impl Ram for GuestRam {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), RamError> {
        self.0.write(offset, data).map_err(failed)
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), RamError> {
        self.0.zero(offset, bytes).map_err(failed)
    }

    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, RamError> {
        self.0.is_zero(offset, bytes).map_err(failed)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), RamError> {
        self.0.read(offset, out).map_err(failed)
    }

    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), RamError> {
        let read = match self.0.read_in_process(offset, out) {
            // Reaching it as it is takes less than looking into another process.
            Err(AccessError::Process { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                self.0.read(offset, out)
            }
            read => read,
        };
        read.map_err(failed)
    }
}

/// Finds the RAM of a guest that process `pid` runs; none if its hypervisor does not tell where it is.
pub(crate) fn find(guest: &dyn Guest, pid: u32) -> Option<FindRam> {
    let blocks = guest.ram_blocks().inspect_err(|error| info!(pid, "QEMU does not tell of its RAM: {error}")).ok()?;
    Some(Box::new(move |info| {
        let block = blocks.iter().find(|block| block.name == info.name);
        let block = block.ok_or_else(|| RamError(format!("QEMU has no RAM block '{}' here", info.name)))?;
        let memory = skein_guest_ram::find(pid, block).map_err(failed)?;
        Ok(Box::new(GuestRam(memory)))
    }))
}
