//! Holds what all streams of a migration have in common at its target.
//!
//! # What 'the same' rests on
//!
//! A digest is worth as much as the marks in it. A page's mark is made here of what the RAM holds after the page was
//! written: the page is read back from where it belongs, and what is to be zero is found to be zero. Content that went
//! to another place, zeros that were skipped, a version that was passed over, a batch that was lost: all leave a mark
//! that the source does not have.
//!
//! A page that went to the wrong place has overwritten another page, whose mark was made before. So if the digests
//! differ, whatever the reason, all marks are made anew from the RAM before the source is told: what is mended then is
//! all that is wrong. This takes 0.2 s for a GiB, in which the guest stands still, and is done in that case alone.
//!
//! What NICs write straight into the RAM is the exception. Nobody reads it back, as the target's CPU is to have no work
//! with it: its mark is the source's word, given when the write was done. The sample below looks at it, too.
//!
//! A delta whose result does not have the mark that the source made of the page is not written: the page is *owed*, and
//! known to be so, from then on. So is a page whose base is not there. If nothing else differs, an owed page is sent
//! again whole, and nothing has to be checked.
//!
//! What was kept of an earlier stay of the guest is of the same kind: a page is taken from there only if it has the
//! mark that the source made of its own page. If a page does not, the rest is in doubt, and the source is told to build
//! on it no more.
//!
//! Two things are left. A file that is not the RAM of QEMU would agree with itself. So a random sample of 512 pages is
//! compared with what QEMU has in its own memory, and of a block that is elsewhere every page with something in it
//! tells. And something may change a page after it was read back without being such a write. The sample is checked once
//! more for that, too, but there it is a chance. If one page in a hundred is damaged, the sample finds that with a
//! probability of 99.4 %; a single page of a GiB, with 0.2 %. The sample takes 2 ms of the downtime; everything would
//! take the time above.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use skein_link::Patience;
use skein_pages::page_record::{BLOCKS_MAX, BlockInfo, PageMessage, REGIONS_PER_MESSAGE_MAX};
use skein_pages::{Digest, Key, RegionId};
use skein_session::StreamId;
use tracing::warn;

use super::blocks::{Blocks, WrittenMarks};
use super::error::{ProtocolError, TargetError};
use super::rail_regions::RailRegions;
use crate::error_chain::error_chain;
#[cfg(feature = "fault-points")]
use crate::fault_points;
use crate::find_ram::FindRam;
use crate::kept_ram::{KeptMarks, KeptRam, Trip};
use crate::running_session::spawn;

/// Says how often a waiting thread checks whether its stream was torn down.
const RESET_CHECK_PERIOD: Duration = Duration::from_millis(100);
/// Bounds the deltas that wait in vain for their bases before none waits any more: that is no outage, but an error.
const MISSING_BASES_MAX: usize = 8;
/// Bounds the regions of a guest: those of 16 TiB.
const REGIONS_MAX: usize = 8 << 20;
/// Bounds the regions that are asked for again at once. More are no accident.
const DIFFERING_REGIONS_MAX: usize = REGIONS_PER_MESSAGE_MAX;

/// All streams of a migration, at its target.
pub struct TargetPages {
    find: Option<FindRam>,
    state: Mutex<State>,
    changed: Condvar,
    /// The streams that wait for pages of others.
    waiting: AtomicUsize,
    /// How many have waited in vain.
    vain: AtomicUsize,
    /// The RAM of the guest's last stay here.
    kept_ram: Mutex<Option<KeptRam>>,
    /// What the source's rails write.
    pub(super) rails: RailRegions,
    /// Whether the kept RAM is not what it should be …
    is_doubted: AtomicBool,
    /// … and whether the source was told so.
    doubt_told: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The blocks, as the source told.
    blocks: Option<Arc<Blocks>>,
    /// The barriers that each stream has passed.
    passed: BTreeMap<StreamId, u32>,
    theirs: BTreeMap<RegionId, Digest>,
    /// The marks of what was written, once both ends are known to hold the same.
    written: Option<WrittenMarks>,
}

/// The regions of the source and their digests.
pub(super) enum Regions {
    /// More regions follow.
    More(Vec<(RegionId, Digest)>),
    /// These regions are the last.
    Last(Vec<(RegionId, Digest)>),
}

impl TargetPages {
    /// Makes the pages of a migration, before its first stream. `find` is `None` if QEMU is to get all pages. `kept` is
    /// the RAM of the guest's last stay here.
    pub fn new(find: Option<FindRam>, kept: Option<KeptRam>) -> Arc<TargetPages> {
        Arc::new(TargetPages {
            find,
            state: Mutex::default(),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            vain: AtomicUsize::new(0),
            kept_ram: Mutex::new(kept),
            rails: RailRegions::default(),
            is_doubted: AtomicBool::new(false),
            doubt_told: AtomicBool::new(false),
        })
    }

    /// Has no rail write the guest's RAM: QEMU may give parts of it back, and then others than it has would be written.
    pub fn bar_rails(&self) {
        self.rails.bar();
    }

    /// Has no rail write the guest's RAM any more.
    ///
    /// # Errors
    /// A rail cannot be said to be closed: the guest must not run here. The error is in words.
    pub fn fence_rails(&self) -> Result<(), String> {
        self.rails.fence_all().map_err(|error| error_chain(&error))
    }

    /// Lets go of the guest's RAM: QEMU has all of it, or it is needed no more. Nothing is written any more.
    pub fn let_go(&self) {
        self.rails.let_go();
        if let Some(blocks) = self.state.lock().blocks.take() {
            let _ = spawn("unmap", move || drop(blocks));
        }
    }

    /// Returns the marks of the pages with which the guest came on this trip, for its way back. Returns them once.
    pub fn take_marks(&self, trip: u64) -> Option<KeptMarks> {
        Some(self.state.lock().written.take()?.of_trip(trip))
    }

    pub(super) fn blocks(&self) -> Option<Arc<Blocks>> {
        self.state.lock().blocks.clone()
    }

    /// Finds the RAM that can be reached. Returns the answer for the source.
    ///
    /// `trip` is the trip that the source would build on.
    pub(super) fn choose_direct_blocks(
        &self,
        key: &Key,
        infos: Vec<BlockInfo>,
        trip: Option<u64>,
    ) -> Result<PageMessage, TargetError> {
        if infos.len() > BLOCKS_MAX || self.blocks().is_some() {
            return Err(ProtocolError::Blocks.into());
        }
        let trip = trip.map(|id| Trip { id, key: *key, blocks: infos.clone() });
        // Anything else that was kept is given up here.
        let kept = self.kept_ram.lock().take().filter(|kept| trip.as_ref() == Some(&kept.trip));
        let builds_on_kept = kept.is_some();
        let (blocks, why_not) = Blocks::find(self.find.as_ref(), key, infos, kept);
        let direct = blocks.direct();
        self.state.lock().blocks = Some(Arc::new(blocks));
        self.changed.notify_all();
        Ok(PageMessage::Mode { direct, why_not, builds_on_kept })
    }

    /// Notes that a stream has passed so many barriers.
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
    /// be written. The argument of `is_early` is how many barriers all streams have passed: what is of an older version
    /// than that and is not there never comes.
    pub(super) fn is_early(
        &self,
        patience: Patience,
        is_early: impl Fn(u32) -> Result<bool, TargetError>,
    ) -> Result<bool, TargetError> {
        let passed = |state: &State| state.passed.values().min().copied().unwrap_or(0);
        let early = is_early(passed(&self.state.lock()))?;
        if !early || patience == Patience::Try {
            return Ok(early);
        }
        // The writer looks for a waiting thread after it has written, and the waiting thread checks again after it has
        // said that it waits.
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

    /// Notes that pages were written, for which others may wait.
    pub(super) fn note_pages_written(&self) {
        if self.waiting.load(SeqCst) > 0 {
            drop(self.state.lock());
            self.changed.notify_all();
        }
    }

    /// Returns whether a delta waits for its base.
    pub(super) fn may_wait_for_bases(&self) -> bool {
        self.vain.load(SeqCst) < MISSING_BASES_MAX
    }

    /// Notes that the kept RAM is not what it should be.
    pub(super) fn doubt_kept(&self) {
        if !self.is_doubted.swap(true, SeqCst) {
            warn!("what was kept of the guest's RAM is not what it was");
        }
    }

    /// Returns the message about that for the source, once.
    pub(super) fn doubt(&self) -> Option<PageMessage> {
        (self.is_doubted.load(SeqCst) && !self.doubt_told.swap(true, SeqCst)).then_some(PageMessage::Doubt)
    }

    /// Counts a base of a delta that has not come.
    pub(super) fn count_missing_base(&self) {
        self.vain.fetch_add(1, SeqCst);
        warn!("the base of a delta does not come");
    }

    /// Compares what both ends hold. If it is the same, the RAM is let go: what follows may make QEMU write to it.
    pub(super) fn compare_all(&self, digest: Digest) -> Result<PageMessage, TargetError> {
        let blocks = self.blocks().ok_or(ProtocolError::EndBeforeBegin)?;
        self.rails.fence_all()?;
        #[cfg(feature = "fault-points")]
        fault_points::compared();
        let owed = blocks.ledger().owed();
        let is_as_sent = blocks.ledger().digest() == digest;
        if is_as_sent && !owed.is_empty() {
            warn!(regions = owed.len(), "deltas did not fit: their pages are sent again");
            return Ok(PageMessage::Comparison { same: false });
        }
        if !is_as_sent || !blocks.is_sample_sound()? {
            warn!("the guest's RAM is not what was sent: all of it is looked at");
            blocks.mark_all_again()?;
        }
        let same = blocks.ledger().digest() == digest;
        if same {
            let mut state = self.state.lock();
            state.blocks = None;
            state.written = Some(blocks.written());
            drop(state);
            // Unmapping huge pages may take a while, for which the guest need not wait.
            let _ = spawn("unmap", move || drop(blocks));
        }
        Ok(PageMessage::Comparison { same })
    }

    /// Takes the source's digests, as they come. Returns which of them differ, after the last.
    pub(super) fn compare(&self, regions: Regions) -> Result<Option<PageMessage>, TargetError> {
        let blocks = self.blocks().ok_or(ProtocolError::EndBeforeBegin)?;
        let (regions, is_last) = match regions {
            Regions::More(regions) => (regions, false),
            Regions::Last(regions) => (regions, true),
        };
        let mut state = self.state.lock();
        if state.theirs.len() + regions.len() > REGIONS_MAX {
            return Err(ProtocolError::Regions.into());
        }
        state.theirs.extend(regions);
        if !is_last {
            return Ok(None);
        }
        let theirs = std::mem::take(&mut state.theirs);
        drop(state);
        let (own, owed) = (blocks.ledger().digests(), blocks.ledger().owed());
        let all = theirs.keys().chain(own.keys()).collect::<BTreeSet<_>>();
        let digest = |of: &BTreeMap<RegionId, Digest>, id| of.get(id).copied().unwrap_or_default();
        let differ = all.into_iter().filter(|id| owed.contains(id) || digest(&theirs, id) != digest(&own, id));
        let regions: Vec<RegionId> = differ.take(DIFFERING_REGIONS_MAX).copied().collect();
        Ok(Some(PageMessage::Differ { regions }))
    }
}
