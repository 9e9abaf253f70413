//! The memory of a RAM block that is private to its QEMU, reached through that process's address space.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process_address::ProcessAddress;
use crate::ram::{AccessError, Ram, check_bounds};
use crate::zeros::{self, Sparse};

/// Bytes of a page in a process's table of pages.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Bytes of an entry of `/proc/PID/pagemap`: one for each page.
pub(crate) const ENTRY_BYTES: u64 = 8;
/// Bits 61 to 63 of an entry: the page is in memory, in swap, or of a file (the kernel's
/// Documentation/admin-guide/mm/pagemap.rst). None of them: nobody has touched the page, and it is zero.
const ENTRY_IS_TOUCHED: u64 = 0b111 << 61;
/// How many entries are read at once: those of a batch of pages.
const ENTRIES_MAX: usize = 64;

/// The memory of one block that is private to a QEMU process, which that process and its guest go on using; see
/// [`Ram`].
///
/// Whoever writes here acts as QEMU itself would: the kernel finds huge pages where QEMU asked for them, copies what
/// was mapped privately, and charges QEMU's control group. When QEMU ends, its memory is gone.
///
/// The system calls name a process by its number. Before each, the process is asked for by a descriptor, which does not
/// stand for another process that has got the number since. Numbers are given in ascending order (the kernel's
/// `alloc_pid`), so one comes back between these two calls only if this thread stands still while all others are given.
#[derive(Debug)]
pub struct ProcessMemory {
    at: ProcessAddress,
    bytes: u64,
    /// The process (pidfd_open(2)).
    process: OwnedFd,
    /// `/proc/PID/pagemap`.
    page_table: File,
}

impl ProcessMemory {
    /// `page_table`: `/proc/PID/pagemap` of the process at `at`.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn new(at: ProcessAddress, bytes: u64, page_table: File) -> Result<ProcessMemory, AccessError> {
        let no_process = || at.failed(Errno::ESRCH);
        let pid = Pid::from_raw(at.pid.cast_signed()).ok_or_else(no_process)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| at.failed(errno))?;
        let memory = ProcessMemory { at, bytes, process, page_table };
        // The table of a process that lives now was opened before its descriptor: both are of the same process.
        memory.untouched(0, 1)?;
        Ok(memory)
    }

    /// Checks that the process lives.
    fn check_lives(&self) -> Result<(), AccessError> {
        // The descriptor becomes readable when the process ends, before its number is free.
        loop {
            match poll(&mut [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(self.at.failed(Errno::ESRCH)),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.at.failed(errno)),
            }
        }
    }

    /// Returns why the kernel did not reach the byte at `offset`.
    fn refused(&self, offset: u64, errno: Errno) -> AccessError {
        match errno {
            Errno::ENOMEM => AccessError::NoMemory { offset, source: errno.into() },
            // The kernel says so of a page that is not mapped, or not for this access, and of one that it finds no
            // memory for (`faultin_page` of its mm/gup.c gives up, and process_vm_rw_single_vec of its
            // mm/process_vm_access.c tells EFAULT of whatever).
            Errno::EFAULT => {
                let source = errno.into();
                AccessError::NotReached { pid: self.at.pid, address: self.at.address + offset, source }
            }
            errno => self.at.failed(errno),
        }
    }

    /// Returns how many bytes from `offset` on, at most `bytes` and those of [`ENTRIES_MAX`] pages, nobody has touched.
    /// The process lives.
    fn untouched(&self, offset: u64, bytes: u64) -> Result<u64, AccessError> {
        let first = (self.at.address + offset) / PAGE_BYTES;
        let mut entries = [0; ENTRIES_MAX * ENTRY_BYTES as usize];
        let wanted = (self.at.address + offset + bytes).div_ceil(PAGE_BYTES) - first;
        let len = entries.len().min((wanted * ENTRY_BYTES) as usize);
        let read = self.page_table.read_at(&mut entries[..len], first * ENTRY_BYTES);
        match read.map_err(|error| self.at.failed(error))? {
            // The table of a process that has ended is empty.
            0 => Err(self.at.failed(Errno::ESRCH)),
            read => {
                let is_untouched = |entry: &&[u8]| {
                    <[u8; 8]>::try_from(*entry).map(u64::from_ne_bytes).is_ok_and(|entry| entry & ENTRY_IS_TOUCHED == 0)
                };
                let entries = entries[..read].chunks_exact(ENTRY_BYTES as usize);
                let pages = entries.take_while(is_untouched).count() as u64;
                let end = (first + pages) * PAGE_BYTES;
                Ok(end.saturating_sub(self.at.address + offset).min(bytes))
            }
        }
    }
}

impl Ram for ProcessMemory {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn outlives_qemu(&self) -> bool {
        false
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        check_bounds(offset, data.len() as u64, self.bytes)?;
        let mut done = 0;
        while done < data.len() {
            let (at, rest) = (offset + done as u64, &data[done..]);
            self.check_lives()?;
            match self.at.write(at, rest) {
                Ok(0) => return Err(self.at.failed(io::ErrorKind::WriteZero)),
                // A page that the kernel has no memory for ends a write early (process_vm_readv(2)).
                Ok(bytes) => done += bytes,
                Err(errno) => return Err(self.refused(at, errno)),
            }
        }
        Ok(())
    }

    /// What nobody has touched stays so.
    fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        zeros::zero(self, offset, bytes)
    }

    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        zeros::is_zero(self, offset, bytes)
    }

    /// What nobody has touched is read from the kernel's page of zeros.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        check_bounds(offset, out.len() as u64, self.bytes)?;
        let mut done = 0;
        while done < out.len() {
            let (at, rest) = (offset + done as u64, &mut out[done..]);
            self.check_lives()?;
            match self.at.read(at, rest) {
                Ok(0) => return Err(self.at.failed(io::ErrorKind::UnexpectedEof)),
                Ok(bytes) => done += bytes,
                Err(errno) => return Err(self.refused(at, errno)),
            }
        }
        Ok(())
    }

    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(offset, out)
    }
}

impl Sparse for ProcessMemory {
    fn hole(&self, at: u64, bytes: u64) -> Result<u64, AccessError> {
        self.untouched(at, bytes)
    }

    fn read_data(&self, at: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(at, out)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = PAGE_BYTES as usize;

    /// Memory of this process, which plays QEMU.
    fn own(memory: &[u8]) -> ProcessMemory {
        let at = ProcessAddress { pid: std::process::id(), address: memory.as_ptr().addr() as u64 };
        ProcessMemory::new(at, memory.len() as u64, File::open("/proc/self/pagemap").unwrap()).unwrap()
    }

    #[test]
    fn what_is_not_in_the_block_is_refused() {
        let memory = vec![7; 3 * PAGE];
        let ram = own(&memory);
        let end = ram.bytes();
        for (offset, bytes) in [(end - 1, 2), (end, 1), (u64::MAX, 1), (u64::MAX - 1, 8)] {
            let mut out = vec![0; bytes as usize];
            for result in [
                ram.write(offset, &out),
                ram.read(offset, &mut out),
                ram.zero(offset, bytes),
                ram.is_zero(offset, bytes).map(drop),
                ram.read_in_qemu(offset, &mut vec![0; bytes as usize]),
            ] {
                assert!(matches!(result, Err(AccessError::OutOfBounds { .. })), "{offset} {bytes}: {result:?}");
            }
        }
        for nothing in [0, end] {
            ram.write(nothing, &[]).unwrap();
            ram.read(nothing, &mut []).unwrap();
            assert!(ram.is_zero(nothing, 0).unwrap());
        }
    }

    #[test]
    fn a_process_that_has_ended_is_not_written_to() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let page_table = || File::open(format!("/proc/{}/pagemap", child.id())).unwrap();
        let (tables, pid) = ([page_table(), page_table()], Pid::from_raw(child.id().cast_signed()).unwrap());
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // As if another process had its number by now: this one.
        let memory = vec![7; PAGE];
        let at = ProcessAddress { pid: std::process::id(), address: memory.as_ptr().addr() as u64 };
        let [page_table, other] = tables;
        assert!(matches!(ProcessMemory::new(at, PAGE as u64, other), Err(AccessError::Process { .. })));
        let ram = ProcessMemory { at, bytes: PAGE as u64, process, page_table };
        assert!(matches!(ram.write(0, &[1; 8]), Err(AccessError::Process { .. })));
        assert!(matches!(ram.read(0, &mut [0; 8]), Err(AccessError::Process { .. })));
        assert!(matches!(ram.zero(0, 8), Err(AccessError::Process { .. })));
        assert_eq!(memory, [7; PAGE]);
    }

    #[test]
    fn a_page_that_is_not_there_is_not_said_to_lack_memory() {
        // Nothing is mapped in the first pages of a process (vm.mmap_min_addr).
        let at = ProcessAddress { pid: std::process::id(), address: PAGE_BYTES };
        let ram = ProcessMemory::new(at, PAGE_BYTES, File::open("/proc/self/pagemap").unwrap()).unwrap();
        for result in [ram.write(8, &[1; 8]), ram.read(8, &mut [0; 8])] {
            let error = result.unwrap_err();
            assert!(matches!(error, AccessError::NotReached { address: 0x1008, .. }), "{error:?}");
            assert!(error.to_string().contains("unmapped or protected"), "{error}");
        }
        assert!(matches!(ram.refused(8, Errno::ENOMEM), AccessError::NoMemory { offset: 8, .. }));
    }

    proptest! {
        /// What is done by way of the kernel is what is done to a slice.
        #[test]
        fn like_a_slice(
            steps in proptest::collection::vec((0..5 * PAGE, 0..3 * PAGE, any::<Option<u8>>()), 0..20),
        ) {
            let memory = vec![0; 5 * PAGE];
            let ram = own(&memory);
            let mut model = vec![0; 5 * PAGE];
            for (at, bytes, fill) in steps {
                let bytes = bytes.min(model.len() - at);
                match fill {
                    Some(fill) => {
                        ram.write(at as u64, &vec![fill; bytes]).unwrap();
                        model[at..at + bytes].fill(fill);
                    }
                    None => {
                        ram.zero(at as u64, bytes as u64).unwrap();
                        model[at..at + bytes].fill(0);
                    }
                }
                let is_zero = model[at..at + bytes].iter().all(|&byte| byte == 0);
                prop_assert_eq!(ram.is_zero(at as u64, bytes as u64).unwrap(), is_zero);
            }
            let mut all = vec![1; model.len()];
            ram.read(0, &mut all).unwrap();
            prop_assert!(all == model);
        }
    }
}
