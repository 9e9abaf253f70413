//! Forecasts what a guest will use of a resource, from samples of what it used.
//!
//! A guest's use is modelled as a first-order autoregressive series. The series has a mean, a variance, and a
//! correlation from one sample to the next, each with exponentially fading weights (plain averages in the beginning).
//! How long a deviation from the mean lasts is estimated for each guest: the correlation is near 0 for spikes and near
//! 1 for plateaus. So the forecast does not follow a spike. A load that both of the last two samples show is no spike:
//! it counts in full, whatever was before.

use thiserror::Error;

/// The mean and variance of what is used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// The mean, in the resource's unit.
    pub mean: f64,
    /// The variance, in the square of the unit.
    pub variance: f64,
}

/// What was used, and what will be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// The last sample, and the one before.
    pub recent: [f64; 2],
    /// What is expected in the next interval.
    pub soon: Expected,
    /// What is expected over the hours after that interval.
    pub later: Expected,
}

impl Outlook {
    /// Makes the outlook of a constant amount: one that is reserved, or not measured.
    pub fn fixed(amount: f64) -> Outlook {
        let expected = Expected { mean: amount, variance: 0.0 };
        Outlook { recent: [amount; 2], soon: expected, later: expected }
    }

    /// Returns whether all numbers are finite, and 0 or more.
    pub(super) fn is_amount(&self) -> bool {
        let [last, before] = self.recent;
        let numbers = [last, before, self.soon.mean, self.soon.variance, self.later.mean, self.later.variance];
        numbers.iter().all(|n| n.is_finite() && *n >= 0.0)
    }
}

/// A sample that is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("a sample is {0}: what is used is a finite number of 0 or more, up to 2^53")]
pub struct BadSample(f64);

/// The weights of samples fade by 1 / `DECAY_SAMPLES` with each that follows: three hours, at a sample every five
/// minutes.
pub const DECAY_SAMPLES: f64 = 36.0;

/// A forecast of one guest's use of one resource. It is a few numbers, however many samples there were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadForecast {
    samples: u32,
    mean: f64,
    variance: f64,
    /// The covariance of a sample with the one before.
    covariance: f64,
    /// The last sample, and the one before.
    recent: [f64; 2],
}

impl LoadForecast {
    /// Makes a forecast for a guest of which nothing is known but what such guests use. That counts as much as one
    /// sample.
    pub fn new(like: Expected) -> LoadForecast {
        LoadForecast { samples: 1, mean: like.mean, variance: like.variance, ..LoadForecast::default() }
    }

    /// Adds the next sample. `None` is a missing sample, which is treated as if nothing had changed.
    ///
    /// # Errors
    ///
    /// [`BadSample`] if the sample is not an amount. The forecast stays as it was.
    pub fn sample(&mut self, used: Option<f64>) -> Result<(), BadSample> {
        let Some(used) = used else { return Ok(()) };
        if !(0.0..=(1u64 << 53) as f64).contains(&used) {
            return Err(BadSample(used));
        }
        self.samples = self.samples.saturating_add(1);
        let weight = 1.0 / f64::from(self.samples).min(DECAY_SAMPLES);
        let before = if self.samples == 2 { 0.0 } else { self.recent[0] - self.mean };
        let off = used - self.mean;
        self.mean += weight * off;
        self.variance += weight * (off * (used - self.mean) - self.variance);
        self.covariance += weight * (before * off - self.covariance);
        self.recent = [used, self.recent[0]];
        Ok(())
    }

    /// Returns what was used, and what will be.
    pub fn outlook(&self) -> Outlook {
        let correlation = if self.variance > 0.0 { (self.covariance / self.variance).clamp(0.0, 1.0) } else { 0.0 };
        let [last, before] = self.recent;
        let soon = (self.mean + correlation * (last - self.mean)).max(last.min(before));
        Outlook {
            recent: self.recent,
            soon: Expected { mean: soon, variance: self.variance * (1.0 - correlation * correlation) },
            later: Expected { mean: self.mean, variance: self.variance },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(samples: impl IntoIterator<Item = f64>) -> LoadForecast {
        let mut forecast = LoadForecast::new(Expected { mean: 10.0, variance: 4.0 });
        samples.into_iter().for_each(|used| forecast.sample(Some(used)).unwrap());
        forecast
    }

    #[test]
    fn who_is_new_is_like_the_others() {
        let outlook = after([]).outlook();
        assert_eq!((outlook.soon.mean, outlook.later), (10.0, Expected { mean: 10.0, variance: 4.0 }));
        assert_eq!(after([30.0]).outlook().later.mean, 20.0, "the first sample counts as much as that");
    }

    #[test]
    fn a_spike_is_not_chased_and_a_lasting_rise_is_seen_with_the_second_sample() {
        let calm = || (0..50).map(|n| 20.0 + f64::from(n % 3));
        let spike = after(calm().chain([90.0])).outlook();
        assert!(spike.soon.mean < 25.0 && spike.later.mean < 25.0, "{spike:?}");
        let rise = after(calm().chain([90.0, 85.0])).outlook();
        assert_eq!(rise.soon.mean, 85.0);
        assert!(rise.later.mean < 30.0, "over hours it may go as it came: {rise:?}");
        let over = after(calm().chain([90.0, 21.0])).outlook();
        assert!(over.soon.mean < 25.0, "{over:?}");
    }

    #[test]
    fn spikes_leave_variance_and_plateaus_correlation() {
        let spiky = after((0..300).map(|n| if n % 10 == 0 { 80.0 } else { 10.0 })).outlook();
        assert!((15.0..20.0).contains(&spiky.later.mean) && spiky.later.variance > 200.0, "{spiky:?}");
        let last = after((0..=300).map(|n| if n % 10 == 0 { 80.0 } else { 10.0 })).outlook();
        assert!(last.soon.mean < 25.0, "after a spike comes none: {last:?}");
        let plateaus = after((0..318).map(|n| if n / 20 % 2 == 0 { 10.0 } else { 60.0 })).outlook();
        assert!(plateaus.soon.mean >= 60.0 && plateaus.soon.variance < plateaus.later.variance / 2.0, "{plateaus:?}");
    }

    #[test]
    fn what_is_missing_changes_nothing_and_what_is_no_amount_is_refused() {
        let mut forecast = after([5.0, 7.0]);
        let before = forecast.clone();
        forecast.sample(None).unwrap();
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let told = forecast.sample(Some(bad)).expect_err("it is none").to_string();
            assert!(told.starts_with("a sample is "), "{told}");
        }
        assert_eq!(forecast, before);
    }

    proptest! {
        /// Checks that means are within the range of the samples, and that no number is below 0 or not finite.
        #[test]
        fn it_is_bounded(samples in prop::collection::vec(0.0..1000.0f64, 1..200)) {
            let outlook = after(samples.iter().copied()).outlook();
            let most = samples.iter().copied().fold(10.0, f64::max);
            let least = samples.iter().copied().fold(10.0, f64::min);
            for of in [outlook.soon, outlook.later] {
                prop_assert!((0.0..=1e7).contains(&of.variance), "{:?}", of);
                prop_assert!(of.mean >= least - 1e-9 && of.mean <= most + 1e-9, "{:?}", of);
            }
        }

        /// Checks that more use in any sample forecasts no less for later, and that the mean for soon is never less
        /// than both of the last two samples.
        #[test]
        fn it_is_monotone(
            samples in prop::collection::vec(0.0..1000.0f64, 2..100),
            at: prop::sample::Index,
            more in 0.0..100.0f64,
        ) {
            let mut higher = samples.clone();
            higher[at.index(samples.len())] += more;
            let (low, high) = (after(samples.iter().copied()).outlook(), after(higher).outlook());
            prop_assert!(high.later.mean >= low.later.mean - 1e-9);
            let [last, before] = low.recent;
            prop_assert!(low.soon.mean >= last.min(before));
        }
    }
}
