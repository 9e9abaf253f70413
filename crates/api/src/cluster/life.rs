//! Is what a VM's life is asked for by: to create, start and stop it.

use serde::{Deserialize, Serialize};

/// Asks for a VM that the cluster gets by its definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateVmRequest {
    /// The definition, as TOML: what `skein vm start` takes as a file. A VM of that name that is off is started from
    /// it.
    pub definition: String,
    /// Whether to start the VM. Otherwise the cluster knows it from then on, and no host has it.
    #[serde(default = "yes")]
    pub start: bool,
    /// The host. `None`: the controller picks the host.
    #[serde(default)]
    pub on: Option<String>,
    /// Whether to say only what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

fn yes() -> bool {
    true
}

/// Asks for the start of a VM that is off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StartVmRequest {
    /// The host. `None`: the controller picks the host, the VM's own if it can.
    pub on: Option<String>,
    /// Whether to say only what would be done.
    pub dry_run: bool,
}

/// Asks for a VM to be stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StopVmRequest {
    /// The seconds until the VM has to be off, after its power button was pressed.
    #[cfg_attr(feature = "openapi", schema(maximum = 86400))]
    pub timeout_s: u64,
    /// Whether to kill the VM's QEMU after that, instead of giving up: what the guest did not write is lost.
    pub force: bool,
}

impl Default for StopVmRequest {
    fn default() -> StopVmRequest {
        StopVmRequest { timeout_s: 60, force: false }
    }
}
