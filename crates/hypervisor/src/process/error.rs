//! Why a QEMU cannot be had.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::BINARY_VARIABLE;
use crate::qmp::error::QmpError;

/// Why a QEMU cannot be had.
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
    /// It ended by itself.
    #[error("QEMU ended with {status}: {stderr}")]
    Ended {
        /// How: `exit status: 1`, `signal: 9 (SIGKILL)`.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// Its control socket does not work.
    #[error("QMP of a new QEMU ({stderr})")]
    Qmp {
        /// What QEMU wrote to standard error.
        stderr: String,
        /// What went wrong.
        source: QmpError,
    },
    /// It runs and does not answer. It was killed.
    #[error(
        "it did not answer on its QMP socket within {} s of its start, and was killed; does what its command line \
         leads to \
         (sockets, storage) answer? QEMU said: {stderr}",
        after.as_secs()
    )]
    Silent {
        /// The time it had.
        after: Duration,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// It does not say which version it is.
    #[error("{program} --version says {said:?}; is it QEMU?")]
    Version {
        /// The program.
        program: PathBuf,
        /// The beginning of what it wrote.
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
