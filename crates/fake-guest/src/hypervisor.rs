//! Is a hypervisor whose guests live in virtual time. Its processes are real, and do nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skein_hypervisor::guest::facts::Accel;
use skein_hypervisor::inspect::{MachineType, QemuProgram};
use skein_hypervisor::kvm::KvmError;
use skein_hypervisor::{
    ConnectError, Connected, Error, Guest, Hypervisor, Log, Process, ProcessId, QemuVersion, spawn_command_detached,
};

use crate::clock::VirtualClock;
use crate::guest::FakeGuest;
use crate::machine::GuestParameters;

/// Bounds the wait for a real process that was told to end.
const KILL_TIME: Duration = Duration::from_secs(10);
/// Holds the script by which a process stops itself, and so holds its pid and its words in `/proc` until it is killed.
const STAND_STILL: &str = "kill -STOP $$";

/// A hypervisor whose guests are [`FakeGuest`]s. Clones are the same.
///
/// Its processes are shells with the words of the command that was to be started, so that a search of `/proc` finds
/// them. They are killed with the last clone.
#[derive(Debug, Clone)]
pub struct FakeHypervisor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: VirtualClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The results of the next starts; after these, starts give guests.
    next: VecDeque<Birth>,
    /// The processes, by their sockets.
    processes: BTreeMap<PathBuf, Born>,
}

/// The result of a start.
#[derive(Debug, Clone)]
pub enum Birth {
    /// The start gives a guest, which answers.
    Answers(Box<GuestParameters>),
    /// The start gives a process that runs and never answers.
    Silent,
    /// The start gives a process that ends at once, with these words.
    Ends(&'static str),
    /// The start gives no process.
    NoProgram,
}

#[derive(Debug)]
struct Born {
    id: ProcessId,
    /// The guest; `None`: the process never answers.
    guest: Option<FakeGuest>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for born in self.state.lock().processes.values() {
            if let Ok(Some(process)) = Process::attach(born.id) {
                let _ = process.kill(KILL_TIME);
            }
        }
    }
}

impl FakeHypervisor {
    /// Makes a hypervisor without guests.
    pub fn new(clock: &VirtualClock) -> FakeHypervisor {
        FakeHypervisor { inner: Arc::new(Inner { clock: clock.clone(), state: Mutex::default() }) }
    }

    /// Sets the result of the next start that has none yet.
    pub fn expect(&self, birth: Birth) {
        self.inner.state.lock().next.push_back(birth);
    }

    /// Starts a process with a guest as another program does, with these words on its command line.
    pub fn start_elsewhere(&self, words: &[&str], socket: &Path, log: &Path) -> Result<Process, Error> {
        let mut command = Command::new("qemu");
        command.args(words);
        Ok(self.start(command, socket, log)?.0)
    }

    /// Returns the guest behind a socket, without asking it.
    pub fn guest_at(&self, socket: &Path) -> Option<FakeGuest> {
        self.inner.state.lock().processes.get(socket)?.guest.clone()
    }

    fn alive_at(&self, socket: &Path) -> Option<(Process, Option<FakeGuest>)> {
        let state = self.inner.state.lock();
        let born = state.processes.get(socket)?;
        Some((Process::attach(born.id).ok()??, born.guest.clone()))
    }
}

impl Hypervisor for FakeHypervisor {
    fn start(&self, command: Command, socket: &Path, log: &Path) -> Result<(Process, Log), Error> {
        let birth = self.inner.state.lock().next.pop_front();
        let birth = birth.unwrap_or_else(|| Birth::Answers(Box::default()));
        if let Birth::NoProgram = birth {
            let source = io::ErrorKind::NotFound.into();
            return Err(Error::Start { program: command.get_program().into(), source });
        }
        let script = match birth {
            Birth::Ends(words) => format!("echo '{words}' >&2; exit 1"),
            _ => STAND_STILL.to_owned(),
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(command.get_program()).args(command.get_args());
        let started = spawn_command_detached(shell, socket, log)?;
        let clock = &self.inner.clock;
        let guest = match birth {
            Birth::Answers(parameters) if command.get_args().any(|word| word == "-incoming") => {
                Some(FakeGuest::incoming(clock, *parameters))
            }
            Birth::Answers(parameters) => Some(FakeGuest::running(clock, *parameters)),
            _ => None,
        };
        let born = Born { id: started.0.id(), guest };
        self.inner.state.lock().processes.insert(socket.to_owned(), born);
        Ok(started)
    }

    fn first_answer(
        &self,
        process: &Process,
        log: &Log,
        socket: &Path,
        deadline: Duration,
    ) -> Result<Arc<dyn Guest>, Error> {
        if let Some(guest) = self.guest_at(socket) {
            return Ok(Arc::new(guest));
        }
        // A process that ends does so in milliseconds; a process that stands still does not end.
        while !stands_still(process).map_err(Error::Process)? {
            if let Some(exit) = process.wait_exit(Duration::from_millis(1)).map_err(Error::Process)? {
                return Err(Error::Ended { status: exit.to_string(), stderr: log.tail() });
            }
        }
        process.kill(KILL_TIME).map_err(Error::Process)?;
        Err(Error::Silent { after: deadline, stderr: log.tail() })
    }

    fn connect(&self, socket: &Path, _deadline: Duration) -> Result<Connected, ConnectError> {
        let refused =
            || ConnectError::Unreachable { path: socket.to_owned(), source: io::ErrorKind::ConnectionRefused.into() };
        let (process, guest) = self.alive_at(socket).ok_or_else(refused)?;
        let guest: Arc<dyn Guest> = Arc::new(guest.ok_or_else(refused)?);
        Ok(Connected { guest, process: Ok(Some(process)) })
    }

    fn kvm_works(&self, _program: Option<&Path>) -> Result<(), KvmError> {
        Err(KvmError::Device(io::ErrorKind::NotFound))
    }

    fn version_of(&self, _program: Option<&Path>) -> Result<QemuVersion, Error> {
        Ok(GuestParameters::default().version)
    }

    fn default_program(&self) -> PathBuf {
        "/bin/true".into()
    }

    fn probe(&self, _program: &Path, accel: Accel, _deadline: Duration) -> Result<QemuProgram, Error> {
        let parameters = GuestParameters::default();
        let machine = MachineType {
            name: parameters.composition.machine,
            alias: Some("q35".into()),
            is_default: false,
            deprecated: false,
            cpus_max: 288,
        };
        Ok(QemuProgram {
            version: parameters.version,
            accel,
            machines: vec![machine],
            cpu_models: Vec::new(),
            cpu_features: BTreeSet::new(),
            migration_capabilities: BTreeSet::new(),
            migration_parameters: BTreeSet::new(),
        })
    }
}

/// Returns whether a process has stopped itself (proc_pid_stat(5), field 3).
fn stands_still(process: &Process) -> io::Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id().pid));
    match stat {
        Ok(stat) => Ok(stat.rsplit(')').next().is_some_and(|fields| fields.starts_with(" T"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
