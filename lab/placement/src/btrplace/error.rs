//! The mistakes that a file can have.

use thiserror::Error;

use skein_placement::problem::Flaw;

/// Why a file is not of the format, or says something that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// The file's syntax is wrong.
    #[error("line {line}: {path}: {what}")]
    Json {
        /// The line, from 1 on.
        line: usize,
        /// The path in the JSON tree.
        path: String,
        /// What is wrong there.
        what: String,
    },
    /// What the file says makes no sense, or is not supported here.
    #[error("{path}: {what}")]
    Meaning {
        /// The path in the JSON tree.
        path: String,
        /// What is wrong there.
        what: String,
    },
    /// Its numbers are too large to be counted.
    #[error("the instance is no problem that can be solved")]
    Flaw(#[from] Flaw),
}

impl FileError {
    pub(super) fn meaning(path: impl Into<String>, what: impl Into<String>) -> FileError {
        FileError::Meaning { path: path.into(), what: what.into() }
    }
}
