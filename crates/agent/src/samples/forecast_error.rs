//! How right forecasts were, once migrations are over.

use std::sync::atomic::{AtomicU64, Ordering};

use skein_api::{MigrationPhase, MigrationSample, Outcome, Role, SourcePhase};
use skein_metrics::{Histogram, Samples, agent};

/// How right the forecast of the middle of each copy was, since the agent was started.
pub(crate) struct ForecastErrors {
    errors: Histogram,
    /// How many guests moved earlier than the forecast's range, in it, and later.
    ends: [AtomicU64; 3],
}

/// How a forecast turned out.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    /// How far it was from the time that was left, as a part of that.
    error: f64,
    /// Where the end was in its range: 0 is before, 1 in, 2 behind.
    end: usize,
}

const HELD: MigrationPhase = MigrationPhase::Source(SourcePhase::Held);
const ENDS: [&str; 3] = ["early", "in_range", "late"];

impl ForecastErrors {
    pub(super) fn new() -> ForecastErrors {
        ForecastErrors { errors: Histogram::of(&agent::FORECAST_ERROR), ends: Default::default() }
    }

    /// Judges what was forecast of a migration that is over, by its samples.
    pub(super) fn judge(&self, samples: &[MigrationSample]) {
        if let Some(verdict) = verdict(samples) {
            self.errors.observe(verdict.error);
            self.ends[verdict.end].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells what was found.
    pub(crate) fn collect(&self, samples: &mut Samples) {
        samples.counts(&agent::FORECAST_ERROR, &[], &self.errors);
        for (end, count) in ENDS.iter().zip(&self.ends) {
            samples.set(&agent::FORECASTS, &[end], count.load(Ordering::Relaxed));
        }
    }
}

/// Judges the forecast in the middle between the first one and the end. `None`: the guest did not move from here, was
/// held before, or nothing was forecast.
fn verdict(samples: &[MigrationSample]) -> Option<Verdict> {
    let last = &samples.last()?.migration;
    if last.role != Role::Source || last.outcome != Some(Outcome::Moved) {
        return None;
    }
    // How long somebody holds a guest no forecast can know.
    let is_held = |sample: &MigrationSample| sample.migration.stage == Some(HELD);
    if samples.iter().any(is_held) {
        return None;
    }
    let runs_there = |sample: &&MigrationSample| {
        let stage = sample.migration.stage;
        let is_after = stage == Some(MigrationPhase::Source(SourcePhase::Release));
        is_after || sample.migration.downtime_ms.is_some() || sample.migration.outcome.is_some()
    };
    let end = samples.iter().find(runs_there)?.at;
    let forecasts = || samples.iter().filter_map(|of| Some((of.at, of.forecast?))).filter(|(at, _)| *at < end);
    let middle = forecasts().next().map(|(first, _)| first + (end - first) / 2)?;
    let (at, forecast) = forecasts().min_by_key(|(at, _)| at.abs_diff(middle))?;
    let left = end - at;
    let error = forecast.left_ms.abs_diff(left) as f64 / left as f64;
    let end = match left {
        left if left < forecast.left_low_ms => 0,
        left if left > forecast.left_high_ms => 2,
        _ => 1,
    };
    Some(Verdict { error, end })
}

#[cfg(test)]
mod tests {
    use skein_api::{HostSample, Migration, MigrationId, TimeLeft};

    use super::*;

    fn sample(at: u64, left_ms: Option<u64>, outcome: Option<Outcome>) -> MigrationSample {
        let of = |left_ms| TimeLeft {
            done_permille: 1,
            left_ms,
            left_low_ms: left_ms * 9 / 10,
            left_high_ms: left_ms * 11 / 10,
        };
        let migration = Migration { outcome, ..Migration::new(MigrationId(1), "web1", Role::Source, "a", "b") };
        MigrationSample { at, migration, host: HostSample::default(), forecast: left_ms.map(of) }
    }

    #[test]
    fn the_forecast_of_the_middle_is_judged_by_the_end() {
        // From 1,000 on something was forecast, and the end is at 9,000: the middle is 5,000, with 4,000 left.
        let of = |middle: u64| {
            let moved = sample(9000, None, Some(Outcome::Moved));
            [sample(0, None, None), sample(1000, Some(1), None), sample(5000, Some(middle), None), moved]
        };
        let errors = ForecastErrors::new();
        assert_eq!(verdict(&of(4200)), Some(Verdict { error: 0.05, end: 1 }));
        assert_eq!(verdict(&of(8000)), Some(Verdict { error: 1.0, end: 0 }));
        assert_eq!(verdict(&of(2000)), Some(Verdict { error: 0.5, end: 2 }));
        [4200, 8000, 2000].iter().for_each(|middle| errors.judge(&of(*middle)));
        let mut samples = Samples::default();
        errors.collect(&mut samples);
        let text = samples.into_text();
        assert!(text.contains("skein_migration_forecast_error_ratio_count 3\n"), "{text}");
        assert!(text.contains("skein_migration_forecasts_total{end=\"late\"} 1\n"), "{text}");
    }

    #[test]
    fn what_did_not_move_or_was_not_forecast_is_not_judged() {
        let kept = [sample(0, Some(5), None), sample(5, None, Some(Outcome::CalledOff))];
        let silent = [sample(0, None, None), sample(5, None, Some(Outcome::Moved))];
        assert_eq!([verdict(&[]), verdict(&kept), verdict(&silent)], [None; 3]);
        let held = sample(3, None, None);
        let held = MigrationSample { migration: Migration { stage: Some(HELD), ..held.migration }, ..held };
        let moved = sample(905, None, Some(Outcome::Moved));
        assert_eq!(verdict(&[sample(0, Some(5), None), held, sample(900, Some(5), None), moved]), None);
        // One that only was at its end.
        assert_eq!(verdict(&[sample(5, Some(5), Some(Outcome::Moved))]), None);
    }
}
