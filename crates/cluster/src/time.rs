//! The time, which is an argument.

use skein_api::cluster::UnixMs;

/// The longest time from one try of something to the next, in milliseconds: that of a fencing that failed.
const WAIT_MAX_MS: u64 = 600_000;
/// How far the clocks of two controllers may be apart before a deadline of the other is taken for one that was set
/// before the clock was set back, in milliseconds.
const CLOCKS_APART_MS: u64 = 60_000;

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

    /// Returns whether a moment of the wall clock is still to come that was set to be soon. One that is further off
    /// than anything waits was set before the clock was set back.
    pub fn is_before(self, soon: UnixMs) -> bool {
        soon.0.checked_sub(self.wall.0).is_some_and(|left_ms| (1..=WAIT_MAX_MS).contains(&left_ms))
    }

    /// Returns whether a moment of the wall clock is over that was set to be `most_ms` off at most. A moment that is
    /// much further off was set before the clock was set back, and is over, too: nothing waits for so long.
    pub fn is_over(self, until: UnixMs, most_ms: u64) -> bool {
        let most_ms = most_ms.saturating_add(CLOCKS_APART_MS);
        !until.0.checked_sub(self.wall.0).is_some_and(|left_ms| (1..=most_ms).contains(&left_ms))
    }

    /// Returns the milliseconds since an earlier moment of the clock that never jumps.
    pub fn ms_since(self, mono_ms: u64) -> u64 {
        self.mono_ms.saturating_sub(mono_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_holds_nothing_up() {
        let now = Now { wall: UnixMs(10_000_000), ..Now::default() };
        let early = |soon: u64| now.is_before(UnixMs(soon));
        assert_eq!([9_999_999, 10_000_000, 10_000_001, 10_600_000].map(early), [false, false, true, true]);
        let over = |until: u64| now.is_over(UnixMs(until), 5_000);
        assert_eq!(
            [9_999_999, 10_000_000, 10_000_001, 10_065_000, 10_065_001].map(over),
            [true, true, false, false, true]
        );
        assert!(!early(10_600_001) && !early(17_200_000), "the clock was two hours ahead");
    }
}
