//! Where the bytes of a migration went. What else commands show of them is computed in `skein-api`.

use crate::page::PAGE_BYTES;

/// What became of a guest's pages at the source, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages that were sent, over all rounds: zero, packed, stored, unchanged or as deltas.
    pub pages: u64,
    /// Of these, pages of zeros: next to nothing on the wire.
    pub zero_pages: u64,
    /// Pages that were compressed …
    pub packed_pages: u64,
    /// … to so many bytes, with the deltas that were.
    pub packed_bytes: u64,
    /// Pages that went as they are.
    pub stored_pages: u64,
    /// Pages that the guest had written to and that hold what the target has: next to nothing on the wire.
    pub unchanged_pages: u64,
    /// Pages of which only what had changed went …
    pub delta_pages: u64,
    /// … and so many bytes of that as they are, with what says where they belong …
    pub delta_bytes: u64,
    /// … and so many that were compressed, before they were.
    pub packed_delta_bytes: u64,
    /// Pages sent again since the target's copy differed.
    pub repaired_pages: u64,
    /// Pages that the guest had written to last and that QEMU missed: sent from its RAM. (Without KVM only.)
    pub missed_pages: u64,
    /// Bytes that are no pages: headers, devices' state.
    pub other_bytes: u64,
    /// Of those that went as they are: since there was no CPU to compress them in time.
    pub late_pages: u64,
    /// Microseconds of CPU that compressing took, of all threads.
    pub packing_us: u64,
    /// zstd's level that most batches were compressed with; none: LZ4.
    pub zstd_level: Option<i32>,
    /// Microseconds from QEMU's last page until the target had said that it holds the same, in which the guest stands
    /// still; the last pages' way to the target is in it. None: nothing was compared, or not yet.
    pub compared_us: Option<u64>,
}

impl PageCounts {
    /// Bytes of the pages in the guest.
    pub fn guest_bytes(&self) -> u64 {
        bytes(self.pages)
    }

    /// Bytes that went as they are.
    pub fn stored_bytes(&self) -> u64 {
        bytes(self.stored_pages)
    }

    /// Bytes sent again since the target's copy differed.
    pub fn repaired_bytes(&self) -> u64 {
        bytes(self.repaired_pages)
    }

    /// Bytes that pages and the rest took on the wire, but for framing and encryption.
    pub fn wire_bytes(&self) -> u64 {
        let of_pages = self.packed_bytes.saturating_add(self.stored_bytes()).saturating_add(self.delta_bytes);
        of_pages.saturating_add(self.other_bytes)
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
        // Whatever another agent says.
        let most = PageCounts { pages: u64::MAX, stored_pages: u64::MAX, packed_bytes: u64::MAX, ..none };
        assert_eq!((most.guest_bytes(), most.wire_bytes()), (u64::MAX, u64::MAX));
    }
}
