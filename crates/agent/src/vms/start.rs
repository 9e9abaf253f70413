//! Starts a VM's QEMU.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use skein_handover::MigrationId;
use skein_hypervisor::{Guest, Incoming};
use skein_inventory::NoRoom;
use skein_inventory::definition::{Accel, Definition, FirmwareKind};
use tracing::{info, warn};

use super::error::{VmError, io_error};
use super::images::Planned;
use super::registry::Vms;
use super::saved::{SavedVm, write};
use super::vm::{KILL_TIME, Running, Vm};
use super::{movable, swtpm, tap_devices};
use crate::launch::{Defined, Launch, config, memory_backend};
use crate::own_state::OwnState;
use crate::{error_chain, firmware};

impl Vms {
    /// Starts a VM that was planned with [`Vms::plan`] or [`Vms::plan_again`]. `let_in` is called before anything is
    /// started, and again with the QEMU before the VM is registered. Its result is held until the VM runs.
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

    /// Settles a guest's machine: from its first start on a guest keeps it, whatever QEMU's alias stands for later. The
    /// guest is also remembered.
    pub(super) fn settle_start(&self, vm: &Vm, guest: &dyn Guest) -> Result<(), VmError> {
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

    /// Resolves the accelerator, to KVM where it works, and what this host's QEMU needs. The guest keeps what it was
    /// started with.
    pub(super) fn resolve(&self, mut definition: Definition) -> Result<Defined, VmError> {
        let program = definition.qemu.binary.clone().or_else(|| self.qemu.clone());
        if definition.accel == Accel::Auto {
            let works = self.hypervisor.kvm_works(program.as_deref());
            definition.accel = if works.is_ok() { Accel::Kvm } else { Accel::Tcg };
            if let Err(error) = works {
                info!(vm = definition.name, "runs under TCG: {error}");
            }
        }
        let forgets = || self.hypervisor.version_of(program.as_deref()).is_ok_and(|version| version.major < 9);
        // With huge pages the RAM cannot be odd.
        let odd_ram = definition.accel == Accel::Tcg && definition.hugepages.is_none() && forgets();
        resolve_firmware(&mut definition)?;
        Ok(Defined { definition, odd_ram, cpu_model: None })
    }

    /// Starts QEMU, and waits until it answers.
    pub(super) fn spawn(&self, vm: &Vm, incoming: Option<MigrationId>) -> Result<Running, VmError> {
        let launch = vm.launch();
        let of_qemu = |source| VmError::Qemu { name: vm.name.clone(), source };
        fs::create_dir_all(&vm.dir).map_err(io_error(vm.dir.display().to_string()))?;
        let (qmp, log) = (vm.dir.join("qmp"), vm.dir.join("qemu.log"));
        // This comes before the process, so that a later agent that finds the process knows what it is.
        write(&vm.dir.join("vm.json"), &*vm.saved.lock()).map_err(io_error("cannot remember the VM"))?;
        let command = match &launch {
            Launch::Definition(defined) => {
                let definition = &defined.definition;
                let prepare = if incoming.is_some() { OwnState::prepare_new } else { OwnState::prepare };
                prepare(&vm.own, definition).map_err(io_error("what is kept for the guest"))?;
                tap_devices::plug(definition)?;
                if let Some(tpm) = definition.tpm {
                    swtpm::start(tpm, &vm.own.tpm(), &vm.dir)?;
                }
                let memory = memory_backend(definition, self.shares_ram());
                let begins = if incoming.is_some() { Incoming::Defer } else { Incoming::No };
                let config = config(defined, self.qemu.as_deref(), &vm.dir, &vm.own, memory, begins);
                let mut command = Command::new(config.program());
                command.args(config.arguments());
                command
            }
            Launch::CommandLine(line) => {
                let mut command = Command::new(&line.program);
                command.args(&line.args).arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
                if incoming.is_some() {
                    command.args(["-incoming", "defer", "-S"]);
                }
                command
            }
        };
        let (process, log) = self.hypervisor.start(command, &qmp, &log).map_err(of_qemu)?;
        vm.state.lock().log = Some(log.clone());
        let process = Arc::new(process);
        // A cancel need not wait for the process's first answer.
        vm.state.lock().starting = Some(process.clone());
        // This comes before anything is asked of the process, so that another agent would find it.
        let remembered = self.keep_process(vm, process.id(), incoming, None);
        let answered = || self.hypervisor.first_answer(&process, &log, &qmp, self.start_time).map_err(of_qemu);
        let guest = remembered.and_then(|()| answered());
        vm.state.lock().starting = None;
        match guest {
            Ok(guest) => Ok(Running { process, guest }),
            Err(error) => {
                let is_called_off =
                    matches!(&error, VmError::Qemu { source: skein_hypervisor::Error::Ended { .. }, .. })
                        && process.was_killed();
                let _ = process.kill(KILL_TIME);
                Err(match missing_image(&launch) {
                    _ if is_called_off => VmError::CalledOff(vm.name.clone()),
                    Some(image) => VmError::NoImage(image),
                    None => error,
                })
            }
        }
    }
}

/// Returns an image of a guest that is not there: QEMU's own words for that are long.
fn missing_image(launch: &Launch) -> Option<PathBuf> {
    let Launch::Definition(defined) = launch else { return None };
    let Definition { disks, cdroms, .. } = &defined.definition;
    let images = disks.iter().map(|disk| &disk.path).chain(cdroms.iter().filter_map(|cdrom| cdrom.path.as_ref()));
    let is_missing = |image: &&PathBuf| fs::metadata(image).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    images.into_iter().find(is_missing).cloned()
}

/// Writes into a definition which image its UEFI is, and what its store begins as. From its first start on a guest
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
