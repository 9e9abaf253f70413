//! How good an assignment is, as two numbers.

use std::ops::{Add, AddAssign, Neg, Sub};

use crate::problem::{GuestId, HostId, NOWHERE, Problem, Strength};

/// A score: first how much is broken, then what it costs. Less is better, and no saving in cost outweighs a broken
/// rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// How much is broken: [`Score::BREACH`] for each breach of a hard rule, [`Score::UNPLACED`] for each guest that is
    /// nowhere, [`Score::FORBIDDEN`] for each guest that moves to a host where it may never be, and for each overload
    /// the millionths of the capacity by which it is exceeded. So the search does not overload a host to keep a rule or
    /// to place a guest, except by a thousandth at most, and never disregards owners.
    pub broken: i64,
    /// The cost of load, balance, moves, preferences and soft rules.
    pub cost: i64,
}

impl Score {
    /// One breach of a hard rule, or a guest that stays on a host where it may not be.
    pub const BREACH: i64 = 1;
    /// A guest that is nowhere. This is worse than the rules that placing it could break.
    pub const UNPLACED: i64 = 1_000;
    /// A guest on a host that is neither among its owners nor where it was. This is worse than a guest that is nowhere.
    pub const FORBIDDEN: i64 = 1_000_000_000;

    /// Returns a score that only costs.
    pub const fn cost(cost: i64) -> Score {
        Score { broken: 0, cost }
    }

    /// Returns a score in which something is broken and nothing costs.
    pub const fn broken(broken: i64) -> Score {
        Score { broken, cost: 0 }
    }
}

impl Strength {
    /// Returns the score of this many breaches of a rule of this strength.
    #[inline]
    pub fn score(self, breaches: i64) -> Score {
        match self {
            Strength::Hard => Score::broken(breaches * Score::BREACH),
            Strength::Soft(weight) => Score::cost(breaches * weight),
        }
    }
}

impl Add for Score {
    type Output = Score;
    #[inline]
    fn add(self, other: Score) -> Score {
        Score { broken: self.broken + other.broken, cost: self.cost + other.cost }
    }
}

impl Sub for Score {
    type Output = Score;
    #[inline]
    fn sub(self, other: Score) -> Score {
        self + -other
    }
}

impl Neg for Score {
    type Output = Score;
    #[inline]
    fn neg(self) -> Score {
        Score { broken: -self.broken, cost: -self.cost }
    }
}

impl AddAssign for Score {
    #[inline]
    fn add_assign(&mut self, other: Score) {
        *self = *self + other;
    }
}

/// Returns how much is broken by a guest's being on a host, or nowhere, by itself: owners and placement, whatever other
/// guests do.
#[inline]
pub(crate) fn place_broken(problem: &Problem, guest: GuestId, host: HostId) -> i64 {
    match host {
        NOWHERE => Score::UNPLACED,
        _ if problem.may_own(guest, host) => 0,
        _ if problem.initial[guest as usize] == host => Score::BREACH,
        _ => Score::FORBIDDEN,
    }
}

/// The most millionths that the overload of one resource of a host counts.
pub(crate) const OVERLOAD_MAX: f64 = (1u64 << 40) as f64;

/// Returns by how many millionths of the capacity an overload of `over` exceeds it, rounded up: at least 1 if there is
/// any.
#[inline]
pub fn overload(over: i64, capacity: i64) -> i64 {
    if over <= 0 {
        return 0;
    }
    // The rounding is the same wherever overload is computed, so that the books and the judge agree.
    let millionths = millionths(over, capacity).min(OVERLOAD_MAX);
    // `ceil` would be a function call on processors that are not known to have the instruction.
    let below = millionths as i64;
    below + i64::from((below as f64) < millionths)
}

/// Returns the same value as [`overload`] before it is rounded and bounded.
#[inline]
pub(crate) fn millionths(over: i64, capacity: i64) -> f64 {
    over as f64 / capacity.max(1) as f64 * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_is_rounded_up_and_has_a_bound() {
        let capacities = [0, 1, 3, 1_000_000, i64::MAX];
        assert_eq!(capacities.map(|capacity| overload(0, capacity)), [0; 5]);
        assert_eq!(capacities.map(|capacity| overload(1, capacity)), [1_000_000, 1_000_000, 333_334, 1, 1]);
        assert_eq!(overload((1 << 53) - 1, 0), 1 << 40);
        assert_eq!(overload((1 << 53) - 1, 1 << 52), 2_000_000);
    }
}
