//! Decides when a guest's writes are sampled, and keeps what was found. Pure: the caller asks the hypervisor.

use std::time::Duration;

use skein_hypervisor::SAMPLE_PAGES;
use skein_units::GIB;

/// The time for which the hypervisor watches what a guest writes.
pub(super) const SAMPLE_TIME: Duration = Duration::from_secs(1);
/// The time between the beginnings of two measurements.
const SAMPLE_PERIOD: Duration = Duration::from_secs(2);
/// Bounds the pages that the hypervisor hashes, of a large guest.
const SAMPLED_PAGES_MAX: u64 = 16 * SAMPLE_PAGES;

/// What a hypervisor says of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measurement {
    /// The bytes of different pages that the guest wrote to within a second.
    Rate(u64),
    /// The measurement is not done yet.
    NotYet,
    /// The answer is not understood, or there is none.
    Unknown,
}

/// Samples what a guest writes.
#[derive(Debug, Default)]
pub(super) struct DirtyRateSampler {
    /// When the last measurement began; `None`: the next may begin at once.
    since: Option<Duration>,
    is_measuring: bool,
    /// Whether the measurement under way is of the guest as it was throttled before.
    is_stale: bool,
    throttle: u8,
    last: Option<u64>,
}

impl DirtyRateSampler {
    /// Notes by how many per cent the guest is throttled. What was measured under another throttle does not count.
    pub(super) fn set_throttle(&mut self, throttle: u8) {
        if self.throttle != throttle {
            (self.throttle, self.last, self.is_stale) = (throttle, None, self.is_measuring);
            self.since = self.since.filter(|_| self.is_measuring);
        }
    }

    /// Returns whether the hypervisor is to be asked for the result of a measurement.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.is_measuring && self.lasts(now, SAMPLE_TIME)
    }

    /// Takes in what the hypervisor says of the measurement.
    pub(super) fn take(&mut self, now: Duration, measured: Measurement) {
        if let Measurement::Rate(rate) = measured {
            self.last = Some(rate).filter(|_| !self.is_stale);
            self.since = self.since.filter(|_| !self.is_stale);
        }
        // A hypervisor that never gives a result is asked to measure again.
        self.is_measuring = measured == Measurement::NotYet && !self.lasts(now, SAMPLE_PERIOD);
    }

    /// Returns how many pages of each GiB are to be hashed, if a measurement is to begin now.
    pub(super) fn pages_to_measure(&self, now: Duration, ram_bytes: u64) -> Option<u64> {
        let is_due = !self.is_measuring && self.lasts(now, SAMPLE_PERIOD);
        is_due.then(|| SAMPLE_PAGES.min(SAMPLED_PAGES_MAX * GIB / ram_bytes.max(1)))
    }

    /// Notes that the hypervisor was told to measure. `is_begun` is whether it does.
    pub(super) fn note_measuring(&mut self, now: Duration, is_begun: bool) {
        self.is_measuring = is_begun;
        (self.since, self.is_stale) = (Some(now), false);
    }

    /// Returns the bytes that the guest was last seen to write in a second, under its present throttle.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    fn lasts(&self, now: Duration, time: Duration) -> bool {
        self.since.is_none_or(|since| now.saturating_sub(since) >= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_measurement_takes_a_second_and_begins_every_two() {
        let mut sampler = DirtyRateSampler::default();
        assert_eq!(sampler.pages_to_measure(at(0), GIB), Some(SAMPLE_PAGES));
        assert_eq!(sampler.pages_to_measure(at(0), 64 * GIB), Some(SAMPLE_PAGES / 4), "no more of a large guest");
        sampler.note_measuring(at(0), true);
        assert_eq!((sampler.is_due(at(900)), sampler.pages_to_measure(at(900), GIB)), (false, None));
        assert!(sampler.is_due(at(1000)));
        sampler.take(at(1000), Measurement::NotYet);
        assert!(sampler.is_due(at(1100)));
        sampler.take(at(1100), Measurement::Rate(5));
        assert_eq!((sampler.last(), sampler.is_due(at(1900))), (Some(5), false));
        assert_eq!(sampler.pages_to_measure(at(1900), GIB), None);
        assert!(sampler.pages_to_measure(at(2000), GIB).is_some());
        // A measurement that is refused, or whose result is never told, is tried again later.
        sampler.note_measuring(at(2000), false);
        assert_eq!(sampler.pages_to_measure(at(3900), GIB), None);
        sampler.note_measuring(at(4000), true);
        sampler.take(at(6000), Measurement::NotYet);
        assert!(sampler.pages_to_measure(at(6000), GIB).is_some());
        assert_eq!(sampler.last(), Some(5));
    }

    #[test]
    fn what_was_measured_of_a_guest_that_is_throttled_otherwise_does_not_count() {
        let mut sampler = DirtyRateSampler::default();
        sampler.note_measuring(at(0), true);
        sampler.set_throttle(30);
        sampler.take(at(1000), Measurement::Rate(9));
        assert_eq!(sampler.last(), None);
        assert!(sampler.pages_to_measure(at(1000), GIB).is_some(), "the next begins at once");
        sampler.note_measuring(at(1000), true);
        sampler.set_throttle(30);
        sampler.take(at(2000), Measurement::Rate(4));
        assert_eq!(sampler.last(), Some(4));
        sampler.set_throttle(50);
        assert_eq!(sampler.last(), None);
        assert!(sampler.pages_to_measure(at(2000), GIB).is_some());
    }
}
