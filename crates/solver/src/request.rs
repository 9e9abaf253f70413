//! What a caller asks for.

use std::num::NonZeroUsize;
use std::time::Duration;

use skein_placement::problem::{HostId, Problem};
use skein_placement::score::Score;
use skein_placement::survive::Survive;
use skein_placement_model::cluster::{Compiled, failing};

/// The least time between two reports of progress.
pub const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// What is to be solved.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// The hosts, guests and rules, in numbers. Guests begin at [`Problem::initial`].
    pub problem: &'a Problem,
    /// The failures of hosts that a solution should survive, if any.
    pub survival: Option<Survival>,
}

/// Failures of hosts that a solution should survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survival {
    /// How many hosts fail at once, and what each set of hosts costs whose failure is not survived.
    pub rule: Survive,
    /// The hosts that can fail.
    pub hosts: Vec<HostId>,
}

impl<'a> From<&'a Problem> for Task<'a> {
    fn from(problem: &'a Problem) -> Task<'a> {
        Task { problem, survival: None }
    }
}

impl<'a> From<&'a Compiled> for Task<'a> {
    fn from(compiled: &'a Compiled) -> Task<'a> {
        let survival = compiled.survive.map(|rule| Survival { rule, hosts: failing(compiled) });
        Task { problem: &compiled.problem, survival }
    }
}

/// How a task is solved.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the searches run.
    pub budget: Budget,
    /// The seed of all randomness. Another seed finds another solution.
    pub seed: u64,
    /// How many threads search, each from a seed of its own. They exchange what they find.
    pub threads: NonZeroUsize,
    /// What the search looks for.
    pub goal: Goal,
    /// How long HiGHS may look for a proof after the search. `None`: nothing is proven. A search that was cancelled is
    /// not followed by a proof.
    pub proof: Option<Duration>,
}

/// How long the searches run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The time of all searches together. Another run finds another solution.
    Time(Duration),
    /// The steps of each thread in each search. Another run finds the same solution.
    Steps(u64),
}

impl Budget {
    /// Returns what is left of the budget after `elapsed`.
    pub(crate) fn after(self, elapsed: Duration) -> Budget {
        match self {
            Budget::Time(total) => Budget::Time(total.saturating_sub(elapsed)),
            Budget::Steps(_) => self,
        }
    }

    /// Returns a part of the budget's time. Steps are for each search and stay the same.
    pub(crate) fn part(self, part: f64) -> Budget {
        match self {
            Budget::Time(total) => Budget::Time(total.mul_f64(part)),
            Budget::Steps(_) => self,
        }
    }
}

/// What the search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A placement with nothing broken, with few moves.
    Mended,
    /// The same, and then a lower cost with as few moves.
    Repaired,
    /// The same, and then the lowest cost, moves included.
    Cheapest,
}

/// The best placement so far, while a search is under way.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The time since [`solve`](crate::solve) was called.
    pub elapsed: Duration,
    /// What the assignment breaks and costs in the search under way. Failures of hosts do not count yet. If they are to
    /// be survived, later searches keep a part of each host free.
    pub score: Score,
    /// The best assignment so far: a host for each guest.
    pub assignment: &'a [HostId],
}
