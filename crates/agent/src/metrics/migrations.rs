//! The migrations from and to this host: totals, and what is under way.

use std::time::Duration;

use skein_api::{Convergence, CopyProgress, TimeLeft};
use skein_handover::Role;
use skein_metrics::{Samples, agent};

use crate::migrations::{Migrations, role_word};
use crate::samples::Recorder;
use crate::to_api::ToApi;

pub(super) fn collect(samples: &mut Samples, migrations: &Migrations, recorder: &Recorder) {
    migrations.view().totals().collect(samples);
    migrations.journal().collect(samples);
    recorder.forecast_errors().collect(samples);
    samples.set(&agent::IN_DOUBT, &[], 0_u64);
    for open in migrations.view().open() {
        let summary = &open.summary;
        let (role, phase) = (role_word(summary.role.to_api()), summary.stage.to_api().words().0);
        samples.add(&agent::MIGRATIONS, &[role, phase], 1_u64);
        samples.add(&agent::IN_DOUBT, &[], u64::from(summary.in_doubt));
        if summary.role == Role::Source
            && let Some(copy) = &open.copy
        {
            collect_copy(samples, &summary.vm, copy);
        }
    }
    for (vm, left) in recorder.forecasts() {
        collect_forecast(samples, &vm, &left);
    }
}

fn collect_copy(samples: &mut Samples, vm: &str, copy: &CopyProgress) {
    samples.set(&agent::TOTAL, &[vm], copy.total_bytes);
    samples.set(&agent::REMAINING, &[vm], copy.remaining_bytes);
    samples.set(&agent::DIRTY_RATE, &[vm], copy.dirty_bytes_per_s);
    samples.set(&agent::MOVED_RATE, &[vm], copy.bits_per_s as f64 / 8.0);
    samples.set(&agent::THROTTLE, &[vm], f64::from(copy.throttle_percent) / 100.0);
    samples.set(&agent::ROUND, &[vm], copy.round);
    match copy.converges {
        Some(Convergence::In { .. }) => samples.set(&agent::CONVERGES, &[vm], true),
        Some(Convergence::Never(_)) => samples.set(&agent::CONVERGES, &[vm], false),
        // What the guest writes is not known yet.
        Some(Convergence::FirstRound { .. }) | None => {}
    }
}

fn collect_forecast(samples: &mut Samples, vm: &str, left: &TimeLeft) {
    let TimeLeft { left_ms, left_low_ms, left_high_ms, .. } = *left;
    for (guess, ms) in [("low", left_low_ms), ("likely", left_ms), ("high", left_high_ms)] {
        samples.set(&agent::FORECAST, &[vm, guess], Duration::from_millis(ms).as_secs_f64());
    }
}
