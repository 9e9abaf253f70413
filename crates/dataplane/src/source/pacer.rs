//! Tells how much effort packing is worth at this moment. Packers and all streams of a migration share this.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_pages::pace::{PackingMode, PackingOutcome, PackingPace};
use skein_pages::packing::Effort;

use super::page_counters::{PageCounters, add};

/// Says for how many turns of its stream a batch waits for its packer. Two: with one, packers that just keep up leave a
/// tenth more bytes, and the paths gain nothing.
const PACKING_WAIT_TURNS: f64 = 2.0;
/// Bounds a batch's wait for its packer.
const PACKING_WAIT_MAX: Duration = Duration::from_millis(50);

/// The pace of packing of one migration.
pub(crate) struct Pacer {
    pace: Mutex<PackingPace>,
    /// The pace's effort, for packers, which share no lock with threads in a hurry.
    effort: AtomicU8,
    /// The microseconds in which packers were at work, with CPU or without.
    busy_us: AtomicU64,
    epoch: Instant,
    /// The cores that the packers could keep busy.
    cores: usize,
    /// The streams that have pages.
    streams: u16,
    counts: Arc<PageCounters>,
}

impl Pacer {
    pub(crate) fn new(cores: usize, streams: u16, counts: Arc<PageCounters>) -> Pacer {
        let pace = PackingPace::new(Duration::ZERO);
        Pacer {
            effort: AtomicU8::new(pace.effort().step()),
            pace: Mutex::new(pace),
            busy_us: AtomicU64::new(0),
            epoch: Instant::now(),
            cores,
            streams,
            counts,
        }
    }

    /// Returns the effort that a packer is to pack with.
    pub(crate) fn effort(&self) -> Effort {
        Effort::nth(self.effort.load(Relaxed))
    }

    /// Notes that a batch was packed, with its time and its CPU.
    pub(crate) fn note_packed(&self, effort: Effort, took: Duration, cpu: Duration) {
        self.counts.packed(effort, cpu);
        add(&self.busy_us, took.as_micros() as usize);
    }

    /// Notes what became of a batch whose turn has come.
    pub(super) fn note_outcome(&self, outcome: PackingOutcome) {
        let mut pace = self.pace.lock();
        let busy = Duration::from_micros(self.busy_us.load(Relaxed));
        pace.note_outcome(self.epoch.elapsed(), busy, outcome, self.cores);
        self.effort.store(pace.effort().step(), Relaxed);
    }

    /// Returns what to do with a batch that may be worth packing.
    pub(super) fn mode(&self) -> PackingMode {
        self.pace.lock().packing_mode()
    }

    /// Returns how long a batch of `bytes` bytes waits for its packer before the batch asks for capacity. `rate`
    /// returns the bytes that the paths carry in a second. In [`PACKING_WAIT_TURNS`] of its stream the paths would
    /// carry the batch as it is, so packers that take longer are no help.
    pub(super) fn wait_for_packer(&self, bytes: usize, rate: impl FnOnce() -> f64) -> Duration {
        if self.mode() != PackingMode::Awaited {
            return Duration::ZERO;
        }
        let turn = f64::from(self.streams.max(1)) * bytes as f64 / rate().max(1.0);
        Duration::from_secs_f64((PACKING_WAIT_TURNS * turn).min(PACKING_WAIT_MAX.as_secs_f64()))
    }
}
