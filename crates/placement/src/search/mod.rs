//! Searches for the best assignment.

mod anneal;
mod cooling;
mod nearby;
mod repair;
mod units;

use anneal::Anneal;
use cooling::{Cooling, Coolings, ProblemSize};
use nearby::Nearby;
pub use repair::{Repair, repair};

use crate::dice::Dice;
use crate::problem::{HostId, Problem};
use crate::score::Score;
use crate::state::State;

/// The least number of tries after which the score is looked at, and the same as a part of the number of guests: a good
/// assignment has to be copied.
const STRIDE: u64 = 256;
const STRIDE_GUESTS: u64 = 10;

/// An assignment and its score.
#[derive(Clone, Debug)]
struct Found {
    score: Score,
    at: Vec<HostId>,
}

impl Found {
    fn take(&mut self, state: &State) -> bool {
        let is_better = state.score() < self.score;
        if is_better {
            self.score = state.score();
            self.at.copy_from_slice(state.assignment());
        }
        is_better
    }
}

/// A search under way, for the assignment that costs least.
pub struct Search<'a> {
    state: State<'a>,
    dice: Dice,
    anneal: Anneal,
    coolings: Coolings,
    cooling: Cooling,
    /// The best score of the current cooling.
    lately: Score,
    first: Vec<HostId>,
    best: Found,
    /// The search around the best assignment, or around what the last cooling came to.
    nearby: Option<Nearby<'a>>,
    spent: f64,
}

impl<'a> Search<'a> {
    /// Begins a search at an assignment.
    ///
    /// # Panics
    ///
    /// If the assignment is not one of the problem.
    pub fn new(problem: &'a Problem, from: &[HostId], seed: u64) -> Search<'a> {
        let state = State::new(problem, from);
        let nearby = Nearby::new(problem, from);
        let size = if nearby.is_some() { ProblemSize::Small } else { ProblemSize::Large };
        let (mut anneal, mut coolings) = (Anneal::new(problem), Coolings::new(size));
        let cooling = coolings.next(0.0);
        anneal.heat(cooling.schedule());
        Search {
            lately: Score::broken(i64::MAX),
            first: from.to_vec(),
            best: Found { score: state.score(), at: from.to_vec() },
            nearby,
            state,
            dice: Dice::new(seed),
            anneal,
            coolings,
            cooling,
            spent: 0.0,
        }
    }

    /// Continues the search for `tries` tries. `spent` is the part of the budget, 0 to 1, that is spent afterwards.
    pub fn run(&mut self, tries: u64, spent: f64) {
        if self.first.is_empty() || self.state.problem().hosts.is_empty() {
            return;
        }
        let stride = STRIDE.max(self.first.len() as u64 / STRIDE_GUESTS);
        let (mut left, by) = (tries, (spent - self.spent).max(0.0) / tries.max(1) as f64);
        while left > 0 {
            let many = stride.min(left);
            for _ in 0..many {
                self.anneal.step(&mut self.state, &mut self.dice);
            }
            left -= many;
            self.spent += by * many as f64;
            let is_better = self.best.take(&self.state);
            if let Some(nearby) = &mut self.nearby {
                if is_better {
                    nearby.restore(&self.best.at);
                }
                nearby.run(many, &mut self.dice);
                self.best.take(nearby.state());
            }
            self.lately = self.lately.min(self.state.score());
            if self.spent < self.cooling.until {
                self.anneal.cool(self.cooling.progress(self.spent), &self.state);
            } else {
                self.heat();
            }
        }
    }

    /// Begins the next cooling.
    fn heat(&mut self) {
        self.coolings.ended(&self.cooling, self.lately);
        self.cooling = self.coolings.next(self.spent);
        if let Some(nearby) = &mut self.nearby {
            nearby.restore(self.state.assignment());
        }
        self.state = State::new(self.state.problem(), &self.first);
        self.lately = Score::broken(i64::MAX);
        self.anneal.heat(self.cooling.schedule());
    }

    /// Returns the best score that was found.
    pub fn score(&self) -> Score {
        self.best.score
    }

    /// Returns the best assignment that was found: the host of each guest.
    pub fn assignment(&self) -> &[HostId] {
        &self.best.at
    }

    /// Offers the best assignment of another search, which becomes this search's best if it is better.
    pub fn offer(&mut self, score: Score, at: &[HostId]) {
        if score < self.best.score && at.len() == self.best.at.len() {
            self.best = Found { score, at: at.to_vec() };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases;
    use crate::verdict::judge;

    fn searched<'a>(problem: &'a Problem, seed: u64) -> Search<'a> {
        let mut search = Search::new(problem, &problem.initial, seed);
        for n in 1..=10 {
            search.run(500, f64::from(n) / 10.0);
        }
        search
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Checks that what is found is no worse than the begin, has the judge's score, and is the same when searched
        /// again.
        #[test]
        fn what_is_found_holds(seed: u64) {
            let problem = cases::problem(&mut Dice::new(seed), 8, 20);
            let search = searched(&problem, seed);
            prop_assert!(search.score() <= judge(&problem, &problem.initial).score());
            prop_assert_eq!(search.score(), judge(&problem, search.assignment()).score());
            let again = searched(&problem, seed);
            prop_assert_eq!(search.assignment(), again.assignment());
        }
    }

    #[test]
    fn an_offer_is_taken_if_it_is_better() {
        let can_be_better = |problem: &Problem| searched(problem, 1).score() < judge(problem, &problem.initial).score();
        let mut problems = (0..100).map(|seed| cases::problem(&mut Dice::new(seed), 8, 20));
        let problem = problems.find(can_be_better).expect("one of a hundred");
        let good = searched(&problem, 1);
        let mut search = Search::new(&problem, &problem.initial, 2);
        search.offer(good.score(), good.assignment());
        assert_eq!((search.score(), search.assignment()), (good.score(), good.assignment()));
        search.offer(Score::broken(i64::MAX), &problem.initial);
        assert_eq!(search.score(), good.score());
    }
}
