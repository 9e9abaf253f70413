//! Sums up measurements by the method of the field: repeat, drop the highest and the lowest, show everything.

use serde::{Deserialize, Serialize};

/// The summary of repeated measurements of one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Every value, in the order of measurement.
    pub values: Vec<f64>,
    /// The lowest and the highest value, which are left out of `mean` and `spread`. `None` with fewer than three
    /// values.
    pub dropped: Option<(f64, f64)>,
    /// The mean of the kept values.
    pub mean: f64,
    /// The standard deviation of the kept values (n - 1); 0 for a single one.
    pub spread: f64,
    /// The median. Dropping one value at each end does not change it.
    pub median: f64,
    /// The lowest of all values.
    pub min: f64,
    /// The highest of all values.
    pub max: f64,
}

impl Summary {
    /// Sums up `values`. Returns `None` if there are none, or if one is not a finite number.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || !values.iter().all(|v| v.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
        let trim = sorted.len() >= 3;
        let kept = if trim { &sorted[1..sorted.len() - 1] } else { &sorted[..] };
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        let spread = match kept.len() {
            1 => 0.0,
            n => (kept.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64).sqrt(),
        };
        Some(Self {
            values: values.to_vec(),
            dropped: trim.then_some((min, max)),
            mean,
            spread,
            median: median_of_sorted(&sorted),
            min,
            max,
        })
    }
}

/// Returns the median, or `None` if there is no value.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| median_of_sorted(&sorted))
}

/// Returns the smallest value that at least `share` (0 to 1) of all values do not exceed (nearest rank).
pub fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn highest_and_lowest_are_dropped() {
        let s = Summary::of(&[10.0, 2.0, 3.0, 100.0, 4.0, 1.0]).unwrap();
        assert_eq!(s.dropped, Some((1.0, 100.0)));
        assert_eq!(s.mean, 4.75);
        assert_eq!(s.median, 3.5);
        assert_eq!((s.min, s.max), (1.0, 100.0));
        assert_eq!(s.values, [10.0, 2.0, 3.0, 100.0, 4.0, 1.0]);
        // The kept values are 2, 3, 4, 10.
        assert!((s.spread - 3.593976442141304).abs() < 1e-12);
    }

    #[test]
    fn two_values_are_both_kept() {
        let s = Summary::of(&[1.0, 3.0]).unwrap();
        assert_eq!((s.dropped, s.mean, s.median), (None, 2.0, 2.0));
    }

    #[test]
    fn nothing_or_nonsense_has_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(median(&[]), None);
        assert_eq!(percentile(&[], 0.99), None);
    }

    #[test]
    fn percentile_is_nearest_rank() {
        let v: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&v, 0.99), Some(198.0));
        assert_eq!(percentile(&v, 1.0), Some(200.0));
        assert_eq!(percentile(&v, 0.0), Some(1.0));
        assert_eq!(percentile(&[7.0], 0.99), Some(7.0));
    }

    fn values(at_least: usize) -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(-1e6..1e6f64, at_least..40)
    }

    proptest! {
        #[test]
        fn order_does_not_matter(mut v in values(1)) {
            let forward = Summary::of(&v).unwrap();
            v.reverse();
            let backward = Summary::of(&v).unwrap();
            let figures = |of: &Summary| (of.mean, of.median, of.spread);
            prop_assert_eq!(figures(&forward), figures(&backward));
        }

        #[test]
        fn trimming_keeps_the_median(v in values(3)) {
            let mut sorted = v.clone();
            sorted.sort_by(f64::total_cmp);
            let inner = median(&sorted[1..sorted.len() - 1]).unwrap();
            prop_assert_eq!(Summary::of(&v).unwrap().median, inner);
        }

        #[test]
        fn mean_and_median_lie_within(v in values(1)) {
            let s = Summary::of(&v).unwrap();
            prop_assert!(s.min - 1e-6 <= s.mean && s.mean <= s.max + 1e-6);
            prop_assert!(s.min <= s.median && s.median <= s.max);
            prop_assert!(s.spread >= 0.0 && s.spread <= s.max - s.min + 1e-6);
        }

        #[test]
        fn one_outlier_changes_nothing(v in values(3), far in 1e7..1e9f64) {
            // Only the highest value is replaced by a higher one. It was dropped before, and is dropped now.
            let mut wild = v.clone();
            let top = (0..v.len()).max_by(|&a, &b| v[a].total_cmp(&v[b])).unwrap();
            wild[top] = far;
            let (calm, wild) = (Summary::of(&v).unwrap(), Summary::of(&wild).unwrap());
            prop_assert_eq!((calm.mean, calm.spread), (wild.mean, wild.spread));
        }

        #[test]
        fn percentile_splits(v in values(1), share in 0.0..1.0f64) {
            let p = percentile(&v, share).unwrap();
            let at_most = v.iter().filter(|&&x| x <= p).count() as f64;
            let below = v.iter().filter(|&&x| x < p).count() as f64;
            prop_assert!(at_most >= share * v.len() as f64 - 1e-9);
            prop_assert!(below <= (share * v.len() as f64).max(0.0) + 1e-9);
        }
    }
}
