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
pub mod file;
mod mistake;
mod names;
mod printable;
mod survival;
#[cfg(test)]
pub(crate) mod tests;

pub use check::{Check, Complaint, History, check};
pub use clash::Clash;
pub use compile::{Compiled, compile};
pub(crate) use names::agree;
pub use names::{Fence, Leaning, Level, Measure, Names, Row, RuleId, RuleKind, RuleName};
pub use survival::{Survived, failing};

use file::Cluster;
use thiserror::Error;

use crate::problem::Flaw;

/// The level at which each host is an area of its own.
pub const HOST_LEVEL: &str = "host";

/// Why a file is no cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClusterError {
    /// Something that stands in it.
    #[error("line {line}: {what}")]
    File {
        /// From 1 on.
        line: u64,
        /// Why it cannot be, and what could.
        what: String,
    },
    /// Its amounts or weights.
    #[error("the cluster cannot be counted")]
    Flaw(#[from] Flaw),
}

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

/// That there is no such thing, and which may be meant.
fn unknown<T: AsRef<str>>(what: &str, name: &str, known: impl IntoIterator<Item = T>) -> String {
    let likeness = |known: &T| (strsim::jaro_winkler(known.as_ref(), name) * 1000.0) as u32;
    match known.into_iter().max_by_key(likeness) {
        Some(close) if likeness(&close) > 700 => {
            format!("there is no {what} '{name}'; did you mean '{}'?", close.as_ref())
        }
        Some(_) => format!("there is no {what} '{name}'"),
        None => format!("there is no {what} '{name}', and no other either"),
    }
}
