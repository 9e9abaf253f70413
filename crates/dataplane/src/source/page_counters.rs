//! Counts where the bytes of a migration go.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use skein_pages::PageCounts;
use skein_pages::delta::DeltaHead;
use skein_pages::packing::Effort;
use skein_pages::page_record::DELTA_HEAD_BYTES;

const EFFORTS: usize = Effort::MOST.step() as usize + 1;

#[derive(Default)]
pub(crate) struct PageCounters {
    pub(crate) pages: AtomicU64,
    pub(crate) zero_pages: AtomicU64,
    pub(crate) packed_pages: AtomicU64,
    pub(crate) packed_bytes: AtomicU64,
    pub(crate) stored_pages: AtomicU64,
    pub(crate) written_pages: AtomicU64,
    pub(crate) unchanged_pages: AtomicU64,
    pub(crate) delta_pages: AtomicU64,
    pub(crate) delta_bytes: AtomicU64,
    pub(crate) packed_delta_bytes: AtomicU64,
    pub(crate) repaired_pages: AtomicU64,
    pub(crate) missed_pages: AtomicU64,
    pub(crate) other_bytes: AtomicU64,
    /// What was copied from QEMU, and between buffers.
    pub(crate) copied_bytes: AtomicU64,
    /// What the target has copied to and from the guest's RAM, as the target says.
    pub(crate) target_copied_bytes: AtomicU64,
    pub(crate) late_pages: AtomicU64,
    packing_us: AtomicU64,
    /// The batches by the effort that they were packed with.
    efforts: [AtomicU64; EFFORTS],
    /// The microseconds of the comparison; 0: not compared yet.
    compared_us: AtomicU64,
}

impl PageCounters {
    /// Counts a batch that was packed.
    pub(crate) fn packed(&self, effort: Effort, cpu: Duration) {
        add(&self.packing_us, cpu.as_micros() as usize);
        add(&self.efforts[usize::from(effort.step())], 1);
    }

    /// Counts pages of which QEMU itself says that they are zeros.
    pub(crate) fn zeros(&self, pages: usize) {
        add(&self.pages, pages);
        add(&self.zero_pages, pages);
    }

    /// Counts deltas that go. `packed` of their bytes are packed.
    pub(crate) fn deltas(&self, deltas: &[DeltaHead], packed: usize) {
        let written = deltas.iter().filter(|delta| delta.is_written()).count();
        let unchanged = deltas.iter().filter(|delta| delta.changed == 0).count() - written;
        let changed = deltas.iter().filter(|delta| delta.changed != 0);
        let bytes: usize = changed.map(|delta| DELTA_HEAD_BYTES + delta.bytes()).sum();
        add(&self.other_bytes, (written + unchanged) * DELTA_HEAD_BYTES);
        add(&self.written_pages, written);
        add(&self.unchanged_pages, unchanged);
        add(&self.delta_pages, deltas.len() - written - unchanged);
        add(&self.delta_bytes, bytes - packed);
        add(&self.packed_delta_bytes, packed);
    }

    /// Counts the comparison that found both ends to hold the same.
    pub(crate) fn compared(&self, took: Duration) {
        self.compared_us.store((took.as_micros() as u64).max(1), Relaxed);
    }

    pub(crate) fn snapshot(&self) -> PageCounts {
        let compared_us = self.compared_us.load(Relaxed);
        let efforts = (0..).map(Effort::nth).zip(&self.efforts);
        // Of several efforts with as many batches, the least counts.
        let mostly = efforts.max_by_key(|(effort, batches)| (batches.load(Relaxed), Reverse(*effort)));
        PageCounts {
            pages: self.pages.load(Relaxed),
            zero_pages: self.zero_pages.load(Relaxed),
            packed_pages: self.packed_pages.load(Relaxed),
            packed_bytes: self.packed_bytes.load(Relaxed),
            stored_pages: self.stored_pages.load(Relaxed),
            written_pages: self.written_pages.load(Relaxed),
            unchanged_pages: self.unchanged_pages.load(Relaxed),
            delta_pages: self.delta_pages.load(Relaxed),
            delta_bytes: self.delta_bytes.load(Relaxed),
            packed_delta_bytes: self.packed_delta_bytes.load(Relaxed),
            repaired_pages: self.repaired_pages.load(Relaxed),
            missed_pages: self.missed_pages.load(Relaxed),
            other_bytes: self.other_bytes.load(Relaxed),
            copied_bytes: self.copied_bytes.load(Relaxed),
            target_copied_bytes: self.target_copied_bytes.load(Relaxed),
            late_pages: self.late_pages.load(Relaxed),
            packing_us: self.packing_us.load(Relaxed),
            zstd_level: mostly.and_then(|(effort, _)| effort.zstd_level()),
            compared_us: Some(compared_us).filter(|us| *us > 0),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effort_that_is_told_is_that_of_most_batches() {
        let counts = PageCounters::default();
        let ms = Duration::from_millis;
        assert_eq!(counts.snapshot(), PageCounts::default());
        for (step, batches) in [(1, 3), (3, 5), (0, 4)] {
            (0..batches).for_each(|_| counts.packed(Effort::nth(step), ms(2)));
        }
        counts.compared(Duration::from_nanos(1));
        let snapshot = counts.snapshot();
        assert_eq!((snapshot.zstd_level, snapshot.packing_us), (Effort::nth(3).zstd_level(), 24_000));
        assert_eq!(snapshot.compared_us, Some(1));
    }
}
