//! What runs guests on a host: the seam between an agent's VMs and the programs that run them.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use skein_inventory::QemuVersion;

use crate::guest::Guest;
use crate::guest::error::GuestError;
use crate::guest::facts::Accel;
use crate::inspect::QemuProgram;
use crate::kvm::KvmError;
use crate::process::Process;
use crate::process::error::Error;
use crate::process::log::Log;

/// What runs guests on a host, each in a process with a control socket.
///
/// A start has two steps, so that the process can be written down before anything is asked of it.
pub trait Hypervisor: Debug + Send + Sync {
    /// Starts `command`, whose process outlives this one and listens on `socket`. Its output goes to the end of `log`.
    ///
    /// # Errors
    /// The program cannot be run, or the log not be written.
    fn start(&self, command: Command, socket: &Path, log: &Path) -> Result<(Process, Log), Error>;

    /// Waits up to `deadline` until a process from [`Hypervisor::start`] answers on its `socket`, and kills the process
    /// if it does not.
    ///
    /// # Errors
    /// It ended ([`Error::Ended`]), or does not answer.
    fn first_answer(
        &self,
        process: &Process,
        log: &Log,
        socket: &Path,
        deadline: Duration,
    ) -> Result<Arc<dyn Guest>, Error>;

    /// Connects to a guest whose process somebody started before, within `deadline`.
    ///
    /// # Errors
    /// Nobody listens, or who listens does not answer as this hypervisor does.
    fn connect(&self, socket: &Path, deadline: Duration) -> Result<Connected, ConnectError>;

    /// Tells whether the CPU runs guests here, for `program`; none: the host's usual one. The first call takes up to
    /// seconds.
    ///
    /// # Errors
    /// The CPU does not, and why.
    fn kvm_works(&self, program: Option<&Path>) -> Result<(), KvmError>;

    /// Returns the version of `program`; none: the host's usual one.
    ///
    /// # Errors
    /// The program cannot be run, or does not say its version.
    fn version_of(&self, program: Option<&Path>) -> Result<QemuVersion, Error>;

    /// Returns the program that runs guests where a definition names none.
    fn default_program(&self) -> PathBuf;

    /// Returns what `program` can do on this host under `accel`. Starts and ends it, within `deadline`.
    ///
    /// # Errors
    /// The program does not start, lacks the accelerator, or does not answer.
    fn probe(&self, program: &Path, accel: Accel, deadline: Duration) -> Result<QemuProgram, Error>;
}

/// A guest at a control socket.
#[derive(Debug)]
pub struct Connected {
    /// The guest.
    pub guest: Arc<dyn Guest>,
    /// The process behind the socket; none: it ended, or cannot be seen from this pid namespace.
    pub process: io::Result<Option<Process>>,
}

/// Why there is no connection to a guest.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket cannot be reached.
    #[error("connecting to the QMP socket {path}")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody listens there who does not answer as a hypervisor does.
    #[error(transparent)]
    Guest(#[from] GuestError),
}
