//! One repair and one search, on all threads, within one budget.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use skein_placement::dice::Dice;
use skein_placement::problem::{HostId, Problem};
use skein_placement::score::Score;
use skein_placement::search::{Repair, Search};

use crate::clock::{Clock, Round};
use crate::request::{Budget, Goal, Options, PROGRESS_PERIOD, Progress};

/// Steps of a repair between looks at the clock and at the cancel flag.
const REPAIR_STRIDE: u64 = 500;

/// What the searches of one call share.
pub(crate) struct Driver<'a> {
    options: &'a Options,
    cancel: &'a AtomicBool,
    begin: Instant,
    report: &'a mut dyn FnMut(&Progress<'_>),
    reported: Instant,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(
        options: &'a Options,
        cancel: &'a AtomicBool,
        report: &'a mut dyn FnMut(&Progress<'_>),
    ) -> Driver<'a> {
        let begin = Instant::now();
        Driver { options, cancel, begin, report, reported: begin }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Returns the budget of all searches together.
    pub(crate) fn budget(&self) -> Budget {
        self.options.budget
    }

    /// Repairs, and then searches if the goal asks for that, within a budget. Returns a host for each guest.
    ///
    /// # Errors
    ///
    /// The error of the operating system if it gives no thread.
    pub(crate) fn solve(&mut self, problem: &Problem, budget: Budget) -> io::Result<Vec<HostId>> {
        let begin = Instant::now();
        let mended = self.repair(problem, budget);
        if self.options.goal != Goal::Cheapest {
            return Ok(mended);
        }
        self.search(problem, &mended, budget.after(begin.elapsed()))
    }

    /// Repairs what is broken, on this thread.
    fn repair(&mut self, problem: &Problem, budget: Budget) -> Vec<HostId> {
        let begin = Instant::now();
        let mut repair = Repair::new(problem, &problem.initial, self.options.seed);
        let (mut left, time) = match budget {
            Budget::Steps(steps) => (steps, Duration::MAX),
            Budget::Time(time) => (u64::MAX, time),
        };
        while left > 0 && begin.elapsed() < time && !self.is_cancelled() {
            let is_enough = self.options.goal != Goal::Repaired && repair.is_mended();
            if is_enough || !repair.run(REPAIR_STRIDE.min(left)) {
                break;
            }
            left -= REPAIR_STRIDE.min(left);
            self.report(repair.score(), repair.assignment());
        }
        repair.assignment().to_vec()
    }

    /// Searches from an assignment: one search on each thread, each with a seed of its own.
    fn search(&mut self, problem: &Problem, from: &[HostId], budget: Budget) -> io::Result<Vec<HostId>> {
        let mut dice = Dice::new(self.options.seed);
        // The first thread's seed is the caller's.
        let seeds = std::iter::once(self.options.seed).chain(std::iter::repeat_with(|| dice.any()));
        let seeds = seeds.take(self.options.threads.get());
        let mut searches: Vec<Search<'_>> = seeds.map(|seed| Search::new(problem, from, seed)).collect();
        let mut clock = Clock::start(budget, problem.guests.len());
        let has_choice = !problem.guests.is_empty() && !problem.hosts.is_empty();
        let mut best = exchange(&mut searches);
        while has_choice
            && !self.is_cancelled()
            && let Some(round) = clock.next_round()
        {
            run_round(&mut searches, &clock, round, self.cancel)?;
            best = exchange(&mut searches);
            self.report(best.0, &best.1);
        }
        Ok(best.1)
    }

    /// Tells the caller of the best so far, at most once in a period.
    fn report(&mut self, score: Score, assignment: &[HostId]) {
        if self.reported.elapsed() >= PROGRESS_PERIOD {
            (self.report)(&Progress { elapsed: self.begin.elapsed(), score, assignment });
            self.reported = Instant::now();
        }
    }
}

/// Runs a round of each search: the first on this thread, each other on a thread of its own.
fn run_round(searches: &mut [Search<'_>], clock: &Clock, round: Round, cancel: &AtomicBool) -> io::Result<()> {
    let Some((first, others)) = searches.split_first_mut() else { return Ok(()) };
    thread::scope(|scope| {
        for search in others {
            let thread = thread::Builder::new().name("solver".to_owned());
            thread.spawn_scoped(scope, || clock.run(search, round, cancel))?;
        }
        clock.run(first, round, cancel);
        Ok(())
    })
}

/// Gives all searches the best assignment that one has found, and returns it.
fn exchange(searches: &mut [Search<'_>]) -> (Score, Vec<HostId>) {
    let best = searches.iter().min_by_key(|search| search.score()).expect("there is a thread");
    let (score, assignment) = (best.score(), best.assignment().to_vec());
    searches.iter_mut().for_each(|search| search.offer(score, &assignment));
    (score, assignment)
}
