//! What the commands of `skein` and of `skein-lab` share that solve placements.
//!
//! | module | has |
//! |---|---|
//! | [`search`](SearchArgs) | the arguments of a search, and its progress on the terminal |
//! | [`solved`](Solved) | the result of a search, in words and in JSON |
//! | [`words`](Outcome) | what a placement breaks and costs, in words and in JSON |
//! | `exit` | exit codes |
//!
//! Where a problem is from, a cluster file or a file of research, only the commands know.

#![forbid(unsafe_code)]

mod exit;
mod search;
mod solved;
mod words;

/// How many orders a plan tries if nothing else is asked for; more hardly helps.
pub const STEPS_TRIED: u64 = 3000;

pub use exit::{EXIT_CODES, success_if};
pub use search::{SearchArgs, all_threads, search};
pub use solved::Solved;
pub use words::{Judged, Outcome, Unit, beside};
