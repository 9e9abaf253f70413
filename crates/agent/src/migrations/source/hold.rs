//! Decides about a copy that is held: when it has converged, how fast it goes on then, and how fresh the target is.
//! Pure: takes samples, and gives decisions.
//!
//! A held copy goes on in rounds, so that the target has what the guest wrote up to some seconds ago. Each round is
//! spread over [`HELD_ROUND_TIME`], so that a page which the guest writes again and again goes once in that time. The
//! copy takes no more than one part in [`HELD_RATE_FRACTION`] of what was moved before: what does not fit into that
//! makes rounds longer and the target less fresh, and never the links full.

use std::time::Duration;

use super::switchover::HANDOVER_TIME_RESERVED;

/// The time over which a round of a held copy is spread.
const HELD_ROUND_TIME: Duration = Duration::from_secs(2);
/// A held copy takes at most what was moved divided by this.
const HELD_RATE_FRACTION: f64 = 4.0;
/// The least limit of a held copy's rate, in bytes a second. A hypervisor sends at least a page in a tenth of a second
/// all the same; without a limit it would look for what a still guest wrote without a pause.
const HELD_RATE_MIN: u64 = 1000;
/// What may be left at the switchover of a held copy, in bytes: less than a page, so nothing. QEMU takes 0 for no
/// reason to look again for what the guest wrote.
pub(super) const HELD_SWITCHOVER_BYTES: u64 = 4095;
/// A hypervisor that does not wait for a word ends a round at this rate at most, in bytes a second. QEMU before 8.1
/// goes to the switchover where no more is left than it sent in a millisecond: at this rate that is less than a page.
const SLIPPING_RATE: u64 = 4_000_000;
/// Such a hypervisor slows down when a round would be over in this time: it must not end two rounds between two looks.
const SLIPPING_TIME: Duration = Duration::from_millis(300);
/// A change of the rate is worth a command if it is more than the rate divided by this.
const RATE_CHANGE_FRACTION: u64 = 4;

/// What is known of a held copy at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HoldSample {
    pub(super) now: Duration,
    /// The number of the pass over the RAM, from 1.
    pub(super) round: u64,
    /// The bytes of pages that were sent so far.
    pub(super) sent: u64,
    /// The bytes left to send in this round.
    pub(super) remaining: u64,
    /// The bytes that may be left at the switchover.
    pub(super) fits: u64,
    /// The bytes of the guest that are moved a second; `None`: not known.
    pub(super) moves: Option<f64>,
}

/// How fresh the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freshness {
    /// The bytes of pages that the guest has written, and that the target does not have yet.
    pub(crate) dirty_bytes: u64,
    /// The milliseconds that the guest would stand still if it switched now.
    pub(crate) downtime_ms: u64,
}

/// What is to be done for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HoldDecision {
    /// Whether the copy has just converged: the guest is held from now on.
    pub(super) has_converged: bool,
    /// How fresh the target is, once the guest is held.
    pub(super) freshness: Option<Freshness>,
    /// The most bytes a second that the hypervisor is to be told; `None`: nothing new is worth a command.
    pub(super) rate: Option<RateLimit>,
}

/// How fast a hypervisor may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateLimit {
    None,
    BytesPerS(u64),
}

impl RateLimit {
    /// Returns whether a change to `next` is not worth a command.
    fn is_near(self, next: RateLimit) -> bool {
        match (self, next) {
            (RateLimit::BytesPerS(told), RateLimit::BytesPerS(next)) => {
                next.abs_diff(told) <= told / RATE_CHANGE_FRACTION
            }
            (told, next) => told == next,
        }
    }
}

/// The round that is under way, and the one before.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    number: u64,
    begun: Duration,
    /// What was sent and was to be sent at the last sample. That grows only when a round ends, by what was written.
    total: u64,
    /// What the guest wrote in the round before, in bytes of different pages, and how long that round lasted.
    before: Option<(u64, Duration)>,
}

/// Decides for one held copy.
#[derive(Debug)]
pub(super) struct HoldDriver {
    downtime_limit: Duration,
    /// Whether the hypervisor goes to the switchover by itself when nothing is left.
    slips: bool,
    rounds: Option<Rounds>,
    /// The most bytes a second, once the copy has converged.
    rate_max: Option<u64>,
    told: RateLimit,
}

impl HoldDriver {
    pub(super) fn new(downtime_limit_ms: u64, slips: bool) -> HoldDriver {
        let downtime_limit = Duration::from_millis(downtime_limit_ms);
        HoldDriver { downtime_limit, slips, rounds: None, rate_max: None, told: RateLimit::None }
    }

    /// Returns whether the copy has converged: the guest is held.
    pub(super) fn has_converged(&self) -> bool {
        self.rate_max.is_some()
    }

    /// Decides by a sample.
    pub(super) fn decide(&mut self, sample: &HoldSample) -> HoldDecision {
        let is_new_round = self.note_round(sample);
        let before = self.rounds.and_then(|rounds| rounds.before);
        let fits = before.is_some_and(|(dirtied, _)| sample.fits > 0 && dirtied <= sample.fits);
        let has_converged = !self.has_converged() && fits;
        if has_converged {
            // Of a link that was never seen full the rate is not known.
            let moves = sample.moves.unwrap_or(sample.fits as f64);
            self.rate_max = Some(((moves / HELD_RATE_FRACTION) as u64).max(HELD_RATE_MIN));
        }
        let rate = match self.rate_max {
            Some(most) if is_new_round || has_converged => {
                RateLimit::BytesPerS(rate_over(sample.remaining, HELD_ROUND_TIME).clamp(HELD_RATE_MIN, most))
            }
            Some(_) => self.told,
            None if self.slips && self.ends_soon(sample) => {
                RateLimit::BytesPerS(rate_over(sample.remaining, SLIPPING_TIME).max(SLIPPING_RATE))
            }
            None => RateLimit::None,
        };
        let freshness = self.has_converged().then(|| self.freshness(sample));
        HoldDecision { has_converged, freshness, rate: Some(rate).filter(|rate| !self.told.is_near(*rate)) }
    }

    /// Notes that the hypervisor has taken this limit.
    pub(super) fn note_told(&mut self, rate: RateLimit) {
        self.told = rate;
    }

    /// Takes in how far the rounds are. Returns whether another round is under way than before.
    fn note_round(&mut self, sample: &HoldSample) -> bool {
        let total = sample.sent.saturating_add(sample.remaining);
        let Some(rounds) = &mut self.rounds else {
            self.rounds = Some(Rounds { number: sample.round, begun: sample.now, total, before: None });
            return true;
        };
        let over = sample.round.saturating_sub(rounds.number);
        // Of several rounds the average is known.
        let dirtied = total.saturating_sub(rounds.total).checked_div(over);
        if let Some(dirtied) = dirtied {
            let lasted = sample.now.saturating_sub(rounds.begun) / u32::try_from(over).unwrap_or(u32::MAX);
            (rounds.number, rounds.begun, rounds.before) = (sample.round, sample.now, Some((dirtied, lasted)));
        }
        rounds.total = total;
        dirtied.is_some()
    }

    fn ends_soon(&self, sample: &HoldSample) -> bool {
        sample.moves.is_none_or(|moves| (sample.remaining as f64) < moves * SLIPPING_TIME.as_secs_f64())
    }

    fn freshness(&self, sample: &HoldSample) -> Freshness {
        let written = self.rounds.and_then(|rounds| {
            let (dirtied, lasted) = rounds.before?;
            let since = sample.now.saturating_sub(rounds.begun).as_secs_f64();
            Some(dirtied as f64 * since / lasted.as_secs_f64().max(0.001))
        });
        let dirty_bytes = sample.remaining.saturating_add(written.unwrap_or(0.0) as u64);
        let limit = self.downtime_limit;
        let reserved = HANDOVER_TIME_RESERVED.min(limit / 2);
        // What does not fit is copied first, in rounds, while the guest runs.
        let share = (dirty_bytes as f64 / sample.fits.max(1) as f64).min(1.0);
        let downtime = reserved + (limit - reserved).mul_f64(share);
        Freshness { dirty_bytes, downtime_ms: u64::try_from(downtime.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// Returns the bytes a second at which so many bytes take `time`.
fn rate_over(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// Returns a sample of a guest that is moved at 100 MB/s, with 25 MB that may be left.
    fn sample(tenths: u64, round: u64, sent: u64, remaining: u64) -> HoldSample {
        let now = Duration::from_millis(tenths * 100);
        HoldSample { now, round, sent, remaining, fits: 25 * MB, moves: Some(100e6) }
    }

    /// Returns a hold whose copy has just converged: a round of a second left 20 MB.
    fn held() -> HoldDriver {
        let mut hold = HoldDriver::new(300, false);
        assert!(!hold.decide(&sample(0, 1, 0, 500 * MB)).has_converged);
        assert!(!hold.decide(&sample(50, 2, 500 * MB, 60 * MB)).has_converged, "60 MB are too much");
        let decision = hold.decide(&sample(60, 3, 560 * MB, 20 * MB));
        assert!(decision.has_converged && hold.has_converged());
        assert_eq!(decision.rate, Some(RateLimit::BytesPerS(10 * MB)), "20 MB in two seconds");
        hold.note_told(RateLimit::BytesPerS(10 * MB));
        hold
    }

    #[test]
    fn a_held_round_is_spread_over_two_seconds_and_takes_a_quarter_of_the_links_at_most() {
        let mut hold = held();
        assert_eq!(hold.decide(&sample(70, 3, 561 * MB, 19 * MB)).rate, None, "within a round it stays");
        let next = hold.decide(&sample(80, 4, 580 * MB, 100 * MB));
        assert_eq!((next.has_converged, next.rate), (false, Some(RateLimit::BytesPerS(25 * MB))));
        hold.note_told(RateLimit::BytesPerS(25 * MB));
        assert_eq!(hold.decide(&sample(100, 5, 680 * MB, 48 * MB)).rate, None, "as good as the same");
        let still = hold.decide(&sample(120, 6, 728 * MB, 0));
        assert_eq!(still.rate, Some(RateLimit::BytesPerS(HELD_RATE_MIN)));
    }

    #[test]
    fn freshness_is_what_is_left_and_what_was_written_since() {
        let mut hold = held();
        let fresh = |decision: HoldDecision| decision.freshness.unwrap();
        // 20 MB a second were written.
        let half = fresh(hold.decide(&sample(65, 3, 565 * MB, 15 * MB)));
        assert_eq!(half, Freshness { dirty_bytes: 25 * MB, downtime_ms: 300 });
        let next = fresh(hold.decide(&sample(80, 4, 580 * MB, 5 * MB)));
        assert_eq!(next, Freshness { dirty_bytes: 5 * MB, downtime_ms: 25 + 55 });
        let busy = fresh(hold.decide(&sample(100, 5, 585 * MB, 400 * MB)));
        assert_eq!(busy, Freshness { dirty_bytes: 400 * MB, downtime_ms: 300 }, "what is too much is copied before");
    }

    #[test]
    fn what_is_not_known_to_fit_is_not_held() {
        let mut hold = HoldDriver::new(300, false);
        let unknown = |sample: HoldSample| HoldSample { fits: 0, ..sample };
        hold.decide(&unknown(sample(0, 1, 0, 500 * MB)));
        assert!(!hold.decide(&unknown(sample(10, 2, 500 * MB, 0))).has_converged);
        assert!(hold.decide(&sample(11, 2, 500 * MB, 0)).has_converged);
    }

    #[test]
    fn a_hypervisor_that_slips_is_slowed_down_towards_the_end_of_a_round() {
        let mut hold = HoldDriver::new(300, true);
        assert_eq!(hold.decide(&sample(0, 1, 0, 500 * MB)).rate, None);
        let near = hold.decide(&sample(48, 1, 480 * MB, 18 * MB)).rate;
        assert_eq!(near, Some(RateLimit::BytesPerS(60 * MB)), "in 0.3 s and no sooner");
        hold.note_told(RateLimit::BytesPerS(60 * MB));
        let last = hold.decide(&sample(50, 1, 497 * MB, MB)).rate;
        assert_eq!(last, Some(RateLimit::BytesPerS(SLIPPING_RATE)));
        hold.note_told(RateLimit::BytesPerS(SLIPPING_RATE));
        assert_eq!(hold.decide(&sample(51, 2, 498 * MB, 300 * MB)).rate, Some(RateLimit::None), "a long round");
    }
}
