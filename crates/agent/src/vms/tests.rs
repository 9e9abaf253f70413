//! Tests what the registry keeps and shows.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skein_api::VmState;
use skein_handover::{MigrationId, Outcome};
use skein_hypervisor::QemuHypervisor;
use skein_inventory::definition::Definition;

use super::involvement::Involvement;
use super::registry::Vms;
use super::saved::SavedVm;
use super::vm::Vm;
use crate::dirs::Dirs;
use crate::launch::{Defined, Launch};

fn dirs(dir: &Path) -> Dirs {
    let dirs = Dirs { state: dir.join("state"), run: dir.join("run") };
    dirs.create().unwrap();
    dirs
}

fn known(vms: &Vms, name: &str) -> Arc<Vm> {
    let definition = Definition::parse(&format!("name = '{name}'\nmemory = '64 MiB'\n"), "a.toml").unwrap();
    let launch = Launch::Definition(Box::new(Defined { definition, odd_ram: false, cpu_model: None }));
    let vm = vms.new_vm(name, SavedVm::new(launch));
    fs::create_dir_all(&vm.dir).unwrap();
    vms.save(&vm).unwrap();
    vms.vms.lock().insert(name.to_owned(), vm.clone());
    vm
}

#[test]
fn why_a_vm_is_off_outlives_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let vms = Vms::open(dirs(dir.path()), Arc::new(QemuHypervisor), None, Duration::from_secs(60)).unwrap();
    vms.save_note(&known(&vms, "a"), "the kernel killed its QEMU".into());
    known(&vms, "gone");
    fs::remove_file(vms.file("gone")).unwrap();
    vms.save_note(&vms.get("gone").unwrap(), "nobody asks".into());
    drop(vms);
    let again = Vms::open(dirs(dir.path()), Arc::new(QemuHypervisor), None, Duration::from_secs(60)).unwrap();
    assert_eq!(again.get("a").unwrap().show().note, "the kernel killed its QEMU");
    assert!(again.get("gone").is_err(), "what was let go of does not come back");
}

#[test]
fn a_guest_that_left_is_shown_as_moved() {
    let dir = tempfile::tempdir().unwrap();
    let vms = Vms::open(dirs(dir.path()), Arc::new(QemuHypervisor), None, Duration::from_secs(60)).unwrap();
    let vm = known(&vms, "a");
    for (involvement, state) in [
        (Involvement::Moving(MigrationId(7)), VmState::Stopped),
        (Involvement::Settling(MigrationId(7), Outcome::CalledOff), VmState::Stopped),
        (Involvement::Settling(MigrationId(7), Outcome::Moved), VmState::Moved),
    ] {
        vm.set_involvement(involvement);
        assert_eq!((vm.show().state, vm.show().memory_bytes), (state, 64 << 20));
    }
    // At the target the guest comes by this migration.
    vm.state.lock().incoming = Some(MigrationId(7));
    assert_ne!(vm.show().state, VmState::Moved);
    vms.arrived(&vm);
    assert_eq!(vm.show().state, VmState::Stopped);
}
