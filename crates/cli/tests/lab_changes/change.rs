//! The changes that may happen to a guest, made by its QEMU's monitor, and what has to follow.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skein_hypervisor::Monitor;

/// The time within which a job is ready, or a device is gone.
const TIME: Duration = Duration::from_secs(20);
/// The file names of the guest's disk, of its CD and of another CD.
pub const DISK: &str = "disk.qcow2";
pub const CD: &str = "cd.iso";
pub const OTHER_CD: &str = "other.iso";
/// The file name of a disk that may be plugged in.
pub const LATE: &str = "late.raw";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    Snapshot,
    PivotedMirror,
    RunningMirror,
    Ejected,
    OtherMedium,
    Plugged,
    PluggedAndUnplugged,
    Unplugged,
    Balloon,
    Resized,
    Throttled,
    Reset,
    Paused,
    Exported,
}

pub use Change::*;

pub const CHANGES: [Change; 15] = [
    Nothing,
    Snapshot,
    PivotedMirror,
    RunningMirror,
    Ejected,
    OtherMedium,
    Plugged,
    PluggedAndUnplugged,
    Unplugged,
    Balloon,
    Resized,
    Throttled,
    Reset,
    Paused,
    Exported,
];

/// How a migration has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Moved,
    /// The migration is blocked: nothing is begun.
    Blocked,
    /// The guest stays, and runs.
    CalledOff,
    /// The guest stays, and stands still as it did.
    CalledOffHalted,
}

impl Change {
    /// Returns what follows if the change happened before the migration.
    pub fn before(self) -> End {
        match self {
            // The target's QEMU is started with the image that is open now.
            Nothing | Snapshot | PivotedMirror | PluggedAndUnplugged | Balloon | Resized | Throttled | Reset => {
                End::Moved
            }
            RunningMirror | Ejected | OtherMedium | Plugged | Unplugged | Paused | Exported => End::Blocked,
        }
    }

    /// Returns whether the change can happen while the guest is copied. QEMU refuses to plug and unplug then
    /// (qdev_device_add of its system/qdev-monitor.c).
    pub fn may_come_meanwhile(self) -> bool {
        !matches!(self, Plugged | PluggedAndUnplugged | Unplugged)
    }

    /// Returns what follows if the change happens while the guest is copied.
    pub fn meanwhile(self) -> End {
        match self {
            Nothing | Balloon | Throttled | Reset => End::Moved,
            Paused => End::CalledOffHalted,
            _ => End::CalledOff,
        }
    }

    /// Returns texts of which the reason has to name one, if the migration is called off.
    pub fn reasons(self) -> &'static [&'static str] {
        match self {
            Snapshot => &["the image of the drive"],
            // The job, or the result of the job if that was over before the check.
            PivotedMirror => &["block job", "the image of the drive"],
            RunningMirror => &["block job"],
            Ejected | OtherMedium => &["of the drive \"cd0\""],
            Resized => &["the size"],
            Paused => &["paused"],
            Exported => &["export"],
            Nothing | Balloon | Throttled | Reset | Plugged | PluggedAndUnplugged | Unplugged => &[],
        }
    }

    /// Returns the one command without an event that makes the change. `None`: the change takes more, or has an event.
    pub fn command(self, dir: &Path) -> Option<(&'static str, Value)> {
        let path = |name: &str| dir.join(name).display().to_string();
        Some(match self {
            Snapshot => (
                "blockdev-snapshot-sync",
                json!({"node-name": "disk0", "snapshot-file": path("overlay.qcow2"), "format": "qcow2",
                    "snapshot-node-name": "over"}),
            ),
            Ejected => ("eject", json!({"id": "cdrom", "force": true})),
            OtherMedium => (
                "blockdev-change-medium",
                json!({"id": "cdrom", "filename": path(OTHER_CD), "format": "raw", "read-only-mode": "read-only"}),
            ),
            _ => return None,
        })
    }

    /// Makes the change. `dir` is where images are.
    pub fn happen(self, monitor: &Monitor, dir: &Path) {
        let path = |name: &str| dir.join(name).display().to_string();
        let tell = |command: &str, arguments: Value| {
            monitor.execute(command, arguments).unwrap_or_else(|error| panic!("{self:?}: {command}: {error}"))
        };
        let plug = || {
            tell(
                "blockdev-add",
                json!({"driver": "raw", "node-name": "late", "file": {"driver": "file", "filename": path(LATE)}}),
            );
            tell("device_add", json!({"driver": "scsi-hd", "bus": "scsi0.0", "drive": "late", "id": "late0"}));
        };
        match self {
            Nothing => {}
            Resized => drop(tell("block_resize", json!({"node-name": "disk0", "size": 128 << 20}))),
            Snapshot | Ejected | OtherMedium => {
                let (command, arguments) = self.command(dir).expect("these have one");
                tell(command, arguments);
            }
            PivotedMirror | RunningMirror => {
                tell(
                    "drive-mirror",
                    json!({"job-id": "m", "device": "disk0", "target": path("mirror.qcow2"), "format": "qcow2",
                        "sync": "full"}),
                );
                if self == PivotedMirror {
                    let jobs = || tell("query-block-jobs", Value::Null).as_array().cloned().unwrap_or_default();
                    wait(|| jobs().iter().any(|job| job["ready"] == true));
                    tell("block-job-complete", json!({"device": "m"}));
                    wait(|| jobs().is_empty());
                }
            }
            Plugged => plug(),
            PluggedAndUnplugged => {
                plug();
                tell("device_del", json!({"id": "late0"}));
                wait(|| monitor.execute("blockdev-del", json!({"node-name": "late"})).is_ok());
            }
            Unplugged => drop(tell("device_del", json!({"id": "cdrom"}))),
            Balloon => drop(tell("balloon", json!({"value": 40 << 20}))),
            Throttled => drop(tell(
                "block_set_io_throttle",
                json!({"id": qdev(monitor), "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 5000,
                    "iops_rd": 0, "iops_wr": 0}),
            )),
            Reset => drop(tell("system_reset", Value::Null)),
            Paused => drop(tell("stop", Value::Null)),
            Exported => {
                tell("nbd-server-start", json!({"addr": {"type": "unix", "data": {"path": path("nbd")}}}));
                tell("block-export-add", json!({"type": "nbd", "id": "e", "node-name": "disk0"}));
            }
        }
    }

    /// Returns the image that the guest's disk has after the change.
    pub fn image(self) -> &'static str {
        match self {
            Snapshot => "overlay.qcow2",
            PivotedMirror => "mirror.qcow2",
            _ => DISK,
        }
    }

    /// Returns what the guest's CD drive has after the change. `None`: nothing, or there is no drive.
    pub fn cd(self) -> Option<&'static str> {
        match self {
            Ejected | Unplugged => None,
            OtherMedium => Some(OTHER_CD),
            _ => Some(CD),
        }
    }
}

fn wait(mut is: impl FnMut() -> bool) {
    let end = Instant::now() + TIME;
    while !is() {
        assert!(Instant::now() < end, "it does not come");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the device of the guest's disk, as QEMU calls it.
pub fn qdev(monitor: &Monitor) -> String {
    let drives = monitor.query("query-block").unwrap();
    let is_disk = |drive: &&Value| drive["qdev"].as_str().is_some_and(|qdev| qdev.ends_with("virtio-backend"));
    drives.as_array().unwrap().iter().find(is_disk).unwrap()["qdev"].as_str().unwrap().to_owned()
}

/// Returns the files that the guest's disk and CD drive have open.
pub fn open(monitor: &Monitor) -> (String, Option<String>) {
    let drives = monitor.query("query-block").unwrap();
    let file = |is: &dyn Fn(&str) -> bool| {
        let drive = drives.as_array().unwrap().iter().find(|drive| drive["qdev"].as_str().is_some_and(is))?;
        Some(drive["inserted"]["file"].as_str()?.rsplit('/').next()?.to_owned())
    };
    (file(&|qdev| qdev.ends_with("virtio-backend")).expect("there is a disk"), file(&|qdev| qdev == "cdrom"))
}

/// Writes the guest's disk, or reads and compares it, as the guest would: by its device.
pub fn disk_io(monitor: &Monitor, command: &str) {
    let line = format!("qemu-io -d {} \"{command}\"", qdev(monitor));
    let said = monitor.execute("human-monitor-command", json!({ "command-line": line })).unwrap();
    let said = said.as_str().unwrap_or_default();
    assert!(!said.contains("failed") && !said.contains("rror"), "{line}: {said}");
}
