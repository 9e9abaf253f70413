//! What can go wrong between this process and QEMU.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The longest answer that is read. QEMU's own limit for what it reads is 64 MiB; its longest answer
/// (`query-qmp-schema`) is about 200 KiB.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// What can go wrong between here and QEMU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The socket cannot be reached.
    #[error("connecting to the QMP socket {path}")]
    Connect {
        /// The socket.
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
    /// No answer in time.
    #[error("QEMU did not answer {what} within {} ms", after.as_millis())]
    Timeout {
        /// What was asked.
        what: String,
        /// The time it had.
        after: Duration,
    },
    /// An answer longer than [`LINE_BYTES_MAX`].
    #[error("QEMU sent a line of more than {LINE_BYTES_MAX} bytes; is this a QMP socket?")]
    TooLong,
    /// Something that is not QMP.
    #[error("not QMP: {reason}: {excerpt}; is this a QMP socket?")]
    Malformed {
        /// What is wrong.
        reason: String,
        /// Its beginning.
        excerpt: String,
    },
    /// QEMU says no.
    #[error("{command}: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error class: `GenericError`, `CommandNotFound`, `DeviceNotFound`...
        class: String,
        /// QEMU's words.
        description: String,
    },
}
