//! Shows how a host is switched off from outside, and what is known of its power.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::UnixMs;

/// What switches a host off from outside. There is no secret in it: a secret is named, and each controller has it in a
/// file of that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum FencingDevice {
    /// A management controller that speaks Redfish.
    Redfish {
        /// Where it is: `https://10.1.0.5`.
        url: String,
        /// The id of the system, as in `/redfish/v1/Systems/ID`. `None`: the only one that there is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system: Option<String>,
        /// The account. `None`: none is needed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// The name of the account's password.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
        /// The only certificate that is trusted: its SHA-256, in hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        certificate_sha256: Option<String>,
        /// The only CA that is trusted: its certificate as PEM.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ca: Option<String>,
    },
    /// A fence agent: a program that each controller has, with the interface of ClusterLabs' fence-agents.
    Agent {
        /// The program's name: `fence_ipmilan`.
        agent: String,
        /// What the agent is given beside the action: `ip`, `username`, `plug`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        options: BTreeMap<String, String>,
        /// The name of the secret that the agent is given as `password`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
        /// The seconds that the agent has for a power-off. `None`: 60.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 300))]
        timeout_s: Option<u32>,
    },
}

/// Whether a host has power, as its fencing device says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PowerState {
    /// It has power.
    On,
    /// It has none.
    Off,
    /// It is being switched on or off, or the device does not know.
    Changing,
}

/// What a fencing device says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PowerReading {
    /// The host whose device was asked.
    pub host: String,
    /// Whether it has power.
    pub power: PowerState,
    /// What the device says of the machine, as its name and model, so that a person sees whether it is the right one.
    pub detail: String,
}

/// How far a fencing is. The record is written before the device is told anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Fencing {
    /// How often a power-off was ordered, or was about to be.
    pub attempts: u32,
    /// Until when the next attempt waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixMs>,
    /// The operation that starts the host's guests elsewhere, once the host is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover: Option<String>,
}
