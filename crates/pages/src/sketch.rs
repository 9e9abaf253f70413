//! Sketches: hashes of the parts of pages. By them a source that stores no page knows which parts of a page changed.

use crate::delta::{PART_BYTES, PARTS_PER_PAGE};
use crate::page::REGION_PAGES;

/// Hashes of a page's parts.
pub(crate) type Sketch = [u32; PARTS_PER_PAGE];

/// Returns the hashes of a page's parts: 32 bits of XXH3 of each, seeded for each migration.
pub(crate) fn sketch(page: &[u8], seed: u64) -> Sketch {
    let mut hashes = page.chunks_exact(PART_BYTES).map(|part| xxhash_rust::xxh3::xxh3_64_with_seed(part, seed) as u32);
    std::array::from_fn(|_| hashes.next().unwrap_or_default())
}

/// Returns which parts have other hashes, the first in the lowest bit.
pub(crate) fn changed(before: &Sketch, after: &Sketch) -> u32 {
    before.iter().zip(after).rev().fold(0, |changed, (before, after)| changed << 1 | u32::from(before != after))
}

/// Bytes that the hashes of a region take.
pub(crate) const SKETCHES_BYTES: u64 = size_of::<Sketches>() as u64;

/// The hashes of the parts of a region's pages.
pub(crate) struct Sketches {
    of: [Sketch; REGION_PAGES],
    /// One bit for each page: whether its hashes are those of its latest version.
    known: [u64; REGION_PAGES / 64],
    /// How many times each page was sent whole after its first sending.
    resent_whole: [u8; REGION_PAGES],
}

impl Sketches {
    pub(crate) fn new() -> Box<Sketches> {
        Box::new(Sketches {
            of: [[0; PARTS_PER_PAGE]; REGION_PAGES],
            known: [0; REGION_PAGES / 64],
            resent_whole: [0; REGION_PAGES],
        })
    }

    /// Returns the hashes of the latest version of the nth page. `None`: not known.
    pub(crate) fn get(&self, nth: usize) -> Option<&Sketch> {
        (self.known[nth / 64] >> (nth % 64) & 1 == 1).then(|| &self.of[nth])
    }

    pub(crate) fn set(&mut self, nth: usize, sketch: Sketch) {
        self.of[nth] = sketch;
        self.known[nth / 64] |= 1 << (nth % 64);
    }

    pub(crate) fn forget(&mut self, nth: usize) {
        self.known[nth / 64] &= !(1 << (nth % 64));
    }

    /// Counts that the nth page would go whole once more. Returns the count.
    pub(crate) fn count_resent_whole(&mut self, nth: usize) -> u8 {
        self.resent_whole[nth] = self.resent_whole[nth].saturating_add(1);
        self.resent_whole[nth]
    }
}
