//! The unsafe corner: memory that this process shares with others, as a slice of atomics.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use crate::words::WORD;

/// How many bytes are unmapped at once, which takes some milliseconds. Meanwhile no other thread of the process can map
/// memory, or start a thread.
const DROPPED_BYTES: usize = 64 << 20;

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    bytes: NonZero<usize>,
}

// SAFETY: the mapping belongs to the process, not to the thread that made it, and all access to it is by atomics and by
// system calls.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of `file` from `offset`, both multiples of the file's page size, to read and write, shared with
    /// everybody who has the file mapped. The mapping takes no memory yet.
    pub(crate) fn shared(file: &File, offset: u64, bytes: usize) -> io::Result<Self> {
        let bytes = size(bytes)?;
        let offset = i64::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: where the kernel chooses the address, nothing that exists is changed. `words` is why the memory may
        // change behind this process's back.
        let start = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, file, offset) }?;
        Ok(Self { start: start.cast(), bytes })
    }

    /// Returns the memory. Touching a page for which there is no memory raises SIGBUS.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is aligned (to a page) and valid for reads and writes of `bytes` until `munmap` in `drop`,
        // which the slice does not outlive; `size` keeps `bytes` below isize::MAX. Every bit pattern is an AtomicU64.
        // An atomic may change at any time, whoever does it, also from another process; nothing else here refers to
        // this memory.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes.get() / WORD) }
    }

    /// Makes the kernel find memory for a range of bytes that begins with a page, as if each page were written to
    /// (Linux 5.14).
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<(), Errno> {
        let words = &self.words()[range.start / WORD..range.end / WORD];
        let start = NonNull::from_ref(words).cast();
        // SAFETY: the range is within the mapping, by the bounds of the slice; the advice changes no contents.
        unsafe { madvise(start, range.len(), MmapAdvise::MADV_POPULATE_WRITE) }
    }

    /// Advises the kernel to use huge pages.
    pub(crate) fn advise_huge(&self) -> Result<(), Errno> {
        // SAFETY: this is the whole mapping; the advice changes no contents.
        unsafe { madvise(self.start.cast(), self.bytes.get(), MmapAdvise::MADV_HUGEPAGE) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        for at in (0..self.bytes.get()).step_by(DROPPED_BYTES) {
            let bytes = DROPPED_BYTES.min(self.bytes.get() - at);
            // SAFETY: within the mapping, to which nothing refers any more: `words` borrows from `self`.
            let part = unsafe { self.start.cast().byte_add(at) };
            // SAFETY: as above. What cannot be let go of so goes with the rest.
            let _ = unsafe { madvise(part, bytes, MmapAdvise::MADV_DONTNEED) };
        }
        // SAFETY: made by `mmap` with this size; see above.
        let unmapped = unsafe { munmap(self.start.cast(), self.bytes.get()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Returns a size that a slice can have: not 0, not more than isize::MAX.
fn size(bytes: usize) -> Result<NonZero<usize>, Errno> {
    isize::try_from(bytes).map_err(|_| Errno::ENOMEM)?;
    NonZero::new(bytes).ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    use nix::sys::mman::mmap_anonymous;

    /// What Miri can do: it knows no files in memory.
    fn anonymous(bytes: usize) -> Mapping {
        let bytes = size(bytes).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: as in `shared`.
        let start = unsafe { mmap_anonymous(None, bytes, access, MapFlags::MAP_PRIVATE) }.unwrap();
        Mapping { start: start.cast(), bytes }
    }

    #[test]
    fn threads_share_it() {
        let mapping = anonymous(1 << 16);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let mapping = &mapping;
                scope.spawn(move || {
                    crate::words::store(mapping.words(), thread * 10 + 5, &[thread as u8; 10]);
                    mapping.words()[100].fetch_add(1, Relaxed);
                });
            }
        });
        let mut out = [0; 40];
        crate::words::load(mapping.words(), 5, &mut out);
        assert_eq!(out, std::array::from_fn(|n| (n / 10) as u8));
        assert_eq!(mapping.words()[100].load(Relaxed), 4);
        assert_eq!(mapping.words().len(), 1 << 13);
    }

    #[test]
    fn sizes_that_no_slice_has() {
        assert_eq!(size(0), Err(Errno::EINVAL));
        assert_eq!(size(usize::MAX), Err(Errno::ENOMEM));
    }
}
