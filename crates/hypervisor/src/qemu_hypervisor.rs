//! Is QEMU as the hypervisor of a host.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use skein_inventory::QemuVersion;

use crate::config::Config;
use crate::guest::Guest;
use crate::guest::facts::Accel;
use crate::hypervisor::{ConnectError, Connected, Hypervisor};
use crate::inspect::QemuProgram;
use crate::kvm::{self, KvmError};
use crate::process::Process;
use crate::process::error::Error;
use crate::process::log::Log;
use crate::process::program::version_of;
use crate::process::start::{connect_started, spawn_command_detached};
use crate::qmp::error::QmpError;
use crate::qmp::monitor::Monitor;

/// QEMU as the hypervisor of a host.
#[derive(Debug, Clone, Copy, Default)]
pub struct QemuHypervisor;

impl Hypervisor for QemuHypervisor {
    fn start(&self, command: Command, socket: &Path, log: &Path) -> Result<(Process, Log), Error> {
        spawn_command_detached(command, socket, log)
    }

    fn first_answer(
        &self,
        process: &Process,
        log: &Log,
        socket: &Path,
        deadline: Duration,
    ) -> Result<Arc<dyn Guest>, Error> {
        Ok(Arc::new(connect_started(process, log, socket, deadline)?))
    }

    fn connect(&self, socket: &Path, deadline: Duration) -> Result<Connected, ConnectError> {
        let monitor = Monitor::connect(socket, deadline)?;
        let process = Process::of_monitor(&monitor);
        Ok(Connected { guest: Arc::new(monitor), process })
    }

    fn kvm_works(&self, program: Option<&Path>) -> Result<(), KvmError> {
        kvm::works(program)
    }

    fn version_of(&self, program: Option<&Path>) -> Result<QemuVersion, Error> {
        version_of(&program.map_or_else(|| self.default_program(), Path::to_owned))
    }

    fn default_program(&self) -> PathBuf {
        Config::new("", 0, "").program()
    }

    fn probe(&self, program: &Path, accel: Accel, deadline: Duration) -> Result<QemuProgram, Error> {
        QemuProgram::probe(program, None, accel, deadline)
    }
}

impl From<QmpError> for ConnectError {
    fn from(error: QmpError) -> Self {
        match error {
            QmpError::Connect { path, source } => Self::Unreachable { path, source },
            error => Self::Guest(error.into()),
        }
    }
}
