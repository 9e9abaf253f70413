//! Searches several times, if hosts may fail and their guests must find room.
//!
//! The search itself knows nothing of failures. If its result does not survive them, it searches again with a part of
//! each host kept free, and then guests are moved one by one. Each result is judged by the true problem, and the best
//! is taken.

use std::io;

use skein_placement::problem::{HostId, Problem};
use skein_placement::score::Score;
use skein_placement::survive::{mend, reserving, survive};
use skein_placement::verdict::judge;

use crate::driver::Driver;
use crate::request::{Survival, Task};

/// How much is kept free in each further search, as a part of what the guests of the failed hosts need on average.
const SPARE_FACTORS: [f64; 3] = [1.0, 0.6, 1.4];
/// The part of the time for the first search, and for each further one.
const FIRST_SEARCH_SHARE: f64 = 0.4;
const FURTHER_SEARCH_SHARE: f64 = 0.2;

/// How good an assignment is, with failures of hosts counted. Less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// What the assignment breaks and costs, with the price of failures that it does not survive.
    score: Score,
    /// How many sets of hosts there are whose failure it does not survive.
    pub(crate) failures: usize,
}

impl Rank {
    /// Judges an assignment of a task.
    pub(crate) fn of(task: &Task<'_>, assignment: &[HostId]) -> Rank {
        let score = judge(task.problem, assignment).score();
        let Some(Survival { rule, hosts }) = &task.survival else { return Rank { score, failures: 0 } };
        let failures = survive(task.problem, assignment, hosts, rule.failures).failures.len();
        Rank { score: score + rule.strength.score(failures as i64), failures }
    }
}

/// Solves a task: by one search, or by several if failures are not survived.
///
/// # Errors
///
/// The error of the operating system if it gives no thread.
pub(crate) fn solve(task: &Task<'_>, driver: &mut Driver<'_>) -> io::Result<Vec<HostId>> {
    match &task.survival {
        None => driver.solve(task.problem, driver.budget()),
        Some(survival) => solve_surviving(task, survival, driver),
    }
}

fn solve_surviving(task: &Task<'_>, survival: &Survival, driver: &mut Driver<'_>) -> io::Result<Vec<HostId>> {
    let problem = task.problem;
    let Survival { rule, hosts } = survival;
    let mended = |assignment: &[HostId]| Ranked::new(task, mend(problem, assignment, hosts, *rule));
    let mut best = Ranked::new(task, driver.solve(problem, driver.budget().part(FIRST_SEARCH_SHARE))?);
    for factor in SPARE_FACTORS {
        if best.rank.failures == 0 || driver.is_cancelled() {
            break;
        }
        let sparing: Problem = reserving(problem, hosts, rule.failures, factor);
        let found = driver.solve(&sparing, driver.budget().part(FURTHER_SEARCH_SHARE))?;
        best = best.or(mended(&found));
    }
    if best.rank.failures > 0 && !driver.is_cancelled() {
        let mended = mended(&best.assignment);
        best = best.or(mended);
    }
    Ok(best.assignment)
}

/// An assignment with its rank.
struct Ranked {
    rank: Rank,
    assignment: Vec<HostId>,
}

impl Ranked {
    fn new(task: &Task<'_>, assignment: Vec<HostId>) -> Ranked {
        Ranked { rank: Rank::of(task, &assignment), assignment }
    }

    /// Returns the better of the two.
    fn or(self, other: Ranked) -> Ranked {
        if other.rank < self.rank { other } else { self }
    }
}
