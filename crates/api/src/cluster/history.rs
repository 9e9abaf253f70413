//! Shows how busy hosts and VMs were.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::UnixMs;

/// How busy a host or a VM was over some hours, as the controller that answers has seen since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct History {
    /// The milliseconds from one value to the next.
    pub step_ms: u64,
    /// The time of the last values.
    pub until: UnixMs,
    /// The values of each series, oldest first; each ends at `until`. `None`: nothing is known of that time. The
    /// series: `cpu_millicores`, `ram_used_bytes`, `disk_read_bytes_per_s`, `disk_write_bytes_per_s`,
    /// `net_receive_bytes_per_s`, `net_send_bytes_per_s`.
    pub series: BTreeMap<String, Vec<Option<f32>>>,
}
