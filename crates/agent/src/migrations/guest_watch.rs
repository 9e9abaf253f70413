//! What happens to a guest while it is copied.
//!
//! | seen | by | what follows |
//! |---|---|---|
//! | paused, disk error, no space, panicked, stopped by its watchdog, shut down and kept (`-no-shutdown`) | run state; events say why | called off; the guest stays as it is |
//! | a device, medium, block job, vCPU, memory device... came or went | its composition | called off; the guest runs on |
//! | its QEMU ended: shut down, killed | events, the process | the migration ends with the guest |
//! | reset | event | goes on |
//! | suspended | run state | goes on from QEMU 9.0 on, asleep; called off before |
//!
//! The composition is compared with what the target was told and has compared its own QEMU with. A look at all of it
//! takes milliseconds. When QEMU has let go of the guest, its drives are looked at once more, while the target loads
//! its state: they change without an event, to the last moment. While a migration runs, QEMU plugs and unplugs no
//! device ("device_add not allowed while migrating", softmmu/qdev-monitor.c), and what the guest lets go of has an
//! event.

use std::time::{Duration, Instant};

use skein_hypervisor::{Monitor, QemuVersion, QmpEvent, RunState};
use skein_inventory::check::standstill;
use skein_inventory::composition::{Composition, Part, differences};
use skein_inventory::shortened;
use tracing::info;

use crate::composition;

/// How often the composition is looked at: what changed is told within a second.
const COMPOSITION_CHECK_PERIOD: Duration = Duration::from_millis(400);
/// Most differences that are told.
pub(super) const DIFFERENCES_TOLD_MAX: usize = 4;
/// From this QEMU on a guest that sleeps is moved as one that sleeps ("cpus: vm_was_suspended"). Before, the QEMU of
/// either end could wake it by itself.
const SUSPENDED_MOVES_FROM: (u32, u32) = (9, 0);

/// Watches a guest from the beginning of its copy on.
pub(super) struct GuestWatch {
    /// What the target was told.
    promised: Composition,
    looked_at: Instant,
    /// The last look at all of it was not answered.
    is_unknown: bool,
    /// What an event last said of why the guest stands still, or its QEMU ends.
    reason: Option<String>,
}

impl GuestWatch {
    /// `told`: what the target was told that the guest is composed of.
    ///
    /// # Errors
    /// If the target was told nothing, or the guest is not composed so any more; with the reason.
    pub(super) fn begin(monitor: &Monitor, told: Option<Composition>) -> Result<GuestWatch, String> {
        let told =
            told.ok_or("the target has not asked what the guest is composed of: is its agent older than this one?")?;
        let told = Composition { files: Vec::new(), boot_id: None, ..told };
        let mut watch = GuestWatch { promised: told, looked_at: Instant::now(), is_unknown: false, reason: None };
        match watch.compare(monitor) {
            Some(why) => Err(why),
            None => Ok(watch),
        }
    }

    /// What an event tells of the guest that is worth a line in the log; what stops the guest or ends its QEMU is
    /// remembered.
    pub(super) fn hear(&mut self, event: &QmpEvent) -> Option<String> {
        match event.name.as_str() {
            "RESET" => return Some("the guest was reset; the copy goes on".into()),
            "SUSPEND" => return Some("the guest went to sleep".into()),
            "WAKEUP" => return Some("the guest woke up".into()),
            _ => self.reason = reason(event).or_else(|| self.reason.take()),
        }
        None
    }

    /// Whether this event may say that the composition changed.
    pub(super) fn concerns(event: &QmpEvent) -> bool {
        let names = ["DEVICE_", "BLOCK_JOB_", "JOB_STATUS_CHANGE", "MEMORY_DEVICE", "UNPLUG", "BLOCK_EXPORT"];
        names.iter().any(|name| event.name.contains(name))
    }

    /// Why the guest, which QEMU says is in this state, must not go on being copied. None: it may.
    pub(super) fn stopped(&self, state: &RunState, version: &QemuVersion) -> Option<String> {
        let word = serde_json::to_value(state).ok()?.as_str()?.to_owned();
        match state {
            RunState::Running | RunState::FinishMigrate | RunState::PostMigrate => None,
            RunState::Suspended if (version.major, version.minor) >= SUSPENDED_MOVES_FROM => None,
            RunState::Suspended => Some(format!("it went to sleep, and QEMU {version} could wake it at both ends")),
            _ => {
                let why = standstill(&word).map_or("somebody or something stopped it", |(why, _)| why);
                Some(self.reason.clone().unwrap_or_else(|| format!("{why} (QEMU's run state is {word})")))
            }
        }
    }

    /// Why its QEMU ended, as far as an event said.
    pub(super) fn ended(&self) -> Option<String> {
        self.reason.clone()
    }

    /// What changed of the guest, at most every [`COMPOSITION_CHECK_PERIOD`] unless `now`.
    pub(super) fn check_composition(&mut self, monitor: &Monitor, now: bool) -> Option<String> {
        if !now && self.looked_at.elapsed() < COMPOSITION_CHECK_PERIOD {
            return None;
        }
        self.looked_at = Instant::now();
        self.compare(monitor)
    }

    fn compare(&mut self, monitor: &Monitor) -> Option<String> {
        let now = composition::of(monitor);
        self.is_unknown = now.is_err();
        match now {
            Ok(now) => changes(&self.promised, &now),
            // The next look may be answered; the one at the end must be.
            Err(error) => {
                info!("what the guest is composed of is not known now: {error}");
                None
            }
        }
    }

    /// Whether the guest, which stands still, is still as the target was told: by its drives, or by everything if
    /// events of what else changed were missed.
    ///
    /// # Errors
    /// What changed, or that it is not known.
    pub(super) fn compare_at_standstill(&self, monitor: &Monitor, missed_events: bool) -> Result<(), String> {
        let now = match missed_events || self.is_unknown {
            true => composition::of(monitor),
            false => composition::drives(monitor).map(|drives| Composition { drives, ..self.promised.clone() }),
        };
        let now =
            now.map_err(|error| format!("what it is composed of is not known: {}", crate::error_chain(&error)))?;
        changes(&self.promised, &now).map_or(Ok(()), Err)
    }
}

/// What of a composition is not as the target was told, in words. None: all is, or only what the target does not need.
fn changes(told: &Composition, now: &Composition) -> Option<String> {
    let differences = differences(told, now);
    let counted = differences.iter().filter(|difference| difference.part != Part::Tuning);
    let all: Vec<String> = counted.map(ToString::to_string).collect();
    (!all.is_empty()).then(|| shortened(&all, DIFFERENCES_TOLD_MAX))
}

/// Why a guest stands still or ends, by an event (QEMU's qapi/run-state.json, qapi/block-core.json).
fn reason(event: &QmpEvent) -> Option<String> {
    let data = &event.data;
    let text = |key: &str| data[key].as_str().filter(|text| !text.is_empty());
    Some(match event.name.as_str() {
        "BLOCK_IO_ERROR" if data["action"] == "stop" => {
            let drive = text("device").or(text("qom-path")).or(text("node-name")).unwrap_or("a drive");
            match data["nospace"].as_bool() {
                Some(true) => format!("its drive {drive} has no space left"),
                _ => format!(
                    "its drive {drive} failed to {} ({})",
                    text("operation").unwrap_or("work"),
                    text("reason").unwrap_or("QEMU says no more")
                ),
            }
        }
        "GUEST_PANICKED" => "its kernel panicked".into(),
        "WATCHDOG" => format!("its watchdog fired (action {})", text("action").unwrap_or("unknown")),
        "SHUTDOWN" => match text("reason").unwrap_or("unknown") {
            "guest-shutdown" => "the guest shut down".into(),
            "guest-panic" => "its kernel panicked".into(),
            "guest-reset" => "the guest restarted, and its QEMU ends then".into(),
            "host-qmp-quit" => "somebody ended its QEMU (QMP quit)".into(),
            "host-signal" => "its QEMU was ended by a signal".into(),
            other => format!("it was shut down ({other})"),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(name: &str, data: Value) -> QmpEvent {
        QmpEvent { name: name.into(), data, time: Duration::ZERO }
    }

    fn watch() -> GuestWatch {
        let told = Composition { machine: "pc-q35-10.0".into(), ..Composition::default() };
        GuestWatch { promised: told, looked_at: Instant::now(), is_unknown: false, reason: None }
    }

    fn version(major: u32, minor: u32) -> QemuVersion {
        QemuVersion { major, minor, micro: 0 }
    }

    #[test]
    fn what_stops_a_guest_is_told_with_its_reason() {
        let mut watch = watch();
        let new = version(10, 0);
        assert_eq!(watch.stopped(&RunState::Running, &new), None);
        assert_eq!(watch.stopped(&RunState::FinishMigrate, &new), None);
        assert!(watch.stopped(&RunState::Paused, &new).unwrap().contains("somebody paused it"));
        assert!(watch.stopped(&RunState::Other("debug".into()), &new).unwrap().contains("run state is debug"));
        watch.hear(&event("BLOCK_IO_ERROR", json!({"device": "d0", "action": "report", "nospace": true})));
        assert!(
            watch.stopped(&RunState::IoError, &new).unwrap().contains("one of its disks fails"),
            "the guest was told, and ran on"
        );
        watch.hear(&event(
            "BLOCK_IO_ERROR",
            json!({"device": "d0", "action": "stop", "nospace": true, "operation": "write"}),
        ));
        assert_eq!(watch.stopped(&RunState::IoError, &new).unwrap(), "its drive d0 has no space left");
        watch.hear(&event(
            "BLOCK_IO_ERROR",
            json!({"device": "", "node-name": "n", "action": "stop", "operation": "read", "reason": "EIO"}),
        ));
        assert_eq!(watch.stopped(&RunState::IoError, &new).unwrap(), "its drive n failed to read (EIO)");
        watch.hear(&event("GUEST_PANICKED", json!({"action": "pause"})));
        assert_eq!(watch.stopped(&RunState::GuestPanicked, &new).unwrap(), "its kernel panicked");
        watch.hear(&event("SHUTDOWN", json!({"guest": true, "reason": "guest-shutdown"})));
        assert_eq!(watch.ended().unwrap(), "the guest shut down");
    }

    #[test]
    fn what_goes_on_is_a_note() {
        let mut watch = watch();
        assert!(watch.hear(&event("RESET", json!({"guest": true}))).unwrap().contains("goes on"));
        assert!(watch.hear(&event("SUSPEND", json!({}))).is_some());
        assert_eq!(watch.stopped(&RunState::Suspended, &version(9, 0)), None);
        assert!(watch.stopped(&RunState::Suspended, &version(8, 2)).unwrap().contains("8.2"));
        assert_eq!(watch.ended(), None);
        assert!(
            GuestWatch::concerns(&event("DEVICE_TRAY_MOVED", json!({})))
                && !GuestWatch::concerns(&event("STOP", json!({})))
        );
    }

    #[test]
    fn what_changed_is_told_and_not_without_end() {
        let told = watch().promised;
        let mut now = told.clone();
        assert_eq!(changes(&told, &now), None);
        now.activities = (0..9).map(|number| format!("block job {number}")).collect();
        let words = changes(&told, &now).unwrap();
        assert!(words.starts_with("the block job 0 was begun, ") && words.ends_with("and 5 more"), "{words}");
    }
}
