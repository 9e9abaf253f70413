//! Shows hosts of the cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{FencingDevice, HostPower, SleepBy, UnixMs, VmMigration};
use crate::v1::{HostLoad, NicRates};

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Host {
    /// The host's name, as in its identity.
    pub name: String,
    /// Whether the host's agent reports.
    pub contact: Contact,
    /// Since when `contact` is as it is.
    pub contact_since: UnixMs,
    /// Whether guests may be put on the host.
    pub mode: HostMode,
    /// The drain that empties the host, or has emptied it.
    pub drain: Option<String>,
    /// What people have set.
    pub settings: HostSettings,
    /// The addresses at which other hosts' agents dial this host's agent.
    pub addresses: Vec<String>,
    /// The release of the agent's program; `None`: the agent has not reported yet.
    pub release: Option<String>,
    /// When the certificate ends that the host's agent last showed. The agent has it renewed by itself when a third of
    /// its validity is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<UnixMs>,
    /// The CPUs that are online.
    pub cpus: Option<u32>,
    /// MemTotal.
    pub ram_bytes: Option<u64>,
    /// How busy the host is; `None`: the host does not report.
    pub load: Option<HostLoad>,
    /// How much passes each NIC that has a link; empty: the host does not report, or its agent is of an older release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicRates>,
    /// How busy a host that is lost was when it last reported; `None`: it is not lost, or this controller has not heard
    /// of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_load: Option<HostLoad>,
    /// How many guests run on the host.
    pub vms_running: u32,
    /// The migrations to the host that are under way.
    pub incoming: u32,
    /// The migrations from the host that are under way.
    pub outgoing: u32,
    /// The migrations from and to the host that somebody began on a host: no operation did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<VmMigration>,
    /// A fact for people, as why the host is lost. May be empty.
    pub note: String,
    /// What is to be said of the host's power. `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<HostPower>,
    /// The watchdog that resets the host once its agent has no leader. `None`: the host is to have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<HostWatchdog>,
    /// Changes with each change of what is stored of the host: the host's ETag.
    pub version: u64,
}

/// A host's watchdog, as its agent last told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostWatchdog {
    /// What the device says it is. `None`: it is not armed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// How long after it was last heard of the host is proven to be off, at the soonest, in milliseconds; `None`: never
    /// by the watchdog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_within_ms: Option<u64>,
    /// The reason why the watchdog is not armed. Empty if it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why_not: String,
}

/// Whether a host's agent reports to a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Contact {
    /// The host has joined, and its agent has not reported yet.
    #[default]
    Joined,
    /// The agent reports.
    Online,
    /// The agent has not reported for longer than a host's lease. Whether its guests run is not known.
    Lost,
    /// The host is proven to be off: none of its guests runs.
    Off,
    /// The host was emptied and shut down, since it is not needed. It is proven to be off, and wakes when it is needed.
    Asleep,
}

impl Contact {
    /// Returns whether the host is proven to be off.
    pub fn is_off(self) -> bool {
        matches!(self, Contact::Off | Contact::Asleep)
    }
}

/// Whether guests may be put on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HostMode {
    /// The host takes guests.
    #[default]
    Active,
    /// The host takes no guests, and its guests are moved away.
    Draining,
    /// The host takes no guests.
    Maintenance,
}

/// What people set of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HostSettings {
    /// The host group that the host is in.
    pub group: Option<String>,
    /// The properties that rules compare.
    pub properties: BTreeMap<String, String>,
    /// The host's area at each level of fault domains: `rack: r1`.
    pub areas: BTreeMap<String, String>,
    /// Whether others need the host's disks, so that it must not be powered off.
    pub storage: bool,
    /// The most migrations to the host at once. `None`: as many as the controller's rule says.
    #[cfg_attr(feature = "openapi", schema(maximum = 65535))]
    pub incoming_max: Option<u32>,
    /// The most migrations from the host at once. `None`: as many as the controller's rule says.
    #[cfg_attr(feature = "openapi", schema(maximum = 65535))]
    pub outgoing_max: Option<u32>,
    /// What switches the host off from outside, and proves that it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing: Option<FencingDevice>,
    /// How the host is shut down when it goes to sleep, or that it never does.
    #[serde(skip_serializing_if = "SleepBy::is_default")]
    pub sleep: SleepBy,
}
