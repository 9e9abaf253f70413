//! Whether a guest runs, and having it run.

use serde::{Deserialize, Serialize};

use super::error::GuestError;

/// Whether a guest runs, and having it run.
pub trait RunControl {
    /// Whether it runs, and if not, why.
    fn run_state(&self) -> Result<RunState, GuestError>;

    /// Runs it. Refused between [`MigrationStatus::PreSwitchover`](super::migrate::MigrationStatus::PreSwitchover) and
    /// the migration's end.
    fn resume(&self) -> Result<(), GuestError>;

    /// Presses its power button. What comes of that is the guest's to say.
    fn press_power_button(&self) -> Result<(), GuestError>;

    /// Ends what runs it, the guest with it, in order: disks are flushed. The connection may break before the answer.
    fn quit(&self) -> Result<(), GuestError>;

    /// Has its NICs tell the network where they are now.
    fn announce(&self) -> Result<(), GuestError> {
        Ok(())
    }
}

/// Whether a guest runs, and if not, why. The names are those of QEMU's run states.
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

impl RunState {
    /// Returns QEMU's word for it: `finish-migrate`.
    pub fn word(&self) -> String {
        serde_json::json!(self).as_str().unwrap_or_default().to_owned()
    }
}
