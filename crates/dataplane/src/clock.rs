//! Tells the time as a session knows it.

#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Says how many times slower than the real time a session's time passes in tests. A thread that a busy machine keeps
/// waiting then looks less like a path that stalls.
#[cfg(test)]
const SLOWNESS: u32 = 4;

/// Counts the time since it was made.
#[derive(Debug)]
pub(crate) struct Clock {
    epoch: Instant,
    /// The time that a test skipped, in milliseconds.
    #[cfg(test)]
    skipped_ms: AtomicU64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock {
            epoch: Instant::now(),
            #[cfg(test)]
            skipped_ms: AtomicU64::new(0),
        }
    }
}

impl Clock {
    /// Returns the time since the clock was made.
    #[cfg(not(test))]
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Returns the time since the clock was made, as slow as tests want, with what was skipped.
    #[cfg(test)]
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed() / SLOWNESS + Duration::from_millis(self.skipped_ms.load(Ordering::SeqCst))
    }

    /// Moves the clock on.
    #[cfg(test)]
    pub(crate) fn skip(&self, time: Duration) {
        self.skipped_ms.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}
