//! Shows VMs of the cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::UnixMs;
use crate::v1::{CopyProgress, HoldView, MigrationId, RateLimit, VmLoad};

/// A VM of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Vm {
    /// The VM's name, which is unique in the cluster.
    pub name: String,
    /// Whether the guest runs.
    pub state: VmRunState,
    /// The host where the VM is, or was last.
    pub host: Option<String>,
    /// Since when `state` and `host` are as they are.
    pub since: UnixMs,
    /// The RAM, in bytes.
    pub ram_bytes: u64,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// How much of its host the guest uses.
    pub load: Option<VmLoad>,
    /// The operation that moves the guest.
    pub operation: Option<String>,
    /// The migration that the guest is in, whoever began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<VmMigration>,
    /// What people have set.
    pub settings: VmSettings,
    /// Whether another program started the VM.
    pub adopted: bool,
    /// A fact for people, as why the VM stopped. May be empty.
    pub note: String,
    /// Changes with each change of what is stored of the VM: the VM's ETag.
    pub version: u64,
}

/// A VM's definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmDefinition {
    /// The definition, as in a VM's file.
    pub toml: String,
}

/// A migration that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VmMigration {
    /// The migration's id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: MigrationId,
    /// The VM.
    pub vm: String,
    /// The source host.
    pub source: String,
    /// The target host.
    pub target: String,
    /// The operation that began it. `None`: somebody did so on the source host.
    pub operation: Option<String>,
    /// When it was begun: RFC 3339.
    pub begun: String,
    /// How it is held, if it is held or is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldView>,
    /// What limits how fast it sends. `None`: nothing but the links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// How far the copy is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyProgress>,
}

impl VmMigration {
    /// Returns whether the guest is held: copied, and kept fresh at the target until it may switch.
    pub fn is_held(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.since.is_some())
    }
}

/// Whether a VM's guest runs, as far as the controller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VmRunState {
    /// The guest runs.
    Running,
    /// The guest is stopped and can go on.
    Paused,
    /// The VM's QEMU is being started.
    Starting,
    /// The guest is between two hosts, and paused.
    Handover,
    /// The guest is paused, and no host alone can decide where it runs.
    InDoubt,
    /// The VM is off.
    #[default]
    Stopped,
    /// The VM's QEMU does not answer.
    Unresponsive,
    /// The VM's host does not report, or has the VM no more and no host that reports has it: whether the guest runs is
    /// not known.
    Lost,
    /// The VM's host is proven to be off, and the guest with it.
    Failed,
}

/// What people set of a VM, beside its definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct VmSettings {
    /// The properties that rules compare.
    pub properties: BTreeMap<String, String>,
    /// The tags by which rules name the VM.
    pub tags: Vec<String>,
    /// The tenant that the VM belongs to.
    pub tenant: Option<String>,
    /// The availability set: the VM is kept apart from the others of the set, softly unless a rule says otherwise.
    pub availability_set: Option<String>,
    /// The only hosts where the VM may ever be. `None`: all hosts.
    pub owners: Option<Vec<String>>,
    /// The hosts where the VM should be, best first.
    pub preferred: Vec<String>,
    /// The priority; a greater priority is moved and started first. `None`: the controller takes it as 0, and
    /// the agent as the definition has it.
    #[cfg_attr(feature = "openapi", schema(maximum = 100))]
    pub priority: Option<u8>,
    /// Whether the optimisation and drains leave the VM where it is.
    pub pinned: bool,
    /// Whether the VM is started again when its host was booted and the guest ended with that.
    pub autostart: bool,
}
