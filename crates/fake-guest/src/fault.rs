//! What a guest is asked and told, and what can go wrong with that.

use std::path::PathBuf;
use std::time::Duration;

use skein_hypervisor::{MigrationSettings, Throttling};

/// What a guest can be asked or told: one for each method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // they are those of the trait's parts
pub enum Command {
    RunState,
    Resume,
    PressPowerButton,
    Quit,
    Announce,
    Migration,
    HoldsMigration,
    BeginOutgoing,
    BeginIncoming,
    ContinueMigration,
    ContinueCancelling,
    CancelMigration,
    ForgetMigrationSettings,
    SetSwitchover,
    SetThrottle,
    MeasureDirtyRate,
    DirtyRate,
    Inspect,
}

/// What goes wrong with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is refused, in these words.
    Refused(String),
    /// It is not heard: nothing is done, and nothing answered.
    Unheard,
    /// It is done, and not answered.
    Unanswered,
}

/// What a guest was told and did.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // they are those of the trait's parts
pub enum Told {
    Resume,
    PressPowerButton,
    Quit,
    Announce,
    BeginOutgoing { settings: MigrationSettings, throttling: Throttling, to: PathBuf },
    BeginIncoming { settings: MigrationSettings, at: PathBuf },
    ContinueMigration,
    ContinueCancelling,
    CancelMigration,
    ForgetMigrationSettings,
    SetSwitchover { bytes: u64, limit_ms: u64 },
    SetThrottle(u8),
    MeasureDirtyRate(Duration),
}

/// Why a command failed, in words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("the guest did not answer {what:?} within {} ms", after.as_millis())]
    Silent { what: Command, after: Duration },
    #[error("{what:?}: {why}")]
    Refused { what: Command, why: String },
    #[error("the guest's connection is closed")]
    Gone,
}
