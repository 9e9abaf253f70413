//! A VM's serial console, as callers of a controller have it open.

use serde::{Deserialize, Serialize};

use crate::v1::{ConsoleBytes, ConsoleStep, ConsoleView};

/// What is asked of a VM's serial console: as [`ConsoleRequest`](crate::ConsoleRequest), but that the controller says
/// who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ConsoleAsk {
    /// A name of the session that the caller chose at random: 1 to 128 of a-z A-Z 0-9 . _ : -
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9._:-]{1,128}$"))]
    pub session: String,
    /// What becomes of the session. To begin it is asked of the controller that leads, which notes it in the audit log.
    #[serde(default)]
    pub step: ConsoleStep,
    /// What is typed, as base64, of at most 8192 bytes.
    #[serde(default)]
    pub input: ConsoleBytes,
    /// The bytes that were typed in this session before `input`.
    #[serde(default)]
    pub input_at: u64,
    /// The bytes of output that the caller has of this session.
    #[serde(default)]
    pub after: u64,
    /// How long to wait for more output, in milliseconds, at most 10000.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 10000))]
    pub wait_ms: u64,
}

/// What there is of a VM's serial console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConsoleAnswer {
    /// The host that was asked. A VM that has moved is asked for on its new host, where the session begins anew.
    pub host: String,
    /// What the host's agent says.
    #[serde(flatten)]
    pub view: ConsoleView,
}
