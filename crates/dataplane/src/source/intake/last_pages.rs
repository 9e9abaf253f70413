//! Compares the target's copy at the end of all pages, and mends the copy.

use std::num::NonZero;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, available_parallelism};

use skein_guest_ram::Ram;
use skein_pages::page_record::{self, PageMessage, REGIONS_PER_MESSAGE_MAX};
use skein_pages::{
    BATCH_PAGES_MAX, Batch, BatchForm, Digest, Ledger, PAGE_BYTES, PageRuns, REGION_PAGES, RegionId, is_zero,
};
use tracing::warn;

use super::input::{Input, IntakeStop};
use crate::source::error::SourceError;
use crate::source::page_counters::add;
use crate::source::pages::DirectBlocks;

/// Bounds how often differing pages are sent again.
const REPAIRS_MAX: u32 = 3;
/// Says how many pages are read and compared at once: 256 KiB stay in a core's cache.
const COMPARED_PAGES: u64 = 64;
/// Bounds the comparing threads. More threads would wait for memory.
const COMPARERS_MAX: usize = 8;

/// Sends what is left when QEMU has sent all pages. Returns once the target is known to hold all pages.
pub(super) fn send_last_pages(input: &mut Input<'_>, direct: &DirectBlocks, barriers: u32) -> Result<(), IntakeStop> {
    LastPages { input, direct, version: barriers }.send(barriers)
}

/// The end of all pages. The guest stands still, and its RAM is what counts.
struct LastPages<'i, 'a> {
    input: &'i mut Input<'a>,
    direct: &'i DirectBlocks,
    /// The version of pages that are sent now.
    version: u32,
}

impl LastPages<'_, '_> {
    fn send(&mut self, barriers: u32) -> Result<(), IntakeStop> {
        let channels = self.input.pages.all_passed(barriers, self.input.is_over)?;
        self.send_held()?;
        self.send_missed()?;
        if self.input.pages.rails.are_open() {
            // The last news tell how much the target has copied.
            self.input.outbox.send_message(&PageMessage::AskRails)?;
        }
        for repair in 0..=REPAIRS_MAX {
            let digest = self.direct.sent.ledger().digest();
            let complete = PageMessage::Complete { version: barriers, streams: channels + 1, digest };
            match self.ask(&complete)? {
                PageMessage::Comparison { same: true } => {
                    #[cfg(feature = "fault-points")]
                    crate::fault_points::point("ram-complete");
                    return Ok(());
                }
                PageMessage::Comparison { same: false } if repair < REPAIRS_MAX => {}
                _ => break,
            }
            let Some(regions) = self.differing_regions()? else { break };
            let session = self.input.live.id;
            warn!(%session, regions = regions.len(), "the target's copy of the guest's RAM differs");
            self.begin_version()?;
            for region in regions {
                self.repair(region)?;
            }
        }
        Err(SourceError::Differs.into())
    }

    /// Sends a message, and returns the target's answer.
    fn ask(&mut self, message: &PageMessage) -> Result<PageMessage, IntakeStop> {
        self.input.outbox.send_message(message)?;
        Ok(self.input.pages.answer(self.input.is_over)?)
    }

    /// Sends the digests of all regions. Returns the regions of which the target has another digest; `None` if the
    /// target says something else.
    fn differing_regions(&mut self) -> Result<Option<Vec<RegionId>>, IntakeStop> {
        for message in regions(self.direct.sent.ledger()) {
            self.input.outbox.send_message(&message)?;
        }
        Ok(match self.input.pages.answer(self.input.is_over)? {
            PageMessage::Differ { regions } => Some(regions),
            _ => None,
        })
    }

    /// Begins a version that is newer than all versions before.
    fn begin_version(&mut self) -> Result<(), IntakeStop> {
        self.version += 1;
        Ok(self.input.outbox.send(vec![page_record::barrier()])?)
    }

    /// Sends the pages that were held back.
    fn send_held(&mut self) -> Result<(), IntakeStop> {
        let held = self.direct.sent.release();
        if !held.is_empty() {
            self.begin_version()?;
        }
        for (region, pages) in held {
            self.send_from_ram(region.block, &pages)?;
        }
        Ok(())
    }

    /// Sends what the guest wrote and QEMU has missed: see [`DirtyTracking`](crate::source::DirtyTracking).
    fn send_missed(&mut self) -> Result<(), IntakeStop> {
        let mut is_newer = false;
        for (block, ram) in self.direct.misses() {
            let missed = missed(self.direct.sent.ledger(), block, ram)?;
            if missed.is_empty() {
                continue;
            }
            if !is_newer {
                self.begin_version()?;
                is_newer = true;
            }
            add(&self.input.pages.counts.missed_pages, missed.len());
            self.send_from_ram(block, &missed)?;
        }
        Ok(())
    }

    /// Sends pages as they are in the guest's RAM, or what changed of them.
    fn send_from_ram(&mut self, block: u16, pages: &[u32]) -> Result<(), IntakeStop> {
        for pages in pages.chunks(BATCH_PAGES_MAX) {
            let batch = self.reread(block, pages)?;
            self.input.outbox.send_direct(self.direct, batch, self.version)?;
        }
        Ok(())
    }

    /// Sends a region again, as it is in the guest's RAM.
    fn repair(&mut self, region: RegionId) -> Result<(), IntakeStop> {
        let ledger = self.direct.sent.ledger();
        let first = u64::from(region.region) * REGION_PAGES as u64;
        let end = (first + REGION_PAGES as u64).min(u64::from(ledger.pages(region.block)));
        let pages: Vec<u32> = (first..end).map(|page| page as u32).collect();
        for pages in pages.chunks(BATCH_PAGES_MAX) {
            let batch = self.reread(region.block, pages)?;
            add(&self.input.pages.counts.repaired_pages, pages.len());
            // The pages go whole, because the target does not have what the source believed.
            let contents = pages.iter().enumerate().map(|(nth, page)| (*page, batch.page(nth)));
            ledger.note_whole_pages(region.block, self.version, contents).map_err(SourceError::NoRam)?;
            self.input.outbox.send_batch(batch)?;
        }
        Ok(())
    }

    /// Returns pages as they are in the guest's RAM.
    fn reread(&self, block: u16, pages: &[u32]) -> Result<Batch, IntakeStop> {
        let ram = self.direct.ram(block).ok_or(SourceError::DiffersOutOfReach)?;
        let mut content = self.input.live.pool.take(pages.len() * PAGE_BYTES);
        for (page, out) in pages.iter().zip(content.as_mut().chunks_exact_mut(PAGE_BYTES)) {
            ram.read(u64::from(*page) * PAGE_BYTES as u64, out).map_err(SourceError::Read)?;
        }
        let place = PageRuns::new(block, pages.iter().copied());
        Ok(Batch::new(BatchForm::Direct(place), content.freeze()))
    }
}

/// Returns the pages of a block that do not hold what was sent last. The guest stands still for this, so all cores are
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
            let (offset, content) = (first * PAGE_BYTES as u64, &mut content[..count as usize * PAGE_BYTES]);
            // Most of a sparse guest is holes, of which the kernel need not copy zeros.
            let is_all_zero = ram.is_zero(offset, content.len() as u64).map_err(SourceError::Read)?;
            if !is_all_zero {
                ram.read(offset, content).map_err(SourceError::Read)?;
            }
            let contents = content.chunks_exact(PAGE_BYTES);
            let contents = contents.map(|page| (!is_all_zero && !is_zero(page)).then_some(page));
            missed.extend(ledger.changed(block, (first as u32..).zip(contents)).map_err(SourceError::NoRam)?);
        }
    };
    let cores = available_parallelism().map_or(1, NonZero::get).min(COMPARERS_MAX);
    thread::scope(|scope| {
        // More threads are faster, but one thread is enough.
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

/// Returns the regions of a ledger and their digests, in as many messages as it takes.
fn regions(ledger: &Ledger) -> Vec<PageMessage> {
    let regions: Vec<(RegionId, Digest)> = ledger.digests().into_iter().collect();
    let mut messages: Vec<PageMessage> = regions
        .chunks(REGIONS_PER_MESSAGE_MAX)
        .map(|regions| PageMessage::Regions { regions: regions.to_vec(), last: false })
        .collect();
    match messages.last_mut() {
        Some(PageMessage::Regions { last, .. }) => *last = true,
        _ => messages.push(PageMessage::Regions { regions: Vec::new(), last: true }),
    }
    messages
}
