//! Shows which hosts sleep, and how a host goes to sleep and wakes.

use serde::{Deserialize, Serialize};

use super::UnixMs;

/// When hosts that are not needed sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PowerSettings {
    /// Whether the controller puts hosts to sleep by itself, and wakes them when they are needed.
    pub saving: bool,
    /// The least number of hosts that stay awake and take guests.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub hosts_min: u32,
    /// How many of the hosts that stay awake may fail so that all guests still find a place.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 2))]
    pub spare_hosts: u32,
    /// The seconds for which a host must have been able to sleep, and none woke, before one is put to sleep.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 86400))]
    pub settle_s: u32,
    /// The seconds for which a host that woke stays awake at least.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 604800))]
    pub awake_min_s: u32,
    /// The seconds within which a host that is switched on has to report.
    #[cfg_attr(feature = "openapi", schema(minimum = 30, maximum = 3600))]
    pub wake_within_s: u32,
    /// When hosts may sleep: `mon-fri 19:00-06:30; sat,sun`, by the clock of the controller that leads. At other times
    /// all wake that were put to sleep by the controller. `None` or empty: always.
    #[cfg_attr(feature = "openapi", schema(max_length = 1024))]
    pub hours: Option<String>,
}

impl Default for PowerSettings {
    fn default() -> PowerSettings {
        PowerSettings {
            saving: false,
            hosts_min: 2,
            spare_hosts: 1,
            settle_s: 1800,
            awake_min_s: 1800,
            wake_within_s: 600,
            hours: None,
        }
    }
}

/// How a host is shut down that goes to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SleepBy {
    /// By its management controller, in order (Redfish's `GracefulShutdown`).
    #[default]
    Device,
    /// By its agent, with the command that the host's administrator gave the agent (`skein agent --power-off`).
    Agent,
    /// The host never sleeps.
    Never,
}

impl SleepBy {
    /// Returns whether this is what a new host has.
    pub fn is_default(&self) -> bool {
        *self == SleepBy::default()
    }
}

/// What is to be said of a host's power.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HostPower {
    /// Since when the host sleeps. `None`: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asleep_since: Option<UnixMs>,
    /// Who put the host to sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asleep_by: Option<String>,
    /// What went wrong when the host was last to sleep or to wake. It is not put to sleep again until somebody has it
    /// wake and it does, or says that all is well (`skein host wake`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why the host is not put to sleep, by the last decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awake_because: Option<String>,
    /// For how long the host has slept in all, in milliseconds.
    pub slept_ms: u64,
}

/// What is to be said of the power of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PowerStatus {
    /// Whether the controller puts hosts to sleep by itself.
    pub saving: bool,
    /// How many hosts sleep.
    pub asleep: u32,
    /// For how long hosts have slept in all, in milliseconds.
    pub slept_ms: u64,
    /// What was decided last, in a sentence. May be empty.
    pub decision: String,
    /// When that was first decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<UnixMs>,
}

/// How far a host is on its way to sleep, or awake. The record is written before the host or its device is told
/// anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PowerChange {
    /// What is done now.
    pub stage: PowerStage,
    /// Whether the host took no guests before, and is to take none when it is awake again.
    pub was_in_maintenance: bool,
    /// The drain that empties the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
    /// How often the host was told to shut down, or its device to switch it on; or was about to be told.
    pub attempts: u32,
    /// Until when the next attempt waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixMs>,
    /// When the host has to be off, or has to report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMs>,
    /// The CPUs that a host has that is shut down.
    pub cpus: u32,
    /// The memory that it has for guests, in bytes.
    pub ram_bytes: u64,
    /// What it was decided by, one sentence each: why this host, and why no other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// What is done on the way to sleep, or awake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PowerStage {
    /// The device is tried, and the guests leave.
    #[default]
    Emptying,
    /// The host has no guests, takes none, and is shut down.
    Stopping,
    /// The host is switched on, and its agent is waited for.
    Waking,
}
