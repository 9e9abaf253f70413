//! What to do for a guest to converge, from sample to sample.

use std::time::Duration;

use super::meter::{CopyMeter, MOVE_RATE_WINDOW, Moment};
use super::needs::ConvergenceNeeds;
use super::prediction::{Convergence, CopyRates, Copying};
use super::sample::CopySample;
use super::throttling::{DIRTY_SHARE_CONVERGING, THROTTLE_MAX, hurried, running_share};
use super::write_model::WriteModel;

/// A guest that writes this part of what it wrote, throttled by so many per cent, is not throttled.
const WRITE_SHARE_UNTHROTTLED: f64 = 0.5;
const WITHOUT_EFFECT_PERCENT: u8 = 98;
/// More than this part of what is moved, as sampled, is more, whatever the chance in a sample. (A sample counts those
/// of 512 pages in each GiB that changed; it is a tenth more or less where a fifth did.)
const SAMPLE_ERROR_FACTOR: f64 = 1.25;
/// Throttling begins with so many per cent at least, and is raised by as many where it was not enough.
const THROTTLE_STEP_PERCENT: u8 = 5;
/// A guest that will not converge is throttled when so much time and so many rounds left no less than those before …
const NO_PROGRESS_THROTTLE_TIME: Duration = Duration::from_secs(1);
const NO_PROGRESS_THROTTLE_ROUNDS: u64 = 1;
/// … and is given up after these …
const NO_PROGRESS_GIVE_UP_TIME: Duration = Duration::from_secs(5);
const NO_PROGRESS_GIVE_UP_ROUNDS: u64 = 3;
/// … and after these whatever its figures say: that it converges is not true then.
const NO_PROGRESS_TIME_MAX: Duration = Duration::from_secs(15);
const NO_PROGRESS_ROUNDS_MAX: u64 = 10;
/// Of what may be left at the switchover a part is enough: one in so many …
const SWITCHOVER_FRACTION: f64 = 16.0;
/// … and what is dirtied in so many of the shortest rounds that there are, which take so many seconds.
const SHORTEST_ROUNDS_LEFT: f64 = 1.5;
const SHORTEST_ROUND_S: f64 = 0.02;

/// What to do for a guest to converge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvergenceStep {
    /// Nothing is to be done.
    None,
    /// Throttle the guest to so many per cent.
    Throttle(u8, CopyRates),
    /// Call the migration off: with what is allowed it does not end.
    GiveUp(CopyRates, ConvergenceNeeds),
}

/// Watches a copy from sample to sample.
#[derive(Debug)]
pub struct ConvergenceWatch {
    /// Per cent that the guest may be throttled by.
    allowed: u8,
    /// Per cent that the guest is to be throttled by.
    wanted: u8,
    /// When `wanted` was asked for.
    asked: Option<Moment>,
    meter: CopyMeter,
    /// How the guest writes, throttled as it is, once that is known.
    writes: Option<WriteModel>,
    /// Whether the guest does not converge, as it is.
    never_converges: bool,
}

impl ConvergenceWatch {
    /// Makes the watch of a guest that may be throttled by so many per cent. 0: not at all.
    pub fn new(allowed: u8) -> ConvergenceWatch {
        ConvergenceWatch {
            allowed: allowed.min(THROTTLE_MAX),
            wanted: 0,
            asked: None,
            meter: CopyMeter::default(),
            writes: None,
            never_converges: false,
        }
    }

    /// Takes a sample, and returns what there is to say of the copy, and to do.
    pub fn sample(&mut self, sample: &CopySample) -> (Option<Convergence>, ConvergenceStep) {
        self.meter.add(sample);
        let Some(moves) = self.meter.moves() else { return (None, ConvergenceStep::None) };
        let unthrottled = self.meter.writes();
        self.writes = unthrottled.map(|writes| writes.throttled(sample.throttle));
        let copying = Copying {
            remaining: sample.remaining,
            since: self.meter.seconds_of_round(sample),
            writes: self.writes,
            moves,
            fits: sample.fits,
        };
        let convergence = copying.convergence();
        self.never_converges = matches!(convergence, Some(Convergence::Never(_)));
        (convergence, unthrottled.map_or(ConvergenceStep::None, |writes| self.help(sample, writes, moves)))
    }

    /// Returns the bytes that are to be left at the switchover where so many may be left. They are less if rounds
    /// shrink to that by half and more each time, so that it takes no longer than to move what may be left, and the
    /// guest stands still for a part of the time that it may.
    pub fn aim(&self, fits: u64) -> u64 {
        let less = fits as f64 / SWITCHOVER_FRACTION;
        let Some((moves, writes)) = self.moves().zip(self.writes) else { return less as u64 };
        let less = less.max(SHORTEST_ROUNDS_LEFT * writes.dirtied(SHORTEST_ROUND_S));
        let shrinks = writes.dirtied(less / moves) <= less / 2.0;
        if shrinks { fits.min(less as u64) } else { fits }
    }

    /// Returns whether the guest is known not to converge, as it is.
    pub fn is_hopeless(&self) -> bool {
        self.never_converges
    }

    /// Returns the bytes of the guest that were moved a second of late. `None`: not known.
    pub fn moves(&self) -> Option<f64> {
        self.meter.moves()
    }

    /// Returns what the guest was seen to write in a second, if by that it does not converge, or as throttled as it is
    /// not soon.
    fn sampled(&self, sample: &CopySample, moves: f64) -> Option<f64> {
        let more = if self.wanted == 0 { SAMPLE_ERROR_FACTOR } else { DIRTY_SHARE_CONVERGING };
        let counts = self.meter.since_first_round(sample).is_some_and(|since| since >= MOVE_RATE_WINDOW);
        let sampled = sample.sampled.filter(|sampled| counts && *sampled > sample.fits)? as f64;
        (sampled > more * moves).then_some(sampled)
    }

    /// Returns the per cent by which the guest is throttled, if that has no effect. QEMU's `cpu_throttle_thread`
    /// (migration/cpu-throttle.c) returns without resetting `throttle_thread_scheduled` when throttling ended just
    /// before, and is not scheduled for that virtual CPU any more.
    fn throttle_without_effect(&self, sample: &CopySample) -> Option<u8> {
        let (before, now) = self.meter.unthrottled_sample().zip(sample.sampled)?;
        (sample.throttle >= WITHOUT_EFFECT_PERCENT && now as f64 > WRITE_SHARE_UNTHROTTLED * before as f64)
            .then_some(sample.throttle)
    }

    fn help(&mut self, sample: &CopySample, writes: WriteModel, moves: f64) -> ConvergenceStep {
        // QEMU throttles at the end of a later round. A QEMU that does not throttle then never will.
        if sample.throttle < self.wanted {
            let now = self.meter.moment(sample);
            let is_in_vain = |asked: Moment| asked.lasts(now, NO_PROGRESS_GIVE_UP_TIME, NO_PROGRESS_GIVE_UP_ROUNDS);
            if !self.asked.is_some_and(is_in_vain) {
                self.meter.forget_progress();
                return ConvergenceStep::None;
            }
            (self.wanted, self.allowed) = (sample.throttle, sample.throttle);
        }
        let sampled = self.sampled(sample, moves);
        let throttled = sampled.unwrap_or(writes.throttled(sample.throttle).rate);
        let rates = CopyRates { dirties_bytes_per_s: throttled as u64, moves_bytes_per_s: moves as u64 };
        let lasts = |time, rounds| self.meter.lacks_progress(sample, time, rounds);
        let is_known = self.never_converges && lasts(NO_PROGRESS_THROTTLE_TIME, NO_PROGRESS_THROTTLE_ROUNDS);
        let is_sure = lasts(NO_PROGRESS_GIVE_UP_TIME, NO_PROGRESS_GIVE_UP_ROUNDS);
        if self.wanted < self.allowed && (sampled.is_some() || is_known || is_sure) {
            self.wanted = self.next_throttle(sample, sampled, writes, moves);
            self.asked = Some(self.meter.moment(sample));
            return ConvergenceStep::Throttle(self.wanted, rates);
        }
        // Rounds that are short show no more than there is to write to: samples may show more.
        let rate = sampled.map_or(writes.rate, |sampled| sampled / running_share(sample.throttle));
        let throttle_without_effect = self.throttle_without_effect(sample);
        let needs = ConvergenceNeeds {
            throttle_without_effect,
            ..ConvergenceNeeds::of(rate, moves, sample.nics, self.allowed)
        };
        match self.never_converges {
            true if is_sure => ConvergenceStep::GiveUp(rates, needs),
            false if lasts(NO_PROGRESS_TIME_MAX, NO_PROGRESS_ROUNDS_MAX) => {
                match writes.throttled(sample.throttle).rate > DIRTY_SHARE_CONVERGING * moves {
                    true => ConvergenceStep::GiveUp(rates, needs),
                    // A guest that writes no more than what should do is held up by something else.
                    false => ConvergenceStep::GiveUp(
                        rates,
                        ConvergenceNeeds { nics: None, throttle: None, throttle_without_effect },
                    ),
                }
            }
            _ => ConvergenceStep::None,
        }
    }

    /// Returns the per cent to throttle the guest to next.
    fn next_throttle(&self, sample: &CopySample, sampled: Option<f64>, writes: WriteModel, moves: f64) -> u8 {
        let (rate, most) = match sampled {
            Some(sampled) => (sampled / running_share(sample.throttle), THROTTLE_MAX),
            None => {
                // What is sure is tried first.
                let rate = if self.wanted == 0 { self.meter.last_rate() } else { writes.rate };
                (rate, self.wanted + (100 - self.wanted) / 2)
            }
        };
        let next = hurried(rate, moves).min(most);
        next.max(self.wanted.saturating_add(THROTTLE_STEP_PERCENT)).min(self.allowed)
    }
}

#[cfg(test)]
mod tests;
