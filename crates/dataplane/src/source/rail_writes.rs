//! Is the rails of a migration's source, which write pages straight into the target guest's RAM.
//!
//! Pages go over the session's connections from the first moment. Meanwhile rails are opened, and the target registers
//! slice after slice of the guest's RAM. Runs of pages in a slice that is ready are copied into a slot and written by a
//! rail, one-sided; their record in the stream then has their marks in place of their content.
//!
//! A page has several versions, and a write has no place in the order of streams. So
//!
//! - a record follows its write only when that is done: what a record says is there;
//! - a page is written only if no earlier version of it may still be on its way to the guest's RAM: there was none, or
//!   all streams are known to be written past it ([`RailWrites::plan`]);
//! - no other version of a page goes any way while one is being written ([`RailWrites::wait_clear`]);
//! - after a rail fails, its pages go again only once the target has closed it: until then what was begun may arrive.
//!
//! Each rail has a thread. None waits for anything but its rail.

mod memory;
mod opening;
mod slices;
mod writer;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_fabric::{RemoteMemory, SharedEndpoint};
use skein_pages::page_record::{PageMessage, RAILS_MAX};
use skein_pages::{Batch, BatchForm, PAGE_BYTES, PageKind, ToSend};
use tracing::warn;

use self::memory::RailMemory;

/// How many pages in a row are written by a rail at least. What is shorter is gathered, with other pages, into a chunk
/// of a connection: a transfer of 64 KiB costs little more than one of 4 KiB.
const RUN_PAGES_MIN: usize = 16;
/// How often the target is asked for news.
const ASK_PERIOD: Duration = Duration::from_millis(10);
/// How often a stream that waits for pages to be written looks whether it was torn down.
const RESET_CHECK: Duration = Duration::from_millis(100);
/// How long rails have to come to rest while the guest stands still.
const REST_TIME: Duration = Duration::from_millis(50);
/// Bounds what is to be told of rails.
const WORDS_MAX: usize = 2 * RAILS_MAX;

/// The rails of a migration at its source.
#[derive(Default)]
pub(crate) struct RailWrites {
    /// Whether there are rails: without them nothing has to be looked at for each batch.
    are_open: AtomicBool,
    state: Mutex<State>,
    /// Is told when a write ends, and when a rail is fenced.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What is to be said next, unasked.
    offers: VecDeque<PageMessage>,
    /// How many offers were made, and of how many the target has told everything.
    offered: u32,
    told: u32,
    rails: Vec<RailState>,
    /// How many rails' threads write, or may.
    writers: usize,
    slice_pages: u32,
    /// How many paths carry data, and how many batches have come for rails.
    data_paths: usize,
    batches: usize,
    /// Where rails may write: by block and slice, of each rail.
    slices: BTreeMap<(u16, u32), BTreeMap<usize, RemoteMemory>>,
    asked: Option<Instant>,
    /// The pages that are being written.
    under_way: HashSet<(u16, u32)>,
    /// What is to be told of rails, and has not been.
    words: Vec<String>,
    /// Whether nothing more is planned: the target is about to compare, or the migration has failed.
    is_over: bool,
    /// Whether the migration has failed, so that nobody waits for what is under way.
    has_failed: bool,
}

impl State {
    /// Returns the slice in which a page lies.
    fn slice_of(&self, page: u32) -> u32 {
        page / self.slice_pages.max(1)
    }

    /// Returns where a rail may write a page.
    fn place(&self, rail: usize, block: u16, page: u32) -> Option<RemoteMemory> {
        let at = self.slices.get(&(block, self.slice_of(page)))?.get(&rail)?;
        let offset = u64::from(page % self.slice_pages.max(1)) * PAGE_BYTES as u64;
        Some(RemoteMemory { address: at.address + offset, key: at.key })
    }

    /// Has something told, unless too much is to be told already.
    fn tell(&mut self, words: String) {
        warn!("{words}");
        if self.words.len() < WORDS_MAX {
            self.words.push(words);
        }
    }
}

struct RailState {
    path: u32,
    endpoint: SharedEndpoint,
    /// What the thread gets when the target's end is known.
    memory: Option<RailMemory>,
    queue: VecDeque<Arc<WriteJob>>,
    /// How many batches the rail has under way, with those in the queue.
    load: usize,
    status: RailStatus,
    /// Whether the path does not go over RDMA any more.
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RailStatus {
    /// The target has not opened its end.
    Opening,
    Open,
    /// The rail is not used any more. What was begun may still arrive at the target.
    Failed,
    /// The migration needs no rail any more, and all that was begun is done.
    Ended,
    /// Somebody asks the target to close its end.
    Fencing,
    /// Nothing arrives any more.
    Fenced,
}

/// A batch of which a rail writes pages.
pub(super) struct WriteJob {
    pub(super) batch: Batch,
    pub(super) planned: PlannedWrite,
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    UnderWay,
    Written,
    Failed,
}

impl WriteJob {
    fn end(&self, outcome: Outcome) {
        *self.outcome.lock() = outcome;
        self.ended.notify_all();
    }

    /// Waits for the end of the write, for as long as that takes: a rail's thread gives a write up. Returns whether the
    /// pages are there.
    pub(super) fn wait(&self) -> bool {
        let mut outcome = self.outcome.lock();
        while *outcome == Outcome::UnderWay {
            self.ended.wait(&mut outcome);
        }
        *outcome == Outcome::Written
    }
}

/// What becomes of a failed rail's pages next.
pub(super) enum Fencing {
    /// The caller asks the target to close the rail.
    Ask(PageMessage),
    /// Somebody has asked.
    Wait,
    /// The rail is closed there: the pages may go any way.
    Done,
}

impl RailWrites {
    /// Returns whether there are rails. Until then no page is being written.
    pub(super) fn are_open(&self) -> bool {
        self.are_open.load(SeqCst)
    }

    /// Returns what is to be said to the target now.
    pub(super) fn to_say(&self) -> Option<PageMessage> {
        let mut state = self.state.lock();
        if state.is_over || state.rails.is_empty() {
            return None;
        }
        let now = Instant::now();
        if let Some(offer) = state.offers.pop_front() {
            state.asked = Some(now);
            state.offered += 1;
            return Some(offer);
        }
        let is_due = state.asked.is_some_and(|asked| now - asked >= ASK_PERIOD);
        (is_due && state.told < state.offered).then(|| {
            state.asked = Some(now);
            PageMessage::AskRails
        })
    }

    /// Returns what is to be told of rails since this was asked last: why they do not write.
    pub(super) fn take_words(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().words)
    }

    /// Takes in that the target has closed a rail.
    pub(super) fn fenced(&self, rail: u8) {
        let mut state = self.state.lock();
        if let Some(of) = state.rails.get_mut(usize::from(rail)) {
            of.status = RailStatus::Fenced;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Returns what is to be done before pages of a failed rail may go another way: who asks first has the rail closed.
    pub(super) fn claim_fence(&self, job: &WriteJob) -> Fencing {
        let mut state = self.state.lock();
        let Some(of) = state.rails.get_mut(job.planned.rail) else { return Fencing::Done };
        match of.status {
            RailStatus::Fenced => Fencing::Done,
            RailStatus::Fencing => Fencing::Wait,
            RailStatus::Opening | RailStatus::Open | RailStatus::Failed | RailStatus::Ended => {
                of.status = RailStatus::Fencing;
                Fencing::Ask(PageMessage::Fence { rail: job.planned.rail as u8 })
            }
        }
    }

    /// Waits a little for the target to close a rail.
    pub(super) fn wait_fenced(&self, patience: Duration) {
        self.changed.wait_for(&mut self.state.lock(), patience);
    }

    /// Takes in that the pages of a write are there, or that nothing of it can arrive any more.
    pub(super) fn clear(&self, write: &PlannedWrite) {
        let mut state = self.state.lock();
        write.pages().for_each(|page| {
            state.under_way.remove(&page);
        });
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until none of these pages is being written: whoever calls this has noted another version of them. Returns
    /// whether that is so, or the migration has failed; the stream of whoever waits `is_over` else.
    pub(super) fn wait_clear(
        &self,
        block: u16,
        pages: impl Iterator<Item = u32> + Clone,
        is_over: impl Fn() -> bool,
    ) -> bool {
        let is_under_way = |state: &State| {
            !state.under_way.is_empty() && pages.clone().any(|page| state.under_way.contains(&(block, page)))
        };
        let mut state = self.state.lock();
        while !state.has_failed && is_under_way(&state) {
            if self.changed.wait_for(&mut state, RESET_CHECK).timed_out() {
                drop(state);
                if is_over() {
                    return false;
                }
                state = self.state.lock();
            }
        }
        true
    }

    /// Plans no more writes: a stream is torn down. Rails end with what they have under way.
    pub(super) fn end(&self) {
        self.end_as(false);
    }

    /// Plans no more writes, and waits a little for rails to rest: the target is about to compare, and closes its ends.
    /// ofi_rxm of libfabric 1.17 may crash where an end takes completions meanwhile.
    pub(super) fn come_to_rest(&self) {
        self.end();
        let deadline = Instant::now() + REST_TIME;
        let mut state = self.state.lock();
        while state.writers > 0 && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    /// Plans no more writes, and nobody waits for those under way: the migration has failed.
    pub(super) fn give_up(&self) {
        self.end_as(true);
    }

    fn end_as(&self, has_failed: bool) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.has_failed |= has_failed;
        state.rails.iter().for_each(|rail| rail.endpoint.wake());
        drop(state);
        self.changed.notify_all();
    }

    /// Plans which pages of a batch a rail writes. `None`: none. `to_send` is what the target needs of each page, and
    /// `written_through` the version through which all streams are written there. The pages are being written from now
    /// on, until [`Self::clear`]; [`Self::begin`] begins that.
    pub(super) fn plan(
        &self,
        batch: &Batch,
        to_send: &[ToSend],
        written_through: u32,
        are_newest: impl FnOnce(&PlannedWrite) -> bool,
    ) -> Option<PlannedWrite> {
        let BatchForm::Direct(place) = &batch.form else { return None };
        let mut state = self.state.lock();
        if state.is_over || state.slices.is_empty() {
            return None;
        }
        // A rail that could register no memory there has no share of this.
        let has_memory = |rail: usize| place.pages().any(|page| state.place(rail, place.block, page).is_some());
        let is_open = |rail: &usize| state.rails[*rail].status == RailStatus::Open && has_memory(*rail);
        let open: Vec<usize> = (0..state.rails.len()).filter(is_open).collect();
        let rail = open.iter().copied().min_by_key(|rail| state.rails[*rail].load)?;
        let may_write = |nth: usize| match to_send[nth] {
            ToSend::Whole { before, mark } if batch.kinds[nth] == PageKind::Stored => {
                before.is_none_or(|before| before < written_through).then_some(mark)
            }
            _ => None,
        };
        let is_writable = |page: u32| state.place(rail, place.block, page).is_some();
        let (mut runs, mut written) = (Vec::<Run>::new(), Vec::new());
        for (nth, page) in place.pages().enumerate() {
            let Some(mark) = may_write(nth).filter(|_| is_writable(page)) else { continue };
            written.push((nth, mark));
            match runs.last_mut() {
                Some(run) if run.end() == (nth, page) && state.slice_of(run.first) == state.slice_of(page) => {
                    run.pages += 1;
                }
                _ => runs.push(Run { nth, first: page, pages: 1 }),
            }
        }
        runs.retain(|run| run.pages >= RUN_PAGES_MIN);
        written.retain(|(nth, _)| runs.iter().any(|run| run.places().contains(nth)));
        if runs.is_empty() {
            return None;
        }
        let planned = PlannedWrite { block: place.block, runs, written, rail };
        if planned.pages().any(|page| state.under_way.contains(&page)) {
            return None;
        }
        // Paths without a rail have their share: what is not written goes over connections.
        state.batches = state.batches.wrapping_add(1);
        if state.batches % state.data_paths.max(1) >= open.len() {
            return None;
        }
        state.under_way.extend(planned.pages());
        // Whoever has noted a newer version before this looks for the pages only now; whoever notes one later waits.
        drop(state);
        if !are_newest(&planned) {
            self.clear(&planned);
            return None;
        }
        Some(planned)
    }

    /// Begins a write.
    pub(super) fn begin(&self, planned: PlannedWrite, batch: Batch) -> Arc<WriteJob> {
        let rail = planned.rail;
        let outcome = Mutex::new(Outcome::UnderWay);
        let job = Arc::new(WriteJob { batch, planned, outcome, ended: Condvar::new() });
        let mut state = self.state.lock();
        match state.rails.get_mut(rail).filter(|of| of.status == RailStatus::Open) {
            Some(of) => {
                of.queue.push_back(job.clone());
                of.load += 1;
                of.endpoint.wake();
            }
            None => job.end(Outcome::Failed),
        }
        job
    }

    /// Ends a rail, as `status` says, and all that waits for it.
    fn end_rail(&self, rail: usize, status: RailStatus, jobs: impl IntoIterator<Item = Arc<WriteJob>>) {
        let mut state = self.state.lock();
        let of = &mut state.rails[rail];
        if of.status == RailStatus::Open {
            of.status = status;
        }
        let queued = std::mem::take(&mut of.queue);
        drop(state);
        queued.into_iter().chain(jobs).for_each(|job| job.end(Outcome::Failed));
    }
}

/// Pages in a row that a rail writes in one go, all in one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The place of the first page in the batch, and the page's number.
    nth: usize,
    first: u32,
    pages: usize,
}

impl Run {
    /// Returns the place and the number of the page behind the run.
    fn end(&self) -> (usize, u32) {
        (self.nth + self.pages, self.first + self.pages as u32)
    }

    /// Returns the places of the pages in the batch.
    fn places(&self) -> Range<usize> {
        self.nth..self.nth + self.pages
    }

    /// Returns where the pages' bytes lie in the batch.
    fn bytes(&self) -> Range<usize> {
        self.nth * PAGE_BYTES..(self.nth + self.pages) * PAGE_BYTES
    }
}

/// Pages that a rail is to write.
pub(super) struct PlannedWrite {
    block: u16,
    /// The runs that are written.
    runs: Vec<Run>,
    /// The marks of the pages of these runs, with their places in the batch.
    pub(super) written: Vec<(usize, u128)>,
    rail: usize,
}

impl PlannedWrite {
    /// Returns the pages: block and number.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u16, u32)> {
        self.runs.iter().flat_map(|run| (run.first..).take(run.pages)).map(|page| (self.block, page))
    }

    /// Returns how many bytes are to be written.
    pub(super) fn bytes(&self) -> usize {
        self.written.len() * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests;
