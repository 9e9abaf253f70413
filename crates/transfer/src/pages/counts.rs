//! Where the bytes of a migration went.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skein_pages::packing::Effort;

/// What became of a guest's pages at the source, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that QEMU sent, over all rounds.
    pub pages: u64,
    /// Of these, pages of zeros: next to nothing on the wire.
    pub zero_pages: u64,
    /// Pages that were compressed …
    pub packed_pages: u64,
    /// … to so many bytes.
    pub packed_bytes: u64,
    /// Pages that went as they are.
    pub stored_pages: u64,
    /// Pages sent again since the target's copy differed.
    pub repaired_pages: u64,
    /// Bytes that are no pages: headers, devices.
    pub other_bytes: u64,
    /// Batches whose turn came before they were packed.
    pub late_batches: u64,
    /// Microseconds of CPU that packing took.
    pub packing_us: u64,
    /// zstd's level at last; none: LZ4.
    pub zstd_level: Option<i32>,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) pages: AtomicU64,
    pub(crate) zero_pages: AtomicU64,
    pub(crate) packed_pages: AtomicU64,
    pub(crate) packed_bytes: AtomicU64,
    pub(crate) stored_pages: AtomicU64,
    pub(crate) repaired_pages: AtomicU64,
    pub(crate) other_bytes: AtomicU64,
    pub(crate) late_batches: AtomicU64,
    pub(crate) packing_us: AtomicU64,
}

impl Counts {
    pub(crate) fn snapshot(&self, effort: Effort) -> PageCounts {
        PageCounts {
            pages: self.pages.load(Relaxed),
            zero_pages: self.zero_pages.load(Relaxed),
            packed_pages: self.packed_pages.load(Relaxed),
            packed_bytes: self.packed_bytes.load(Relaxed),
            stored_pages: self.stored_pages.load(Relaxed),
            repaired_pages: self.repaired_pages.load(Relaxed),
            other_bytes: self.other_bytes.load(Relaxed),
            late_batches: self.late_batches.load(Relaxed),
            packing_us: self.packing_us.load(Relaxed),
            zstd_level: effort.zstd_level(),
        }
    }
}

/// Counts some more.
pub(crate) fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Relaxed);
}
