//! All VMs of this host by their names, and what is written down of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use skein_handover::MigrationId;
use skein_hypervisor::kvm::KvmError;
use skein_hypervisor::{Hypervisor, ProcessId};
use tracing::warn;

use super::error::{VmError, io_error};
use super::kills::{Killed, Kills};
use super::saved::{SavedProcess, SavedVm, write, write_synced};
use super::vm::{State, Vm};
use crate::dirs::Dirs;
use crate::own_state::OwnState;

/// All VMs of this host.
#[derive(Debug)]
pub(crate) struct Vms {
    pub(super) dirs: Dirs,
    pub(super) hypervisor: Arc<dyn Hypervisor>,
    /// The QEMU program where a definition names none.
    pub(super) qemu: Option<PathBuf>,
    /// A QEMU answers within this after its start; preallocated huge pages take their time.
    pub(super) start_time: Duration,
    pub(super) vms: Mutex<BTreeMap<String, Arc<Vm>>>,
    pub(super) kills: Kills,
    /// Who is told that a guest was killed: its name, and by whom.
    pub(super) on_killed: OnceLock<OnKilled>,
}

/// See [`Vms::on_killed`].
pub(super) struct OnKilled(pub(super) Box<TellKilled>);

pub(super) type TellKilled = dyn Fn(&str, Killed) + Send + Sync;

impl std::fmt::Debug for OnKilled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnKilled")
    }
}

impl Vms {
    /// Has `tell` called for each guest that is killed, and not by this agent, with its name. Once; before that nobody
    /// is told.
    pub(crate) fn on_killed(&self, tell: impl Fn(&str, Killed) + Send + Sync + 'static) {
        let _ = self.on_killed.set(OnKilled(Box::new(tell)));
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dirs.vms().join(format!("{name}.json"))
    }

    pub(crate) fn get(&self, name: &str) -> Result<Arc<Vm>, VmError> {
        self.vms.lock().get(name).cloned().ok_or_else(|| VmError::Unknown(name.to_owned()))
    }

    /// Whether its name is still this VM's.
    pub(super) fn has(&self, vm: &Arc<Vm>) -> bool {
        self.get(&vm.name).is_ok_and(|found| Arc::ptr_eq(&found, vm))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Vm>> {
        self.vms.lock().values().cloned().collect()
    }

    /// The VM whose QEMU waits for this migration, or came from it.
    pub(crate) fn of_migration(&self, id: MigrationId) -> Option<Arc<Vm>> {
        self.all().into_iter().find(|vm| vm.migration() == Some(id))
    }

    /// Puts a VM where none is, or one that is stopped, and has it busy. Gives the old one.
    pub(super) fn register(&self, vm: &Arc<Vm>) -> Result<Option<Arc<Vm>>, VmError> {
        let mut vms = self.vms.lock();
        if let Some(why) = vms.get(&vm.name).and_then(|old| old.busy_error()) {
            return Err(why);
        }
        vm.state.lock().busy = true;
        Ok(vms.insert(vm.name.clone(), vm.clone()))
    }

    /// Puts another in a VM's place, or none, if it still has it.
    pub(super) fn replace(&self, vm: &Vm, other: Option<Arc<Vm>>) {
        let mut vms = self.vms.lock();
        if vms.get(&vm.name).is_some_and(|found| std::ptr::eq(&**found, vm)) {
            vms.remove(&vm.name);
            vms.extend(other.map(|other| (other.name.clone(), other)));
        }
    }

    /// What runs this host's guests.
    pub(crate) fn hypervisor(&self) -> &dyn Hypervisor {
        &*self.hypervisor
    }

    /// Whether guests run under KVM here, in the agent's QEMU.
    pub(crate) fn kvm_works(&self) -> Result<(), KvmError> {
        self.hypervisor.kvm_works(self.qemu.as_deref())
    }

    pub(super) fn new_vm(&self, name: &str, kept: SavedVm) -> Arc<Vm> {
        let own = OwnState::new(&self.dirs.state, name);
        let state = Mutex::new(State { note: kept.note.clone(), ..State::default() });
        let (dir, kept) = (self.dirs.vm(name), Mutex::new(kept));
        Arc::new(Vm { name: name.to_owned(), dir, own, saved: kept, state, files: Mutex::default() })
    }

    pub(super) fn save(&self, vm: &Vm) -> Result<(), VmError> {
        let _files = vm.files.lock();
        self.write(vm)
    }

    /// The VM's files are locked.
    pub(super) fn write(&self, vm: &Vm) -> Result<(), VmError> {
        let kept = vm.saved.lock().clone();
        // What runs, as the next agent finds it: its machine type may have been resolved since it was started.
        write(&vm.dir.join("vm.json"), &kept).map_err(io_error("cannot remember the VM"))?;
        write_synced(&self.file(&vm.name), &kept).map_err(io_error(format!("cannot remember '{}'", vm.name)))
    }

    /// Keeps why a VM is off, which is busy, for the next agent.
    pub(super) fn save_note(&self, vm: &Vm, note: String) {
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

    pub(super) fn keep_process(
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
