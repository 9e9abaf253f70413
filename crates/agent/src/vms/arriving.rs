//! Sets the definition of a guest that is to come aside in `state/vms/NAME.json~ID`, before its source is told that
//! this host is ready.
//!
//! Once the guest runs here, its source forgets the definition. If a full disk had no room for it then, nobody would
//! know the guest after a boot of this host. What was set aside needs no room any more: it gets its name.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use skein_handover::MigrationId;
use tracing::{info, warn};

use super::error::{VmError, io_error};
use super::registry::Vms;
use super::saved::{SavedVm, read, sync_dir_of, write, write_synced};
use super::vm::Vm;

impl Vms {
    /// Returns a path that is not the path of a VM's file: no name has a `~`.
    fn aside(&self, name: &str, id: MigrationId) -> PathBuf {
        self.dirs.vms().join(format!("{name}.json~{id}"))
    }

    /// Writes all that is to be remembered of a guest that is to come.
    pub(crate) fn set_aside(&self, vm: &Vm, id: MigrationId) -> Result<(), VmError> {
        let what = format!("'{}' could not be remembered over a boot of this host", vm.name);
        let kept = vm.saved.lock().clone();
        // The guest runs as it was compared: this is for the next agent.
        let written = write(&vm.dir.join("vm.json"), &kept);
        written.and_then(|()| write_synced(&self.aside(&vm.name, id), &kept)).map_err(io_error(what))
    }

    /// Removes what was set aside, because the guest did not come.
    pub(super) fn drop_aside(&self, vm: &Vm) {
        let id = vm.state.lock().incoming;
        id.into_iter().for_each(|id| drop(fs::remove_file(self.aside(&vm.name, id))));
    }

    /// Remembers a guest from now on that has come by this migration.
    pub(super) fn keep_arrived(&self, vm: &Vm, id: Option<MigrationId>) -> Result<(), VmError> {
        match id.map_or(Ok(false), |id| self.name_aside(&vm.name, id))? {
            true => Ok(()),
            // The migration was begun by an agent that set nothing aside.
            false => self.save(vm),
        }
    }

    /// Remembers a guest that came by this migration, and that the agent before this one did not come to remember. This
    /// host was booted since: the VM is known from now on, and stopped.
    pub(crate) fn arrived_before(self: &Arc<Self>, name: &str, id: MigrationId) {
        let mut vms = self.vms.lock();
        if vms.get(name).is_some_and(|vm| vm.busy_error().is_some()) {
            // A person who started the VM again knows what it is.
            let _ = fs::remove_file(self.aside(name, id));
            return;
        }
        match self.name_aside(name, id) {
            Ok(false) => {}
            Ok(true) => {
                if let Some(kept) = read::<SavedVm>(&self.file(name)) {
                    info!(vm = name, "it had come here before this host was booted");
                    let vm = self.new_vm(name, kept);
                    if let Err(error) = vm.own.arrived() {
                        warn!(vm = name, "{error}");
                    }
                    vms.insert(name.to_owned(), vm);
                }
            }
            Err(error) => warn!(vm = name, "{}", crate::error_chain(&error)),
        }
    }

    /// Makes what was set aside what is remembered. Returns false if nothing was set aside.
    fn name_aside(&self, name: &str, id: MigrationId) -> Result<bool, VmError> {
        let file = self.file(name);
        match fs::rename(self.aside(name, id), &file).and_then(|()| sync_dir_of(&file)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error(format!("cannot remember '{name}'"))(error)),
        }
    }

    /// Removes what was set aside for migrations that are not open.
    pub(crate) fn tidy_aside(&self, is_open: impl Fn(MigrationId) -> bool) {
        for entry in fs::read_dir(self.dirs.vms()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.split_once(".json~")?.1.parse().ok());
            if id.is_some_and(|id| !is_open(id)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skein_hypervisor::QemuHypervisor;

    use super::*;
    use crate::dirs::Dirs;
    use crate::launch::{CommandLine, Launch};

    const ID: MigrationId = MigrationId(7);

    fn open(dir: &tempfile::TempDir) -> Arc<Vms> {
        let dirs = Dirs { state: dir.path().join("state"), run: dir.path().join("run") };
        dirs.create().unwrap();
        Vms::open(dirs, Arc::new(QemuHypervisor), None, Duration::from_secs(1)).unwrap()
    }

    fn kept(program: &str) -> SavedVm {
        let line = CommandLine { program: program.into(), args: Vec::new() };
        SavedVm::new(Launch::CommandLine(line))
    }

    /// Returns a VM whose QEMU waits for its guest.
    fn incoming(vms: &Arc<Vms>) -> Arc<Vm> {
        let vm = vms.new_vm("web", kept("new"));
        vm.set_involvement(crate::vms::Involvement::Moving(ID));
        vm.state.lock().incoming = Some(ID);
        fs::create_dir_all(&vm.dir).unwrap();
        vms.vms.lock().insert("web".into(), vm.clone());
        vm
    }

    fn program(vms: &Vms) -> Option<String> {
        match vms.get("web").ok()?.launch() {
            Launch::CommandLine(line) => Some(line.program.display().to_string()),
            Launch::Definition(_) => None,
        }
    }

    #[test]
    fn a_guest_that_has_come_is_remembered_though_the_disk_is_full_by_then() {
        let dir = tempfile::tempdir().unwrap();
        let vms = open(&dir);
        let vm = incoming(&vms);
        vms.set_aside(&vm, ID).unwrap();
        // Nothing new finds room: where a file would be written, there is a directory.
        fs::create_dir(vms.file("web").with_extension("new")).unwrap();
        assert!(vms.save(&vm).is_err());
        vms.arrived(&vm);
        assert_eq!(program(&open(&dir)).as_deref(), Some("new"), "after a boot");
    }

    #[test]
    fn one_that_came_right_before_a_boot_is_known_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let vms = open(&dir);
        vms.set_aside(&incoming(&vms), ID).unwrap();
        fs::remove_dir_all(dir.path().join("run")).unwrap();
        let vms = open(&dir);
        assert_eq!(program(&vms), None, "whether it came is the journal's to say");
        vms.tidy_aside(|id| id == ID);
        vms.arrived_before("web", ID);
        assert_eq!(program(&vms).as_deref(), Some("new"));
        vms.arrived_before("web", ID);
        assert_eq!(program(&open(&dir)).as_deref(), Some("new"));
    }

    #[test]
    fn of_one_that_did_not_come_nothing_stays_and_what_was_there_before_does() {
        let dir = tempfile::tempdir().unwrap();
        let vms = open(&dir);
        write_synced(&vms.file("web"), &kept("old")).unwrap();
        let vm = incoming(&vms);
        vms.set_aside(&vm, ID).unwrap();
        vms.drop_received(&vm);
        assert_eq!(program(&vms).as_deref(), Some("old"));
        let vm = incoming(&vms);
        vms.set_aside(&vm, ID).unwrap();
        vms.tidy_aside(|_| false);
        vms.arrived_before("web", ID);
        assert_eq!(fs::read_dir(vms.dirs.vms()).unwrap().count(), 1);
        assert_eq!(program(&open(&dir)).as_deref(), Some("old"));
    }

    #[test]
    fn what_finds_no_room_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let vms = open(&dir);
        let vm = incoming(&vms);
        fs::remove_dir_all(vms.dirs.vms()).unwrap();
        let error = vms.set_aside(&vm, ID).unwrap_err();
        let told = crate::error_chain(&error);
        assert!(told.contains("'web' could not be remembered over a boot") && told.contains(".json"), "{told}");
    }
}
