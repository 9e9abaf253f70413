//! Imports the clusters of other programs as a file of [`cluster`], and reports everything that has no counterpart
//! there.
//!
//! | module | reads |
//! |---|---|
//! | [`proxmox`] | Proxmox VE's `/cluster/resources`, its HA rules, groups and resources, and ProxLB's tags |
//! | [`hbal`] | the text files of Ganeti's htools |

mod draft;
pub mod hbal;
mod ipolicy;
pub mod proxmox;
mod sections;
#[cfg(test)]
mod tests;
mod yaml;

use draft::{Draft, Guest, Host, Kind, Rule};
use thiserror::Error;

use crate::cluster;

/// Why a cluster cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImportError {
    /// A line is not of the format.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The file is not JSON of the format.
    #[error("{0}")]
    Json(String),
    /// The imported cluster is not valid.
    #[error("what was made of it is no cluster that can be placed")]
    Cluster(#[from] cluster::ClusterError),
}

/// An imported cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The cluster file, which can be read and compiled.
    pub cluster: String,
    /// What always holds in the other program, and has no counterpart or is not understood: it is not in the cluster
    /// file.
    pub hard_left_out: Vec<String>,
    /// What else has no counterpart, and what was made of it.
    pub words: Vec<String>,
}

impl Draft {
    fn word(&mut self, word: impl Into<String>) {
        self.words.push(word.into());
    }

    /// Reports something that is left out though it always holds in the other program, or may.
    fn leave_out(&mut self, what: impl Into<String>) {
        self.hard_left_out.push(what.into());
    }

    /// Returns the cluster file, which is read and compiled as it will be later.
    fn finish(mut self) -> Result<Imported, ImportError> {
        // Names of rules have to be unique: the second rule of a name gets a number.
        let mut taken = std::collections::BTreeSet::new();
        for rule in &mut self.rules {
            let name = rule.name.clone();
            let mut n = 2;
            while !taken.insert(rule.name.clone()) {
                rule.name = format!("{name}-{n}");
                n += 1;
            }
        }
        let text = yaml::text(&self);
        let compiled = cluster::read(&text)?.compile()?;
        let clashes = compiled.clashes.iter().map(|clash| {
            let rules = if clash.rules.is_empty() { String::new() } else { clash.rules.join(", ") + ": " };
            format!("its rules can never hold together: {rules}{}", clash.what)
        });
        self.words.extend(clashes);
        Ok(Imported { cluster: text, hard_left_out: self.hard_left_out, words: self.words })
    }
}

/// Returns all names in quotes.
fn quoted<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    names.into_iter().map(|name| format!("'{}'", name.as_ref())).collect::<Vec<_>>().join(", ")
}
