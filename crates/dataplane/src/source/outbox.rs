//! Sends what a stream's intake has read into the session: each record in its turn, with a batch packed by then or not.
//!
//! ```text
//!  intake ─▶ Outbox ─────────────────────▶ session      nothing waits: the intake's own thread goes on
//!              └──▶ queue ──▶ feeder ────▶ session      something does: a thread takes them, one after the other
//!                    ▲ ▼
//!                   packers
//! ```
//!
//! A change of threads costs, so a record that does not have to wait does not change its thread. A batch that may be
//! worth packing is offered to packers, and waits in the queue until its turn comes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::{Condvar, Mutex};
use skein_pages::pace::{PackingMode, PackingOutcome};
use skein_pages::packing::{PageCompressor, plan_packing};
use skein_pages::page_record::{self, PAGE_RECORD_BYTES_MAX, PageMessage};
use skein_pages::{BATCH_BYTES_MAX, Batch, BatchForm, Hashing, PAGE_BYTES, PageKind};
use skein_session::StreamId;

use super::error::{Awaited, SourceError};
use super::packer_pool::{PackJob, Taken};
use super::page_counters::add;
use super::pages::{DirectBlocks, SourcePages};
use super::rail_writes::{Fencing, PlannedWrite, WriteJob};
use crate::ResetCode;
use crate::connection::submit;
use crate::error_chain::error_chain;
use crate::running_session::{RunningSession, spawn};

/// Bounds what waits for capacity on a stream while batches are packed: a packet of multifd. A guest's last pages spend
/// time here.
const WAITING_BYTES: usize = 2 * BATCH_BYTES_MAX;
/// Bounds the same while rails write batches: as many as a rail's round trip takes.
const WRITING_BYTES: usize = 16 * BATCH_BYTES_MAX;
/// How often a stream that waits for a rail to be closed looks whether it was torn down, and how long it waits at most.
const FENCE_CHECK: Duration = Duration::from_millis(100);
const FENCE_TIME: Duration = Duration::from_secs(20);
/// Bounds the gathered bytes for QEMU.
const GATHERED_BYTES: usize = 32 << 10;

/// The reason why a record does not go into the session.
pub(super) enum NotSent {
    /// The stream was torn down.
    Over,
    /// The migration cannot go on.
    Failed(SourceError),
}

/// A stream's way into the session, as the stream's intake has it.
pub(super) struct Outbox {
    shared: Arc<Shared>,
    feeder: JoinHandle<()>,
    /// The bytes for QEMU that are not on their way yet.
    gathered: BytesMut,
    /// Whether what was sent last had to wait for capacity, so that the intake has time.
    is_ahead: bool,
}

/// The state that an intake and its feeder share.
struct Shared {
    live: Arc<RunningSession>,
    id: StreamId,
    writable: Arc<Condvar>,
    pages: Arc<SourcePages>,
    queue: Queue,
}

impl Outbox {
    /// Starts the feeder.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(
        live: &Arc<RunningSession>,
        id: StreamId,
        writable: &Arc<Condvar>,
        pages: &Arc<SourcePages>,
    ) -> io::Result<Outbox> {
        let (live, writable, pages) = (live.clone(), writable.clone(), pages.clone());
        let shared = Arc::new(Shared { live, id, writable, pages, queue: Queue::default() });
        let of_feeder = shared.clone();
        let feeder = spawn("feeder", move || of_feeder.feed())?;
        Ok(Outbox { shared, feeder, gathered: BytesMut::new(), is_ahead: false })
    }

    /// Notes that nothing more follows: the stream's end, unless it is cut short. Returns once all that was sent is in
    /// the session.
    pub(super) fn finish(self, is_cut_short: bool) {
        let end = if is_cut_short { QueueEntry::Cut } else { QueueEntry::End };
        self.shared.queue.push(end, usize::MAX);
        let _ = self.feeder.join();
    }

    /// Sends pages that the target's agent writes itself, or what changed of them.
    pub(super) fn send_direct(&mut self, direct: &DirectBlocks, batch: Batch, version: u32) -> Result<(), NotSent> {
        let BatchForm::Direct(place) = &batch.form else { unreachable!("only such pages are placed") };
        let pages = place.pages().enumerate().map(|(nth, page)| (page, batch.page(nth)));
        let hashing = if self.is_ahead { Hashing::Ahead } else { Hashing::OnlyResent };
        let to_send = direct.sent.note_and_diff(place.block, version, pages, hashing).map_err(SourceError::NoPage)?;
        let source = self.shared.pages.clone();
        if !source.rails.are_open() {
            return self.send_batch(batch.with_deltas(version, to_send));
        }
        if !source.rails.wait_clear(place.block, place.pages(), || self.shared.is_reset()) {
            return Err(NotSent::Over);
        }
        if let Some(message) = source.rails.to_say() {
            self.send_message(&message)?;
        }
        let are_newest = |write: &PlannedWrite| {
            let numbers = write.pages().map(|(_, page)| page);
            direct.sent.are_newest(place.block, version, numbers).unwrap_or(false)
        };
        let may_write = !self.shared.live.rail_use.is_held_off();
        let planned = may_write.then(|| source.rails.plan(&batch, &to_send, source.written_through(), are_newest));
        let batch = batch.with_deltas(version, to_send);
        match planned.flatten() {
            Some(planned) => self.write(planned, batch),
            None => self.send_batch(batch),
        }
    }

    /// Has a rail write some of a batch's pages.
    fn write(&mut self, planned: PlannedWrite, batch: Batch) -> Result<(), NotSent> {
        let pages = &self.shared.pages;
        add(&pages.counts.pages, batch.kinds.len());
        add(&pages.counts.zero_pages, PageKind::Zero.count(&batch.kinds));
        pages.rate().wait(planned.bytes(), || self.shared.is_reset());
        self.enqueue_up_to(QueueEntry::Write(pages.rails.begin(planned, batch)), WRITING_BYTES)
    }

    /// Sends pages, packed if that pays.
    pub(super) fn send_batch(&mut self, batch: Batch) -> Result<(), NotSent> {
        let pages = &self.shared.pages;
        add(&pages.counts.pages, batch.kinds.len());
        add(&pages.counts.zero_pages, PageKind::Zero.count(&batch.kinds));
        let packers = pages.packers().filter(|_| batch.bytes() > 0);
        // A check of a few bytes costs less than another thread's check of all bytes.
        let Some((packers, plan)) = packers.and_then(|packers| Some((packers, plan_packing(&batch)?))) else {
            return self.send(self.shared.as_it_is(&batch));
        };
        match pages.pacer().mode() {
            PackingMode::AsItIs => return self.send(self.shared.late(&batch)),
            PackingMode::WhileItWaits if self.shared.queue.is_idle() && self.shared.takes(batch.bytes()) => {
                self.shared.submit(batch.bytes(), self.shared.late(&batch));
                return Ok(());
            }
            PackingMode::WhileItWaits | PackingMode::Awaited => {}
        }
        let out = self.shared.live.pool.take(PageCompressor::OUT_BYTES);
        let job = PackJob::new(batch, plan, pages.pacer().clone(), out);
        packers.offer(&job);
        self.enqueue(QueueEntry::Job(job))
    }

    /// Sends a message to the target's agent.
    pub(super) fn send_message(&mut self, message: &PageMessage) -> Result<(), NotSent> {
        self.send(vec![page_record::note(message).map_err(SourceError::Record)?])
    }

    /// Sends bytes for QEMU later, with others.
    pub(super) fn gather(&mut self, bytes: &[u8]) -> Result<(), NotSent> {
        for part in bytes.chunks(GATHERED_BYTES) {
            if self.gathered.len() + part.len() > GATHERED_BYTES {
                self.flush()?;
            }
            self.gathered.extend_from_slice(part);
        }
        Ok(())
    }

    /// Sends what was gathered.
    pub(super) fn flush(&mut self) -> Result<(), NotSent> {
        let bytes = self.gathered.split().freeze();
        if bytes.is_empty() { Ok(()) } else { self.send_bytes(bytes) }
    }

    /// Sends bytes for QEMU.
    pub(super) fn send_bytes(&mut self, bytes: Bytes) -> Result<(), NotSent> {
        add(&self.shared.pages.counts.other_bytes, bytes.len());
        self.send(vec![page_record::bytes_head(bytes.len()), bytes])
    }

    /// Sends records that do not change any more.
    pub(super) fn send(&mut self, parts: Vec<Bytes>) -> Result<(), NotSent> {
        if !self.shared.queue.is_idle() {
            return self.enqueue(QueueEntry::Ready(parts));
        }
        let bytes = parts.iter().map(Bytes::len).sum::<usize>().min(PAGE_RECORD_BYTES_MAX);
        let capacity = self.shared.wait_for_capacity(bytes).ok_or(NotSent::Over)?;
        self.is_ahead = capacity == Capacity::Awaited;
        self.shared.submit(bytes, parts);
        Ok(())
    }

    fn enqueue(&mut self, entry: QueueEntry) -> Result<(), NotSent> {
        self.enqueue_up_to(entry, WAITING_BYTES)
    }

    /// Has an entry wait for its turn, once less than `most` bytes wait.
    fn enqueue_up_to(&mut self, entry: QueueEntry, most: usize) -> Result<(), NotSent> {
        self.is_ahead = !self.shared.queue.is_idle();
        if self.shared.queue.push(entry, most) { Ok(()) } else { Err(NotSent::Over) }
    }
}

impl From<SourceError> for NotSent {
    fn from(why: SourceError) -> NotSent {
        NotSent::Failed(why)
    }
}

/// When the session had capacity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Capacity {
    AtOnce,
    Awaited,
}

impl Shared {
    /// Submits what waits to the session, each entry in its turn, until the end.
    fn feed(&self) {
        loop {
            let (bytes, job) = match self.queue.wait() {
                First::Write(job) => match self.written(&job) {
                    Ok(parts) => {
                        let bytes = parts.iter().map(Bytes::len).sum();
                        if self.wait_for_capacity(bytes).is_none() {
                            return self.cut_off();
                        }
                        self.queue.pop();
                        self.submit(bytes, parts);
                        continue;
                    }
                    Err(why) => {
                        if let NotSent::Failed(why) = why {
                            self.live.reset(self.id, ResetCode::Unsound, &error_chain(&why));
                            self.pages.fail(why);
                        }
                        return self.cut_off();
                    }
                },
                First::Entry(bytes, job) => (bytes, job),
            };
            // Packing comes first, then capacity: capacity that is granted and not used yet holds up other streams.
            let late = job.filter(|job| !job.is_done());
            if let Some(job) = &late {
                job.wait(self.pages.pacer().wait_for_packer(job.batch.bytes(), || self.bytes_per_s()));
            }
            let Some(capacity) = self.wait_for_capacity(bytes) else { return self.cut_off() };
            let is_held_up = late.is_some() && capacity == Capacity::AtOnce;
            let parts = match self.queue.pop() {
                None | Some(QueueEntry::End) => {
                    self.live.with(|state, _| state.core.finish(self.id));
                    return self.queue.close();
                }
                Some(QueueEntry::Cut) => return self.queue.close(),
                Some(QueueEntry::Ready(parts)) => parts,
                Some(QueueEntry::Write(_)) => unreachable!("a write is taken as such"),
                Some(QueueEntry::Job(job)) => {
                    self.packed(&job, if is_held_up { PackingOutcome::HeldUp } else { PackingOutcome::InTime })
                }
            };
            self.submit(bytes, parts);
        }
    }

    /// Returns whether the stream was torn down.
    fn is_reset(&self) -> bool {
        self.live.lock().core.is_reset(self.id)
    }

    /// Ends the queue of a stream that was torn down. Nothing more of the migration goes: rails plan nothing, either.
    fn cut_off(&self) {
        self.pages.rails.end();
        self.queue.close();
    }

    /// Returns the bytes per second that the paths carry, as far as a limit allows.
    fn bytes_per_s(&self) -> f64 {
        let carried = self.live.lock().core.rate(self.pages.width());
        self.pages.rate().bytes_per_s().map_or(carried, |limit| limit.min(carried))
    }

    /// Submits records for which there is capacity for so many bytes.
    fn submit(&self, capacity: usize, parts: Vec<Bytes>) {
        self.pages.rate().give_back(capacity.saturating_sub(parts.iter().map(Bytes::len).sum()));
        submit(&self.live, self.id, parts);
    }

    /// Waits until the limits allow so many bytes and the session takes them. Returns `None` if it never will.
    fn wait_for_capacity(&self, bytes: usize) -> Option<Capacity> {
        // The limits come first: capacity that is granted and not used yet holds up other streams.
        let mut capacity =
            if self.pages.rate().wait(bytes, || self.is_reset()) { Capacity::Awaited } else { Capacity::AtOnce };
        self.live.wait_for_capacity(self.id, &self.writable, |core, now| {
            let found = core.takes(now, self.id, bytes).then_some(capacity);
            capacity = Capacity::Awaited;
            found
        })
    }

    /// Returns whether the limits allow so many bytes at once, and the session takes them. If not, the caller has to
    /// wait for that.
    fn takes(&self, bytes: usize) -> bool {
        if !self.pages.rate().takes(bytes) {
            return false;
        }
        let mut state = self.live.lock();
        let takes = state.core.takes(self.live.now(), self.id, bytes);
        self.live.dispatch(&mut state);
        drop(state);
        if !takes {
            self.pages.rate().give_back(bytes);
        }
        takes
    }

    /// Waits until a rail has written pages of a batch whose turn has come, and returns the records. If the rail
    /// failed, the pages go in the records, once nothing of what was begun can arrive any more.
    fn written(&self, job: &WriteJob) -> Result<Vec<Bytes>, NotSent> {
        if job.wait() {
            return Ok(self.as_it_is(&job.batch.clone().with_written(&job.planned.written)));
        }
        let deadline = Instant::now() + FENCE_TIME;
        loop {
            match self.pages.rails.claim_fence(job) {
                Fencing::Done => break,
                Fencing::Ask(message) => {
                    let record = page_record::note(&message).map_err(|why| NotSent::Failed(why.into()))?;
                    self.wait_for_capacity(record.len()).ok_or(NotSent::Over)?;
                    self.submit(record.len(), vec![record]);
                }
                Fencing::Wait if self.is_reset() => return Err(NotSent::Over),
                Fencing::Wait if Instant::now() >= deadline => {
                    let (awaited, after) = (Awaited::Fence, FENCE_TIME);
                    return Err(NotSent::Failed(SourceError::Late { awaited, after }));
                }
                Fencing::Wait => self.pages.rails.wait_fenced(FENCE_CHECK),
            }
        }
        self.pages.rails.clear(&job.planned);
        Ok(self.as_it_is(&job.batch))
    }

    /// Returns the records of a batch whose turn has come. `outcome` is what became of the batch, unless it is late.
    fn packed(&self, job: &PackJob, outcome: PackingOutcome) -> Vec<Bytes> {
        let (batch, counts) = (&job.batch, &self.pages.counts);
        match job.take() {
            Taken::Packed(packed, data) => {
                self.pages.pacer().note_outcome(outcome);
                let kinds = &packed.sifted.kinds;
                add(&counts.packed_pages, PageKind::Packed.count(kinds));
                add(&counts.packed_bytes, packed.compressed.len);
                add(&counts.stored_pages, PageKind::Stored.count(kinds));
                counts.deltas(&batch.deltas, if packed.sifted.changes { batch.changes.len() } else { 0 });
                page_record::batch(batch, Some((&packed, data)))
            }
            Taken::Dense => {
                self.pages.pacer().note_outcome(outcome);
                self.as_it_is(batch)
            }
            Taken::Late => self.late(batch),
        }
    }

    /// Returns the records of a batch that should have been packed.
    fn late(&self, batch: &Batch) -> Vec<Bytes> {
        self.pages.pacer().note_outcome(PackingOutcome::Late);
        add(&self.pages.counts.late_pages, PageKind::Stored.count(&batch.kinds));
        self.as_it_is(batch)
    }

    /// Returns the records of a batch that is not packed.
    fn as_it_is(&self, batch: &Batch) -> Vec<Bytes> {
        add(&self.pages.counts.stored_pages, PageKind::Stored.count(&batch.kinds));
        self.pages.counts.deltas(&batch.deltas, 0);
        page_record::batch(batch, None)
    }
}

/// An entry that waits for its turn.
enum QueueEntry {
    /// The entry has records that do not change any more.
    Ready(Vec<Bytes>),
    /// The entry is a batch that may be packed until its turn comes.
    Job(Arc<PackJob>),
    /// The entry is a batch of which a rail writes pages.
    Write(Arc<WriteJob>),
    /// Nothing follows.
    End,
    /// Nothing follows, and that is not the stream's end: the local socket was reset.
    Cut,
}

impl QueueEntry {
    /// Returns the bytes that the entry holds, and at most has on the wire.
    fn bytes(&self) -> usize {
        match self {
            QueueEntry::Ready(parts) => parts.iter().map(Bytes::len).sum(),
            QueueEntry::Job(job) => job.batch.bytes().max(PAGE_BYTES),
            QueueEntry::Write(job) => job.batch.bytes().max(PAGE_BYTES),
            QueueEntry::End | QueueEntry::Cut => 0,
        }
    }
}

/// The first entry of a queue.
enum First {
    /// How many bytes the entry may become, and the job if the entry is a job.
    Entry(usize, Option<Arc<PackJob>>),
    Write(Arc<WriteJob>),
}

/// The entries that an intake has read and no path has had capacity for yet, in order.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<QueueEntry>,
    bytes: usize,
    /// Whether what was taken last may not have been submitted yet.
    submitting: bool,
    closed: bool,
}

impl Queue {
    /// Adds to the end of the queue, once less than `most` bytes wait. Returns false if nothing is taken from the queue
    /// any more.
    fn push(&self, entry: QueueEntry, most: usize) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.bytes >= most.max(1) {
            self.changed.wait(&mut state);
        }
        state.bytes += entry.bytes();
        state.waiting.push_back(entry);
        self.changed.notify_all();
        !state.closed
    }

    /// Returns whether nothing waits and all that waited was submitted. Then the intake may submit what it has itself.
    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.submitting && !state.closed
    }

    /// Waits for the first entry. What was taken before was submitted.
    fn wait(&self) -> First {
        let mut state = self.state.lock();
        state.submitting = false;
        loop {
            if let Some(first) = state.waiting.front() {
                let job = match first {
                    QueueEntry::Job(job) => Some(job.clone()),
                    QueueEntry::Write(job) => return First::Write(job.clone()),
                    QueueEntry::Ready(_) | QueueEntry::End | QueueEntry::Cut => None,
                };
                return First::Entry(first.bytes().min(PAGE_RECORD_BYTES_MAX), job);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Takes the first entry.
    fn pop(&self) -> Option<QueueEntry> {
        let mut state = self.state.lock();
        let first = state.waiting.pop_front()?;
        state.bytes -= first.bytes();
        state.submitting = true;
        self.changed.notify_all();
        Some(first)
    }

    /// Closes the queue: nothing is taken from it any more.
    fn close(&self) {
        let mut state = self.state.lock();
        *state = QueueState { closed: true, ..QueueState::default() };
        self.changed.notify_all();
    }
}
