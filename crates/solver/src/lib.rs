//! Solves a placement: adds threads, a clock and an end to `skein-placement`, which decides.
//!
//! | module | does |
//! |---|---|
//! | [`request`] | what a caller asks for: a [`Task`], [`Options`] with their [`Budget`], and [`Progress`] on the way |
//! | `driver` | one repair and one search, on all threads, within one budget |
//! | `clock` | how a budget is divided into rounds |
//! | `surviving` | several searches, if hosts may fail and their guests must find room |
//! | [`proof`] | what HiGHS proves of a solution, with the feature `exact` |
//! | [`solution`] | [`solve`], the entry point, and its result |
//!
//! A command calls [`solve`] with a file's problem, a controller with that of its live inventory: both are a
//! [`Problem`](skein_placement::problem::Problem).
//!
//! The crate has no files, output, signals or global state, on purpose. A caller that wants to end a search sets the
//! flag that it passed.
//!
//! # Invariants
//!
//! - A solution is never worse than where guests are (`solution::tests::a_solution_is_never_worse`).
//! - A budget in steps, a seed and a number of threads give the same solution each time
//!   (`solution::tests::one_thread_repeats_a_seed`, `solution::tests::several_threads_repeat_a_seed`).
//! - [`solve`] ends soon after its budget is spent, and soon after it is cancelled
//!   (`solution::tests::a_deadline_is_kept`, `solution::tests::a_cancel_ends_each_kind_of_budget`).
//! - Progress is reported at most once in [`PROGRESS_PERIOD`] (`solution::tests::progress_is_bounded`).

#![forbid(unsafe_code)]

mod clock;
mod driver;
pub mod proof;
pub mod request;
pub mod solution;
mod surviving;

pub use proof::{Proof, ProofError};
pub use request::{Budget, Goal, Options, PROGRESS_PERIOD, Progress, Survival, Task};
pub use solution::{Ending, Solution, SolveError, solve};
