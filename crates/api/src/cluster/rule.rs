//! Shows rules, and what is broken.

use serde::{Deserialize, Serialize};

/// A rule about where guests run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rule {
    /// The rule's name.
    pub name: String,
    /// The rule in the words of the cluster file: an object with the kind as its only key (docs/cluster-file.md).
    /// The `name` may be left out.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub rule: serde_json::Value,
    /// What is wrong with the rule beside others, one sentence each: it is about nobody, or can never hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Changes with each change of the rule: the rule's ETag.
    #[serde(default)]
    pub version: u64,
}

/// Something that is broken: a rule, or what hosts should have free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Complaint {
    /// Whether it must not be. What only should not be has a cost.
    pub hard: bool,
    /// What is broken, in words.
    pub what: String,
    /// The rule. `None`: the complaint is about what hosts have.
    pub rule: Option<String>,
    /// The VMs that are concerned.
    pub vms: Vec<String>,
    /// The hosts that are concerned.
    pub hosts: Vec<String>,
    /// Of rules that can never hold together, wherever guests are: which they are, why, and what to do. Also of what
    /// placement cannot use and leaves out. No move mends that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clashes: Vec<String>,
}

/// What speaks against a VM on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostObjections {
    /// The host.
    pub host: String,
    /// Whether the VM may be there: nothing hard speaks against it.
    pub accepts: bool,
    /// All that speaks against the host, hard reasons first.
    pub objections: Vec<String>,
}

/// All that can be said of a VM and the hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The VM.
    pub vm: String,
    /// The host where the VM is.
    pub on: Option<String>,
    /// All hosts.
    pub hosts: Vec<HostObjections>,
    /// What would help if no host accepts the VM, the cheapest first.
    pub remedies: Vec<String>,
}
