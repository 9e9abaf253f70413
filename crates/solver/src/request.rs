//! What a caller asks for.

use std::num::NonZeroUsize;
use std::time::Duration;

use skein_placement::cluster::{Compiled, failing};
use skein_placement::problem::{HostId, Problem};
use skein_placement::score::Score;
use skein_placement::survive::Survive;

/// The least time between two reports of progress.
pub const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// What is to be solved.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// Hosts, guests and rules, in numbers. Guests begin at [`Problem::initial`].
    pub problem: &'a Problem,
    /// The failures of hosts that a solution should survive, if any.
    pub survival: Option<Survival>,
}

/// Failures of hosts that a solution should survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survival {
    /// How many hosts fail at once, and what each set of hosts costs that must not.
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
    /// How long searches go on.
    pub budget: Budget,
    /// Where randomness comes from: another seed finds another solution.
    pub seed: u64,
    /// Threads that search, each from a seed of its own. They exchange what they find.
    pub threads: NonZeroUsize,
    /// What is looked for.
    pub goal: Goal,
    /// How long HiGHS may look for a proof after the search. None: nothing is proven. A search that was cancelled is
    /// not followed by a proof.
    pub proof: Option<Duration>,
}

/// How long searches go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// By the clock, all searches together: another run finds another solution.
    Time(Duration),
    /// By steps of each thread, each search by itself: the same solution each time.
    Steps(u64),
}

impl Budget {
    /// Returns what is left of the budget when so much time is gone.
    pub(crate) fn after(self, elapsed: Duration) -> Budget {
        match self {
            Budget::Time(total) => Budget::Time(total.saturating_sub(elapsed)),
            Budget::Steps(_) => self,
        }
    }

    /// Returns a part of the time. Steps are of each search and stay.
    pub(crate) fn part(self, part: f64) -> Budget {
        match self {
            Budget::Time(total) => Budget::Time(total.mul_f64(part)),
            Budget::Steps(_) => self,
        }
    }
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Nothing broken, with few moves.
    Mended,
    /// The same, and then what costs less with as few.
    Repaired,
    /// And then what costs least, moves included.
    Cheapest,
}

/// The best so far, while a search is under way.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Since [`solve`](crate::solve) was called.
    pub elapsed: Duration,
    /// What the assignment breaks and costs in the search under way. Failures of hosts do not count yet; where they are
    /// to be survived, later searches keep a part of each host free.
    pub score: Score,
    /// A host for each guest.
    pub assignment: &'a [HostId],
}
