//! Tells what can go wrong between this process and QEMU.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Bounds the answer that is read. QEMU's own limit for what it reads is 64 MiB; its longest answer
/// (`query-qmp-schema`) is about 200 KiB.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// The error of a connection to QEMU, or of a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The socket cannot be reached.
    #[error("connecting to the QMP socket {path}")]
    Connect {
        /// The path of the socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke.
    #[error("talking to QEMU")]
    Io(#[source] io::Error),
    /// QEMU closed the connection: it ended, or another client took its place.
    #[error("QEMU closed the QMP connection")]
    Closed,
    /// No answer came in time.
    #[error("QEMU did not answer {what} within {} ms", after.as_millis())]
    Timeout {
        /// The question.
        what: String,
        /// The time that QEMU had.
        after: Duration,
    },
    /// The answer is longer than [`LINE_BYTES_MAX`].
    #[error("QEMU sent a line of more than {LINE_BYTES_MAX} bytes; is this a QMP socket?")]
    TooLong,
    /// What arrived is not QMP.
    #[error("not QMP: {reason}: {excerpt}; is this a QMP socket?")]
    Malformed {
        /// The reason why it is not QMP.
        reason: String,
        /// The beginning of what arrived.
        excerpt: String,
    },
    /// QEMU refuses the command.
    #[error("{command}: {description}")]
    Refused {
        /// The command.
        command: String,
        /// The class of QEMU's error: `GenericError`, `CommandNotFound`, `DeviceNotFound`...
        class: String,
        /// QEMU's words.
        description: String,
    },
}
