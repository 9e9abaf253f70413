//! The copy of a guest's RAM: in rounds, at the rate of a link, while the guest writes.

use std::time::Duration;

/// How fast a copy goes, and what is written meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates {
    /// Bytes of pages per second that the link takes.
    pub(crate) link: f64,
    /// Bytes of pages per second that the guest writes, at its present throttling.
    pub(crate) writes: f64,
    /// Bytes of RAM to which the guest writes over and over.
    pub(crate) hot: f64,
}

impl Rates {
    /// Returns how many bytes of different pages the guest dirties in so many seconds.
    pub(crate) fn dirtied(&self, seconds: f64) -> f64 {
        (self.writes * seconds).min(self.hot)
    }
}

/// A copy that is under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Copy {
    /// Bytes left of this round.
    pub(crate) remaining: f64,
    /// Bytes sent over all rounds.
    pub(crate) sent: f64,
    /// The number of the round, from 1.
    pub(crate) round: u64,
    /// Bytes dirtied in this round so far.
    pub(crate) dirtied: f64,
    /// Seconds that this round has lasted.
    pub(crate) lasted: f64,
    /// Bytes dirtied per second in the round before.
    pub(crate) dirty_rate: f64,
}

impl Copy {
    pub(crate) fn new(ram: f64) -> Copy {
        Copy { remaining: ram, sent: 0.0, round: 1, dirtied: 0.0, lasted: 0.0, dirty_rate: 0.0 }
    }

    /// Returns after what time this round is over, which is when no more than `threshold` is left. `None`: the link
    /// moves nothing.
    pub(crate) fn round_over_in(&self, rates: &Rates, threshold: f64) -> Option<Duration> {
        let left = (self.remaining - threshold).max(0.0);
        (rates.link > 0.0 || left <= 0.0)
            .then(|| Duration::from_secs_f64(if left <= 0.0 { 0.0 } else { left / rates.link }))
    }

    /// Sends for `time`, within a round.
    pub(crate) fn send(&mut self, time: Duration, rates: &Rates) {
        let seconds = time.as_secs_f64();
        let sent = (rates.link * seconds).min(self.remaining);
        self.remaining -= sent;
        self.sent += sent;
        self.lasted += seconds;
        self.dirtied = (self.dirtied + rates.writes * seconds).min(rates.hot);
    }

    /// Ends the round: the bytes that were dirtied in it are left for the next round.
    pub(crate) fn next_round(&mut self) {
        self.dirty_rate = if self.lasted > 0.0 { self.dirtied / self.lasted } else { 0.0 };
        self.remaining += self.dirtied;
        self.round += 1;
        (self.dirtied, self.lasted) = (0.0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_shrink_by_what_is_written_of_what_is_sent() {
        let rates = Rates { link: 100.0, writes: 50.0, hot: 1e9 };
        let mut copy = Copy::new(1000.0);
        let mut lengths = Vec::new();
        for _ in 0..4 {
            let time = copy.round_over_in(&rates, 0.0).unwrap();
            copy.send(time, &rates);
            copy.next_round();
            lengths.push(time.as_millis());
        }
        assert_eq!(lengths, [10_000, 5_000, 2_500, 1_250]);
        assert_eq!((copy.round, copy.dirty_rate, copy.remaining), (5, 50.0, 62.5));
        let still = Rates { link: 0.0, ..rates };
        assert_eq!(copy.round_over_in(&still, 0.0), None);
        assert_eq!(copy.round_over_in(&still, 100.0), Some(Duration::ZERO));
    }

    #[test]
    fn no_more_is_dirtied_than_is_written_to() {
        let rates = Rates { link: 100.0, writes: 500.0, hot: 300.0 };
        let mut copy = Copy::new(1000.0);
        copy.send(Duration::from_secs(10), &rates);
        copy.next_round();
        assert_eq!((copy.remaining, rates.dirtied(1.0), rates.dirtied(0.1)), (300.0, 300.0, 50.0));
    }
}
