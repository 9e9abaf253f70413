//! Is the seam between an agent's VMs and the programs that run guests on a host.

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

/// Runs guests on a host, each in a process with a control socket.
///
/// A start has two steps, so that the process can be written down before anything is asked of it.
pub trait Hypervisor: Debug + Send + Sync {
    /// Starts `command`, whose process outlives this process and listens on `socket`. Its output goes to the end of
    /// `log`.
    ///
    /// # Errors
    /// The program cannot be run, or the log cannot be written.
    fn start(&self, command: Command, socket: &Path, log: &Path) -> Result<(Process, Log), Error>;

    /// Waits up to `deadline` until a process from [`Hypervisor::start`] answers on its `socket`, and kills the process
    /// if it does not.
    ///
    /// # Errors
    /// The process ended ([`Error::Ended`]), or does not answer.
    fn first_answer(
        &self,
        process: &Process,
        log: &Log,
        socket: &Path,
        deadline: Duration,
    ) -> Result<Arc<dyn Guest>, Error>;

    /// Connects to a guest whose process was started before, by any program, within `deadline`.
    ///
    /// # Errors
    /// Nobody listens, or the program that listens does not answer as this hypervisor does.
    fn connect(&self, socket: &Path, deadline: Duration) -> Result<Connected, ConnectError>;

    /// Checks that the CPU runs guests here, for `program`; `None`: the host's usual program. The first call takes up
    /// to seconds.
    ///
    /// # Errors
    /// The CPU does not run guests; with the reason.
    fn kvm_works(&self, program: Option<&Path>) -> Result<(), KvmError>;

    /// Returns the version of `program`; `None`: the host's usual program.
    ///
    /// # Errors
    /// The program cannot be run, or does not say its version.
    fn version_of(&self, program: Option<&Path>) -> Result<QemuVersion, Error>;

    /// Returns the program that runs guests for definitions that name none.
    fn default_program(&self) -> PathBuf;

    /// Returns what `program` can do on this host under `accel`. The call starts and ends the program, within
    /// `deadline`.
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
    /// The process behind the socket; `None`: the process ended, or cannot be seen from this pid namespace.
    pub process: io::Result<Option<Process>>,
}

/// The reason why there is no connection to a guest.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket cannot be reached.
    #[error("connecting to the QMP socket {path}")]
    Unreachable {
        /// The path of the socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program that listens there does not answer as a hypervisor does.
    #[error(transparent)]
    Guest(#[from] GuestError),
}
