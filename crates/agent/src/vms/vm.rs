//! Is a VM: what the agent knows of it, and what may be asked of it.
//!
//! The VM's name belongs to the thread that starts or removes a process of the VM ([`State::busy`]).

use std::hash::Hash;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skein_api::VmState;
use skein_handover::{MigrationId, Outcome};
use skein_hypervisor::guest::facts::ImageSnapshot;
use skein_hypervisor::{Guest, Log, Process, RunState};
use skein_inventory::Composition;
use skein_inventory::composition::Drive;
use skein_inventory::definition::Definition;

use super::error::VmError;
use super::involvement::Involvement;
use super::saved::SavedVm;
use crate::clock::wait_until;
use crate::composition;
use crate::launch::Launch;
use crate::own_state::OwnState;

/// Says after how long a QEMU that does not answer is shown so.
pub(super) const SHOW_TIME: Duration = Duration::from_secs(1);
/// Says after how long a QEMU that does not answer is tried again.
pub(super) const ATTACH_TIME: Duration = Duration::from_secs(1);
/// Bounds the wait for a killed process, which is gone by then.
pub(super) const KILL_TIME: Duration = Duration::from_secs(10);

/// Holds the note of a VM whose QEMU is gone.
pub(super) const QEMU_ENDED_NOTE: &str = "its QEMU has ended";

/// A QEMU that runs, with its guest.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) process: Arc<Process>,
    pub(crate) guest: Arc<dyn Guest>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) running: Option<Running>,
    /// The process, if it is there but QMP is not.
    pub(super) silent: Option<Arc<Process>>,
    /// The process of a QEMU that was started here and has not answered yet.
    pub(super) starting: Option<Arc<Process>>,
    /// The images of the VM's drives, as its QEMU last said.
    pub(super) looked_at: Option<ImageSnapshot>,
    pub(super) involvement: Involvement,
    /// The migration by which the VM's guest is to come here.
    pub(super) incoming: Option<MigrationId>,
    /// The composition that the target of the VM's migration was told.
    pub(super) promised_composition: Option<Composition>,
    /// The log with the words of the VM's QEMU, if this agent started it.
    pub(super) log: Option<Log>,
    /// The reason why the VM's pages cannot be written straight into a target's RAM, as a migration of its QEMU has
    /// shown.
    pub(super) indirect: Option<String>,
    /// Whether a process is about to be started, or what a process left to be removed. No other thread may do either.
    pub(super) busy: bool,
    /// Whether the VM is busy because a process is about to be started, which may take long.
    pub(super) is_being_started: bool,
    /// What another host was last told of the VM, which is off, to keep that.
    pub(super) offered: Option<String>,
    pub(super) note: String,
}

/// A VM.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) name: String,
    pub(super) dir: PathBuf,
    pub(super) own: OwnState,
    pub(super) saved: Mutex<SavedVm>,
    pub(super) state: Mutex<State>,
    /// Held while the VM's files are written or removed, so that the newest stays.
    pub(super) files: Mutex<()>,
}

impl Vm {
    pub(crate) fn launch(&self) -> Launch {
        self.saved.lock().launch.clone()
    }

    /// Returns what the agent keeps for the guest.
    pub(crate) fn own(&self) -> &OwnState {
        &self.own
    }

    /// Returns the monitor by which the VM was adopted; `None`: the agent started its QEMU.
    pub(crate) fn adopted_socket(&self) -> Option<PathBuf> {
        self.saved.lock().adopted.clone()
    }

    /// Returns whether another program started the VM's QEMU.
    pub(crate) fn is_adopted(&self) -> bool {
        self.saved.lock().adopted.is_some()
    }

    pub(crate) fn running(&self) -> Option<Running> {
        self.state.lock().running.clone()
    }

    /// Returns the process, also a process that does not answer.
    pub(crate) fn process(&self) -> Option<Arc<Process>> {
        let state = self.state.lock();
        state.running.as_ref().map(|running| running.process.clone()).or_else(|| state.silent.clone())
    }

    /// Returns what of the VM can be known without asking its QEMU. What is equal is shown equal, but for whether the
    /// guest is paused.
    pub(crate) fn outline(&self) -> impl Hash {
        let process = self.any_process().map(|process| process.id().pid);
        let state = self.state.lock();
        let part = (state.involvement.migration(), state.involvement.moved_by(), state.incoming);
        let reserved = self.saved.lock().reserved.clone();
        (self.name.clone(), process, state.running.is_some(), state.busy, part, state.note.clone(), reserved)
    }

    /// Returns the process of a VM that is being started.
    pub(crate) fn starting(&self) -> Option<Arc<Process>> {
        self.state.lock().starting.clone()
    }

    /// Returns the process to kill, if there is one: also that of a QEMU that is being started.
    pub(crate) fn any_process(&self) -> Option<Arc<Process>> {
        self.process().or_else(|| self.state.lock().starting.clone())
    }

    /// Waits until the VM is not being tidied up any more, [`KILL_TIME`] at most, so that nobody has to ask twice for
    /// what takes a moment.
    pub(super) fn wait_tidied(&self) {
        wait_until(KILL_TIME, || {
            let state = self.state.lock();
            !state.busy || state.is_being_started
        });
    }

    /// Returns why the VM cannot be started, or its place be taken.
    pub(crate) fn busy_error(&self) -> Option<VmError> {
        if self.state.lock().busy {
            return Some(VmError::Busy(self.name.clone()));
        }
        if let Some(reservation) = self.saved.lock().reserved.clone() {
            return Some(VmError::Reserved { name: self.name.clone(), reservation });
        }
        self.process().map(|_| VmError::Running(self.name.clone()))
    }

    pub(crate) fn migration(&self) -> Option<MigrationId> {
        self.state.lock().involvement.migration()
    }

    /// Returns whether the VM's QEMU waits for the guest.
    pub(crate) fn is_incoming(&self) -> bool {
        self.state.lock().incoming.is_some()
    }

    /// Returns the migration whose end is still open.
    pub(crate) fn moved_by(&self) -> Option<MigrationId> {
        self.state.lock().involvement.moved_by()
    }

    /// Returns why nothing may be done with the VM now: it is being moved.
    pub(super) fn moved_error(&self) -> Option<VmError> {
        self.moved_by().map(|id| VmError::Migrating { name: self.name.clone(), id })
    }

    pub(crate) fn set_involvement(&self, involvement: Involvement) {
        self.state.lock().involvement = involvement;
    }

    /// Returns what the guest is composed of, with the files that its QEMU has open.
    pub(crate) fn composition(&self) -> Result<Composition, VmError> {
        let running = self.running().ok_or_else(|| VmError::NotRunning(self.name.clone()))?;
        composition::with_files(&*running.guest, running.process.id().pid, self.own.dir())
            .map_err(|source| VmError::Composition { name: self.name.clone(), source: Box::new(source) })
    }

    /// Returns the composition for the target of the VM's migration. The guest is held to it until the guest is
    /// stopped.
    pub(crate) fn promise_composition(&self) -> Result<Composition, VmError> {
        let composition = self.composition()?;
        self.state.lock().promised_composition = Some(composition.clone());
        Ok(composition)
    }

    /// Returns the composition of [`Vm::promise_composition`].
    pub(crate) fn promised_composition(&self) -> Option<Composition> {
        self.state.lock().promised_composition.clone()
    }

    /// Returns the composition of the VM's QEMU when it had just been started; `None`: it was not read then.
    pub(crate) fn launched(&self) -> Option<Composition> {
        self.saved.lock().launched.clone()
    }

    /// Notes that the VM's QEMU has just been started, with this composition.
    pub(crate) fn set_launched(&self, composition: &Composition) {
        let mut kept = self.saved.lock();
        kept.launched = Some(composition.as_launched());
        let seen = kept.last_seen.get_or_insert_default();
        seen.drives.clone_from(&composition.drives);
    }

    /// Returns the last words of the QEMU that the VM has or had here, if it was started here.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.state.lock().log.as_ref().and_then(Log::last_words)
    }

    /// Returns why the VM's migrations are to go through the target's QEMU; `None`: they need not.
    pub(crate) fn indirect(&self) -> Option<String> {
        self.state.lock().indirect.clone()
    }

    pub(crate) fn set_indirect(&self, why: String) {
        self.state.lock().indirect = Some(why);
    }

    /// Notes why the VM's QEMU ended, if no better reason is known.
    pub(crate) fn explain_end(&self, why: &str) {
        let mut state = self.state.lock();
        if state.running.is_none() && state.note == QEMU_ENDED_NOTE {
            state.note = format!("{QEMU_ENDED_NOTE}: {why}");
        }
    }

    /// Returns the unix socket of the VM's serial console, whether or not it is there.
    pub(crate) fn console(&self) -> PathBuf {
        self.dir.join("console")
    }

    /// Returns the unix socket of the VM's serial console, for somebody who opens it.
    ///
    /// # Errors
    ///
    /// There is none, or no guest at it.
    pub(crate) fn open_console(&self) -> Result<PathBuf, VmError> {
        let name = || self.name.clone();
        match self.unasked_state() {
            Some(VmState::Moved) => return Err(VmError::Moved(name())),
            Some(VmState::Starting) => return Err(VmError::Busy(name())),
            Some(VmState::Stopped) => return Err(VmError::NotRunning(name())),
            Some(VmState::Incoming) => return Err(VmError::NoGuest(name())),
            _ => {}
        }
        Some(self.console()).filter(|path| path.exists()).ok_or_else(|| VmError::NoConsole(name()))
    }

    /// Returns the state as far as it is known without asking the VM's QEMU. `None`: its guest runs or is paused.
    pub(crate) fn unasked_state(&self) -> Option<VmState> {
        let process = self.process();
        let state = self.state.lock();
        match (&process, &state.running) {
            // The VM's QEMU ends, and does not answer any more.
            _ if matches!(state.involvement, Involvement::Settling(_, Outcome::Moved)) && state.incoming.is_none() => {
                Some(VmState::Moved)
            }
            (None, _) if state.busy => Some(VmState::Starting),
            (None, _) => Some(VmState::Stopped),
            _ if matches!(state.involvement, Involvement::InDoubt(_)) => Some(VmState::InDoubt),
            (Some(_), None) => Some(VmState::Unresponsive),
            _ if state.incoming.is_some() => Some(VmState::Incoming),
            (Some(_), Some(_)) => None,
        }
    }

    /// Returns the state that the VM's QEMU tells.
    fn asked_state(&self, running: Option<&Running>) -> VmState {
        let is_migrating = self.state.lock().involvement.migration().is_some();
        match running.map(|running| running.guest.with_patience(SHOW_TIME).run_state()) {
            Some(Ok(RunState::Running)) => VmState::Running,
            Some(Ok(RunState::FinishMigrate | RunState::PostMigrate)) if is_migrating => VmState::Handover,
            Some(Ok(_)) => VmState::Paused,
            Some(Err(_)) | None => VmState::Unresponsive,
        }
    }

    /// Returns the VM as commands see it.
    pub(crate) fn show(&self) -> skein_api::VmView {
        let kept = self.saved.lock().clone();
        let (running, process) = (self.running(), self.process());
        let state = self.unasked_state().unwrap_or_else(|| self.asked_state(running.as_ref()));
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
            reserved: kept.reserved.clone(),
        }
    }

    /// Returns what is in the VM's drives, or was when its QEMU was last asked.
    pub(super) fn drives(&self) -> Vec<skein_api::Drive> {
        let seen = self.saved.lock().last_seen.clone().unwrap_or_default();
        let drive = |drive: Drive| {
            let mut files = drive.medium.into_iter().flat_map(|medium| medium.chain).map(|image| image.filename);
            let name = if drive.name.is_empty() { drive.device } else { drive.name };
            skein_api::Drive { name, image: files.next(), backing: files.collect() }
        };
        seen.drives.into_iter().map(drive).collect()
    }
}
