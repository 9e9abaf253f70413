//! What is wrong with a file.

use thiserror::Error;

use crate::problem::Flaw;

/// A file that is none of the format, or that says what cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// It is not written as it has to be.
    #[error("line {line}: {path}: {what}")]
    Json {
        /// From 1 on.
        line: usize,
        /// Where in the tree.
        path: String,
        /// Why it cannot be.
        what: String,
    },
    /// What is written makes no sense, or none here.
    #[error("{path}: {what}")]
    Meaning {
        /// Where in the tree.
        path: String,
        /// Why it cannot be.
        what: String,
    },
    /// It is too large to be counted.
    #[error("the instance is no problem that can be solved")]
    Flaw(#[from] Flaw),
}

impl FileError {
    pub(super) fn meaning(path: impl Into<String>, what: impl Into<String>) -> FileError {
        FileError::Meaning { path: path.into(), what: what.into() }
    }
}
