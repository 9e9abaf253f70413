//! Decides in which order, and how many at once, guests move from where they are to where they are to be.
//!
//! A [`Job`] says what is to be done. [`plan()`] makes a [`Plan`] of it, which is a value. [`Progress`] tells what may
//! start now while the plan is carried out, and makes a new job of what is left when that stops.
//! [`simulate`](simulate::simulate) is a judge of plans that shares neither the planner's model of a migration nor its
//! books.
//!
//! A guest on its way uses all of its resources on both hosts until it has arrived. Rules that hold before and after
//! hold on the way, too: members that are apart do not even meet on the way. Three kinds of rules hold at the ends
//! only: together, spread evenly, and among sets of which none has both where the members were and where they will be.
//! If no such order is found, needs are given up for a while. If that does not suffice, other rules are exchanged:
//! guests with rules move one at a time, and at no moment are more hard rules broken than before the first step.
//!
//! | module | what |
//! |---|---|
//! | `job` | what is to be done, and whether it is valid |
//! | `network` | what migrations cross |
//! | `precopy` | how long a migration takes at a rate |
//! | `guard` | which rules hold on the way |
//! | `flight` | where each guest is at a moment, and what may start then |
//! | `draft` | a plan for an order of priorities: list scheduling |
//! | `hop` | which guests step aside when all wait for each other |
//! | `detour` | a plan by trying all ways, where few guests have hardly any room |
//! | `search` | which order of priorities is best |
//! | `plan` | the result, and which step waits for which |
//! | `progress` | how a plan is carried out |
//! | `simulate` | what a plan leads to, computed independently |

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
pub use plan::{Left, Obstacle, Plan, Step, StepId, StepReason, Waits, waits, waits_for_room};
pub use precopy::{PrecopyForecast, forecast, rate_min};
pub use progress::{Progress, StepError};

/// Makes a plan: the best of those to which `budget` changes of the priorities led. The same job, seed and budget give
/// the same plan.
///
/// # Errors
///
/// [`JobFlaw`] if the job is not valid.
pub fn plan(job: &Job, seed: u64, budget: u64) -> Result<Plan, JobFlaw> {
    job.check()?;
    Ok(search::search(job, seed, budget))
}
