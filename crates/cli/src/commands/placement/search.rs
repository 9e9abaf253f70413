//! A repair and a search on several threads, by the clock or by steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use skein_placement::dice::Dice;
use skein_placement::problem::{HostId, Problem};
use skein_placement::score::Score;
use skein_placement::search::{Repair, Search};

/// How long threads go on by themselves. What they found is exchanged and shown in between.
const SEARCH_ROUND_TIME: Duration = Duration::from_millis(250);
/// The same in steps, at most.
const ROUND_STEPS: u64 = 500_000;
/// So many rounds at least.
const ROUNDS_MIN: u32 = 100;
/// Steps between looks at the clock: some milliseconds.
const CLOCK_CHECK_STEPS: u64 = 5_000;
/// The same of a repair.
const REPAIR_STRIDE: u64 = 500;

/// How long it goes on.
#[derive(Clone, Copy, Debug)]
pub enum Budget {
    Time(Duration),
    /// Of each thread: the same answer each time.
    Steps(u64),
}

impl Budget {
    fn less(self, elapsed: Duration) -> Budget {
        match self {
            Budget::Time(most) => Budget::Time(most.saturating_sub(elapsed)),
            Budget::Steps(_) => self,
        }
    }
}

/// How it is done.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub budget: Budget,
    pub seed: u64,
    pub threads: usize,
    pub goal: Goal,
}

/// What for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Nothing broken, with few moves.
    Mended,
    /// The same, and then what costs less with as few.
    Repaired,
    /// And then what costs least, moves included.
    Cheapest,
}

/// How far it is, or what came of it.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    pub elapsed: Duration,
    pub score: Score,
    pub assignment: &'a [HostId],
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Found {
    pub assignment: Vec<HostId>,
    pub elapsed: Duration,
    /// Somebody wanted it to end.
    pub is_interrupted: bool,
}

/// Solves a problem as far as the goal asks for. `show` is called now and then.
pub fn solve(
    problem: &Problem,
    options: &Options,
    interrupt: &AtomicBool,
    mut show: impl FnMut(&Progress<'_>),
) -> Found {
    let mended = repair(problem, options, interrupt, &mut show);
    if options.goal != Goal::Cheapest {
        return mended;
    }
    let rest = Options { budget: options.budget.less(mended.elapsed), ..*options };
    let before = mended.elapsed;
    let found = search(problem, &mended.assignment, &rest, interrupt, |progress| {
        show(&Progress { elapsed: before + progress.elapsed, ..*progress });
    });
    Found { elapsed: before + found.elapsed, ..found }
}

/// Mends what is broken, on one thread.
fn repair(problem: &Problem, options: &Options, interrupt: &AtomicBool, show: &mut dyn FnMut(&Progress<'_>)) -> Found {
    let begin = Instant::now();
    let is_interrupted = || interrupt.load(Ordering::Relaxed);
    let mut repair = Repair::new(problem, &problem.initial, options.seed);
    let (mut left, most) = match options.budget {
        Budget::Steps(steps) => (steps, Duration::MAX),
        Budget::Time(most) => (u64::MAX, most),
    };
    let mut shown = begin;
    while left > 0 && begin.elapsed() < most && !is_interrupted() {
        let is_enough = options.goal != Goal::Repaired && repair.is_mended();
        if is_enough || !repair.run(REPAIR_STRIDE.min(left)) {
            break;
        }
        left -= REPAIR_STRIDE.min(left);
        if shown.elapsed() >= SEARCH_ROUND_TIME {
            shown = Instant::now();
            show(&Progress { elapsed: begin.elapsed(), score: repair.score(), assignment: repair.assignment() });
        }
    }
    Found { assignment: repair.assignment().to_vec(), elapsed: begin.elapsed(), is_interrupted: is_interrupted() }
}

/// Searches from an assignment, one search for each thread, each with a seed of its own. `show` is called between
/// rounds.
fn search(
    problem: &Problem,
    from: &[HostId],
    options: &Options,
    interrupt: &AtomicBool,
    mut show: impl FnMut(&Progress<'_>),
) -> Found {
    let begin = Instant::now();
    let is_interrupted = || interrupt.load(Ordering::Relaxed);
    let mut dice = Dice::new(options.seed);
    // One thread's is the seed itself.
    let seeds = std::iter::once(options.seed).chain(std::iter::repeat_with(|| dice.any()));
    let mut searches: Vec<Search> = seeds.take(options.threads).map(|seed| Search::new(problem, from, seed)).collect();
    let mut clock =
        Clock { begin, stride: CLOCK_CHECK_STEPS.max(problem.guests.len() as u64), budget: options.budget, done: 0 };
    let has_choice = !problem.guests.is_empty() && !problem.hosts.is_empty();
    while has_choice
        && !is_interrupted()
        && let Some(round) = clock.next()
    {
        thread::scope(|scope| {
            for search in &mut searches {
                scope.spawn(|| clock.run(search, round, interrupt));
            }
        });
        let best = exchange(&mut searches);
        show(&Progress { elapsed: begin.elapsed(), score: best.0, assignment: &best.1 });
    }
    let assignment = exchange(&mut searches).1;
    Found { assignment, elapsed: begin.elapsed(), is_interrupted: is_interrupted() }
}

/// Gives all of them the best that one has found.
fn exchange(searches: &mut [Search]) -> (Score, Vec<HostId>) {
    let best = searches.iter().min_by_key(|search| search.score()).expect("there is a thread");
    let (score, at) = (best.score(), best.assignment().to_vec());
    searches.iter_mut().for_each(|search| search.offer(score, &at));
    (score, at)
}

/// What a budget leaves.
struct Clock {
    begin: Instant,
    stride: u64,
    budget: Budget,
    /// Steps of earlier rounds.
    done: u64,
}

/// Until when, or how many steps.
#[derive(Clone, Copy)]
enum SearchRound {
    Until(Duration),
    Steps { from: u64, many: u64 },
}

impl Clock {
    fn next(&mut self) -> Option<SearchRound> {
        match self.budget {
            Budget::Time(most) => {
                let now = self.begin.elapsed();
                let round = SEARCH_ROUND_TIME.min(most / ROUNDS_MIN);
                (now < most).then(|| SearchRound::Until((now + round).min(most)))
            }
            Budget::Steps(most) => {
                let (from, size) = (self.done, (most / u64::from(ROUNDS_MIN)).clamp(1, ROUND_STEPS));
                let many = size.min(most - from);
                self.done += many;
                (many > 0).then_some(SearchRound::Steps { from, many })
            }
        }
    }

    fn run(&self, search: &mut Search, round: SearchRound, interrupt: &AtomicBool) {
        match (round, self.budget) {
            (SearchRound::Until(end), Budget::Time(most)) => {
                while !interrupt.load(Ordering::Relaxed) {
                    let now = self.begin.elapsed();
                    if now >= end {
                        return;
                    }
                    search.run(self.stride, now.as_secs_f64() / most.as_secs_f64());
                }
            }
            (SearchRound::Steps { from, many }, Budget::Steps(most)) => {
                search.run(many, (from + many) as f64 / most as f64);
            }
            _ => unreachable!("rounds are of the budget's kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_placement::fleet;
    use skein_placement::verdict::judge;

    use super::*;

    fn searched(problem: &Problem, budget: Budget, threads: usize) -> Found {
        let options = Options { budget, seed: 7, threads, goal: Goal::Cheapest };
        solve(problem, &options, &AtomicBool::new(false), |_| {})
    }

    fn broken() -> Problem {
        let mut problem = fleet::fleet(20, 200, 1);
        fleet::overload(&mut problem, 3);
        fleet::fail(&mut problem, 5);
        problem
    }

    #[test]
    fn steps_give_the_same_again() {
        let problem = broken();
        for threads in [1, 3] {
            let found = searched(&problem, Budget::Steps(20_001), threads);
            assert_eq!(found.assignment, searched(&problem, Budget::Steps(20_001), threads).assignment);
            let (before, after) = (judge(&problem, &problem.initial), judge(&problem, &found.assignment));
            assert!(after.score() < before.score() && after.is_valid(), "{after:?}");
        }
    }

    #[test]
    fn a_repair_moves_fewest() {
        let problem = broken();
        let solved = |goal| {
            let options = Options { budget: Budget::Steps(20_000), seed: 7, threads: 2, goal };
            judge(&problem, &solve(&problem, &options, &AtomicBool::new(false), |_| {}).assignment)
        };
        let [mended, repaired, cheapest] = [Goal::Mended, Goal::Repaired, Goal::Cheapest].map(solved);
        assert!(mended.is_valid() && repaired.is_valid() && cheapest.is_valid());
        assert!(repaired.moves <= mended.moves && repaired.cost.total() <= mended.cost.total());
        assert!(cheapest.cost.total() <= mended.cost.total());
    }

    #[test]
    fn time_is_kept() {
        let found = searched(&broken(), Budget::Time(Duration::from_millis(200)), 2);
        assert!((200..5000).contains(&found.elapsed.as_millis()), "{:?}", found.elapsed);
        let mut empty = broken();
        empty.guests.clear();
        empty.initial.clear();
        assert!(searched(&empty, Budget::Time(Duration::from_secs(3600)), 2).assignment.is_empty());
    }

    #[test]
    fn an_interrupt_ends_it() {
        let (problem, interrupt) = (broken(), AtomicBool::new(false));
        let options =
            Options { budget: Budget::Time(Duration::from_secs(3600)), seed: 1, threads: 2, goal: Goal::Cheapest };
        let found = solve(&problem, &options, &interrupt, |_| interrupt.store(true, Ordering::Relaxed));
        assert!(found.is_interrupted && found.assignment.len() == problem.guests.len());
    }
}
