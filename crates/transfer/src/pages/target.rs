//! What all streams of a migration have in common at its target.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use skein_core::StreamId;
use skein_pages::ledger::{Digest, Key, REGION_PAGES, RegionGuard, RegionId};
use skein_pages::record::{BLOCKS_MAX, BlockInfo, NOTE_REGIONS_MAX, Note};
use skein_pages::{Ledger, PAGE_BYTES};
use thiserror::Error;

/// Who waits looks so often whether its stream was torn down.
const LOOK: Duration = Duration::from_millis(100);
/// Regions that may be told of: of 16 TiB.
const REGIONS_MAX: usize = 8 << 20;
/// Regions that are asked for again at once. More are no accident.
const DIFFER_MAX: usize = NOTE_REGIONS_MAX;

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
    /// Reads from it.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), RamError>;
    /// The parts of it that may hold something else than zeros.
    fn touched(&self) -> Result<Vec<Range<u64>>, RamError>;
}

/// Finds the RAM of a guest, block by block.
pub type FindRam = Box<dyn Fn(&BlockInfo) -> Result<Box<dyn Ram>, RamError> + Send + Sync>;

/// All streams of a migration, at its target.
pub struct Target {
    find: Option<FindRam>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// As the source told.
    blocks: Option<Arc<Blocks>>,
    /// Barriers that each stream has passed.
    passed: BTreeMap<StreamId, u32>,
    theirs: BTreeMap<RegionId, Digest>,
}

/// The guest's RAM blocks, and what is known of the pages of those that are written here.
pub(super) struct Blocks {
    pub(super) names: Vec<String>,
    ledger: Ledger,
    ram: BTreeMap<u16, Block>,
}

struct Block {
    ram: Box<dyn Ram>,
    /// What may have held something else than zeros from the first.
    touched: Vec<Range<u64>>,
}

/// The migration cannot go on, in words.
pub(super) type Failed = String;

impl Target {
    /// Before its first stream. `find`: none if QEMU is to get all pages.
    pub fn new(find: Option<FindRam>) -> Arc<Target> {
        Arc::new(Target { find, state: Mutex::default(), changed: Condvar::new() })
    }

    pub(super) fn blocks(&self) -> Option<Arc<Blocks>> {
        self.state.lock().blocks.clone()
    }

    /// Maps what can be mapped, and says so.
    pub(super) fn decide(&self, key: &Key, infos: Vec<BlockInfo>) -> Result<Note, Failed> {
        if infos.len() > BLOCKS_MAX || self.blocks().is_some() {
            return Err("the source's agent tells of the guest's RAM twice, or of too much".into());
        }
        let mut ram = BTreeMap::new();
        let mut why_not = String::new();
        for (number, info) in infos.iter().enumerate() {
            let Some(find) = &self.find else { break };
            let found = find(info).and_then(|ram| {
                let wrong = ram.bytes() != info.bytes || !info.bytes.is_multiple_of(PAGE_BYTES as u64);
                if wrong || info.bytes / PAGE_BYTES as u64 > u64::from(u32::MAX) {
                    return Err(RamError(format!("it has {} bytes there, {} here", info.bytes, ram.bytes())));
                }
                let touched = ram.touched()?;
                Ok(Block { ram, touched })
            });
            match found {
                Ok(block) => drop(ram.insert(number as u16, block)),
                // The largest is the guest's RAM; others are small.
                Err(error) if infos.iter().all(|other| other.bytes <= info.bytes) => {
                    why_not = format!("{}: {error}", info.name);
                }
                Err(_) => {}
            }
        }
        let direct = ram.keys().copied().collect();
        let pages = |(number, info): (usize, &BlockInfo)| match ram.contains_key(&(number as u16)) {
            true => (info.bytes / PAGE_BYTES as u64) as u32,
            false => 0,
        };
        let ledger = Ledger::new(key, infos.iter().enumerate().map(pages));
        let names = infos.into_iter().map(|info| info.name).collect();
        self.state.lock().blocks = Some(Arc::new(Blocks { names, ledger, ram }));
        self.changed.notify_all();
        Ok(Note::Mode { direct, why_not })
    }

    /// A stream has passed so many barriers.
    pub(super) fn passed(&self, stream: StreamId, barriers: u32) {
        self.state.lock().passed.insert(stream, barriers);
        self.changed.notify_all();
    }

    /// Whether so many streams have passed so many barriers; `patience`: waits a little for that.
    pub(super) fn all_passed(&self, streams: u16, barriers: u32, patience: bool) -> bool {
        let mut state = self.state.lock();
        let passed =
            |state: &State| state.passed.values().filter(|passed| **passed >= barriers).count() >= usize::from(streams);
        if patience && !passed(&state) {
            self.changed.wait_for(&mut state, LOOK);
        }
        passed(&state)
    }

    /// Compares what both ends hold. If it is the same, the RAM is let go: what follows may have QEMU write to it.
    pub(super) fn verdict(&self, digest: Digest) -> Result<Note, Failed> {
        let blocks = self.blocks().ok_or("the source's agent ends before it began")?;
        let same = blocks.ledger.digest() == digest;
        if same {
            self.state.lock().blocks = None;
        }
        Ok(Note::Verdict { same })
    }

    /// The source's digests, as they come; after the last, which of them differ.
    pub(super) fn compare(&self, regions: Vec<(RegionId, Digest)>, last: bool) -> Result<Option<Note>, Failed> {
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
        let own = blocks.ledger.digests();
        let all = theirs.keys().chain(own.keys()).collect::<std::collections::BTreeSet<_>>();
        let differ = all
            .into_iter()
            .filter(|id| theirs.get(id).copied().unwrap_or_default() != own.get(id).copied().unwrap_or_default());
        let regions: Vec<RegionId> = differ.take(DIFFER_MAX).copied().collect();
        Ok(Some(Note::Differ { regions }))
    }
}

impl Blocks {
    fn ram(&self, number: u16) -> Result<&Block, Failed> {
        self.ram.get(&number).ok_or_else(|| "the source's agent sends pages of RAM that is not mapped here".into())
    }

    /// Writes pages in a row into the guest's RAM where they are newer than what is there.
    ///
    /// A region stays locked meanwhile: two versions of a page may arrive on two streams at once. `scratch`: for reading
    /// them again.
    pub(super) fn place(
        &self,
        number: u16,
        first: u32,
        version: u32,
        mut content: &[u8],
        scratch: &mut [u8],
    ) -> Result<(), Failed> {
        let ram = &self.ram(number)?.ram;
        let mut page = first;
        while !content.is_empty() {
            let mut region = self.region(number, page)?;
            let at = page as usize % REGION_PAGES;
            let pages = (content.len() / PAGE_BYTES).min(REGION_PAGES - at).min(scratch.len() / PAGE_BYTES);
            let is_newer = region.is_newer(at, version);
            let run = (1..pages).take_while(|nth| region.is_newer(at + nth, version) == is_newer).count() + 1;
            let (now, later) = content.split_at(run * PAGE_BYTES);
            if is_newer {
                let offset = u64::from(page) * PAGE_BYTES as u64;
                ram.write(offset, now).map_err(not_written)?;
                // What is compared is what the RAM holds, not what was to be written.
                let held = &mut scratch[..now.len()];
                ram.read(offset, held).map_err(not_written)?;
                for (nth, held) in held.chunks_exact(PAGE_BYTES).enumerate() {
                    region.set(at + nth, version, self.ledger.mark(number, page + nth as u32, version, Some(held)));
                }
            }
            content = later;
            page += run as u32;
        }
        Ok(())
    }

    /// The same of a page of zeros.
    pub(super) fn place_zero(&self, number: u16, page: u32, version: u32) -> Result<(), Failed> {
        let block = self.ram(number)?;
        let mut region = self.region(number, page)?;
        let (at, offset) = (page as usize % REGION_PAGES, u64::from(page) * PAGE_BYTES as u64);
        if region.is_newer(at, version) {
            let is_zero = match region.version(at) {
                Some(before) => region.mark(at) == self.ledger.mark(number, page, before, None),
                None => !block.touched.iter().any(|touched| touched.contains(&offset)),
            };
            // Writing zeros where there are some would take memory.
            if !is_zero {
                block.ram.zero(offset, PAGE_BYTES as u64).map_err(not_written)?;
            }
            region.set(at, version, self.ledger.mark(number, page, version, None));
        }
        Ok(())
    }

    fn region(&self, number: u16, page: u32) -> Result<RegionGuard<'_>, Failed> {
        self.ledger.region(number, page).map_err(|error| error.to_string())
    }
}

fn not_written(error: RamError) -> Failed {
    format!("the guest's RAM cannot be written: {error}")
}
