//! Shows the cluster as a whole.

use serde::{Deserialize, Serialize};

use super::{PowerStatus, UnixMs};
use crate::v1::Term;

/// The cluster as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterStatus {
    /// The cluster's name, chosen by its administrator.
    pub name: String,
    /// The cluster's id, chosen at random when the cluster was made.
    pub id: String,
    /// The controllers that are known.
    pub controllers: Vec<ControllerView>,
    /// What keeps the cluster's state.
    pub store: StoreKind,
    /// The parts of it that may fail by themselves: etcd's members. As the controller that answers sees them.
    #[serde(default)]
    pub store_members: Vec<StoreMemberView>,
    /// The election that made the leader.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub term: Term,
    /// The hosts, counted.
    pub hosts: HostCounts,
    /// The VMs, counted.
    pub vms: VmCounts,
    /// The operations that are under way.
    pub operations_running: u32,
    /// Which hosts sleep.
    #[serde(default)]
    pub power: PowerStatus,
    /// What needs a person, one sentence each.
    pub attention: Vec<String>,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ControllerView {
    /// The controller's name.
    pub name: String,
    /// The URL of its API.
    pub url: String,
    /// Whether the controller leads: it alone decides and commands.
    pub leads: bool,
    /// Since when the controller is not there any more, as far as the one that answers has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<UnixMs>,
}

/// A part of the store that may fail by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreMemberView {
    /// Where it is.
    pub address: String,
    /// What is wrong with it. `None`: nothing.
    pub problem: Option<String>,
}

/// What keeps a cluster's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// A file of the only controller.
    Sqlite,
    /// An etcd cluster.
    Etcd,
    /// The controller's memory: for tests.
    Memory,
}

/// How many hosts there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostCounts {
    /// All hosts.
    pub all: u32,
    /// Hosts whose agents report.
    pub online: u32,
    /// Hosts whose agents do not report any more, and that are not proven to be off.
    pub lost: u32,
    /// Hosts that are proven to be off.
    pub off: u32,
    /// Hosts that sleep: they are proven to be off, and wake when they are needed.
    #[serde(default)]
    pub asleep: u32,
    /// Hosts that are being emptied, or take no guests.
    pub in_maintenance: u32,
}

/// How many VMs there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmCounts {
    /// All VMs.
    pub all: u32,
    /// VMs whose guests run.
    pub running: u32,
    /// VMs on hosts that are lost or off.
    pub lost: u32,
    /// VMs that are off.
    pub stopped: u32,
}

/// A part of a list, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// Where the next page begins: the value of `after` for the next request. `None`: this is the last page.
    pub next: Option<String>,
}
