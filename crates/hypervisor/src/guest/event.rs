//! What a guest's hypervisor tells unasked.

use std::fmt;

use super::migrate::MigrationStatus;

/// Takes events in the thread that hears them, so it must not block or ask the guest anything; `false` to get no more.
pub type EventSink = Box<dyn FnMut(GuestEvent) -> bool + Send>;

/// Something that happened to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestEvent {
    /// Its migration stands there now.
    Migration(MigrationStatus),
    /// It stands still.
    Stopped,
    /// It runs. This is told before the first of its virtual CPUs runs.
    Resumed,
    /// It went to sleep (S3).
    Asleep,
    /// It woke up.
    Awake,
    /// It was reset, and runs on.
    Reset,
    /// This stops it, or ends it.
    Stopping(StopCause),
    /// A device, a block job or the like came or went: it may be composed otherwise now.
    Recomposed,
    /// The connection is over: what runs the guest ended, or another client took its place. Nothing follows.
    Closed,
}

/// Why a guest stands still or ends. In words: `its drive d0 has no space left`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// What a drive lies on is full.
    DriveFull {
        /// The drive's name.
        drive: String,
    },
    /// A drive failed.
    DriveFailed {
        /// The drive's name.
        drive: String,
        /// What it was to do: `read`, `write`.
        operation: String,
        /// Why it did not.
        reason: String,
    },
    /// The guest's kernel panicked.
    Panicked,
    /// The guest's watchdog fired.
    Watchdog {
        /// What was done then.
        action: String,
    },
    /// It was shut down.
    ShutDown(ShutdownCause),
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DriveFull { drive } => write!(f, "its drive {drive} has no space left"),
            Self::DriveFailed { drive, operation, reason } => {
                write!(f, "its drive {drive} failed to {operation} ({reason})")
            }
            Self::Panicked => f.write_str("its kernel panicked"),
            Self::Watchdog { action } => write!(f, "its watchdog fired (action {action})"),
            Self::ShutDown(cause) => cause.fmt(f),
        }
    }
}

/// Who shut a guest down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShutdownCause {
    /// The guest.
    Guest,
    /// The guest, by restarting: what runs it ends then.
    Restart,
    /// Somebody, by telling the hypervisor to end.
    Quit,
    /// A signal to what runs it.
    Signal,
    /// Another, in the hypervisor's word.
    Other(String),
}

impl fmt::Display for ShutdownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guest => f.write_str("the guest shut down"),
            Self::Restart => f.write_str("the guest restarted, and its QEMU ends then"),
            Self::Quit => f.write_str("somebody ended its QEMU (QMP quit)"),
            Self::Signal => f.write_str("its QEMU was ended by a signal"),
            Self::Other(word) => write!(f, "it was shut down ({word})"),
        }
    }
}
