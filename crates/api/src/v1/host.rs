//! Shows hosts as commands see them.

use serde::{Deserialize, Serialize};

use super::check::Problem;
use super::host_facts::HostFacts;

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostView {
    /// The host's name, as in its identity.
    pub name: String,
    /// The addresses at which the host's agent is dialled; of this host, at which the agent listens.
    pub addresses: Vec<String>,
    /// Whether this host is the one that answers.
    pub is_local: bool,
    /// Whether there is contact at this moment; `None`: not tried.
    pub reachable: Option<bool>,
    /// Why there is no contact, or since when there is contact.
    pub note: String,
    /// The problems on the way to the host; known while there is a session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What the host has and can do, if the host has said so.
    pub facts: Option<HostFacts>,
}
