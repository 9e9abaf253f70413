//! `[migration]`.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::values::{Line, ROOT_KEYS};
use crate::toml_reader::{Reader, Table};

/// The values of `downtime-limit`, with QEMU's own upper bound (MAX_MIGRATE_DOWNTIME of its migration/options.c).
pub const DOWNTIME_LIMIT_MS: RangeInclusive<u64> = 1..=2_000_000;
/// The numbers of multifd channels. QEMU takes 1 to 255. Each channel is a stream, and some streams are kept free for
/// others.
pub const MULTIFD_CHANNELS: RangeInclusive<u64> = 1..=64;
/// The priorities.
pub const PRIORITY: RangeInclusive<u64> = 0..=100;

/// How a VM is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// QEMU's `downtime-limit`.
    pub downtime_limit_ms: u64,
    /// The number of multifd channels. `None`: as many as fit.
    pub multifd_channels: Option<u8>,
    /// The priority. Of several VMs that wait, the VM with the highest goes first.
    pub priority: u8,
    /// Whether the VM may be moved at all. A VM that may not can have what cannot be moved.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub allowed: bool,
}

fn yes() -> bool {
    true
}

impl Default for Migration {
    fn default() -> Self {
        // 300 ms is QEMU's own default.
        Self { downtime_limit_ms: 300, multifd_channels: None, priority: 0, allowed: true }
    }
}

impl Migration {
    pub(super) fn write(&self, line: &mut Line) {
        line("\n[migration]\ndowntime_limit_ms", i64::try_from(self.downtime_limit_ms).unwrap_or(i64::MAX).into());
        self.multifd_channels.iter().for_each(|channels| line("multifd_channels", i64::from(*channels).into()));
        line("priority", i64::from(self.priority).into());
        if !self.allowed {
            line("allowed", false.into());
        }
    }
}

pub(super) fn read(reader: &mut Reader, mut table: Table) -> Migration {
    let allowed = table.get("allowed").and_then(|value| value.boolean(reader)).unwrap_or(true);
    let mut integer = |key, range| table.get(key).and_then(|value| value.integer(reader, range));
    let default = Migration::default();
    let migration = Migration {
        downtime_limit_ms: integer("downtime_limit_ms", DOWNTIME_LIMIT_MS).unwrap_or(default.downtime_limit_ms),
        multifd_channels: integer("multifd_channels", MULTIFD_CHANNELS).map(|channels| channels as u8),
        priority: integer("priority", PRIORITY).map_or(default.priority, |priority| priority as u8),
        allowed,
    };
    table.finish(reader, &ROOT_KEYS);
    migration
}
