//! The commands to a guest, and what can go wrong with them.

use std::path::PathBuf;
use std::time::Duration;

use skein_hypervisor::{Hold, MigrationSettings, Throttling};

/// A command to a guest: one for each method.
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
    LimitRate,
    SetThrottle,
    MeasureDirtyRate,
    DirtyRate,
    Inspect,
}

/// What goes wrong with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The command is refused, in these words.
    Refused(String),
    /// The command is not received: nothing is done, and nothing is answered.
    Unheard,
    /// The command is carried out, and not answered.
    Unanswered,
}

/// A command that a guest received and carried out.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // they are those of the trait's parts
pub enum Told {
    Resume,
    PressPowerButton,
    Quit,
    Announce,
    BeginOutgoing { settings: MigrationSettings, throttling: Throttling, hold: Hold, to: PathBuf },
    BeginIncoming { settings: MigrationSettings, at: PathBuf },
    ContinueMigration,
    ContinueCancelling,
    CancelMigration,
    ForgetMigrationSettings,
    SetSwitchover { bytes: u64, limit_ms: u64 },
    LimitRate(Option<u64>),
    SetThrottle(u8),
    MeasureDirtyRate(Duration),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("the guest did not answer {what:?} within {} ms", after.as_millis())]
    Silent { what: Command, after: Duration },
    #[error("{what:?}: {why}")]
    Refused { what: Command, why: String },
    #[error("the guest's connection is closed")]
    Gone,
}
