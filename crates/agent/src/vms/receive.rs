//! Handles a VM whose guest comes from another host, or leaves for one.

use std::sync::Arc;

use skein_handover::MigrationId;
use skein_inventory::definition::is_name;
use tracing::{error, warn};

use super::error::VmError;
use super::involvement::Involvement;
use super::registry::Vms;
use super::saved::{SavedVm, read};
use super::vm::{KILL_TIME, Vm};
use crate::clock::wait_until;
use crate::error_chain;
use crate::launch::Launch;

impl Vms {
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
        // What the VM was when it last ran here is of the past.
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

    /// Notes that the guest has arrived: the VM is this host's.
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

    /// Removes a QEMU that was to take a guest, did not, and is gone: nothing stays but what was there before.
    pub(crate) fn drop_received(&self, vm: &Vm) {
        if self.seize(vm) {
            self.restore(vm);
        }
    }

    /// Removes what there is of a VM, and puts back what was there before.
    pub(super) fn restore(&self, vm: &Vm) {
        self.remove(vm);
        vm.own.put_back();
        self.drop_aside(vm);
        let before = read(&self.file(&vm.name)).map(|kept| self.new_vm(&vm.name, kept));
        self.replace(vm, before);
    }

    /// Notes that a VM's migration begins to take its guest away. After a crash the VM is known by its process, not by
    /// its name, under which the guest may have come back.
    pub(crate) fn leaves(&self, vm: &Vm, id: MigrationId) -> Result<(), VmError> {
        let process = vm.process().ok_or_else(|| VmError::NotRunning(vm.name.clone()))?;
        self.keep_process(vm, process.id(), None, Some(id))
    }

    /// Notes that a VM's migration is over.
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

    /// Notes that the guest runs on another host: the VM is not this host's any more.
    pub(crate) fn released(&self, vm: &Vm) {
        self.let_go(vm, || vm.own.remove());
    }

    /// Cleans up after a process was written of, if the process ended meanwhile.
    pub(super) fn clean_if_ended(&self, vm: &Vm) {
        if vm.process().is_none() {
            // The VM's watcher may be cleaning up, and past what was written.
            wait_until(KILL_TIME, || !vm.state.lock().busy);
            self.clean(vm);
        }
    }
}
