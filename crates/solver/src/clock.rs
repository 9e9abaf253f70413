//! Divides a budget into rounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use skein_placement::search::Search;

use crate::request::Budget;

/// How long threads run by themselves in a round. Between rounds they exchange what they found.
const ROUND_TIME: Duration = Duration::from_millis(250);
/// The most steps of a round.
const ROUND_STEPS_MAX: u64 = 500_000;
/// The least number of rounds of a budget.
const ROUNDS_MIN: u32 = 100;
/// The steps between looks at the clock and at the cancel flag: some milliseconds.
const STRIDE: u64 = 5_000;

/// What is left of a budget.
pub(crate) struct Clock {
    begin: Instant,
    stride: u64,
    budget: Budget,
    /// The steps of earlier rounds.
    done: u64,
}

/// The end of a round: a time, or a number of steps.
#[derive(Clone, Copy)]
pub(crate) enum Round {
    /// The round ends this long after the clock began.
    Until(Duration),
    /// The round has `count` steps. It begins `from` steps after the clock began.
    Steps { from: u64, count: u64 },
}

impl Clock {
    /// Begins now. If there are many guests, the clock is looked at less often.
    pub(crate) fn start(budget: Budget, guests: usize) -> Clock {
        Clock { begin: Instant::now(), stride: STRIDE.max(guests as u64), budget, done: 0 }
    }

    /// Returns the next round, unless the budget is spent.
    pub(crate) fn next_round(&mut self) -> Option<Round> {
        match self.budget {
            Budget::Time(total) => {
                let now = self.begin.elapsed();
                let round = ROUND_TIME.min(total / ROUNDS_MIN);
                (now < total).then(|| Round::Until((now + round).min(total)))
            }
            Budget::Steps(total) => {
                let (from, size) = (self.done, (total / u64::from(ROUNDS_MIN)).clamp(1, ROUND_STEPS_MAX));
                let count = size.min(total - from);
                self.done += count;
                (count > 0).then_some(Round::Steps { from, count })
            }
        }
    }

    /// Runs a search for a round, or until it is cancelled.
    pub(crate) fn run(&self, search: &mut Search<'_>, round: Round, cancel: &AtomicBool) {
        let is_cancelled = || cancel.load(Ordering::Relaxed);
        match (round, self.budget) {
            (Round::Until(end), Budget::Time(total)) => {
                while !is_cancelled() {
                    let now = self.begin.elapsed();
                    if now >= end {
                        return;
                    }
                    search.run(self.stride, now.as_secs_f64() / total.as_secs_f64());
                }
            }
            (Round::Steps { from, count }, Budget::Steps(total)) => {
                let mut left = count;
                while left > 0 && !is_cancelled() {
                    let steps = self.stride.min(left);
                    left -= steps;
                    search.run(steps, (from + count - left) as f64 / total as f64);
                }
            }
            _ => unreachable!("rounds are of the budget's kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(total: u64) -> Vec<(u64, u64)> {
        let mut clock = Clock::start(Budget::Steps(total), 1);
        std::iter::from_fn(|| match clock.next_round()? {
            Round::Steps { from, count } => Some((from, count)),
            Round::Until(_) => panic!("rounds of steps"),
        })
        .collect()
    }

    #[test]
    fn rounds_have_all_steps_once() {
        for total in [0, 1, 99, 100, 20_001, 123_456_789] {
            let rounds = steps(total);
            let mut next = 0;
            for (from, count) in &rounds {
                assert_eq!(*from, next, "{total}");
                assert!((1..=ROUND_STEPS_MAX).contains(count), "{total}: {count}");
                next += count;
            }
            assert_eq!(next, total);
            assert!(rounds.len() as u64 >= u64::from(ROUNDS_MIN).min(total), "{total}: {}", rounds.len());
        }
    }

    #[test]
    fn a_budget_without_time_has_no_round() {
        assert!(Clock::start(Budget::Time(Duration::ZERO), 1).next_round().is_none());
        let mut clock = Clock::start(Budget::Time(Duration::from_secs(3600)), 1);
        let Some(Round::Until(end)) = clock.next_round() else { panic!("there is time") };
        assert!(end >= ROUND_TIME && end < Duration::from_secs(3600), "{end:?}");
    }
}
