//! What all streams of a migration have in common at its target.
//!
//! # What 'the same' rests on
//!
//! A digest is worth as much as the marks in it. A page's mark is made here of what the RAM holds after the page was
//! written: it is read back from where it belongs, and what is to be zero is found to be zero. Content that went to
//! another place, zeros that were skipped, a version that was passed over, a batch that was lost: all leave a mark that
//! the source does not have.
//!
//! A page that went to the wrong place has overwritten another one, whose mark was made before. So where the digests
//! differ, whatever the reason, all marks are made anew from the RAM before the source is told: what is mended then is
//! all that is wrong. It takes 0.2 s for a GiB in which the guest stands still, and is done in that case alone.
//!
//! A delta whose result has not the mark that the source made of the page is not written: the page is *owed*, and known
//! to be so, from then on. So is one whose base is not there. Where nothing else differs, it is sent again whole, and
//! nothing has to be looked at.
//!
//! What was kept of an earlier stay of the guest is of the same kind: a page is taken from there only if it has the
//! mark that the source made of its own. Where one has not, the rest is in doubt, and the source is told to build on it
//! no more.
//!
//! Two things are left. A file that is not the RAM of QEMU would agree with itself: so a random sample of
//! [`SAMPLE_PAGES`] is compared with what QEMU has in its own memory, and of a block that is elsewhere every page with
//! something in it tells. And something may change a page after it was read back without being such a write: the
//! sample is looked at once more for that too, but there it is a chance. Where one page in a hundred is damaged it
//! finds that with a probability of 99.4 %; a single page of a GiB, with 0.2 %. It takes 2 ms of the downtime;
//! everything would take the time above.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use skein_link::Patience;
use skein_pages::delta::DeltaHead;
use skein_pages::page_record::{BLOCKS_MAX, BlockInfo, PageMessage, REGIONS_PER_MESSAGE_MAX};
use skein_pages::{
    Digest, Key, Ledger, PAGE_BYTES, REGION_PAGES, Region, RegionGuard, RegionId, VERSION_KEPT, is_zero,
};
use skein_session::StreamId;
use thiserror::Error;
use tracing::warn;

#[cfg(feature = "fault-points")]
use crate::fault_points::{self, Plant, is_planted};
use crate::kept_ram::{KeptMarks, KeptRam, Trip};
use crate::running_session::spawn;

/// Who waits looks so often whether its stream was torn down.
const RESET_CHECK_PERIOD: Duration = Duration::from_millis(100);
/// Deltas that wait in vain for their bases before none waits any more: that is no outage, but an error.
const MISSING_BASES_MAX: usize = 8;
/// Regions that may be told of: of 16 TiB.
const REGIONS_MAX: usize = 8 << 20;
/// Regions that are asked for again at once. More are no accident.
const DIFFERING_REGIONS_MAX: usize = REGIONS_PER_MESSAGE_MAX;
/// Pages that are looked at once more at the end, of all blocks ...
const SAMPLE_PAGES: u32 = 512;
/// ... and of each block at least.
const SAMPLE_OF_BLOCK: u32 = 16;

/// RAM of a guest that cannot be reached, or not there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct RamError(pub String);

/// A RAM block of a guest, written while nobody else writes to it.
pub trait Ram: Send + Sync {
    /// Its length.
    fn bytes(&self) -> u64;
    /// Writes into it.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), RamError>;
    /// Fills a part of it with zeros.
    fn zero(&self, offset: u64, bytes: u64) -> Result<(), RamError>;
    /// Whether a part of it is zeros. Takes no memory for it.
    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, RamError>;
    /// Reads from it.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), RamError>;
    /// Reads what the guest's QEMU has there in its own memory.
    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), RamError>;
}

/// Finds the RAM of a guest, block by block.
pub type FindRam = Box<dyn Fn(&BlockInfo) -> Result<Box<dyn Ram>, RamError> + Send + Sync>;

/// All streams of a migration, at its target.
pub struct TargetPages {
    find: Option<FindRam>,
    state: Mutex<State>,
    changed: Condvar,
    /// Streams that wait for pages of others.
    waiting: AtomicUsize,
    /// So many have waited in vain.
    vain: AtomicUsize,
    /// Of the guest's last stay here.
    kept_ram: Mutex<Option<KeptRam>>,
    /// It is not what it should be …
    is_doubted: AtomicBool,
    /// … and the source was told so.
    doubt_told: AtomicBool,
}

#[derive(Default)]
struct State {
    /// As the source told.
    blocks: Option<Arc<Blocks>>,
    /// Barriers that each stream has passed.
    passed: BTreeMap<StreamId, u32>,
    theirs: BTreeMap<RegionId, Digest>,
    /// What was placed, once it is known to be the same.
    written_marks: Option<(Vec<BlockInfo>, Key, Arc<Ledger>)>,
}

/// The guest's RAM blocks, and what is known of the pages of those that are written here.
pub(super) struct Blocks {
    pub(super) infos: Vec<BlockInfo>,
    key: Key,
    ledger: Arc<Ledger>,
    ram: BTreeMap<u16, Box<dyn Ram>>,
    /// The RAM of the guest's last stay here.
    kept_ram: BTreeMap<u16, Arc<dyn Ram>>,
}

/// The migration cannot go on, in words.
pub(super) type PageError = String;

impl TargetPages {
    /// Before its first stream. `find`: none if QEMU is to get all pages. `kept`: of the guest's last stay here.
    pub fn new(find: Option<FindRam>, kept: Option<KeptRam>) -> Arc<TargetPages> {
        Arc::new(TargetPages {
            find,
            state: Mutex::default(),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            vain: AtomicUsize::new(0),
            kept_ram: Mutex::new(kept),
            is_doubted: AtomicBool::new(false),
            doubt_told: AtomicBool::new(false),
        })
    }

    /// The marks of the pages with which the guest came on this trip, for its way back; once.
    pub fn take_marks(&self, trip: u64) -> Option<KeptMarks> {
        let (blocks, key, marks) = self.state.lock().written_marks.take()?;
        Some(KeptMarks { trip: Trip { id: trip, key, blocks }, marks })
    }

    pub(super) fn blocks(&self) -> Option<Arc<Blocks>> {
        self.state.lock().blocks.clone()
    }

    /// Finds the RAM that can be reached, and says so.
    ///
    /// `trip`: the one that the source would build on.
    pub(super) fn choose_direct_blocks(
        &self,
        key: &Key,
        infos: Vec<BlockInfo>,
        trip: Option<u64>,
    ) -> Result<PageMessage, PageError> {
        if infos.len() > BLOCKS_MAX || self.blocks().is_some() {
            return Err("the source's agent tells of the guest's RAM twice, or of too much".into());
        }
        let mut ram = BTreeMap::new();
        let mut why_not = match self.find {
            Some(_) => String::new(),
            None => "the agent there does not know where QEMU has the guest's RAM".into(),
        };
        for (number, info) in infos.iter().enumerate() {
            let Some(find) = &self.find else { break };
            let found = find(info).and_then(|ram| {
                let wrong = ram.bytes() != info.bytes || !info.bytes.is_multiple_of(PAGE_BYTES as u64);
                if wrong || info.bytes / PAGE_BYTES as u64 > u64::from(u32::MAX) - REGION_PAGES as u64 {
                    let (name, there, here) = (&info.name, info.bytes, ram.bytes());
                    return Err(RamError(format!(
                        "block '{name}' has {there} bytes at the source, {here} at the target"
                    )));
                }
                Ok(ram)
            });
            match found {
                Ok(found) => drop(ram.insert(number as u16, found)),
                // The largest is the guest's RAM; others are small.
                Err(error) if infos.iter().all(|other| other.bytes <= info.bytes) => {
                    why_not = error.to_string();
                }
                Err(_) => {}
            }
        }
        let direct = ram.keys().copied().collect();
        // Anything else is given up here.
        let kept = self.kept_ram.lock().take();
        let kept = kept
            .filter(|kept| trip.map(|id| Trip { id, key: *key, blocks: infos.clone() }).as_ref() == Some(&kept.trip));
        let is_kept = kept.is_some();
        let pages = |(number, info): (usize, &BlockInfo)| match ram.contains_key(&(number as u16)) {
            true => (info.bytes / PAGE_BYTES as u64) as u32,
            false => 0,
        };
        let ledger = Arc::new(Ledger::new(key, infos.iter().enumerate().map(pages)));
        let kept = kept.map(|kept| kept.ram).unwrap_or_default();
        self.state.lock().blocks = Some(Arc::new(Blocks { infos, key: *key, ledger, ram, kept_ram: kept }));
        self.changed.notify_all();
        Ok(PageMessage::Mode { direct, why_not, builds_on_kept: is_kept })
    }

    /// A stream has passed so many barriers.
    pub(super) fn passed(&self, stream: StreamId, barriers: u32) {
        self.state.lock().passed.insert(stream, barriers);
        self.changed.notify_all();
    }

    /// Returns whether so many streams have passed so many barriers. With [`Patience::Wait`] the call first waits a
    /// little for that.
    pub(super) fn all_passed(&self, streams: u16, barriers: u32, patience: Patience) -> bool {
        let mut state = self.state.lock();
        let passed =
            |state: &State| state.passed.values().filter(|passed| **passed >= barriers).count() >= usize::from(streams);
        if patience == Patience::Wait && !passed(&state) {
            self.changed.wait_for(&mut state, RESET_CHECK_PERIOD);
        }
        passed(&state)
    }

    /// Returns whether something is early. With [`Patience::Wait`] the call first waits a little for what it needs to
    /// be placed. `is_early` is told how many barriers all streams have passed: what is of an older version than that
    /// and is not there never comes.
    pub(super) fn is_early(
        &self,
        patience: Patience,
        is_early: impl Fn(u32) -> Result<bool, PageError>,
    ) -> Result<bool, PageError> {
        let passed = |state: &State| state.passed.values().min().copied().unwrap_or(0);
        let early = is_early(passed(&self.state.lock()))?;
        if !early || patience == Patience::Try {
            return Ok(early);
        }
        // Who places looks for somebody who waits after that, and who waits looks again after having said so.
        self.waiting.fetch_add(1, SeqCst);
        let mut state = self.state.lock();
        let early = is_early(passed(&state));
        if let Ok(true) = early {
            self.changed.wait_for(&mut state, RESET_CHECK_PERIOD);
        }
        let least = passed(&state);
        drop(state);
        self.waiting.fetch_sub(1, SeqCst);
        early?;
        is_early(least)
    }

    /// Pages were placed, for which others may wait.
    pub(super) fn note_pages_written(&self) {
        if self.waiting.load(SeqCst) > 0 {
            drop(self.state.lock());
            self.changed.notify_all();
        }
    }

    /// Whether a delta waits for its base.
    pub(super) fn may_wait_for_bases(&self) -> bool {
        self.vain.load(SeqCst) < MISSING_BASES_MAX
    }

    /// What was kept is not what it should be.
    pub(super) fn doubt_kept(&self) {
        if !self.is_doubted.swap(true, SeqCst) {
            warn!("what was kept of the guest's RAM is not what it was");
        }
    }

    /// What the source is to be told of that; once.
    pub(super) fn doubt(&self) -> Option<PageMessage> {
        (self.is_doubted.load(SeqCst) && !self.doubt_told.swap(true, SeqCst)).then_some(PageMessage::Doubt)
    }

    /// The base of a delta has not come.
    pub(super) fn count_missing_base(&self) {
        self.vain.fetch_add(1, SeqCst);
        warn!("the base of a delta does not come");
    }

    /// Compares what both ends hold. If it is the same, the RAM is let go: what follows may have QEMU write to it.
    pub(super) fn compare_all(&self, digest: Digest) -> Result<PageMessage, PageError> {
        let blocks = self.blocks().ok_or("the source's agent ends before it began")?;
        #[cfg(feature = "fault-points")]
        fault_points::compared();
        let owed = blocks.ledger.owed();
        let is_as_sent = blocks.ledger.digest() == digest;
        if is_as_sent && !owed.is_empty() {
            warn!(regions = owed.len(), "deltas did not fit: their pages are sent again");
            return Ok(PageMessage::Comparison { same: false });
        }
        if !is_as_sent || !blocks.is_sample_sound()? {
            warn!("the guest's RAM is not what was sent: all of it is looked at");
            blocks.mark_all_again()?;
        }
        let same = blocks.ledger.digest() == digest;
        if same {
            let mut state = self.state.lock();
            state.blocks = None;
            state.written_marks = Some((blocks.infos.clone(), blocks.key, blocks.ledger.clone()));
            drop(state);
            // Of huge pages unmapping may take a while, for which the guest need not wait.
            let _ = spawn("unmap", move || drop(blocks));
        }
        Ok(PageMessage::Comparison { same })
    }

    /// The source's digests, as they come; after the last, which of them differ.
    pub(super) fn compare(
        &self,
        regions: Vec<(RegionId, Digest)>,
        last: bool,
    ) -> Result<Option<PageMessage>, PageError> {
        let blocks = self.blocks().ok_or("the source's agent ends before it began")?;
        let mut state = self.state.lock();
        if state.theirs.len() + regions.len() > REGIONS_MAX {
            return Err("the source's agent tells of more RAM than there is".into());
        }
        state.theirs.extend(regions);
        if !last {
            return Ok(None);
        }
        let theirs = std::mem::take(&mut state.theirs);
        drop(state);
        let (own, owed) = (blocks.ledger.digests(), blocks.ledger.owed());
        let all = theirs.keys().chain(own.keys()).collect::<std::collections::BTreeSet<_>>();
        let digest = |of: &BTreeMap<RegionId, Digest>, id| of.get(id).copied().unwrap_or_default();
        let differ = all.into_iter().filter(|id| owed.contains(id) || digest(&theirs, id) != digest(&own, id));
        let regions: Vec<RegionId> = differ.take(DIFFERING_REGIONS_MAX).copied().collect();
        Ok(Some(PageMessage::Differ { regions }))
    }
}

impl Blocks {
    fn ram(&self, number: u16) -> Result<&dyn Ram, PageError> {
        let ram = self.ram.get(&number).ok_or("the source's agent sends pages of RAM that is not reached here")?;
        Ok(&**ram)
    }

    /// Writes pages in a row into the guest's RAM where they are newer than what is there.
    ///
    /// A region stays locked meanwhile: two versions of a page may arrive on two streams at once. `scratch`: for
    /// reading them back.
    pub(super) fn write_pages(
        &self,
        number: u16,
        first: u32,
        version: u32,
        mut content: &[u8],
        scratch: &mut [u8],
    ) -> Result<(), PageError> {
        let ram = self.ram(number)?;
        let mut page = first;
        while !content.is_empty() {
            let mut region = self.region(number, page)?;
            let most = (content.len() / PAGE_BYTES).min(scratch.len() / PAGE_BYTES);
            let (run, is_newer) = run(&region, page, version, most);
            let (now, later) = content.split_at(run as usize * PAGE_BYTES);
            if is_newer {
                self.write(number, page, now)?;
                let held = &mut scratch[..now.len()];
                ram.read(offset(page), held).map_err(not_read)?;
                for (page, held) in (page..).zip(held.chunks_exact(PAGE_BYTES)) {
                    region.set(nth(page), version, self.mark(number, page, held));
                }
            }
            content = later;
            page += run;
        }
        Ok(())
    }

    /// Whether one of these deltas has to wait for its base, which is on another stream. It is of an older version, and
    /// versions ascend on a stream, so that streams never wait for each other in a circle.
    ///
    /// `bases`: pages and the versions of them that are changed; `passed`: barriers that all streams have passed.
    pub(super) fn is_early(&self, number: u16, bases: &[(u32, u32)], passed: u32) -> Result<bool, PageError> {
        for of_region in bases.chunk_by(|(a, _), (b, _)| RegionId::of(number, *a).0 == RegionId::of(number, *b).0) {
            let region = self.region(number, of_region[0].0)?;
            if of_region.iter().any(|(page, base)| *base >= passed && region.is_newer(nth(*page), *base)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Changes pages in a row where that is newer than what is there; `parts`: of all of them. `scratch`: two pages at
    /// least. False: one would have to be built on what was kept, which is not what it should be.
    pub(super) fn change(
        &self,
        number: u16,
        first: u32,
        version: u32,
        mut deltas: &[DeltaHead],
        mut parts: &[u8],
        scratch: &mut [u8],
    ) -> Result<bool, PageError> {
        let (results, held) = scratch.split_at_mut(scratch.len() / 2);
        let (mut page, mut is_sound) = (first, true);
        while !deltas.is_empty() {
            let mut region = self.region(number, page)?;
            let most = deltas.len().min(results.len() / PAGE_BYTES).min(REGION_PAGES - nth(page));
            // Those that are built on the same, in one go.
            let ground = delta_base(&region, page, version, &deltas[0]);
            let is_same =
                |(delta, page): &(&DeltaHead, u32)| self::delta_base(&region, *page, version, delta) == ground;
            let run = deltas[..most].iter().zip(page..).take_while(is_same).count();
            let (now, later) = deltas.split_at(run);
            deltas = later;
            let (of_run, rest) = parts.split_at(now.iter().map(DeltaHead::bytes).sum());
            parts = rest;
            let base = match ground {
                DeltaBase::Ram => Some(self.ram(number)?),
                DeltaBase::Kept => self.kept_ram.get(&number).map(|kept| &**kept),
                DeltaBase::Old | DeltaBase::Done | DeltaBase::None => None,
            };
            if let Some(base) = base {
                let results = &mut results[..run * PAGE_BYTES];
                let is_read = base.read(offset(page), results);
                let is_there =
                    if ground == DeltaBase::Ram { is_read.map(|()| true).map_err(not_read)? } else { is_read.is_ok() };
                let marks = self.apply((number, page), now, of_run, results, is_there);
                is_sound &= ground == DeltaBase::Ram || marks.iter().all(Option::is_some);
                self.commit(&mut region, (number, page, version), now, &marks, results, held)?;
            } else if ground != DeltaBase::Old {
                is_sound &= ground != DeltaBase::Kept;
                for (page, delta) in (page..).zip(now) {
                    match ground {
                        DeltaBase::Done => region.set(nth(page), version, delta.mark),
                        _ => region.mark_owed(nth(page), version, delta.mark),
                    }
                }
            }
            page += run as u32;
        }
        Ok(is_sound)
    }

    /// Applies deltas to their bases, pages in a row. Gives the marks of the results; none: that is not what it should
    /// be. `is_there`: the bases could be read.
    fn apply(
        &self,
        (number, first): (u16, u32),
        deltas: &[DeltaHead],
        mut parts: &[u8],
        bases: &mut [u8],
        is_there: bool,
    ) -> Vec<Option<u128>> {
        let pages = (first..).zip(deltas).zip(bases.chunks_exact_mut(PAGE_BYTES));
        let marks = pages.map(|((page, delta), result)| {
            #[cfg(feature = "fault-points")]
            if is_planted(Plant::WrongBase, page) || is_planted(Plant::ShortMark, page) {
                result.iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
            let (own, later) = parts.split_at(delta.bytes());
            parts = later;
            delta.apply(own, result);
            let mark = self.mark(number, page, result);
            Some(mark).filter(|mark| is_there && is_same(*mark, delta.mark, page))
        });
        marks.collect()
    }

    /// Writes results into the guest's RAM, in this version, where they are what they should be.
    fn commit(
        &self,
        region: &mut Region,
        (number, first, version): (u16, u32, u32),
        deltas: &[DeltaHead],
        marks: &[Option<u128>],
        results: &[u8],
        held: &mut [u8],
    ) -> Result<(), PageError> {
        let ram = self.ram(number)?;
        let mut at = 0;
        for alike in marks.chunk_by(|a, b| a.is_some() == b.is_some()) {
            let (page, bytes) = (first + at as u32, at * PAGE_BYTES..(at + alike.len()) * PAGE_BYTES);
            let (results, held) = (&results[bytes.clone()], &mut held[bytes]);
            if alike[0].is_some() {
                ram.write(offset(page), results).map_err(not_written)?;
                ram.read(offset(page), held).map_err(not_read)?;
            }
            let contents = results.chunks_exact(PAGE_BYTES).zip(held.chunks_exact(PAGE_BYTES));
            for (((mark, delta), page), (result, held)) in alike.iter().zip(&deltas[at..]).zip(page..).zip(contents) {
                match mark {
                    Some(mark) if result == held => region.set(nth(page), version, *mark),
                    Some(_) => region.set(nth(page), version, self.mark(number, page, held)),
                    None => region.mark_owed(nth(page), version, delta.mark),
                }
            }
            at += alike.len();
        }
        Ok(())
    }

    /// The same of pages of zeros. `scratch`: one page at least.
    pub(super) fn write_zero_pages(
        &self,
        number: u16,
        first: u32,
        version: u32,
        pages: usize,
        scratch: &mut [u8],
    ) -> Result<(), PageError> {
        let ram = self.ram(number)?;
        let (mut page, mut left) = (first, pages);
        while left > 0 {
            let mut region = self.region(number, page)?;
            let (run, is_newer) = run(&region, page, version, left);
            if is_newer {
                #[cfg(feature = "fault-points")]
                for page in (page..page + run).filter(|page| is_planted(Plant::StaleZero, *page)) {
                    ram.write(offset(page), &[0xa5; PAGE_BYTES]).map_err(not_written)?;
                }
                // Writing zeros where there are some would take memory.
                let is_done = ram.is_zero(offset(page), offset(run)).map_err(not_read)?;
                for page in page..page + run {
                    let mark = if is_done {
                        self.ledger.mark(number, page, None)
                    } else {
                        self.zero(number, page)?;
                        let held = &mut scratch[..PAGE_BYTES];
                        ram.read(offset(page), held).map_err(not_read)?;
                        self.mark(number, page, held)
                    };
                    region.set(nth(page), version, mark);
                }
            }
            page += run;
            left -= run as usize;
        }
        Ok(())
    }

    /// Writes pages in a row.
    fn write(&self, number: u16, first: u32, content: &[u8]) -> Result<(), PageError> {
        let ram = self.ram(number)?;
        #[cfg(feature = "fault-points")]
        if (first..).take(content.len() / PAGE_BYTES).any(|page| self.misplaced_by_fault(number, page).is_some()) {
            return (first..).zip(content.chunks_exact(PAGE_BYTES)).try_for_each(|(page, content)| {
                let (block, page) = self.misplaced_by_fault(number, page).unwrap_or((number, page));
                self.ram(block)?.write(offset(page), content).map_err(not_written)
            });
        }
        ram.write(offset(first), content).map_err(not_written)
    }

    /// Where a test has a page go instead of where it belongs.
    #[cfg(feature = "fault-points")]
    fn misplaced_by_fault(&self, number: u16, page: u32) -> Option<(u16, u32)> {
        let other = || self.ram.iter().find(|(other, ram)| **other != number && ram.bytes() > offset(page));
        if is_planted(Plant::WrongBlock, page)
            && let Some((other, _)) = other()
        {
            return Some((*other, page));
        }
        // The region before.
        is_planted(Plant::WrongPage, page).then_some((number, page ^ REGION_PAGES as u32))
    }

    /// Has a page be zeros.
    fn zero(&self, number: u16, page: u32) -> Result<(), PageError> {
        #[cfg(feature = "fault-points")]
        if is_planted(Plant::StaleZero, page) {
            return Ok(());
        }
        self.ram(number)?.zero(offset(page), PAGE_BYTES as u64).map_err(not_written)
    }

    fn region(&self, number: u16, page: u32) -> Result<RegionGuard<'_>, PageError> {
        self.ledger.region(number, page).map_err(|error| error.to_string())
    }

    /// The mark of what a page was found to hold.
    fn mark(&self, number: u16, page: u32, held: &[u8]) -> u128 {
        self.ledger.mark(number, page, (!is_zero(held)).then_some(held))
    }

    /// Looks at some pages once more. Whether they hold what was placed there.
    fn is_sample_sound(&self) -> Result<bool, PageError> {
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
                ram.read(offset(page), &mut held).map_err(not_read)?;
                if self.mark(number, page, &held) != region.mark(nth(page)) {
                    return Ok(false);
                }
                // A hole would become memory.
                if !is_zero(&held) {
                    ram.read_in_qemu(offset(page), &mut in_qemu).map_err(not_read)?;
                    if held != in_qemu {
                        return Err("QEMU has the guest's RAM in another place than it was written to".into());
                    }
                }
            }
        }
        Ok(true)
    }

    /// Marks all pages as what the RAM holds now.
    fn mark_all_again(&self) -> Result<(), PageError> {
        let mut held = [0; PAGE_BYTES];
        for RegionId { block, region } in self.ledger.digests().into_keys() {
            let ram = self.ram(block)?;
            let first = region * REGION_PAGES as u32;
            let mut region = self.region(block, first)?;
            for page in first..self.ledger.pages(block).min(first + REGION_PAGES as u32) {
                let Some(version) = region.version(nth(page)) else { continue };
                ram.read(offset(page), &mut held).map_err(not_read)?;
                region.set(nth(page), version, self.mark(block, page, &held));
            }
        }
        Ok(())
    }
}

/// How many pages from `page` on, of at most so many and within its region, are all newer in this version than what is
/// known, or are all not; and which.
fn run(region: &Region, page: u32, version: u32, most: usize) -> (u32, bool) {
    let first = is_newer(region, page, version);
    let end = page + most.min(REGION_PAGES - nth(page)) as u32;
    ((page..end).take_while(|page| is_newer(region, *page, version) == first).count() as u32, first)
}

/// Whether this version of a page is newer than what is there.
fn is_newer(region: &Region, page: u32, version: u32) -> bool {
    #[cfg(feature = "fault-points")]
    if region.version(nth(page)).is_some() && is_planted(Plant::StaleVersion, page) {
        return false;
    }
    region.is_newer(nth(page), version)
}

/// What a delta is applied to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeltaBase {
    /// To nothing: what is there is newer.
    Old,
    /// To nothing: the page is what it should be.
    Done,
    /// What it should be is not there.
    None,
    /// The page.
    Ram,
    /// What was kept of it.
    Kept,
}

/// What a delta of a page is applied to.
fn delta_base(region: &Region, page: u32, version: u32, delta: &DeltaHead) -> DeltaBase {
    let nth = nth(page);
    let has_base = region.version(nth) == Some(delta.base) && !region.is_owed(nth);
    match delta {
        _ if !is_newer(region, page, version) || delta.is_unchanged(version) => DeltaBase::Old,
        DeltaHead { base: VERSION_KEPT, .. } => DeltaBase::Kept,
        _ if !has_base => DeltaBase::None,
        DeltaHead { changed: 0, mark, .. } if region.mark(nth) == *mark => DeltaBase::Done,
        DeltaHead { changed: 0, .. } => DeltaBase::None,
        _ => DeltaBase::Ram,
    }
}

/// Whether two marks of a page are the same.
fn is_same(own: u128, theirs: u128, page: u32) -> bool {
    #[cfg(feature = "fault-points")]
    if is_planted(Plant::ShortMark, page) {
        return own % 2 == theirs % 2;
    }
    let _ = page;
    own == theirs
}

/// Which page of its region it is.
fn nth(page: u32) -> usize {
    page as usize % REGION_PAGES
}

/// Where a page begins, which is also how many bytes so many pages have.
fn offset(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}

fn not_read(error: RamError) -> PageError {
    format!("the guest's RAM cannot be read: {error}")
}

fn not_written(error: RamError) -> PageError {
    format!("the guest's RAM cannot be written: {error}")
}
