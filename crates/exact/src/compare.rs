//! Compares a heuristic with the proven best.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use skein_placement::problem::{HostId, NOWHERE, Problem};
use skein_placement::search::{Search, repair};
use skein_placement::verdict::judge;

use crate::{ExactError, Proof, cases, prove};

/// How good an assignment is, from the best to those that must not occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// The assignment costs the least possible.
    Optimal,
    /// The assignment is not valid, and no assignment is.
    Infeasible,
    /// The assignment costs at most 2 % more than the least possible.
    Near,
    /// The assignment costs more than that.
    Worse,
    /// The assignment may cost more, or be invalid though a valid one exists: time was up.
    Unproven,
    /// The assignment breaks hard rules although it need not.
    Invalid,
    /// The assignment is better than what is proven to be the best: the proof is wrong.
    Refuted,
}

/// Grades a heuristic's assignment for a problem. HiGHS gets this much time.
///
/// # Errors
///
/// Those of [`prove`].
pub fn compare(
    problem: &Problem,
    time: Duration,
    heuristic: impl Fn(&Problem) -> Vec<HostId>,
) -> Result<Grade, ExactError> {
    let best = prove(problem, &problem.initial, time)?;
    Ok(grade(&best, cost(problem, &heuristic(problem))))
}

/// Returns what an assignment costs, if it is valid.
fn cost(problem: &Problem, assignment: &[HostId]) -> Option<i64> {
    let is_host = |host: &HostId| *host == NOWHERE || (*host as usize) < problem.hosts.len();
    if assignment.len() != problem.guests.len() || !assignment.iter().all(is_host) {
        return None;
    }
    let verdict = judge(problem, assignment);
    verdict.is_valid().then(|| verdict.cost.total())
}

/// Grades a cost by the proven best. `cost` is `None` if the assignment is not valid.
fn grade(best: &Proof, cost: Option<i64>) -> Grade {
    match (best.bound, cost) {
        (None, None) => Grade::Infeasible,
        (None, Some(_)) => Grade::Refuted,
        (Some(_), None) if best.score.broken == 0 => Grade::Invalid,
        (Some(_), None) => Grade::Unproven,
        (Some(bound), Some(cost)) if cost < bound => Grade::Refuted,
        (Some(bound), Some(cost)) if cost == bound => Grade::Optimal,
        (Some(bound), Some(cost)) if (cost - bound).saturating_mul(50) <= bound => Grade::Near,
        _ if best.is_optimal() => Grade::Worse,
        _ => Grade::Unproven,
    }
}

/// The steps of the repair.
const STEPS: u64 = 20_000;
/// The slices of the search, and the tries in each: between them the clock would be looked at.
const SLICES: u32 = 20;
const TRIES: u64 = 20_000;

/// Returns what is found from an assignment: it is repaired, and then searched for a lower cost.
pub fn searched(problem: &Problem, from: &[HostId], seed: u64) -> Vec<HostId> {
    let mut search = Search::new(problem, &repair(problem, from, seed, STEPS), seed);
    (1..=SLICES).for_each(|slice| search.run(TRIES, f64::from(slice) / f64::from(SLICES)));
    search.assignment().to_vec()
}

/// The seeds of cases, by the heuristic's grade.
pub type Tally = BTreeMap<Grade, Vec<u64>>;

/// Grades a heuristic in the [case](cases::case) of each seed.
///
/// # Errors
///
/// Those of [`prove`].
pub fn tally(
    seeds: Range<u64>,
    time: Duration,
    heuristic: impl Fn(&Problem) -> Vec<HostId>,
) -> Result<Tally, ExactError> {
    let mut tally = Tally::new();
    for seed in seeds {
        let problem = cases::case(seed);
        tally.entry(compare(&problem, time, &heuristic)?).or_default().push(seed);
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use skein_placement::score::Score;

    use super::*;

    /// The time for one case. No case takes seconds, unless the machine has much else to do.
    const TIME: Duration = Duration::from_secs(600);

    fn count(tally: &Tally, grade: Grade) -> usize {
        tally.get(&grade).map_or(0, Vec::len)
    }

    #[test]
    fn the_best_itself_is_optimal_wherever_anything_is_valid() {
        let best = |problem: &Problem| prove(problem, &problem.initial, TIME).unwrap().assignment;
        let tally = tally(0..100, TIME, best).unwrap();
        assert_eq!(count(&tally, Grade::Optimal) + count(&tally, Grade::Infeasible), 100, "{tally:?}");
        assert!(count(&tally, Grade::Optimal) > 80, "most are feasible: {tally:?}");
    }

    #[test]
    fn to_do_nothing_is_rarely_optimal_and_never_refutes() {
        let tally = tally(0..100, TIME, |problem| problem.initial.clone()).unwrap();
        assert!(count(&tally, Grade::Invalid) > 30, "{tally:?}");
        assert!(count(&tally, Grade::Optimal) < 20, "{tally:?}");
        assert_eq!(count(&tally, Grade::Refuted) + count(&tally, Grade::Unproven), 0, "{tally:?}");
    }

    #[test]
    fn what_is_searched_for_is_valid_and_nearly_always_the_best() {
        let tally = tally(0..50, TIME, |problem| searched(problem, &problem.initial, 1)).unwrap();
        let wrong = [Grade::Invalid, Grade::Refuted, Grade::Unproven];
        assert_eq!(wrong.map(|grade| count(&tally, grade)), [0; 3], "{tally:?}");
        assert!(count(&tally, Grade::Optimal) + count(&tally, Grade::Infeasible) >= 45, "{tally:?}");
    }

    #[test]
    fn grades_are_by_cost_and_by_what_is_proven() {
        let best = |score, bound| Proof { assignment: Vec::new(), score, bound };
        let found = |cost, bound| best(Score::cost(cost), Some(bound));
        let broken = |bound| best(Score::broken(1), bound);
        assert_eq!(grade(&found(100, 100), Some(100)), Grade::Optimal);
        assert_eq!(grade(&found(100, 100), Some(102)), Grade::Near);
        assert_eq!(grade(&found(100, 100), Some(103)), Grade::Worse);
        assert_eq!(grade(&found(100, 100), Some(99)), Grade::Refuted);
        assert_eq!(grade(&found(100, 100), None), Grade::Invalid);
        assert_eq!(grade(&found(0, 0), Some(1)), Grade::Worse);
        assert_eq!(grade(&found(100, 90), Some(95)), Grade::Unproven);
        assert_eq!(grade(&broken(Some(90)), None), Grade::Unproven);
        assert_eq!(grade(&broken(None), None), Grade::Infeasible);
        assert_eq!(grade(&broken(None), Some(7)), Grade::Refuted);
    }

    #[test]
    fn what_is_no_assignment_is_invalid() {
        let mut problem = cases::case(1);
        problem.groups.iter_mut().for_each(|group| *group = Default::default());
        assert_eq!(cost(&problem, &[]), None);
        assert_eq!(cost(&problem, &vec![900; problem.guests.len()]), None);
        assert_eq!(cost(&problem, &vec![NOWHERE; problem.guests.len()]), None);
    }
}
