//! Tests VMs that are moved while they are off, between two agents in one process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skein_fake_guest::{FakeHypervisor, VirtualClock};
use skein_inventory::definition::Definition;
use skein_inventory::facts::{FileFacts, FileSystem};

use super::error::VmError;
use super::off::{HostFiles, OfferedVm};
use super::registry::Vms;
use crate::dirs::Dirs;
use crate::named_starts::NamedStarts;

const DISK: &str = "/srv/a.raw";
/// Bounds the wait for a killed process.
const SOON: Duration = Duration::from_secs(30);

struct Host {
    dir: tempfile::TempDir,
    hypervisor: FakeHypervisor,
    vms: Arc<Vms>,
}

fn open(dir: &Path, hypervisor: &FakeHypervisor) -> Arc<Vms> {
    let dirs = Dirs { state: dir.join("state"), run: dir.join("run") };
    dirs.create().unwrap();
    Vms::open(dirs, Arc::new(hypervisor.clone()), None, Duration::from_secs(60)).unwrap()
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let hypervisor = FakeHypervisor::new(&VirtualClock::new());
        let vms = open(dir.path(), &hypervisor);
        Host { dir, hypervisor, vms }
    }

    /// Ends the agent and starts it again.
    fn restart(&mut self) {
        self.vms = open(self.dir.path(), &self.hypervisor);
    }

    /// Starts a VM by its name.
    fn start(&self) -> Result<(), VmError> {
        self.vms.boot(self.vms.plan_again("a", false)?, || Ok(()), |(), _, _| Ok(())).map(drop)
    }

    fn knows(&self) -> bool {
        self.vms.get("a").is_ok()
    }
}

/// Returns a host that has the VM `a`, which is off. `more` is added to its definition.
fn with_vm(more: &str) -> Host {
    let host = Host::new();
    let text = format!("name = 'a'\nmemory = '64 MiB'\n{more}[[disk]]\npath = '{DISK}'\nformat = 'raw'\n");
    let definition = Definition::parse(&text, "a.toml").unwrap();
    host.vms.boot(host.vms.plan(definition, false).unwrap(), || Ok(()), |(), _, _| Ok(())).unwrap();
    host.vms.stop("a", Duration::ZERO, true).unwrap();
    host
}

/// Returns how a host sees the disk.
fn sees(host: &str, file_system: FileSystem, inode: u64) -> impl FnOnce(Vec<PathBuf>) -> HostFiles {
    let host = host.to_owned();
    move |paths| {
        assert!(paths.contains(&PathBuf::from(DISK)), "{paths:?}");
        let disk = FileFacts {
            path: DISK.into(),
            readable: true,
            writable: true,
            file_system,
            file_system_name: "fs".into(),
            mounted_from: Some("nas:/srv".into()),
            handle: None,
            device: 1,
            inode,
            wwid: None,
        };
        HostFiles { boot_id: Some(format!("boot of {host}")), host, files: vec![disk] }
    }
}

fn offer(host: &Host) -> Result<OfferedVm, VmError> {
    host.vms.offer("a", sees("source", FileSystem::Network, 7))
}

fn reserve(host: &Host, offered: OfferedVm, reservation: &str) -> Result<(), VmError> {
    host.vms.reserve(offered, reservation, sees("target", FileSystem::Network, 7)).map(drop)
}

#[test]
fn a_vm_that_is_off_is_startable_on_one_host_at_most_and_is_kept_by_one_at_least() {
    let (mut source, mut target) = (with_vm(""), Host::new());
    let offered = offer(&source).unwrap();
    let text = serde_json::to_string(&offered).unwrap();
    reserve(&target, offered, "m.0.1").unwrap();
    // Asked again, also of the next agent, nothing changes.
    target.restart();
    reserve(&target, serde_json::from_str(&text).unwrap(), "m.0.1").unwrap();
    assert_eq!(target.vms.get("a").unwrap().show().reserved.as_deref(), Some("m.0.1"));
    assert!(matches!(target.start(), Err(VmError::Reserved { .. })));
    assert!(matches!(target.vms.forget("a"), Err(VmError::Reserved { .. })));
    let definition = Definition::parse("name = 'a'\nmemory = '64 MiB'\n", "a.toml").unwrap();
    assert!(matches!(target.vms.plan(definition, true), Err(VmError::Reserved { .. })), "nor from a file");

    source.vms.leave("a", "m.0.1").unwrap();
    assert!(source.vms.has_left("m.0.1") && !source.knows());
    source.restart();
    assert!(source.vms.has_left("m.0.1") && !source.knows(), "not after a restart either");
    assert!(matches!(source.vms.leave("a", "m.0.2"), Err(VmError::Unknown(_))));

    // Another move's word changes nothing.
    assert!(target.vms.release("a", "m.0.2", false).unwrap().is_some());
    assert!(matches!(target.start(), Err(VmError::Reserved { .. })));
    target.vms.release("a", "m.0.1", true).unwrap().unwrap();
    target.restart();
    assert!(target.vms.release("a", "m.0.1", false).unwrap().is_some(), "what is kept is kept");
    target.start().unwrap();
    assert!(matches!(reserve(&target, serde_json::from_str(&text).unwrap(), "m.0.3"), Err(VmError::Exists(_))));
}

#[test]
fn a_move_that_is_over_leaves_nothing_on_its_target() {
    let (source, mut target) = (with_vm(""), Host::new());
    reserve(&target, offer(&source).unwrap(), "m.0.1").unwrap();
    // The next attempt takes the place of one that is over, whose release comes late.
    reserve(&target, offer(&source).unwrap(), "m.0.2").unwrap();
    assert!(target.vms.release("a", "m.0.1", false).unwrap().is_some());
    assert!(target.vms.release("a", "m.0.2", false).unwrap().is_none());
    target.restart();
    assert!(!target.knows());
    source.start().unwrap();
}

#[test]
fn a_vm_that_was_started_meanwhile_is_not_given_up() {
    let source = with_vm("");
    offer(&source).unwrap();
    source.start().unwrap();
    assert!(matches!(source.vms.leave("a", "m.0.1"), Err(VmError::Running(_))));
    assert!(matches!(offer(&source), Err(VmError::Running(_))));
    assert!(!source.vms.has_left("m.0.1") && source.knows());
    source.vms.get("a").unwrap().process().unwrap().kill(SOON).unwrap();
}

#[test]
fn a_vm_that_ran_since_another_host_was_told_of_it_is_not_given_up() {
    let mut source = with_vm("");
    offer(&source).unwrap();
    let text = format!("name = 'a'\nmemory = '128 MiB'\n[[disk]]\npath = '{DISK}'\nformat = 'raw'\n");
    let definition = Definition::parse(&text, "a.toml").unwrap();
    source.vms.boot(source.vms.plan(definition, true).unwrap(), || Ok(()), |(), _, _| Ok(())).unwrap();
    source.vms.stop("a", Duration::ZERO, true).unwrap();
    assert!(matches!(source.vms.leave("a", "m.0.1"), Err(VmError::Changed(_))));
    offer(&source).unwrap();
    // The next agent does not know what this one has told.
    source.restart();
    assert!(matches!(source.vms.leave("a", "m.0.1"), Err(VmError::Changed(_))));
    offer(&source).unwrap();
    source.vms.leave("a", "m.0.1").unwrap();
}

#[test]
fn what_only_one_host_has_keeps_a_vm_there() {
    let source = with_vm("");
    let target = Host::new();
    for (here, there, says) in [
        ((FileSystem::Local, 7), (FileSystem::Local, 7), "local file system (fs) of source"),
        ((FileSystem::Network, 7), (FileSystem::Local, 7), "local file system (fs) of target"),
        ((FileSystem::Network, 7), (FileSystem::Network, 8), "another file than on source"),
    ] {
        let offered = source.vms.offer("a", sees("source", here.0, here.1)).unwrap();
        let refused = target.vms.reserve(offered, "m.0.1", sees("target", there.0, there.1)).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
        assert!(!target.knows());
    }
    let nothing = |_| HostFiles { host: "target".into(), boot_id: None, files: Vec::new() };
    let refused = target.vms.reserve(offer(&source).unwrap(), "m.0.1", nothing).unwrap_err();
    assert!(refused.to_string().contains("target has no /srv/a.raw"), "{refused}");
    // What is kept for its guest is not in its definition alone.
    std::fs::create_dir_all(source.vms.get("a").unwrap().own().dir()).unwrap();
    assert!(offer(&source).unwrap_err().to_string().contains("UEFI variables or its TPM"));
}

#[test]
fn that_a_vm_has_left_is_known_however_old_its_definition_is() {
    let (source, target) = (with_vm(""), Host::new());
    let dirs = Dirs { state: source.dir.path().join("state"), run: source.dir.path().join("run") };
    let month_ago = SystemTime::now() - Duration::from_secs(30 * 86_400);
    let kept = dirs.state.join("vms").join("a.json");
    File::open(&kept).unwrap().set_modified(month_ago).unwrap();
    reserve(&target, offer(&source).unwrap(), "m.0.1").unwrap();
    source.vms.leave("a", "m.0.1").unwrap();
    // Another start forgets what is old.
    NamedStarts::new(dirs.starts()).once("m.0.2", SOON, || false, || Ok(())).unwrap();
    assert!(source.vms.has_left("m.0.1"));
}
