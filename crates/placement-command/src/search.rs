//! The arguments of a search, and its progress.

use std::num::NonZeroUsize;
use std::time::Duration;

use skein_placement::problem::Strength;
use skein_placement::verdict::moves;
use skein_solver::{Budget, Goal, Options, Progress, Solution, Task, solve};
use skein_terminal::Screen;

use crate::words::Unit;

const SECONDS: u64 = 10;

/// How long a search goes on, and with what.
#[derive(clap::Args)]
pub struct SearchArgs {
    /// By the clock: another run finds something else [default: 10]
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: Option<u64>,
    /// By steps of each thread instead: the same answer for the same --seed and --threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Another one finds something else
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Only mend what is broken, with the fewest moves; what costs less is looked for with as few moves only
    #[arg(long)]
    repair_only: bool,
    /// Threads that search, each from its own seed, and tell each other what they find [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl SearchArgs {
    /// Returns the options of a search. At most `prove` seconds are for a proof.
    pub fn resolve(&self, prove: Option<u64>) -> Options {
        let budget = match self.steps {
            Some(steps) => Budget::Steps(steps),
            None => Budget::Time(Duration::from_secs(self.seconds.unwrap_or(SECONDS))),
        };
        let goal = if self.repair_only { Goal::Repaired } else { Goal::Cheapest };
        let threads = self.threads.and_then(|threads| NonZeroUsize::new(threads.into())).unwrap_or_else(all_threads);
        Options { budget, seed: self.seed, threads, goal, proof: prove.map(Duration::from_secs) }
    }
}

/// Returns one thread for each CPU.
pub fn all_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Searches, and shows the progress. SIGINT and SIGTERM end the search with the best so far.
///
/// # Errors
///
/// The problem is not valid, or the operating system refuses a thread or the handling of signals.
pub fn search(task: &Task<'_>, options: &Options, unit: Unit) -> anyhow::Result<Solution> {
    let (interrupt, mut screen) = (skein_terminal::interrupt_flag()?, Screen::new());
    let has_to_survive = task.survival.as_ref().is_some_and(|survival| survival.rule.strength == Strength::Hard);
    let valid = if has_to_survive { "valid (failures of hosts not tried yet)" } else { "valid" };
    let show = |progress: &Progress<'_>| {
        let moves = moves(task.problem, progress.assignment);
        let is_valid = if progress.score.broken == 0 { valid } else { "not valid yet" };
        let cost = unit.text(progress.score.cost);
        screen.show(&format!(
            "{:.1} s  {is_valid}  cost {cost}  moves {moves}  (Ctrl-C ends it with this)",
            progress.elapsed.as_secs_f64()
        ));
    };
    Ok(solve(task, options, &interrupt, show)?)
}
