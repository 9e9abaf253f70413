//! Reads what QEMU tells of a migration unasked.

use crate::guest::migrate::MigrationStatus;
use crate::qmp::message::QmpEvent;

impl MigrationStatus {
    /// Returns the status in a `MIGRATION` event; `None` for other events. QEMU sends these events if
    /// [`Tuning::events`](crate::Tuning::events) is on.
    pub fn of_event(event: &QmpEvent) -> Option<Self> {
        if event.name != "MIGRATION" {
            return None;
        }
        Some(serde_json::from_value(event.data["status"].clone()).unwrap_or(Self::Other))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::guest::run::RunState;

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
