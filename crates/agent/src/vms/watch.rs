//! Watches a QEMU that runs until its end, and removes what it left.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use skein_hypervisor::{Log, Process};
use tracing::{error, info, warn};

use super::kills::Killed;
use super::registry::Vms;
use super::vm::{QEMU_ENDED_NOTE, Running, Vm};
use super::{swtpm, tap_devices};

/// Says how often a watcher reads what its guest has open.
pub(super) const LOOK_TIME: Duration = Duration::from_secs(10);

impl Vms {
    /// Registers a VM that runs: its end will be noticed.
    pub(super) fn run(self: &Arc<Self>, vm: &Arc<Vm>, running: Running) {
        let process = running.process.clone();
        let before = self.kills.before(process.id());
        {
            let mut state = vm.state.lock();
            (state.running, state.silent, state.starting) = (Some(running), None, None);
            (state.busy, state.is_being_started) = (false, false);
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
                // This comes before anybody sees the end, so that whoever tells the end can tell the reason.
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

    /// Notes that a VM's process was killed.
    pub(super) fn killed(&self, vm: &Vm, process: &Process, killed: Killed) {
        let note = match &killed {
            Killed::ByKernel(why) => format!("the kernel killed its QEMU: {why}"),
            Killed::BySomebody => "its QEMU was killed (SIGKILL)".to_owned(),
        };
        error!(vm = vm.name, pid = process.id().pid, "{note}");
        vm.state.lock().note = note;
        if let Some(tell) = self.on_killed.get() {
            tell(&vm.name, killed);
        }
    }

    /// Notes that a VM's process is gone.
    pub(super) fn ended(&self, vm: &Vm, process: &Process) {
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
        // No other thread comes in between.
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

    /// Removes what belongs to a process that is gone, unless another thread does, or the name is another VM's by now.
    pub(super) fn clean(&self, vm: &Vm) {
        if self.seize(vm) {
            self.remove(vm);
            vm.state.lock().busy = false;
        }
    }

    /// Makes a VM busy that is off and still has its name.
    pub(super) fn seize(&self, vm: &Vm) -> bool {
        let vms = self.vms.lock();
        let is_own = vms.get(&vm.name).is_some_and(|found| std::ptr::eq(&**found, vm));
        let mut state = vm.state.lock();
        let seized = is_own && !state.busy && state.running.is_none() && state.silent.is_none();
        state.busy |= seized;
        seized
    }

    /// Removes what belongs to a process that is gone. The VM is busy, or not registered yet.
    pub(super) fn remove(&self, vm: &Vm) {
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
}
