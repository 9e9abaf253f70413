//! How a budget is spent: annealing is done again and again by several schedules, and those that do best get more of
//! the budget (successive halving; Karnin, Koren, Somekh: "Almost optimal exploration in multi-armed bandits", ICML
//! 2013). Small problems need no long cooling; it is better to begin anew often.

use crate::score::Score;

/// How the values of a cooling change from its begin to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CoolingSchedule {
    /// The temperature at the begin, as a part of the size of the largest guests, and the factor by which it falls.
    hot: f64,
    cold: f64,
    /// The price of being away at the begin, as a part of what a guest's share of its host costs, and the factor by
    /// which it falls.
    away: f64,
    away_cold: f64,
    /// How often a guest that is away is tried where it was at first. There the transient resources that it holds are
    /// free again, and its move is saved.
    pub(super) home: f64,
    /// The least price of an overload, as a multiple of what the same part of a mean host costs.
    pub(super) price: f64,
}

/// The schedules. Which is best depends on how much of a problem has to change.
const COOLING_SCHEDULES: [CoolingSchedule; 3] = [
    // For problems in which few guests move in the end.
    CoolingSchedule { hot: 0.06, cold: 1e-7, away: 1.0, away_cold: 1e-7, home: 0.3, price: 2.0 },
    // For problems in which many guests move, but what they hold on both hosts has to be saved.
    CoolingSchedule { hot: 0.12, cold: 3e-4, away: 0.1, away_cold: 1e-5, home: 0.3, price: 2.0 },
    // For problems in which guests may move as they have to, and little is overloaded on the way.
    CoolingSchedule { hot: 0.06, cold: 1e-4, away: 0.0, away_cold: 1.0, home: 0.1, price: 10.0 },
];
/// Parts of the budget: of one cooling by each schedule; then of one by each of the best two; then of the coolings by
/// the best, until the budget is spent.
const EACH_BUDGET_SHARE: f64 = 0.04;
const BETTER_BUDGET_SHARE: f64 = 0.12;
const BEST_BUDGET_SHARE: f64 = 1.0 - 3.0 * EACH_BUDGET_SHARE - 2.0 * BETTER_BUDGET_SHARE;

impl CoolingSchedule {
    /// Returns the temperature when the cooling is at `progress`, from 0 to 1.
    pub(super) fn temperature(&self, progress: f64) -> f64 {
        self.hot * self.cold.powf(progress)
    }

    /// Returns the price of being away when the cooling is at `progress`, from 0 to 1.
    pub(super) fn away(&self, progress: f64) -> f64 {
        self.away * self.away_cold.powf(progress)
    }
}

/// One cooling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cooling {
    /// Index in [`COOLING_SCHEDULES`].
    by: usize,
    /// The parts of the budget at which the cooling begins and ends.
    from: f64,
    pub(super) until: f64,
}

impl Cooling {
    /// Returns the schedule of the cooling.
    pub(super) fn schedule(&self) -> CoolingSchedule {
        COOLING_SCHEDULES[self.by]
    }

    /// Returns how far the cooling is, from 0 to 1, when `spent` of the budget is spent.
    pub(super) fn progress(&self, spent: f64) -> f64 {
        ((spent - self.from) / (self.until - self.from)).clamp(0.0, 1.0)
    }
}

/// Whether a problem is small: then all schedules get the same part of the budget, in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProblemSize {
    Small,
    #[default]
    Large,
}

/// Chooses the next cooling.
#[derive(Clone, Debug, Default)]
pub(super) struct Coolings {
    begun: usize,
    /// The best score that each schedule has found.
    found: [Option<Score>; COOLING_SCHEDULES.len()],
    /// The best two schedules, after all were tried.
    better: [usize; 2],
    size: ProblemSize,
}

impl Coolings {
    /// Makes the choice before the first cooling.
    pub(super) fn new(size: ProblemSize) -> Coolings {
        Coolings { size, ..Coolings::default() }
    }

    /// Returns the first or next cooling, which begins when `from` of the budget is spent.
    pub(super) fn next(&mut self, from: f64) -> Cooling {
        const TRIED: usize = COOLING_SCHEDULES.len();
        let [first, second, _] = self.ranked();
        if self.begun == TRIED {
            self.better = [first, second];
        }
        let (by, part) = match self.begun {
            n if self.size == ProblemSize::Small => (n % TRIED, EACH_BUDGET_SHARE),
            n if n < TRIED => (n, EACH_BUDGET_SHARE),
            n if n < TRIED + self.better.len() => (self.better[n - TRIED], BETTER_BUDGET_SHARE),
            _ => (first, BEST_BUDGET_SHARE),
        };
        self.begun += 1;
        Cooling { by, from, until: from + part }
    }

    /// Records the best score of a cooling.
    pub(super) fn ended(&mut self, cooling: &Cooling, found: Score) {
        let best = &mut self.found[cooling.by];
        *best = Some(best.map_or(found, |best| best.min(found)));
    }

    /// Returns the schedules, the best first.
    fn ranked(&self) -> [usize; COOLING_SCHEDULES.len()] {
        let mut ranked = std::array::from_fn(|by| by);
        ranked.sort_by_key(|by| self.found[*by].unwrap_or(Score::broken(i64::MAX)));
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that all schedules are tried, the best two are tried again, and the best gets what is left.
    #[test]
    fn the_best_gets_most() {
        let mut coolings = Coolings::new(ProblemSize::Large);
        let (mut spent, mut parts) = (0.0, Vec::new());
        while spent < 0.999 {
            let cooling = coolings.next(spent);
            assert!((cooling.progress(cooling.from), cooling.progress(2.0)) == (0.0, 1.0));
            // The last schedule is second of the short coolings, but best of the longer ones.
            let costs = if parts.len() < COOLING_SCHEDULES.len() { [30, 10, 20] } else { [30, 10, 5] };
            coolings.ended(&cooling, Score::cost(costs[cooling.by]));
            parts.push((cooling.by, ((cooling.until - spent) * 100.0).round()));
            spent = cooling.until;
        }
        assert_eq!(parts, [(0, 4.0), (1, 4.0), (2, 4.0), (1, 12.0), (2, 12.0), (2, 64.0)]);
    }

    #[test]
    fn small_ones_begin_anew_often() {
        let mut coolings = Coolings::new(ProblemSize::Small);
        let all: Vec<usize> = (0..25).map(|n| coolings.next(EACH_BUDGET_SHARE * f64::from(n)).by).collect();
        assert_eq!(all[..5], [0, 1, 2, 0, 1]);
        assert!((coolings.next(EACH_BUDGET_SHARE * 24.0).until - 1.0).abs() < 1e-9);
    }
}
