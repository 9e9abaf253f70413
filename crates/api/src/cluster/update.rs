//! Hosts are updated one after the other: each is emptied, updated, booted, and takes guests again.

use serde::{Deserialize, Serialize};

use super::UnixMs;
use crate::v1::UpdateHow;

/// Asks for hosts to be updated, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct UpdateRequest {
    /// The hosts, in their order; those on which a controller runs come last. Empty: all hosts.
    #[cfg_attr(feature = "openapi", schema(max_items = 10000))]
    pub hosts: Vec<String>,
    /// How each host is brought up to date.
    pub how: UpdateHow,
    /// Whether guests come home to a host that is updated.
    pub bring_home: bool,
    /// The seconds within which a host has to be updated and back; and for which at most it is waited that no other
    /// host is lost or busy.
    #[cfg_attr(feature = "openapi", schema(minimum = 60, maximum = 86400))]
    pub wait_s: u64,
    /// Whether hosts that cannot be emptied or do not report are left out. `false`: then nothing is begun.
    pub skip_blocked: bool,
    /// Whether to say only what would be done.
    pub dry_run: bool,
}

impl Default for UpdateRequest {
    fn default() -> UpdateRequest {
        UpdateRequest {
            hosts: Vec::new(),
            how: UpdateHow::default(),
            bring_home: true,
            wait_s: 1800,
            skip_blocked: false,
            dry_run: false,
        }
    }
}

/// How far an update of hosts is. The record is written before a host is told anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HostsUpdate {
    /// The hosts, in their order.
    pub hosts: Vec<HostUpdate>,
    /// Until when it is waited at most that the next host can be begun. `None`: it is not waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<UnixMs>,
}

/// How far the update of one host is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HostUpdate {
    /// The host.
    pub host: String,
    /// How far it is.
    pub state: HostUpdateState,
    /// What remains to be said, as why it failed, or was left out. May be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Whether the host keeps the whole update from being begun: it cannot be emptied or does not report, and such
    /// hosts are not to be left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blocks: bool,
    /// Whether the host took no guests before, and is to take none afterwards.
    pub was_in_maintenance: bool,
    /// The operation that empties the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
    /// Whether the host's agent has taken the order: then it has no guest, and takes none.
    pub taken: bool,
    /// Until when the host has to be updated and back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMs>,
    /// The operation that brings the host's guests home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// The kernel's id of the boot before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_before: Option<String>,
    /// The release of the host's agent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_before: Option<String>,
    /// The release of the host's agent afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_after: Option<String>,
    /// When the host's turn came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<UnixMs>,
    /// When the host was done with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<UnixMs>,
}

/// How far the update of one host is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HostUpdateState {
    /// It is to be seen whether the host can be emptied.
    #[default]
    Unchecked,
    /// The host's turn has not come.
    Waiting,
    /// The host's guests leave.
    Emptying,
    /// The host has no guest, and is updated and booted.
    Updating,
    /// The host takes guests again, and its guests come home.
    Returning,
    /// The host is updated.
    Done,
    /// The host was not updated, or is not back. It takes no guests.
    Failed,
    /// The host was left out.
    Skipped,
}

impl HostUpdateState {
    /// Returns whether nothing more happens with the host.
    pub fn is_over(self) -> bool {
        matches!(self, HostUpdateState::Done | HostUpdateState::Failed | HostUpdateState::Skipped)
    }

    /// Returns whether it is the host's turn.
    pub fn is_under_way(self) -> bool {
        matches!(self, HostUpdateState::Emptying | HostUpdateState::Updating | HostUpdateState::Returning)
    }
}
