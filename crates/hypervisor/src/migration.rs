//! A migration as QEMU sees it: settings, start, progress.
//!
//! # What QEMU does
//!
//! As observed with 7.2.22 and 10.0.2, with `return-path`, `events`, `pause-before-switchover` and `multifd`, the target
//! started with `-incoming defer -S`. `tests/lab_qemu.rs` asserts what does not depend on luck.
//!
//! In order, with the run states:
//!
//! | source | target |
//! |---|---|
//! | | `setup` at `migrate-incoming`, `inmigrate` |
//! | `setup`, `active` (`running`) | `active` |
//! | `STOP`, `pre-switchover` (`finish-migrate`) | |
//! | `migrate-continue`: `device` | |
//! | `completed` (`postmigrate`) | `completed` (`paused`), before or after the source's |
//! | `cont`: `RESUME`, also when the target runs | `cont`: `RESUME` |
//!
//! `MIGRATION_PASS` comes in between anywhere. Without the pause, 7.2 leaves out `device`. The source is `completed` only
//! after the target has said on the return path that it has everything; the target's event may still be later.
//!
//! When something happens:
//!
//! | what | in | source | target |
//! |---|---|---|---|
//! | target dies | `active` | `failed`; runs | |
//! | | `pre-switchover` | notices nothing, stays stopped; `migrate_cancel` helps | |
//! | | `device` | `failed`, `RESUME`: **runs by itself** | |
//! | | `completed` | stays `postmigrate`; `cont` works | |
//! | `migrate_cancel` | `active` | `cancelling`, `cancelled`; runs | `failed`, exits with 1 |
//! | | `pre-switchover` | `cancelling`, `RESUME`, `cancelled` (7.2: at times `device` first) | `failed`, exits with 1 |
//! | | `device` | `cancelling`, `RESUME`, `cancelled` | **may be `completed` all the same**, `paused` |
//! | | `completed` | nothing | nothing |
//! | `cont` | `pre-switchover`, `device` | refused: not finalized yet | |
//! | source dies | before `completed` | | `failed`, exits with 1 |
//! | | `completed` | | stays `paused`; `cont` works |
//!
//! After `migrate_cancel`, both versions at times say `failed` instead of `cancelled`: the cut connections were noticed before
//! the reason was. The guest runs then too.
//!
//! `RESUME` comes before `cancelled`, and after `failed`, which may come twice. A guest that was stopped by [`Monitor::stop`]
//! before the migration tells no `STOP`, and stays stopped: `paused`, or `postmigrate` (7.2) after a cancel; `cont` works from
//! both. `stop` during the pause is accepted and forgotten.
//!
//! So a source may run again as soon as its connection breaks in `device`, and a target that is `completed` says nothing
//! about the source: only a grant may run the target.
//!
//! In `device` the source writes its last pages and its devices with the lock held that QMP needs. If the other end does not
//! read, **no command is answered**, `migrate_cancel` neither, until it reads or the main channel breaks (seen with both
//! versions: `failed` or `cancelled`, and `RESUME`). A QMP that is silent then is no sign of a dead QEMU.
//!
//! # Multifd channels that break
//!
//! **Where a source's multifd channels break before its main channel does, its QEMU may hang for ever**, the guest with it: the
//! migration thread waits for a channel's thread that has ended (`multifd_send_sync_main`), and during the switchover holds the
//! lock that everything else in QEMU needs. Nothing mends that. After `migrate-continue` towards a dead target, tries that hung:
//!
//! | shut down first | 7.2 | 10.0 |
//! |---|---|---|
//! | multifd channels | 7 of 42 | 5 of 40 |
//! | all at once, as when a QEMU dies at the other end | 3 of 25 | 2 of 23 |
//! | main channel | 0 of 18 | 0 of 16 |
//! | none, then `migrate_cancel` | 0 of 12 | 0 of 8 |
//!
//! Therefore who holds the other ends of a source's channels ends a migration with `migrate_cancel`, or by shutting down the
//! main channel only, waits for `cancelled` or `failed` *and* for the guest to run, and closes the multifd channels then,
//! reading from them until then.
//!
//! Where they break while the connections are made, the guest runs, and QEMU 7.2 says `failed`, but the migration thread waits in
//! the same place for ever: every further `migrate` is refused ("duplicate yank instance"). [`Monitor::holds_migration`] tells.
//!
//! # A cancel in the moment of the pause
//!
//! QEMU 7.2 lets go of its lock before it says `pre-switchover` (`migration_maybe_pause`). A `migrate_cancel` in between
//! finds `active`, wakes nobody, and the migration thread waits to be continued, `cancelling`, the guest stopped in
//! `finish-migrate` for ever. `migrate-continue` with the state `cancelling` wakes it
//! ([`Monitor::migrate_continue_cancelling`]). QEMU 10 has closed that gap (`migration_switchover_prepare`).
//!
//! # Throttling
//!
//! With the capability `auto-converge` QEMU throttles a guest when a round ends (`migration_trigger_throttle` of its
//! migration/ram.c): every second time that this is a second after the last, and the guest has dirtied more than
//! `throttle-trigger-threshold` per cent of what was sent since. The first time to `cpu-throttle-initial`, later by
//! `cpu-throttle-increment` more, never beyond `max-cpu-throttle`; what is beyond already is taken back to it. So with the first and
//! the last the same, it is what [`Monitor::set_throttle`] says from the next such moment on. The capability cannot be changed
//! while a migration runs, and a percentage has to be 1 at least: a guest that may be throttled loses a hundredth of its time.
//! A migration that ends, whatever way, ends it (`cpu_throttle_stop`).
//!
//! # Milder forms
//!
//! QEMU 7.2 with multifd has some more. After `migrate_cancel` in `active`: `cancelling` for ever (2 of 48: the guest runs, but
//! no further migration starts). With a target that died in `pre-switchover`, `migrate_cancel` ended once (of 94) in `failed` with
//! the guest stopped.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tracing::debug;

use crate::monitor::Monitor;
use crate::qmp::{QemuVersion, QmpError, QmpEvent};

/// The longest downtime limit that QEMU takes.
pub const DOWNTIME_LIMIT_MS_MAX: u64 = 2_000_000;
/// The most that QEMU throttles a guest by, in per cent.
pub const THROTTLE_MAX: u8 = 99;
/// Pages of each GiB that QEMU looks at to tell what a guest writes, unless told otherwise, and at least (`MIN_SAMPLE_PAGE_COUNT` of
/// its migration/dirtyrate.h).
pub const SAMPLE_PAGES: u64 = 512;
const SAMPLE_PAGES_MIN: u64 = 128;
const AVAIL_SWITCHOVER_BANDWIDTH: &str = "avail-switchover-bandwidth";
const DOWNTIME_LIMIT: &str = "downtime-limit";
const MODE_PARAMETER: &str = "mode";
/// As much as lets no throttling pass.
const THROTTLE_THRESHOLD: u8 = 1;
/// Parameters that QEMU knows since 8.2.
const NEW_IN_8_2: [&str; 2] = [AVAIL_SWITCHOVER_BANDWIDTH, MODE_PARAMETER];

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

/// A migration's settings. Source and target must agree about capabilities, channels and compression: give both the same.
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
    /// Stop before the switchover, for [`Monitor::migrate_continue`]. Only the source knows it.
    pub pause_before_switchover: bool,
    /// `MIGRATION` events ([`MigrationStatus::of_event`]).
    pub events: bool,
    /// Let [`Monitor::set_throttle`] slow the guest down. Until it is called QEMU takes 1 % at most.
    pub throttle: bool,
    /// Bytes a second. QEMU's default is 128 MiB/s; [`u64::MAX`] is what the field compares with.
    pub max_bandwidth: u64,
    /// Milliseconds the switchover may be expected to take, 300 by QEMU's default, [`DOWNTIME_LIMIT_MS_MAX`] at most.
    pub downtime_limit_ms: u64,
    /// Bytes a second that the switchover may count on, in place of QEMU's own estimate. Only QEMU 8.2 and later know
    /// it; [`Monitor::tune`] leaves it out elsewhere.
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

    /// The argument of `migrate-set-parameters`, of which [`Monitor::tune`] leaves out what QEMU does not know.
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

/// Parameters that throttle a guest to exactly so many per cent: see the [module](self).
fn throttle(percent: u8) -> Map<String, Value> {
    let percent = percent.clamp(1, THROTTLE_MAX);
    throttle_parameters([THROTTLE_THRESHOLD, percent, THROTTLE_MAX, percent])
}

/// The threshold, the first throttle, by how much it grows, and the most: all in per cent.
fn throttle_parameters(values: [u8; 4]) -> Map<String, Value> {
    let names = ["throttle-trigger-threshold", "cpu-throttle-initial", "cpu-throttle-increment", "max-cpu-throttle"];
    names.into_iter().zip(values).map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// Where a migration stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationStatus {
    /// There was none.
    #[default]
    None,
    /// Connecting, allocating.
    Setup,
    /// Copying while the guest runs.
    Active,
    /// Stopped by `pause-before-switchover`.
    PreSwitchover,
    /// The guest is stopped and its devices move.
    Device,
    /// Waiting for the guest's failover NIC to be unplugged.
    WaitUnplug,
    /// `migrate_cancel` was heard.
    Cancelling,
    /// And done.
    Cancelled,
    /// The guest is the target's.
    Completed,
    /// See [`MigrationInfo::error`].
    Failed,
    /// Any of postcopy's, or one that this program does not know.
    #[serde(other)]
    Other,
}

impl MigrationStatus {
    /// Whether nothing more will happen.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl MigrationStatus {
    /// What a `MIGRATION` event says; none for other events. QEMU sends them where [`Tuning::events`] is on.
    pub fn of_event(event: &QmpEvent) -> Option<Self> {
        if event.name != "MIGRATION" {
            return None;
        }
        Some(serde_json::from_value(event.data["status"].clone()).unwrap_or(Self::Other))
    }
}

/// Whether the guest runs, and if not, why: QEMU's run states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// It runs.
    Running,
    /// Stopped by `stop`; a target with `-S` that has all it needs.
    Paused,
    /// A target: its state is on the way.
    #[serde(rename = "inmigrate")]
    InMigrate,
    /// A source: its state is the target's. `cont` runs it all the same.
    #[serde(rename = "postmigrate")]
    PostMigrate,
    /// A source: stopped for the switchover. `cont` is refused.
    FinishMigrate,
    /// Not started yet (`-S`).
    #[serde(rename = "prelaunch")]
    PreLaunch,
    /// QEMU or KVM is at its wits' end.
    InternalError,
    /// Stopped by a failing disk.
    IoError,
    /// The guest has shut down, and QEMU was told to stay.
    Shutdown,
    /// The guest's kernel panicked.
    GuestPanicked,
    /// The guest sleeps (S3).
    Suspended,
    /// Stopped by its watchdog.
    Watchdog,
    /// Any other: `save-vm`, `restore-vm`, `debug`, `colo`, `preconfig`...
    #[serde(untagged)]
    Other(String),
}

/// How a guest's NICs tell the network where they are now: `rounds` packets, `initial`, then `step` more each time, up to
/// `max` milliseconds apart. The default is QEMU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Milliseconds before the second packet.
    pub initial: u32,
    /// Milliseconds.
    pub max: u32,
    /// Packets.
    pub rounds: u32,
    /// Milliseconds.
    pub step: u32,
}

impl Default for Announcement {
    fn default() -> Self {
        Self { initial: 50, max: 550, rounds: 5, step: 100 }
    }
}

/// The RAM's part of a migration. Bytes unless said otherwise; the totals grow over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all(deserialize = "kebab-case"))]
pub struct RamInfo {
    /// Sent.
    pub transferred: u64,
    /// Left to send.
    pub remaining: u64,
    /// The guest's RAM.
    pub total: u64,
    /// Pages that were sent as zeros.
    pub duplicate: u64,
    /// Pages that were sent whole.
    pub normal: u64,
    /// The same in bytes.
    pub normal_bytes: u64,
    /// Bytes that multifd channels sent, part of `transferred`.
    pub multifd_bytes: u64,
    /// Rounds.
    pub dirty_sync_count: u64,
    /// Pages dirtied a second, in the last round.
    pub dirty_pages_rate: u64,
    /// Mb/s.
    #[serde(rename = "mbps")]
    pub mbit_per_s: f64,
    /// Pages a second.
    pub pages_per_second: u64,
    /// Sent while the guest ran.
    pub precopy_bytes: u64,
    /// Sent while it was stopped.
    pub downtime_bytes: u64,
}

/// What `query-migrate` says. Times in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all(deserialize = "kebab-case"))]
pub struct MigrationInfo {
    /// Where it stands.
    pub status: MigrationStatus,
    /// Since it began.
    pub total_time: u64,
    /// The switchover, once completed.
    pub downtime: Option<u64>,
    /// Per cent that the guest is throttled by; none: not at all.
    #[serde(rename(deserialize = "cpu-throttle-percentage"))]
    pub throttle: Option<u8>,
    /// Until the first page.
    pub setup_time: u64,
    /// The RAM's part, once there is one.
    pub ram: Option<RamInfo>,
    /// Why it failed.
    #[serde(rename(deserialize = "error-desc"))]
    pub error: Option<String>,
    /// What would make `migrate` refuse: see [`Monitor::blocked_reasons`].
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

/// Of an answer to `query-dirty-rate`. What QEMU calls MB/s are MiB/s (its migration/dirtyrate.c).
fn dirty_rate(answer: &Value) -> Option<u64> {
    (answer["status"] == "measured").then(|| answer["dirty-rate"].as_u64())?.map(|mib| mib.saturating_mul(1 << 20))
}

/// How often progress is asked for. Each question takes QEMU's big lock for some microseconds.
const PROGRESS_POLL_PERIOD: Duration = Duration::from_millis(20);

impl Monitor {
    /// Sets a migration's capabilities and parameters, on the source or on the target.
    pub fn tune(&self, tuning: &Tuning) -> Result<(), QmpError> {
        self.execute("migrate-set-capabilities", tuning.capabilities())?;
        let mut parameters = tuning.parameters();
        if !self.is_8_2()
            && let Some(parameters) = parameters.as_object_mut()
        {
            NEW_IN_8_2.iter().for_each(|name| drop(parameters.remove(*name)));
        }
        self.execute("migrate-set-parameters", parameters)?;
        Ok(())
    }

    /// Has a migration that runs switch over as soon as no more than `bytes` are left, within a downtime limit of `limit_ms`.
    ///
    /// QEMU switches over when what is left is no more than the limit times a rate: [`Tuning::avail_switchover_bandwidth`], or
    /// before 8.2 always what its sockets took in the last tenth of a second ([`RamInfo::mbit_per_s`]), which is then answered with
    /// a shorter limit; never a longer one, as the next tenth may be another.
    pub fn set_switchover(&self, bytes: u64, limit_ms: u64, ram: &RamInfo) -> Result<(), QmpError> {
        let parameters = if self.is_8_2() {
            // 0 would be QEMU's own measure.
            json!({ AVAIL_SWITCHOVER_BANDWIDTH: (bytes.saturating_mul(1000) / limit_ms.max(1)).max(1) })
        } else {
            // Mb/s are kb/ms.
            let ms = bytes as f64 / (ram.mbit_per_s * 1000.0 / 8.0).max(1.0);
            json!({ DOWNTIME_LIMIT: (ms as u64).clamp(1, limit_ms.max(1)) })
        };
        self.execute("migrate-set-parameters", parameters).map(drop)
    }

    /// Undoes what [`Self::set_switchover`] and [`Self::set_throttle`] set, for the next migration of this QEMU, whoever begins it:
    /// all of that is as QEMU has it when it starts.
    pub fn forget_tuning(&self) -> Result<(), QmpError> {
        // QEMU's own (migration/options.c).
        let mut parameters = throttle_parameters([50, 20, 10, THROTTLE_MAX]);
        parameters.insert(DOWNTIME_LIMIT.into(), Tuning::default().downtime_limit_ms.into());
        if self.is_8_2() {
            parameters.insert(AVAIL_SWITCHOVER_BANDWIDTH.into(), 0.into());
        }
        self.execute("migrate-set-parameters", Value::Object(parameters))?;
        self.execute(
            "migrate-set-capabilities",
            json!({ "capabilities": [{ "capability": "auto-converge", "state": false }] }),
        )
        .map(drop)
    }

    /// Throttles the guest to so many per cent, at the end of one of the next rounds: see the [module](self). With
    /// [`Tuning::throttle`] only.
    pub fn set_throttle(&self, percent: u8) -> Result<(), QmpError> {
        self.execute("migrate-set-parameters", Value::Object(throttle(percent))).map(drop)
    }

    /// Has QEMU measure for so many seconds what the guest writes, by samples: it hashes so many pages of each GiB of RAM (128 at
    /// least), twice, and the guest does not notice. What comes of it tells [`Self::dirty_rate`]. Refused while it measures.
    pub fn measure_dirty_rate(&self, seconds: u64, pages_per_gib: u64) -> Result<(), QmpError> {
        let arguments = json!({ "calc-time": seconds, "sample-pages": pages_per_gib.max(SAMPLE_PAGES_MIN) });
        self.execute("calc-dirty-rate", arguments).map(drop)
    }

    /// Bytes a second that the guest dirtied, once that has been measured. A page counts once however often it was written.
    pub fn dirty_rate(&self) -> Result<Option<u64>, QmpError> {
        self.execute("query-dirty-rate", Value::Null).map(|answer| dirty_rate(&answer))
    }

    fn is_8_2(&self) -> bool {
        *self.version() >= QemuVersion { major: 8, minor: 2, micro: 0 }
    }

    /// Listens for a migration: for a QEMU started with `-incoming defer`, after [`Monitor::tune`].
    pub fn migrate_incoming(&self, uri: &str) -> Result<(), QmpError> {
        self.execute("migrate-incoming", json!({ "uri": uri })).map(drop)
    }

    /// Starts to migrate to `tcp:HOST:PORT`, `unix:PATH`... QEMU connects later: that nobody listens is told by
    /// [`MigrationStatus::Failed`], not here.
    pub fn migrate(&self, uri: &str) -> Result<(), QmpError> {
        self.execute("migrate", json!({ "uri": uri })).map(drop)
    }

    /// From [`MigrationStatus::PreSwitchover`] on to the switchover; refused in any other state, but in those that this leads to:
    /// who had no answer may say it again.
    pub fn migrate_continue(&self) -> Result<(), QmpError> {
        match self.execute("migrate-continue", json!({ "state": "pre-switchover" })) {
            Err(refused @ QmpError::Refused { .. }) => match self.migration()?.status {
                MigrationStatus::Device | MigrationStatus::Completed => {
                    debug!("it had worked before: {refused}");
                    Ok(())
                }
                _ => Err(refused),
            },
            other => other.map(drop),
        }
    }

    /// Wakes a migration that is [`MigrationStatus::Cancelling`] and waits for [`Monitor::migrate_continue`] all the same:
    /// see the [module](self). Refused in any other state; repeated, it does no harm.
    pub fn migrate_continue_cancelling(&self) -> Result<(), QmpError> {
        self.execute("migrate-continue", json!({ "state": "cancelling" })).map(drop)
    }

    /// Ends a migration, on the source; nothing happens if there is none or it is over. See the [module](self) for when
    /// and how the guest runs again.
    pub fn migrate_cancel(&self) -> Result<(), QmpError> {
        self.query("migrate_cancel").map(drop)
    }

    /// Runs the guest. Refused between [`MigrationStatus::PreSwitchover`] and the migration's end.
    pub fn cont(&self) -> Result<(), QmpError> {
        self.query("cont").map(drop)
    }

    /// Stops the guest. It stays stopped over a migration.
    pub fn stop(&self) -> Result<(), QmpError> {
        self.query("stop").map(drop)
    }

    /// Ends QEMU, the guest with it. The connection may break before the answer.
    pub fn quit(&self) -> Result<(), QmpError> {
        match self.query("quit") {
            Ok(_) | Err(QmpError::Closed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has the guest's NICs tell the network where they are. QEMU does so itself when a migrated guest first runs.
    pub fn announce_self(&self, announcement: &Announcement) -> Result<(), QmpError> {
        self.execute("announce-self", json!(announcement)).map(drop)
    }

    /// How the migration stands.
    pub fn migration(&self) -> Result<MigrationInfo, QmpError> {
        MigrationInfo::parse(self.query("query-migrate")?)
    }

    /// Why this guest cannot be migrated, in QEMU's words, known before any migration: devices and block formats. Empty
    /// is no promise: some reasons are only found when `migrate` is called, and then are its refusal.
    pub fn blocked_reasons(&self) -> Result<Vec<String>, QmpError> {
        Ok(self.migration()?.blocked_reasons)
    }

    /// Whether QEMU has something to do with a migration still, in or out: one is under way, or is over by its
    /// [`MigrationStatus`] and its threads have not ended. `migrate` is refused until then. QEMU frees its place among what
    /// can be yanked (`yank_unregister_instance`) as the last thing that it does of a migration.
    pub fn holds_migration(&self) -> Result<bool, QmpError> {
        let answer = self.query("query-yank")?;
        let instances = answer
            .as_array()
            .ok_or_else(|| QmpError::Malformed { reason: "query-yank: no list".into(), excerpt: answer.to_string() })?;
        Ok(instances.iter().any(|instance| instance["type"] == "migration"))
    }

    /// Waits until the migration is over, completed or not, telling `progress` how it stands.
    pub fn wait_migrated(
        &self,
        deadline: Duration,
        mut progress: impl FnMut(&MigrationInfo),
    ) -> Result<MigrationInfo, QmpError> {
        let end = Instant::now() + deadline;
        loop {
            let info = self.migration()?;
            progress(&info);
            if info.status.is_over() {
                return Ok(info);
            }
            if Instant::now() >= end {
                return Err(QmpError::Timeout { what: "that the migration is over".into(), after: deadline });
            }
            std::thread::sleep(PROGRESS_POLL_PERIOD);
        }
    }

    /// Whether the guest runs, and if not, why.
    pub fn run_state(&self) -> Result<RunState, QmpError> {
        let answer = self.query("query-status")?;
        serde_json::from_value(answer["status"].clone())
            .map_err(|e| QmpError::Malformed { reason: format!("query-status: {e}"), excerpt: answer.to_string() })
    }

    /// Whether the guest runs.
    pub fn is_running(&self) -> Result<bool, QmpError> {
        Ok(self.run_state()? == RunState::Running)
    }
}

#[cfg(test)]
mod tests {
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
        // From QEMU 7.2, shortened.
        let completed = json!({
            "status": "completed", "setup-time": 2, "downtime": 7, "total-time": 1503, "cpu-throttle-percentage": 20,
            "ram": {
                "total": 286_728_192, "postcopy-requests": 0, "dirty-sync-count": 3, "multifd-bytes": 0, "pages-per-second": 1000,
                "downtime-bytes": 4096, "page-size": 4096, "remaining": 0, "postcopy-bytes": 0, "mbps": 1234.5, "transferred": 5000,
                "dirty-sync-missed-zero-copy": 0, "precopy-bytes": 904, "duplicate": 61, "dirty-pages-rate": 2, "skipped": 0,
                "normal-bytes": 8192, "normal": 2
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

    #[test]
    fn reads_run_states_and_events() {
        let state = |name: &str| serde_json::from_value::<RunState>(json!(name)).unwrap();
        for (name, wanted) in [
            ("running", RunState::Running),
            ("inmigrate", RunState::InMigrate),
            ("postmigrate", RunState::PostMigrate),
            ("finish-migrate", RunState::FinishMigrate),
            ("prelaunch", RunState::PreLaunch),
            ("guest-panicked", RunState::GuestPanicked),
            ("colo", RunState::Other("colo".into())),
        ] {
            assert_eq!(state(name), wanted);
            assert_eq!(serde_json::to_value(wanted).unwrap(), json!(name));
        }
        let event = |name: &str, data| QmpEvent { name: name.into(), data, time: Duration::ZERO };
        let status = |data| MigrationStatus::of_event(&event("MIGRATION", data));
        assert_eq!(status(json!({"status": "pre-switchover"})), Some(MigrationStatus::PreSwitchover));
        assert_eq!(status(json!({"status": "invented-later"})), Some(MigrationStatus::Other));
        assert_eq!(status(Value::Null), Some(MigrationStatus::Other));
        assert_eq!(MigrationStatus::of_event(&event("STOP", Value::Null)), None);
    }

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
                "max-bandwidth": i64::MAX, "downtime-limit": 300, "mode": "normal", "avail-switchover-bandwidth": 5, "multifd-channels": 4, "multifd-compression": "zstd",
                "tls-creds": "tls0", "tls-hostname": "b", "throttle-trigger-threshold": 1, "cpu-throttle-initial": 1,
                "cpu-throttle-increment": 99, "max-cpu-throttle": 1
            })
        );
    }
}
