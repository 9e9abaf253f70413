//! Time for those who wait: the host's, or in tests one that passes when it is waited for.

use std::time::{Duration, Instant};

/// How often [`wait_until`] looks.
const LOOK_PERIOD: Duration = Duration::from_millis(2);

/// Tells the time, and lets it pass.
pub(crate) trait Clock: Send + Sync {
    /// Returns the time since some moment before everything that is measured by this clock.
    fn now(&self) -> Duration;

    /// Waits so long.
    fn sleep(&self, time: Duration);

    /// Waits until `is` or `time` is over. Returns whether `is`.
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
    /// A clock that begins now.
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

/// Waits until `is` or `time` is over, by the host's clock. Returns whether `is`.
pub(crate) fn wait_until(time: Duration, mut is: impl FnMut() -> bool) -> bool {
    HostClock::new().wait_until(time, &mut is)
}
