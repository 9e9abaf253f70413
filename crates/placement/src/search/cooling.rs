//! How a budget is spent: annealing again and again by several schedules, of which those that do best get more of it
//! (successive halving; Karnin, Koren, Somekh: "Almost optimal exploration in multi-armed bandits", ICML 2013). Small
//! problems need no long cooling, and are better begun anew often.

use crate::score::Score;

/// How a cooling goes, from its begin to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CoolingSchedule {
    /// The temperature at first, as a part of the size of the largest guests, and by how much it falls.
    hot: f64,
    cold: f64,
    /// The price of being away at first, as a part of what a guest's share of its host costs, and by how much it falls.
    away: f64,
    away_cold: f64,
    /// How often a guest that is elsewhere is tried where it was at first: what it holds there of a transient resource
    /// is free again then, and its move is saved.
    pub(super) home: f64,
    /// The least price of an overload, as a multiple of what as much of a mean host costs.
    pub(super) price: f64,
}

/// Which is best depends on how much of a problem has to change.
const COOLING_SCHEDULES: [CoolingSchedule; 3] = [
    // Few guests move in the end.
    CoolingSchedule { hot: 0.06, cold: 1e-7, away: 1.0, away_cold: 1e-7, home: 0.3, price: 2.0 },
    // Many do, but what they hold on both hosts has to be saved.
    CoolingSchedule { hot: 0.12, cold: 3e-4, away: 0.1, away_cold: 1e-5, home: 0.3, price: 2.0 },
    // Whoever has to, and little is overloaded on the way.
    CoolingSchedule { hot: 0.06, cold: 1e-4, away: 0.0, away_cold: 1.0, home: 0.1, price: 10.0 },
];
/// Parts of the budget: of a cooling by each; of one by each of the best two; and of those by the best, until it is
/// spent.
const EACH_BUDGET_SHARE: f64 = 0.04;
const BETTER_BUDGET_SHARE: f64 = 0.12;
const BEST_BUDGET_SHARE: f64 = 1.0 - 3.0 * EACH_BUDGET_SHARE - 2.0 * BETTER_BUDGET_SHARE;

impl CoolingSchedule {
    /// By how far the cooling is, 0 to 1.
    pub(super) fn temperature(&self, progress: f64) -> f64 {
        self.hot * self.cold.powf(progress)
    }

    /// The same.
    pub(super) fn away(&self, progress: f64) -> f64 {
        self.away * self.away_cold.powf(progress)
    }
}

/// One cooling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cooling {
    /// Index in [`COOLING_SCHEDULES`].
    by: usize,
    /// Parts of the budget at its begin and end.
    from: f64,
    pub(super) until: f64,
}

impl Cooling {
    /// How it goes.
    pub(super) fn schedule(&self) -> CoolingSchedule {
        COOLING_SCHEDULES[self.by]
    }

    /// How far it is, 0 to 1, when so much of the budget is spent.
    pub(super) fn progress(&self, spent: f64) -> f64 {
        ((spent - self.from) / (self.until - self.from)).clamp(0.0, 1.0)
    }
}

/// Which cooling comes next.
#[derive(Clone, Debug, Default)]
pub(super) struct Coolings {
    begun: usize,
    /// The best that came of each schedule.
    found: [Option<Score>; COOLING_SCHEDULES.len()],
    /// The better half of them, after all were tried.
    better: [usize; 2],
    /// All get the same, in turn.
    is_small: bool,
}

impl Coolings {
    /// None yet, for a small problem or not.
    pub(super) fn new(is_small: bool) -> Coolings {
        Coolings { is_small, ..Coolings::default() }
    }

    /// The first or next one, from so much of the budget on.
    pub(super) fn next(&mut self, from: f64) -> Cooling {
        const TRIED: usize = COOLING_SCHEDULES.len();
        let [first, second, _] = self.ranked();
        if self.begun == TRIED {
            self.better = [first, second];
        }
        let (by, part) = match self.begun {
            n if self.is_small => (n % TRIED, EACH_BUDGET_SHARE),
            n if n < TRIED => (n, EACH_BUDGET_SHARE),
            n if n < TRIED + self.better.len() => (self.better[n - TRIED], BETTER_BUDGET_SHARE),
            _ => (first, BEST_BUDGET_SHARE),
        };
        self.begun += 1;
        Cooling { by, from, until: from + part }
    }

    /// What came of one.
    pub(super) fn ended(&mut self, cooling: &Cooling, found: Score) {
        let best = &mut self.found[cooling.by];
        *best = Some(best.map_or(found, |best| best.min(found)));
    }

    /// The schedules, the best first.
    fn ranked(&self) -> [usize; COOLING_SCHEDULES.len()] {
        let mut ranked = std::array::from_fn(|by| by);
        ranked.sort_by_key(|by| self.found[*by].unwrap_or(Score::broken(i64::MAX)));
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All are tried, the best two again, and the best has what is left.
    #[test]
    fn the_best_gets_most() {
        let mut coolings = Coolings::new(false);
        let (mut spent, mut parts) = (0.0, Vec::new());
        while spent < 0.999 {
            let cooling = coolings.next(spent);
            assert!((cooling.progress(cooling.from), cooling.progress(2.0)) == (0.0, 1.0));
            // The second is the best of the short ones, but the last of the longer.
            let costs = if parts.len() < COOLING_SCHEDULES.len() { [30, 10, 20] } else { [30, 10, 5] };
            coolings.ended(&cooling, Score::cost(costs[cooling.by]));
            parts.push((cooling.by, ((cooling.until - spent) * 100.0).round()));
            spent = cooling.until;
        }
        assert_eq!(parts, [(0, 4.0), (1, 4.0), (2, 4.0), (1, 12.0), (2, 12.0), (2, 64.0)]);
    }

    #[test]
    fn small_ones_begin_anew_often() {
        let mut coolings = Coolings::new(true);
        let all: Vec<usize> = (0..25).map(|n| coolings.next(EACH_BUDGET_SHARE * f64::from(n)).by).collect();
        assert_eq!(all[..5], [0, 1, 2, 0, 1]);
        assert!((coolings.next(EACH_BUDGET_SHARE * 24.0).until - 1.0).abs() < 1e-9);
    }
}
