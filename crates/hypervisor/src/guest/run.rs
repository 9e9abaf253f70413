//! Asks whether a guest runs, and makes it run.

use serde::{Deserialize, Serialize};

use super::error::GuestError;

/// Tells whether a guest runs, and makes it run.
pub trait RunControl {
    /// Returns whether the guest runs, and if not, why.
    fn run_state(&self) -> Result<RunState, GuestError>;

    /// Runs the guest. The call is refused between
    /// [`MigrationStatus::PreSwitchover`](super::migrate::MigrationStatus::PreSwitchover) and the migration's end.
    fn resume(&self) -> Result<(), GuestError>;

    /// Presses the guest's power button. The guest decides what follows.
    fn press_power_button(&self) -> Result<(), GuestError>;

    /// Ends what runs the guest, and the guest with it, in order: disks are flushed. The connection may break before
    /// the answer.
    fn quit(&self) -> Result<(), GuestError>;

    /// Makes the guest's NICs tell the network where they are now.
    fn announce(&self) -> Result<(), GuestError> {
        Ok(())
    }
}

/// Whether a guest runs, and if not, why. The names are those of QEMU's run states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// The guest runs.
    Running,
    /// The guest is stopped by `stop`, or is at a target with `-S` that has all it needs.
    Paused,
    /// The guest is at a target: its state is on the way.
    #[serde(rename = "inmigrate")]
    InMigrate,
    /// The guest is at a source: its state is the target's. `cont` runs the guest all the same.
    #[serde(rename = "postmigrate")]
    PostMigrate,
    /// The guest is at a source, stopped for the switchover. `cont` is refused.
    FinishMigrate,
    /// The guest is not started yet (`-S`).
    #[serde(rename = "prelaunch")]
    PreLaunch,
    /// QEMU or KVM cannot go on.
    InternalError,
    /// The guest is stopped by a failing disk.
    IoError,
    /// The guest has shut down, and QEMU was told to stay.
    Shutdown,
    /// The guest's kernel panicked.
    GuestPanicked,
    /// The guest sleeps (S3).
    Suspended,
    /// The guest is stopped by its watchdog.
    Watchdog,
    /// Another state: `save-vm`, `restore-vm`, `debug`, `colo`, `preconfig`...
    #[serde(untagged)]
    Other(String),
}

impl RunState {
    /// Returns QEMU's word for the state: `finish-migrate`.
    pub fn word(&self) -> String {
        serde_json::json!(self).as_str().unwrap_or_default().to_owned()
    }
}
