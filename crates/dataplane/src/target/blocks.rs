//! Is the guest's RAM at the target: pages are written if they are newer, read back, and marked.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skein_guest_ram::Ram;
use skein_pages::delta::DeltaHead;
use skein_pages::page_record::BlockInfo;
use skein_pages::{
    Key, Ledger, PAGE_BYTES, REGION_PAGES, Region, RegionGuard, RegionId, VERSION_KEPT, VERSION_WRITTEN, is_zero,
};
use tracing::debug;

use super::error::{ProtocolError, TargetError};
use crate::error_chain::error_chain;
#[cfg(feature = "fault-points")]
use crate::fault_points::{Plant, is_planted, is_planted_at_all};
use crate::find_ram::{FindRam, RamNotFound};
use crate::kept_ram::{KeptMarks, KeptRam, Trip};

/// Says how many pages of all blocks are checked once more at the end ...
const SAMPLE_PAGES: u32 = 512;
/// ... and how many of each block at least.
const SAMPLE_OF_BLOCK: u32 = 16;

/// The guest's RAM blocks, and what is known of the pages of those that are written here.
pub(super) struct Blocks {
    infos: Vec<BlockInfo>,
    key: Key,
    ledger: Arc<Ledger>,
    ram: BTreeMap<u16, Box<dyn Ram>>,
    /// The RAM of the guest's last stay here.
    kept_ram: BTreeMap<u16, Arc<dyn Ram>>,
    copied_bytes: AtomicU64,
}

/// The marks of the pages with which a guest came.
pub(super) struct WrittenMarks {
    blocks: Vec<BlockInfo>,
    key: Key,
    marks: Arc<Ledger>,
}

impl WrittenMarks {
    /// Returns the marks that are kept of this trip.
    pub(super) fn of_trip(self, id: u64) -> KeptMarks {
        KeptMarks { trip: Trip { id, key: self.key, blocks: self.blocks }, marks: self.marks }
    }
}

/// The place where pages of a batch go.
pub(super) struct Destination<'a> {
    /// The number of the pages' block.
    pub(super) block: u16,
    /// The version of the pages.
    pub(super) version: u32,
    /// The memory for reading back what was written: two pages at least.
    pub(super) scratch: &'a mut [u8],
}

/// Whether the deltas of a run could be applied to their bases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bases {
    /// The deltas could be applied, or the page is owed.
    Sound,
    /// A page should have been built on what was kept, and what was kept is not what it should be.
    KeptInDoubt,
}

impl Blocks {
    /// Finds the RAM that can be reached. Returns the blocks, and why not all are reached, in words.
    pub(super) fn find(
        find: Option<&FindRam>,
        key: &Key,
        infos: Vec<BlockInfo>,
        kept: Option<KeptRam>,
    ) -> (Blocks, String) {
        let mut ram = BTreeMap::new();
        let mut why_not = match find {
            Some(_) => String::new(),
            None => "the agent there does not know where QEMU has the guest's RAM".into(),
        };
        for (number, info) in (0u16..).zip(&infos) {
            let Some(find) = find else { break };
            let found = find(info).and_then(|ram| check_size(info, ram));
            #[cfg(feature = "fault-points")]
            let found = match is_planted_at_all(Plant::Unreachable) {
                true => Err(RamNotFound::NoBlock(info.name.clone())),
                false => found,
            };
            match found {
                Ok(found) => drop(ram.insert(number, found)),
                // The largest block is the guest's RAM; others are small.
                Err(error) if infos.iter().all(|other| other.bytes <= info.bytes) => why_not = error_chain(&error),
                Err(error) => debug!(block = info.name, "its pages go through QEMU: {}", error_chain(&error)),
            }
        }
        let pages = |(number, info): (u16, &BlockInfo)| match ram.contains_key(&number) {
            true => (info.bytes / PAGE_BYTES as u64) as u32,
            false => 0,
        };
        let ledger = Arc::new(Ledger::new(key, (0u16..).zip(&infos).map(pages)));
        let kept_ram = kept.map(|kept| kept.ram).unwrap_or_default();
        (Blocks { infos, key: *key, ledger, ram, kept_ram, copied_bytes: AtomicU64::new(0) }, why_not)
    }

    /// Returns the numbers of the blocks whose RAM is reached.
    pub(super) fn direct(&self) -> Vec<u16> {
        self.ram.keys().copied().collect()
    }

    /// Returns what the source says of a block.
    pub(super) fn info(&self, number: u16) -> Option<&BlockInfo> {
        self.infos.get(usize::from(number))
    }

    /// Returns what is known of the pages.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the marks of the pages as they are now.
    pub(super) fn written(&self) -> WrittenMarks {
        WrittenMarks { blocks: self.infos.clone(), key: self.key, marks: self.ledger.clone() }
    }

    /// Returns the file in memory that a block is, and its range.
    pub(super) fn file(&self, number: u16) -> Option<(&File, Range<u64>)> {
        self.ram.get(&number)?.file()
    }

    fn ram(&self, number: u16) -> Result<&dyn Ram, TargetError> {
        Ok(&**self.ram.get(&number).ok_or(ProtocolError::NotDirect)?)
    }

    /// Returns how many bytes were copied to and from the guest's RAM, but for samples of the comparison.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Relaxed)
    }

    fn read_ram(&self, ram: &dyn Ram, page: u32, into: &mut [u8]) -> Result<(), TargetError> {
        self.copied_bytes.fetch_add(into.len() as u64, Relaxed);
        ram.read(offset(page), into).map_err(TargetError::Read)
    }

    fn write_ram(&self, ram: &dyn Ram, page: u32, content: &[u8]) -> Result<(), TargetError> {
        self.copied_bytes.fetch_add(content.len() as u64, Relaxed);
        ram.write(offset(page), content).map_err(TargetError::Write)
    }

    /// Writes pages in a row into the guest's RAM, if they are newer than what is there.
    ///
    /// The region stays locked meanwhile, because two versions of a page may arrive on two streams at once.
    pub(super) fn write_pages(
        &self,
        to: &mut Destination<'_>,
        first: u32,
        mut content: &[u8],
    ) -> Result<(), TargetError> {
        let ram = self.ram(to.block)?;
        let mut page = first;
        while !content.is_empty() {
            let mut region = self.region(to.block, page)?;
            let most = (content.len() / PAGE_BYTES).min(to.scratch.len() / PAGE_BYTES);
            let (run, is_newer) = run(&region, page, to.version, most);
            let (now, later) = content.split_at(run as usize * PAGE_BYTES);
            if is_newer {
                self.write(to.block, page, now)?;
                let held = &mut to.scratch[..now.len()];
                self.read_ram(ram, page, held)?;
                for (page, held) in (page..).zip(held.chunks_exact(PAGE_BYTES)) {
                    region.set(nth(page), to.version, self.mark(to.block, page, held));
                }
            }
            content = later;
            page += run;
        }
        Ok(())
    }

    /// Makes pages in a row zero, if that is newer than what is there.
    pub(super) fn write_zero_pages(
        &self,
        to: &mut Destination<'_>,
        first: u32,
        pages: usize,
    ) -> Result<(), TargetError> {
        let ram = self.ram(to.block)?;
        let (mut page, mut left) = (first, pages);
        while left > 0 {
            let mut region = self.region(to.block, page)?;
            let (run, is_newer) = run(&region, page, to.version, left);
            if is_newer {
                #[cfg(feature = "fault-points")]
                for page in (page..page + run).filter(|page| is_planted(Plant::StaleZero, *page)) {
                    ram.write(offset(page), &[0xa5; PAGE_BYTES]).map_err(TargetError::Write)?;
                }
                // Writing zeros where zeros are would take memory.
                let is_done = ram.is_zero(offset(page), offset(run)).map_err(TargetError::Read)?;
                for page in page..page + run {
                    let mark = if is_done {
                        self.ledger.mark(to.block, page, None)
                    } else {
                        self.zero(to.block, page)?;
                        let held = &mut to.scratch[..PAGE_BYTES];
                        self.read_ram(ram, page, held)?;
                        self.mark(to.block, page, held)
                    };
                    region.set(nth(page), to.version, mark);
                }
            }
            page += run;
            left -= run as usize;
        }
        Ok(())
    }

    /// Returns whether one of these deltas has to wait for its base, which is on another stream. The base is of an
    /// older version, and versions ascend on a stream, so streams never wait for each other in a circle.
    ///
    /// `bases` holds pages and the versions of them that are changed; `passed` is how many barriers all streams have
    /// passed.
    pub(super) fn is_early(&self, number: u16, bases: &[(u32, u32)], passed: u32) -> Result<bool, TargetError> {
        for of_region in bases.chunk_by(|(a, _), (b, _)| RegionId::of(number, *a).0 == RegionId::of(number, *b).0) {
            let region = self.region(number, of_region[0].0)?;
            if of_region.iter().any(|(page, base)| *base >= passed && region.is_newer(nth(*page), *base)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Changes pages in a row, if that is newer than what is there. `parts` holds the changed parts of all of them.
    pub(super) fn change(
        &self,
        to: &mut Destination<'_>,
        first: u32,
        mut deltas: &[DeltaHead],
        mut parts: &[u8],
    ) -> Result<Bases, TargetError> {
        let most = to.scratch.len() / 2 / PAGE_BYTES;
        let (mut page, mut bases) = (first, Bases::Sound);
        while !deltas.is_empty() {
            let mut region = self.region(to.block, page)?;
            let most = deltas.len().min(most).min(REGION_PAGES - nth(page));
            // Deltas that are built on the same are applied in one go.
            let base = delta_base(&region, page, to.version, &deltas[0]);
            let is_same = |(delta, page): &(&DeltaHead, u32)| delta_base(&region, *page, to.version, delta) == base;
            let run = deltas[..most].iter().zip(page..).take_while(is_same).count();
            let (now, later) = deltas.split_at(run);
            let (of_run, rest) = parts.split_at(now.iter().map(DeltaHead::bytes).sum());
            let changes = Changes { first: page, deltas: now, parts: of_run };
            if self.change_run(&mut region, to, base, &changes)? == Bases::KeptInDoubt {
                bases = Bases::KeptInDoubt;
            }
            (deltas, parts) = (later, rest);
            page += run as u32;
        }
        Ok(bases)
    }

    /// Changes pages of a region that are built on the same.
    fn change_run(
        &self,
        region: &mut Region,
        to: &mut Destination<'_>,
        base: DeltaBase,
        changes: &Changes<'_>,
    ) -> Result<Bases, TargetError> {
        match base {
            DeltaBase::Old => return Ok(Bases::Sound),
            DeltaBase::Done => changes.each(|page, delta| region.set(nth(page), to.version, delta.mark)),
            DeltaBase::None => changes.each(|page, delta| region.mark_owed(nth(page), to.version, delta.mark)),
            DeltaBase::Ram => {
                let ram = self.ram(to.block)?;
                self.read_ram(ram, changes.first, bases_of(to, changes))?;
                let marks = self.apply(to, changes);
                self.commit(region, to, changes, &marks)?;
            }
            DeltaBase::Kept => {
                let kept = self.kept_ram.get(&to.block);
                let bases = bases_of(to, changes);
                if kept.is_none_or(|kept| kept.read(offset(changes.first), bases).is_err()) {
                    changes.each(|page, delta| region.mark_owed(nth(page), to.version, delta.mark));
                    return Ok(Bases::KeptInDoubt);
                }
                let marks = self.apply(to, changes);
                self.commit(region, to, changes, &marks)?;
                if marks.iter().any(Option::is_none) {
                    return Ok(Bases::KeptInDoubt);
                }
            }
        }
        Ok(Bases::Sound)
    }

    /// Applies deltas to their bases, which are in the first half of the scratch memory. Returns the marks of the
    /// results; `None`: a result is not what it should be.
    fn apply(&self, to: &mut Destination<'_>, changes: &Changes<'_>) -> Vec<Option<u128>> {
        let (block, mut parts) = (to.block, changes.parts);
        let results = bases_of(to, changes).chunks_exact_mut(PAGE_BYTES);
        let marks = (changes.first..).zip(changes.deltas).zip(results).map(|((page, delta), result)| {
            #[cfg(feature = "fault-points")]
            if is_planted(Plant::WrongBase, page) || is_planted(Plant::ShortMark, page) {
                result.iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
            let (own, later) = parts.split_at(delta.bytes());
            parts = later;
            delta.apply(own, result);
            let mark = self.mark(block, page, result);
            Some(mark).filter(|mark| is_same(*mark, delta.mark, page))
        });
        marks.collect()
    }

    /// Writes results, which are in the first half of the scratch memory, into the guest's RAM, if they are what they
    /// should be.
    fn commit(
        &self,
        region: &mut Region,
        to: &mut Destination<'_>,
        changes: &Changes<'_>,
        marks: &[Option<u128>],
    ) -> Result<(), TargetError> {
        let ram = self.ram(to.block)?;
        let half = to.scratch.len() / 2;
        let (results, held) = to.scratch.split_at_mut(half);
        let mut at = 0;
        for alike in marks.chunk_by(|a, b| a.is_some() == b.is_some()) {
            let page = changes.first + at as u32;
            let bytes = at * PAGE_BYTES..(at + alike.len()) * PAGE_BYTES;
            let (results, held) = (&results[bytes.clone()], &mut held[bytes]);
            if alike[0].is_some() {
                self.write_ram(ram, page, results)?;
                self.read_ram(ram, page, held)?;
            }
            let contents = results.chunks_exact(PAGE_BYTES).zip(held.chunks_exact(PAGE_BYTES));
            let pages = alike.iter().zip(&changes.deltas[at..]).zip(page..);
            for (((mark, delta), page), (result, held)) in pages.zip(contents) {
                match mark {
                    Some(mark) if result == held => region.set(nth(page), to.version, *mark),
                    Some(_) => region.set(nth(page), to.version, self.mark(to.block, page, held)),
                    None => region.mark_owed(nth(page), to.version, delta.mark),
                }
            }
            at += alike.len();
        }
        Ok(())
    }

    /// Writes pages in a row.
    fn write(&self, number: u16, first: u32, content: &[u8]) -> Result<(), TargetError> {
        let ram = self.ram(number)?;
        #[cfg(feature = "fault-points")]
        if (first..).take(content.len() / PAGE_BYTES).any(|page| self.misplaced_by_fault(number, page).is_some()) {
            return (first..).zip(content.chunks_exact(PAGE_BYTES)).try_for_each(|(page, content)| {
                let (block, page) = self.misplaced_by_fault(number, page).unwrap_or((number, page));
                self.ram(block)?.write(offset(page), content).map_err(TargetError::Write)
            });
        }
        self.write_ram(ram, first, content)
    }

    /// Returns where a test wants a page to go instead of where the page belongs.
    #[cfg(feature = "fault-points")]
    fn misplaced_by_fault(&self, number: u16, page: u32) -> Option<(u16, u32)> {
        let other = || self.ram.iter().find(|(other, ram)| **other != number && ram.bytes() > offset(page));
        if is_planted(Plant::WrongBlock, page)
            && let Some((other, _)) = other()
        {
            return Some((*other, page));
        }
        // The page goes to the region before.
        is_planted(Plant::WrongPage, page).then_some((number, page ^ REGION_PAGES as u32))
    }

    /// Makes a page zero.
    fn zero(&self, number: u16, page: u32) -> Result<(), TargetError> {
        #[cfg(feature = "fault-points")]
        if is_planted(Plant::StaleZero, page) {
            return Ok(());
        }
        self.ram(number)?.zero(offset(page), PAGE_BYTES as u64).map_err(TargetError::Write)
    }

    fn region(&self, number: u16, page: u32) -> Result<RegionGuard<'_>, TargetError> {
        Ok(self.ledger.region(number, page)?)
    }

    /// Returns the mark of the content that a page was found to hold.
    fn mark(&self, number: u16, page: u32, held: &[u8]) -> u128 {
        self.ledger.mark(number, page, (!is_zero(held)).then_some(held))
    }

    /// Checks some pages once more. Returns whether they hold what was written there.
    pub(super) fn is_sample_sound(&self) -> Result<bool, TargetError> {
        let (mut held, mut in_qemu) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        let of_each = (SAMPLE_PAGES / self.ram.len().max(1) as u32).max(SAMPLE_OF_BLOCK);
        for (&number, ram) in &self.ram {
            let pages = self.ledger.pages(number);
            let drawn = (0..of_each.min(pages)).map(|n| self.ledger.keyed_number(n) % u128::from(pages));
            for page in drawn.map(|page| page as u32) {
                let region = self.region(number, page)?;
                if region.version(nth(page)).is_none() {
                    continue;
                }
                ram.read(offset(page), &mut held).map_err(TargetError::Read)?;
                if self.mark(number, page, &held) != region.mark(nth(page)) {
                    return Ok(false);
                }
                // A hole would become memory.
                if !is_zero(&held) {
                    ram.read_in_qemu(offset(page), &mut in_qemu).map_err(TargetError::Read)?;
                    if held != in_qemu {
                        return Err(TargetError::Elsewhere);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Marks all pages by what the RAM holds now.
    pub(super) fn mark_all_again(&self) -> Result<(), TargetError> {
        let mut held = [0; PAGE_BYTES];
        for RegionId { block, region } in self.ledger.digests().into_keys() {
            let ram = self.ram(block)?;
            let first = region * REGION_PAGES as u32;
            let mut region = self.region(block, first)?;
            for page in first..self.ledger.pages(block).min(first + REGION_PAGES as u32) {
                let Some(version) = region.version(nth(page)) else { continue };
                ram.read(offset(page), &mut held).map_err(TargetError::Read)?;
                region.set(nth(page), version, self.mark(block, page, &held));
            }
        }
        Ok(())
    }
}

/// Checks that RAM is of the size that the source says, and not too large for numbers of pages.
fn check_size(info: &BlockInfo, ram: Box<dyn Ram>) -> Result<Box<dyn Ram>, RamNotFound> {
    let is_whole = ram.bytes() == info.bytes && info.bytes.is_multiple_of(PAGE_BYTES as u64);
    if !is_whole || info.bytes / PAGE_BYTES as u64 > u64::from(u32::MAX) - REGION_PAGES as u64 {
        let (name, source_bytes, target_bytes) = (info.name.clone(), info.bytes, ram.bytes());
        return Err(RamNotFound::Size { name, source_bytes, target_bytes });
    }
    Ok(ram)
}

/// Returns how many pages from `page` on, at most `most` and within its region, are all newer in this version than what
/// is known, or are all not newer; and which of both.
fn run(region: &Region, page: u32, version: u32, most: usize) -> (u32, bool) {
    let first = is_newer(region, page, version);
    let end = page + most.min(REGION_PAGES - nth(page)) as u32;
    ((page..end).take_while(|page| is_newer(region, *page, version) == first).count() as u32, first)
}

/// Returns whether this version of a page is newer than what is there.
fn is_newer(region: &Region, page: u32, version: u32) -> bool {
    #[cfg(feature = "fault-points")]
    if region.version(nth(page)).is_some() && is_planted(Plant::StaleVersion, page) {
        return false;
    }
    region.is_newer(nth(page), version)
}

/// Deltas of pages in a row.
struct Changes<'a> {
    first: u32,
    deltas: &'a [DeltaHead],
    /// The changed parts, of all deltas.
    parts: &'a [u8],
}

impl Changes<'_> {
    fn each(&self, mut note: impl FnMut(u32, &DeltaHead)) {
        (self.first..).zip(self.deltas).for_each(|(page, delta)| note(page, delta));
    }
}

/// Returns the scratch memory for the bases of deltas, which become the results. The other half is for reading back.
fn bases_of<'a>(to: &'a mut Destination<'_>, changes: &Changes<'_>) -> &'a mut [u8] {
    &mut to.scratch[..changes.deltas.len() * PAGE_BYTES]
}

/// The base that a delta is applied to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeltaBase {
    /// None: what is there is newer.
    Old,
    /// None: the page is what it should be.
    Done,
    /// None: the base is not there.
    None,
    /// The page in the RAM.
    Ram,
    /// The page that was kept.
    Kept,
}

/// Returns the base that a delta of a page is applied to.
fn delta_base(region: &Region, page: u32, version: u32, delta: &DeltaHead) -> DeltaBase {
    let nth = nth(page);
    let has_base = region.version(nth) == Some(delta.base) && !region.is_owed(nth);
    match delta {
        _ if !is_newer(region, page, version) || delta.is_unchanged(version) => DeltaBase::Old,
        DeltaHead { base: VERSION_KEPT, .. } => DeltaBase::Kept,
        // Its mark is the source's word: nobody reads what a NIC has written. The sample does, at the end.
        DeltaHead { base: VERSION_WRITTEN, .. } => DeltaBase::Done,
        _ if !has_base => DeltaBase::None,
        DeltaHead { changed: 0, mark, .. } if region.mark(nth) == *mark => DeltaBase::Done,
        DeltaHead { changed: 0, .. } => DeltaBase::None,
        _ => DeltaBase::Ram,
    }
}

/// Returns whether two marks of a page are the same.
fn is_same(own: u128, theirs: u128, page: u32) -> bool {
    #[cfg(feature = "fault-points")]
    if is_planted(Plant::ShortMark, page) {
        return own as u8 == theirs as u8;
    }
    let _ = page;
    own == theirs
}

/// Returns the page's place in its region.
fn nth(page: u32) -> usize {
    page as usize % REGION_PAGES
}

/// Returns where a page begins, which is also how many bytes so many pages have.
fn offset(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}
