//! Holds what all streams of a migration have in common at its source.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_guest_ram::{Ram, is_guest_ram};
use skein_pages::packing::packed_bytes;
use skein_pages::page_record::{BlockInfo, PageMessage};
use skein_pages::{Key, PAGE_BYTES, PageCounts, SentPages};
use skein_session::{StreamId, Width};
use thiserror::Error;
use tracing::{debug, info, warn};

use super::error::{Awaited, ProtocolError, SourceError, Unknown, Unplaceable};
use super::pacer::Pacer;
use super::packer_pool::PackerPool;
use super::page_counters::PageCounters;
use super::rail_writes::RailWrites;
use super::ram_survey::{RamSurvey, Sent};
use super::rate_limiter::RateShare;
use crate::error_chain::error_chain;
use crate::find_ram::{FindRam, RamNotFound};
use crate::kept_ram::{KeptMarks, KeptRam, RamIsPrivate, Trip};
use crate::rail_paths::RailPaths;

/// Bounds the other agent's time for an answer. After that the migration is called off.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Bounds a wait for the target to catch up.
const CATCH_UP_WAIT_MAX: Duration = Duration::from_secs(1);
/// Bounds the characters that are kept of the other agent's words.
const WORDS_CHARS_MAX: usize = 500;
/// Says how often a waiting thread checks whether its stream was torn down.
const RESET_CHECK_PERIOD: Duration = Duration::from_millis(100);

/// Says how a migration's pages travel.
pub struct SourcePagesSettings {
    /// The packers; `None`: pages go as they are.
    pub packers: Option<Arc<PackerPool>>,
    /// How much of the session the pages may use.
    pub width: Width,
    /// How fast the pages may be handed over to the session.
    pub rate: Arc<RateShare>,
    /// Whether pages may be written straight into the target guest's RAM, and both ends compare what they hold.
    pub direct: bool,
    /// Whether pages may go over RDMA. If not, all else of the session does not either.
    pub may_use_rdma: bool,
    /// The multifd channels that the migration has; `None`: one stream.
    pub channels: u16,
    /// The key of the marks, drawn for this migration; `kept_marks` has another key.
    pub key: Key,
    /// Finds this guest's RAM, to send again what differs; as for [`crate::target::TargetPages`].
    pub ram: Option<FindRam>,
    /// The memory for knowing what the target holds, as a share of the guest's RAM. Hashes of its pages' parts take
    /// 0.032. 0: all pages go whole.
    pub delta_memory: f64,
    /// The marks of the RAM that the target may have kept when the guest came from there.
    pub kept_marks: Option<KeptMarks>,
    /// Says where QEMU may miss what the guest writes.
    pub dirty_tracking: DirtyTracking,
}

/// Of which RAM QEMU may lose sight, so that it does not send all that the guest wrote there. Once the guest stands
/// still, that RAM is compared with what was sent.
///
/// TCG notes that a page was written once, and not again until it is told that the page is clean. Where QEMU takes over
/// what was written, `cpu_physical_memory_sync_dirty_bitmap` (include/exec/ram_addr.h), it tells so page by page, while
/// the guest goes on. A page that was noted before, and that comes to be in the TLB only after, stays noted there
/// (`tlb_set_page_full` of accel/tcg/cputlb.c, after `cpu_physical_memory_is_clean`). Where a block is a multiple of
/// 256 KiB, TCG is told of all pages at once, and again the next time, too; before 9.0 not at all ("physmem: Fix
/// migration dirty bitmap coherency with TCG memory access").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyTracking {
    /// QEMU loses sight of nothing: KVM keeps the books.
    Exact,
    /// QEMU may lose sight of blocks that are no multiple of 256 KiB.
    MissesUnalignedBlocks,
    /// QEMU may lose sight of all blocks.
    MissesAllBlocks,
}

/// Holds the bytes of RAM for which QEMU notes in one word what was written.
const WORD_BYTES: u64 = 64 * PAGE_BYTES as u64;

/// All streams of a migration, at its source.
pub struct SourcePages {
    settings: SourcePagesSettings,
    state: Mutex<State>,
    changed: Condvar,
    pacer: Arc<Pacer>,
    pub(super) counts: Arc<PageCounters>,
    /// What writes pages into the guest's RAM itself.
    pub(super) rails: Arc<RailWrites>,
}

#[derive(Default)]
struct State {
    mode: Option<PageRoute>,
    /// Whether pages are built on what the target kept.
    builds_on_kept: bool,
    /// The reason why the target's agent does not write the pages itself; empty if it does, or if that was not asked
    /// for.
    why_not: String,
    /// See [`SourcePages::not_compared`].
    not_compared: String,
    blocks: Vec<BlockInfo>,
    /// The barriers that each channel has passed.
    channels: BTreeMap<StreamId, u32>,
    /// The barriers of each stream before which everything is written at the target.
    pages_written: BTreeMap<StreamId, u32>,
    answers: Vec<PageMessage>,
    /// Since when the target has been asked whether its copy is the same.
    asked: Option<Instant>,
    /// See [`SourcePages::direct_placement_failure`].
    unplaceable: Option<Unplaceable>,
    failed: Option<Arc<SourceError>>,
}

/// What the first version of a page is built on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BuildsOn {
    Nothing,
    /// The RAM of the guest that the target has kept, which [`SourcePagesSettings::kept_marks`] describes.
    KeptRam,
}

/// The way that pages take.
#[derive(Clone)]
pub(super) enum PageRoute {
    /// QEMU gets the pages where they were.
    Rebuild,
    /// The target's agent writes the pages of some blocks itself.
    Direct(Arc<DirectBlocks>),
}

/// The blocks that the target's agent writes itself, and what is known of their pages.
pub(super) struct DirectBlocks {
    pub(super) sent: SentPages,
    numbers: HashMap<String, u16>,
    ram: BTreeMap<u16, Arc<dyn Ram>>,
    /// The blocks of which QEMU may miss something.
    misses: BTreeMap<u16, Arc<dyn Ram>>,
    survey: Mutex<RamSurvey>,
}

/// RAM of which QEMU may miss something, and that is not compared with what was sent.
#[derive(Debug, Error)]
#[error("{what} is not compared, and without KVM QEMU may lose sight of what the guest writes there")]
struct NotCompared {
    what: String,
    #[source]
    why: NotComparedWhy,
}

/// The reason why RAM is not compared.
#[derive(Debug, Error)]
enum NotComparedWhy {
    #[error("its pages go through QEMU")]
    NotDirect,
    #[error("the agent of this host does not know where QEMU has it")]
    Unknown,
    #[error("the agent of this host cannot reach it")]
    OutOfReach(#[source] RamNotFound),
}

impl NotCompared {
    fn of_block(block: &BlockInfo, why: NotComparedWhy) -> NotCompared {
        NotCompared { what: format!("RAM block '{}'", block.name), why }
    }
}

/// What becomes of the blocks.
struct Chosen {
    direct: DirectBlocks,
    not_compared: Vec<NotCompared>,
}

impl DirectBlocks {
    /// Returns the blocks of which QEMU may miss something, and their RAM.
    pub(super) fn misses(&self) -> impl Iterator<Item = (u16, &dyn Ram)> {
        self.misses.iter().map(|(block, ram)| (*block, &**ram))
    }

    /// Returns the number of a block, if its pages are written directly.
    pub(super) fn number(&self, block: &str) -> Option<u16> {
        self.numbers.get(block).copied()
    }

    /// Returns the RAM of a block, if it is at hand.
    pub(super) fn ram(&self, block: u16) -> Option<&dyn Ram> {
        self.ram.get(&block).map(|ram| &**ram)
    }
}

impl Drop for SourcePages {
    fn drop(&mut self) {
        self.rails.give_up();
    }
}

impl SourcePages {
    /// Makes the pages of a migration, before its first stream.
    pub fn new(settings: SourcePagesSettings) -> Arc<SourcePages> {
        let mode = (!settings.direct).then_some(PageRoute::Rebuild);
        let counts = Arc::<PageCounters>::default();
        let cores = settings.packers.as_ref().map_or(0, |packers| packers.cores());
        let pacer = Arc::new(Pacer::new(cores, settings.channels, counts.clone()));
        Arc::new(SourcePages {
            settings,
            state: Mutex::new(State { mode, ..State::default() }),
            changed: Condvar::new(),
            pacer,
            counts,
            rails: Arc::default(),
        })
    }

    /// Returns the counts of where the bytes went so far.
    pub fn counts(&self) -> PageCounts {
        self.counts.snapshot()
    }

    /// Returns whether the target's agent writes pages itself; `None`: not decided yet.
    pub fn is_direct(&self) -> Option<bool> {
        self.state.lock().mode.as_ref().map(|mode| matches!(mode, PageRoute::Direct(_)))
    }

    /// Returns why the target's agent does not write the pages of the guest's RAM itself, in words. The text is empty
    /// if the agent does, or if that was not asked for or is not decided yet. [`Self::is_direct`] may be true all the
    /// same, for smaller blocks.
    pub fn why_not_direct(&self) -> String {
        self.state.lock().why_not.clone()
    }

    /// Returns which RAM is not compared with what was sent though QEMU may have missed what the guest wrote there, and
    /// why, in words. The text is empty if all such RAM is compared, if there is none, or if that is not decided yet.
    pub fn not_compared(&self) -> String {
        self.state.lock().not_compared.clone()
    }

    /// Returns why rails do not write the guest's RAM, in words, as far as this has not returned that before.
    pub fn take_rail_words(&self) -> Vec<String> {
        self.rails.take_words()
    }

    /// Returns why the target's agent should not have written pages itself, if that was known too late. The migration
    /// has failed, and would not have without [`SourcePagesSettings::direct`].
    pub fn direct_placement_failure(&self) -> Option<String> {
        self.state.lock().unplaceable.as_ref().map(|why| error_chain(why))
    }

    /// Bounds the pages that are held back, in bytes. A page that the guest writes in every round, and that would go
    /// whole each time, waits until the guest stands still.
    pub fn set_held_bytes_max(&self, bytes: u64) {
        if let Some(PageRoute::Direct(direct)) = &self.state.lock().mode {
            direct.sent.set_held_pages_max(bytes / PAGE_BYTES as u64);
        }
    }

    /// Returns the bytes of the pages that are held back.
    pub fn held_bytes(&self) -> u64 {
        match &self.state.lock().mode {
            Some(PageRoute::Direct(direct)) => direct.sent.held_pages() * PAGE_BYTES as u64,
            _ => 0,
        }
    }

    /// Returns about how many bytes the last `remaining_bytes` of the guest's RAM take on the wire in the first round,
    /// by samples; `None`: not known, or not yet. Looks at some of the RAM, which takes a few milliseconds, when this
    /// is asked for the first times.
    pub fn remaining_wire_bytes(&self, remaining_bytes: u64) -> Option<u64> {
        let Some(PageRoute::Direct(direct)) = self.state.lock().mode.clone() else { return None };
        let mut survey = direct.survey.lock();
        let mut page = [0; PAGE_BYTES];
        let counts = self.counts.snapshot();
        let sent = Sent {
            nonzero_bytes: counts.guest_bytes().saturating_sub(counts.zero_pages * PAGE_BYTES as u64),
            wire_bytes: counts.wire_bytes(),
        };
        let packed = |block, offset, bytes: u64| {
            let page = &mut page[..bytes as usize];
            let read = direct.ram(block).map(|ram| match ram.is_zero(offset, bytes) {
                Ok(true) => Ok(true),
                _ => ram.read(offset, page).map(|()| false),
            });
            match read {
                Some(Ok(true)) => 0,
                Some(Ok(false)) if self.settings.packers.is_some() => packed_bytes(page),
                // What cannot be read is small, or fails elsewhere.
                _ => page.len(),
            }
        };
        survey.go_on(packed).then(|| survey.wire_bytes(remaining_bytes, sent))
    }

    /// Returns whether pages are built on what the target kept of the guest's last stay.
    pub fn builds_on_kept(&self) -> bool {
        self.state.lock().builds_on_kept
    }

    /// Returns the RAM of a guest that the target runs now, for the guest's way back from this trip. `None`: its pages
    /// went through QEMU, or the RAM is not at hand.
    ///
    /// # Errors
    /// [`RamIsPrivate`] if the RAM ends with the guest's QEMU.
    pub fn ram_to_keep(&self, trip: u64) -> Result<Option<KeptRam>, RamIsPrivate> {
        let state = self.state.lock();
        let Some(PageRoute::Direct(direct)) = &state.mode else { return Ok(None) };
        if !direct.ram.values().all(|ram| ram.outlives_qemu()) {
            return Err(RamIsPrivate);
        }
        let trip = Trip { id: trip, key: self.key(), blocks: state.blocks.clone() };
        Ok((!direct.ram.is_empty()).then(|| KeptRam { trip, ram: direct.ram.clone() }))
    }

    /// Returns the key of the marks of pages.
    fn key(&self) -> Key {
        self.settings.kept_marks.as_ref().map_or(self.settings.key, |kept| kept.trip.key)
    }

    /// Returns the bytes of pages that were said to be held back, counted each time.
    pub fn held_back_bytes(&self) -> u64 {
        match &self.state.lock().mode {
            Some(PageRoute::Direct(direct)) => direct.sent.held_back_pages() * PAGE_BYTES as u64,
            _ => 0,
        }
    }

    /// Returns why the migration could not go on.
    pub fn failed(&self) -> Option<String> {
        self.state.lock().failed.as_ref().map(|why| error_chain(why))
    }

    /// Returns why the migration could not go on, if that was found here. The target, and a stream, may only know that
    /// it is over.
    pub fn failed_here(&self) -> Option<String> {
        let state = self.state.lock();
        let failed = state.failed.as_ref().filter(|why| !why.is_end_only() && !why.is_targets());
        failed.map(|why| error_chain(why))
    }

    /// Returns whether pages may go over RDMA.
    pub fn may_use_rdma(&self) -> bool {
        self.settings.may_use_rdma
    }

    pub(crate) fn width(&self) -> Width {
        self.settings.width
    }

    /// Returns the bytes a second that the migration may hand over at this moment. `None`: any number.
    pub fn rate_limit(&self) -> Option<f64> {
        self.rate().bytes_per_s()
    }

    pub(super) fn rate(&self) -> &RateShare {
        &self.settings.rate
    }

    pub(super) fn packers(&self) -> Option<&Arc<PackerPool>> {
        self.settings.packers.as_ref()
    }

    /// Returns the pacer of the migration's packing.
    pub(super) fn pacer(&self) -> &Arc<Pacer> {
        &self.pacer
    }

    /// Handles the main channel's list of the guest's RAM. Returns the message for the target, whose answer is waited
    /// for.
    pub(super) fn blocks(&self, blocks: Vec<BlockInfo>) -> PageMessage {
        self.state.lock().blocks.clone_from(&blocks);
        let may_build = |kept: &&KeptMarks| kept.trip.blocks == blocks && self.settings.delta_memory > 0.0;
        let kept = self.settings.kept_marks.as_ref().filter(may_build).map(|kept| kept.trip.id);
        PageMessage::Blocks { key: self.key(), blocks, kept_trip: kept }
    }

    /// Notes that nothing more is understood of the main channel.
    ///
    /// # Errors
    /// The target's agent has begun to write pages itself, and only what the main channel says can end that.
    pub(super) fn not_understood(&self, what: impl Into<Unknown>) -> Result<(), SourceError> {
        let why = Unplaceable::NotUnderstood(what.into());
        let mut state = self.state.lock();
        if let Some(PageRoute::Direct(_)) = state.mode {
            drop(state);
            return Err(self.fail_direct_placement(why));
        }
        if state.mode.is_none() {
            state.why_not = error_chain(&why);
            let blocks = &state.blocks;
            if self.settings.dirty_tracking != DirtyTracking::Exact
                && (blocks.is_empty() || blocks.iter().any(|block| self.may_miss(block)))
            {
                let what = "the guest's RAM".to_owned();
                state.not_compared = told(&[NotCompared { what, why: NotComparedWhy::NotDirect }]);
            }
        }
        state.mode = Some(PageRoute::Rebuild);
        self.changed.notify_all();
        Ok(())
    }

    /// Notes that pages should not have been written into the guest's RAM, and returns the error.
    pub(super) fn fail_direct_placement(&self, why: Unplaceable) -> SourceError {
        self.state.lock().unplaceable.get_or_insert_with(|| why.clone());
        SourceError::Unplaceable(why)
    }

    /// Waits until it is decided which way pages take, and returns the way.
    pub(super) fn mode(&self, is_over: &dyn Fn() -> bool) -> Result<PageRoute, SourceError> {
        self.wait(Awaited::Mode, is_over, |state| state.mode.clone())
    }

    /// Handles a message of the target.
    pub(super) fn handle_message(&self, note: PageMessage, paths: &Arc<dyn RailPaths>) -> Result<(), SourceError> {
        let mut state = self.state.lock();
        match note {
            PageMessage::Mode { direct, .. } if direct.is_empty() && !self.settings.direct => {
                let chosen = self.choose(&state.blocks, &direct, BuildsOn::Nothing)?;
                state.not_compared = told(&chosen.not_compared);
            }
            PageMessage::Mode { direct, why_not, builds_on_kept }
                if state.mode.is_none() && !state.blocks.is_empty() =>
            {
                state.why_not = why_not.chars().take(WORDS_CHARS_MAX).collect();
                let builds_on = if builds_on_kept { BuildsOn::KeptRam } else { BuildsOn::Nothing };
                let Chosen { direct: chosen, not_compared } = self.choose(&state.blocks, &direct, builds_on)?;
                state.not_compared = told(&not_compared);
                let bytes_max = state.blocks.iter().map(|block| block.bytes).max();
                let is_left_to_qemu = |number: &u16| {
                    let block = state.blocks.get(usize::from(*number));
                    block.is_some_and(|block| {
                        Some(block.bytes) == bytes_max && !chosen.numbers.contains_key(&block.name)
                    })
                };
                if direct.iter().any(is_left_to_qemu) {
                    state.why_not = state.not_compared.clone();
                }
                state.mode = Some(if chosen.numbers.is_empty() {
                    PageRoute::Rebuild
                } else {
                    state.builds_on_kept = chosen.sent.builds_on_kept();
                    if self.settings.may_use_rdma && chosen.sent.has_deltas() {
                        self.rails.open(paths.clone(), chosen.ram.clone(), self.counts.clone());
                    } else if self.settings.may_use_rdma && paths.may_write() {
                        info!("no NIC writes the guest's RAM: not all of it is at hand here, or no delta memory");
                    }
                    PageRoute::Direct(Arc::new(chosen))
                });
            }
            PageMessage::RailNews { opened, refused, slices, done, copied_bytes } => {
                self.counts.target_copied_bytes.fetch_max(copied_bytes, Relaxed);
                self.rails.hear(paths, opened, refused, slices, done);
            }
            PageMessage::Fenced { rail } => self.rails.fenced(rail),
            PageMessage::Doubt => {
                if let Some(PageRoute::Direct(direct)) = &state.mode {
                    direct.sent.doubt_kept();
                }
            }
            PageMessage::Comparison { .. } | PageMessage::Differ { .. } if state.answers.is_empty() => {
                if let (PageMessage::Comparison { same: true }, Some(asked)) = (&note, state.asked) {
                    self.counts.compared(asked.elapsed());
                }
                state.answers.push(note);
            }
            note => return Err(ProtocolError::Message(note).into()),
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Returns whether QEMU may miss what the guest writes to a block.
    fn may_miss(&self, block: &BlockInfo) -> bool {
        match self.settings.dirty_tracking {
            DirtyTracking::Exact => false,
            DirtyTracking::MissesUnalignedBlocks => !block.bytes.is_multiple_of(WORD_BYTES),
            DirtyTracking::MissesAllBlocks => true,
        }
    }

    /// Finds a block's RAM on this host.
    fn find(&self, block: &BlockInfo) -> Result<Box<dyn Ram>, NotComparedWhy> {
        let find = self.settings.ram.as_ref().ok_or(NotComparedWhy::Unknown)?;
        find(block).map_err(NotComparedWhy::OutOfReach)
    }

    /// Returns the blocks whose pages the target's agent writes, and what is known of them. `placeable` has the numbers
    /// of the blocks that it can write. Of these, a block that has to be compared and cannot be is left to QEMU: what
    /// is said to be compared is.
    fn choose(&self, blocks: &[BlockInfo], placeable: &[u16], builds_on: BuildsOn) -> Result<Chosen, SourceError> {
        if placeable.iter().any(|number| usize::from(*number) >= blocks.len()) {
            return Err(ProtocolError::NoSuchRam.into());
        }
        let mut numbers = HashMap::new();
        let (mut ram, mut misses) = (BTreeMap::<u16, Arc<dyn Ram>>::new(), BTreeMap::new());
        let mut not_compared = Vec::new();
        let largest = blocks.iter().map(|block| block.bytes).max().unwrap_or(0);
        for (number, block) in (0u16..).zip(blocks) {
            let is_placeable = placeable.contains(&number);
            let may_miss = self.may_miss(block);
            if !is_placeable && !may_miss {
                continue;
            }
            match (is_placeable, self.find(block)) {
                (true, Ok(found)) => {
                    let found: Arc<dyn Ram> = Arc::from(found);
                    if may_miss {
                        misses.insert(number, found.clone());
                    }
                    ram.insert(number, found);
                    numbers.insert(block.name.clone(), number);
                }
                (true, Err(why)) if may_miss => not_compared.push(NotCompared::of_block(block, why)),
                (true, Err(why)) => {
                    info!(block = block.name, "its pages go whole, and could not be mended: {}", error_chain(&why));
                    numbers.insert(block.name.clone(), number);
                }
                (false, Err(why)) if block.bytes < largest && !is_guest_ram(&block.name, block.bytes) => {
                    debug!(block = block.name, "memory of a device: {}", error_chain(&why));
                }
                (false, _) => not_compared.push(NotCompared::of_block(block, NotComparedWhy::NotDirect)),
            }
        }
        let pages = blocks.iter().map(|block| block.bytes.div_ceil(PAGE_BYTES as u64) as u32);
        let sent = SentPages::new(&self.key(), pages);
        let bytes: u64 = blocks.iter().filter(|block| numbers.contains_key(&block.name)).map(|block| block.bytes).sum();
        // A delta that does not fit is made good with what the RAM holds.
        let may_delta = self.settings.delta_memory > 0.0 && ram.len() == numbers.len();
        let sent = match may_delta {
            true => sent.with_deltas((bytes as f64 * self.settings.delta_memory) as u64),
            false => sent,
        };
        let sent = match self.settings.kept_marks.as_ref().filter(|_| may_delta && builds_on == BuildsOn::KeptRam) {
            Some(kept) => sent.with_kept(kept.marks.clone()),
            None => sent,
        };
        let survey = Mutex::new(RamSurvey::new(blocks.iter().map(|block| block.bytes)));
        Ok(Chosen { direct: DirectBlocks { sent, numbers, ram, misses, survey }, not_compared })
    }

    /// Returns the target's next answer.
    pub(super) fn answer(&self, is_over: &dyn Fn() -> bool) -> Result<PageMessage, SourceError> {
        self.wait(Awaited::Comparison, is_over, |state| state.answers.pop())
    }

    /// Notes that a multifd channel has passed so many barriers.
    pub(super) fn passed(&self, channel: StreamId, barriers: u32) {
        self.state.lock().channels.insert(channel, barriers);
        self.changed.notify_all();
    }

    /// Returns the version up to which, without that, all streams are written at the target.
    pub(super) fn written_through(&self) -> u32 {
        let state = self.state.lock();
        // The main stream has pages, too, whether there are other channels or not.
        let is_whole = state.pages_written.len() > usize::from(self.settings.channels);
        state.pages_written.values().min().copied().filter(|_| is_whole).unwrap_or(0)
    }

    /// Notes that the target has written everything before so many barriers of a stream.
    pub(super) fn note_pages_written(&self, stream: StreamId, barriers: u32) {
        self.state.lock().pages_written.insert(stream, barriers);
        self.changed.notify_all();
    }

    /// Waits, where deltas are sent, until the target has written what was before the barrier before the last that a
    /// stream has passed. Paths hold many pages as deltas, and the guest would stand still for those. The wait is not
    /// longer than [`CATCH_UP_WAIT_MAX`], because the copy can go on without it.
    pub(super) fn wait_pages_written(&self, stream: StreamId, barriers: u32, is_over: &dyn Fn() -> bool) {
        let deadline = Instant::now() + CATCH_UP_WAIT_MAX;
        let mut state = self.state.lock();
        let sends_deltas =
            |state: &State| matches!(&state.mode, Some(PageRoute::Direct(direct)) if direct.sent.has_deltas());
        let placed = |state: &State| state.pages_written.get(&stream).copied().unwrap_or(0);
        let is_placed = |state: &State| placed(state) >= barriers.saturating_sub(1);
        while sends_deltas(&state) && !is_placed(&state) && state.failed.is_none() && Instant::now() < deadline {
            self.changed.wait_for(&mut state, RESET_CHECK_PERIOD);
            if is_over() {
                return;
            }
        }
    }

    /// Waits until all multifd channels have passed so many barriers, when all pages were sent. Returns the number of
    /// channels.
    pub(super) fn all_passed(&self, barriers: u32, is_over: &dyn Fn() -> bool) -> Result<u16, SourceError> {
        #[cfg(feature = "fault-points")]
        if crate::fault_points::is_planted_at_all(crate::fault_points::Plant::Unplaceable) {
            return Err(self.fail_direct_placement(Unplaceable::Planted));
        }
        let channels = self.settings.channels;
        let passed = self.wait(Awaited::Channels, is_over, |state| {
            let passed = state.channels.values().filter(|passed| **passed >= barriers).count();
            (passed >= usize::from(channels)).then(|| {
                state.asked = Some(Instant::now());
                channels
            })
        });
        self.rails.come_to_rest();
        passed
    }

    /// Notes why the migration cannot go on. The first reason stands; that a stream is over is no reason.
    pub(super) fn fail(&self, why: SourceError) {
        let mut state = self.state.lock();
        if state.failed.as_ref().is_none_or(|before| before.is_end_only()) {
            state.failed = Some(Arc::new(why));
        }
        drop(state);
        self.rails.give_up();
        self.changed.notify_all();
    }

    fn wait<T>(
        &self,
        awaited: Awaited,
        is_over: &dyn Fn() -> bool,
        mut find: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, SourceError> {
        let deadline = Instant::now() + ANSWER_TIME;
        let mut state = self.state.lock();
        loop {
            if let Some(why) = &state.failed {
                return Err(SourceError::OtherStream(why.clone()));
            }
            if let Some(found) = find(&mut state) {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                return Err(SourceError::Late { awaited, after: ANSWER_TIME });
            }
            self.changed.wait_for(&mut state, RESET_CHECK_PERIOD);
            if is_over() {
                return Err(SourceError::Over);
            }
        }
    }
}

/// Logs which RAM is not compared, and returns that in words.
fn told(not_compared: &[NotCompared]) -> String {
    let texts: Vec<String> = not_compared.iter().map(|lack| error_chain(lack)).collect();
    texts.iter().for_each(|text| warn!("{text}"));
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stands_and_the_end_of_a_stream_is_none() {
        let pages = || {
            SourcePages::new(SourcePagesSettings {
                packers: None,
                width: Width::All,
                rate: RateShare::unlimited(),
                direct: true,
                may_use_rdma: true,
                channels: 0,
                key: [0; 16],
                ram: None,
                delta_memory: 0.04,
                kept_marks: None,
                dirty_tracking: DirtyTracking::Exact,
            })
        };
        let over = || SourceError::OtherStream(Arc::new(SourceError::Over));
        let torn_down = || SourceError::TornDown("the target does not wait any more".into());
        let here = "the target's copy of the guest's RAM differs from the guest's, and could not be mended";
        let theirs = "the target does not wait any more";
        for (failures, found, found_here) in [
            (vec![over(), SourceError::Differs, torn_down()], here, Some(here)),
            (vec![SourceError::Over, torn_down(), SourceError::Differs], theirs, None),
            (vec![over(), SourceError::Over], "the connection is over", None),
        ] {
            let pages = pages();
            failures.into_iter().for_each(|why| pages.fail(why));
            assert_eq!((pages.failed().as_deref(), pages.failed_here().as_deref()), (Some(found), found_here));
        }
    }
}
