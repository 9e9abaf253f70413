//! Threads that pack batches while these wait for room on the paths.
//!
//! They share no lock with anybody who is in a hurry: a job is taken and given back by atomic steps, so that a packer that
//! gets no CPU for a while, as it must not take any from guests, holds up nobody. Whose turn comes before its batch is
//! packed takes it away unpacked.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use skein_pages::Batch;
use skein_pages::packing::{Packed, Packer};
use tracing::warn;

use super::source::Source;
use crate::live::spawn;
use crate::pool::Buffer;

/// Batches that wait to be packed, of all migrations: 256 MiB, more than may wait for room.
const JOBS_MAX: usize = 1024;
/// A packer looks for work this often even if nobody wakes it.
const LOOK: Duration = Duration::from_millis(50);
/// How long a batch whose turn has come waits for the packer that is at it, before it goes unpacked.
const PATIENCE: Duration = Duration::from_millis(2);
const PATIENCE_STEP: Duration = Duration::from_micros(100);

const FRESH: u8 = 0;
const PACKING: u8 = 1;
const DONE: u8 = 2;
const TAKEN: u8 = 3;

/// A batch that may be packed.
pub(crate) struct Job {
    pub(crate) batch: Batch,
    source: Arc<Source>,
    state: AtomicU8,
    out: Mutex<Option<Buffer>>,
    /// None within: it is not worth it.
    packed: OnceLock<Option<Packed>>,
}

/// How a batch goes.
pub(crate) enum Taken {
    /// Packed, and its packed pages.
    Packed(Packed, Bytes),
    /// As it is, since packing is not worth it.
    Dense,
    /// As it is, since nobody came to pack it in time.
    Late,
}

impl Job {
    pub(crate) fn new(batch: Batch, source: Arc<Source>, out: Buffer) -> Arc<Job> {
        let (state, out, packed) = (AtomicU8::new(FRESH), Mutex::new(Some(out)), OnceLock::new());
        Arc::new(Job { batch, source, state, out, packed })
    }

    /// The batch's turn has come.
    pub(crate) fn take(&self) -> Taken {
        let since = Instant::now();
        loop {
            match self.state.load(Acquire) {
                DONE => break,
                PACKING if since.elapsed() < PATIENCE => thread::sleep(PATIENCE_STEP),
                state => {
                    if self.state.compare_exchange(state, TAKEN, AcqRel, Acquire).is_ok() {
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

    fn pack(&self, packer: &mut Packer) {
        if self.state.compare_exchange(FRESH, PACKING, AcqRel, Acquire).is_err() {
            return;
        }
        let since = Instant::now();
        let packed =
            self.out.lock().as_mut().and_then(|out| packer.pack(&self.batch, self.source.effort(), out.as_mut()));
        self.source.packed(since.elapsed());
        let _ = self.packed.set(packed);
        let _ = self.state.compare_exchange(PACKING, DONE, AcqRel, Acquire);
    }
}

/// Threads that pack, for all migrations of a host.
pub struct Packers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    jobs: ArrayQueue<Arc<Job>>,
    idle: ArrayQueue<Thread>,
    stopping: AtomicBool,
}

impl Packers {
    /// Starts so many threads, each of which first calls `settle_down`, to be content with CPU that nobody else wants.
    ///
    /// # Errors
    /// The system has no room for them.
    pub fn start(threads: usize, settle_down: impl Fn() + Clone + Send + 'static) -> io::Result<Packers> {
        let idle = ArrayQueue::new(threads.max(1) * 2);
        let shared = Arc::new(Shared { jobs: ArrayQueue::new(JOBS_MAX), idle, stopping: AtomicBool::new(false) });
        let mut packers = Packers { shared, threads: Vec::new() };
        for _ in 0..threads {
            let (shared, settle_down, packer) = (packers.shared.clone(), settle_down.clone(), Packer::new()?);
            packers.threads.push(spawn("packer", move || {
                settle_down();
                shared.work(packer);
            })?);
        }
        Ok(packers)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Somebody may pack it.
    pub(crate) fn offer(&self, job: Arc<Job>) {
        // Full: it goes as it is.
        if self.shared.jobs.push(job).is_ok()
            && let Some(packer) = self.shared.idle.pop()
        {
            packer.unpark();
        }
    }
}

impl Drop for Packers {
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
    fn work(&self, mut packer: Packer) {
        while !self.stopping.load(SeqCst) {
            match self.jobs.pop() {
                Some(job) => job.pack(&mut packer),
                None => {
                    let _ = self.idle.force_push(thread::current());
                    if self.jobs.is_empty() {
                        thread::park_timeout(LOOK);
                    }
                }
            }
        }
    }
}
