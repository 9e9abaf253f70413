//! What was waited for, as percentiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// How long things took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latencies {
    /// How many there were.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// The longest that is told apart: a minute.
const LONGEST_US: u64 = 60_000_000;

/// Gathers how long things took.
#[derive(Clone, Debug)]
pub(crate) struct Gathered(Histogram<u64>);

impl Default for Gathered {
    fn default() -> Gathered {
        Gathered(Histogram::new_with_max(LONGEST_US, 3).expect("the bounds are those of a histogram"))
    }
}

impl Gathered {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST_US));
    }

    pub(crate) fn add_all(&mut self, others: &Gathered) {
        self.0 += &others.0;
    }

    pub(crate) fn latencies(&self) -> Latencies {
        let ms = |us: u64| us as f64 / 1e3;
        Latencies {
            count: self.0.len(),
            p50_ms: ms(self.0.value_at_quantile(0.5)),
            p99_ms: ms(self.0.value_at_quantile(0.99)),
            max_ms: ms(self.0.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_that_was_gathered() {
        let (mut all, mut late) = (Gathered::default(), Gathered::default());
        (1..=98).for_each(|ms| all.add(Duration::from_millis(ms)));
        late.add(Duration::from_millis(500));
        late.add(Duration::from_secs(3600));
        all.add_all(&late);
        let found = all.latencies();
        assert_eq!(found.count, 100);
        assert!((found.p50_ms - 50.0).abs() < 0.1 && (found.p99_ms - 500.0).abs() < 1.0, "{found:?}");
        assert!(found.max_ms >= 59_000.0);
        assert_eq!(Gathered::default().latencies(), Latencies::default());
    }
}
