//! The ledger: which version of each page is the latest, and whether both ends hold the same.
//!
//! A page's **version** is the number of barriers before it on its own channel: QEMU sends a page at most once between
//! two barriers, so of two records of a page the one with the higher version is the newer, whichever arrives first.
//! If both ends have the same [digests](crate::Digest), the target holds of every page what the source sent last, in
//! its place.
//!
//! The ledger costs 20 bytes for a page of 4096 (0.5 %), for regions that have any page but untouched zeros.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;

use crate::mark::{Digest, Key, Marker};
use crate::page::REGION_PAGES;
use crate::region::{Region, RegionId};

/// Why a page cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum LedgerError {
    #[error("there is no page {page} in block {block}")]
    NoPage { block: u16, page: u32 },
}

/// What one end knows of a guest's pages. Threads may share it; each region has a lock.
pub struct Ledger {
    marker: Marker,
    blocks: Vec<Block>,
}

struct Block {
    pages: u32,
    regions: Vec<Mutex<Option<Region>>>,
}

impl Ledger {
    /// Returns a ledger of blocks with so many pages each, about which nothing was noted yet.
    pub fn new(key: &Key, blocks: impl IntoIterator<Item = u32>) -> Ledger {
        let block = |pages: u32| Block {
            pages,
            regions: (0..pages.div_ceil(REGION_PAGES as u32)).map(|_| Mutex::default()).collect(),
        };
        Ledger { marker: Marker::new(key), blocks: blocks.into_iter().map(block).collect() }
    }

    /// Returns the mark of a page's content. `content` is `None` for zeros.
    pub fn mark(&self, block: u16, page: u32, content: Option<&[u8]>) -> u128 {
        self.marker.mark(block, page, content)
    }

    /// Returns the nth of a series of numbers that are as random as the key.
    pub fn keyed_number(&self, nth: u32) -> u128 {
        self.marker.keyed_number(nth)
    }

    /// Returns how many pages a block has.
    pub fn pages(&self, block: u16) -> u32 {
        self.blocks.get(usize::from(block)).map_or(0, |block| block.pages)
    }

    /// Returns how many regions all blocks have.
    pub(crate) fn regions(&self) -> usize {
        self.blocks.iter().map(|block| block.regions.len()).sum()
    }

    /// Locks the region of a page.
    ///
    /// # Errors
    /// There is no such page.
    pub fn region(&self, block: u16, page: u32) -> Result<RegionGuard<'_>, LedgerError> {
        let no_page = LedgerError::NoPage { block, page };
        let of = self.blocks.get(usize::from(block)).filter(|of| page < of.pages).ok_or(no_page)?;
        let mut region = of.regions[page as usize / REGION_PAGES].lock();
        region.get_or_insert_with(Region::new);
        Ok(RegionGuard(region))
    }

    /// Notes pages that are sent whole, with their contents. Versions older than the known one are ignored.
    ///
    /// # Errors
    /// There is no such page.
    pub fn note_whole_pages<'a>(
        &self,
        block: u16,
        version: u32,
        pages: impl IntoIterator<Item = (u32, Option<&'a [u8]>)>,
    ) -> Result<(), LedgerError> {
        self.each(block, pages, |region, nth, page, content| {
            if region.is_newer(nth, version) {
                region.set(nth, version, self.mark(block, page, content));
            }
        })
    }

    /// Returns which of these pages have another content than they had when they were sent last.
    ///
    /// # Errors
    /// There is no such page.
    pub fn changed<'a>(
        &self,
        block: u16,
        pages: impl IntoIterator<Item = (u32, Option<&'a [u8]>)>,
    ) -> Result<Vec<u32>, LedgerError> {
        let mut changed = Vec::new();
        self.each(block, pages, |region, nth, page, content| {
            if region.version(nth).is_none() || region.mark(nth) != self.mark(block, page, content) {
                changed.push(page);
            }
        })?;
        Ok(changed)
    }

    /// Calls `work` for each of the pages, with one region locked at a time.
    pub(crate) fn each<'a>(
        &self,
        block: u16,
        pages: impl IntoIterator<Item = (u32, Option<&'a [u8]>)>,
        mut work: impl FnMut(&mut Region, usize, u32, Option<&'a [u8]>),
    ) -> Result<(), LedgerError> {
        let mut locked: Option<(RegionId, RegionGuard<'_>)> = None;
        for (page, content) in pages {
            let (id, nth) = RegionId::of(block, page);
            if locked.as_ref().is_none_or(|(other, _)| *other != id) {
                // Only one lock at a time: the next region may be any other.
                drop(locked.take());
                locked = Some((id, self.region(block, page)?));
            }
            let Some((_, region)) = &mut locked else { continue };
            if page >= self.pages(block) {
                return Err(LedgerError::NoPage { block, page });
            }
            work(region, nth, page, content);
        }
        Ok(())
    }

    /// Returns the mark of a page that was noted. `None`: it was not.
    pub(crate) fn known_mark(&self, block: u16, page: u32) -> Option<u128> {
        let (id, nth) = RegionId::of(block, page);
        let region = self.blocks.get(usize::from(block))?.regions.get(id.region as usize)?.lock();
        region.as_ref().filter(|region| region.version(nth).is_some()).map(|region| region.mark(nth))
    }

    /// Returns the regions with owed pages: pages that do not hold what the ledger says.
    pub fn owed(&self) -> BTreeSet<RegionId> {
        self.known().filter(|(_, region)| region.is_any_owed()).map(|(id, _)| id).collect()
    }

    /// Returns the digests of all regions about which anything is known.
    pub fn digests(&self) -> BTreeMap<RegionId, Digest> {
        self.known().map(|(id, region)| (id, region.digest())).collect()
    }

    /// Returns the digest of all pages.
    pub fn digest(&self) -> Digest {
        let mut sum = Digest::default();
        self.known().for_each(|(_, region)| sum.add(region.digest().0));
        sum
    }

    /// Returns the regions about which anything is known. Each is locked while its guard lives.
    pub(crate) fn known(&self) -> impl Iterator<Item = (RegionId, RegionGuard<'_>)> {
        self.blocks.iter().zip(0u16..).flat_map(|(of, block)| {
            of.regions.iter().zip(0u32..).filter_map(move |(entries, region)| {
                let guard = entries.lock();
                guard.is_some().then(|| (RegionId { block, region }, RegionGuard(guard)))
            })
        })
    }
}

/// A locked region.
pub struct RegionGuard<'a>(MutexGuard<'a, Option<Region>>);

impl std::ops::Deref for RegionGuard<'_> {
    type Target = Region;

    fn deref(&self) -> &Region {
        self.0.as_ref().expect("made when it was locked")
    }
}

impl std::ops::DerefMut for RegionGuard<'_> {
    fn deref_mut(&mut self) -> &mut Region {
        self.0.as_mut().expect("made when it was locked")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ledger() -> Ledger {
        Ledger::new(&[7; 16], [1000, 3])
    }

    #[test]
    fn pages_that_are_not_there_are_errors() {
        for (block, page) in [(0, 1000), (1, 3), (2, 0), (u16::MAX, u32::MAX)] {
            assert_eq!(ledger().note_whole_pages(block, 0, [(page, None)]), Err(LedgerError::NoPage { block, page }));
        }
    }

    #[test]
    fn of_one_version_the_first_is_kept() {
        let ledger = ledger();
        let mark = |page: u8| ledger.mark(0, 7, Some(&[page; 4096]));
        for page in [1, 1, 2] {
            ledger.note_whole_pages(0, 1, [(7, Some(&[page; 4096][..]))]).unwrap();
            assert_eq!(ledger.digest(), Digest(mark(1)));
        }
        ledger.note_whole_pages(0, 0, [(7, Some(&[2; 4096][..]))]).unwrap();
        assert_eq!(ledger.digest(), Digest(mark(1)));
    }

    #[test]
    fn what_is_not_as_it_was_sent_is_told() {
        let ledger = ledger();
        let one = [1; 4096];
        ledger.note_whole_pages(0, 0, [(1, Some(&one[..])), (2, Some(&one[..])), (600, None)]).unwrap();
        let two = [2; 4096];
        let now = [(1, Some(&one[..])), (2, Some(&two[..])), (3, None), (600, None)];
        assert_eq!(ledger.changed(0, now).unwrap(), [2, 3]);
        assert!(ledger.changed(0, [(1000, None)]).is_err());
    }

    /// Returns a page's content for each number. 0: zeros.
    fn content(fill: u8) -> Option<[u8; 4096]> {
        (fill > 0).then(|| std::array::from_fn(|at| if at / 1000 == usize::from(fill) { fill } else { 9 }))
    }

    proptest! {
        /// Whatever the order of arrival, the digest is the same; it differs for any other content.
        #[test]
        fn the_latest_versions_make_the_digest(
            notes in proptest::collection::btree_map((0u16..2, 0u32..3, 0u32..4), 0u8..3, 1..40),
            seed: u64,
        ) {
            let sum = |notes: &[((u16, u32, u32), u8)]| {
                let ledger = ledger();
                for ((block, page, version), fill) in notes {
                    let content = content(*fill);
                    ledger.note_whole_pages(*block, *version, [(*page, content.as_ref().map(|c| &c[..]))]).unwrap();
                }
                (ledger.digest(), ledger.digests())
            };
            let in_order: Vec<_> = notes.iter().map(|(k, v)| (*k, *v)).collect();
            let mut shuffled = in_order.clone();
            shuffled.sort_by_key(|((b, p, v), _)| {
                (u64::from(*b) * 31 + u64::from(*p) * 7 + u64::from(*v)).wrapping_mul(seed | 1)
            });
            prop_assert_eq!(sum(&in_order), sum(&shuffled));

            // The latest version of the last page is different, or lost.
            let ((block, page, _), fill) = *in_order.last().unwrap();
            let (others, last) = in_order.split_at(in_order.len() - 1);
            let before = others.last().filter(|((b, p, _), _)| (*b, *p) == (block, page)).map(|(_, fill)| *fill);
            prop_assert_eq!(sum(&in_order).0 == sum(others).0, before == Some(fill));
            let changed = [others, &[(last[0].0, fill + 1)]].concat();
            prop_assert_ne!(sum(&in_order).0, sum(&changed).0);
        }
    }

    #[test]
    fn a_page_that_is_owed_is_so_until_it_is_there() {
        let ledger = ledger();
        let page = content(1).unwrap();
        ledger.region(0, 600).unwrap().mark_owed(88, 3, 7);
        let (id, nth) = RegionId::of(0, 600);
        assert_eq!((ledger.owed(), ledger.digest()), (BTreeSet::from([id]), Digest(7)));
        ledger.note_whole_pages(0, 3, [(600, Some(&page[..]))]).unwrap();
        assert!(ledger.region(0, 600).unwrap().is_owed(nth), "that is no newer one");
        ledger.note_whole_pages(0, 4, [(600, Some(&page[..]))]).unwrap();
        assert!(ledger.owed().is_empty());
    }
}
