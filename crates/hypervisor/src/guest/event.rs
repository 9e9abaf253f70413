//! Holds what a guest's hypervisor tells unasked.

use std::fmt;

use super::migrate::MigrationStatus;

/// Takes events in the thread that receives them, so it must not block or ask the guest anything. It returns `false` to
/// get no more.
pub type EventSink = Box<dyn FnMut(GuestEvent) -> bool + Send>;

/// An event of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestEvent {
    /// The guest's migration has this status now.
    Migration(MigrationStatus),
    /// The guest stands still.
    Stopped,
    /// The guest runs. This comes before the first of its virtual CPUs runs.
    Resumed,
    /// The guest went to sleep (S3).
    Asleep,
    /// The guest woke up.
    Awake,
    /// The guest was reset, and runs on.
    Reset,
    /// This stops the guest, or ends it.
    Stopping(StopCause),
    /// A device, a block job or the like came or went: the composition may have changed.
    Recomposed,
    /// The connection is over: what runs the guest ended, or another client took the connection's place. Nothing
    /// follows.
    Closed,
}

/// The reason why a guest stands still or ends. In words: `its drive d0 has no space left`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// The storage of a drive is full.
    DriveFull {
        /// The drive's name.
        drive: String,
    },
    /// A drive failed.
    DriveFailed {
        /// The drive's name.
        drive: String,
        /// The operation that failed: `read`, `write`.
        operation: String,
        /// The reason of the failure.
        reason: String,
    },
    /// The guest's kernel panicked.
    Panicked,
    /// The guest's watchdog fired.
    Watchdog {
        /// The action that followed.
        action: String,
    },
    /// The guest was shut down.
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

/// The cause of a guest's shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShutdownCause {
    /// The guest shut itself down.
    Guest,
    /// The guest restarted: what runs it ends then.
    Restart,
    /// A command told the hypervisor to end.
    Quit,
    /// A signal ended what runs the guest.
    Signal,
    /// Another cause, in the hypervisor's word.
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
