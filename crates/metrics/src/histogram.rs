//! Counts by size.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Family, Kind};

/// Counts of values by size, as a family says. A clone is the same counts.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// The upper ends of the buckets, without the infinite one.
    ends: &'static [f64],
    counts: Arc<Mutex<Counts>>,
}

/// What was counted up to a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sum: f64,
    pub(crate) count: u64,
    /// The values of each bucket, not of those below it; the last is without an end.
    buckets: Vec<u64>,
}

impl Histogram {
    /// Makes an empty one with the buckets of a family; of a family that is no histogram it has none.
    pub fn of(family: &Family) -> Histogram {
        let ends = match family.kind {
            Kind::Histogram(ends) => ends,
            _ => &[],
        };
        let counts = Counts { buckets: vec![0; ends.len() + 1], ..Counts::default() };
        Histogram { ends, counts: Arc::new(Mutex::new(counts)) }
    }

    /// Counts a value, in the family's unit.
    pub fn observe(&self, value: f64) {
        let at = self.ends.iter().position(|end| value <= *end).unwrap_or(self.ends.len());
        let mut counts = self.counts.lock();
        counts.sum += value;
        counts.count += 1;
        counts.buckets[at] += 1;
    }

    /// Returns how many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.lock().count
    }

    /// Returns the sum of all values, in the family's unit.
    pub fn sum(&self) -> f64 {
        self.counts.lock().sum
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.lock().clone()
    }

    /// Returns each bucket's upper end and its values.
    pub(crate) fn buckets(&self, counts: &Counts) -> Vec<(f64, u64)> {
        self.ends.iter().copied().chain([f64::INFINITY]).zip(counts.buckets.iter().copied()).collect()
    }
}
