//! Paces work at a steady rate.

/// The most time that is made up for after a late wake-up. Longer pauses (a migration's downtime) are not caught up
/// with: a guest that wakes on the target with a burst would be a different load.
const CATCH_UP_NS: u64 = 25_000_000;

/// Hands out work at a rate.
#[derive(Debug, Clone)]
pub struct Pacer {
    last_ns: u64,
    /// The work that is due and not yet done, in units of 1e-9.
    earned: u64,
}

impl Pacer {
    /// Makes a pacer that starts at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        Self { last_ns: now_ns, earned: 0 }
    }

    /// Returns how many units are due at `now_ns`, at `rate` a second. They count as done.
    pub fn due(&mut self, now_ns: u64, rate: u32) -> u64 {
        let passed = now_ns.saturating_sub(self.last_ns).min(CATCH_UP_NS);
        self.last_ns = now_ns;
        self.earned += passed * u64::from(rate);
        let due = self.earned / 1_000_000_000;
        self.earned %= 1_000_000_000;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_burst_after_a_pause() {
        let mut pacer = Pacer::new(0);
        assert_eq!(pacer.due(2_000_000, 30_000), 60);
        assert_eq!(pacer.due(5_000_000_000, 30_000), 750);
        assert_eq!(pacer.due(5_002_000_000, 30_000), 60);
    }

    proptest! {
        /// Checks that nothing is lost to rounding, whenever the wake-ups are.
        #[test]
        fn keeps_the_rate(steps in prop::collection::vec(0u64..=CATCH_UP_NS, 1..200), rate in 0u32..10_000_000) {
            let mut pacer = Pacer::new(0);
            let (mut now, mut done) = (0, 0);
            for step in steps {
                now += step;
                done += pacer.due(now, rate);
            }
            prop_assert_eq!(done, now * u64::from(rate) / 1_000_000_000);
        }
    }
}
