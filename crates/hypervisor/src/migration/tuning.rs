//! Holds a migration's settings.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Holds the longest downtime limit that QEMU takes.
pub const DOWNTIME_LIMIT_MS_MAX: u64 = 2_000_000;
/// Holds the per cent that QEMU throttles a guest by at most.
pub const THROTTLE_MAX: u8 = 99;
/// Says how many pages of each GiB QEMU samples to tell what a guest writes, by default and at least
/// (`MIN_SAMPLE_PAGE_COUNT` of its migration/dirtyrate.h).
pub const SAMPLE_PAGES: u64 = 512;
pub(super) const SAMPLE_PAGES_MIN: u64 = 128;
pub(super) const AVAIL_SWITCHOVER_BANDWIDTH: &str = "avail-switchover-bandwidth";
pub(super) const DOWNTIME_LIMIT: &str = "downtime-limit";
pub(super) const MAX_BANDWIDTH: &str = "max-bandwidth";
/// As good as no limit: QEMU keeps rates in signed 64 bits.
pub(super) const MAX_BANDWIDTH_NO_LIMIT: u64 = i64::MAX as u64;
/// Names a capability that QEMU knows since 8.1.
pub(super) const SWITCHOVER_ACK: &str = "switchover-ack";
const MODE_PARAMETER: &str = "mode";
/// Holds the threshold at which no round passes without throttling.
const THROTTLE_THRESHOLD: u8 = 1;
/// Names the parameters that QEMU knows since 8.2.
pub(super) const NEW_IN_8_2: [&str; 2] = [AVAIL_SWITCHOVER_BANDWIDTH, MODE_PARAMETER];

/// The compression of multifd channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// The channels do not compress.
    #[default]
    None,
    /// The channels compress with zlib, which is slow.
    Zlib,
    /// The channels compress with Zstandard.
    Zstd,
}

/// The settings of QEMU's own TLS, for comparison with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// The id of a `tls-creds-x509` object, given to QEMU as `-object` or with `object-add`.
    pub creds: String,
    /// The name in the target's certificate; the source needs the name if it does not dial by it.
    pub hostname: Option<String>,
}

/// A migration's settings. Source and target must agree about capabilities, channels and compression: both get the same
/// settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    /// The number of multifd channels; `None`: one stream.
    pub multifd: Option<u8>,
    /// The compression of the multifd channels.
    pub compression: Compression,
    /// The size of XBZRLE's cache in bytes, a power of two; `None`: no XBZRLE.
    pub xbzrle_cache: Option<u64>,
    /// Whether there is a return path. Without one the source calls a migration complete when its last byte has left.
    pub return_path: bool,
    /// Whether to stop before the switchover, for [`Monitor::migrate_continue`](crate::Monitor::migrate_continue). Only
    /// the source knows this.
    pub pause_before_switchover: bool,
    /// Whether QEMU sends `MIGRATION` events ([`MigrationStatus::of_event`](crate::MigrationStatus::of_event)).
    pub events: bool,
    /// Whether [`Monitor::set_throttle`](crate::Monitor::set_throttle) may slow the guest down. Until that call QEMU
    /// takes 1 % at most.
    pub throttle: bool,
    /// Whether the source goes to the switchover only once its target has acknowledged that. Only QEMU 8.1 and later
    /// know this capability; [`Monitor::tune`](crate::Monitor::tune) leaves it out elsewhere. A target that does not
    /// have the capability never acknowledges.
    pub switchover_ack: bool,
    /// The most bytes a second. QEMU's default is 128 MiB/s. [`u64::MAX`] is as good as no limit, and what the field
    /// compares with.
    pub max_bandwidth: u64,
    /// The milliseconds that the switchover may be expected to take, 300 by QEMU's default, [`DOWNTIME_LIMIT_MS_MAX`]
    /// at most.
    pub downtime_limit_ms: u64,
    /// The bytes a second that the switchover may count on, in place of QEMU's own estimate. Only QEMU 8.2 and later
    /// know this parameter; [`Monitor::tune`](crate::Monitor::tune) leaves it out elsewhere.
    pub avail_switchover_bandwidth: Option<u64>,
    /// The settings of encryption by QEMU itself.
    pub tls: Option<Tls>,
    /// Further capabilities (`migrate-set-capabilities`), by name.
    pub capabilities: Vec<(String, bool)>,
    /// Further parameters (`migrate-set-parameters`).
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
            switchover_ack: false,
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
    /// Returns the argument of `migrate-set-capabilities`.
    pub fn capabilities(&self) -> Value {
        let own = [
            ("return-path", self.return_path),
            ("multifd", self.multifd.is_some()),
            ("xbzrle", self.xbzrle_cache.is_some()),
            ("pause-before-switchover", self.pause_before_switchover),
            ("events", self.events),
            ("auto-converge", self.throttle),
            (SWITCHOVER_ACK, self.switchover_ack),
        ];
        let more = self.capabilities.iter().map(|(name, on)| (name.as_str(), *on));
        let all: Vec<Value> =
            own.into_iter().chain(more).map(|(name, on)| json!({ "capability": name, "state": on })).collect();
        json!({ "capabilities": all })
    }

    /// Returns the argument of `migrate-set-parameters`. [`Monitor::tune`](crate::Monitor::tune) leaves out what QEMU
    /// does not know.
    pub fn parameters(&self) -> Value {
        let mut all = Map::new();
        all.insert(MAX_BANDWIDTH.into(), self.max_bandwidth.min(MAX_BANDWIDTH_NO_LIMIT).into());
        all.insert(DOWNTIME_LIMIT.into(), self.downtime_limit_ms.into());
        // Another program may have left another mode. In cpr-reboot the guest stands still for the whole copy.
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

/// Returns parameters that throttle a guest by exactly so many per cent: see [`migration`](crate::migration).
pub(super) fn throttle(percent: u8) -> Map<String, Value> {
    let percent = percent.clamp(1, THROTTLE_MAX);
    throttle_parameters([THROTTLE_THRESHOLD, percent, THROTTLE_MAX, percent])
}

/// Returns the parameters for a threshold, the first throttle, its growth, and the most: all in per cent.
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
