//! Computes from NIC counters over time when bulk flowed, how fast, and how long it did not.

/// The slack at both ends of a transfer: keep-alives and handshakes come before it, and acknowledgements after it. 64
/// KiB is 0.5 ms of a 1 Gb/s link, and more than any mover sends before it starts.
pub const SLACK_BYTES: f64 = 65536.0;

/// The width in seconds of the intervals in which rates are compared.
pub const BIN_S: f64 = 0.1;

/// A byte counter read over time. Both columns rise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counter {
    /// When it was read, in seconds.
    pub t_s: Vec<f64>,
    /// The value that was read.
    pub bytes: Vec<f64>,
}

impl Counter {
    /// Adds a reading.
    pub fn push(&mut self, t_s: f64, bytes: f64) {
        self.t_s.push(t_s);
        self.bytes.push(bytes);
    }

    /// Returns the value at `t`, linear between readings and constant beyond them, or `None` without a reading.
    pub fn at(&self, t: f64) -> Option<f64> {
        let after = self.t_s.partition_point(|&x| x <= t);
        match (after.checked_sub(1), self.t_s.get(after)) {
            (None, _) => self.bytes.first().copied(),
            (Some(last), None) => Some(self.bytes[last]),
            (Some(before), Some(&t1)) => {
                let (t0, b0, b1) = (self.t_s[before], self.bytes[before], self.bytes[after]);
                Some(b0 + (b1 - b0) * (t - t0) / (t1 - t0))
            }
        }
    }

    /// Returns the bits per second between two moments.
    pub fn bps(&self, from: f64, to: f64) -> Option<f64> {
        (to > from).then(|| Some((self.at(to)? - self.at(from)?) * 8.0 / (to - from)))?
    }

    /// Returns the sum of counters that were read at the same moments.
    pub fn sum<'a>(counters: impl IntoIterator<Item = &'a Counter>) -> Counter {
        let mut counters = counters.into_iter();
        let mut sum = counters.next().cloned().unwrap_or_default();
        for counter in counters {
            assert_eq!(sum.t_s.len(), counter.t_s.len(), "read at the same moments");
            sum.bytes.iter_mut().zip(&counter.bytes).for_each(|(sum, more)| *sum += more);
        }
        sum
    }
}

/// Returns the first and last moment of a bulk transfer in `[from, to]`: when the counter has just passed
/// [`SLACK_BYTES`] above its start, and when it has just come within [`SLACK_BYTES`] of its end. Returns `None` if less
/// than twice that was carried.
pub fn window(counter: &Counter, from: f64, to: f64) -> Option<(f64, f64)> {
    let (start, end) = (counter.at(from)?, counter.at(to)?);
    (end - start > 2.0 * SLACK_BYTES).then(|| {
        let first = reaches(counter, start + SLACK_BYTES, from, to);
        let last = reaches(counter, end - SLACK_BYTES, from, to);
        Some((first?, last?))
    })?
}

/// Returns for how long within `[from, to]` the rate was below `bps`, in whole bins of [`BIN_S`]. A last bin that is
/// not whole counts by its length.
pub fn time_below(counter: &Counter, bps: f64, from: f64, to: f64) -> f64 {
    bins(from, to)
        .filter(|&(start, end)| counter.bps(start, end).is_none_or(|rate| rate < bps))
        .map(|(start, end)| end - start)
        // The sum of nothing would be -0.
        .fold(0.0, |sum, length| sum + length)
}

/// Returns the time from `from` to the end of the first bin with at least `bps`, or `None` if that is not before `to`.
pub fn time_until(counter: &Counter, bps: f64, from: f64, to: f64) -> Option<f64> {
    bins(from, to)
        .find(|&(start, end)| counter.bps(start, end).is_some_and(|rate| rate >= bps))
        .map(|(_, end)| end - from)
}

fn bins(from: f64, to: f64) -> impl Iterator<Item = (f64, f64)> {
    let count = ((to - from) / BIN_S - 1e-9).ceil().max(0.0) as usize;
    (0..count).map(move |n| (from + n as f64 * BIN_S, (from + (n + 1) as f64 * BIN_S).min(to)))
}

/// Returns the first moment in `[from, to]` at which the counter is at `bytes`.
fn reaches(counter: &Counter, bytes: f64, from: f64, to: f64) -> Option<f64> {
    let index = counter.bytes.iter().zip(&counter.t_s).position(|(&b, &t)| b >= bytes && t >= from)?;
    let t = match index.checked_sub(1).map(|before| (counter.t_s[before], counter.bytes[before])) {
        Some((t0, b0)) if counter.bytes[index] > b0 => {
            t0 + (counter.t_s[index] - t0) * (bytes - b0) / (counter.bytes[index] - b0)
        }
        _ => counter.t_s[index],
    };
    Some(t.clamp(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a counter of a link with the given rates in bits per second, each for one interval of 20 ms.
    fn counter(rates: &[f64]) -> Counter {
        let mut counter = Counter::default();
        let mut bytes = 1e6;
        counter.push(0.0, bytes);
        for (n, rate) in rates.iter().enumerate() {
            bytes += rate / 8.0 * 0.02;
            counter.push((n + 1) as f64 * 0.02, bytes);
        }
        counter
    }

    #[test]
    fn window_of_a_transfer_leaves_out_the_silence_around_it() {
        // 0.5 s of nothing, 2 s of 1 Gb/s, 0.5 s of a trickle.
        let rates = [vec![0.0; 25], vec![1e9; 100], vec![100e3; 25]].concat();
        let (first, last) = window(&counter(&rates), 0.0, 3.0).unwrap();
        assert!((first - 0.5).abs() < 0.002, "{first}");
        assert!((last - 2.5).abs() < 0.002, "{last}");
    }

    #[test]
    fn no_bulk_no_window() {
        assert_eq!(window(&counter(&[1e5; 10]), 0.0, 0.2), None);
        assert_eq!(window(&Counter::default(), 0.0, 1.0), None);
    }

    #[test]
    fn a_dip_is_as_long_as_it_is() {
        // 1 Gb/s, 0.3 s of nothing, 1 Gb/s.
        let rates = [vec![1e9; 50], vec![0.0; 15], vec![1e9; 50]].concat();
        let c = counter(&rates);
        let below = time_below(&c, 0.9e9, 1.0, 2.3);
        assert!((0.299..0.401).contains(&below), "{below}");
        assert_eq!(time_below(&c, 0.9e9, 0.0, 1.0), 0.0);
        let until = time_until(&c, 0.5e9, 1.0, 2.3).unwrap();
        assert!((0.3..=0.4001).contains(&until), "{until}");
        assert_eq!(time_until(&c, 2e9, 0.0, 2.3), None);
    }

    #[test]
    fn nothing_known_is_below() {
        assert!((time_below(&Counter::default(), 1.0, 0.0, 1.0) - 1.0).abs() < 1e-9);
        assert_eq!(time_below(&Counter::default(), 1.0, 1.0, 1.0), 0.0);
    }

    proptest! {
        #[test]
        fn time_below_is_bounded_and_monotonic(
            rates in prop::collection::vec(0.0..2e9f64, 1..100),
            limit in 0.0..2e9f64,
        ) {
            let c = counter(&rates);
            let length = rates.len() as f64 * 0.02;
            let below = time_below(&c, limit, 0.0, length);
            prop_assert!((-1e-9..=length + 1e-9).contains(&below));
            prop_assert!(below <= time_below(&c, limit * 1.1, 0.0, length) + 1e-9);
        }

        #[test]
        fn at_rises(rates in prop::collection::vec(0.0..2e9f64, 1..50), a in -1.0..3.0f64, b in -1.0..3.0f64) {
            let c = counter(&rates);
            prop_assert!(c.at(a.min(b)).unwrap() <= c.at(a.max(b)).unwrap() + 1e-6);
        }

        #[test]
        fn window_lies_within(rates in prop::collection::vec(0.0..2e9f64, 1..100)) {
            let c = counter(&rates);
            let length = rates.len() as f64 * 0.02;
            if let Some((first, last)) = window(&c, 0.0, length) {
                prop_assert!(0.0 <= first && first <= last && last <= length);
            }
        }
    }
}
