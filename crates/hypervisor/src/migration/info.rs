//! Reads what QEMU says of a migration.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::guest::migrate::MigrationStatus;
use crate::qmp::error::QmpError;

/// The RAM's part of a migration. Fields are in bytes unless they say otherwise; the totals grow over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all(deserialize = "kebab-case"))]
pub struct RamInfo {
    /// The bytes that were sent.
    pub transferred: u64,
    /// The bytes that are left to send.
    pub remaining: u64,
    /// The guest's RAM.
    pub total: u64,
    /// The pages that were sent as zeros.
    pub duplicate: u64,
    /// The pages that were sent whole.
    pub normal: u64,
    /// The pages that were sent whole, in bytes.
    pub normal_bytes: u64,
    /// The bytes that multifd channels sent; they are part of `transferred`.
    pub multifd_bytes: u64,
    /// The number of rounds.
    pub dirty_sync_count: u64,
    /// The pages dirtied a second, in the last round.
    pub dirty_pages_rate: u64,
    /// The rate of sending, in Mb/s.
    #[serde(rename = "mbps")]
    pub mbit_per_s: f64,
    /// The rate of sending, in pages a second.
    pub pages_per_second: u64,
    /// The bytes that were sent while the guest ran.
    pub precopy_bytes: u64,
    /// The bytes that were sent while the guest was stopped.
    pub downtime_bytes: u64,
}

/// The answer to `query-migrate`. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all(deserialize = "kebab-case"))]
pub struct MigrationInfo {
    /// The status.
    pub status: MigrationStatus,
    /// The time since the migration began.
    pub total_time: u64,
    /// The time of the switchover, once the migration is completed.
    pub downtime: Option<u64>,
    /// The per cent that the guest is throttled by; `None`: not at all.
    #[serde(rename(deserialize = "cpu-throttle-percentage"))]
    pub throttle: Option<u8>,
    /// The time until the first page.
    pub setup_time: u64,
    /// The RAM's part, once QEMU has one.
    pub ram: Option<RamInfo>,
    /// The reason of a failure.
    #[serde(rename(deserialize = "error-desc"))]
    pub error: Option<String>,
    /// The reasons that would make `migrate` refuse: see [`Monitor::blocked_reasons`](crate::Monitor::blocked_reasons).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_reasons: Vec<String>,
}

impl MigrationInfo {
    /// Reads an answer to `query-migrate`.
    pub fn parse(value: Value) -> Result<Self, QmpError> {
        let excerpt = value.to_string();
        serde_json::from_value(value)
            .map_err(|e| QmpError::Malformed { reason: format!("query-migrate: {e}"), excerpt })
    }
}

/// Reads an answer to `query-dirty-rate`. What QEMU calls MB/s are MiB/s (its migration/dirtyrate.c).
pub(super) fn dirty_rate(answer: &Value) -> Option<u64> {
    (answer["status"] == "measured").then(|| answer["dirty-rate"].as_u64())?.map(|mib| mib.saturating_mul(1 << 20))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rate_of_dirtying() {
        let answer = json!({ "status": "measured", "dirty-rate": 12, "calc-time": 1, "mode": "page-sampling" });
        assert_eq!(dirty_rate(&answer), Some(12 << 20));
        for answer in [json!({ "status": "measuring" }), json!({ "status": "measured", "dirty-rate": -1 }), json!(null)]
        {
            assert_eq!(dirty_rate(&answer), None, "{answer}");
        }
    }

    #[test]
    fn reads_what_qemu_says() {
        // The answer is QEMU 7.2's, shortened.
        let completed = json!({
            "status": "completed", "setup-time": 2, "downtime": 7, "total-time": 1503, "cpu-throttle-percentage": 20,
            "ram": {
                "total": 286_728_192, "postcopy-requests": 0, "dirty-sync-count": 3, "multifd-bytes": 0,
                "pages-per-second": 1000, "downtime-bytes": 4096, "page-size": 4096, "remaining": 0,
                "postcopy-bytes": 0, "mbps": 1234.5, "transferred": 5000, "dirty-sync-missed-zero-copy": 0,
                "precopy-bytes": 904, "duplicate": 61, "dirty-pages-rate": 2, "skipped": 0, "normal-bytes": 8192,
                "normal": 2
            }
        });
        let info = MigrationInfo::parse(completed).unwrap();
        assert_eq!(
            (info.status, info.downtime, info.total_time, info.setup_time),
            (MigrationStatus::Completed, Some(7), 1503, 2)
        );
        assert_eq!(info.throttle, Some(20));
        let ram = info.ram.unwrap();
        assert_eq!(
            (ram.transferred, ram.duplicate, ram.normal, ram.normal_bytes, ram.dirty_sync_count),
            (5000, 61, 2, 8192, 3)
        );
        assert_eq!(
            (ram.mbit_per_s, ram.precopy_bytes, ram.downtime_bytes, ram.dirty_pages_rate),
            (1234.5, 904, 4096, 2)
        );
    }

    #[test]
    fn reads_other_states() {
        for (value, status, over) in [
            (json!({}), MigrationStatus::None, false),
            (json!({"status": "pre-switchover"}), MigrationStatus::PreSwitchover, false),
            (json!({"status": "postcopy-active"}), MigrationStatus::Other, false),
            (json!({"status": "invented-later"}), MigrationStatus::Other, false),
            (json!({"status": "cancelled"}), MigrationStatus::Cancelled, true),
            (json!({"status": "failed", "error-desc": "Unable to write to socket"}), MigrationStatus::Failed, true),
        ] {
            let info = MigrationInfo::parse(value).unwrap();
            assert_eq!((info.status, info.status.is_over()), (status, over));
            assert_eq!(info.error.is_some(), status == MigrationStatus::Failed);
        }
        assert!(MigrationInfo::parse(json!({"status": 3})).is_err());
    }
}
