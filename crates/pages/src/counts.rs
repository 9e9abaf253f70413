//! Counts: where the bytes of a migration went. `skein-api` computes what only commands show.

use crate::page::PAGE_BYTES;

/// What became of a guest's pages at the source, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that were sent, over all rounds: zero, packed, stored, unchanged or as deltas.
    pub pages: u64,
    /// Pages of zeros, part of `pages`: next to nothing on the wire.
    pub zero_pages: u64,
    /// Pages that were compressed.
    pub packed_pages: u64,
    /// Bytes to which pages and deltas were compressed.
    pub packed_bytes: u64,
    /// Pages that went as they are.
    pub stored_pages: u64,
    /// Pages that rails wrote into the target guest's RAM.
    pub written_pages: u64,
    /// Pages that the guest wrote to, and whose content the target has all the same: next to nothing on the wire.
    pub unchanged_pages: u64,
    /// Pages of which only what had changed went.
    pub delta_pages: u64,
    /// Bytes of deltas that went as they are, with their heads.
    pub delta_bytes: u64,
    /// Bytes of deltas that were compressed, before compression.
    pub packed_delta_bytes: u64,
    /// Pages sent again because the target's copy differed.
    pub repaired_pages: u64,
    /// Pages that the guest had written to last and that QEMU missed: sent from the guest's RAM. (Only without KVM.)
    pub missed_pages: u64,
    /// Bytes that are no pages: headers, devices' state.
    pub other_bytes: u64,
    /// Bytes that the source's threads have copied from QEMU and between buffers, without those to the network.
    pub copied_bytes: u64,
    /// Bytes that the target's threads have copied to and from the guest's RAM; 0: the target was not asked, as nothing
    /// goes over rails.
    pub target_copied_bytes: u64,
    /// Pages that went as they are because there was no CPU to compress them in time; part of `stored_pages`.
    pub late_pages: u64,
    /// CPU time that compressing took, of all threads, in microseconds.
    pub packing_us: u64,
    /// zstd's level with which most batches were compressed. `None`: LZ4.
    pub zstd_level: Option<i32>,
    /// Microseconds from QEMU's last page until the target reported that it holds the same. The guest stands still
    /// meanwhile, and the last pages' way to the target is included. `None`: nothing was compared, or not yet.
    pub compared_us: Option<u64>,
}

impl PageCounts {
    /// Returns how many bytes the sent pages have in the guest.
    pub fn guest_bytes(&self) -> u64 {
        bytes(self.pages)
    }

    /// Returns how many bytes went as they are.
    pub fn stored_bytes(&self) -> u64 {
        bytes(self.stored_pages)
    }

    /// Returns how many bytes rails wrote into the target guest's RAM.
    pub fn written_bytes(&self) -> u64 {
        bytes(self.written_pages)
    }

    /// Returns how many bytes were sent again because the target's copy differed.
    pub fn repaired_bytes(&self) -> u64 {
        bytes(self.repaired_pages)
    }

    /// Returns how many bytes pages and the rest took on the wire, without framing and encryption.
    pub fn wire_bytes(&self) -> u64 {
        let of_pages = self.packed_bytes.saturating_add(self.stored_bytes()).saturating_add(self.delta_bytes);
        of_pages.saturating_add(self.written_bytes()).saturating_add(self.other_bytes)
    }
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_the_sum_of_its_kinds() {
        let none = PageCounts::default();
        assert_eq!(none.wire_bytes(), 0);
        assert_eq!(PageCounts { other_bytes: 11_457, ..none }.wire_bytes(), 11_457);
        let counts = PageCounts {
            pages: 15,
            zero_pages: 2,
            packed_pages: 5,
            packed_bytes: 4096,
            stored_pages: 3,
            unchanged_pages: 1,
            delta_pages: 4,
            delta_bytes: 2048,
            other_bytes: 1024,
            ..none
        };
        assert_eq!((counts.guest_bytes(), counts.stored_bytes()), (15 * 4096, 3 * 4096));
        assert_eq!(counts.wire_bytes(), 4 * 4096 + 3072);
        // However large the numbers are that another agent reports.
        let most = PageCounts { pages: u64::MAX, stored_pages: u64::MAX, packed_bytes: u64::MAX, ..none };
        assert_eq!((most.guest_bytes(), most.wire_bytes()), (u64::MAX, u64::MAX));
    }
}
