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

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_fabric::{Access, Arena, Begun, Completion, FabricError, Region, RemoteMemory, SharedEndpoint, Slice, Slot};
use skein_guest_ram::Ram;
use skein_pages::page_record::{OfferedRail, PageMessage, RAILS_MAX, SLICES_MAX, WritableSlice};
use skein_pages::{BATCH_BYTES_MAX, Batch, BatchForm, PAGE_BYTES, PageKind, ToSend};
use tracing::warn;

use super::page_counters::{PageCounters, add};
use crate::rail_paths::RailPaths;
use crate::running_session::spawn;

/// How many pages in a row are written by a rail at least. What is shorter is gathered, with other pages, into a chunk
/// of a connection: a transfer of 64 KiB costs little more than one of 4 KiB.
const RUN_PAGES_MIN: usize = 16;
/// How large a slice is at least, in pages: 16 MiB.
const SLICE_PAGES_MIN: u64 = 4096;
/// How many batches a rail has under way at most.
const SLOTS: usize = 32;
/// How often is looked for paths that have come to RDMA: each does so once its session has carried something.
const PATHS_CHECK: Duration = Duration::from_millis(20);
/// How often the target is asked for news.
const ASK_PERIOD: Duration = Duration::from_millis(10);
/// How long a rail's thread waits before it tries again what the endpoint did not take, and at most without a word.
const RETRY_WAIT: Duration = Duration::from_micros(100);
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// How often a stream that waits for pages to be written looks whether it was torn down.
const RESET_CHECK: Duration = Duration::from_millis(100);
/// How long rails have to come to rest while the guest stands still.
const REST_TIME: Duration = Duration::from_millis(50);
/// Bounds what is to be told of rails.
const WORDS_MAX: usize = 2 * RAILS_MAX;
/// How long a rail has for a write. One that takes longer has failed.
const WRITE_TIME: Duration = Duration::from_secs(5);

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

/// What a rail has registered.
struct RailMemory {
    /// Where batches come.
    arena: Arc<Arena>,
    region: Arc<dyn Region>,
    /// Where batches are copied that are elsewhere.
    slots: Vec<Slot>,
    counts: Arc<PageCounters>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RailStatus {
    /// The target has not opened its end.
    Opening,
    Open,
    /// The rail is not used any more. What was begun may still arrive at the target.
    Failed,
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
    /// Opens the rails of paths in the background as these come to RDMA, until the migration is over, and prepares the
    /// offers to the target. `rams` are the blocks' RAM at the source, by number.
    pub(super) fn open(
        self: &Arc<Self>,
        paths: Arc<dyn RailPaths>,
        rams: BTreeMap<u16, Arc<dyn Ram>>,
        counts: Arc<PageCounters>,
    ) {
        if !paths.may_write() || rams.is_empty() {
            return;
        }
        let rails = self.clone();
        let _ = spawn("rails", move || {
            let (mut tried, mut slices) = (BTreeSet::new(), None);
            while !rails.state.lock().is_over {
                let writable = paths.writable();
                rails.look(&writable, paths.data_paths());
                // A path that comes to RDMA again gets a rail again.
                tried.retain(|path| writable.contains(path));
                let may_have_more = rails.state.lock().rails.len() < RAILS_MAX;
                let new = writable.into_iter().find(|path| may_have_more && tried.insert(*path));
                let Some(path) = new else {
                    thread::sleep(PATHS_CHECK);
                    continue;
                };
                match open(&*paths, path, &counts) {
                    Ok((offered, opened)) => {
                        let Some(slices) = slices.get_or_insert_with(|| slices_with_data(&rams)) else { return };
                        rails.offer(offered, opened, slices);
                    }
                    Err(error) => rails.state.lock().tell(format!("RDMA: path {path}: its rail is not used: {error}")),
                }
            }
        });
    }

    /// Takes in which paths go over RDMA, and how many carry data. A rail whose path is lost has failed.
    fn look(&self, writable: &[u32], data_paths: usize) {
        let mut state = self.state.lock();
        state.data_paths = data_paths;
        for rail in state.rails.iter_mut().filter(|rail| rail.status == RailStatus::Open) {
            if !rail.is_lost && !writable.contains(&rail.path) {
                rail.is_lost = true;
                rail.endpoint.wake();
            }
        }
    }

    fn offer(&self, offered: OfferedRail, opened: RailState, slices: &DataSlices) {
        let of_blocks = slices.of_blocks.clone();
        let mut state = self.state.lock();
        if !state.is_over {
            let offered = OfferedRail { number: state.rails.len() as u8, ..offered };
            let offer = PageMessage::Rails { slice_pages: slices.pages, slices: of_blocks, rails: vec![offered] };
            state.offers.push_back(offer);
            state.rails.push(opened);
            state.slice_pages = slices.pages;
            self.are_open.store(true, SeqCst);
        }
    }

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

    /// Takes in what became of the rails at the target.
    pub(super) fn hear(
        self: &Arc<Self>,
        paths: &Arc<dyn RailPaths>,
        opened: Vec<(u8, Vec<u8>)>,
        refused: Vec<(u8, String)>,
        slices: Vec<WritableSlice>,
        done: u32,
    ) {
        let mut state = self.state.lock();
        state.told = done;
        for (rail, why) in refused {
            let path = state.rails.get(usize::from(rail)).map_or(0, |of| of.path);
            state.tell(format!("RDMA: path {path}: NICs do not write the guest's RAM: {why}"));
        }
        for (rail, name) in opened {
            let number = usize::from(rail);
            let Some(of) = state.rails.get_mut(number).filter(|of| of.status == RailStatus::Opening) else { continue };
            let Some(memory) = of.memory.take() else { continue };
            of.status = RailStatus::Open;
            let (path, endpoint) = (of.path, of.endpoint.clone());
            let (rails, paths) = (self.clone(), paths.clone());
            let writes = move || {
                Writer::new(rails.clone(), number, endpoint, memory).run(&name, &*paths, path);
                rails.state.lock().writers -= 1;
                rails.changed.notify_all();
            };
            match spawn("rail-writes", writes) {
                Ok(_) => state.writers += 1,
                Err(_) => of.status = RailStatus::Failed,
            }
        }
        let slice_bytes = u64::from(state.slice_pages) * PAGE_BYTES as u64;
        for slice in slices {
            if slice.address.checked_add(slice_bytes).is_none() {
                warn!("rail {}: slice {} of block {} is nowhere", slice.rail, slice.slice, slice.block);
                continue;
            }
            let at = RemoteMemory { address: slice.address, key: slice.key };
            if state.slices.len() < SLICES_MAX {
                state.slices.entry((slice.block, slice.slice)).or_default().insert(slice.rail.into(), at);
            }
        }
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

    /// Returns what is to be done before pages of a failed rail may go another way.
    pub(super) fn fence(&self, job: &WriteJob) -> Fencing {
        let mut state = self.state.lock();
        let Some(of) = state.rails.get_mut(job.planned.rail) else { return Fencing::Done };
        match of.status {
            RailStatus::Fenced => Fencing::Done,
            RailStatus::Fencing => Fencing::Wait,
            RailStatus::Opening | RailStatus::Open | RailStatus::Failed => {
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
        let slice_of = |page: u32| page / state.slice_pages.max(1);
        // A rail that could register no memory there has no share of this.
        let of_batch: BTreeSet<u32> = place.pages().map(slice_of).collect();
        let has_memory = |rail: &usize| {
            let of_slice = |slice: &u32| state.slices.get(&(place.block, *slice));
            of_batch.iter().filter_map(of_slice).any(|of| of.contains_key(rail))
        };
        let is_open = |rail: &usize| state.rails[*rail].status == RailStatus::Open && has_memory(rail);
        let open = (0..state.rails.len()).filter(is_open).count();
        let rail = (0..state.rails.len()).filter(is_open).min_by_key(|rail| state.rails[*rail].load)?;
        let may_write = |nth: usize| match to_send[nth] {
            ToSend::Whole { before, mark } if batch.kinds[nth] == PageKind::Stored => {
                before.is_none_or(|before| before < written_through).then_some(mark)
            }
            _ => None,
        };
        let is_writable =
            |page: u32| state.slices.get(&(place.block, slice_of(page))).is_some_and(|of| of.contains_key(&rail));
        let (mut runs, mut written) = (Vec::<(usize, u32, usize)>::new(), Vec::new());
        for (nth, page) in place.pages().enumerate() {
            let Some(mark) = may_write(nth).filter(|_| is_writable(page)) else { continue };
            written.push((nth, mark));
            match runs.last_mut() {
                Some((begin, first, pages))
                    if *begin + *pages == nth
                        && *first + *pages as u32 == page
                        && slice_of(*first) == slice_of(page) =>
                {
                    *pages += 1;
                }
                _ => runs.push((nth, page, 1)),
            }
        }
        runs.retain(|(_, _, pages)| *pages >= RUN_PAGES_MIN);
        written.retain(|(nth, _)| runs.iter().any(|(begin, _, pages)| (*begin..*begin + *pages).contains(nth)));
        if runs.is_empty() {
            return None;
        }
        let planned = PlannedWrite { block: place.block, runs, written, rail };
        if planned.pages().any(|page| state.under_way.contains(&page)) {
            return None;
        }
        // Paths without a rail have their share: what is not written goes over connections.
        state.batches = state.batches.wrapping_add(1);
        if state.batches % state.data_paths.max(1) >= open {
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

    /// Ends a rail and all that it has.
    fn fail(&self, rail: usize, jobs: impl IntoIterator<Item = Arc<WriteJob>>) {
        let mut state = self.state.lock();
        let of = &mut state.rails[rail];
        if of.status == RailStatus::Open {
            of.status = RailStatus::Failed;
        }
        let queued = std::mem::take(&mut of.queue);
        drop(state);
        queued.into_iter().chain(jobs).for_each(|job| job.end(Outcome::Failed));
    }
}

/// Pages that a rail is to write.
pub(super) struct PlannedWrite {
    block: u16,
    /// The runs that are written: the place of the first page in the batch, the page's number, how many pages.
    runs: Vec<(usize, u32, usize)>,
    /// The marks of the pages of these runs, with their places in the batch.
    pub(super) written: Vec<(usize, u128)>,
    rail: usize,
}

impl PlannedWrite {
    /// Returns the pages: block and number.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u16, u32)> {
        self.runs.iter().flat_map(|(_, first, pages)| (*first..).take(*pages)).map(|page| (self.block, page))
    }

    /// Returns how many bytes are to be written.
    pub(super) fn bytes(&self) -> usize {
        self.written.len() * PAGE_BYTES
    }
}

/// Opens the rail of a path.
fn open(paths: &dyn RailPaths, path: u32, counts: &Arc<PageCounters>) -> Result<(OfferedRail, RailState), FabricError> {
    let endpoint = paths.open(path)?;
    let (slots, _) = Slot::register(&*endpoint, SLOTS, BATCH_BYTES_MAX, Access::Local, 0)?;
    let arena = paths.arena().map_err(|error| FabricError::NoMemory(error.to_string()))?;
    let region = endpoint.register(arena.memory(), Access::Local, 0)?;
    let memory = RailMemory { arena, region, slots, counts: counts.clone() };
    let abilities = endpoint.abilities();
    let (provider, protocol) = (abilities.provider.clone(), abilities.protocol);
    let offered = OfferedRail { number: 0, path, provider, protocol, name: endpoint.name().to_vec() };
    let status = RailStatus::Opening;
    Ok((
        offered,
        RailState { path, endpoint, memory: Some(memory), queue: VecDeque::new(), load: 0, status, is_lost: false },
    ))
}

/// The slices of a guest's RAM that have data.
struct DataSlices {
    /// How many pages a slice has at most.
    pages: u32,
    /// The slices of each block, by number.
    of_blocks: Vec<(u16, Vec<u32>)>,
}

/// Returns which slices have data. `None`: there are too many pages.
fn slices_with_data(rams: &BTreeMap<u16, Arc<dyn Ram>>) -> Option<DataSlices> {
    let pages = |ram: &Arc<dyn Ram>| ram.bytes() / PAGE_BYTES as u64;
    let all: u64 = rams.values().map(pages).sum();
    let slice_pages = all.div_ceil(SLICES_MAX as u64 / 2).next_multiple_of(SLICE_PAGES_MIN).max(SLICE_PAGES_MIN);
    let slice_pages = u32::try_from(slice_pages).ok()?;
    let slices = rams.iter().map(|(block, ram)| {
        let slices = 0..pages(ram).div_ceil(slice_pages.into()) as u32;
        (*block, slices.filter(|slice| has_data(&**ram, *slice, slice_pages)).collect())
    });
    Some(DataSlices { pages: slice_pages, of_blocks: slices.collect() })
}

/// Returns whether there is anything but zeros in a slice. What cannot be read may have something.
fn has_data(ram: &dyn Ram, slice: u32, slice_pages: u32) -> bool {
    let slice_bytes = u64::from(slice_pages) * PAGE_BYTES as u64;
    let offset = u64::from(slice) * slice_bytes;
    !ram.is_zero(offset, slice_bytes.min(ram.bytes() - offset)).unwrap_or(false)
}

impl RailMemory {
    /// Returns a part of a batch for an operation: where the batch is, or copied into a slot, at the same place there.
    fn at_hand(&mut self, slot: usize, content: &[u8], run: Range<usize>) -> Slice {
        let bytes = &content[run.clone()];
        let registered = self.arena.range_of(bytes).and_then(|range| Slice::new(self.region.clone(), range));
        registered.unwrap_or_else(|| {
            add(&self.counts.copied_bytes, bytes.len());
            self.slots[slot].bytes_mut()[run.clone()].copy_from_slice(bytes);
            self.slots[slot].part(run)
        })
    }
}

/// A rail's thread.
struct Writer {
    rails: Arc<RailWrites>,
    number: usize,
    endpoint: SharedEndpoint,
    memory: RailMemory,
    /// The slots that no batch has, whether or not that lies in the slot.
    free: Vec<usize>,
    /// Of each slot: the batch in it, how many operations are not done, and since when.
    jobs: BTreeMap<usize, (Arc<WriteJob>, usize, Instant)>,
    /// Operations that are not begun yet.
    to_begin: VecDeque<(usize, Slice, RemoteMemory)>,
}

impl Writer {
    fn new(rails: Arc<RailWrites>, number: usize, endpoint: SharedEndpoint, memory: RailMemory) -> Writer {
        let free = (0..memory.slots.len()).collect();
        Writer { rails, number, endpoint, memory, free, jobs: BTreeMap::new(), to_begin: VecDeque::new() }
    }

    fn run(mut self, peer: &[u8], paths: &dyn RailPaths, path: u32) {
        let mut completions = Vec::new();
        if let Err(why) = self.endpoint.connect(peer).and_then(|()| self.serve(&mut completions, paths, path)) {
            let words = format!(
                "RDMA: path {path}: the rail that writes the guest's RAM failed, and pages go otherwise: {why}"
            );
            self.rails.state.lock().tell(words);
            self.rails.fail(self.number, self.jobs.into_values().map(|(job, ..)| job));
        }
    }

    /// Writes until the migration is over.
    fn serve(
        &mut self,
        completions: &mut Vec<Completion>,
        paths: &dyn RailPaths,
        path: u32,
    ) -> Result<(), FabricError> {
        loop {
            self.endpoint.poll(completions)?;
            let mut is_idle = completions.is_empty();
            for completion in completions.drain(..) {
                paths.written(path, self.take(completion)?);
            }
            is_idle &= !self.begin_jobs();
            while let Some((slot, from, to)) = self.to_begin.front() {
                if self.endpoint.write(from, *to, None, *slot as u64)? == Begun::Busy {
                    break;
                }
                self.to_begin.pop_front();
            }
            if self.rails.state.lock().rails[self.number].is_lost {
                return Err(FabricError::Misbehaves("its path is lost, or does not go over RDMA any more".into()));
            }
            let is_late = |(_, _, since): &(_, _, Instant)| since.elapsed() >= WRITE_TIME;
            if self.jobs.values().any(is_late) {
                return Err(FabricError::Misbehaves(format!("a write is not done within {} s", WRITE_TIME.as_secs())));
            }
            if self.jobs.is_empty() && self.rails.state.lock().is_over {
                self.endpoint.rest();
                self.rails.fail(self.number, []);
                return Ok(());
            }
            if is_idle {
                self.endpoint.wait(if self.to_begin.is_empty() { IDLE_WAIT } else { RETRY_WAIT });
            }
        }
    }

    /// Takes a completion. Returns how many bytes are written by that.
    fn take(&mut self, completion: Completion) -> Result<u64, FabricError> {
        let strange = || FabricError::Misbehaves("a completion of nothing that was begun".into());
        let token = match completion {
            Completion::Done { token } => token,
            Completion::Failed { why, .. } => return Err(why),
            _ => return Err(strange()),
        };
        let slot = usize::try_from(token).map_err(|_| strange())?;
        let (job, left, _) = self.jobs.get_mut(&slot).ok_or_else(strange)?;
        *left -= 1;
        if *left > 0 {
            return Ok(0);
        }
        let job = job.clone();
        self.jobs.remove(&slot);
        self.free.push(slot);
        self.rails.state.lock().rails[self.number].load -= 1;
        self.rails.clear(&job.planned);
        job.end(Outcome::Written);
        Ok(job.planned.bytes() as u64)
    }

    /// Takes batches that wait, as long as slots are free. Returns whether there was any.
    fn begin_jobs(&mut self) -> bool {
        let mut has_begun = false;
        while let Some(&slot) = self.free.last() {
            let (job, places) = {
                let mut state = self.rails.state.lock();
                let Some(job) = state.rails[self.number].queue.pop_front() else { break };
                let place = |(_, first, _): &(usize, u32, usize)| {
                    let slice = first / state.slice_pages.max(1);
                    let at = state.slices.get(&(job.planned.block, slice)).and_then(|of| of.get(&self.number))?;
                    let offset = u64::from(first % state.slice_pages.max(1)) * PAGE_BYTES as u64;
                    Some(RemoteMemory { address: at.address + offset, key: at.key })
                };
                let places: Option<Vec<RemoteMemory>> = job.planned.runs.iter().map(place).collect();
                (job, places)
            };
            // A rail's slices are never taken back.
            let Some(places) = places else {
                job.end(Outcome::Failed);
                continue;
            };
            has_begun = true;
            self.free.pop();
            let runs = job.planned.runs.iter().map(|(nth, _, pages)| nth * PAGE_BYTES..(nth + pages) * PAGE_BYTES);
            for (run, to) in runs.zip(places) {
                self.to_begin.push_back((slot, self.memory.at_hand(slot, &job.batch.content, run), to));
            }
            let operations = job.planned.runs.len();
            self.jobs.insert(slot, (job, operations, Instant::now()));
        }
        has_begun
    }
}

#[cfg(test)]
mod tests;
