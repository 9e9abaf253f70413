//! Shows how busy hosts and guests are.

use serde::{Deserialize, Serialize};

/// How busy a host is: means over the time since the sample before, and amounts at the time of the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HostLoad {
    /// The CPU time that anything on the host used, in thousandths of a CPU.
    pub cpu_millicores: u64,
    /// MemTotal.
    pub ram_bytes: u64,
    /// MemAvailable: what can be used without swapping.
    pub ram_available_bytes: u64,
    /// What block devices read, in bytes per second.
    pub disk_read_bytes_per_s: u64,
    /// What block devices wrote, in bytes per second.
    pub disk_write_bytes_per_s: u64,
    /// What NICs with a link received, in bytes per second.
    pub net_receive_bytes_per_s: u64,
    /// What NICs with a link sent, in bytes per second.
    pub net_send_bytes_per_s: u64,
}

/// How much of a host a guest uses, as [`HostLoad`] counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct VmLoad {
    /// The CPU time of the guest's QEMU, in thousandths of a CPU.
    pub cpu_millicores: u64,
    /// The memory of the guest's QEMU that is in RAM (`VmRSS`).
    pub ram_bytes: u64,
    /// What the guest's QEMU read from block devices, in bytes per second.
    pub disk_read_bytes_per_s: u64,
    /// What the guest's QEMU wrote to block devices, in bytes per second.
    pub disk_write_bytes_per_s: u64,
    /// What the guest received by its tap devices, in bytes per second.
    pub net_receive_bytes_per_s: u64,
    /// What the guest sent by its tap devices, in bytes per second.
    pub net_send_bytes_per_s: u64,
}
