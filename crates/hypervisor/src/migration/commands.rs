//! Asks QEMU about a migration, and steers it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skein_inventory::QemuVersion;
use tracing::debug;

use crate::guest::migrate::MigrationStatus;
use crate::guest::run::RunState;
use crate::migration::info::{MigrationInfo, RamInfo, dirty_rate};
use crate::migration::tuning::{
    AVAIL_SWITCHOVER_BANDWIDTH, DOWNTIME_LIMIT, MAX_BANDWIDTH, MAX_BANDWIDTH_NO_LIMIT, NEW_IN_8_2, SAMPLE_PAGES_MIN,
    SWITCHOVER_ACK, THROTTLE_MAX, Tuning, throttle, throttle_parameters,
};
use crate::qmp::error::QmpError;
use crate::qmp::monitor::Monitor;

/// How a guest's NICs tell the network where they are now: by `rounds` packets, the second `initial` milliseconds after
/// the first, each further interval `step` longer, up to `max`. The default is QEMU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// The milliseconds before the second packet.
    pub initial: u32,
    /// The most milliseconds between two packets.
    pub max: u32,
    /// The number of packets.
    pub rounds: u32,
    /// The milliseconds by which each interval is longer than the one before.
    pub step: u32,
}

impl Default for Announcement {
    fn default() -> Self {
        Self { initial: 50, max: 550, rounds: 5, step: 100 }
    }
}

/// The least limit of a rate, in bytes a second.
const RATE_LIMIT_MIN: u64 = 10;
/// Says how often progress is asked for. Each question takes QEMU's big lock for some microseconds.
const PROGRESS_POLL_PERIOD: Duration = Duration::from_millis(20);

impl Monitor {
    /// Sets a migration's capabilities and parameters, on the source or on the target.
    pub fn tune(&self, tuning: &Tuning) -> Result<(), QmpError> {
        let mut capabilities = tuning.capabilities();
        if !self.is_8_1()
            && let Some(all) = capabilities["capabilities"].as_array_mut()
        {
            all.retain(|one| one["capability"] != SWITCHOVER_ACK);
        }
        self.execute("migrate-set-capabilities", capabilities)?;
        let mut parameters = tuning.parameters();
        if !self.is_8_2()
            && let Some(parameters) = parameters.as_object_mut()
        {
            NEW_IN_8_2.iter().for_each(|name| drop(parameters.remove(*name)));
        }
        self.execute("migrate-set-parameters", parameters)?;
        Ok(())
    }

    /// Makes a migration under way switch over as soon as no more than `bytes` are left, within a downtime limit of
    /// `limit_ms`.
    ///
    /// QEMU switches over when what is left is no more than the limit times a rate. The rate is
    /// [`Tuning::avail_switchover_bandwidth`], or before 8.2 always what its sockets took in the last tenth of a second
    /// ([`RamInfo::mbit_per_s`]). Such a rate is answered with a shorter limit, never with a longer limit, as the next
    /// tenth may be another.
    pub fn set_switchover(&self, bytes: u64, limit_ms: u64, ram: &RamInfo) -> Result<(), QmpError> {
        let parameters = if self.is_8_2() {
            // 0 would mean QEMU's own measure.
            json!({ AVAIL_SWITCHOVER_BANDWIDTH: (bytes.saturating_mul(1000) / limit_ms.max(1)).max(1) })
        } else {
            // Mb/s are kb/ms.
            let ms = bytes as f64 / (ram.mbit_per_s * 1000.0 / 8.0).max(1.0);
            json!({ DOWNTIME_LIMIT: (ms as u64).clamp(1, limit_ms.max(1)) })
        };
        self.execute("migrate-set-parameters", parameters).map(drop)
    }

    /// Undoes what [`Self::set_switchover`] and [`Self::set_throttle`] set, for the next migration of this QEMU,
    /// whatever program begins it: all of that is as in a QEMU that has just started.
    pub fn forget_tuning(&self) -> Result<(), QmpError> {
        // The values are QEMU's own (migration/options.c).
        let mut parameters = throttle_parameters([50, 20, 10, THROTTLE_MAX]);
        parameters.insert(DOWNTIME_LIMIT.into(), Tuning::default().downtime_limit_ms.into());
        if self.is_8_2() {
            parameters.insert(AVAIL_SWITCHOVER_BANDWIDTH.into(), 0.into());
        }
        parameters.insert(MAX_BANDWIDTH.into(), MAX_BANDWIDTH_NO_LIMIT.into());
        self.execute("migrate-set-parameters", Value::Object(parameters))?;
        let all = ["auto-converge", SWITCHOVER_ACK].into_iter().take(if self.is_8_1() { 2 } else { 1 });
        let off: Vec<Value> = all.map(|name| json!({ "capability": name, "state": false })).collect();
        self.execute("migrate-set-capabilities", json!({ "capabilities": off })).map(drop)
    }

    /// Throttles the guest by `percent` per cent, at the end of one of the next rounds: see the [module](super). With
    /// [`Tuning::throttle`] only.
    pub fn set_throttle(&self, percent: u8) -> Result<(), QmpError> {
        self.execute("migrate-set-parameters", Value::Object(throttle(percent))).map(drop)
    }

    /// Makes QEMU measure for `seconds` what the guest writes, by samples. QEMU hashes `pages_per_gib` pages of each
    /// GiB of RAM (128 at least), twice, and the guest does not notice. [`Self::dirty_rate`] returns the result. The
    /// call is refused during a measurement.
    pub fn measure_dirty_rate(&self, seconds: u64, pages_per_gib: u64) -> Result<(), QmpError> {
        let arguments = json!({ "calc-time": seconds, "sample-pages": pages_per_gib.max(SAMPLE_PAGES_MIN) });
        self.execute("calc-dirty-rate", arguments).map(drop)
    }

    /// Returns the bytes a second that the guest dirtied, once that has been measured. A page counts once however often
    /// it was written.
    pub fn dirty_rate(&self) -> Result<Option<u64>, QmpError> {
        self.execute("query-dirty-rate", Value::Null).map(|answer| dirty_rate(&answer))
    }

    /// Has a migration under way send no more than so many bytes a second. `None`: as much as it can. QEMU keeps to the
    /// limit in each tenth of a second, and sends one page at least, or with multifd as many as a packet has.
    pub fn limit_rate(&self, bytes_per_s: Option<u64>) -> Result<(), QmpError> {
        // Less than a byte in a tenth of a second would mean no limit.
        let most =
            bytes_per_s.map_or(MAX_BANDWIDTH_NO_LIMIT, |rate| rate.clamp(RATE_LIMIT_MIN, MAX_BANDWIDTH_NO_LIMIT));
        self.execute("migrate-set-parameters", json!({ MAX_BANDWIDTH: most })).map(drop)
    }

    /// Returns what a source with [`Tuning::switchover_ack`] has to read on its return path before it goes to the
    /// switchover: `MIG_RP_MSG_SWITCHOVER_ACK` with no data (`enum mig_rp_message_type` of migration/migration.c).
    /// `None`: this QEMU does not wait for that.
    pub fn switchover_ack(&self) -> Option<&'static [u8]> {
        self.is_8_1().then_some(&[0, 7, 0, 0])
    }

    fn is_8_1(&self) -> bool {
        *self.version() >= QemuVersion { major: 8, minor: 1, micro: 0 }
    }

    fn is_8_2(&self) -> bool {
        *self.version() >= QemuVersion { major: 8, minor: 2, micro: 0 }
    }

    /// Listens for a migration, in a QEMU started with `-incoming defer`, after [`Monitor::tune`].
    pub fn migrate_incoming(&self, uri: &str) -> Result<(), QmpError> {
        self.execute("migrate-incoming", json!({ "uri": uri })).map(drop)
    }

    /// Starts to migrate to `tcp:HOST:PORT`, `unix:PATH`... QEMU connects later. If nobody listens there,
    /// [`MigrationStatus::Failed`] tells that, not this call.
    pub fn migrate(&self, uri: &str) -> Result<(), QmpError> {
        self.execute("migrate", json!({ "uri": uri })).map(drop)
    }

    /// Goes on from [`MigrationStatus::PreSwitchover`] to the switchover. The call is refused in any other state, but
    /// in those that it leads to: a caller that had no answer may repeat it.
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

    /// Wakes a migration that is [`MigrationStatus::Cancelling`] and waits for [`Monitor::migrate_continue`] all the
    /// same: see the [module](super). The call is refused in any other state; repeated, it does no harm.
    pub fn migrate_continue_cancelling(&self) -> Result<(), QmpError> {
        self.execute("migrate-continue", json!({ "state": "cancelling" })).map(drop)
    }

    /// Ends a migration, on the source. Nothing happens if there is none or it is over. The [module](super) tells when
    /// and how the guest runs again.
    pub fn migrate_cancel(&self) -> Result<(), QmpError> {
        self.query("migrate_cancel").map(drop)
    }

    /// Runs the guest. The call is refused between [`MigrationStatus::PreSwitchover`] and the migration's end.
    pub fn cont(&self) -> Result<(), QmpError> {
        self.query("cont").map(drop)
    }

    /// Stops the guest. The guest stays stopped over a migration.
    pub fn stop(&self) -> Result<(), QmpError> {
        self.query("stop").map(drop)
    }

    /// Ends QEMU, and the guest with it. The connection may break before the answer.
    pub fn quit(&self) -> Result<(), QmpError> {
        match self.query("quit") {
            Ok(_) | Err(QmpError::Closed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes the guest's NICs tell the network where they are. QEMU does so itself when a migrated guest first runs.
    pub fn announce_self(&self, announcement: &Announcement) -> Result<(), QmpError> {
        self.execute("announce-self", json!(announcement)).map(drop)
    }

    /// Returns the state of the migration.
    pub fn migration(&self) -> Result<MigrationInfo, QmpError> {
        MigrationInfo::parse(self.query("query-migrate")?)
    }

    /// Returns why this guest cannot be migrated, in QEMU's words, as far as that is known before any migration:
    /// devices and block formats. Empty is no promise: some reasons are only found when `migrate` is called, and then
    /// are its refusal.
    pub fn blocked_reasons(&self) -> Result<Vec<String>, QmpError> {
        Ok(self.migration()?.blocked_reasons)
    }

    /// Returns whether QEMU still has something to do with a migration, in or out. The migration is under way, or is
    /// over by its [`MigrationStatus`] and its threads have not ended. `migrate` is refused until then. QEMU frees its
    /// place among what can be yanked (`yank_unregister_instance`) as the last thing that it does of a migration.
    pub fn holds_migration(&self) -> Result<bool, QmpError> {
        let answer = self.query("query-yank")?;
        let instances = answer
            .as_array()
            .ok_or_else(|| QmpError::Malformed { reason: "query-yank: no list".into(), excerpt: answer.to_string() })?;
        Ok(instances.iter().any(|instance| instance["type"] == "migration"))
    }

    /// Waits until the migration is over, completed or not, and gives its state to `progress`.
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

    /// Returns whether the guest runs, and if not, why.
    pub fn run_state(&self) -> Result<RunState, QmpError> {
        let answer = self.query("query-status")?;
        serde_json::from_value(answer["status"].clone())
            .map_err(|e| QmpError::Malformed { reason: format!("query-status: {e}"), excerpt: answer.to_string() })
    }

    /// Returns whether the guest runs.
    pub fn is_running(&self) -> Result<bool, QmpError> {
        Ok(self.run_state()? == RunState::Running)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::qmp::fake::{fake, fake_of};

    #[test]
    fn what_a_migration_relies_on_is_set_where_qemu_knows_it() {
        for (version, knows) in [((7, 2), false), ((8, 1), false), ((8, 2), true), ((10, 0), true)] {
            let (set, heard) = std::sync::mpsc::sync_channel(2);
            let monitor = fake_of(version, move |request, id, out| {
                set.send(request["arguments"].clone()).unwrap();
                writeln!(out, "{}", json!({ "return": {}, "id": id })).unwrap();
            });
            monitor.tune(&Tuning { avail_switchover_bandwidth: Some(5), ..Tuning::default() }).unwrap();
            let parameters = heard.iter().nth(1).unwrap();
            assert_eq!(parameters["downtime-limit"], 300);
            let new = |value: Value| if knows { value } else { Value::Null };
            // Another program may have left cpr-reboot there.
            assert_eq!(parameters["mode"], new("normal".into()), "{version:?}");
            assert_eq!(parameters["avail-switchover-bandwidth"], new(5.into()), "{version:?}");
        }
    }

    #[test]
    fn a_source_waits_for_an_acknowledgement_where_qemu_knows_that() {
        for (version, knows) in [((7, 2), false), ((8, 0), false), ((8, 1), true), ((10, 0), true)] {
            let (set, heard) = std::sync::mpsc::sync_channel(9);
            let monitor = fake_of(version, move |request, id, out| {
                set.send(request["arguments"].clone()).unwrap();
                writeln!(out, "{}", json!({ "return": {}, "id": id })).unwrap();
            });
            let has = |value: &Value, state: bool| {
                let all = value["capabilities"].as_array().unwrap();
                all.iter().any(|one| one["capability"] == "switchover-ack" && one["state"] == state)
            };
            monitor.tune(&Tuning { switchover_ack: true, ..Tuning::default() }).unwrap();
            let (capabilities, _) = (heard.recv().unwrap(), heard.recv().unwrap());
            assert_eq!((has(&capabilities, true), monitor.switchover_ack().is_some()), (knows, knows), "{version:?}");
            monitor.forget_tuning().unwrap();
            assert_eq!(heard.recv().unwrap()["max-bandwidth"], i64::MAX);
            assert_eq!(has(&heard.recv().unwrap(), false), knows, "{version:?}");
            for (limit, says) in [(Some(5000), 5000), (Some(0), 10), (None, i64::MAX)] {
                monitor.limit_rate(limit).unwrap();
                assert_eq!(heard.recv().unwrap(), json!({ "max-bandwidth": says }));
            }
        }
    }

    #[test]
    fn a_switchover_is_steered_by_what_qemu_goes_by() {
        let half_gbit = RamInfo { mbit_per_s: 500.0, ..RamInfo::default() };
        let idle = RamInfo::default();
        for (version, bytes, ram, says) in [
            ((10, 0), 30_000_000, half_gbit, json!({ "avail-switchover-bandwidth": 100_000_000 })),
            ((8, 2), 30_000_000, idle, json!({ "avail-switchover-bandwidth": 100_000_000 })),
            ((7, 2), 10_000_000, half_gbit, json!({ "downtime-limit": 160 })),
            ((7, 2), 30_000_000, half_gbit, json!({ "downtime-limit": 300 })),
            ((8, 1), 10_000, half_gbit, json!({ "downtime-limit": 1 })),
            ((7, 2), 30_000_000, idle, json!({ "downtime-limit": 300 })),
        ] {
            let (set, heard) = std::sync::mpsc::sync_channel(2);
            let monitor = fake_of(version, move |request, id, out| {
                set.send(request["arguments"].clone()).unwrap();
                writeln!(out, "{}", json!({ "return": {}, "id": id })).unwrap();
            });
            monitor.set_switchover(bytes, 300, &ram).unwrap();
            assert_eq!(heard.recv().unwrap(), says, "{version:?}");
        }
    }

    #[test]
    fn a_switchover_that_is_under_way_may_be_ordered_again() {
        for (status, is_fine) in [("device", true), ("completed", true), ("active", false), ("failed", false)] {
            let monitor = fake(move |command, id, out| {
                let desc = format!("Migration not in expected state: {status}");
                let answer = match command {
                    "migrate-continue" => json!({ "error": { "class": "GenericError", "desc": desc }, "id": id }),
                    _ => json!({ "return": { "status": status }, "id": id }),
                };
                writeln!(out, "{answer}").unwrap();
            });
            assert_eq!(monitor.migrate_continue().is_ok(), is_fine, "{status}");
        }
    }
}
