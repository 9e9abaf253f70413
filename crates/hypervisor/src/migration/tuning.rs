//! A migration's settings.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The longest downtime limit that QEMU takes.
pub const DOWNTIME_LIMIT_MS_MAX: u64 = 2_000_000;
/// The most that QEMU throttles a guest by, in per cent.
pub const THROTTLE_MAX: u8 = 99;
/// Pages of each GiB that QEMU looks at to tell what a guest writes, unless told otherwise, and at least
/// (`MIN_SAMPLE_PAGE_COUNT` of its migration/dirtyrate.h).
pub const SAMPLE_PAGES: u64 = 512;
pub(super) const SAMPLE_PAGES_MIN: u64 = 128;
pub(super) const AVAIL_SWITCHOVER_BANDWIDTH: &str = "avail-switchover-bandwidth";
pub(super) const DOWNTIME_LIMIT: &str = "downtime-limit";
const MODE_PARAMETER: &str = "mode";
/// As much as lets no throttling pass.
const THROTTLE_THRESHOLD: u8 = 1;
/// Parameters that QEMU knows since 8.2.
pub(super) const NEW_IN_8_2: [&str; 2] = [AVAIL_SWITCHOVER_BANDWIDTH, MODE_PARAMETER];

/// How multifd channels compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// zlib, slow.
    Zlib,
    /// Zstandard.
    Zstd,
}

/// QEMU's own TLS, for comparison with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// Id of a `tls-creds-x509` object, given to QEMU as `-object` or with `object-add`.
    pub creds: String,
    /// The name in the target's certificate; the source needs it where it does not dial by that name.
    pub hostname: Option<String>,
}

/// A migration's settings. Source and target must agree about capabilities, channels and compression: give both the
/// same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    /// Number of multifd channels; none: one stream.
    pub multifd: Option<u8>,
    /// Compression of the multifd channels.
    pub compression: Compression,
    /// XBZRLE with a cache of this many bytes, a power of two.
    pub xbzrle_cache: Option<u64>,
    /// Without a return path the source calls a migration complete when its last byte has left.
    pub return_path: bool,
    /// Stop before the switchover, for [`Monitor::migrate_continue`](crate::Monitor::migrate_continue). Only the source
    /// knows it.
    pub pause_before_switchover: bool,
    /// `MIGRATION` events ([`MigrationStatus::of_event`](crate::MigrationStatus::of_event)).
    pub events: bool,
    /// Let [`Monitor::set_throttle`](crate::Monitor::set_throttle) slow the guest down. Until it is called QEMU takes 1
    /// % at most.
    pub throttle: bool,
    /// Bytes a second. QEMU's default is 128 MiB/s; [`u64::MAX`] is what the field compares with.
    pub max_bandwidth: u64,
    /// Milliseconds the switchover may be expected to take, 300 by QEMU's default, [`DOWNTIME_LIMIT_MS_MAX`] at most.
    pub downtime_limit_ms: u64,
    /// Bytes a second that the switchover may count on, in place of QEMU's own estimate. Only QEMU 8.2 and later know
    /// it; [`Monitor::tune`](crate::Monitor::tune) leaves it out elsewhere.
    pub avail_switchover_bandwidth: Option<u64>,
    /// Encryption by QEMU itself.
    pub tls: Option<Tls>,
    /// More capabilities (`migrate-set-capabilities`), by name.
    pub capabilities: Vec<(String, bool)>,
    /// More parameters (`migrate-set-parameters`).
    pub parameters: Map<String, Value>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            multifd: None,
            compression: Compression::None,
            xbzrle_cache: None,
            return_path: true,
            pause_before_switchover: false,
            events: false,
            throttle: false,
            max_bandwidth: u64::MAX,
            downtime_limit_ms: 300,
            avail_switchover_bandwidth: None,
            tls: None,
            capabilities: Vec::new(),
            parameters: Map::new(),
        }
    }
}

impl Tuning {
    /// The argument of `migrate-set-capabilities`.
    pub fn capabilities(&self) -> Value {
        let own = [
            ("return-path", self.return_path),
            ("multifd", self.multifd.is_some()),
            ("xbzrle", self.xbzrle_cache.is_some()),
            ("pause-before-switchover", self.pause_before_switchover),
            ("events", self.events),
            ("auto-converge", self.throttle),
        ];
        let more = self.capabilities.iter().map(|(name, on)| (name.as_str(), *on));
        let all: Vec<Value> =
            own.into_iter().chain(more).map(|(name, on)| json!({ "capability": name, "state": on })).collect();
        json!({ "capabilities": all })
    }

    /// The argument of `migrate-set-parameters`, of which [`Monitor::tune`](crate::Monitor::tune) leaves out what QEMU
    /// does not know.
    pub fn parameters(&self) -> Value {
        let mut all = Map::new();
        // QEMU keeps rates in signed 64 bits.
        all.insert("max-bandwidth".into(), self.max_bandwidth.min(i64::MAX as u64).into());
        all.insert(DOWNTIME_LIMIT.into(), self.downtime_limit_ms.into());
        // In another that somebody left there, as cpr-reboot, the guest stands still for the whole copy.
        all.insert(MODE_PARAMETER.into(), "normal".into());
        if let Some(rate) = self.avail_switchover_bandwidth {
            all.insert(AVAIL_SWITCHOVER_BANDWIDTH.into(), rate.into());
        }
        if self.throttle {
            all.extend(throttle(0));
        }
        if let Some(channels) = self.multifd {
            all.insert("multifd-channels".into(), channels.into());
            all.insert("multifd-compression".into(), json!(self.compression));
        }
        if let Some(bytes) = self.xbzrle_cache {
            all.insert("xbzrle-cache-size".into(), bytes.into());
        }
        if let Some(tls) = &self.tls {
            all.insert("tls-creds".into(), tls.creds.as_str().into());
            if let Some(name) = &tls.hostname {
                all.insert("tls-hostname".into(), name.as_str().into());
            }
        }
        all.extend(self.parameters.clone());
        Value::Object(all)
    }
}

/// Parameters that throttle a guest to exactly so many per cent: see [`migration`](crate::migration).
pub(super) fn throttle(percent: u8) -> Map<String, Value> {
    let percent = percent.clamp(1, THROTTLE_MAX);
    throttle_parameters([THROTTLE_THRESHOLD, percent, THROTTLE_MAX, percent])
}

/// The threshold, the first throttle, by how much it grows, and the most: all in per cent.
pub(super) fn throttle_parameters(values: [u8; 4]) -> Map<String, Value> {
    let names = ["throttle-trigger-threshold", "cpu-throttle-initial", "cpu-throttle-increment", "max-cpu-throttle"];
    names.into_iter().zip(values).map(|(name, value)| (name.to_owned(), value.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_in_qemus_words() {
        let tuning = Tuning {
            multifd: Some(4),
            compression: Compression::Zstd,
            tls: Some(Tls { creds: "tls0".into(), hostname: Some("b".into()) }),
            capabilities: vec![("zero-copy-send".into(), true)],
            events: true,
            avail_switchover_bandwidth: Some(5),
            throttle: true,
            ..Tuning::default()
        };
        let on: Vec<String> = tuning.capabilities()["capabilities"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|c| c["state"] == json!(true))
            .map(|c| c["capability"].as_str().unwrap().into())
            .collect();
        assert_eq!(on, ["return-path", "multifd", "events", "auto-converge", "zero-copy-send"]);
        assert_eq!(
            tuning.parameters(),
            json!({
                "max-bandwidth": i64::MAX, "downtime-limit": 300, "mode": "normal", "avail-switchover-bandwidth": 5,
                "multifd-channels": 4, "multifd-compression": "zstd",
                "tls-creds": "tls0", "tls-hostname": "b", "throttle-trigger-threshold": 1, "cpu-throttle-initial": 1,
                "cpu-throttle-increment": 99, "max-cpu-throttle": 1
            })
        );
    }
}
