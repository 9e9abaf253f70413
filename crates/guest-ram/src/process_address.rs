//! A place in the memory of a process, read and written by the kernel's hand.

use std::io::{self, IoSlice, IoSliceMut};

use nix::Result;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::ram::AccessError;

/// Where a process has a block in its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessAddress {
    pub(crate) pid: u32,
    pub(crate) address: u64,
}

impl ProcessAddress {
    /// Reads bytes at `offset`. Returns how many, which may be less.
    pub(crate) fn read(self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let remote = self.remote(offset, out.len());
        process_vm_readv(self.pid(), &mut [IoSliceMut::new(out)], &[remote])
    }

    /// Writes bytes at `offset`. Returns how many, which may be less.
    pub(crate) fn write(self, offset: u64, data: &[u8]) -> Result<usize> {
        process_vm_writev(self.pid(), &[IoSlice::new(data)], &[self.remote(offset, data.len())])
    }

    /// Returns what a failed access says.
    pub(crate) fn failed(self, source: impl Into<io::Error>) -> AccessError {
        AccessError::Process { pid: self.pid, source: source.into() }
    }

    fn remote(self, offset: u64, len: usize) -> RemoteIoVec {
        RemoteIoVec { base: (self.address + offset) as usize, len }
    }

    fn pid(self) -> Pid {
        Pid::from_raw(self.pid as i32)
    }
}
