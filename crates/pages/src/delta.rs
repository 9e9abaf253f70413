//! Deltas: what changed of a page since it was sent last.
//!
//! A page has [`PARTS_PER_PAGE`] parts of [`PART_BYTES`]. A **delta** is those of its parts that changed, what it is a
//! change of (the version that was sent before), and the [mark](crate::Digest) of the result. The source knows parts
//! that changed by 32 bits of a hash of each (XXH3, seeded for each migration), so that it need not keep the page; a
//! hash that is the same by chance makes a delta whose result is not the page. The mark tells: it is 128 bits under the
//! migration's key, made at the source of the whole page, and at the target of the result before that is written. What
//! has another mark is not applied, and the page goes whole before the migration ends.
//!
//! A page of which nothing changed is a delta of no part: 24 bytes.

use bytes::BytesMut;

use crate::page::{PAGE_BYTES, VERSION_KEPT, VERSION_MAX, VERSION_WRITTEN};

/// Bytes of a part: a small change costs one part, and the hashes of all parts take 3.1 % of a page.
pub const PART_BYTES: usize = 128;
/// Parts of a page.
pub const PARTS_PER_PAGE: usize = PAGE_BYTES / PART_BYTES;
/// Most parts that a delta may have, three quarters: a page of which more changed goes whole.
const CHANGED_MAX: u32 = PARTS_PER_PAGE as u32 * 3 / 4;
/// Most bytes that change in a delta.
pub const DELTA_BYTES_MAX: usize = CHANGED_MAX as usize * PART_BYTES;

/// A delta without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHead {
    /// The version of the page that the delta changes, [`VERSION_KEPT`], or [`VERSION_WRITTEN`].
    pub base: u32,
    /// The mark of the result.
    pub mark: u128,
    /// Which parts change, the first in the lowest bit.
    pub changed: u32,
}

impl DeltaHead {
    /// Returns the delta of a page that is sent elsewhere in this version or a newer one: nothing has to be done.
    pub fn unchanged(version: u32) -> DeltaHead {
        DeltaHead { base: version, mark: 0, changed: 0 }
    }

    /// Returns the delta of a page that a rail has written into the guest's RAM: the page is there.
    pub fn written(mark: u128) -> DeltaHead {
        DeltaHead { base: VERSION_WRITTEN, mark, changed: 0 }
    }

    /// Returns whether such a delta is possible: neither too many parts nor a version that cannot be.
    pub fn is_valid(&self) -> bool {
        let is_possible = self.changed.count_ones() <= CHANGED_MAX && self.base <= VERSION_MAX;
        is_possible && (!self.is_written() || self.changed == 0)
    }

    /// Returns whether a rail has written the page: see [`Self::written`].
    pub fn is_written(&self) -> bool {
        self.base == VERSION_WRITTEN
    }

    /// Returns whether nothing has to be done for the delta in a batch of this version: see [`Self::unchanged`].
    pub fn is_unchanged(&self, version: u32) -> bool {
        self.base >= version && self.base != VERSION_KEPT && !self.is_written()
    }

    /// Returns how many bytes change.
    pub fn bytes(&self) -> usize {
        self.changed.count_ones() as usize * PART_BYTES
    }

    /// Returns where in the page the changed parts begin, in order.
    fn offsets(self) -> impl Iterator<Item = usize> {
        (0..PARTS_PER_PAGE).filter(move |part| self.changed >> part & 1 == 1).map(|part| part * PART_BYTES)
    }

    /// Appends the parts of `page` that change to `out`.
    pub fn gather(&self, page: &[u8], out: &mut BytesMut) {
        self.offsets().for_each(|at| out.extend_from_slice(&page[at..at + PART_BYTES]));
    }

    /// Writes `parts`, which have [`Self::bytes`] bytes, into `page`.
    pub fn apply(&self, parts: &[u8], page: &mut [u8]) {
        for (at, part) in self.offsets().zip(parts.chunks_exact(PART_BYTES)) {
            page[at..at + PART_BYTES].copy_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sketch::{changed, sketch};

    proptest! {
        #[test]
        fn what_changed_makes_the_page_again(
            writes in proptest::collection::vec((0..PAGE_BYTES, any::<u8>()), 0..40),
            seed: u64,
        ) {
            let before: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 7 % 251) as u8).collect();
            let mut after = before.clone();
            writes.iter().for_each(|(at, byte)| after[*at] = *byte);
            let head = DeltaHead { base: 0, mark: 0, changed: changed(&sketch(&before, seed), &sketch(&after, seed)) };
            for (nth, (old, new)) in before.chunks(PART_BYTES).zip(after.chunks(PART_BYTES)).enumerate() {
                prop_assert_eq!(head.changed >> nth & 1 == 1, old != new);
            }
            let mut parts = BytesMut::new();
            head.gather(&after, &mut parts);
            prop_assert_eq!(parts.len(), head.bytes());
            let mut page = before;
            head.apply(&parts, &mut page);
            prop_assert!(page == after);
        }
    }

    #[test]
    fn a_page_that_changed_mostly_is_no_delta() {
        let head = |changed| DeltaHead { base: 0, mark: 0, changed };
        assert!(!DeltaHead::unchanged(u32::MAX).is_valid());
        assert!(head(0).is_valid() && head((1 << CHANGED_MAX) - 1).is_valid() && !head(u32::MAX).is_valid());
        assert_eq!(head((1 << CHANGED_MAX) - 1).bytes(), DELTA_BYTES_MAX);
    }
}
