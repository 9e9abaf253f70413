//! Stops, resumes or forgets a VM.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use skein_hypervisor::RunState;

use super::error::{VmError, io_error};
use super::registry::Vms;
use super::vm::{KILL_TIME, Vm};
use crate::clock::wait_until;

impl Vms {
    /// Presses the power button, waits, and pulls the plug if `force` says so.
    pub(crate) fn stop(&self, name: &str, timeout: Duration, force: bool) -> Result<Arc<Vm>, VmError> {
        let vm = self.get(name)?;
        if let Some(why) = vm.moved_error() {
            return Err(why);
        }
        let starting = vm.state.lock().starting.clone();
        if let Some(starting) = starting.filter(|_| force) {
            starting.kill(KILL_TIME).map_err(io_error("killing QEMU"))?;
            // The thread that started the VM tidies up.
            wait_until(KILL_TIME, || !vm.state.lock().busy || !self.has(&vm));
            return Ok(vm);
        }
        let Some(process) = vm.process() else {
            return Err(vm.busy_error().unwrap_or_else(|| VmError::OffAlready(name.to_owned())));
        };
        let before = vm.migration();
        // The next start has to give the guest what it has now.
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
                let cure = format!(
                    "its guest may not heed the power button: `skein vm stop {name} --force` pulls the plug (with \
                     --cluster from another host)"
                );
                return Err(VmError::StillOn { name: name.to_owned(), s: timeout.as_secs(), cure });
            }
            if let Some(why) = vm.moved_error() {
                return Err(why);
            }
            self.look(&vm);
            // QEMU flushes its disks before it ends.
            let quits = vm.running().is_some_and(|running| running.guest.quit().is_ok());
            if !quits || ended(KILL_TIME)?.is_none() {
                process.kill(KILL_TIME).map_err(io_error("killing QEMU"))?;
            }
        }
        // A migration may have begun meanwhile, and then the VM's QEMU ends when the guest is elsewhere.
        if vm.migration().is_some_and(|id| Some(id) != before) || !self.has(&vm) {
            return Err(VmError::Left(name.to_owned()));
        }
        self.ended(&vm, &process);
        // The VM's watcher may be cleaning up: the VM can be started again when this is answered.
        vm.wait_tidied();
        Ok(vm)
    }

    /// Runs a guest that was paused here. Only a migration's end runs a guest that is in the migration. A guest that
    /// was moved away is not paused, but done with its migration.
    pub(crate) fn resume(&self, name: &str) -> Result<Arc<Vm>, VmError> {
        let vm = self.get(name)?;
        if let Some(why) = vm.moved_error() {
            return Err(why);
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
        vm.wait_tidied();
        if let Some(why) = vm.busy_error().filter(|why| !(vm.is_adopted() && matches!(why, VmError::Running(_)))) {
            return Err(why);
        }
        if let Some(why) = vm.moved_error() {
            return Err(why);
        }
        if let Some(running) = vm.running() {
            // The QMP socket is its owner's again.
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

    /// Gives a VM up that is not this host's any more. `and` is called if the VM still was.
    pub(super) fn let_go(&self, vm: &Vm, and: impl FnOnce()) {
        if self.seize(vm) {
            let files = vm.files.lock();
            let _ = fs::remove_file(self.file(&vm.name));
            drop(files);
            self.remove(vm);
            and();
            self.replace(vm, None);
        }
    }
}
