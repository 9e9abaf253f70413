//! Pages that are held back: the guest writes them anew in every round, so each sending was in vain.
//!
//! The target is told that such a page is what it has, and gets the page once the guest stands still. Until then the
//! marks of the two ends differ by one, so that no held page can be forgotten.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::delta::DeltaHead;
use crate::region::Region;

/// At which time, counted from 1, a page that would go whole once more is held back instead. A page that the guest has
/// written in so many rounds is written in every round.
const HOLD_AFTER: u8 = 3;

/// How many pages are held back, of all regions.
#[derive(Default)]
pub(crate) struct HeldPages {
    most: AtomicU64,
    now: AtomicU64,
    /// How many times a page was not sent because it is held, over all rounds.
    spared: AtomicU64,
}

impl HeldPages {
    /// Sets how many pages may be held at most.
    pub(crate) fn set_most(&self, pages: u64) {
        self.most.store(pages, Relaxed);
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    pub(crate) fn spared(&self) -> u64 {
        self.spared.load(Relaxed)
    }

    /// Notes that no page is held any more.
    pub(crate) fn clear(&self) {
        self.now.store(0, Relaxed);
    }

    /// Continues to hold the nth page, which is held, in this version; or releases the page if too many are held.
    /// Returns what the target is told if the page stays held.
    pub(crate) fn hold_on(&self, region: &mut Region, nth: usize, version: u32) -> Option<DeltaHead> {
        if self.now.load(Relaxed) > self.most.load(Relaxed) {
            region.release(nth);
            self.now.fetch_sub(1, Relaxed);
            return None;
        }
        self.spared.fetch_add(1, Relaxed);
        region.hold(nth, version)
    }

    /// Holds the nth page, which would go whole once more, if that happened often. Returns what the target is told
    /// then.
    pub(crate) fn hold(&self, region: &mut Region, nth: usize, version: u32) -> Option<DeltaHead> {
        if region.sketches.as_mut()?.count_resent_whole(nth) < HOLD_AFTER {
            return None;
        }
        let one_more = |held: u64| (held < self.most.load(Relaxed)).then_some(held + 1);
        self.now.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        self.spared.fetch_add(1, Relaxed);
        region.hold(nth, version)
    }
}

impl Region {
    pub(crate) fn is_held(&self, nth: usize) -> bool {
        self.held.contains(&(nth as u16))
    }

    /// Holds the nth page in this version, or continues to. Returns what the target is told.
    fn hold(&mut self, nth: usize, version: u32) -> Option<DeltaHead> {
        let base = self.version(nth)?;
        let mark = self.mark(nth).wrapping_sub(u128::from(self.is_held(nth)));
        // The hashes must stay those of what the target has.
        let sketches = self.sketches.take();
        self.set(nth, version, mark.wrapping_add(1));
        self.sketches = sketches;
        self.held.insert(nth as u16);
        Some(DeltaHead { base, mark, changed: 0 })
    }

    /// Stops holding the nth page. Returns whether it was held.
    pub(crate) fn release(&mut self, nth: usize) -> bool {
        let is_held = self.is_held(nth);
        if is_held && let Some(version) = self.version(nth) {
            let sketches = self.sketches.take();
            self.set(nth, version, self.mark(nth).wrapping_sub(1));
            self.sketches = sketches;
        }
        is_held
    }
}
