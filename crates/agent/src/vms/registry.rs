//! Keeps all VMs of this host by their names, and writes down what is to be remembered of them.

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
pub(crate) struct Vms {
    pub(super) dirs: Dirs,
    pub(super) hypervisor: Arc<dyn Hypervisor>,
    /// The QEMU program for definitions that name none.
    pub(super) qemu: Option<PathBuf>,
    /// Bounds the time from a QEMU's start to its answer; preallocated huge pages take their time.
    pub(super) start_time: Duration,
    pub(super) vms: Mutex<BTreeMap<String, Arc<Vm>>>,
    pub(super) kills: Kills,
    /// Called when a guest was killed, with its name and what killed it.
    pub(super) on_killed: OnceLock<Box<TellKilled>>,
    /// Whether guests get shared RAM; see [`Vms::shares_ram_if`].
    pub(super) shares_ram: OnceLock<Box<AskSharesRam>>,
}

/// Hears the name of a guest that was killed, and what killed it.
type TellKilled = dyn Fn(&str, Killed) + Send + Sync;
/// Tells whether guests get shared RAM.
type AskSharesRam = dyn Fn() -> bool + Send + Sync;

impl std::fmt::Debug for Vms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vms").field("dirs", &self.dirs).field("vms", &self.vms).finish_non_exhaustive()
    }
}

impl Vms {
    /// Returns the file that says until when this host takes no guests.
    pub(crate) fn closed_file(&self) -> PathBuf {
        self.dirs.run.join("closed")
    }

    /// Has `tell` called for each guest that is killed, and not by this agent, with its name. The call comes once;
    /// before it nobody is told.
    pub(crate) fn on_killed(&self, tell: impl Fn(&str, Killed) + Send + Sync + 'static) {
        let _ = self.on_killed.set(Box::new(tell));
    }

    /// Has `ask` tell whether guests that are started here get shared RAM, whatever they ask for: the host keeps RAM of
    /// guests that leave, or has NICs write RAM of guests that come. Once; before that they do not.
    pub(crate) fn shares_ram_if(&self, ask: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.shares_ram.set(Box::new(ask));
    }

    pub(super) fn shares_ram(&self) -> bool {
        self.shares_ram.get().is_some_and(|ask| ask())
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dirs.vms().join(format!("{name}.json"))
    }

    pub(crate) fn get(&self, name: &str) -> Result<Arc<Vm>, VmError> {
        self.vms.lock().get(name).cloned().ok_or_else(|| VmError::Unknown(name.to_owned()))
    }

    /// Returns whether this VM still has its name.
    pub(super) fn has(&self, vm: &Arc<Vm>) -> bool {
        self.get(&vm.name).is_ok_and(|found| Arc::ptr_eq(&found, vm))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Vm>> {
        self.vms.lock().values().cloned().collect()
    }

    /// Returns the VM whose QEMU waits for this migration, or came from it.
    pub(crate) fn of_migration(&self, id: MigrationId) -> Option<Arc<Vm>> {
        self.all().into_iter().find(|vm| vm.migration() == Some(id))
    }

    /// Puts a VM where none is, or where a stopped VM is, and makes it busy. Returns the old VM.
    pub(super) fn register(&self, vm: &Arc<Vm>) -> Result<Option<Arc<Vm>>, VmError> {
        let mut vms = self.vms.lock();
        if let Some(why) = vms.get(&vm.name).and_then(|old| old.busy_error()) {
            return Err(why);
        }
        {
            let mut state = vm.state.lock();
            (state.busy, state.is_being_started) = (true, true);
        }
        Ok(vms.insert(vm.name.clone(), vm.clone()))
    }

    /// Puts another VM, or none, in a VM's place, if the VM still has the place.
    pub(super) fn replace(&self, vm: &Vm, other: Option<Arc<Vm>>) {
        let mut vms = self.vms.lock();
        if vms.get(&vm.name).is_some_and(|found| std::ptr::eq(&**found, vm)) {
            vms.remove(&vm.name);
            vms.extend(other.map(|other| (other.name.clone(), other)));
        }
    }

    /// Returns what runs this host's guests.
    pub(crate) fn hypervisor(&self) -> &dyn Hypervisor {
        &*self.hypervisor
    }

    /// Checks whether guests run under KVM here, in the agent's QEMU.
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

    /// Writes the VM's files. The caller has them locked.
    pub(super) fn write(&self, vm: &Vm) -> Result<(), VmError> {
        let kept = vm.saved.lock().clone();
        // The next agent finds what runs: the machine type may have been resolved since the start.
        write(&vm.dir.join("vm.json"), &kept).map_err(io_error("cannot remember the VM"))?;
        write_synced(&self.file(&vm.name), &kept).map_err(io_error(format!("cannot remember '{}'", vm.name)))
    }

    /// Keeps why a VM is off for the next agent. The VM is busy.
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
