//! Which version of each page is the latest, and whether both ends hold the same.
//!
//! A page's **version** is the number of barriers before it on its own channel: QEMU sends a page at most once between
//! two barriers, so of two records of a page the one with the higher version is the newer, whichever arrives first.
//! What a page holds has a **mark**: a MAC (AEGIS-128X2, draft-irtf-cfrg-aegis-aead) over its content, block and
//! number, under a key that is drawn for each migration. The sum of the marks of a region's pages is the region's
//! **digest** (a multiset hash: Clarke et al., "Incremental Multiset Hash Functions", ASIACRYPT 2003). Where both ends
//! have the same digests, the target holds what the source sent last of every page, where it belongs.
//!
//! A source that is to send [deltas](crate::delta) keeps hashes of the parts of pages, too, as far as it may. And it
//! may **hold** pages that the guest writes anew again and again: the target is told that they are what it has, and
//! gets them once the guest stands still. Until then their marks differ, so that none can be forgotten.
//!
//! Where the guest came from the very host that it goes to, and that kept its RAM, the marks of that trip say what need
//! not be sent: a page of the same mark is a delta of no part, of what was [`VERSION_KEPT`].
//!
//! Costs 20 bytes for a page of 4096 (0.5 %), of regions with any page but untouched zeros; with hashes 149 (3.6 %).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use aegis::aegis128x2::Aegis128X2Mac;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::delta::{self, DeltaHead, PARTS_PER_PAGE, Sketch};

/// Pages of a region: 2 MiB.
pub const REGION_PAGES: usize = 512;

/// A key for marks, drawn for each migration but one that builds on an earlier one's marks: without it a guest could
/// look for contents of equal marks.
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
struct PageEntry {
    /// The version and one more; 0: no record yet.
    version: u32,
    /// The mark in two halves, so that an entry has no padding.
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
    sketches: Option<Box<Sketches>>,
    /// Pages that do not hold what is known of them: see [`Self::mark_owed`].
    owed: BTreeSet<u16>,
    /// Pages that are held.
    held: BTreeSet<u16>,
}

/// The hashes of the parts of a region's pages.
struct Sketches {
    of: [Sketch; REGION_PAGES],
    /// One bit for each page: they are of its latest version.
    known: [u64; REGION_PAGES / 64],
    /// How often each page was sent whole after it had been sent.
    rewritten: [u8; REGION_PAGES],
}

/// A page that would go whole for the so-manieth time after the first is one that the guest writes in every round.
const HOLD_AFTER: u8 = 3;

/// What the hashes of a region take.
const SKETCHES_BYTES: u64 = size_of::<Sketches>() as u64;

impl Sketches {
    fn new() -> Box<Sketches> {
        Box::new(Sketches {
            of: [[0; PARTS_PER_PAGE]; REGION_PAGES],
            known: [0; REGION_PAGES / 64],
            rewritten: [0; REGION_PAGES],
        })
    }

    fn get(&self, nth: usize) -> Option<&Sketch> {
        (self.known[nth / 64] >> (nth % 64) & 1 == 1).then(|| &self.of[nth])
    }

    fn set(&mut self, nth: usize, sketch: Sketch) {
        self.of[nth] = sketch;
        self.known[nth / 64] |= 1 << (nth % 64);
    }

    fn forget(&mut self, nth: usize) {
        self.known[nth / 64] &= !(1 << (nth % 64));
    }
}

impl Region {
    fn new() -> Region {
        let entries = Box::new([PageEntry::default(); REGION_PAGES]);
        Region { entries, digest: Digest::default(), sketches: None, owed: BTreeSet::new(), held: BTreeSet::new() }
    }

    /// Whether a record of `version` of the nth page is newer than what is known.
    ///
    /// QEMU before 9.0 sends the last page of a full multifd packet once more with the next (`multifd_queue_page`),
    /// perhaps on another channel: two records of one version, of which either may be kept. Where they differ the guest
    /// has written in between, and a newer version follows.
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
        self.owed.remove(&(nth as u16));
        self.held.remove(&(nth as u16));
        if let Some(sketches) = &mut self.sketches {
            sketches.forget(nth);
        }
    }

    /// The nth page should be this now, and is not: it has to be sent whole.
    pub fn mark_owed(&mut self, nth: usize, version: u32, mark: u128) {
        self.set(nth, version, mark);
        self.owed.insert(nth as u16);
    }

    /// Whether the nth page is not what it should be.
    pub fn is_owed(&self, nth: usize) -> bool {
        self.owed.contains(&(nth as u16))
    }

    /// Has the nth page held, in this version, or goes on to. Gives what the target is told.
    fn hold(&mut self, nth: usize, version: u32) -> Option<DeltaHead> {
        let base = self.version(nth)?;
        let is_held = self.held.contains(&(nth as u16));
        let mark = self.mark(nth).wrapping_sub(u128::from(is_held));
        // Their hashes stay those of what the target has.
        let sketches = self.sketches.take();
        self.set(nth, version, mark.wrapping_add(1));
        self.sketches = sketches;
        self.held.insert(nth as u16);
        Some(DeltaHead { base, mark, changed: 0 })
    }

    /// The nth page is held no more. Whether it was.
    fn release(&mut self, nth: usize) -> bool {
        let is_held = self.held.contains(&(nth as u16));
        if is_held && let Some(version) = self.version(nth) {
            let sketches = self.sketches.take();
            self.set(nth, version, self.mark(nth).wrapping_sub(1));
            self.sketches = sketches;
        }
        is_held
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
    deltas: Option<DeltaMemory>,
    kept_base: Option<KeptBase>,
}

/// What the target keeps of an earlier trip.
struct KeptBase {
    marks: Arc<Ledger>,
    is_doubted: AtomicBool,
}

/// What deltas are made with.
struct DeltaMemory {
    /// Of the hashes.
    seed: u64,
    /// Bytes that hashes may still take.
    left: AtomicU64,
    /// They may take as much as all pages need: there is no need to see first which are written again.
    all: bool,
    /// Pages that may be held, and that are.
    may_hold: AtomicU64,
    held: AtomicU64,
    /// Pages of which it was said that they are held, each time that it was.
    spared: AtomicU64,
}

impl DeltaMemory {
    /// Whether a page that would go whole once more is held instead.
    fn holds(&self, region: &mut Region, nth: usize) -> bool {
        let Some(sketches) = &mut region.sketches else { return false };
        sketches.rewritten[nth] = sketches.rewritten[nth].saturating_add(1);
        let take = |held: u64| (held < self.may_hold.load(Relaxed)).then_some(held + 1);
        sketches.rewritten[nth] >= HOLD_AFTER && self.held.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Takes memory for the hashes of one more region.
    fn take(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(SKETCHES_BYTES)).is_ok()
    }
}

struct Block {
    pages: u32,
    regions: Vec<Mutex<Option<Region>>>,
}

/// A version that no record has: more barriers than a migration can come to.
pub const VERSION_MAX: u32 = u32::MAX - 2;

/// In place of a delta's base: what the target keeps of the guest's last stay.
pub const VERSION_KEPT: u32 = VERSION_MAX;

impl Ledger {
    /// Of blocks with so many pages, of which nothing was said yet.
    pub fn new(key: &Key, blocks: impl IntoIterator<Item = u32>) -> Ledger {
        let block = |pages: u32| Block {
            pages,
            regions: (0..pages.div_ceil(REGION_PAGES as u32)).map(|_| Mutex::default()).collect(),
        };
        let blocks = blocks.into_iter().map(block).collect();
        Ledger { mac: Aegis128X2Mac::new(key), blocks, deltas: None, kept_base: None }
    }

    /// With deltas, for which hashes may take so many bytes.
    pub fn with_deltas(mut self, bytes_max: u64) -> Ledger {
        let regions: usize = self.blocks.iter().map(|block| block.regions.len()).sum();
        let all = bytes_max >= regions as u64 * SKETCHES_BYTES;
        self.deltas = Some(DeltaMemory {
            seed: self.keyed_number(u32::MAX) as u64,
            left: AtomicU64::new(bytes_max),
            all,
            may_hold: AtomicU64::new(0),
            held: AtomicU64::new(0),
            spared: AtomicU64::new(0),
        });
        self
    }

    /// Whether there are deltas.
    pub fn has_deltas(&self) -> bool {
        self.deltas.is_some()
    }

    /// From now on at most so many pages are held.
    pub fn set_held_pages_max(&self, pages: u64) {
        self.deltas.iter().for_each(|deltas| deltas.may_hold.store(pages, Relaxed));
    }

    /// How many pages were not sent as they are held, over all rounds.
    pub fn held_back_pages(&self) -> u64 {
        self.deltas.as_ref().map_or(0, |deltas| deltas.spared.load(Relaxed))
    }

    /// How many pages are held.
    pub fn held(&self) -> u64 {
        self.deltas.as_ref().map_or(0, |deltas| deltas.held.load(Relaxed))
    }

    /// All pages that are held, by regions, for the last time: they are held no more.
    pub fn release(&self) -> Vec<(RegionId, Vec<u32>)> {
        self.set_held_pages_max(0);
        let release = |(id, mut region): (RegionId, RegionGuard<'_>)| {
            let held = region.held.clone();
            let pages = held.into_iter().filter(|nth| region.release(usize::from(*nth)));
            let pages: Vec<u32> = pages.map(|nth| id.region * REGION_PAGES as u32 + u32::from(nth)).collect();
            (!pages.is_empty()).then_some((id, pages))
        };
        let released: Vec<_> = self.known().filter_map(release).collect();
        self.deltas.iter().for_each(|deltas| deltas.held.store(0, Relaxed));
        released
    }

    /// Of pages with these contents, those that are not what they were when they were sent last.
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

    /// With the marks of what the target keeps, made under the same key.
    pub fn with_kept(mut self, marks: Arc<Ledger>) -> Ledger {
        self.kept_base = Some(KeptBase { marks, is_doubted: AtomicBool::new(false) });
        self
    }

    /// Whether pages are built on what the target keeps.
    pub fn has_kept(&self) -> bool {
        self.kept_base.is_some()
    }

    /// From now on no page is built on what the target keeps.
    pub fn doubt_kept(&self) {
        self.kept_base.iter().for_each(|kept| kept.is_doubted.store(true, Relaxed));
    }

    /// Whether the target keeps a page of this mark.
    fn is_kept(&self, block: u16, page: u32, mark: u128) -> bool {
        let sound = self.kept_base.as_ref().filter(|kept| !kept.is_doubted.load(Relaxed));
        sound.is_some_and(|kept| kept.marks.known_mark(block, page) == Some(mark))
    }

    /// The mark of a page that has had a record.
    fn known_mark(&self, block: u16, page: u32) -> Option<u128> {
        let (id, nth) = RegionId::of(block, page);
        let region = self.blocks.get(usize::from(block))?.regions.get(id.region as usize)?.lock();
        region.as_ref().filter(|region| region.version(nth).is_some()).map(|region| region.mark(nth))
    }

    /// The mark of what a page holds; none: zeros.
    pub fn mark(&self, block: u16, page: u32, content: Option<&[u8]>) -> u128 {
        self.mac(block, u8::from(content.is_some()), page, content.unwrap_or_default())
    }

    /// A number as random as the key.
    pub fn keyed_number(&self, nth: u32) -> u128 {
        self.mac(0, 2, nth, &[])
    }

    fn mac(&self, block: u16, kind: u8, number: u32, content: &[u8]) -> u128 {
        let mut mac = self.mac.clone();
        mac.update(content);
        let mut label = [0; 16];
        label[..2].copy_from_slice(&block.to_le_bytes());
        label[2] = kind;
        label[4..8].copy_from_slice(&number.to_le_bytes());
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

    /// Notes pages that are sent whole, with their contents; older ones than are known are passed over.
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

    /// The same, and what of each page the target needs, if that is not the whole page; nothing at all of any without
    /// [`Self::with_deltas`]. `ahead`: there is time to hash pages that are sent for the first time, which may be sent
    /// again.
    ///
    /// # Errors
    /// There is no such page.
    pub fn note_and_diff<'a>(
        &self,
        block: u16,
        version: u32,
        pages: impl IntoIterator<Item = (u32, Option<&'a [u8]>)>,
        ahead: bool,
    ) -> Result<Vec<Option<DeltaHead>>, LedgerError> {
        let Some(deltas) = &self.deltas else {
            return self.note_whole_pages(block, version, pages).map(|()| Vec::new());
        };
        let mut heads = Vec::new();
        self.each(block, pages, |region, nth, page, content| {
            // One that is not sent could be taken for the base of a delta.
            if !region.is_newer(nth, version) {
                return heads.push(Some(DeltaHead::unchanged(version)));
            }
            if region.held.contains(&(nth as u16)) {
                if deltas.held.load(Relaxed) <= deltas.may_hold.load(Relaxed) {
                    deltas.spared.fetch_add(1, Relaxed);
                    return heads.push(region.hold(nth, version));
                }
                region.release(nth);
                deltas.held.fetch_sub(1, Relaxed);
            }
            let mark = self.mark(block, page, content);
            let before = region.version(nth);
            let is_same = before.is_some() && region.mark(nth) == mark;
            let is_kept = before.is_none() && self.is_kept(block, page, mark);
            let base = before.or(is_kept.then_some(VERSION_KEPT));
            let mut changed = (is_same || is_kept).then_some(0);
            let known = region.sketches.as_ref().and_then(|sketches| sketches.get(nth));
            let mut sketch = known.filter(|_| is_same).copied();
            if let Some(content) = content
                && !is_same
                && (before.is_some() || (ahead && deltas.all))
            {
                let now = delta::sketch(content, deltas.seed);
                changed = changed.or_else(|| known.map(|before| delta::changed(before, &now)));
                sketch = Some(now);
            }
            let head = base.zip(changed).map(|(base, changed)| DeltaHead { base, mark, changed });
            let head = head.filter(|head| content.is_some() && head.is_valid());
            if head.is_none() && base.is_some() && content.is_some() && deltas.holds(region, nth) {
                deltas.spared.fetch_add(1, Relaxed);
                return heads.push(region.hold(nth, version));
            }
            region.set(nth, version, mark);
            if sketch.is_some() && region.sketches.is_none() && deltas.take() {
                region.sketches = Some(Sketches::new());
            }
            if let (Some(sketches), Some(sketch)) = (&mut region.sketches, sketch) {
                sketches.set(nth, sketch);
            }
            heads.push(head);
        })?;
        Ok(heads)
    }

    /// Does something with each of the pages, one region locked at a time.
    fn each<'a>(
        &self,
        block: u16,
        pages: impl IntoIterator<Item = (u32, Option<&'a [u8]>)>,
        mut work: impl FnMut(&mut Region, usize, u32, Option<&'a [u8]>),
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
            work(region, nth, page, content);
        }
        Ok(())
    }

    /// The regions with pages that are not what is known of them.
    pub fn owed(&self) -> BTreeSet<RegionId> {
        self.known().filter(|(_, region)| !region.owed.is_empty()).map(|(id, _)| id).collect()
    }

    /// Pages of a block.
    pub fn pages(&self, block: u16) -> u32 {
        self.blocks.get(usize::from(block)).map_or(0, |block| block.pages)
    }

    /// The digests of all regions of which anything is known.
    pub fn digests(&self) -> BTreeMap<RegionId, Digest> {
        self.known().map(|(id, region)| (id, region.digest())).collect()
    }

    /// The digest of it all.
    pub fn digest(&self) -> Digest {
        let mut sum = Digest::default();
        self.known().for_each(|(_, region)| sum.add(region.digest().0));
        sum
    }

    /// The regions of which anything is known, each locked while it is looked at.
    fn known(&self) -> impl Iterator<Item = (RegionId, RegionGuard<'_>)> {
        self.blocks.iter().zip(0u16..).flat_map(|(of, block)| {
            of.regions.iter().zip(0u32..).filter_map(move |(entries, region)| {
                let guard = entries.lock();
                guard.is_some().then(|| (RegionId { block, region }, RegionGuard(guard)))
            })
        })
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
        assert_eq!(size_of::<PageEntry>(), 20);
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

    /// One content of a page for each number; 0: zeros.
    fn content(fill: u8) -> Option<[u8; 4096]> {
        (fill > 0).then(|| std::array::from_fn(|at| if at / 1000 == usize::from(fill) { fill } else { 9 }))
    }

    proptest! {
        /// Whatever the order of arrival, the same digest; and a different one for anything else.
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

            // The latest of the last page is different, or lost.
            let ((block, page, _), fill) = *in_order.last().unwrap();
            let (others, last) = in_order.split_at(in_order.len() - 1);
            let before = others.last().filter(|((b, p, _), _)| (*b, *p) == (block, page)).map(|(_, fill)| *fill);
            prop_assert_eq!(sum(&in_order).0 == sum(others).0, before == Some(fill));
            let changed = [others, &[(last[0].0, fill + 1)]].concat();
            prop_assert_ne!(sum(&in_order).0, sum(&changed).0);
        }

        /// Deltas on what was said before make the page, whatever may be kept and whenever there is time for it.
        #[test]
        fn deltas_on_what_was_said_make_the_page(
            notes in proptest::collection::vec((0u32..700, 0u32..6, 0u8..4, any::<bool>()), 1..60),
            memory in 0u64..4,
        ) {
            let ledger = ledger().with_deltas(memory * SKETCHES_BYTES);
            let mut said: BTreeMap<u32, (u32, Vec<u8>)> = BTreeMap::new();
            for (page, version, fill, ahead) in notes {
                let content = content(fill);
                let content = content.as_ref().map(|content| &content[..]);
                let heads = ledger.note_and_diff(0, version, [(page, content)], ahead).unwrap();
                let before = said.get(&page);
                let whole = content.map_or(vec![0; 4096], <[u8]>::to_vec);
                if before.is_some_and(|(known, _)| *known >= version) {
                    prop_assert_eq!(&heads, &[Some(DeltaHead::unchanged(version))]);
                    continue;
                }
                let is_same = before.is_some_and(|(_, before)| *before == whole);
                prop_assert_eq!(heads[0].is_some_and(|head| head.changed == 0), is_same && fill > 0);
                if let (Some(head), Some((base, before))) = (heads[0], before) {
                    prop_assert_eq!((head.base, head.mark), (*base, ledger.mark(0, page, content)));
                    let (mut made, mut parts) = (before.clone(), bytes::BytesMut::new());
                    head.gather(&whole, &mut parts);
                    head.apply(&parts, &mut made);
                    prop_assert!(made == whole);
                } else {
                    prop_assert!(heads[0].is_none());
                }
                said.insert(page, (version, whole));
            }
        }
    }

    proptest! {
        /// Of a guest that comes back, what is as it was is built on that, if it is sent for the first time; nothing
        /// else is.
        #[test]
        fn pages_that_were_kept_are_not_sent(
            before in proptest::collection::btree_map(0u32..700, 0u8..4, 0..30),
            notes in proptest::collection::vec((0u32..700, 0u8..4, any::<bool>()), 1..60),
            doubted_from in 0usize..90,
        ) {
            let marks = Arc::new(ledger());
            for (page, fill) in &before {
                marks.note_whole_pages(0, 3, [(*page, content(*fill).as_ref().map(|content| &content[..]))]).unwrap();
            }
            let (ledger, plain) = (ledger().with_deltas(u64::MAX).with_kept(marks), super::tests::ledger());
            let mut said = BTreeSet::new();
            for (number, (page, fill, ahead)) in notes.into_iter().enumerate() {
                if number == doubted_from {
                    ledger.doubt_kept();
                }
                let (content, version) = (content(fill), number as u32);
                let pages = || [(page, content.as_ref().map(|content| &content[..]))];
                let head = ledger.note_and_diff(0, version, pages(), ahead).unwrap()[0];
                plain.note_whole_pages(0, version, pages()).unwrap();
                let is_first = said.insert(page);
                let is_kept = is_first && fill > 0 && before.get(&page) == Some(&fill) && number < doubted_from;
                prop_assert_eq!(head.is_some_and(|head| head.base == VERSION_KEPT), is_kept);
                prop_assert!(!is_first || head.is_none_or(|head| is_kept && head.changed == 0 && head.is_valid()));
            }
            // What counts is what was said this time.
            prop_assert_eq!(ledger.digests(), plain.digests());
        }
    }

    #[test]
    fn hashes_take_no_more_than_they_may() {
        let page = content(1);
        let rewritten = |memory: u64| {
            let ledger = Ledger::new(&[7; 16], [4 * REGION_PAGES as u32]).with_deltas(memory);
            let deltas = |version: u32, fill: u8| {
                let page = content(fill).or(page);
                let each = (0..4).map(|region| (region * REGION_PAGES as u32, page.as_ref().map(|page| &page[..])));
                ledger.note_and_diff(0, version, each, true).unwrap().iter().flatten().count()
            };
            (deltas(0, 1), deltas(1, 2), deltas(2, 3), deltas(3, 3))
        };
        assert_eq!(rewritten(0), (0, 0, 0, 4), "what is the same is known by its mark");
        assert_eq!(rewritten(2 * SKETCHES_BYTES), (0, 0, 2, 4), "hashes of what was written again");
        assert_eq!(rewritten(4 * SKETCHES_BYTES), (0, 4, 4, 4));
        assert!(SKETCHES_BYTES as f64 / (REGION_PAGES * 4096) as f64 <= 0.032);
    }

    #[test]
    fn pages_that_are_written_in_every_round_are_held_until_the_end() {
        let ledger = Ledger::new(&[7; 16], [REGION_PAGES as u32]).with_deltas(u64::MAX);
        let target = Ledger::new(&[7; 16], [REGION_PAGES as u32]);
        let whole = |round: u32, page: u32| vec![(round * 7 + page) as u8 + 1; 4096];
        let send = |round: u32, page: u32| {
            let content = whole(round, page);
            let head = ledger.note_and_diff(0, round, [(page, Some(&content[..]))], true).unwrap()[0];
            match head {
                None => target.note_whole_pages(0, round, [(page, Some(&content[..]))]).unwrap(),
                Some(head) => {
                    let mut region = target.region(0, page).unwrap();
                    assert_eq!(
                        (region.version(page as usize), region.mark(page as usize)),
                        (Some(head.base), head.mark)
                    );
                    region.set(page as usize, round, head.mark);
                }
            }
            head.is_some()
        };
        ledger.set_held_pages_max(2);
        let held: Vec<usize> = (0..6).map(|round| (0..4).filter(|page| send(round, *page)).count()).collect();
        assert_eq!((held, ledger.held()), (vec![0, 0, 0, 2, 2, 2], 2));
        assert_ne!(ledger.digest(), target.digest(), "none may be forgotten");
        ledger.set_held_pages_max(1);
        assert_eq!(((0..4).filter(|page| send(6, *page)).count(), ledger.held()), (1, 1));
        let released = ledger.release();
        assert_eq!((&released[..], ledger.held()), (&[(RegionId { block: 0, region: 0 }, vec![1])][..], 0));
        assert_eq!(ledger.digest(), target.digest(), "of what was sent before it was held");
        assert!(!send(7, 1));
        assert_eq!(ledger.digest(), target.digest());
        assert!(ledger.release().is_empty());
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
