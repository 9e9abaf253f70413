//! Takes over a QEMU that another program started.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use skein_hypervisor::{Connected, RunState};
use skein_inventory::definition::is_name;
use tracing::info;

use super::error::{VmError, io_error};
use super::registry::Vms;
use super::saved::SavedVm;
use super::search;
use super::vm::{ATTACH_TIME, Running, Vm};
use crate::launch::{CommandLine, Launch};

impl Vms {
    /// Takes over a QEMU that another program started.
    pub(crate) fn adopt(self: &Arc<Self>, qmp: &Path, name: Option<String>) -> Result<Arc<Vm>, VmError> {
        let shown = qmp.display().to_string();
        let of_guest = |source| VmError::Guest { name: shown.clone(), source };
        let connected = self.hypervisor.connect(qmp, ATTACH_TIME);
        let Connected { guest, process } =
            connected.map_err(|source| VmError::Connect { name: shown.clone(), source })?;
        let process = process.map_err(io_error(format!("the process behind {shown}")))?;
        let process = Arc::new(process.ok_or_else(|| VmError::NoProcess(qmp.to_owned()))?);
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
            // The VM may have the QEMU by another of its monitors.
            let is_it = |vm: &&Arc<Vm>| vm.process().is_some_and(|other| other.id() == process.id());
            let known = vms.values().find(is_it).map(|other| other.name.clone());
            // Or the VM is being started.
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
}
