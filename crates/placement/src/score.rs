//! How good an assignment is.

use std::ops::{Add, AddAssign, Neg, Sub};

use crate::problem::{GuestId, HostId, NOWHERE, Problem, Strength};

/// First how much is broken, then what it costs: less is better, and no saving pays for a broken rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// [`Score::BREACH`] for each breach of a hard rule, [`Score::UNPLACED`] for each guest that is nowhere,
    /// [`Score::FORBIDDEN`] for each that goes where it may never be, and of an overload how many millionths of the
    /// capacity it is: neither is anything overloaded for a rule to hold or for a guest to run, but for a thousandth at
    /// most, nor are owners disregarded.
    pub broken: i64,
    /// What load, balance, moves, preferences and soft rules cost.
    pub cost: i64,
}

impl Score {
    /// Of one breach of a rule; of a guest, too, that stays where it may not be.
    pub const BREACH: i64 = 1;
    /// Of a guest that is nowhere: worse than the rules that placing it could break.
    pub const UNPLACED: i64 = 1_000;
    /// Of a guest on a host that is not among its owners, nor where it was: worse than to be nowhere.
    pub const FORBIDDEN: i64 = 1_000_000_000;

    /// Of what only costs.
    pub const fn cost(cost: i64) -> Score {
        Score { broken: 0, cost }
    }

    /// Of what is only broken.
    pub const fn broken(broken: i64) -> Score {
        Score { broken, cost: 0 }
    }
}

impl Strength {
    /// What so many breaches of such a rule cost.
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

/// What it breaks that a guest is on a host, or nowhere, whoever else is where.
#[inline]
pub(crate) fn place_broken(problem: &Problem, guest: GuestId, host: HostId) -> i64 {
    match host {
        NOWHERE => Score::UNPLACED,
        _ if problem.may_own(guest, host) => 0,
        _ if problem.initial[guest as usize] == host => Score::BREACH,
        _ => Score::FORBIDDEN,
    }
}

/// More millionths than these one resource of a host does not count.
pub(crate) const OVERLOAD_MAX: f64 = (1u64 << 40) as f64;

/// How many millionths of a capacity it is what is used beyond it, at least 1 if any.
#[inline]
pub(crate) fn overload(over: i64, capacity: i64) -> i64 {
    if over <= 0 {
        return 0;
    }
    // Rounded the same wherever it is told, so that books and judge agree.
    let millionths = millionths(over, capacity).min(OVERLOAD_MAX);
    // `ceil` is a call where the processor is not known to have it.
    let below = millionths as i64;
    below + i64::from((below as f64) < millionths)
}

/// The same before it is rounded.
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
