//! Measures what paths carry, by their counters at different moments. (A path's own rate is the most that it was seen
//! to carry for an instant, which decides how much is sent on it.)

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use skein_dataplane::PathSnapshot;
use skein_host::Kernel;
use skein_network::{RdmaCounters, rdma_counters};

/// Holds the least time between two readings.
const READING_PERIOD_MIN: Duration = Duration::from_millis(400);
/// Says how much a busy path carries between two readings: a path that carried less may have had no more to carry.
const FULL_BYTES: f64 = 8e6;
/// Says which part of the difference counts at each reading if a path carries less.
const DECAY_SHARE: f64 = 0.1;
/// Bounds the age of a reading: an older reading says nothing about now.
const READING_AGE_MAX: Duration = Duration::from_secs(3);

/// The counts of each path, by its NIC and its far address.
type Counts = BTreeMap<(String, String), u64>;

/// The meter of the paths to one host.
#[derive(Default)]
pub(crate) struct PathMeter {
    last: Option<(Instant, Counts)>,
    rates: Counts,
    /// The time between the last two readings.
    period: Duration,
    /// The most that each path carried of late, when it was busy.
    most: Counts,
    /// Whether `most` includes these rates.
    is_taken: bool,
    /// What the RDMA devices of paths had carried when the paths were first seen to go over RDMA. `None`: the rail has
    /// no device with counters.
    rdma_before: BTreeMap<(String, String), Option<RdmaCounters>>,
}

fn key(path: &PathSnapshot) -> (String, String) {
    (path.info.nic.clone(), path.info.remote.to_string())
}

impl PathMeter {
    /// Reads the counters, if that is due.
    pub(crate) fn read(&mut self, now: Instant, paths: &[PathSnapshot]) {
        self.count(now, paths.iter().map(|path| (key(path), path.status.sent_bytes)).collect());
        let over_rdma: Vec<&PathSnapshot> = paths.iter().filter(|path| path.rdma_connections > 0).collect();
        self.rdma_before.retain(|known, _| over_rdma.iter().any(|path| key(path) == *known));
        for path in over_rdma {
            let counters = || rdma_counters(&Kernel::new(), &path.info.nic);
            self.rdma_before.entry(key(path)).or_insert_with(counters);
        }
    }

    /// Returns what the RDMA device of a path's NIC has carried since the path was first seen to go over RDMA.
    pub(crate) fn rdma(&self, path: &PathSnapshot) -> Option<RdmaCounters> {
        let before = self.rdma_before.get(&key(path))?.as_ref()?;
        Some(rdma_counters(&Kernel::new(), &path.info.nic)?.since(before))
    }

    fn count(&mut self, now: Instant, counts: Counts) {
        let before = self.last.as_ref().map(|(at, counts)| (now.saturating_duration_since(*at), counts));
        let rate = |since: Duration, bytes: u64| (bytes as f64 * 8.0 / since.as_secs_f64()) as u64;
        self.rates = match before {
            Some((since, _)) if since < READING_PERIOD_MIN => return,
            Some((since, before)) if since < READING_AGE_MAX => counts
                .iter()
                .filter_map(|(key, sent)| Some((key.clone(), rate(since, sent.checked_sub(*before.get(key)?)?))))
                .collect(),
            _ => BTreeMap::new(),
        };
        self.is_taken = false;
        self.period = before.map(|(since, _)| since).unwrap_or_default();
        self.last = Some((now, counts));
    }

    /// Returns the bits a second that a path carried of late; `None`: not known yet.
    pub(crate) fn rate(&self, path: &PathSnapshot) -> Option<u64> {
        self.rates.get(&key(path)).copied()
    }

    /// Remembers what paths carry while there is more than enough to send, and returns the sum of all.
    pub(crate) fn sum_of_full(&mut self) -> u64 {
        let is_full = |rate: u64| rate as f64 / 8.0 * self.period.as_secs_f64() >= FULL_BYTES;
        if !std::mem::replace(&mut self.is_taken, true) {
            for (key, rate) in self.rates.iter().filter(|(_, rate)| is_full(**rate)) {
                let most = self.most.entry(key.clone()).or_default();
                // A network link, or a host, that has become slower is known to be within some seconds.
                *most = (*rate).max((*most as f64 + (*rate as f64 - *most as f64) * DECAY_SHARE) as u64);
            }
        }
        self.rates.values().sum()
    }

    /// Returns the most that a path carried of late when it was busy; `None`: it never was.
    pub(crate) fn most(&self, path: &PathSnapshot) -> Option<u64> {
        self.most.get(&key(path)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_has_become_slower_is_known_to_be() {
        let mut meter = PathMeter::default();
        let begin = Instant::now();
        let mut sent = 0;
        for second in 0..30 {
            meter.count(begin + Duration::from_secs(second), Counts::from([(("nic0".into(), "x".into()), sent)]));
            meter.sum_of_full();
            meter.sum_of_full();
            sent += if second < 5 { 125_000_000 } else { 12_500_000 };
        }
        let most: Vec<u64> = meter.most.values().copied().collect();
        assert!(matches!(most[..], [100_000_000..=200_000_000]), "{most:?}");
    }

    #[test]
    fn rates_are_differences() {
        let mut meter = PathMeter::default();
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let counts = |a, b| Counts::from([(("nic0".into(), "x".into()), a), (("nic1".into(), "y".into()), b)]);
        meter.count(at(0), counts(1000, 50));
        assert_eq!(meter.sum_of_full(), 0);
        meter.count(at(100), counts(9000, 60));
        assert_eq!(meter.sum_of_full(), 0, "too soon");
        meter.count(at(1000), counts(12_501_000, 250));
        assert_eq!(meter.rates.values().copied().collect::<Vec<_>>(), [100_000_000, 1600]);
        assert_eq!(meter.sum_of_full(), 100_001_600);
        // A new session counts from zero; a new path has no rate yet.
        meter.count(at(2000), Counts::from([(("nic0".into(), "x".into()), 5), (("nic2".into(), "z".into()), 5)]));
        assert_eq!(meter.sum_of_full(), 0);
        meter.count(at(9000), counts(1 << 40, 0));
        assert_eq!(meter.sum_of_full(), 0, "stale");
        // What the other path carried is not what it could carry.
        assert_eq!(meter.most.values().copied().collect::<Vec<_>>(), [100_000_000]);
    }
}
