//! Tells why a QEMU could not be started or used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::BINARY_VARIABLE;
use crate::qmp::error::QmpError;

/// The reason why a QEMU could not be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program cannot be run.
    #[error("starting {program}; install qemu-system-x86, or name a QEMU with {BINARY_VARIABLE}")]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The QEMU ended by itself.
    #[error("QEMU ended with {status}: {stderr}")]
    Ended {
        /// The status: `exit status: 1`, `signal: 9 (SIGKILL)`.
        status: String,
        /// What the QEMU wrote to standard error.
        stderr: String,
    },
    /// The QEMU's control socket does not work.
    #[error("QMP of a new QEMU ({stderr})")]
    Qmp {
        /// What QEMU wrote to standard error.
        stderr: String,
        /// The error of the control socket.
        source: QmpError,
    },
    /// The QEMU runs and does not answer. It was killed.
    #[error(
        "it did not answer on its QMP socket within {} s of its start, and was killed; does what its command line \
         leads to \
         (sockets, storage) answer? QEMU said: {stderr}",
        after.as_secs()
    )]
    Silent {
        /// The time that the QEMU had.
        after: Duration,
        /// What the QEMU wrote to standard error.
        stderr: String,
    },
    /// The program does not say which version it is.
    #[error("{program} --version says {said:?}; is it QEMU?")]
    Version {
        /// The program.
        program: PathBuf,
        /// The beginning of what the program wrote.
        said: String,
    },
    /// The file for its output cannot be written.
    #[error("opening {path}, QEMU's log")]
    Log {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The process cannot be observed.
    #[error("observing QEMU")]
    Process(#[source] io::Error),
}
