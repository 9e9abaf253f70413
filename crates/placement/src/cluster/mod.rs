//! Skein's own cluster file, YAML or JSON, and what it says as a [`Problem`](crate::problem::Problem).
//!
//! | module | does |
//! |---|---|
//! | [`mod@file`] | what can stand in a file |
//! | [`amount`] | "16 GiB" and its like |
//! | [`compile`](compile()) | the file as a problem, with [`Names`] that lead back |
//! | [`Clash`] | rules that can never hold together, told when they are made |
//! | [`check`](check()) | what is broken now, since when |
//!
//! docs/placement-file.md is the reference of the format.

pub mod amount;
mod check;
mod clash;
mod compile;
mod complaint;
mod error;
pub mod file;
mod mistake;
mod names;
mod printable;
mod survival;
#[cfg(test)]
pub(crate) mod tests;

pub use check::{Check, History, check};
pub use clash::Clash;
pub use compile::{Compiled, compile};
pub use complaint::Complaint;
pub use error::ClusterError;
use error::unknown;
pub use file::HOST_LEVEL;
pub(crate) use names::agree;
pub use names::{Fence, Leaning, Level, Measure, Names, Row, RuleId, RuleKind, RuleName};
pub use survival::{Survived, failing};

use file::Cluster;

/// More than any cluster that is placed within a minute: 200,000 guests with 50 values each.
const NODES_MAX: usize = 20_000_000;

/// Reads a file, YAML or JSON (which is YAML, too).
///
/// # Errors
/// It is none, with the line and the reason. A field that there is not is told with the one that may be meant. Or a
/// name has control characters.
pub fn read(text: &str) -> Result<Cluster, ClusterError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: NODES_MAX,
            max_events: 2 * NODES_MAX,
            max_total_scalar_bytes: 1 << 30,
        },
        with_snippet: false,
    };
    let cluster = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line().max(1));
        let what = mistake::words(error.without_snippet(), text);
        ClusterError::File { line, what }
    })?;
    printable::check(&cluster)?;
    Ok(cluster)
}
