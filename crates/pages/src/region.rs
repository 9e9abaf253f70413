//! What is known about the pages of a region: the latest version of each, and its mark.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::mark::Digest;
use crate::page::REGION_PAGES;
use crate::sketch::Sketches;

/// A region: which 2 MiB of which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RegionId {
    /// Number of the block.
    pub block: u16,
    /// Number of the region in the block.
    pub region: u32,
}

impl RegionId {
    /// Returns the region of a page, and the page's number in the region.
    pub fn of(block: u16, page: u32) -> (RegionId, usize) {
        (RegionId { block, region: page / REGION_PAGES as u32 }, page as usize % REGION_PAGES)
    }
}

#[derive(Clone, Copy, Default)]
struct PageEntry {
    /// The version plus one. 0: no record yet.
    version: u32,
    /// The mark in four parts, so that an entry has no padding.
    mark: [u32; 4],
}

impl PageEntry {
    fn mark(&self) -> u128 {
        self.mark.iter().rev().fold(0, |mark, part| mark << 32 | u128::from(*part))
    }

    fn set_mark(&mut self, mark: u128) {
        self.mark = [0, 32, 64, 96].map(|shift| (mark >> shift) as u32);
    }
}

/// The pages of a region.
pub struct Region {
    entries: Box<[PageEntry; REGION_PAGES]>,
    digest: Digest,
    pub(crate) sketches: Option<Box<Sketches>>,
    /// Pages that do not hold what is noted for them: see [`Self::mark_owed`].
    owed: BTreeSet<u16>,
    /// Pages that are held back.
    pub(crate) held: BTreeSet<u16>,
}

impl Region {
    pub(crate) fn new() -> Region {
        let entries = Box::new([PageEntry::default(); REGION_PAGES]);
        Region { entries, digest: Digest::default(), sketches: None, owed: BTreeSet::new(), held: BTreeSet::new() }
    }

    /// Returns whether a record of `version` of the nth page is newer than what is known.
    ///
    /// QEMU before 9.0 sends the last page of a full multifd packet once more with the next (`multifd_queue_page`),
    /// perhaps on another channel: two records of one version, of which either may be kept. Where they differ the guest
    /// has written in between, and a newer version follows.
    pub fn is_newer(&self, nth: usize, version: u32) -> bool {
        version + 1 > self.entries[nth].version
    }

    /// Returns the version of the nth page, if it has had a record.
    pub fn version(&self, nth: usize) -> Option<u32> {
        self.entries[nth].version.checked_sub(1)
    }

    /// Returns the mark of what is known of the nth page.
    pub fn mark(&self, nth: usize) -> u128 {
        self.entries[nth].mark()
    }

    /// Notes the version and the mark that the nth page has now.
    pub fn set(&mut self, nth: usize, version: u32, mark: u128) {
        let entry = &mut self.entries[nth];
        if entry.version > 0 {
            self.digest.subtract(entry.mark());
        }
        entry.version = version + 1;
        entry.set_mark(mark);
        self.digest.add(mark);
        self.owed.remove(&(nth as u16));
        self.held.remove(&(nth as u16));
        if let Some(sketches) = &mut self.sketches {
            sketches.forget(nth);
        }
    }

    /// Notes the version and the mark that the nth page should have and does not: the page has to be sent whole.
    pub fn mark_owed(&mut self, nth: usize, version: u32, mark: u128) {
        self.set(nth, version, mark);
        self.owed.insert(nth as u16);
    }

    /// Returns whether the nth page is owed: it does not hold what it should.
    pub fn is_owed(&self, nth: usize) -> bool {
        self.owed.contains(&(nth as u16))
    }

    /// Returns whether any page is owed.
    pub(crate) fn is_any_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Returns the sum of the marks of the region's pages.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_no_padding() {
        assert_eq!(size_of::<PageEntry>(), 20);
    }
}
