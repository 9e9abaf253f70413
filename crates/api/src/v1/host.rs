//! Hosts as commands see them.

use serde::{Deserialize, Serialize};

use super::check::Problem;
use super::host_facts::HostFacts;

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostView {
    /// Its name, as its identity has it.
    pub name: String,
    /// Where its agent is dialled; of this host, where it listens.
    pub addresses: Vec<String>,
    /// It is the one that answers.
    pub is_local: bool,
    /// Whether there is contact just now; none: it was not tried.
    pub reachable: Option<bool>,
    /// Why not, or since when.
    pub note: String,
    /// What is not as it should be on the way to it; known while there is a session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What it has and can do, if it said so.
    pub facts: Option<HostFacts>,
}
