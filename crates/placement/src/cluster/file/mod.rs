//! A cluster as a file: YAML or JSON (which is YAML, too), read as a [`Cluster`], and where in the text a mistake
//! stands.
//!
//! docs/placement-file.md is the reference of the format.

mod parse;
mod places;
mod words;

use parse::parse;
use thiserror::Error;

use super::compile::{Compiled, compile};
use super::mistake::{CompileError, Mistake};
use super::model::Cluster;
use super::printable;
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

/// A cluster that was read from a text.
#[derive(Clone, Debug)]
pub struct File<'a> {
    /// What the text says.
    pub cluster: Cluster,
    text: &'a str,
}

/// Reads a file, YAML or JSON.
///
/// # Errors
/// It is none, with the line and the reason. A field that there is not is told with the one that may be meant. Or a
/// name has control characters.
pub fn read(text: &str) -> Result<File<'_>, ClusterError> {
    let cluster = parse(text).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line().max(1));
        ClusterError::File { line, what: words::words(error.without_snippet(), text) }
    })?;
    let file = File { cluster, text };
    printable::check(&file.cluster).map_err(|mistake| file.error(mistake))?;
    Ok(file)
}

impl File<'_> {
    /// Reads the file's meaning.
    ///
    /// # Errors
    /// As those of [`compile`](compile()), with the line where the mistake stands.
    pub fn compile(&self) -> Result<Compiled, ClusterError> {
        compile(&self.cluster).map_err(|error| match error {
            CompileError::Mistake(mistake) => self.error(mistake),
            CompileError::Flaw(flaw) => ClusterError::Flaw(flaw),
        })
    }

    fn error(&self, mistake: Mistake) -> ClusterError {
        ClusterError::File { line: places::line(self.text, &mistake), what: mistake.what }
    }
}
