//! Finds the VMs that are there when the agent starts: definitions, and QEMUs that an earlier agent started.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use skein_hypervisor::{Guest, Hypervisor, Process, RunState};
use skein_inventory::definition::is_name;
use tracing::{info, warn};

use super::involvement::Involvement;
use super::kills::Kills;
use super::registry::Vms;
use super::saved::{SavedProcess, SavedVm, read, write};
use super::search;
use super::vm::{ATTACH_TIME, KILL_TIME, Running, Vm};
use crate::dirs::Dirs;
use crate::error_chain;
use crate::launch::{CommandLine, Launch};

/// Says how long a QEMU may take to answer when the agent starts. A QEMU that was started before answers at once,
/// unless it is held up.
const FIND_TIME: Duration = Duration::from_millis(250);

impl Vms {
    /// Finds what is there: definitions, and QEMUs that an earlier agent started. The call has to come once it is
    /// certain that no other agent has these directories. A QEMU that does not answer `start_time` after its start is
    /// killed.
    ///
    /// # Errors
    /// The directories cannot be read, or VMs run with their sockets below another run directory.
    pub(crate) fn open(
        dirs: Dirs,
        hypervisor: Arc<dyn Hypervisor>,
        qemu: Option<PathBuf>,
        start_time: Duration,
    ) -> io::Result<Arc<Vms>> {
        dirs.take_run(|run| search::qemus(&run.join("vms")).into_keys().next())?;
        let vms = Arc::new(Vms {
            dirs,
            hypervisor,
            qemu,
            start_time,
            vms: Mutex::default(),
            kills: Kills::default(),
            on_killed: OnceLock::new(),
            shares_ram: OnceLock::new(),
        });
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

    /// Finds what an earlier agent left of a VM. `processes` are those that were started as its QEMU.
    pub(super) fn find(self: &Arc<Self>, name: &str, processes: Vec<Process>) -> Option<Arc<Vm>> {
        let dir = self.dirs.vm(name);
        let recorded = read::<SavedProcess>(&dir.join("process.json"));
        let recorded = recorded.and_then(|kept| Some((Process::attach(kept.process).ok()??, kept)));
        let process = recorded.or_else(|| self.unrecorded(name, processes));
        // This is what runs now, also if an older definition is there; else it is what could be started.
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
            // The guest was to come here and did not.
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
        match self.hypervisor.connect(&qmp, FIND_TIME) {
            Ok(connected) => {
                info!(vm = name, pid = process.id().pid, "found its QEMU");
                self.take_up(&vm, Running { process, guest: connected.guest });
            }
            Err(error) => {
                warn!(vm = name, pid = process.id().pid, "its QEMU does not answer: {error}");
                vm.state.lock().silent = Some(process.clone());
                self.reattach(&vm, process, qmp);
            }
        }
        Some(vm)
    }

    /// Finds a QEMU that no file speaks of: the agent was killed before it wrote one, or the files are lost. A QEMU
    /// that still waits for a guest is of no use to anybody, and is ended. Any other may have a guest.
    pub(super) fn unrecorded(&self, name: &str, processes: Vec<Process>) -> Option<(Process, SavedProcess)> {
        let qmp = self.dirs.vm(name).join("qmp");
        let waits = || self.hypervisor.connect(&qmp, FIND_TIME).is_ok_and(|found| awaits_guest(&*found.guest));
        if !processes.is_empty() && waits() {
            warn!(vm = name, "a QEMU that an earlier agent did not come to know is ended");
            for process in processes {
                if let Err(error) = process.kill(KILL_TIME) {
                    warn!(vm = name, "it cannot be killed: {error}");
                }
            }
            return None;
        }
        let process = search::qemu_of(processes)?;
        let kept = SavedProcess { process: process.id(), qmp, incoming: None, outgoing: None };
        let dir = self.dirs.vm(name);
        let written = fs::create_dir_all(&dir).and_then(|()| write(&dir.join("process.json"), &kept));
        warn!(vm = name, pid = kept.process.pid, "found its QEMU, of which nothing was written down");
        if let Err(error) = written {
            warn!(vm = name, "{error}");
        }
        Some((process, kept))
    }

    /// Takes up a QEMU as [`Vms::run`] does, that an earlier agent started, and perhaps did not come to remember.
    pub(super) fn take_up(self: &Arc<Self>, vm: &Arc<Vm>, running: Running) {
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

    /// Tries again and again to reach a QEMU that did not answer when the agent started.
    pub(super) fn reattach(self: &Arc<Self>, vm: &Arc<Vm>, process: Arc<Process>, qmp: PathBuf) {
        let (vms, vm, hypervisor) = (Arc::downgrade(self), vm.clone(), self.hypervisor.clone());
        let attach = move || {
            loop {
                let connected = hypervisor.connect(&qmp, ATTACH_TIME);
                let Some(vms) = vms.upgrade() else { return };
                if !process.is_alive().unwrap_or(false) {
                    return vms.ended(&vm, &process);
                }
                if let Ok(connected) = connected {
                    let guest = connected.guest;
                    // The reason is that of `unrecorded`.
                    if !vm.is_incoming() && vm.migration().is_none() && awaits_guest(&*guest) {
                        warn!(vm = vm.name, "a QEMU that an earlier agent did not come to know is ended");
                        let _ = process.kill(KILL_TIME);
                        vms.ended(&vm, &process);
                        return vms.drop_received(&vm);
                    }
                    info!(vm = vm.name, "its QEMU answers again");
                    return vms.take_up(&vm, Running { process, guest });
                }
                drop(vms);
                thread::sleep(Duration::from_millis(500));
            }
        };
        if let Err(error) = thread::Builder::new().name("reattach".into()).spawn(attach) {
            warn!("a QEMU that does not answer is left alone: {error}");
        }
    }
}

/// Returns whether a guest is still to arrive there.
fn awaits_guest(guest: &dyn Guest) -> bool {
    guest.run_state().is_ok_and(|state| state == RunState::InMigrate)
}
