//! Memory that is made as QEMU makes the RAM of a guest, and filled as that is.

use std::{
    io::{IoSlice, IoSliceMut},
    num::NonZeroUsize,
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};

use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
        uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
    },
    unistd::{Pid, ftruncate},
};

use crate::{mover::MULTIFD_CHANNELS, page_sizes::PageSizes};

/// The bytes of a huge page of x86, at which QEMU aligns RAM (its `QEMU_VMALLOC_ALIGN`).
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What an agent writes at once: its scratch memory, 32 pages (`SCRATCH_BYTES` of the data plane's target).
const PIECE_BYTES: usize = 32 << 12;

/// What one channel of a migration carries at once: a packet of multifd, 128 pages (QEMU's `MULTIFD_PACKET_SIZE`).
const PACKET_BYTES: usize = 128 << 12;

/// What the memory is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Backing {
    /// Private memory, this share of it with `MADV_HUGEPAGE`, as QEMU has for all of a guest's RAM; the rest on pages
    /// of 4 KiB.
    Private {
        /// 0 to 1.
        huge_share: f64,
    },
    /// A memfd that is shared, on the pages that the kernel gives it.
    Shared,
}

/// Who writes to the memory first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// A program whose memory it is: a guest, or QEMU's own threads for it.
    ByOwner,
    /// Another program by `process_vm_writev`, as a target's agent does: packet after packet by as many threads as
    /// there are channels, piece by piece, and each piece is read back. (For the kernel it makes no difference that the
    /// program is the same here: both ways lead through the tables of the memory's owner.)
    ByAgent,
}

/// The word that all of the memory holds.
const WORD: u64 = 0x0101_0101_0101_0101;

/// Memory of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    /// What was mapped, with room to align it.
    mapped: NonNull<std::ffi::c_void>,
    mapped_bytes: NonZeroUsize,
    /// The beginning within it, aligned to huge pages.
    begin: NonNull<u64>,
    bytes: usize,
}

impl Mapping {
    /// Maps and fills memory. `bytes`: a multiple of [`HUGE_PAGE_BYTES`].
    pub(super) fn new(backing: Backing, bytes: usize, filling: Filling) -> Result<Mapping, Errno> {
        let mut mapping = Self::map(backing, bytes)?;
        match filling {
            Filling::ByOwner => mapping.words_mut().fill(WORD),
            Filling::ByAgent => mapping.fill_by_agent()?,
        }
        Ok(mapping)
    }

    /// Returns the memory's words.
    pub(super) fn words(&self) -> &[u64] {
        // SAFETY: `begin` is aligned to huge pages, and `bytes` bytes from there are mapped and readable until this is
        // dropped. Nothing writes to them while `self` is borrowed: those that do have it mutably.
        unsafe { std::slice::from_raw_parts(self.begin.as_ptr(), self.bytes / size_of::<u64>()) }
    }

    /// Returns the pages that the memory lies on.
    pub(super) fn page_sizes(&self) -> std::io::Result<PageSizes> {
        PageSizes::of_own(self.begin.addr().get() as u64, self.bytes as u64)
    }

    fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as of `words`, and the memory is writable. `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.begin.as_ptr(), self.bytes / size_of::<u64>()) }
    }

    fn map(backing: Backing, bytes: usize) -> Result<Mapping, Errno> {
        let mapped_bytes = NonZeroUsize::MIN.saturating_add(bytes + HUGE_PAGE_BYTES - 1);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let mapped = match backing {
            // SAFETY: the kernel chooses where, so no other memory is replaced.
            Backing::Private { .. } => unsafe {
                mmap_anonymous(None, mapped_bytes, access, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE)?
            },
            Backing::Shared => {
                let file = memfd_create("memory-reads", MFdFlags::MFD_CLOEXEC)?;
                ftruncate(&file, mapped_bytes.get() as i64)?;
                // SAFETY: the kernel chooses where. The file has that size, and nobody else has it to make it shorter.
                unsafe { mmap(None, mapped_bytes, access, MapFlags::MAP_SHARED, &file, 0)? }
            }
        };
        let padding = mapped.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr().get();
        // SAFETY: less than a huge page was skipped, and that much more was mapped than `bytes`.
        let begin = unsafe { mapped.byte_add(padding) }.cast();
        let mapping = Mapping { mapped, mapped_bytes, begin, bytes };
        if let Backing::Private { huge_share } = backing {
            mapping.advise(huge_share)?;
        }
        Ok(mapping)
    }

    fn advise(&self, huge_share: f64) -> Result<(), Errno> {
        for region in 0..self.bytes / HUGE_PAGE_BYTES {
            let advice = match is_huge(region, huge_share) {
                true => MmapAdvise::MADV_HUGEPAGE,
                false => MmapAdvise::MADV_NOHUGEPAGE,
            };
            // SAFETY: the region is within the mapping, and neither advice changes what it holds.
            unsafe { madvise(self.begin.byte_add(region * HUGE_PAGE_BYTES).cast(), HUGE_PAGE_BYTES, advice)? };
        }
        Ok(())
    }

    fn fill_by_agent(&mut self) -> Result<(), Errno> {
        let (begin, bytes, next) = (self.begin.addr().get(), self.bytes, AtomicUsize::new(0));
        let channel = || {
            let piece = [WORD; PIECE_BYTES / size_of::<u64>()].map(u64::to_ne_bytes);
            let mut held = vec![0; PIECE_BYTES];
            loop {
                let packet = next.fetch_add(PACKET_BYTES, Ordering::Relaxed);
                if packet >= bytes {
                    return Ok(());
                }
                for at in (packet..bytes.min(packet + PACKET_BYTES)).step_by(PIECE_BYTES) {
                    let remote = RemoteIoVec { base: begin + at, len: PIECE_BYTES };
                    process_vm_writev(Pid::this(), &[IoSlice::new(piece.as_flattened())], &[remote])?;
                    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut held)], &[remote])?;
                }
            }
        };
        std::thread::scope(|scope| {
            let channels: Vec<_> = (0..MULTIFD_CHANNELS).map(|_| scope.spawn(channel)).collect();
            channels.into_iter().try_for_each(|channel| channel.join().unwrap_or(Err(Errno::EFAULT)))
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this was mapped by `map`, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.mapped, self.mapped_bytes.get()) };
    }
}

/// Returns whether a region of the size of a huge page is one of those that have one: this share of all regions, evenly
/// spread.
fn is_huge(region: usize, huge_share: f64) -> bool {
    let until = |regions: usize| (regions as f64 * huge_share).round() as u64;
    until(region + 1) > until(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 8 * HUGE_PAGE_BYTES;

    #[test]
    fn regions_with_huge_pages_are_spread() {
        let of_eight = |share| (0..8).filter(|region| is_huge(*region, share)).count();
        assert_eq!([0.0, 0.25, 0.5, 0.99, 1.0].map(of_eight), [0, 2, 4, 8, 8]);
        assert_eq!((0..512).filter(|region| is_huge(*region, 0.9)).count(), 461);
        assert!((0..4).any(|region| is_huge(region, 0.5)) && (4..8).any(|region| is_huge(region, 0.5)));
    }

    #[test]
    fn all_of_the_memory_is_filled_whoever_does_it() {
        for backing in [Backing::Private { huge_share: 0.5 }, Backing::Shared] {
            for filling in [Filling::ByOwner, Filling::ByAgent] {
                let mapping = Mapping::new(backing, BYTES, filling).unwrap();
                let words = mapping.words();
                assert_eq!((words.len(), words.as_ptr().addr() % HUGE_PAGE_BYTES), (BYTES / 8, 0));
                assert!(words.iter().all(|word| *word == WORD), "{backing:?} {filling:?}");
            }
        }
    }

    /// Checks that no more is on huge pages than was asked for: whether the kernel has any is the machine's.
    #[test]
    fn pages_are_those_that_were_asked_for() {
        for (huge_share, most) in [(0.0, 0.0), (0.25, 0.25)] {
            let mapping = Mapping::new(Backing::Private { huge_share }, BYTES, Filling::ByAgent).unwrap();
            let pages = mapping.page_sizes().unwrap();
            assert_eq!(pages.resident_bytes, BYTES as u64);
            assert!(pages.huge_share() <= most, "{pages:?}");
        }
    }
}
