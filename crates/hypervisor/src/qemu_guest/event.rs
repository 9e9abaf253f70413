//! Reads what QEMU tells unasked of its guest (QEMU's qapi/run-state.json, qapi/block-core.json, qapi/migration.json).

use crate::guest::event::{GuestEvent, ShutdownCause, StopCause};
use crate::guest::migrate::MigrationStatus;
use crate::qmp::message::QmpEvent;

/// Holds parts of names: an event with one of these in its name may say that the composition changed.
const RECOMPOSING: [&str; 6] =
    ["DEVICE_", "BLOCK_JOB_", "JOB_STATUS_CHANGE", "MEMORY_DEVICE", "UNPLUG", "BLOCK_EXPORT"];

/// Reads an event; `None`: the event says nothing that matters.
pub(super) fn read(event: &QmpEvent) -> Option<GuestEvent> {
    if let Some(status) = MigrationStatus::of_event(event) {
        return Some(GuestEvent::Migration(status));
    }
    Some(match event.name.as_str() {
        "STOP" => GuestEvent::Stopped,
        // QEMU says this before a vCPU runs (vm_prepare_start in its softmmu/cpus.c).
        "RESUME" => GuestEvent::Resumed,
        "SUSPEND" => GuestEvent::Asleep,
        "WAKEUP" => GuestEvent::Awake,
        "RESET" => GuestEvent::Reset,
        name => match cause(event) {
            Some(cause) => GuestEvent::Stopping(cause),
            None if RECOMPOSING.iter().any(|part| name.contains(part)) => GuestEvent::Recomposed,
            None => return None,
        },
    })
}

/// Returns why a guest stands still or ends.
fn cause(event: &QmpEvent) -> Option<StopCause> {
    let data = &event.data;
    let text = |key: &str| data[key].as_str().filter(|text| !text.is_empty());
    let or = |text: Option<&str>, other: &str| text.unwrap_or(other).to_owned();
    Some(match event.name.as_str() {
        "BLOCK_IO_ERROR" if data["action"] == "stop" => {
            let drive = or(text("device").or(text("qom-path")).or(text("node-name")), "a drive");
            match data["nospace"].as_bool() {
                Some(true) => StopCause::DriveFull { drive },
                _ => StopCause::DriveFailed {
                    drive,
                    operation: or(text("operation"), "work"),
                    reason: or(text("reason"), "QEMU says no more"),
                },
            }
        }
        "GUEST_PANICKED" => StopCause::Panicked,
        "WATCHDOG" => StopCause::Watchdog { action: or(text("action"), "unknown") },
        "SHUTDOWN" => match text("reason").unwrap_or("unknown") {
            "guest-shutdown" => StopCause::ShutDown(ShutdownCause::Guest),
            "guest-panic" => StopCause::Panicked,
            "guest-reset" => StopCause::ShutDown(ShutdownCause::Restart),
            "host-qmp-quit" => StopCause::ShutDown(ShutdownCause::Quit),
            "host-signal" => StopCause::ShutDown(ShutdownCause::Signal),
            other => StopCause::ShutDown(ShutdownCause::Other(other.to_owned())),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn told(name: &str, data: Value) -> Option<GuestEvent> {
        read(&QmpEvent { name: name.into(), data, time: Duration::ZERO })
    }

    fn words(name: &str, data: Value) -> String {
        match told(name, data) {
            Some(GuestEvent::Stopping(cause)) => cause.to_string(),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn what_stops_a_guest_is_told_with_its_reason() {
        let full = |action: &str| json!({"device": "d0", "action": action, "nospace": true, "operation": "write"});
        assert_eq!(told("BLOCK_IO_ERROR", full("report")), None, "the guest was told, and ran on");
        assert_eq!(words("BLOCK_IO_ERROR", full("stop")), "its drive d0 has no space left");
        let failed = json!({"device": "", "node-name": "n", "action": "stop", "operation": "read", "reason": "EIO"});
        assert_eq!(words("BLOCK_IO_ERROR", failed), "its drive n failed to read (EIO)");
        assert_eq!(
            words("BLOCK_IO_ERROR", json!({"action": "stop"})),
            "its drive a drive failed to work (QEMU says no more)"
        );
        assert_eq!(words("GUEST_PANICKED", json!({"action": "pause"})), "its kernel panicked");
        assert_eq!(words("WATCHDOG", json!({"action": "pause"})), "its watchdog fired (action pause)");
        for (reason, expected) in [
            ("guest-shutdown", "the guest shut down"),
            ("guest-panic", "its kernel panicked"),
            ("guest-reset", "the guest restarted, and its QEMU ends then"),
            ("host-qmp-quit", "somebody ended its QEMU (QMP quit)"),
            ("host-signal", "its QEMU was ended by a signal"),
            ("host-ui", "it was shut down (host-ui)"),
        ] {
            assert_eq!(words("SHUTDOWN", json!({"guest": true, "reason": reason})), expected);
        }
    }

    #[test]
    fn each_event_is_one_thing() {
        let status = json!({"status": "pre-switchover"});
        assert_eq!(told("MIGRATION", status), Some(GuestEvent::Migration(MigrationStatus::PreSwitchover)));
        for (name, expected) in [
            ("STOP", Some(GuestEvent::Stopped)),
            ("RESUME", Some(GuestEvent::Resumed)),
            ("SUSPEND", Some(GuestEvent::Asleep)),
            ("WAKEUP", Some(GuestEvent::Awake)),
            ("RESET", Some(GuestEvent::Reset)),
            ("DEVICE_TRAY_MOVED", Some(GuestEvent::Recomposed)),
            ("DEVICE_DELETED", Some(GuestEvent::Recomposed)),
            ("BLOCK_JOB_READY", Some(GuestEvent::Recomposed)),
            ("MEM_UNPLUG_ERROR", Some(GuestEvent::Recomposed)),
            ("MIGRATION_PASS", None),
            ("NIC_RX_FILTER_CHANGED", None),
        ] {
            assert_eq!(told(name, Value::Null), expected, "{name}");
        }
    }
}
