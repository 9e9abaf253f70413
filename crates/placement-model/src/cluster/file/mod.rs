//! A cluster as a file: YAML or JSON (which is YAML, too). The file is read as a [`Cluster`], and mistakes are found in
//! its text.
//!
//! The reference of the format is docs/cluster-file.md.

mod places;
mod words;
mod yaml;

use thiserror::Error;
use yaml::{parse, parse_as_any};

use super::compile::{Compiled, compile};
use super::mistake::{CompileError, Mistake};
use super::model::Cluster;
use super::printable;
use skein_placement::problem::Flaw;

/// Why a file is not a valid cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClusterError {
    /// A mistake in the file.
    #[error("line {line}: {what}")]
    File {
        /// The line, from 1 on.
        line: u64,
        /// Why it is not allowed, and what would be.
        what: String,
    },
    /// The sums of its amounts or weights are too large.
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
///
/// [`ClusterError`] if the text is not a cluster file, with the line and the reason. An unknown field is reported with
/// the one that may be meant. Names with control characters are refused.
pub fn read(text: &str) -> Result<File<'_>, ClusterError> {
    let cluster = parse(text).map_err(|error| unreadable(&error, text))?;
    let file = File { cluster, text };
    printable::check(&file.cluster).map_err(|mistake| file.error(mistake))?;
    Ok(file)
}

/// Reads a part of a file, such as a rule, YAML or JSON, as plain data: what the part means is for its reader to say.
///
/// # Errors
///
/// [`ClusterError::File`] if the text is neither.
pub fn read_part(text: &str) -> Result<serde_json::Value, ClusterError> {
    parse_as_any(text).map_err(|error| unreadable(&error, text))
}

fn unreadable(error: &serde_saphyr::Error, text: &str) -> ClusterError {
    let line = error.location().map_or(1, |location| location.line().max(1));
    ClusterError::File { line, what: words::words(error.without_snippet(), text) }
}

impl File<'_> {
    /// Compiles the file's cluster.
    ///
    /// # Errors
    ///
    /// Those of [`compile`](compile()), with the line of the mistake.
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
