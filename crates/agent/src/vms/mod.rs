//! The VMs of this host: their definitions, their QEMUs, which live on without the agent.
//!
//! A name has one process at most. It belongs to whoever starts one, from before its start until it runs or everything
//! that it left is removed ([`State::busy`]).

mod arriving;
mod images;
mod involvement;
mod kills;
mod movable;
mod saved;
mod search;
pub(crate) mod swtpm;
mod tap_devices;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use skein_api::VmState;
use skein_handover::{MigrationId, Outcome};
use skein_hypervisor::guest::facts::ImageSnapshot;
use skein_hypervisor::kvm::{self, KvmError};
use skein_hypervisor::{
    Guest, GuestError, Log, Monitor, Process, ProcessId, QmpError, RunState, connect_started, spawn_command_detached,
    spawn_detached, version_of,
};
use skein_inventory::definition::{Accel, Definition, FirmwareKind, is_name};
use skein_inventory::{Composition, NoRoom};
use thiserror::Error;
use tracing::{error, info, warn};

pub(crate) use self::images::Planned;
pub(crate) use self::involvement::Involvement;
pub(crate) use self::kills::Killed;
use self::kills::Kills;
use self::saved::{SavedProcess, SavedVm, read, write, write_synced};
use crate::clock::wait_until;
use crate::composition::{self, CompositionError};
use crate::dirs::Dirs;
use crate::error_chain;
use crate::firmware;
use crate::launch::{CommandLine, Defined, Launch, config};
use crate::own_state::OwnState;

/// A QEMU that does not answer by then is shown so.
const SHOW_TIME: Duration = Duration::from_secs(1);
/// One that was started before answers at once, unless it is held up. The agent does not wait longer when it starts.
const FIND_TIME: Duration = Duration::from_millis(250);
/// When it is tried again.
const ATTACH_TIME: Duration = Duration::from_secs(1);
/// A killed process is gone by then.
const KILL_TIME: Duration = Duration::from_secs(10);
/// How often a watcher looks what its guest has open.
const LOOK_TIME: Duration = Duration::from_secs(10);

/// What is noted of a VM whose QEMU is gone.
const QEMU_ENDED_NOTE: &str = "its QEMU has ended";

/// What cannot be done with a VM.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum VmError {
    #[error("there is no VM '{0}' on this host")]
    Unknown(String),
    #[error("a VM '{0}' is on this host already")]
    Exists(String),
    #[error("'{0}' is running")]
    Running(String),
    #[error("'{0}' is not running")]
    NotRunning(String),
    #[error("'{0}' is being started or tidied up at this moment")]
    Busy(String),
    #[error("the start of '{0}' was called off, and its QEMU killed")]
    CalledOff(String),
    #[error("'{0}' left for another host while it was being stopped")]
    Left(String),
    #[error("that QEMU is the VM '{0}' already")]
    Adopted(String),
    #[error("'{name}' is not paused but {state}")]
    NotPaused { name: String, state: String },
    #[error("the tap {0} is in use: does another VM of this host have a NIC with the same MAC address?")]
    TapInUse(String),
    #[error("there is no bridge {0} on this host")]
    NoBridge(String),
    #[error("the QEMU of '{0}' waits for a migration, and has no guest yet")]
    NoGuest(String),
    #[error("'{name}' is in migration {id}")]
    Migrating { name: String, id: MigrationId },
    #[error("'{0}' is no name of a VM")]
    BadName(String),
    #[error("QEMU of '{name}'")]
    Qemu {
        name: String,
        #[source]
        source: skein_hypervisor::Error,
    },
    #[error("QMP of '{name}'")]
    Qmp {
        name: String,
        #[source]
        source: QmpError,
    },
    #[error("QMP of '{name}'")]
    Guest {
        name: String,
        #[source]
        source: GuestError,
    },
    #[error("what '{name}' is composed of is not known")]
    Composition {
        name: String,
        #[source]
        source: Box<CompositionError>,
    },
    #[error("there is no swtpm on this host, which a VM with a TPM needs")]
    NoSwtpm,
    #[error("there is no UEFI on this host for '{0}'")]
    NoFirmware(String),
    #[error("'{name}' could never be moved: {why}")]
    Unmovable { name: String, why: String },
    #[error("{what}")]
    OtherImages { what: String, cure: String },
    #[error("{}", .0.what)]
    NoRoom(NoRoom),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("'{name}' did not shut down within {s} s")]
    StillOn { name: String, s: u64 },
    #[error("{qmp} leads to no process that can be seen from here", qmp = .0.display())]
    NoProcess(PathBuf),
}

impl VmError {
    /// What to do about it.
    pub fn cure(&self) -> &str {
        match self {
            VmError::Unknown(_) => "see `skein vm list`, and `skein vm list` on the other hosts",
            VmError::Exists(_) => "choose another name, or `skein vm forget` the old one if it is stopped",
            VmError::Running(_) => "stop it first, with `skein vm stop`",
            VmError::NotRunning(_) => "if it is to run, `skein vm start` starts it; if not, there is nothing to do",
            VmError::Busy(_) => "repeat it when that is done: `skein vm show` says how it is",
            VmError::CalledOff(_) => "start it again if that was not what was meant",
            VmError::Left(_) => "see `skein vm list` on the other hosts",
            VmError::Adopted(_) => "use that name, or `skein vm forget` it, which leaves the QEMU as it is",
            VmError::NotPaused { .. } => "what is not paused cannot go on: `skein vm stop --force` ends it",
            VmError::TapInUse(_) => "give each NIC a mac of its own, or leave it out",
            VmError::NoBridge(_) => "make it, or name another in the VM's definition: `skein host show` lists them",
            VmError::NoGuest(_) => "adopt it once its guest has arrived",
            VmError::Migrating { .. } => "wait for its end, or call it off with `skein migration cancel`",
            VmError::BadName(_) => "names are of a-z 0-9 . _ -, at most 63, and begin with a letter or a digit",
            VmError::Qemu { .. } => "see what QEMU said, mend the VM's definition or this host, and repeat",
            VmError::Qmp { .. } | VmError::Guest { .. } => {
                "another program may have its QMP socket open: QEMU serves one at a time"
            }
            VmError::Composition { .. } => {
                "a guest of which that is not known cannot be moved: repeat it, and report QEMU's version if it stays \
                 so"
            }
            VmError::StillOn { .. } => {
                "its guest may not heed the power button: `skein vm stop --force` pulls the plug"
            }
            VmError::NoSwtpm => "install swtpm there, or remove [tpm] from the VM's file",
            VmError::NoFirmware(_) => {
                "install ovmf, or say where its image and template are: image = \"...\" and template = \"...\" in \
                 [firmware]"
            }
            VmError::Unmovable { .. } => {
                "remove that from the VM's file; or, if the VM is to stay on this host for good, add [migration] \
                 allowed = false"
            }
            VmError::OtherImages { cure, .. } => cure,
            VmError::NoRoom(lack) => &lack.cure,
            VmError::NoProcess(_) => "the agent has to run in the same pid namespace as QEMU",
            VmError::Io { .. } => "mend that on this host, and repeat",
        }
    }
}

/// A QEMU that runs, with its guest.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) process: Arc<Process>,
    pub(crate) guest: Arc<dyn Guest>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// The process is there, but QMP is not.
    silent: Option<Arc<Process>>,
    /// The process of a QEMU that was started here and has not answered yet.
    starting: Option<Arc<Process>>,
    /// The images of its drives at the last look: what QEMU said.
    looked_at: Option<ImageSnapshot>,
    involvement: Involvement,
    /// The migration by which its guest is to come here.
    incoming: Option<MigrationId>,
    /// What the target of its migration was told that it is composed of.
    promised_composition: Option<Composition>,
    /// Where its QEMU's words are, if it was started by this agent.
    log: Option<Log>,
    /// Why its pages cannot be written straight into a target's RAM, as a migration of its QEMU has shown.
    indirect: Option<String>,
    /// A process is about to be started, or what one left to be removed: nobody else may do either.
    busy: bool,
    note: String,
}

/// A VM.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) name: String,
    dir: PathBuf,
    own: OwnState,
    saved: Mutex<SavedVm>,
    state: Mutex<State>,
    /// Held while its files are written or removed, so that the newest stays.
    files: Mutex<()>,
}

impl Vm {
    pub(crate) fn launch(&self) -> Launch {
        self.saved.lock().launch.clone()
    }

    /// What the agent keeps for the guest.
    pub(crate) fn own(&self) -> &OwnState {
        &self.own
    }

    /// The monitor by which it was adopted; none: the agent started its QEMU.
    pub(crate) fn adopted_socket(&self) -> Option<PathBuf> {
        self.saved.lock().adopted.clone()
    }

    /// Whether somebody else started its QEMU.
    pub(crate) fn is_adopted(&self) -> bool {
        self.saved.lock().adopted.is_some()
    }

    pub(crate) fn running(&self) -> Option<Running> {
        self.state.lock().running.clone()
    }

    /// The process, also one that does not answer.
    pub(crate) fn process(&self) -> Option<Arc<Process>> {
        let state = self.state.lock();
        state.running.as_ref().map(|running| running.process.clone()).or_else(|| state.silent.clone())
    }

    /// The process of a VM that is being started.
    pub(crate) fn starting(&self) -> Option<Arc<Process>> {
        self.state.lock().starting.clone()
    }

    /// The process to kill, if there is one: also that of a QEMU that is being started.
    pub(crate) fn any_process(&self) -> Option<Arc<Process>> {
        self.process().or_else(|| self.state.lock().starting.clone())
    }

    /// Why it cannot be started, or its place be taken.
    fn busy_error(&self) -> Option<VmError> {
        if self.state.lock().busy {
            return Some(VmError::Busy(self.name.clone()));
        }
        self.process().map(|_| VmError::Running(self.name.clone()))
    }

    pub(crate) fn migration(&self) -> Option<MigrationId> {
        self.state.lock().involvement.migration()
    }

    /// Whether its QEMU waits for the guest.
    pub(crate) fn is_incoming(&self) -> bool {
        self.state.lock().incoming.is_some()
    }

    /// The migration whose end is still open.
    pub(crate) fn moved_by(&self) -> Option<MigrationId> {
        self.state.lock().involvement.moved_by()
    }

    pub(crate) fn set_involvement(&self, involvement: Involvement) {
        self.state.lock().involvement = involvement;
    }

    /// What its guest is composed of, with the files that its QEMU has open.
    pub(crate) fn composition(&self) -> Result<Composition, VmError> {
        let running = self.running().ok_or_else(|| VmError::NotRunning(self.name.clone()))?;
        composition::with_files(&*running.guest, running.process.id().pid, self.own.dir())
            .map_err(|source| VmError::Composition { name: self.name.clone(), source: Box::new(source) })
    }

    /// The same for the target of its migration: what it is held to until it is stopped.
    pub(crate) fn promise_composition(&self) -> Result<Composition, VmError> {
        let composition = self.composition()?;
        self.state.lock().promised_composition = Some(composition.clone());
        Ok(composition)
    }

    /// See [`Vm::promise_composition`].
    pub(crate) fn promised_composition(&self) -> Option<Composition> {
        self.state.lock().promised_composition.clone()
    }

    /// How its QEMU was composed when it had just been started; none: nobody looked.
    pub(crate) fn launched(&self) -> Option<Composition> {
        self.saved.lock().launched.clone()
    }

    /// Its QEMU has just been started, and is composed so.
    pub(crate) fn set_launched(&self, composition: &Composition) {
        let mut kept = self.saved.lock();
        kept.launched = Some(composition.as_launched());
        let seen = kept.last_seen.get_or_insert_default();
        seen.drives.clone_from(&composition.drives);
    }

    /// The last words of the QEMU that it has or had here, if it was started here.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.state.lock().log.as_ref().and_then(Log::last_words)
    }

    /// Why its migrations are to go through the target's QEMU; none: they need not.
    pub(crate) fn indirect(&self) -> Option<String> {
        self.state.lock().indirect.clone()
    }

    pub(crate) fn set_indirect(&self, why: String) {
        self.state.lock().indirect = Some(why);
    }

    /// Why its QEMU ended, where nobody knew more.
    pub(crate) fn explain_end(&self, why: &str) {
        let mut state = self.state.lock();
        if state.running.is_none() && state.note == QEMU_ENDED_NOTE {
            state.note = format!("{QEMU_ENDED_NOTE}: {why}");
        }
    }

    fn console(&self) -> PathBuf {
        self.dir.join("console")
    }

    /// The VM as commands see it.
    pub(crate) fn show(&self) -> skein_api::VmView {
        let kept = self.saved.lock().clone();
        let (running, process) = (self.running(), self.process());
        let state = {
            let state = self.state.lock();
            match (&process, &running) {
                // Its QEMU ends, and does not answer any more.
                _ if matches!(state.involvement, Involvement::Settling(_, Outcome::Moved))
                    && state.incoming.is_none() =>
                {
                    VmState::Moved
                }
                (None, _) if state.busy => VmState::Starting,
                (None, _) => VmState::Stopped,
                _ if matches!(state.involvement, Involvement::InDoubt(_)) => VmState::InDoubt,
                (Some(_), None) => VmState::Unresponsive,
                _ if state.incoming.is_some() => VmState::Incoming,
                (Some(_), Some(running)) => {
                    let guest = running.guest.with_patience(SHOW_TIME);
                    let migrating = state.involvement.migration().is_some();
                    drop(state);
                    match guest.run_state() {
                        Ok(RunState::Running) => VmState::Running,
                        Ok(RunState::FinishMigrate | RunState::PostMigrate) if migrating => VmState::Handover,
                        Ok(_) => VmState::Paused,
                        Err(_) => VmState::Unresponsive,
                    }
                }
            }
        };
        let definition = kept.launch.definition();
        let seen = kept.last_seen.clone().unwrap_or_default();
        let running = running.filter(|_| state != VmState::Moved);
        let ram = || running.as_ref().and_then(|running| running.guest.ram_size().ok());
        let cpus = || running.as_ref().and_then(|running| running.guest.cpus().ok());
        skein_api::VmView {
            name: self.name.clone(),
            state,
            memory_bytes: definition
                .map(|definition| definition.memory_bytes)
                .or_else(|| ram().map(|ram| ram.base_bytes))
                .unwrap_or(seen.ram_bytes),
            cpus: definition.map(|definition| definition.cpus).or_else(cpus).unwrap_or(seen.cpus),
            pid: process.as_ref().map(|process| process.id().pid),
            qemu: running.as_ref().map(|running| running.guest.version()),
            machine: definition.map(|definition| definition.machine.clone()),
            qmp: process.as_ref().map(|_| kept.adopted.clone().unwrap_or_else(|| self.dir.join("qmp"))),
            console: Some(self.console()).filter(|path| process.is_some() && path.exists()),
            adopted: kept.adopted.is_some(),
            migration: self.moved_by().map(|id| skein_api::MigrationId(id.0)),
            drives: self.drives(),
            definition: definition.map(Definition::to_toml),
            note: self.state.lock().note.clone(),
        }
    }
}

/// All VMs of this host.
#[derive(Debug)]
pub(crate) struct Vms {
    dirs: Dirs,
    /// The QEMU program where a definition names none.
    qemu: Option<PathBuf>,
    /// A QEMU answers within this after its start; preallocated huge pages take their time.
    start_time: Duration,
    vms: Mutex<BTreeMap<String, Arc<Vm>>>,
    kills: Kills,
    /// Who is told that a guest was killed: its name, and by whom.
    on_killed: OnceLock<OnKilled>,
}

/// See [`Vms::on_killed`].
struct OnKilled(Box<TellKilled>);

type TellKilled = dyn Fn(&str, Killed) + Send + Sync;

impl std::fmt::Debug for OnKilled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnKilled")
    }
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> VmError {
    let what = what.into();
    move |source| VmError::Io { what, source }
}

impl Vms {
    /// Finds what is there: definitions, and QEMUs that an earlier agent started. To be called once it is certain that
    /// no other agent has these directories. `start_time`: a QEMU that does not answer so long after its start is
    /// killed.
    ///
    /// Errors: the directories cannot be read, or VMs run with their sockets below another run directory.
    pub(crate) fn open(dirs: Dirs, qemu: Option<PathBuf>, start_time: Duration) -> io::Result<Arc<Vms>> {
        dirs.take_run(|run| search::qemus(&run.join("vms")).into_keys().next())?;
        let (all, kills, on_killed) = (Mutex::default(), Kills::default(), OnceLock::new());
        let vms = Arc::new(Vms { dirs, qemu, start_time, vms: all, kills, on_killed });
        let mut found = search::qemus(&vms.dirs.run.join("vms"));
        let mut names: BTreeSet<String> = found.keys().cloned().collect();
        for dir in [vms.dirs.vms(), vms.dirs.run.join("vms")] {
            for entry in fs::read_dir(&dir)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                names.extend(Some(name.strip_suffix(".json").unwrap_or(&name).to_owned()).filter(|name| is_name(name)));
            }
        }
        for name in names {
            let processes = found.remove(&name).unwrap_or_default();
            if let Some(vm) = vms.find(&name, processes) {
                vms.vms.lock().insert(name, vm);
            }
        }
        Ok(vms)
    }

    /// What an earlier agent left of a VM. `processes`: those that were started as its QEMU.
    fn find(self: &Arc<Self>, name: &str, processes: Vec<Process>) -> Option<Arc<Vm>> {
        let dir = self.dirs.vm(name);
        let recorded = read::<SavedProcess>(&dir.join("process.json"));
        let recorded = recorded.and_then(|kept| Some((Process::attach(kept.process).ok()??, kept)));
        let process = recorded.or_else(|| self.unrecorded(name, processes));
        // What runs now, also if an older definition is there; else what could be started.
        let running = process.as_ref().and_then(|_| read(&dir.join("vm.json")));
        let kept: Option<SavedVm> = running.or_else(|| read(&self.file(name)));
        let kept = kept.or_else(|| {
            // A guest that runs is never given up, whatever became of its files.
            let (process, _) = process.as_ref()?;
            let line = CommandLine::of(process.id().pid).ok()?;
            warn!(vm = name, "its definition is lost: it is taken from the command line of its QEMU");
            Some(SavedVm::new(Launch::CommandLine(line)))
        });
        let Some(kept) = kept else {
            // Of a guest that was to come here and did not.
            if !self.file(name).exists() {
                let _ = fs::remove_dir_all(&dir);
            }
            return None;
        };
        let vm = self.new_vm(name, kept);
        let Some((process, SavedProcess { qmp, incoming, outgoing, .. })) = process else {
            self.remove(&vm);
            return Some(vm);
        };
        vm.state.lock().incoming = incoming;
        vm.set_involvement(incoming.or(outgoing).map_or(Involvement::None, Involvement::Moving));
        let process = Arc::new(process);
        match Monitor::connect(&qmp, FIND_TIME) {
            Ok(monitor) => {
                info!(vm = name, pid = process.id().pid, "found its QEMU");
                self.take_up(&vm, Running { process, guest: Arc::new(monitor) });
            }
            Err(error) => {
                warn!(vm = name, pid = process.id().pid, "its QEMU does not answer: {error}");
                vm.state.lock().silent = Some(process.clone());
                self.reattach(&vm, process, qmp);
            }
        }
        Some(vm)
    }

    /// A QEMU of which no file speaks: the agent was killed before it wrote one, or they are lost. One that still waits
    /// for a guest is of no use to anybody, and ended. Any other may have one.
    fn unrecorded(&self, name: &str, processes: Vec<Process>) -> Option<(Process, SavedProcess)> {
        let qmp = self.dirs.vm(name).join("qmp");
        let waits = || Monitor::connect(&qmp, FIND_TIME)?.run_state();
        if !processes.is_empty() && waits().is_ok_and(|state| state == RunState::InMigrate) {
            warn!(vm = name, "a QEMU that an earlier agent did not come to know is ended");
            for process in processes {
                if let Err(error) = process.kill(KILL_TIME) {
                    warn!(vm = name, "it cannot be killed: {error}");
                }
            }
            return None;
        }
        // A script, if there is one, is older than the QEMU that it started.
        let process = processes.into_iter().max_by_key(|process| (process.id().started, process.id().pid))?;
        let kept = SavedProcess { process: process.id(), qmp, incoming: None, outgoing: None };
        let dir = self.dirs.vm(name);
        let written = fs::create_dir_all(&dir).and_then(|()| write(&dir.join("process.json"), &kept));
        warn!(vm = name, pid = kept.process.pid, "found its QEMU, of which nothing was written down");
        if let Err(error) = written {
            warn!(vm = name, "{error}");
        }
        Some((process, kept))
    }

    /// Has `tell` called for each guest that is killed, and not by this agent, with its name. Once; before that nobody
    /// is told.
    pub(crate) fn on_killed(&self, tell: impl Fn(&str, Killed) + Send + Sync + 'static) {
        let _ = self.on_killed.set(OnKilled(Box::new(tell)));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dirs.vms().join(format!("{name}.json"))
    }

    pub(crate) fn get(&self, name: &str) -> Result<Arc<Vm>, VmError> {
        self.vms.lock().get(name).cloned().ok_or_else(|| VmError::Unknown(name.to_owned()))
    }

    /// Whether its name is still this VM's.
    fn has(&self, vm: &Arc<Vm>) -> bool {
        self.get(&vm.name).is_ok_and(|found| Arc::ptr_eq(&found, vm))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Vm>> {
        self.vms.lock().values().cloned().collect()
    }

    /// The VM whose QEMU waits for this migration, or came from it.
    pub(crate) fn of_migration(&self, id: MigrationId) -> Option<Arc<Vm>> {
        self.all().into_iter().find(|vm| vm.migration() == Some(id))
    }

    /// Starts a VM that was planned with [`Vms::plan`] or [`Vms::plan_again`]. `let_in` is asked before anything is
    /// started, and again with the QEMU before the VM is anybody's; what it gives is held until the VM runs.
    pub(crate) fn boot<T>(
        self: &Arc<Self>,
        planned: Planned,
        let_in: impl FnOnce() -> Result<T, NoRoom>,
        confirm: impl FnOnce(&T, &Vm, &Running) -> Result<(), NoRoom>,
    ) -> Result<Arc<Vm>, VmError> {
        let Planned { name, launch, left, .. } = planned;
        let vm = self.new_vm(&name, SavedVm { replaced_images: left, ..SavedVm::new(launch) });
        let old = self.register(&vm)?;
        let admitted = let_in().map_err(VmError::NoRoom);
        let booted = admitted.and_then(|admitted| {
            let running = self.spawn(&vm, None)?;
            let settled = confirm(&admitted, &vm, &running).map_err(VmError::NoRoom);
            let settled = settled.and_then(|()| movable::check_running(&vm, &*running.guest));
            let settled = settled.and_then(|()| self.settle_start(&vm, &*running.guest));
            settled.inspect_err(|_| drop(running.process.kill(KILL_TIME)))?;
            Ok((running, admitted))
        });
        match booted {
            Ok((running, _admitted)) => {
                self.run(&vm, running);
                Ok(vm)
            }
            Err(error) => {
                self.remove(&vm);
                self.replace(&vm, old);
                Err(error)
            }
        }
    }

    /// Puts a VM where none is, or one that is stopped, and has it busy. Gives the old one.
    fn register(&self, vm: &Arc<Vm>) -> Result<Option<Arc<Vm>>, VmError> {
        let mut vms = self.vms.lock();
        if let Some(why) = vms.get(&vm.name).and_then(|old| old.busy_error()) {
            return Err(why);
        }
        vm.state.lock().busy = true;
        Ok(vms.insert(vm.name.clone(), vm.clone()))
    }

    /// Puts another in a VM's place, or none, if it still has it.
    fn replace(&self, vm: &Vm, other: Option<Arc<Vm>>) {
        let mut vms = self.vms.lock();
        if vms.get(&vm.name).is_some_and(|found| std::ptr::eq(&**found, vm)) {
            vms.remove(&vm.name);
            vms.extend(other.map(|other| (other.name.clone(), other)));
        }
    }

    /// From its first start on a guest keeps its machine, whatever QEMU's alias stands for later; and it is remembered.
    fn settle_start(&self, vm: &Vm, guest: &dyn Guest) -> Result<(), VmError> {
        match guest.composition() {
            Ok(composition) => vm.set_launched(&composition),
            Err(error) => warn!(vm = vm.name, "it cannot be moved: {}", error_chain(&error)),
        }
        let mut kept = vm.saved.lock();
        if let Launch::Definition(defined) = &mut kept.launch {
            let definition = &mut defined.definition;
            let versioned = guest.versioned_machine(definition.machine_type());
            versioned.map(|versioned| definition.resolve_machine_type(&versioned));
        }
        drop(kept);
        self.save(vm)
    }

    /// KVM where it works, and what this host's QEMU needs. The guest keeps what it was started with.
    fn resolve(&self, mut definition: Definition) -> Result<Defined, VmError> {
        let program = definition.qemu.binary.clone().or_else(|| self.qemu.clone());
        if definition.accel == Accel::Auto {
            let works = kvm::works(program.as_deref());
            definition.accel = if works.is_ok() { Accel::Kvm } else { Accel::Tcg };
            if let Err(error) = works {
                info!(vm = definition.name, "runs under TCG: {error}");
            }
        }
        let mut config = skein_hypervisor::Config::new("", 0, "");
        config.binary = program;
        let forgets = || version_of(&config.program()).is_ok_and(|version| version.major < 9);
        // With huge pages it cannot be odd.
        let odd_ram = definition.accel == Accel::Tcg && definition.hugepages.is_none() && forgets();
        resolve_firmware(&mut definition)?;
        Ok(Defined { definition, odd_ram })
    }

    /// Whether guests run under KVM here, in the agent's QEMU.
    pub(crate) fn kvm_works(&self) -> Result<(), KvmError> {
        kvm::works(self.qemu.as_deref())
    }

    fn new_vm(&self, name: &str, kept: SavedVm) -> Arc<Vm> {
        let own = OwnState::new(&self.dirs.state, name);
        let state = Mutex::new(State { note: kept.note.clone(), ..State::default() });
        let (dir, kept) = (self.dirs.vm(name), Mutex::new(kept));
        Arc::new(Vm { name: name.to_owned(), dir, own, saved: kept, state, files: Mutex::default() })
    }

    /// Starts the QEMU that is to take a guest, under the VM's name.
    pub(crate) fn receive(self: &Arc<Self>, name: &str, launch: Launch, id: MigrationId) -> Result<Arc<Vm>, VmError> {
        if !is_name(name) {
            return Err(VmError::BadName(name.to_owned()));
        }
        if let Some(own) = self.of_migration(id).filter(|own| own.name == name && own.running().is_some()) {
            return Ok(own);
        }
        let vm = self.new_vm(name, SavedVm::new(launch));
        vm.set_involvement(Involvement::Moving(id));
        vm.state.lock().incoming = Some(id);
        // What it was when it last ran here is of the past.
        self.register(&vm).map_err(|why| match why {
            VmError::Running(name) => VmError::Exists(name),
            why => why,
        })?;
        match self.spawn(&vm, Some(id)) {
            Ok(running) => {
                self.run(&vm, running);
                Ok(vm)
            }
            Err(error) => {
                self.restore(&vm);
                Err(error)
            }
        }
    }

    /// The guest has arrived: the VM is this host's.
    pub(crate) fn arrived(&self, vm: &Vm) {
        let mut state = vm.state.lock();
        let migration = state.incoming.take();
        state.involvement = Involvement::None;
        let running = state.running.clone();
        drop(state);
        if let Err(error) = vm.own.arrived() {
            warn!(vm = vm.name, "{error}");
        }
        if let Err(error) = self.keep_arrived(vm, migration) {
            error!(vm = vm.name, "cannot be remembered over a boot of this host: {}", error_chain(&error));
        }
        let process = running.map_or(Ok(()), |running| self.keep_process(vm, running.process.id(), None, None));
        if let Err(error) = process {
            warn!(vm = vm.name, "{}", error_chain(&error));
        }
        self.clean_if_ended(vm);
    }

    /// After something was written of a process, that may have ended meanwhile.
    fn clean_if_ended(&self, vm: &Vm) {
        if vm.process().is_none() {
            // Its watcher may be about that, and past what was written.
            wait_until(KILL_TIME, || !vm.state.lock().busy);
            self.clean(vm);
        }
    }

    /// A QEMU that was to take a guest, and did not, is gone: nothing stays of it but what was there before.
    pub(crate) fn drop_received(&self, vm: &Vm) {
        if self.seize(vm) {
            self.restore(vm);
        }
    }

    /// Removes what there is of a VM, and has what was there before.
    fn restore(&self, vm: &Vm) {
        self.remove(vm);
        vm.own.put_back();
        self.drop_aside(vm);
        let before = read(&self.file(&vm.name)).map(|kept| self.new_vm(&vm.name, kept));
        self.replace(vm, before);
    }

    /// A VM's migration begins to take its guest away: after a crash it is known by its process, not by its name, which
    /// the guest may have come back under.
    pub(crate) fn leaves(&self, vm: &Vm, id: MigrationId) -> Result<(), VmError> {
        let process = vm.process().ok_or_else(|| VmError::NotRunning(vm.name.clone()))?;
        self.keep_process(vm, process.id(), None, Some(id))
    }

    /// A VM's migration is over.
    pub(crate) fn settled(&self, vm: &Vm) {
        vm.set_involvement(Involvement::None);
        if let Some(process) = vm.process() {
            if let Err(error) = self.keep_process(vm, process.id(), None, None) {
                warn!(vm = vm.name, "{}", error_chain(&error));
            }
            return self.clean_if_ended(vm);
        }
        if vm.is_incoming() {
            self.drop_received(vm);
        } else {
            self.clean(vm);
        }
    }

    /// The guest runs on another host: the VM is not this host's any more.
    pub(crate) fn released(&self, vm: &Vm) {
        self.let_go(vm, || vm.own.remove());
    }

    /// The VM is not this host's any more. `and` is done where it still was.
    fn let_go(&self, vm: &Vm, and: impl FnOnce()) {
        if self.seize(vm) {
            let files = vm.files.lock();
            let _ = fs::remove_file(self.file(&vm.name));
            drop(files);
            self.remove(vm);
            and();
            self.replace(vm, None);
        }
    }

    /// Takes over a QEMU that somebody else started.
    pub(crate) fn adopt(self: &Arc<Self>, qmp: &Path, name: Option<String>) -> Result<Arc<Vm>, VmError> {
        let shown = qmp.display().to_string();
        let of_qmp = |source| VmError::Qmp { name: shown.clone(), source };
        let of_guest = |source| VmError::Guest { name: shown.clone(), source };
        let monitor = Monitor::connect(qmp, ATTACH_TIME).map_err(of_qmp)?;
        let process = Process::of_monitor(&monitor).map_err(io_error(format!("the process behind {shown}")))?;
        let process = Arc::new(process.ok_or_else(|| VmError::NoProcess(qmp.to_owned()))?);
        let guest: Arc<dyn Guest> = Arc::new(monitor);
        let name = match name {
            Some(name) => name,
            None => guest.name().map_err(of_guest)?,
        };
        if !is_name(&name) {
            return Err(VmError::BadName(name));
        }
        if guest.run_state().map_err(of_guest)? == RunState::InMigrate {
            return Err(VmError::NoGuest(name));
        }
        let line = CommandLine::of(process.id().pid).map_err(io_error("its command line"))?;
        let kept = SavedVm { adopted: Some(qmp.to_owned()), ..SavedVm::new(Launch::CommandLine(line)) };
        let vm = {
            let mut vms = self.vms.lock();
            if vms.contains_key(&name) {
                return Err(VmError::Exists(name));
            }
            // By another of its monitors, perhaps.
            let is_it = |vm: &&Arc<Vm>| vm.process().is_some_and(|other| other.id() == process.id());
            let known = vms.values().find(is_it).map(|other| other.name.clone());
            // Or it is being started.
            let started = || search::name_of(process.id().pid, &self.dirs.run.join("vms"));
            if let Some(other) = known.or_else(started) {
                return Err(VmError::Adopted(other));
            }
            let vm = self.new_vm(&name, kept);
            vm.state.lock().silent = Some(process.clone());
            vms.insert(name, vm.clone());
            vm
        };
        let kept = fs::create_dir_all(&vm.dir)
            .map_err(io_error(vm.dir.display().to_string()))
            .and_then(|()| self.save(&vm))
            .and_then(|()| self.keep_process(&vm, process.id(), None, None));
        if let Err(error) = kept {
            vm.state.lock().silent = None;
            self.let_go(&vm, || {});
            return Err(error);
        }
        info!(vm = vm.name, pid = process.id().pid, "adopted");
        self.run(&vm, Running { process, guest });
        Ok(vm)
    }

    /// Presses the power button, waits, pulls the plug if told to.
    pub(crate) fn stop(&self, name: &str, timeout: Duration, force: bool) -> Result<Arc<Vm>, VmError> {
        let vm = self.get(name)?;
        if let Some(id) = vm.moved_by() {
            return Err(VmError::Migrating { name: name.to_owned(), id });
        }
        let starting = vm.state.lock().starting.clone();
        if let Some(starting) = starting.filter(|_| force) {
            starting.kill(KILL_TIME).map_err(io_error("killing QEMU"))?;
            // Who started it tidies up.
            wait_until(KILL_TIME, || !vm.state.lock().busy || !self.has(&vm));
            return Ok(vm);
        }
        let Some(process) = vm.process() else {
            return Err(vm.busy_error().unwrap_or_else(|| VmError::NotRunning(name.to_owned())));
        };
        let before = vm.migration();
        // Whoever starts it again has to give it what it has now.
        self.look(&vm);
        let ended = |wait| process.wait_exit(wait).map_err(io_error("waiting for QEMU"));
        if let Some(running) = vm.running() {
            let pressed = running.guest.press_power_button();
            if !force {
                pressed.map_err(|source| VmError::Guest { name: name.to_owned(), source })?;
            }
        }
        if ended(timeout)?.is_none() {
            if !force {
                return Err(VmError::StillOn { name: name.to_owned(), s: timeout.as_secs() });
            }
            if let Some(id) = vm.moved_by() {
                return Err(VmError::Migrating { name: name.to_owned(), id });
            }
            self.look(&vm);
            // QEMU flushes its disks before it ends.
            let quits = vm.running().is_some_and(|running| running.guest.quit().is_ok());
            if !quits || ended(KILL_TIME)?.is_none() {
                process.kill(KILL_TIME).map_err(io_error("killing QEMU"))?;
            }
        }
        // A migration may have begun meanwhile, and then its QEMU ends when the guest is elsewhere.
        if vm.migration().is_some_and(|id| Some(id) != before) || !self.has(&vm) {
            return Err(VmError::Left(name.to_owned()));
        }
        self.ended(&vm, &process);
        // Its watcher may be about that: the VM can be started again when this is answered.
        wait_until(KILL_TIME, || !vm.state.lock().busy);
        Ok(vm)
    }

    /// Runs a guest that was paused here. One in a migration is run by nothing but that migration's end; one that was
    /// moved away is not paused, but done with its migration.
    pub(crate) fn resume(&self, name: &str) -> Result<Arc<Vm>, VmError> {
        let vm = self.get(name)?;
        if let Some(id) = vm.moved_by() {
            return Err(VmError::Migrating { name: name.to_owned(), id });
        }
        let of_guest = |source| VmError::Guest { name: name.to_owned(), source };
        let running = vm.running().ok_or_else(|| VmError::NotRunning(name.to_owned()))?;
        match running.guest.run_state().map_err(of_guest)? {
            RunState::Running => {}
            RunState::Paused | RunState::PreLaunch | RunState::IoError | RunState::Watchdog => {
                running.guest.resume().map_err(of_guest)?;
            }
            state => {
                return Err(VmError::NotPaused { name: name.to_owned(), state: state.word() });
            }
        }
        Ok(vm)
    }

    /// Forgets a stopped VM.
    pub(crate) fn forget(&self, name: &str) -> Result<(), VmError> {
        let vm = self.get(name)?;
        if let Some(why) = vm.busy_error().filter(|why| !(vm.is_adopted() && matches!(why, VmError::Running(_)))) {
            return Err(why);
        }
        if let Some(id) = vm.moved_by() {
            return Err(VmError::Migrating { name: name.to_owned(), id });
        }
        if let Some(running) = vm.running() {
            // Its QMP socket is its owner's again.
            running.guest.close();
        }
        {
            let mut state = vm.state.lock();
            (state.running, state.silent) = (None, None);
        }
        // What is kept for the guest stays, as its disks do: it may be started again from its file.
        self.let_go(&vm, || {});
        Ok(())
    }

    /// Starts QEMU, and waits until it answers.
    fn spawn(&self, vm: &Vm, incoming: Option<MigrationId>) -> Result<Running, VmError> {
        let launch = vm.launch();
        let of_qemu = |source| VmError::Qemu { name: vm.name.clone(), source };
        fs::create_dir_all(&vm.dir).map_err(io_error(vm.dir.display().to_string()))?;
        let (qmp, log) = (vm.dir.join("qmp"), vm.dir.join("qemu.log"));
        // Before there is a process, so that whoever finds one knows what it is.
        write(&vm.dir.join("vm.json"), &*vm.saved.lock()).map_err(io_error("cannot remember the VM"))?;
        let started = match &launch {
            Launch::Definition(defined) => {
                let definition = &defined.definition;
                let prepare = if incoming.is_some() { OwnState::prepare_new } else { OwnState::prepare };
                prepare(&vm.own, definition).map_err(io_error("what is kept for the guest"))?;
                tap_devices::plug(definition)?;
                if let Some(tpm) = definition.tpm {
                    swtpm::start(tpm, &vm.own.tpm(), &vm.dir)?;
                }
                let config = config(defined, self.qemu.as_deref(), &vm.dir, &vm.own, incoming.is_some());
                spawn_detached(&config, &log, |program| Command::new(program))
            }
            Launch::CommandLine(line) => {
                let mut command = Command::new(&line.program);
                command.args(&line.args).arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
                if incoming.is_some() {
                    command.args(["-incoming", "defer", "-S"]);
                }
                spawn_command_detached(command, &qmp, &log)
            }
        };
        let (process, log) = started.map_err(of_qemu)?;
        vm.state.lock().log = Some(log.clone());
        let process = Arc::new(process);
        // Whoever calls it off need not wait for its first word.
        vm.state.lock().starting = Some(process.clone());
        // Before anything is asked of it, so that another agent would find it.
        let remembered = self.keep_process(vm, process.id(), incoming, None);
        let monitor = remembered.and_then(|()| connect_started(&process, &log, &qmp, self.start_time).map_err(of_qemu));
        vm.state.lock().starting = None;
        match monitor {
            Ok(monitor) => Ok(Running { process, guest: Arc::new(monitor) }),
            Err(error) => {
                let is_called_off =
                    matches!(&error, VmError::Qemu { source: skein_hypervisor::Error::Ended { .. }, .. })
                        && process.was_killed();
                let _ = process.kill(KILL_TIME);
                Err(if is_called_off { VmError::CalledOff(vm.name.clone()) } else { error })
            }
        }
    }

    /// As [`Vms::run`], of a QEMU that an earlier agent started, and perhaps did not come to remember.
    fn take_up(self: &Arc<Self>, vm: &Arc<Vm>, running: Running) {
        if !vm.is_incoming()
            && let Err(error) = vm.own.arrived()
        {
            // The earlier agent may have ended before it knew.
            warn!(vm = vm.name, "{error}");
        }
        if !vm.is_incoming()
            && read::<SavedVm>(&self.file(&vm.name)).is_none()
            && let Err(error) = self.settle_start(vm, &*running.guest)
        {
            warn!(vm = vm.name, "{}", error_chain(&error));
        }
        self.run(vm, running);
    }

    /// The VM runs: its end will be noticed.
    fn run(self: &Arc<Self>, vm: &Arc<Vm>, running: Running) {
        let process = running.process.clone();
        let before = self.kills.before(process.id());
        {
            let mut state = vm.state.lock();
            (state.running, state.silent, state.starting, state.busy) = (Some(running), None, None, false);
            state.note.clear();
        }
        let (vms, vm) = (Arc::downgrade(self), vm.clone());
        let watch = move || {
            let exit = loop {
                if let Some(vms) = vms.upgrade() {
                    vms.look(&vm);
                }
                match process.wait_exit(LOOK_TIME) {
                    Ok(None) => {}
                    Ok(exit) => break exit,
                    Err(_) => break None,
                }
            };
            if let Some(vms) = vms.upgrade() {
                // Before anybody sees that it ended, so that whoever tells that can tell why.
                if let Some(killed) = vms.kills.why(&process, exit, &before) {
                    vms.killed(&vm, &process, killed);
                }
                vms.ended(&vm, &process);
            }
        };
        if let Err(error) = thread::Builder::new().name("vm".into()).spawn(watch) {
            warn!("the end of a VM will not be noticed: {error}");
        }
    }

    /// Tries again and again to reach a QEMU that did not answer when the agent started.
    fn reattach(self: &Arc<Self>, vm: &Arc<Vm>, process: Arc<Process>, qmp: PathBuf) {
        let (vms, vm) = (Arc::downgrade(self), vm.clone());
        let attach = move || {
            loop {
                let monitor = Monitor::connect(&qmp, ATTACH_TIME);
                let Some(vms) = vms.upgrade() else { return };
                if !process.is_alive().unwrap_or(false) {
                    return vms.ended(&vm, &process);
                }
                if let Ok(monitor) = monitor {
                    // As in `unrecorded`.
                    let waits = || monitor.run_state().is_ok_and(|state| state == RunState::InMigrate);
                    if !vm.is_incoming() && vm.migration().is_none() && waits() {
                        warn!(vm = vm.name, "a QEMU that an earlier agent did not come to know is ended");
                        let _ = process.kill(KILL_TIME);
                        vms.ended(&vm, &process);
                        return vms.drop_received(&vm);
                    }
                    info!(vm = vm.name, "its QEMU answers again");
                    return vms.take_up(&vm, Running { process, guest: Arc::new(monitor) });
                }
                drop(vms);
                thread::sleep(Duration::from_millis(500));
            }
        };
        if let Err(error) = thread::Builder::new().name("reattach".into()).spawn(attach) {
            warn!("a QEMU that does not answer is left alone: {error}");
        }
    }

    /// A VM's process was killed.
    fn killed(&self, vm: &Vm, process: &Process, killed: Killed) {
        let note = match &killed {
            Killed::ByKernel(why) => format!("the kernel killed its QEMU: {why}"),
            Killed::BySomebody => "its QEMU was killed (SIGKILL)".to_owned(),
        };
        error!(vm = vm.name, pid = process.id().pid, "{note}");
        vm.state.lock().note = note;
        if let Some(OnKilled(tell)) = self.on_killed.get() {
            tell(&vm.name, killed);
        }
    }

    /// A VM's process is gone.
    fn ended(&self, vm: &Vm, process: &Process) {
        let mut state = vm.state.lock();
        let is_it = |other: &Process| other.id() == process.id();
        if state.running.as_ref().is_some_and(|running| is_it(&running.process)) {
            state.running = None;
            let words = state.log.as_ref().and_then(Log::last_words);
            let said = words.map_or_else(String::new, |words| format!("; it said: {words}"));
            if state.note.is_empty() {
                state.note = format!("{QEMU_ENDED_NOTE}{said}");
            }
        } else if state.silent.as_deref().is_some_and(is_it) {
            state.silent = None;
        } else {
            return;
        }
        // Nobody comes in between.
        let migrating = state.involvement.migration().is_some();
        state.busy = !migrating;
        let note = state.note.clone();
        drop(state);
        info!(vm = vm.name, pid = process.id().pid, "its QEMU has ended");
        if !migrating {
            self.save_note(vm, note);
            self.remove(vm);
            vm.state.lock().busy = false;
        }
    }

    /// Keeps why a VM is off, which is busy, for the next agent.
    fn save_note(&self, vm: &Vm, note: String) {
        let (_files, file) = (vm.files.lock(), self.file(&vm.name));
        let mut kept = vm.saved.lock();
        kept.note = note;
        let kept = kept.clone();
        if file.exists()
            && let Err(error) = write(&file, &kept)
        {
            warn!(vm = vm.name, "why it is off is not kept: {error}");
        }
    }

    /// Removes what belongs to a process that is gone, unless somebody else does, or the name is another's by now.
    fn clean(&self, vm: &Vm) {
        if self.seize(vm) {
            self.remove(vm);
            vm.state.lock().busy = false;
        }
    }

    /// Has a VM busy that is off and still has its name.
    fn seize(&self, vm: &Vm) -> bool {
        let vms = self.vms.lock();
        let is_own = vms.get(&vm.name).is_some_and(|found| std::ptr::eq(&**found, vm));
        let mut state = vm.state.lock();
        let seized = is_own && !state.busy && state.running.is_none() && state.silent.is_none();
        state.busy |= seized;
        seized
    }

    /// Removes what belongs to a process that is gone. The VM is busy, or nobody knows it yet.
    fn remove(&self, vm: &Vm) {
        if let Some(definition) = vm.launch().definition() {
            tap_devices::unplug(definition);
            if definition.tpm.is_some() {
                swtpm::end(&vm.dir);
            }
        }
        let _files = vm.files.lock();
        for file in ["process.json", "vm.json", "qmp", "console", "vnc", "swtpm.log"] {
            let _ = fs::remove_file(vm.dir.join(file));
        }
        if !self.file(&vm.name).exists() {
            let _ = fs::remove_dir_all(&vm.dir);
        }
    }

    fn save(&self, vm: &Vm) -> Result<(), VmError> {
        let _files = vm.files.lock();
        self.write(vm)
    }

    /// The VM's files are locked.
    fn write(&self, vm: &Vm) -> Result<(), VmError> {
        let kept = vm.saved.lock().clone();
        // What runs, as the next agent finds it: its machine type may have been resolved since it was started.
        write(&vm.dir.join("vm.json"), &kept).map_err(io_error("cannot remember the VM"))?;
        write_synced(&self.file(&vm.name), &kept).map_err(io_error(format!("cannot remember '{}'", vm.name)))
    }

    fn keep_process(
        &self,
        vm: &Vm,
        process: ProcessId,
        incoming: Option<MigrationId>,
        outgoing: Option<MigrationId>,
    ) -> Result<(), VmError> {
        let qmp = vm.saved.lock().adopted.clone().unwrap_or_else(|| vm.dir.join("qmp"));
        let kept = SavedProcess { process, qmp, incoming, outgoing };
        write(&vm.dir.join("process.json"), &kept).map_err(io_error("cannot remember the VM's process"))
    }
}

/// Writes into a definition which image its UEFI is, and what its store begins as: from its first start on a guest
/// keeps them, whatever the host prefers later.
fn resolve_firmware(definition: &mut Definition) -> Result<(), VmError> {
    let is_q35 = definition.is_q35();
    let Some(firmware) = definition.firmware.as_mut().filter(|firmware| firmware.kind == FirmwareKind::Uefi) else {
        return Ok(());
    };
    let code = firmware.image.as_deref();
    let has_store = firmware.vars.as_ref().is_some_and(|vars| vars.exists());
    if code.is_some() && (firmware.template.is_some() || has_store) {
        return Ok(());
    }
    let found = firmware::find(firmware::Wanted { is_q35, secure_boot: firmware.secure_boot, code });
    let found = found.ok_or_else(|| VmError::NoFirmware(definition.name.clone()))?;
    firmware.image.get_or_insert(found.code);
    firmware.template.get_or_insert(found.template);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(dir: &Path) -> Dirs {
        let dirs = Dirs { state: dir.join("state"), run: dir.join("run") };
        dirs.create().unwrap();
        dirs
    }

    fn known(vms: &Vms, name: &str) -> Arc<Vm> {
        let definition = Definition::parse(&format!("name = '{name}'\nmemory = '64 MiB'\n"), "a.toml").unwrap();
        let launch = Launch::Definition(Box::new(Defined { definition, odd_ram: false }));
        let vm = vms.new_vm(name, SavedVm::new(launch));
        fs::create_dir_all(&vm.dir).unwrap();
        vms.save(&vm).unwrap();
        vms.vms.lock().insert(name.to_owned(), vm.clone());
        vm
    }

    #[test]
    fn why_a_vm_is_off_outlives_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let vms = Vms::open(dirs(dir.path()), None, Duration::from_secs(60)).unwrap();
        vms.save_note(&known(&vms, "a"), "the kernel killed its QEMU".into());
        known(&vms, "gone");
        fs::remove_file(vms.file("gone")).unwrap();
        vms.save_note(&vms.get("gone").unwrap(), "nobody asks".into());
        drop(vms);
        let again = Vms::open(dirs(dir.path()), None, Duration::from_secs(60)).unwrap();
        assert_eq!(again.get("a").unwrap().show().note, "the kernel killed its QEMU");
        assert!(again.get("gone").is_err(), "what was let go of does not come back");
    }

    #[test]
    fn a_guest_that_left_is_shown_as_moved() {
        let dir = tempfile::tempdir().unwrap();
        let vms = Vms::open(dirs(dir.path()), None, Duration::from_secs(60)).unwrap();
        let vm = known(&vms, "a");
        for (involvement, state) in [
            (Involvement::Moving(MigrationId(7)), VmState::Stopped),
            (Involvement::Settling(MigrationId(7), Outcome::CalledOff), VmState::Stopped),
            (Involvement::Settling(MigrationId(7), Outcome::Moved), VmState::Moved),
        ] {
            vm.set_involvement(involvement);
            assert_eq!((vm.show().state, vm.show().memory_bytes), (state, 64 << 20));
        }
        // At the target it is the guest that comes.
        vm.state.lock().incoming = Some(MigrationId(7));
        assert_ne!(vm.show().state, VmState::Moved);
        vms.arrived(&vm);
        assert_eq!(vm.show().state, VmState::Stopped);
    }
}
