//! In which order and how many at once guests get from where they are to where they are to be.
//!
//! A [`Job`] says what is to be done, [`plan()`] makes a [`Plan`] of it, a value; [`Progress`] tells what may start now
//! while somebody carries it out, and what is left as a new job when that stops; [`simulate`](simulate::simulate) is a
//! judge of plans that shares neither the planner's model of a migration nor its books.
//!
//! A guest on its way uses all of its resources on both hosts until it has arrived. Rules that hold before and after
//! hold on the way, too: members that are apart do not even meet on the way. Groups that are together or spread evenly,
//! or among sets of which no one has both where they were and where they will be, are so at the ends only. Where no
//! such order is found, needs are given up for a while, and then other rules are exchanged: guests with rules move one
//! at a time, and at no moment are more hard rules broken than before the first step.
//!
//! | module | what |
//! |---|---|
//! | `job` | what is to be done, and whether it can be read |
//! | `network` | what migrations cross |
//! | `precopy` | how long a migration takes at a rate |
//! | `guard` | which rules hold on the way |
//! | `flight` | who is where at a moment, and what may start then |
//! | `draft` | a plan for an order of priorities: list scheduling |
//! | `hop` | who steps aside when all wait for each other |
//! | `detour` | a way by trying all, where few guests have hardly any room |
//! | `search` | which order of priorities is best |
//! | `plan` | what comes out, and what waits for what |
//! | `progress` | carrying it out |
//! | `simulate` | what comes of it, told by others |

mod action;
#[cfg(test)]
mod cases;
mod detour;
mod draft;
mod flight;
mod guard;
mod hop;
mod job;
mod network;
mod plan;
mod precopy;
mod progress;
mod search;
pub mod simulate;
#[cfg(test)]
mod tests;

pub use action::Action;
pub use job::{ConcurrencyLimits, Job, JobFlaw, Power, ROUNDS_MAX, Running, Traffic};
pub use network::{Network, NetworkDirection, Port, Switch};
pub use plan::{Left, Obstacle, Plan, Step, StepId, StepReason, Waits, waits};
pub use precopy::{PrecopyForecast, forecast, rate_min};
pub use progress::{Progress, StepError};

/// Makes a plan: the best of those that `budget` changes of the priorities led to. The same job, seed and budget give
/// the same plan.
///
/// # Errors
/// The job is none.
pub fn plan(job: &Job, seed: u64, budget: u64) -> Result<Plan, JobFlaw> {
    job.check()?;
    Ok(search::search(job, seed, budget))
}
