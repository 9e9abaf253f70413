//! The clocks of a controller.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use skein_api::cluster::UnixMs;
use skein_cluster::Now;

/// The time since whenever, which never goes back, and goes on while the computer sleeps.
pub type BootClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Returns the kernel's clock that also counts while the computer sleeps: a lease goes on meanwhile.
pub fn boot_clock() -> BootClock {
    Arc::new(|| clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from))
}

/// Returns the wall clock's time.
pub fn wall() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns this moment for the core, by a clock that never jumps.
pub(crate) fn now(boot: &BootClock) -> Now {
    let utc_offset_s = jiff::Zoned::now().offset().seconds();
    Now { wall: wall(), mono_ms: u64::try_from(boot().as_millis()).unwrap_or(u64::MAX), utc_offset_s }
}
