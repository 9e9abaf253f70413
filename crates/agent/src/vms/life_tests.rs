//! Tests VMs from their start to their end, over a hypervisor whose guests live in virtual time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_api::VmState;
use skein_fake_guest::{Birth, Command, FakeHypervisor, Fault, GuestParameters, VirtualClock};
use skein_handover::MigrationId;
use skein_hypervisor::Process;
use skein_inventory::NoRoom;
use skein_inventory::definition::Definition;

use super::error::VmError;
use super::registry::Vms;
use super::vm::Vm;
use crate::dirs::Dirs;
use crate::launch::{CommandLine, Launch};

const ID: MigrationId = MigrationId(7);
/// Bounds the wait for what is about to happen in other threads, also on a busy machine.
const SOON: Duration = Duration::from_secs(30);

struct World {
    dir: tempfile::TempDir,
    hypervisor: FakeHypervisor,
    vms: Arc<Vms>,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let hypervisor = FakeHypervisor::new(&VirtualClock::new());
        let vms = open(&dir, &hypervisor);
        World { dir, hypervisor, vms }
    }

    /// Ends the agent and starts it again. Guests run on.
    fn restart(&mut self) {
        self.vms = open(&self.dir, &self.hypervisor);
    }

    fn start(&self, name: &str) -> Result<Arc<Vm>, VmError> {
        let definition = Definition::parse(&format!("name = '{name}'\nmemory = '64 MiB'\n"), "vm.toml").unwrap();
        self.vms.boot(self.vms.plan(definition, false)?, || Ok(()), |(), _, _| Ok(()))
    }

    fn state(&self, name: &str) -> VmState {
        self.vms.get(name).unwrap().show().state
    }

    fn wait_for(&self, name: &str, state: VmState) {
        wait_until(|| self.state(name) == state);
    }

    fn process(&self, name: &str) -> Arc<Process> {
        self.vms.get(name).unwrap().process().unwrap()
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.vms.dirs.vm(name).join("qmp")
    }

    fn foreign_socket(&self) -> PathBuf {
        self.dir.path().join("foreign")
    }

    /// Starts a QEMU as another program would.
    fn start_foreign(&self, parameters: GuestParameters, words: &[&str]) -> Process {
        self.hypervisor.expect(Birth::Answers(Box::new(parameters)));
        let log = self.dir.path().join("foreign.log");
        self.hypervisor.start_elsewhere(words, &self.foreign_socket(), &log).unwrap()
    }
}

fn open(dir: &tempfile::TempDir, hypervisor: &FakeHypervisor) -> Arc<Vms> {
    let dirs = Dirs { state: dir.path().join("state"), run: dir.path().join("run") };
    dirs.create().unwrap();
    Vms::open(dirs, Arc::new(hypervisor.clone()), None, Duration::from_secs(60)).unwrap()
}

fn wait_until(holds: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "what was waited for did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn named(name: &str) -> GuestParameters {
    GuestParameters { name: name.into(), ..GuestParameters::default() }
}

fn is_alive(process: &Process) -> bool {
    process.is_alive().unwrap()
}

#[test]
fn a_vm_runs_until_its_process_ends() {
    let world = World::new();
    let vm = world.start("a").unwrap();
    assert_eq!(vm.show().state, VmState::Running);
    assert!(matches!(world.start("a"), Err(VmError::Running(_))), "a guest never runs twice");
    world.process("a").kill(SOON).unwrap();
    world.wait_for("a", VmState::Stopped);
    assert!(vm.show().note.is_empty() || vm.show().note.starts_with("its QEMU has ended"), "{}", vm.show().note);
    assert!(!world.vms.dirs.vm("a").join("process.json").exists());
    world.start("a").unwrap();
    assert_eq!(world.state("a"), VmState::Running);
}

#[test]
fn a_start_that_fails_leaves_what_was_there() {
    let world = World::new();
    for (birth, told) in [
        (Birth::NoProgram, "install qemu"),
        (Birth::Ends("no such machine"), "no such machine"),
        (Birth::Silent, "did not answer"),
    ] {
        world.hypervisor.expect(birth.clone());
        let error = crate::error_chain(&world.start("a").unwrap_err());
        assert!(error.contains(told), "{birth:?}: {error}");
        assert!(world.vms.get("a").is_err() && !world.vms.dirs.vm("a").exists(), "{birth:?}");
    }
    // A known VM stays known.
    world.start("a").unwrap();
    world.process("a").kill(SOON).unwrap();
    world.wait_for("a", VmState::Stopped);
    world.hypervisor.expect(Birth::Silent);
    assert!(world.start("a").is_err());
    assert_eq!(world.state("a"), VmState::Stopped);
    world.start("a").unwrap();
}

#[test]
fn what_must_not_run_is_killed() {
    let world = World::new();
    let blocked = GuestParameters { blocked_reasons: vec!["device 'x' stays".into()], ..GuestParameters::default() };
    world.hypervisor.expect(Birth::Answers(Box::new(blocked)));
    let error = world.start("a").unwrap_err();
    assert!(matches!(&error, VmError::Unmovable { why, .. } if why.contains("device 'x' stays")), "{error}");
    let definition = Definition::parse("name = 'b'\nmemory = '64 MiB'\n", "vm.toml").unwrap();
    let full = || NoRoom { what: "full".into(), cure: String::new() };
    let mut seen = None;
    let confirm = |_: &(), _: &Vm, running: &super::vm::Running| {
        seen = Some(running.process.clone());
        Err(full())
    };
    let refused = world.vms.boot(world.vms.plan(definition, false).unwrap(), || Ok(()), confirm);
    assert!(matches!(refused, Err(VmError::NoRoom(_))));
    assert!(!is_alive(&seen.unwrap()));
    assert!(world.vms.all().is_empty());
}

#[test]
fn guests_run_on_without_the_agent() {
    let mut world = World::new();
    world.start("a").unwrap();
    let process = world.process("a");
    world.restart();
    assert_eq!((world.state("a"), world.process("a").id()), (VmState::Running, process.id()));
    process.kill(SOON).unwrap();
    world.wait_for("a", VmState::Stopped);
}

#[test]
fn a_guest_of_which_every_file_is_lost_is_kept() {
    let mut world = World::new();
    let vm = world.start("a").unwrap();
    // The VM's watcher writes down what the guest has open.
    wait_until(|| vm.state.lock().looked_at.is_some());
    let process = world.process("a");
    let dir = world.vms.dirs.vm("a");
    for file in [dir.join("process.json"), dir.join("vm.json"), world.vms.file("a")] {
        fs::remove_file(file).unwrap();
    }
    world.restart();
    assert_eq!((world.state("a"), world.process("a").id()), (VmState::Running, process.id()));
    assert!(matches!(world.vms.get("a").unwrap().launch(), Launch::CommandLine(_)));
}

#[test]
fn a_qemu_that_waits_for_nobody_is_ended() {
    let mut world = World::new();
    let vm = world.vms.receive("a", Launch::CommandLine(line()), ID).unwrap();
    assert_eq!(vm.show().state, VmState::Incoming);
    let process = world.process("a");
    // The agent was killed before it wrote down which migration the QEMU is for.
    fs::remove_file(vm.dir.join("process.json")).unwrap();
    drop(vm);
    world.restart();
    assert!(!is_alive(&process));
    assert!(world.vms.get("a").is_err(), "nothing is left of a guest that did not come");
}

fn line() -> CommandLine {
    CommandLine { program: "qemu".into(), args: vec!["-m".into(), "64".into()] }
}

#[test]
fn a_guest_that_does_not_arrive_leaves_what_was_there() {
    let world = World::new();
    world.start("a").unwrap();
    let refused = world.vms.receive("a", Launch::CommandLine(line()), ID);
    assert!(matches!(refused, Err(VmError::Exists(_))), "a guest of that name runs here");
    world.process("a").kill(SOON).unwrap();
    world.wait_for("a", VmState::Stopped);
    world.hypervisor.expect(Birth::Silent);
    assert!(world.vms.receive("a", Launch::CommandLine(line()), ID).is_err());
    assert_eq!(world.state("a"), VmState::Stopped);
    let vm = world.vms.receive("a", Launch::CommandLine(line()), ID).unwrap();
    let again = world.vms.receive("a", Launch::CommandLine(line()), ID).unwrap();
    assert!(Arc::ptr_eq(&vm, &again), "what is told twice is done once");
    vm.process().unwrap().kill(SOON).unwrap();
    wait_until(|| vm.process().is_none());
    world.vms.drop_received(&vm);
    assert_eq!(world.state("a"), VmState::Stopped);
    assert!(world.vms.get("a").unwrap().launch().definition().is_some());
}

#[test]
fn a_guest_that_arrives_is_this_hosts() {
    let mut world = World::new();
    let vm = world.vms.receive("a", Launch::CommandLine(line()), ID).unwrap();
    world.vms.set_aside(&vm, ID).unwrap();
    let guest = world.hypervisor.guest_at(&world.socket("a")).unwrap();
    guest.arrive(skein_hypervisor::RunState::Running);
    world.vms.arrived(&vm);
    assert_eq!(vm.show().state, VmState::Running);
    world.restart();
    assert_eq!(world.state("a"), VmState::Running);
    assert!(world.vms.file("a").exists(), "over a boot of the host, too");
}

#[test]
fn a_qemu_of_somebody_else_is_adopted_once() {
    let mut world = World::new();
    let none = world.vms.adopt(&world.foreign_socket(), None);
    assert!(matches!(none, Err(VmError::Connect { .. })));
    let process = world.start_foreign(named("db"), &["-m", "64"]);
    let bad = world.vms.adopt(&world.foreign_socket(), Some("a b".into()));
    assert!(matches!(bad, Err(VmError::BadName(_))));
    let vm = world.vms.adopt(&world.foreign_socket(), None).unwrap();
    assert_eq!((vm.name.as_str(), vm.show().state, vm.show().adopted), ("db", VmState::Running, true));
    let again = world.vms.adopt(&world.foreign_socket(), Some("other".into()));
    assert!(matches!(&again, Err(VmError::Adopted(name)) if name == "db"), "{again:?}");
    world.restart();
    assert_eq!(world.state("db"), VmState::Running);
    world.vms.forget("db").unwrap();
    assert!(is_alive(&process) && world.vms.get("db").is_err(), "it is left as it was");
}

#[test]
fn a_qemu_without_a_guest_is_not_adopted() {
    let world = World::new();
    world.start_foreign(named("db"), &["-incoming", "defer"]);
    assert!(matches!(world.vms.adopt(&world.foreign_socket(), None), Err(VmError::NoGuest(_))));
    assert!(world.vms.all().is_empty());
}

#[test]
fn a_qemu_that_will_not_end_is_killed_by_force() {
    let world = World::new();
    let vm = world.start("a").unwrap();
    world.hypervisor.guest_at(&world.socket("a")).unwrap().fail_always(Command::Quit, Fault::Refused("no".into()));
    let still = world.vms.stop("a", Duration::from_millis(1), false);
    let Err(VmError::StillOn { cure, .. }) = &still else { panic!("{still:?}") };
    assert!(cure.contains("`skein vm stop a --force`"), "{cure}");
    let process = world.process("a");
    world.vms.stop("a", Duration::from_millis(1), true).unwrap();
    assert!(!is_alive(&process));
    assert_eq!(vm.show().state, VmState::Stopped);
    world.vms.forget("a").unwrap();
    assert!(!Path::new(&world.vms.file("a")).exists());
}
