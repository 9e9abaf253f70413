//! Computes how long a pre-copy migration takes at a constant rate, as the planner sees it.

use super::{ROUNDS_MAX, Traffic};

/// The rest has to be smaller by this part than what the downtime allows, since measured values are not exact.
const MARGIN: f64 = 1e-6;
/// After this many halvings a rate is exact enough.
const HALVINGS: u32 = 40;

/// The forecast of a migration at a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrecopyForecast {
    /// How long the migration takes, with the downtime.
    pub seconds: f64,
    /// How long the guest stands still.
    pub downtime_seconds: f64,
    /// How many times dirty memory was sent while the guest ran.
    pub rounds: u32,
}

/// Returns what a guest has written when `seconds` have passed since it had written nothing.
fn dirty_bytes(traffic: &Traffic, seconds: f64) -> f64 {
    let beyond = seconds - traffic.hot_seconds;
    let written = match beyond < 0.0 {
        true => traffic.hot_bytes * seconds / traffic.hot_seconds,
        false => traffic.hot_bytes + traffic.dirty_rate * beyond,
    };
    written.min(traffic.memory_bytes)
}

/// Forecasts a migration at a rate in bytes per second. Returns `None` if the dirty memory never becomes small enough.
pub fn forecast(traffic: &Traffic, rate: f64) -> Option<PrecopyForecast> {
    let (mut left, mut seconds) = (traffic.memory_bytes, 0.0);
    for rounds in 1..=ROUNDS_MAX {
        let round = left / rate;
        seconds += round;
        let dirty = dirty_bytes(traffic, round);
        if dirty <= traffic.downtime_seconds * rate * (1.0 - MARGIN) {
            let downtime_seconds = dirty / rate;
            return Some(PrecopyForecast { seconds: seconds + downtime_seconds, downtime_seconds, rounds });
        }
        // Each further round would be the same.
        if dirty >= left {
            return None;
        }
        left = dirty;
    }
    None
}

/// Returns the lowest rate up to `most` at which a migration ends, in bytes per second. Returns `None` if it does not
/// end even at `most`.
pub fn rate_min(traffic: &Traffic, most: f64) -> Option<f64> {
    forecast(traffic, most)?;
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        match forecast(traffic, middle) {
            Some(_) => high = middle,
            None => low = middle,
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUSY: Traffic =
        Traffic { memory_bytes: 3e9, hot_bytes: 96e6, hot_seconds: 2.0, dirty_rate: 2e6, downtime_seconds: 0.3 };

    #[test]
    fn an_idle_guest_is_sent_once() {
        let idle = Traffic { hot_bytes: 0.0, dirty_rate: 0.0, ..BUSY };
        let told = forecast(&idle, 1e8).unwrap();
        assert_eq!(told, PrecopyForecast { seconds: 30.0, downtime_seconds: 0.0, rounds: 1 });
    }

    #[test]
    fn what_is_dirty_is_sent_again() {
        // 30 s leave 96 + 2 x 28 MB dirty, which take 1.52 s. In these 72.96 MB get dirty, in 0.7296 s 35.02 MB, in
        // 0.35 s 16.8 MB.
        let told = forecast(&BUSY, 1e8).unwrap();
        assert_eq!(told.rounds, 4);
        assert!((told.seconds - (30.0 + 1.52 + 0.7296 + 0.350_208 + 0.168_1)).abs() < 1e-3, "{told:?}");
    }

    #[test]
    fn the_hot_set_sets_a_least_rate() {
        let least = rate_min(&BUSY, 1e9).unwrap();
        assert!((48e6..56e6).contains(&least), "{least}");
        assert!(forecast(&BUSY, least).is_some() && forecast(&BUSY, least * 0.99).is_none());
        assert_eq!(rate_min(&BUSY, 40e6), None);
    }

    proptest! {
        /// Checks that rates which are higher by more than the effect of one round take less time.
        #[test]
        fn half_the_rate_takes_more_than_twice_as_long(
            memory in 1e6..1e11,
            hot in 0.0..1e9,
            hot_seconds in 0.0..10.0,
            dirty_rate in 0.0..1e8,
            downtime in 0.0..2.0,
            rate in 1e6..1e10,
        ) {
            let traffic = Traffic {
                memory_bytes: memory, hot_bytes: hot, hot_seconds, dirty_rate, downtime_seconds: downtime,
            };
            if let (Some(full), Some(half)) = (forecast(&traffic, rate), forecast(&traffic, rate / 2.0)) {
                prop_assert!(half.seconds >= full.seconds);
                prop_assert!(full.downtime_seconds <= downtime);
            }
        }
    }
}
