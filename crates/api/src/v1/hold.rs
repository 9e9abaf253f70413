//! Says how a migration is held, and how a held migration is.

use serde::{Deserialize, Serialize};

/// How a migration is held: copied until the guest would switch within its downtime limit, and kept fresh until
/// somebody says that the guest may switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HoldOptions {
    /// The seconds for which the guest may be held. After that the migration is called off. `None`: a day, or until the
    /// window if there is a window.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2592000))]
    pub longest_s: Option<u64>,
    /// The window in which the guest switches by itself; `None`: only when somebody says so.
    pub window: Option<SwitchWindow>,
}

/// The window in which a held guest switches by itself, by the clock of the source's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwitchWindow {
    /// When the window opens: seconds since 1970 began, UTC.
    #[cfg_attr(feature = "openapi", schema(maximum = 253402300799u64))]
    pub from_unix_s: u64,
    /// When the window is over: the migration of a guest that is not stopped for its switchover by then is called off.
    /// `None`: the guest may take as long as it needs.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 253402300799u64))]
    pub until_unix_s: Option<u64>,
}

/// How a migration is held that is held, or is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HoldView {
    /// Since when the guest is held: RFC 3339. `None`: the guest is not held yet, or not any more.
    pub since: Option<String>,
    /// The bytes of pages that the guest has written, and that the target does not have yet.
    pub dirty_bytes: Option<u64>,
    /// The milliseconds that the guest would stand still if it switched now.
    pub downtime_ms: Option<u64>,
    /// When the guest switches by itself: RFC 3339.
    pub switches_from: Option<String>,
    /// When the migration is called off if the guest has not switched: RFC 3339. `None`: that is not known before the
    /// guest is held.
    pub called_off_at: Option<String>,
}
