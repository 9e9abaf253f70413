//! The entry point, and its result.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use skein_placement::problem::{Flaw, HostId};
use skein_placement::verdict::{Verdict, judge};
use thiserror::Error;

use crate::driver::Driver;
use crate::proof::{Proof, ProofError, prove};
use crate::request::{Options, Progress, Task};
use crate::surviving::{self, Rank};

/// A solution.
#[derive(Debug)]
pub struct Solution {
    /// The host of each guest.
    pub assignment: Vec<HostId>,
    /// What the assignment breaks and costs, judged from scratch.
    pub verdict: Verdict,
    /// How many sets of hosts must not fail, though the task asks for their failure to be survived. 0 if it does not
    /// ask.
    pub failures: usize,
    /// How long the search took, without the proof.
    pub elapsed: Duration,
    /// Why the search ended.
    pub ending: Ending,
    /// What HiGHS proved, if [`Options::proof`] asked for it.
    pub proof: Option<Result<Proof, ProofError>>,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The budget was spent, or the goal reached.
    Done,
    /// The caller cancelled the search: the solution is the best so far.
    Cancelled,
}

/// Why there is no solution.
#[derive(Debug, Error)]
pub enum SolveError {
    /// The problem is not valid.
    #[error("the problem is flawed")]
    Flaw(#[from] Flaw),
    /// The operating system gives no thread.
    #[error("cannot start a thread: ask for fewer threads, or raise the limit on processes")]
    Thread(#[source] io::Error),
}

/// Solves a task as far as the goal asks for, until the budget is spent or `cancel` is set.
///
/// Calls `report` from the calling thread with the best so far, at most once in
/// [`PROGRESS_PERIOD`](crate::PROGRESS_PERIOD), and never after it returns. All threads wait while `report` runs.
///
/// Cancelling and the clock take effect within some milliseconds in a cluster of thousands of guests. Two steps are not
/// interrupted: trying failures that are to be survived, which takes some seconds at most, and HiGHS, which looks at
/// its own clock only (see [`Options::proof`]).
///
/// # Errors
///
/// [`SolveError`] if the problem is not valid, or the operating system gives no thread.
pub fn solve(
    task: &Task<'_>,
    options: &Options,
    cancel: &AtomicBool,
    mut report: impl FnMut(&Progress<'_>),
) -> Result<Solution, SolveError> {
    task.problem.check()?;
    let mut driver = Driver::new(options, cancel, &mut report);
    let mut assignment = surviving::solve(task, &mut driver).map_err(SolveError::Thread)?;
    let ending = if driver.is_cancelled() { Ending::Cancelled } else { Ending::Done };
    let (elapsed, mut rank) = (driver.elapsed(), Rank::of(task, &assignment));
    let time = options.proof.filter(|_| ending == Ending::Done);
    let proof = time.map(|time| prove(task.problem, &assignment, time));
    // The proof knows nothing of failures.
    if let Some(Ok(proof)) = &proof {
        let proven = Rank::of(task, &proof.assignment);
        if proven <= rank {
            (assignment, rank) = (proof.assignment.clone(), proven);
        }
    }
    let verdict = judge(task.problem, &assignment);
    Ok(Solution { assignment, verdict, failures: rank.failures, elapsed, ending, proof })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use skein_placement::fleet;
    use skein_placement::problem::{Problem, Strength};
    use skein_placement::survive::Survive;

    use super::*;
    use crate::request::{Budget, Goal, PROGRESS_PERIOD, Survival};

    const HOUR: Budget = Budget::Time(Duration::from_secs(3600));

    fn options(budget: Budget, threads: usize) -> Options {
        let threads = NonZeroUsize::new(threads).unwrap();
        Options { budget, seed: 7, threads, goal: Goal::Cheapest, proof: None }
    }

    fn solved(problem: &Problem, options: &Options) -> Solution {
        solve(&problem.into(), options, &AtomicBool::new(false), |_| {}).unwrap()
    }

    fn broken() -> Problem {
        let mut problem = fleet::fleet(20, 200, 1);
        fleet::overload(&mut problem, 3);
        fleet::fail(&mut problem, 5);
        problem
    }

    /// Makes a small cluster, each of whose hosts can fail.
    fn small() -> (Problem, Survival) {
        let problem = fleet::fleet(6, 24, 3);
        let rule = Survive { failures: 1, strength: Strength::Hard };
        (problem, Survival { rule, hosts: (0..6).collect() })
    }

    #[test]
    fn one_thread_repeats_a_seed() {
        let problem = broken();
        let options = options(Budget::Steps(20_001), 1);
        let found = solved(&problem, &options);
        assert_eq!(found.assignment, solved(&problem, &options).assignment);
        assert_ne!(found.assignment, solved(&problem, &Options { seed: 8, ..options }).assignment);
    }

    #[test]
    fn several_threads_repeat_a_seed() {
        let problem = broken();
        let options = options(Budget::Steps(20_001), 3);
        assert_eq!(solved(&problem, &options).assignment, solved(&problem, &options).assignment);
    }

    #[test]
    fn a_solution_is_never_worse() {
        let problem = broken();
        let before = judge(&problem, &problem.initial);
        for (budget, threads) in [(0, 1), (1, 2), (20_001, 1), (20_001, 3)] {
            let found = solved(&problem, &options(Budget::Steps(budget), threads));
            assert!(found.verdict.score() <= before.score(), "{budget} steps: {:?}", found.verdict);
            assert_eq!(found.verdict, judge(&problem, &found.assignment), "{budget} steps");
            assert_eq!((found.ending, found.failures), (Ending::Done, 0));
            if budget > 1 {
                assert!(found.verdict.score() < before.score() && found.verdict.is_valid(), "{:?}", found.verdict);
            }
        }
    }

    #[test]
    fn a_repair_moves_fewest() {
        let problem = broken();
        let solved = |goal| solved(&problem, &Options { goal, ..options(Budget::Steps(20_000), 2) }).verdict;
        let [mended, repaired, cheapest] = [Goal::Mended, Goal::Repaired, Goal::Cheapest].map(solved);
        assert!(mended.is_valid() && repaired.is_valid() && cheapest.is_valid());
        assert!(repaired.moves <= mended.moves && repaired.cost.total() <= mended.cost.total());
        assert!(cheapest.cost.total() <= mended.cost.total());
    }

    #[test]
    fn a_deadline_is_kept() {
        let found = solved(&broken(), &options(Budget::Time(Duration::from_millis(200)), 2));
        assert!((200..60_000).contains(&found.elapsed.as_millis()), "{:?}", found.elapsed);
        let begin = Instant::now();
        let found = solved(&broken(), &options(Budget::Time(Duration::ZERO), 2));
        assert_eq!(found.assignment, broken().initial, "no time, no move");
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn searches_for_failures_share_a_deadline() {
        let (problem, survival) = small();
        let task = Task { problem: &problem, survival: Some(survival) };
        let options = options(Budget::Time(Duration::from_millis(200)), 1);
        let found = solve(&task, &options, &AtomicBool::new(false), |_| {}).unwrap();
        assert!(found.elapsed < Duration::from_secs(600), "{:?}", found.elapsed);
        assert_eq!(found.failures, Rank::of(&task, &found.assignment).failures);
    }

    #[test]
    fn who_must_survive_is_placed_so() {
        let (problem, survival) = small();
        let task = Task { problem: &problem, survival: Some(survival) };
        let found = solve(&task, &options(Budget::Steps(20_000), 1), &AtomicBool::new(false), |_| {}).unwrap();
        let before = Rank::of(&task, &problem.initial);
        assert!(before.failures > 0);
        assert!(found.failures <= before.failures, "{} after {}", found.failures, before.failures);
        assert!(Rank::of(&task, &found.assignment) <= before);
    }

    #[test]
    fn nobody_has_to_go_anywhere() {
        let mut empty = broken();
        empty.guests.clear();
        empty.initial.clear();
        assert!(solved(&empty, &options(HOUR, 2)).assignment.is_empty());
    }

    #[test]
    fn a_cancel_ends_each_kind_of_budget() {
        let problem = broken();
        for budget in [HOUR, Budget::Steps(u64::MAX)] {
            for goal in [Goal::Repaired, Goal::Cheapest] {
                let cancel = AtomicBool::new(false);
                let options = Options { goal, proof: Some(Duration::from_secs(3600)), ..options(budget, 2) };
                let found = std::thread::scope(|scope| {
                    let solving = scope.spawn(|| solve(&(&problem).into(), &options, &cancel, |_| {}).unwrap());
                    std::thread::sleep(Duration::from_millis(50));
                    cancel.store(true, Ordering::Relaxed);
                    solving.join().unwrap()
                });
                assert!(found.elapsed < Duration::from_secs(600), "{:?}", found.elapsed);
                assert_eq!(found.assignment.len(), problem.guests.len());
                // A repair may have ended before it was cancelled.
                if goal == Goal::Cheapest {
                    assert_eq!(found.ending, Ending::Cancelled);
                    assert!(found.proof.is_none());
                }
            }
        }
    }

    #[test]
    fn a_cancel_before_the_begin_moves_nobody() {
        let problem = broken();
        let found = solve(&(&problem).into(), &options(HOUR, 2), &AtomicBool::new(true), |_| {}).unwrap();
        assert_eq!((found.ending, &found.assignment), (Ending::Cancelled, &problem.initial));
    }

    #[test]
    fn progress_is_bounded() {
        let problem = broken();
        let (cancel, mut reports) = (AtomicBool::new(false), Vec::new());
        let found = solve(&(&problem).into(), &options(HOUR, 2), &cancel, |progress| {
            assert_eq!(progress.assignment.len(), problem.guests.len());
            reports.push((progress.elapsed, progress.score));
            cancel.store(reports.len() == 4, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!((found.ending, reports.len()), (Ending::Cancelled, 4));
        for pair in reports.windows(2) {
            assert!(pair[1].0 - pair[0].0 >= PROGRESS_PERIOD, "{reports:?}");
            assert!(pair[1].1 <= pair[0].1, "{reports:?}");
        }
    }

    #[test]
    fn what_is_no_problem_is_told() {
        let mut problem = broken();
        problem.guests[0].groups = vec![99_999];
        let told = solve(&(&problem).into(), &options(HOUR, 1), &AtomicBool::new(false), |_| {});
        assert!(matches!(told, Err(SolveError::Flaw(_))));
    }

    #[cfg(not(feature = "exact"))]
    #[test]
    fn without_highs_nothing_is_proven() {
        let options = Options { proof: Some(Duration::from_secs(1)), ..options(Budget::Steps(10), 1) };
        let found = solved(&broken(), &options);
        assert!(matches!(found.proof, Some(Err(ProofError::NotBuilt))));
    }

    #[cfg(feature = "exact")]
    #[test]
    fn what_is_proven_to_be_best_is_taken() {
        let problem = skein_exact::cases::cluster(&mut skein_placement::dice::Dice::new(1), 3, 6);
        let options = Options { proof: Some(Duration::from_secs(600)), ..options(Budget::Steps(0), 1) };
        let found = solved(&problem, &options);
        let Some(Ok(proof)) = &found.proof else { panic!("{:?}", found.proof) };
        assert_eq!(proof.bound, found.verdict.is_valid().then(|| found.verdict.cost.total()));
    }
}
