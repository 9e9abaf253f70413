//! Which version of each page is the latest, and whether both ends hold the same.
//!
//! A page's **version** is the number of barriers before it on its own channel: QEMU sends a page at most once between two
//! barriers, so of two records of a page the one with the higher version is the newer, whichever arrives first. Each
//! version of a page has a **mark**: a MAC (AEGIS-128X2, draft-irtf-cfrg-aegis-aead) over its content, block, number and
//! version, under a key that is drawn for each migration. The sum of the marks of a region's pages is the region's
//! **digest** (a multiset hash: Clarke et al., "Incremental Multiset Hash Functions", ASIACRYPT 2003). Where both ends
//! have the same digests, the target holds the latest version of every page, where it belongs.
//!
//! Costs 20 bytes for a page of 4096 (0.5 %), of regions with any page but untouched zeros.

use std::collections::BTreeMap;

use aegis::aegis128x2::Aegis128X2Mac;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Pages of a region: 2 MiB.
pub const REGION_PAGES: usize = 512;

/// A key for marks, drawn for each migration: without it a guest could look for contents of equal marks.
pub type Key = [u8; 16];

/// Sum of marks, modulo 2^128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(pub u128);

impl Digest {
    fn add(&mut self, mark: u128) {
        self.0 = self.0.wrapping_add(mark);
    }

    fn subtract(&mut self, mark: u128) {
        self.0 = self.0.wrapping_sub(mark);
    }
}

/// Which 2 MiB of which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RegionId {
    /// Number of the block.
    pub block: u16,
    /// Number of the region in it.
    pub region: u32,
}

impl RegionId {
    /// The region of a page, and which of its pages it is.
    pub fn of(block: u16, page: u32) -> (RegionId, usize) {
        (RegionId { block, region: page / REGION_PAGES as u32 }, page as usize % REGION_PAGES)
    }
}

/// A record that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum LedgerError {
    #[error("there is no page {page} in block {block}")]
    NoPage { block: u16, page: u32 },
}

#[derive(Clone, Copy, Default)]
struct Entry {
    /// The version and one more; 0: no record yet.
    version: u32,
    /// The mark in two halves, so that an entry has no padding.
    mark: [u32; 4],
}

impl Entry {
    fn mark(&self) -> u128 {
        self.mark.iter().rev().fold(0, |mark, part| mark << 32 | u128::from(*part))
    }

    fn set_mark(&mut self, mark: u128) {
        self.mark = [0, 32, 64, 96].map(|shift| (mark >> shift) as u32);
    }
}

/// The pages of a region.
pub struct Region {
    entries: Box<[Entry; REGION_PAGES]>,
    digest: Digest,
}

impl Region {
    fn new() -> Region {
        Region { entries: Box::new([Entry::default(); REGION_PAGES]), digest: Digest::default() }
    }

    /// Whether a record of `version` of the nth page is newer than what is known.
    ///
    /// QEMU before 9.0 sends the last page of a full multifd packet once more with the next (`multifd_queue_page`), perhaps on
    /// another channel: two records of one version, of which either may be kept. Where they differ the guest has written in
    /// between, and a newer version follows.
    pub fn is_newer(&self, nth: usize, version: u32) -> bool {
        version + 1 > self.entries[nth].version
    }

    /// The mark of what is known of the nth page.
    pub fn mark(&self, nth: usize) -> u128 {
        self.entries[nth].mark()
    }

    /// The nth page is this now.
    pub fn set(&mut self, nth: usize, version: u32, mark: u128) {
        let entry = &mut self.entries[nth];
        if entry.version > 0 {
            self.digest.subtract(entry.mark());
        }
        entry.version = version + 1;
        entry.set_mark(mark);
        self.digest.add(mark);
    }

    /// The version of the nth page, if it has had a record.
    pub fn version(&self, nth: usize) -> Option<u32> {
        self.entries[nth].version.checked_sub(1)
    }

    /// The sum of the marks of its pages.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// What one end knows of a guest's pages. Threads may share it; each region has a lock.
pub struct Ledger {
    mac: Aegis128X2Mac<16>,
    blocks: Vec<Block>,
}

struct Block {
    pages: u32,
    regions: Vec<Mutex<Option<Region>>>,
}

/// A version that no record has: more barriers than a migration can come to.
pub const VERSION_MAX: u32 = u32::MAX - 2;

impl Ledger {
    /// Of blocks with so many pages, of which nothing was said yet.
    pub fn new(key: &Key, blocks: impl IntoIterator<Item = u32>) -> Ledger {
        let block = |pages: u32| Block {
            pages,
            regions: (0..pages.div_ceil(REGION_PAGES as u32)).map(|_| Mutex::default()).collect(),
        };
        Ledger { mac: Aegis128X2Mac::new(key), blocks: blocks.into_iter().map(block).collect() }
    }

    /// The mark of a version of a page; none: zeros.
    pub fn mark(&self, block: u16, page: u32, version: u32, content: Option<&[u8]>) -> u128 {
        let mut mac = self.mac.clone();
        if let Some(content) = content {
            mac.update(content);
        }
        let mut label = [0; 16];
        label[..2].copy_from_slice(&block.to_le_bytes());
        label[2] = u8::from(content.is_some());
        label[4..8].copy_from_slice(&page.to_le_bytes());
        label[8..12].copy_from_slice(&version.to_le_bytes());
        mac.update(&label);
        u128::from_le_bytes(mac.finalize())
    }

    /// Locks a region of a block for `work`.
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

    /// Notes pages that are sent, with their contents; older ones than are known are passed over.
    ///
    /// # Errors
    /// There is no such page.
    pub fn note<'a>(
        &self,
        block: u16,
        version: u32,
        pages: impl IntoIterator<Item = (u32, Option<&'a [u8]>)>,
    ) -> Result<(), LedgerError> {
        let mut locked: Option<(RegionId, RegionGuard<'_>)> = None;
        for (page, content) in pages {
            let (id, nth) = RegionId::of(block, page);
            if locked.as_ref().is_none_or(|(other, _)| *other != id) {
                // One lock at a time: the next is of any other region.
                drop(locked.take());
                locked = Some((id, self.region(block, page)?));
            }
            let Some((_, region)) = &mut locked else { continue };
            if page >= self.pages(block) {
                return Err(LedgerError::NoPage { block, page });
            }
            if region.is_newer(nth, version) {
                region.set(nth, version, self.mark(block, page, version, content));
            }
        }
        Ok(())
    }

    /// Pages of a block.
    pub fn pages(&self, block: u16) -> u32 {
        self.blocks.get(usize::from(block)).map_or(0, |block| block.pages)
    }

    /// The digests of all regions of which anything is known.
    pub fn digests(&self) -> BTreeMap<RegionId, Digest> {
        let mut digests = BTreeMap::new();
        for (block, of) in self.blocks.iter().enumerate() {
            for (region, entries) in of.regions.iter().enumerate() {
                if let Some(region_of) = &*entries.lock() {
                    digests.insert(RegionId { block: block as u16, region: region as u32 }, region_of.digest());
                }
            }
        }
        digests
    }

    /// The digest of it all.
    pub fn digest(&self) -> Digest {
        let mut sum = Digest::default();
        for entries in self.blocks.iter().flat_map(|block| &block.regions) {
            if let Some(region) = &*entries.lock() {
                sum.add(region.digest().0);
            }
        }
        sum
    }
}

/// A region, locked.
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
    fn an_entry_has_no_padding() {
        assert_eq!(size_of::<Entry>(), 20);
    }

    #[test]
    fn pages_that_are_not_there_are_errors() {
        for (block, page) in [(0, 1000), (1, 3), (2, 0), (u16::MAX, u32::MAX)] {
            assert_eq!(ledger().note(block, 0, [(page, None)]), Err(LedgerError::NoPage { block, page }));
        }
    }

    #[test]
    fn of_one_version_the_first_is_kept() {
        let ledger = ledger();
        let mark = |page: u8| ledger.mark(0, 7, 1, Some(&[page; 4096]));
        for page in [1, 1, 2] {
            ledger.note(0, 1, [(7, Some(&[page; 4096][..]))]).unwrap();
            assert_eq!(ledger.digest(), Digest(mark(1)));
        }
        ledger.note(0, 0, [(7, Some(&[2; 4096][..]))]).unwrap();
        assert_eq!(ledger.digest(), Digest(mark(1)));
    }

    proptest! {
        /// Whatever the order of arrival, the same digest; and a different one for anything else.
        #[test]
        fn the_latest_versions_make_the_digest(
            mut notes in proptest::collection::btree_map((0u16..2, 0u32..3, 0u32..4), 0u8..3, 1..40),
            seed: u64,
        ) {
            let content = |fill: u8| (fill > 0).then_some([fill; 64]);
            let sum = |notes: &[((u16, u32, u32), u8)]| {
                let ledger = ledger();
                for ((block, page, version), fill) in notes {
                    ledger.note(*block, *version, [(*page, content(*fill).as_ref().map(|c| &c[..]))]).unwrap();
                }
                (ledger.digest(), ledger.digests())
            };
            let in_order: Vec<_> = notes.iter().map(|(k, v)| (*k, *v)).collect();
            let mut shuffled = in_order.clone();
            shuffled.sort_by_key(|((b, p, v), _)| (u64::from(*b) * 31 + u64::from(*p) * 7 + u64::from(*v)).wrapping_mul(seed | 1));
            prop_assert_eq!(sum(&in_order), sum(&shuffled));

            // The latest of the last page is different, or lost.
            let (&(block, page, version), &fill) = notes.last_key_value().unwrap();
            let others: Vec<_> = in_order[..in_order.len() - 1].to_vec();
            prop_assert_ne!(sum(&in_order).0, sum(&others).0);
            notes.insert((block, page, version), fill + 1);
            let changed: Vec<_> = notes.into_iter().collect();
            prop_assert_ne!(sum(&in_order).0, sum(&changed).0);
        }
    }
}
