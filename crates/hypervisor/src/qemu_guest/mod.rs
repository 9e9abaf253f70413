//! Is QEMU's guests, over QMP.

mod composition;
mod event;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use skein_guest_ram::RamBlock;
use skein_inventory::QemuVersion;
use skein_inventory::composition::{Composition, Drive};

use crate::guest::error::GuestError;
use crate::guest::event::{EventSink, GuestEvent};
use crate::guest::facts::{Accel, BlockNode, DeviceSnapshot, DirtyTracking, ImageSnapshot, InspectedGuest, RamSize};
use crate::guest::inspect::{CompositionError, Inspect};
use crate::guest::migrate::{CopyState, Hold, Migrate, MigrationSettings, MigrationState, Throttling};
use crate::guest::run::{RunControl, RunState};
use crate::guest::{Guest, Quirks};
use crate::inspect::{accel, block_nodes};
use crate::migration::commands::Announcement;
use crate::migration::info::{MigrationInfo, RamInfo};
use crate::migration::tuning::Tuning;
use crate::qmp::error::QmpError;
use crate::qmp::events::MonitorEvent;
use crate::qmp::monitor::Monitor;

/// Holds the QEMU from which on a throttled guest may stand still while its migration waits for the network: the timer
/// of its migration/cpu-throttle.c waits in the main loop for the migration's thread.
const FREEZES_WITHOUT_NETWORK_FROM: QemuVersion = QemuVersion { major: 9, minor: 2, micro: 0 };
/// Holds the QEMU from which on less is missed of what a guest writes without KVM ("physmem: Fix migration dirty bitmap
/// coherency with TCG memory access").
const TRACKS_ALIGNED_BLOCKS_FROM: QemuVersion = QemuVersion { major: 9, minor: 0, micro: 0 };
/// Holds the QEMU from which on a guest that sleeps is moved asleep ("cpus: vm_was_suspended"). Before, the QEMU of
/// either end could wake the guest by itself.
const MOVES_ASLEEP_FROM: QemuVersion = QemuVersion { major: 9, minor: 0, micro: 0 };
/// Holds the size of the pages that QEMU counts.
const PAGE_BYTES: u64 = 4096;

impl From<QmpError> for GuestError {
    fn from(error: QmpError) -> Self {
        match error {
            QmpError::Timeout { .. } => Self::Silent(error.into()),
            QmpError::Refused { .. } => Self::Refused(error.into()),
            QmpError::Closed => Self::Gone(error.into()),
            QmpError::Connect { .. } | QmpError::Io(_) | QmpError::TooLong | QmpError::Malformed { .. } => {
                Self::Failed(error.into())
            }
        }
    }
}

impl From<QmpError> for CompositionError {
    fn from(error: QmpError) -> Self {
        Self::Guest(error.into())
    }
}

impl Guest for Monitor {
    fn program(&self) -> String {
        format!("QEMU {}", Monitor::version(self))
    }

    fn version(&self) -> String {
        Monitor::version(self).to_string()
    }

    fn quirks(&self) -> Quirks {
        Quirks {
            freezes_throttled_without_network: *Monitor::version(self) >= FREEZES_WITHOUT_NETWORK_FROM,
            moves_asleep: *Monitor::version(self) >= MOVES_ASLEEP_FROM,
        }
    }

    fn with_patience(&self, patience: Duration) -> Arc<dyn Guest> {
        Arc::new(Monitor::with_patience(self, patience))
    }

    fn forward(&self, mut sink: EventSink) {
        Monitor::forward(self, move |event| match event {
            MonitorEvent::Closed => sink(GuestEvent::Closed),
            MonitorEvent::Event(event) => event::read(&event).is_none_or(&mut sink),
        });
    }

    fn is_closed(&self) -> bool {
        Monitor::is_closed(self)
    }

    fn close(&self) {
        Monitor::close(self);
    }
}

impl RunControl for Monitor {
    fn run_state(&self) -> Result<RunState, GuestError> {
        Ok(Monitor::run_state(self)?)
    }

    fn resume(&self) -> Result<(), GuestError> {
        Ok(self.cont()?)
    }

    fn press_power_button(&self) -> Result<(), GuestError> {
        Ok(self.query("system_powerdown").map(drop)?)
    }

    fn quit(&self) -> Result<(), GuestError> {
        Ok(Monitor::quit(self)?)
    }

    /// Announces once more: QEMU does so itself when a migrated guest first runs.
    fn announce(&self) -> Result<(), GuestError> {
        Ok(self.announce_self(&Announcement::default())?)
    }
}

impl Migrate for Monitor {
    fn migration(&self) -> Result<MigrationState, GuestError> {
        Ok(state(Monitor::migration(self)?))
    }

    fn holds_migration(&self) -> Result<bool, GuestError> {
        Ok(Monitor::holds_migration(self)?)
    }

    fn begin_outgoing(
        &self,
        settings: &MigrationSettings,
        throttling: Throttling,
        hold: Hold,
        to: &Path,
    ) -> Result<(), GuestError> {
        self.tune(&Tuning {
            pause_before_switchover: true,
            // Nothing is left of the switchover's rate of an earlier migration.
            avail_switchover_bandwidth: Some(0),
            throttle: throttling == Throttling::Allowed,
            switchover_ack: hold == Hold::Held,
            ..tuning(settings)
        })?;
        Ok(self.migrate(&format!("unix:{}", to.display()))?)
    }

    fn begin_incoming(&self, settings: &MigrationSettings, at: &Path) -> Result<(), GuestError> {
        self.tune(&tuning(settings))?;
        Ok(self.migrate_incoming(&format!("unix:{}", at.display()))?)
    }

    fn continue_migration(&self) -> Result<(), GuestError> {
        Ok(self.migrate_continue()?)
    }

    fn continue_cancelling(&self) -> Result<(), GuestError> {
        Ok(self.migrate_continue_cancelling()?)
    }

    fn cancel_migration(&self) -> Result<(), GuestError> {
        Ok(self.migrate_cancel()?)
    }

    fn forget_migration_settings(&self) -> Result<(), GuestError> {
        Ok(self.forget_tuning()?)
    }

    fn set_switchover(&self, bytes: u64, limit_ms: u64, socket_mbit_per_s: f64) -> Result<(), GuestError> {
        let ram = RamInfo { mbit_per_s: socket_mbit_per_s, ..RamInfo::default() };
        Ok(Monitor::set_switchover(self, bytes, limit_ms, &ram)?)
    }

    fn switchover_word(&self) -> Option<&'static [u8]> {
        self.switchover_ack()
    }

    fn limit_rate(&self, bytes_per_s: Option<u64>) -> Result<(), GuestError> {
        Ok(Monitor::limit_rate(self, bytes_per_s)?)
    }

    fn set_throttle(&self, percent: u8) -> Result<(), GuestError> {
        Ok(Monitor::set_throttle(self, percent)?)
    }

    fn measure_dirty_rate(&self, time: Duration, pages_per_gib: u64) -> Result<(), GuestError> {
        Ok(Monitor::measure_dirty_rate(self, time.as_secs(), pages_per_gib)?)
    }

    fn dirty_rate(&self) -> Result<Option<u64>, GuestError> {
        Ok(Monitor::dirty_rate(self)?)
    }
}

/// Returns what both ends have to agree on, as QEMU has it.
fn tuning(settings: &MigrationSettings) -> Tuning {
    Tuning {
        multifd: settings.channels,
        return_path: true,
        events: true,
        downtime_limit_ms: settings.downtime_limit_ms,
        ..Tuning::default()
    }
}

fn state(info: MigrationInfo) -> MigrationState {
    let copy = |ram: RamInfo| CopyState {
        total_bytes: ram.total,
        remaining_bytes: ram.remaining,
        transferred_bytes: ram.transferred,
        sent_page_bytes: ram.normal.saturating_add(ram.duplicate).saturating_mul(PAGE_BYTES),
        round: ram.dirty_sync_count,
        dirty_bytes_per_s: ram.dirty_pages_rate.saturating_mul(PAGE_BYTES),
        socket_mbit_per_s: ram.mbit_per_s,
    };
    let MigrationInfo { status, throttle, error, ram, .. } = info;
    MigrationState { status, throttle_percent: throttle, copy: ram.map(copy), error }
}

impl Inspect for Monitor {
    fn composition(&self) -> Result<Composition, CompositionError> {
        composition::of(self)
    }

    fn drives(&self) -> Result<Vec<Drive>, CompositionError> {
        composition::drives(self)
    }

    fn devices(&self) -> Result<DeviceSnapshot, GuestError> {
        Ok(composition::devices(self)?)
    }

    fn images(&self) -> Result<ImageSnapshot, GuestError> {
        Ok(composition::images(self)?)
    }

    fn hot_plugged(&self, composition: &Composition) -> Result<Vec<String>, GuestError> {
        Ok(composition::hot_plugged(self, composition)?)
    }

    fn ram_blocks(&self) -> Result<Vec<RamBlock>, GuestError> {
        Ok(Monitor::ram_blocks(self)?)
    }

    /// Returns how exactly QEMU knows what was written. With KVM the kernel keeps the books. `DirtyTracking` of
    /// skein-dataplane tells what TCG may miss, and why.
    fn dirty_tracking(&self) -> DirtyTracking {
        match accel(self) {
            Ok(Accel::Kvm) => DirtyTracking::Exact,
            _ if *Monitor::version(self) >= TRACKS_ALIGNED_BLOCKS_FROM => DirtyTracking::MissesUnalignedBlocks,
            _ => DirtyTracking::MissesAllBlocks,
        }
    }

    fn ram_size(&self) -> Result<RamSize, GuestError> {
        let answer = self.query("query-memory-size-summary")?;
        let base = answer["base-memory"].as_u64();
        let base_bytes = base.ok_or_else(|| {
            let reason = "query-memory-size-summary: no base-memory".into();
            QmpError::Malformed { reason, excerpt: answer.to_string() }
        })?;
        Ok(RamSize { base_bytes, plugged_bytes: answer["plugged-memory"].as_u64().unwrap_or(0) })
    }

    fn cpus(&self) -> Result<u32, GuestError> {
        let answer = self.query("query-cpus-fast")?;
        let all = answer.as_array().ok_or_else(|| QmpError::Malformed {
            reason: "query-cpus-fast: no list".into(),
            excerpt: answer.to_string(),
        })?;
        Ok(all.len().try_into().unwrap_or(u32::MAX))
    }

    fn inspect(&self) -> Result<InspectedGuest, GuestError> {
        Ok(InspectedGuest::of(self)?)
    }

    fn block_nodes(&self) -> Result<Vec<BlockNode>, GuestError> {
        Ok(block_nodes(self)?)
    }

    fn blocked_reasons(&self) -> Result<Vec<String>, GuestError> {
        Ok(Monitor::blocked_reasons(self)?)
    }

    fn name(&self) -> Result<String, GuestError> {
        Ok(self.query("query-name")?["name"].as_str().unwrap_or_default().to_owned())
    }

    fn versioned_machine(&self, alias: &str) -> Option<String> {
        let machines = self.query("query-machines").ok()?;
        let named = |machine: &&Value| machine["alias"] == alias;
        Some(machines.as_array()?.iter().find(named)?["name"].as_str()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::sync_channel;

    use serde_json::json;

    use super::*;
    use crate::guest::migrate::MigrationStatus;
    use crate::qmp::fake::{fake, fake_of};

    /// Returns a guest of this version, and the arguments of the commands that it gets.
    fn guest(version: (u32, u32)) -> (Arc<dyn Guest>, std::sync::mpsc::Receiver<(String, Value)>) {
        let (set, heard) = sync_channel(16);
        let monitor = fake_of(version, move |request, id, out| {
            let command = request["execute"].as_str().unwrap().to_owned();
            set.send((command, request["arguments"].clone())).unwrap();
            writeln!(out, "{}", json!({ "return": {}, "id": id })).unwrap();
        });
        (Arc::new(monitor), heard)
    }

    #[test]
    fn what_is_peculiar_is_of_the_version() {
        for (version, freezes, moves_asleep) in
            [((7, 2), false, false), ((8, 2), false, false), ((9, 0), false, true), ((9, 2), true, true)]
        {
            let (guest, _heard) = guest(version);
            let quirks = Quirks { freezes_throttled_without_network: freezes, moves_asleep };
            assert_eq!(guest.quirks(), quirks, "{version:?}");
        }
        let (guest, _heard) = guest((10, 0));
        assert_eq!((guest.program(), guest.version()), ("QEMU 10.0.2".into(), "10.0.2".into()));
    }

    #[test]
    fn a_source_stops_before_the_switchover_and_is_tuned_for_no_other_migration() {
        let (guest, heard) = guest((10, 0));
        let settings = MigrationSettings { channels: Some(4), downtime_limit_ms: 50 };
        guest.begin_outgoing(&settings, Throttling::Allowed, Hold::NotHeld, Path::new("/run/x")).unwrap();
        let told: Vec<(String, Value)> = heard.try_iter().collect();
        let commands: Vec<&str> = told.iter().map(|(command, _)| &**command).collect();
        assert_eq!(commands, ["migrate-set-capabilities", "migrate-set-parameters", "migrate"]);
        let on = |name: &str| {
            let all = told[0].1["capabilities"].as_array().unwrap();
            all.iter().any(|one| one["capability"] == name && one["state"] == true)
        };
        assert!(["pause-before-switchover", "return-path", "events", "multifd", "auto-converge"].iter().all(|n| on(n)));
        let parameters = &told[1].1;
        assert_eq!((&parameters["downtime-limit"], &parameters["multifd-channels"]), (&json!(50), &json!(4)));
        assert_eq!(parameters["avail-switchover-bandwidth"], 0, "what an earlier migration left");
        assert_eq!(told[2].1, json!({ "uri": "unix:/run/x" }));
    }

    #[test]
    fn a_target_has_what_the_source_has_and_does_not_pause() {
        let (guest, heard) = guest((7, 2));
        let settings = MigrationSettings { channels: None, downtime_limit_ms: 300 };
        guest.begin_incoming(&settings, Path::new("/run/x")).unwrap();
        let told: Vec<(String, Value)> = heard.try_iter().collect();
        let on: Vec<&Value> =
            told[0].1["capabilities"].as_array().unwrap().iter().filter(|one| one["state"] == true).collect();
        let names: Vec<&str> = on.iter().map(|one| one["capability"].as_str().unwrap()).collect();
        assert_eq!(names, ["return-path", "events"]);
        assert_eq!(told[2], ("migrate-incoming".into(), json!({ "uri": "unix:/run/x" })));
    }

    #[test]
    fn what_qemu_counts_is_read_in_bytes() {
        let answer = json!({
            "status": "active", "cpu-throttle-percentage": 20,
            "ram": {
                "total": 1 << 20, "remaining": 4096, "transferred": 5000, "normal": 2, "duplicate": 61,
                "dirty-sync-count": 3, "dirty-pages-rate": 2, "mbps": 12.5
            }
        });
        let state = state(MigrationInfo::parse(answer).unwrap());
        assert_eq!((state.status, state.throttle_percent), (MigrationStatus::Active, Some(20)));
        let copy = state.copy.unwrap();
        assert_eq!((copy.total_bytes, copy.remaining_bytes, copy.transferred_bytes), (1 << 20, 4096, 5000));
        assert_eq!((copy.sent_page_bytes, copy.round), (63 * 4096, 3));
        assert_eq!((copy.dirty_bytes_per_s, copy.socket_mbit_per_s), (8192, 12.5));
    }

    #[test]
    fn who_does_not_answer_is_told_from_who_refuses_and_from_who_is_gone() {
        let guest: Arc<dyn Guest> = Arc::new(fake(|command, id, out| match command {
            "cont" => {
                let error = json!({ "class": "GenericError", "desc": "no" });
                writeln!(out, "{}", json!({ "error": error, "id": id })).unwrap();
            }
            "quit" => out.shutdown(std::net::Shutdown::Both).unwrap(),
            _ => {}
        }));
        let silent = guest.with_patience(Duration::from_millis(20)).run_state().unwrap_err();
        assert!(matches!(silent, GuestError::Silent(_)));
        assert_eq!(silent.to_string(), "QEMU did not answer query-status within 20 ms");
        let refused = guest.resume().unwrap_err();
        assert!(matches!(refused, GuestError::Refused(_)));
        assert_eq!(refused.to_string(), "cont: no");
        guest.quit().unwrap();
        assert!(matches!(guest.press_power_button().unwrap_err(), GuestError::Gone(_)));
        assert!(guest.is_closed());
    }
}
