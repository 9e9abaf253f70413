//! Is time for threads that wait: the host's time, or in tests a time that passes when a thread waits for it.

use std::time::{Duration, Instant};

/// Says how often [`wait_until`] checks.
const LOOK_PERIOD: Duration = Duration::from_millis(2);

/// Tells the time, and lets it pass.
pub(crate) trait Clock: Send + Sync {
    /// Returns the time since some moment before everything that is measured by this clock.
    fn now(&self) -> Duration;

    /// Waits for `time`.
    fn sleep(&self, time: Duration);

    /// Waits until `is` returns true or `time` is over. Returns the last value of `is`.
    fn wait_until(&self, time: Duration, is: &mut dyn FnMut() -> bool) -> bool {
        let end = self.now() + time;
        while !is() {
            if self.now() >= end {
                return false;
            }
            self.sleep(LOOK_PERIOD);
        }
        true
    }
}

/// The host's monotonic clock.
pub(crate) struct HostClock(Instant);

impl HostClock {
    /// Makes a clock that begins now.
    pub(crate) fn new() -> HostClock {
        HostClock(Instant::now())
    }
}

impl Clock for HostClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Waits until `is` returns true or `time` is over, by the host's clock. Returns the last value of `is`.
pub(crate) fn wait_until(time: Duration, mut is: impl FnMut() -> bool) -> bool {
    HostClock::new().wait_until(time, &mut is)
}
