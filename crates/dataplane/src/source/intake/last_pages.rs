//! The end of all pages: the target's copy is compared, and mended.

use std::num::NonZero;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, available_parallelism};

use skein_guest_ram::Ram;
use skein_pages::page_record::{self, PageMessage};
use skein_pages::{BATCH_PAGES_MAX, Batch, BatchForm, Ledger, PAGE_BYTES, PageRuns, REGION_PAGES, RegionId, is_zero};
use tracing::warn;

use super::{Intake, IntakeStop};
use crate::source::error::SourceError;
use crate::source::page_counters::add;
use crate::source::pages::{DirectBlocks, regions};

/// How often pages that differ are sent again.
const REPAIRS_MAX: u32 = 3;
/// Pages that are read and compared at once: 256 KiB stay in a core's cache.
const COMPARED_PAGES: u64 = 64;
/// More threads wait for memory.
const COMPARERS_MAX: usize = 8;

impl Intake<'_> {
    /// All pages were sent. Returns once the target is known to hold them.
    pub(super) fn send_last_pages(&mut self, direct: &DirectBlocks, barriers: u32) -> Result<(), IntakeStop> {
        let channels = self.pages.all_passed(barriers, self.is_over)?;
        let mut version = barriers;
        let held = direct.sent.release();
        if !held.is_empty() {
            self.barrier(&mut version)?;
        }
        for (region, pages) in held {
            self.send_from_ram(direct, region.block, &pages, version)?;
        }
        self.send_missed(direct, &mut version)?;
        for repair in 0..=REPAIRS_MAX {
            let digest = direct.sent.ledger().digest();
            self.send_message(&PageMessage::Complete { version: barriers, streams: channels + 1, digest })?;
            match self.pages.answer(self.is_over)? {
                PageMessage::Comparison { same: true } => {
                    #[cfg(feature = "fault-points")]
                    crate::fault_points::point("ram-complete");
                    return Ok(());
                }
                PageMessage::Comparison { same: false } if repair < REPAIRS_MAX => {}
                _ => break,
            }
            for note in regions(direct.sent.ledger()) {
                self.send_message(&note)?;
            }
            let PageMessage::Differ { regions } = self.pages.answer(self.is_over)? else { break };
            warn!(session = %self.live.id, regions = regions.len(), "the target's copy of the guest's RAM differs");
            // Newer than any version so far: the guest is stopped, and its RAM is what counts.
            self.barrier(&mut version)?;
            for region in regions {
                self.repair(direct, region, version)?;
            }
        }
        Err(SourceError::Differs.into())
    }

    /// Sends what QEMU has missed of what the guest wrote: see [`DirtyTracking`](crate::source::DirtyTracking).
    fn send_missed(&mut self, direct: &DirectBlocks, version: &mut u32) -> Result<(), IntakeStop> {
        let mut is_newer = false;
        for (block, ram) in direct.misses() {
            let missed = missed(direct.sent.ledger(), block, ram)?;
            if missed.is_empty() {
                continue;
            }
            if !is_newer {
                self.barrier(version)?;
                is_newer = true;
            }
            add(&self.pages.counts.missed_pages, missed.len());
            self.send_from_ram(direct, block, &missed, *version)?;
        }
        Ok(())
    }

    /// Sends pages as they are in the guest's RAM, or what changed of them.
    fn send_from_ram(
        &mut self,
        direct: &DirectBlocks,
        block: u16,
        pages: &[u32],
        version: u32,
    ) -> Result<(), IntakeStop> {
        for pages in pages.chunks(BATCH_PAGES_MAX) {
            let batch = self.reread(direct, block, pages)?;
            self.send_direct(direct, batch, version)?;
        }
        Ok(())
    }

    /// Sends a region again, as it is in the guest's RAM.
    fn repair(&mut self, direct: &DirectBlocks, region: RegionId, version: u32) -> Result<(), IntakeStop> {
        let first = u64::from(region.region) * REGION_PAGES as u64;
        let end = (first + REGION_PAGES as u64).min(u64::from(direct.sent.ledger().pages(region.block)));
        let pages: Vec<u32> = (first..end).map(|page| page as u32).collect();
        for pages in pages.chunks(BATCH_PAGES_MAX) {
            let batch = self.reread(direct, region.block, pages)?;
            add(&self.pages.counts.repaired_pages, pages.len());
            // Whole: what the target has is not what was thought.
            let contents = pages.iter().enumerate().map(|(nth, page)| (*page, batch.page(nth)));
            direct.sent.ledger().note_whole_pages(region.block, version, contents).map_err(SourceError::NoRam)?;
            self.batch(batch)?;
        }
        Ok(())
    }

    /// What follows is newer than all before.
    fn barrier(&mut self, version: &mut u32) -> Result<(), IntakeStop> {
        *version += 1;
        self.push(vec![page_record::barrier()])
    }

    /// Pages as they are in the guest's RAM, while the guest stands still.
    fn reread(&self, direct: &DirectBlocks, block: u16, pages: &[u32]) -> Result<Batch, IntakeStop> {
        let ram = direct.ram(block).ok_or(SourceError::DiffersOutOfReach)?;
        let mut content = self.live.pool.take(pages.len() * PAGE_BYTES);
        for (page, out) in pages.iter().zip(content.as_mut().chunks_exact_mut(PAGE_BYTES)) {
            let offset = u64::from(*page) * PAGE_BYTES as u64;
            ram.read(offset, out).map_err(SourceError::Read)?;
        }
        let place = PageRuns::new(block, pages.iter().copied());
        Ok(Batch::new(BatchForm::Direct(place), content.freeze()))
    }
}

/// The pages of a block that do not hold what was sent last. The guest stands still for this, so that all cores are
/// free for it.
fn missed(ledger: &Ledger, block: u16, ram: &dyn Ram) -> Result<Vec<u32>, SourceError> {
    let pages = ledger.pages(block);
    let next = AtomicU64::new(0);
    let compare = || -> Result<Vec<u32>, SourceError> {
        let mut content = vec![0; COMPARED_PAGES as usize * PAGE_BYTES];
        let mut missed = Vec::new();
        loop {
            let first = next.fetch_add(COMPARED_PAGES, Relaxed);
            let count = u64::from(pages).saturating_sub(first).min(COMPARED_PAGES);
            if count == 0 {
                return Ok(missed);
            }
            let content = &mut content[..count as usize * PAGE_BYTES];
            ram.read(first * PAGE_BYTES as u64, content).map_err(SourceError::Read)?;
            let contents = content.chunks_exact(PAGE_BYTES).map(|page| (!is_zero(page)).then_some(page));
            missed.extend(ledger.changed(block, (first as u32..).zip(contents)).map_err(SourceError::NoRam)?);
        }
    };
    let cores = available_parallelism().map_or(1, NonZero::get).min(COMPARERS_MAX);
    thread::scope(|scope| {
        // The more, the faster; one is enough.
        let others: Vec<_> =
            (1..cores).map_while(|_| thread::Builder::new().spawn_scoped(scope, compare).ok()).collect();
        let mut all = compare()?;
        for other in others {
            all.extend(other.join().map_err(|_| SourceError::Panicked)??);
        }
        all.sort_unstable();
        Ok(all)
    })
}
