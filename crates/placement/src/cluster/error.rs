//! Why a file is no cluster.

use thiserror::Error;

use crate::problem::Flaw;

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

/// That there is no such thing, and which may be meant.
pub(super) fn unknown<T: AsRef<str>>(what: &str, name: &str, known: impl IntoIterator<Item = T>) -> String {
    let likeness = |known: &T| (strsim::jaro_winkler(known.as_ref(), name) * 1000.0) as u32;
    match known.into_iter().max_by_key(likeness) {
        Some(close) if likeness(&close) > 700 => {
            format!("there is no {what} '{name}'; did you mean '{}'?", close.as_ref())
        }
        Some(_) => format!("there is no {what} '{name}'"),
        None => format!("there is no {what} '{name}', and no other either"),
    }
}
