//! The time, which is an argument.

use skein_api::cluster::UnixMs;

/// A moment, by both clocks of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// By the wall clock, for people. May jump.
    pub wall: UnixMs,
    /// Milliseconds by a clock that never jumps, for all that is waited for.
    pub mono_ms: u64,
    /// How many seconds the clock on the wall is ahead of UTC.
    pub utc_offset_s: i32,
}

impl Now {
    /// Returns the wall clock's time in so many milliseconds.
    pub fn in_ms(self, ms: u64) -> UnixMs {
        UnixMs(self.wall.0.saturating_add(ms))
    }

    /// Returns the milliseconds since an earlier moment of the clock that never jumps.
    pub fn ms_since(self, mono_ms: u64) -> u64 {
        self.mono_ms.saturating_sub(mono_ms)
    }
}
