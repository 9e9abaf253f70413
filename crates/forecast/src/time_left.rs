//! How long the rest of a migration takes, with how sure that is, as its copy goes on.
//!
//! The best guess is what is left over what is moved a second. How sure it is shows in the guesses of before: where
//! each of them would have the migration end. If links or what the guest writes change, these ends move apart, and the
//! range grows. Zeros take next to no time, and what compresses takes less: where it is known how much of what is left
//! goes on the wire, that is what counts.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Convergence;

/// The rate is that of the last so long, or of half of this round's time …
const RATE_TIME: Duration = Duration::from_secs(4);
/// … and nothing is guessed before a copy has lasted so long.
const FIRST_GUESS: Duration = Duration::from_secs(1);
/// A guess is at least so uncertain, as a share of what is left: rounds come to their end in steps.
const LEAST_SHARE: f64 = 0.07;
/// What the guest writes is not known in the first round. The rounds after it take so much of the first one's time, as
/// was seen of guests that converge …
const LATER_ROUNDS_SHARE: f64 = 0.03;
/// … and up to so much.
const LATER_ROUNDS_MOST: f64 = 0.12;
/// The switchover takes about so long, whatever is left.
const SWITCHOVER: Duration = Duration::from_millis(150);
/// The bytes that a hypervisor reads in a second to find out that they are zero, at least.
const READ_BYTES_PER_S: f64 = 4e9;
/// Less on the wire than this share of what was moved says nothing of how fast the rest is sent.
const LEAST_WIRE_SHARE: f64 = 0.01;
/// Bounds the guesses of before that are remembered.
const GUESSES_MAX: usize = 64;

/// How far a copy is at one moment.
#[derive(Clone, Copy, Debug)]
pub struct CopyStanding {
    /// The guest's RAM, in bytes.
    pub total_bytes: u64,
    /// The bytes that are left to move.
    pub remaining_bytes: u64,
    /// What goes on the wire, in the first round, if that is known.
    pub wire: Option<WireStanding>,
    /// The number of the pass over the RAM, from 1.
    pub round: u64,
    /// Whether the copy converges, if that is known.
    pub converges: Option<Convergence>,
}

/// How far a copy is on the wire.
#[derive(Clone, Copy, Debug)]
pub struct WireStanding {
    /// About what is left to go, in bytes.
    pub remaining_bytes: u64,
    /// The bytes that went.
    pub sent_bytes: u64,
}

/// How long the rest of a migration takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLeft {
    /// The best guess.
    pub left: Duration,
    /// The least and the most, in nine cases of ten.
    pub range: (Duration, Duration),
    /// The share of the whole time that is over, in thousandths.
    pub done_permille: u16,
}

/// Follows one copy.
#[derive(Clone, Debug, Default)]
pub struct TimeLeftWatch {
    begin: Option<Duration>,
    round: u64,
    round_begin: Duration,
    /// The times of late in this round, and how far the copy was then.
    standings: VecDeque<(Duration, CopyStanding)>,
    /// When guesses were made, and when the migration was to end by each.
    guesses: VecDeque<(Duration, Duration)>,
    /// The most that was said to be done: a percentage does not go back for a little.
    done_permille: u16,
}

impl TimeLeftWatch {
    /// Takes in how far the copy is at `now`, a time that never goes back. Returns `None` as long as nothing can be
    /// told, or as the copy does not converge.
    pub fn look(&mut self, now: Duration, copy: &CopyStanding) -> Option<TimeLeft> {
        let begin = *self.begin.get_or_insert(now);
        if copy.round != self.round {
            self.round = copy.round;
            self.round_begin = now;
            self.standings.clear();
        }
        // Guesses that did not know of the wire say nothing of those that do.
        if copy.wire.is_some() && self.standings.back().is_some_and(|(_, before)| before.wire.is_none()) {
            self.standings.clear();
            self.guesses.clear();
        }
        self.standings.push_back((now, *copy));
        let rate_time = RATE_TIME.max(now.saturating_sub(self.round_begin) / 2);
        while self.standings.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= rate_time) {
            self.standings.pop_front();
        }
        let guess = self.guess(copy, now.saturating_sub(begin)).filter(|_| now.saturating_sub(begin) >= FIRST_GUESS)?;
        let (left, more) = (guess.left_s, guess.more_s);
        let end = now + Duration::from_secs_f64(left);
        self.remember(now, end);
        // The guesses of the second half of the copy's time so far.
        let middle = begin + now.saturating_sub(begin) / 2;
        let ends = self.guesses.iter().filter(|(at, _)| *at >= middle).map(|(_, end)| *end);
        let (first, last) = ends.fold((end, end), |(first, last), end| (first.min(end), last.max(end)));
        let least = Duration::from_secs_f64(left * (1.0 - LEAST_SHARE)).min(first.saturating_sub(now));
        let most = Duration::from_secs_f64(left * (1.0 + LEAST_SHARE) + more).max(last.saturating_sub(now));
        let (over_s, left) = (now.saturating_sub(begin).as_secs_f64(), Duration::from_secs_f64(left));
        let done = (over_s / (over_s + left.as_secs_f64()) * 1000.0) as u16;
        // A copy whose guest writes more, or whose links carry less, is less far than was thought.
        self.done_permille = if done + 20 < self.done_permille { done } else { done.max(self.done_permille) }.min(999);
        Some(TimeLeft { left, range: (least, most), done_permille: self.done_permille })
    }

    /// `over`: how long the copy has lasted.
    fn guess(&self, copy: &CopyStanding, over: Duration) -> Option<Guess> {
        let of_this_round = self.round_left_s();
        match copy.converges {
            Some(Convergence::Never(_)) => None,
            Some(Convergence::In { seconds }) => Some(Guess::of(seconds, 0.0)),
            converges => {
                let said = match converges {
                    Some(Convergence::FirstRound { seconds }) => Some(seconds),
                    _ => None,
                };
                let left_s = of_this_round.or(said)?;
                let first_round_s = over.as_secs_f64() + left_s;
                Some(Guess::of(left_s + first_round_s * LATER_ROUNDS_SHARE, first_round_s * LATER_ROUNDS_MOST))
            }
        }
    }

    /// Returns the seconds until this round is over, at the rate of late.
    fn round_left_s(&self) -> Option<f64> {
        let ((from, before), (at, now)) = (self.standings.front()?, self.standings.back()?);
        let seconds = at.saturating_sub(*from).as_secs_f64();
        let moved = before.remaining_bytes.saturating_sub(now.remaining_bytes) as f64;
        if seconds <= 0.5 || moved <= 0.0 {
            return None;
        }
        let all = now.remaining_bytes as f64 * seconds / moved;
        let Some((before, wire)) = before.wire.zip(now.wire) else { return Some(all) };
        let sent = wire.sent_bytes.saturating_sub(before.sent_bytes) as f64;
        // The rate is not known where next to nothing but zeros was moved of late.
        if sent < moved * LEAST_WIRE_SHARE {
            return Some(all);
        }
        let read_s = |bytes: f64| bytes / READ_BYTES_PER_S;
        let sending_s = (seconds - read_s(moved)).max(seconds * 0.1);
        Some(wire.remaining_bytes as f64 * sending_s / sent + read_s(now.remaining_bytes as f64))
    }

    fn remember(&mut self, at: Duration, end: Duration) {
        self.guesses.push_back((at, end));
        if self.guesses.len() > GUESSES_MAX {
            // Every second of them is enough for long copies.
            let mut number = 0_u32;
            self.guesses.retain(|_| {
                number += 1;
                number.is_multiple_of(2)
            });
        }
    }
}

/// A guess, in seconds.
struct Guess {
    left_s: f64,
    /// What may come on top.
    more_s: f64,
}

impl Guess {
    /// `seconds` and what comes on top are those of the copy; the switchover follows.
    fn of(seconds: f64, more_s: f64) -> Guess {
        let bounded = |seconds: f64| if seconds.is_finite() { seconds.clamp(0.0, 1e7) } else { 1e7 };
        Guess { left_s: bounded(seconds) + SWITCHOVER.as_secs_f64(), more_s: bounded(more_s) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CopyRates;

    const GB: u64 = 1_000_000_000;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn first_round(remaining_bytes: u64) -> CopyStanding {
        CopyStanding { total_bytes: 40 * GB, remaining_bytes, wire: None, round: 1, converges: None }
    }

    /// Copies with these bytes a second at each second, and returns what was told at a quarter of the time.
    fn at_a_quarter(rate: impl Fn(f64) -> f64) -> (TimeLeft, f64) {
        let (mut watch, mut left, mut at) = (TimeLeftWatch::default(), 40e9, 0.0);
        let mut told = Vec::new();
        while left > 0.0 {
            told.push((at, watch.look(seconds(at), &first_round(left as u64))));
            left -= rate(at) * 0.2;
            at += 0.2;
        }
        let quarter = told.iter().find(|(time, _)| *time >= at / 4.0).unwrap();
        (quarter.1.unwrap(), at - quarter.0)
    }

    #[test]
    fn a_steady_copy_is_told_to_the_second() {
        let (told, truly_left) = at_a_quarter(|_| 1e9);
        assert!((told.left.as_secs_f64() - truly_left).abs() < 2.0, "{told:?}, truly {truly_left}");
        assert!(told.range.0.as_secs_f64() <= truly_left && truly_left <= told.range.1.as_secs_f64());
        let width = (told.range.1 - told.range.0).as_secs_f64();
        assert!(width <= told.left.as_secs_f64() / 3.0, "{told:?}");
        assert!((230..=260).contains(&told.done_permille), "{told:?}");
    }

    #[test]
    fn a_copy_that_changes_has_a_wider_range() {
        let (steady, _) = at_a_quarter(|_| 1e9);
        let (unsteady, left) = at_a_quarter(|at| if (at as u64 / 3).is_multiple_of(2) { 1.5e9 } else { 0.7e9 });
        let width = |told: &TimeLeft| (told.range.1 - told.range.0).as_secs_f64() / told.left.as_secs_f64();
        assert!(width(&unsteady) > 1.5 * width(&steady), "{unsteady:?}, {steady:?}");
        assert!(
            unsteady.range.0.as_secs_f64() <= left && left <= unsteady.range.1.as_secs_f64(),
            "{unsteady:?} {left}"
        );
    }

    #[test]
    fn what_takes_nothing_on_the_wire_takes_next_to_no_time() {
        // 40 GB, of which the first 10 take half of that on the wire, and the rest is nothing but zeros.
        let standing = |done_gb: u64| CopyStanding {
            wire: Some(WireStanding {
                remaining_bytes: 10_u64.saturating_sub(done_gb) * GB / 2,
                sent_bytes: done_gb.min(10) * GB / 2,
            }),
            ..first_round((40 - done_gb) * GB)
        };
        let mut watch = TimeLeftWatch::default();
        let told: Vec<_> = (0..=8).map(|gb| watch.look(seconds(gb as f64), &standing(gb))).collect();
        for (gb, told) in told.iter().enumerate().skip(2) {
            // Reading 40 GB takes 10 s, of which a fourth of what was sent was spent already.
            let (least, most) = (7.5 + 0.7 * (10.0 - gb as f64), 9.5 + (10.0 - gb as f64));
            let left = told.unwrap().left.as_secs_f64();
            assert!((least..most).contains(&left), "{gb} GB: {left}");
        }
        // Nothing but zeros is left, and moved.
        let zeros = Some(WireStanding { remaining_bytes: 0, sent_bytes: 5 * GB });
        for n in 0..50 {
            let gb = 10.0 + f64::from(n) * 0.4;
            let left = CopyStanding { wire: zeros, ..first_round(((40.0 - gb) * 1e9) as u64) };
            watch.look(seconds(10.0 + f64::from(n) * 0.1), &left);
        }
        let left = CopyStanding { wire: zeros, ..first_round(10 * GB) };
        let told = watch.look(seconds(15.0), &left).unwrap();
        assert!((2.0..4.0).contains(&told.left.as_secs_f64()), "{told:?}");
    }

    #[test]
    fn what_was_guessed_before_the_wire_was_known_does_not_count() {
        let mut watch = TimeLeftWatch::default();
        // Of 40 GB next to nothing goes on the wire.
        let copy = |n: u64, wire: bool| CopyStanding {
            wire: wire.then_some(WireStanding { remaining_bytes: (40 - n) * GB / 10, sent_bytes: n * GB / 10 }),
            ..first_round(40 * GB - n * GB / 10)
        };
        for n in 0..4 {
            watch.look(seconds(n as f64), &copy(n, false));
        }
        let told: Vec<_> = (4..12).filter_map(|n| watch.look(seconds(n as f64), &copy(n, true))).collect();
        assert!(told.len() > 5 && told.iter().all(|told| told.range.1 < seconds(100.0)), "{told:?}");
    }

    #[test]
    fn nothing_is_told_too_early_or_of_what_does_not_end() {
        let mut watch = TimeLeftWatch::default();
        assert_eq!(watch.look(seconds(5.0), &first_round(40 * GB)), None);
        assert_eq!(watch.look(seconds(5.5), &first_round(39 * GB)), None);
        assert!(watch.look(seconds(6.1), &first_round(38 * GB)).is_some());
        let rates = CopyRates { dirties_bytes_per_s: 2, moves_bytes_per_s: 1 };
        let never = CopyStanding { converges: Some(Convergence::Never(rates)), ..first_round(GB) };
        assert_eq!(watch.look(seconds(7.0), &never), None);
        // A copy that stands still has no end yet.
        let mut still = TimeLeftWatch::default();
        assert_eq!((0..50).filter_map(|n| still.look(seconds(f64::from(n)), &first_round(GB))).count(), 0);
    }

    #[test]
    fn later_rounds_are_as_the_convergence_says() {
        let mut watch = TimeLeftWatch::default();
        watch.look(seconds(0.0), &first_round(40 * GB));
        let later =
            |seconds| CopyStanding { round: 3, converges: Some(Convergence::In { seconds }), ..first_round(GB) };
        let told = watch.look(seconds(30.0), &later(10.0)).unwrap();
        assert_eq!((told.left, told.done_permille), (seconds(10.15), 747));
        // A guess that is off by a little takes nothing back.
        assert_eq!(watch.look(seconds(30.2), &later(10.3)).unwrap().done_permille, 747);
        assert!(watch.look(seconds(30.4), &later(30.0)).unwrap().done_permille < 520);
        let endless = watch.look(seconds(30.6), &later(f64::INFINITY)).unwrap();
        assert!(endless.left > seconds(1e6));
    }
}
