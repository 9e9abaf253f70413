//! Shows what is set of the whole cluster.

use serde::{Deserialize, Serialize};

use super::PowerSettings;

/// What is set of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSettings {
    /// The most migrations at once in the cluster.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub migrations_max: u32,
    /// The seconds for which a host's agent may be silent before the host counts as lost.
    #[cfg_attr(feature = "openapi", schema(minimum = 3, maximum = 3600))]
    pub host_lease_s: u32,
    /// How fast all migrations of the cluster together may send, and when: `4 Gbit/s; mon-fri 08:00-18:00 1 Gbit/s`, by
    /// the clock of the controller that leads. `None` or empty: as fast as links carry.
    #[cfg_attr(feature = "openapi", schema(max_length = 2048))]
    pub migration_rate: Option<String>,
    /// How the cluster is optimised.
    pub optimize: OptimizeSettings,
    /// What happens when a host dies.
    pub failover: FailoverSettings,
    /// When hosts that are not needed sleep.
    pub power: PowerSettings,
}

impl Default for ClusterSettings {
    fn default() -> ClusterSettings {
        ClusterSettings {
            migrations_max: 64,
            host_lease_s: 10,
            migration_rate: None,
            optimize: OptimizeSettings::default(),
            failover: FailoverSettings::default(),
            power: PowerSettings::default(),
        }
    }
}

/// How the cluster is optimised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct OptimizeSettings {
    /// Whether the controller optimises by itself.
    pub automatic: bool,
    /// The seconds from one round to the next.
    #[cfg_attr(feature = "openapi", schema(minimum = 60, maximum = 86400))]
    pub interval_s: u32,
    /// How much is done, from 1 (only what is broken is repaired) to 5.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5))]
    pub aggressiveness: u8,
    /// The most moves of a VM within a day.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4294967295_u32))]
    pub vm_moves_max: u32,
    /// The most moves of a round.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4294967295_u32))]
    pub round_moves_max: u32,
    /// The seconds for which a VM stays after a move.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4294967295_u32))]
    pub cooldown_s: u32,
}

impl Default for OptimizeSettings {
    fn default() -> OptimizeSettings {
        OptimizeSettings {
            automatic: false,
            interval_s: 600,
            aggressiveness: 3,
            vm_moves_max: 3,
            round_moves_max: 20,
            cooldown_s: 3600,
        }
    }
}

/// What happens when a host dies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FailoverSettings {
    /// Whether VMs of a host that is proven to be off are started elsewhere.
    pub restart: bool,
    /// Whether a lost host that has a fencing device is switched off by itself, which proves that it is off.
    pub power_off: bool,
    /// The seconds for which a host is lost before it is switched off.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 86400))]
    pub grace_s: u32,
    /// The most hosts that are being switched off by themselves at once.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub power_offs_max: u32,
}

impl Default for FailoverSettings {
    fn default() -> FailoverSettings {
        FailoverSettings { restart: true, power_off: true, grace_s: 10, power_offs_max: 2 }
    }
}

/// Asks for a round of optimisation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct OptimizeRequest {
    /// Whether the moves are made. `false`: they are only said.
    pub apply: bool,
    /// How much is done, from 1 to 5. `None`: as is set.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 5))]
    pub aggressiveness: Option<u8>,
}
