//! Is threads that have batches packed while the batches wait for capacity of the paths.
//!
//! They share no lock with threads in a hurry: a job is taken and given back by atomic steps. So a packer may get no
//! CPU for a while, as it must not take any from guests, and holds up nobody. A feeder whose batch is not packed when
//! its turn comes takes the batch away unpacked.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use skein_pages::Batch;
use skein_pages::packing::{Compressed, Effort, Packed, PackingPlan};
use tracing::warn;

use super::pacer::Pacer;
use crate::pool::Buffer;
use crate::running_session::spawn;

/// Bounds the batches that wait for packing, of all migrations: 256 MiB, more than may wait for capacity.
const JOBS_MAX: usize = 1024;
/// Says how often a packer checks for work even if nobody wakes it.
const IDLE_CHECK_PERIOD: Duration = Duration::from_millis(50);
/// Says after how long without work a packer gives up its [`Compress`].
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// Says how long a batch whose turn has come waits for the packer that is at work on it, before the batch goes
/// unpacked.
const PACKING_IN_PROGRESS_WAIT: Duration = Duration::from_millis(2);
const PACKING_IN_PROGRESS_POLL: Duration = Duration::from_micros(100);

/// How far a batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum JobState {
    /// No packer has it.
    Waiting,
    /// A packer is at work.
    BeingPacked,
    /// The batch is packed, or was found not to be worth packing.
    Packed,
    /// The batch's turn came before it was packed.
    Taken,
}

/// The state of a job, which changes in steps that no thread can hold up.
struct AtomicJobState(AtomicU8);

impl AtomicJobState {
    fn new(state: JobState) -> AtomicJobState {
        AtomicJobState(AtomicU8::new(state as u8))
    }

    fn get(&self) -> JobState {
        let all = [JobState::Waiting, JobState::BeingPacked, JobState::Packed, JobState::Taken];
        all[usize::from(self.0.load(SeqCst))]
    }

    /// Changes the state from `from` to `to`. Returns whether the state was `from`.
    fn change(&self, from: JobState, to: JobState) -> bool {
        self.0.compare_exchange(from as u8, to as u8, SeqCst, SeqCst).is_ok()
    }
}

/// What became of pages that were to be compressed (`None`: compressing is not worth it), and the CPU time.
pub type PackResult = (Option<Compressed>, Duration);

/// Compresses for one packer, with CPU that nobody else wants.
pub trait Compress: Send {
    /// Compresses `pages`, of as many bytes as 64 at most, one after the other into `out`. The call may take long; once
    /// `is_over` returns true, nobody waits for it.
    ///
    /// # Errors
    /// The compressor is of no use any more.
    fn compress(
        &mut self,
        pages: &[Bytes],
        effort: Effort,
        out: &mut [u8],
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<PackResult>;
}

/// Starts what compresses for a packer, when there is something to do. Returns `None` if that fails; the function
/// itself reports the reason.
pub type StartCompressor = dyn Fn(&dyn Fn() -> bool) -> Option<Box<dyn Compress>> + Send + Sync;

/// A batch that may be packed.
pub(crate) struct PackJob {
    pub(crate) batch: Batch,
    /// What of the batch is packed, if it is packed.
    sifted: PackingPlan,
    pacer: Arc<Pacer>,
    state: AtomicJobState,
    /// The thread that waits for the batch.
    waits: OnceLock<Thread>,
    out: Mutex<Option<Buffer>>,
    /// The packed batch; an inner `None` means that packing is not worth it.
    packed: OnceLock<Option<Packed>>,
}

/// The form in which a batch goes.
pub(crate) enum Taken {
    /// The batch goes packed, with its packed pages.
    Packed(Packed, Bytes),
    /// The batch goes as it is, because packing is not worth it.
    Dense,
    /// The batch goes as it is, because no packer packed it in time.
    Late,
}

impl PackJob {
    pub(crate) fn new(batch: Batch, sifted: PackingPlan, pacer: Arc<Pacer>, out: Buffer) -> Arc<PackJob> {
        let (state, out) = (AtomicJobState::new(JobState::Waiting), Mutex::new(Some(out)));
        Arc::new(PackJob { batch, sifted, pacer, state, waits: OnceLock::new(), out, packed: OnceLock::new() })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state.get() == JobState::Packed
    }

    /// Waits for the batch to be packed, for at most `patience`.
    pub(crate) fn wait(&self, patience: Duration) {
        let since = Instant::now();
        // The packer looks for a thread to wake after it has packed. The waiting thread checks again after it has said
        // that it waits.
        self.waits.get_or_init(thread::current);
        while !self.is_done() {
            let Some(left) = patience.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) else { return };
            thread::park_timeout(left);
        }
    }

    /// Takes the batch, whose turn has come.
    pub(crate) fn take(&self) -> Taken {
        let since = Instant::now();
        loop {
            match self.state.get() {
                JobState::Packed => break,
                JobState::BeingPacked if since.elapsed() < PACKING_IN_PROGRESS_WAIT => {
                    thread::sleep(PACKING_IN_PROGRESS_POLL)
                }
                state => {
                    if self.state.change(state, JobState::Taken) {
                        return Taken::Late;
                    }
                }
            }
        }
        let packed = self.packed.get().cloned().flatten();
        match (packed, self.out.lock().take()) {
            (Some(packed), Some(out)) => Taken::Packed(packed, out.freeze()),
            _ => Taken::Dense,
        }
    }

    /// Has the batch packed, unless it was taken away already.
    fn pack(&self, compress: &mut dyn Compress, is_over: &dyn Fn() -> bool) -> io::Result<()> {
        if !self.state.change(JobState::Waiting, JobState::BeingPacked) {
            return Ok(());
        }
        let (effort, since) = (self.pacer.effort(), Instant::now());
        let packed = self.try_pack(compress, effort, is_over);
        let cpu = packed.as_ref().map_or(Duration::ZERO, |(_, cpu)| *cpu);
        self.pacer.note_packed(effort, since.elapsed(), cpu);
        // A batch that could not be packed is as it was.
        let state = if packed.is_ok() { JobState::Packed } else { JobState::Waiting };
        let done = packed.map(|(packed, _)| drop(self.packed.set(packed)));
        self.state.change(JobState::BeingPacked, state);
        if let Some(waits) = self.waits.get() {
            waits.unpark();
        }
        done
    }

    /// Returns what became of the batch, and the CPU time.
    fn try_pack(
        &self,
        compress: &mut dyn Compress,
        effort: Effort,
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<(Option<Packed>, Duration)> {
        let pages = self.sifted.parts(&self.batch);
        let mut out = self.out.lock();
        let Some(out) = out.as_mut() else { return Ok((None, Duration::ZERO)) };
        let (compressed, cpu) = compress.compress(&pages, effort, out.as_mut(), is_over)?;
        Ok((compressed.map(|compressed| Packed { sifted: self.sifted.clone(), compressed }), cpu))
    }
}

/// The threads that have batches packed, for all migrations of a host.
pub struct PackerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    cores: usize,
}

struct Shared {
    /// The offered jobs. A job that was taken away is gone, and its memory, too.
    jobs: ArrayQueue<Weak<PackJob>>,
    idle: ArrayQueue<Thread>,
    stopping: AtomicBool,
    /// How many migrations have begun so far.
    begun: AtomicUsize,
    hire: Box<StartCompressor>,
    counts: Counts,
}

/// What became of offered batches.
#[derive(Default)]
struct Counts {
    done: AtomicU64,
    gone: AtomicU64,
    displaced: AtomicU64,
    failed: AtomicU64,
}

/// What became of the batches that were offered to packers, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackerFigures {
    /// The batches that a packer dealt with.
    pub done: u64,
    /// The batches that were gone when a packer came to them: their turn to be sent had come.
    pub gone: u64,
    /// The batches that newer ones displaced, as the queue was full.
    pub displaced: u64,
    /// The batches whose compressor failed.
    pub failed: u64,
    /// The batches that wait now; those that are gone are among them until a packer sees that.
    pub waiting: usize,
}

impl PackerPool {
    /// Starts `threads` threads, for which others compress on `cores` cores. The threads have others only while there
    /// is something to do.
    ///
    /// # Errors
    /// The system has no room for the threads.
    pub fn start(threads: usize, cores: usize, hire: Box<StartCompressor>) -> io::Result<PackerPool> {
        let (jobs, idle) = (ArrayQueue::new(JOBS_MAX), ArrayQueue::new(threads.max(1) * 2));
        let (stopping, begun, counts) = (AtomicBool::new(false), AtomicUsize::new(0), Counts::default());
        let shared = Arc::new(Shared { jobs, idle, stopping, begun, hire, counts });
        let mut packers = PackerPool { shared, threads: Vec::new(), cores };
        for _ in 0..threads {
            let shared = packers.shared.clone();
            packers.threads.push(spawn("packer", move || shared.work())?);
        }
        Ok(packers)
    }

    /// Returns what became of the batches that were offered so far, for all migrations.
    pub fn figures(&self) -> PackerFigures {
        let Counts { done, gone, displaced, failed } = &self.shared.counts;
        let [done, gone, displaced, failed] = [done, gone, displaced, failed].map(|count| count.load(Relaxed));
        PackerFigures { done, gone, displaced, failed, waiting: self.shared.jobs.len() }
    }

    /// Returns the cores that the compressors could keep busy.
    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// Notes that a migration begins. There will be something to do soon, and a compressor takes a while to start.
    pub fn begin(&self) {
        self.shared.begun.fetch_add(1, SeqCst);
        self.threads.iter().for_each(|packer| packer.thread().unpark());
    }

    /// Offers a batch to the packers.
    pub(crate) fn offer(&self, job: &Arc<PackJob>) {
        // If the queue is full, its oldest batch, whose turn comes soonest, goes as it is.
        if self.shared.jobs.force_push(Arc::downgrade(job)).is_some() {
            self.shared.counts.displaced.fetch_add(1, Relaxed);
        }
        if let Some(packer) = self.shared.idle.pop() {
            packer.unpark();
        }
    }
}

impl Drop for PackerPool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, SeqCst);
        for packer in self.threads.drain(..) {
            packer.thread().unpark();
            if packer.join().is_err() {
                warn!("a packer panicked");
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        let is_over = || self.stopping.load(SeqCst);
        let mut compress: Option<Box<dyn Compress>> = None;
        let (mut last, mut begun) = (Instant::now(), 0);
        while !is_over() {
            let now_begun = self.begun.load(SeqCst);
            if begun != now_begun {
                (last, begun) = (Instant::now(), now_begun);
                compress = compress.or_else(|| (self.hire)(&is_over));
            }
            match self.jobs.pop().map(|job| job.upgrade()) {
                Some(Some(job)) => {
                    last = Instant::now();
                    compress = compress.or_else(|| (self.hire)(&is_over));
                    let is_lost = compress.as_mut().map(|compress| job.pack(&mut **compress, &is_over).is_err());
                    let count = if is_lost == Some(false) { &self.counts.done } else { &self.counts.failed };
                    count.fetch_add(1, Relaxed);
                    compress = compress.filter(|_| is_lost == Some(false));
                }
                Some(None) => {
                    self.counts.gone.fetch_add(1, Relaxed);
                }
                None => {
                    compress = compress.filter(|_| last.elapsed() < IDLE_TIME_MAX);
                    let _ = self.idle.force_push(thread::current());
                    if self.jobs.is_empty() {
                        thread::park_timeout(IDLE_CHECK_PERIOD);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_pages::packing::{Packing, PageCompressor, plan_packing};
    use skein_pages::{BatchForm, PAGE_BYTES};

    use super::*;
    use crate::pool::Pool;

    /// Bounds every wait for something that has to happen at all.
    const DEADLINE: Duration = Duration::from_secs(20);

    #[derive(Default)]
    struct World {
        hired: AtomicU8,
        failed: AtomicU8,
        fails: AtomicBool,
        hangs: AtomicBool,
    }

    /// A compressor that packs nothing, but fails and hangs as a test says.
    struct Fake(Arc<World>);

    impl Compress for Fake {
        fn compress(
            &mut self,
            pages: &[Bytes],
            _effort: Effort,
            _out: &mut [u8],
            is_over: &dyn Fn() -> bool,
        ) -> io::Result<PackResult> {
            while self.0.hangs.load(SeqCst) && !is_over() {
                thread::sleep(IDLE_CHECK_PERIOD);
            }
            if self.0.fails.load(SeqCst) || is_over() {
                self.0.failed.fetch_add(1, SeqCst);
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok((Some(Compressed { packing: Packing::Lz4, len: pages.concat().len() / 2 }), Duration::ZERO))
        }
    }

    fn packers(world: &Arc<World>) -> PackerPool {
        let world = world.clone();
        let hire = move |_: &dyn Fn() -> bool| {
            world.hired.fetch_add(1, SeqCst);
            Some(Box::new(Fake(world.clone())) as Box<dyn Compress>)
        };
        PackerPool::start(1, 1, Box::new(hire)).unwrap()
    }

    fn job() -> Arc<PackJob> {
        let batch = Batch::new(BatchForm::Content, vec![7; 2 * PAGE_BYTES].into());
        let sifted = plan_packing(&batch).unwrap();
        PackJob::new(
            batch,
            sifted,
            Arc::new(Pacer::new(1, 1, Arc::default())),
            Pool::default().take(PageCompressor::OUT_BYTES),
        )
    }

    fn until(is_so: impl Fn() -> bool) {
        let end = Instant::now() + DEADLINE;
        while !is_so() {
            assert!(Instant::now() < end);
            thread::sleep(PACKING_IN_PROGRESS_POLL);
        }
    }

    #[test]
    fn batches_go_as_they_are_while_nobody_can_compress_and_packed_again_after() {
        let world = Arc::<World>::default();
        let packers = packers(&world);
        assert_eq!(world.hired.load(SeqCst), 0, "nobody is needed yet");
        for round in 1..=3 {
            world.fails.store(false, SeqCst);
            let job = job();
            packers.offer(&job);
            until(|| job.is_done());
            assert!(matches!(job.take(), Taken::Packed(packed, _) if packed.compressed.len == PAGE_BYTES));

            world.fails.store(true, SeqCst);
            let job = self::job();
            packers.offer(&job);
            until(|| world.failed.load(SeqCst) == round && job.state.get() == JobState::Waiting);
            assert!(matches!(job.take(), Taken::Late), "at once");
            assert_eq!(world.hired.load(SeqCst), round, "another for each that failed");
        }
    }

    #[test]
    fn nobody_waits_for_who_hangs_and_what_was_taken_away_takes_no_memory() {
        let world = Arc::<World>::default();
        let packers = packers(&world);
        world.hangs.store(true, SeqCst);
        let (first, second) = (job(), job());
        packers.offer(&first);
        until(|| first.state.get() == JobState::BeingPacked);
        packers.offer(&second);
        assert!(matches!(first.take(), Taken::Late) && matches!(second.take(), Taken::Late));
        let second = Arc::try_unwrap(second).map(drop);
        assert!(second.is_ok(), "nobody else holds it");
        drop(packers);
        assert!(Arc::try_unwrap(first).is_ok());
    }
}
