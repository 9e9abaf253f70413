//! Where a migration stands, and whether the guest runs.

use serde::{Deserialize, Serialize};

use crate::qmp::message::QmpEvent;

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
    /// See [`MigrationInfo::error`](crate::MigrationInfo::error).
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

    /// What a `MIGRATION` event says; none for other events. QEMU sends them where
    /// [`Tuning::events`](crate::Tuning::events) is on.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

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
}
