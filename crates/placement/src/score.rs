//! How good an assignment is.

use std::ops::{Add, AddAssign, Neg, Sub};

use crate::problem::Strength;

/// First how much is broken, then what it costs: less is better, and no saving pays for a broken rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Hard rules: [`Score::BREACH`] for each breach, [`Score::UNPLACED`] for each guest that is nowhere, and of an overload
    /// how many millionths of the capacity it is.
    pub broken: i64,
    /// What load, balance, moves, preferences and soft rules cost.
    pub cost: i64,
}

impl Score {
    /// Of one breach of a rule.
    pub const BREACH: i64 = 1_000_000;
    /// Of a guest that is nowhere: worse than whatever placing it could break.
    pub const UNPLACED: i64 = 1_000_000_000;

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

/// How many millionths of a capacity it is what is used beyond it, at least 1 if any.
#[inline]
pub(crate) fn overload(over: i64, capacity: i64) -> i64 {
    if over <= 0 {
        return 0;
    }
    // Rounded the same wherever it is told, so that books and judge agree.
    ((over as f64 / capacity.max(1) as f64 * 1e6).ceil() as i64).min(1 << 40)
}
