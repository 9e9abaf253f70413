//! Tests what stands against a migration, between two agents on two of the lab's hosts, each with QEMU: all of it is
//! found, and nothing that is not there. The guests are a BIOS without anything to boot. Needs root.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.5

mod two_agents;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use skein_api::{Accel, HostFacts, Presence, ProblemKind, Reply, Request, VmOrigin};
use skein_client::Client;
use skein_lab_hosts::Spec;

use self::two_agents::{PATIENCE, TwoAgents};

const RATE_MBIT: u32 = 500;

struct World(TwoAgents);

impl World {
    fn new() -> World {
        let spec = Spec::pairs(&format!("facts{}", std::process::id()), 2, Some(RATE_MBIT));
        World(TwoAgents::new(&spec, |_| {}, "[::]:7070"))
    }

    fn client(&self, host: &str) -> &Client {
        self.0.client(host)
    }

    /// Runs `ip` in a host.
    fn ip(&self, host: &str, line: &str) {
        let status = self.0.lab.command(host, "ip").unwrap().args(line.split_ascii_whitespace()).status().unwrap();
        assert!(status.success(), "ip {line}");
    }

    fn disk(&self) -> PathBuf {
        let path = self.0.dir.path().join("disk");
        fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        path
    }

    /// Starts a VM called `vm`; `more` is the end of its definition.
    fn start(&self, host: &str, more: &str) {
        let text = format!("name = 'vm'\nmemory = '128 MiB'\ncpus = 2\naccel = 'tcg'\n{more}");
        let from = VmOrigin::Definition { file: "vm.toml".into(), text };
        let reply = self.client(host).call(&Request::VmStart { from, options: Default::default() }, PATIENCE).unwrap();
        assert!(matches!(reply, Reply::Vm(_)), "{reply:?}");
    }

    /// Returns the kinds of problems with moving the VM.
    fn problems(&self, to: &str) -> Vec<ProblemKind> {
        let request = Request::Check { vm: "vm".into(), to: to.into(), options: Default::default() };
        let problems = match self.client("a").call(&request, PATIENCE).unwrap() {
            Reply::Check(check) => check.problems,
            other => panic!("{other:?}"),
        };
        problems.iter().for_each(|problem| println!("{problem}"));
        problems.iter().map(|problem| problem.kind).collect()
    }

    fn facts(&self, host: &str) -> HostFacts {
        match self.client(host).call(&Request::HostShow { name: Some(host.into()) }, PATIENCE).unwrap() {
            Reply::Host(host) => host.facts.expect("it knows its own"),
            other => panic!("{other:?}"),
        }
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Holds a tap open, as a guest would.
fn hold_tap(world: &World, host: &str, tap: &str) -> Killed {
    let qmp = world.0.dir.path().join("other");
    let mut command = world.0.lab.command(host, skein_hypervisor::Config::new("", 0, "").program()).unwrap();
    command.args(["-nodefaults", "-display", "none", "-S", "-machine", "none", "-qmp"]);
    command.arg(format!("unix:{},server=on,wait=off", qmp.display()));
    command.args(["-netdev", &format!("tap,id=n,ifname={tap},script=no,downscript=no")]);
    let held = Killed(command.stdin(Stdio::null()).spawn().unwrap());
    wait_for(&qmp);
    held
}

fn wait_for(socket: &Path) {
    let end = Instant::now() + PATIENCE;
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < end, "no {}", socket.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_network_of_another_host_is_shown() {
    let world = World::new();
    world.ip("b", "link add br0 type bridge");
    world.ip("b", "link add guest0 type veth peer name guest1");
    world.ip("b", "link set guest0 master br0 up");
    for asked in ["a", "b"] {
        let reply = world.client(asked).call(&Request::NetShow { name: "b".into() }, PATIENCE).unwrap();
        let Reply::Network { interfaces } = reply else { panic!("{reply:?}") };
        let named = |name: &str| interfaces.iter().find(|of| of.nic.name == name).unwrap();
        assert_eq!(named("guest0").port_of.as_deref(), Some("br0"), "asked of {asked}");
        assert_eq!((named("br0").nic.kind.as_deref(), named("br0").uplink.as_deref()), (Some("bridge"), None));
        assert!(!named("nic0").nic.addresses.is_empty() && named("nic0").qdisc.is_some(), "{interfaces:?}");
    }
    let error = world.client("a").call(&Request::NetShow { name: "nobody".into() }, PATIENCE).unwrap_err().to_string();
    assert!(error.contains("nobody"), "{error}");
}

#[test]
fn what_speaks_against_a_migration() {
    let world = World::new();
    let disk = world.disk();
    for host in ["a", "b"] {
        world.ip(host, "link add br0 type bridge");
        world.ip(host, "link set br0 up");
        world.ip(host, "tuntap add dev tap7 mode tap");
    }
    let definition = format!(
        "[[disk]]\npath = '{}'\nformat = 'raw'\ncache = 'writeback'\n[[nic]]\nbridge = 'br0'\n[[nic]]\ntap = 'tap7'\n",
        disk.display()
    );
    world.start("a", &definition);

    // There is one kernel, and so the same disk, enough RAM, equal QEMUs: nothing stands against it.
    assert_eq!(world.problems("b"), []);

    assert_eq!(world.problems("a"), [ProblemKind::SameHost]);

    world.ip("b", "link set br0 down");
    assert_eq!(world.problems("b"), [ProblemKind::Bridge]);
    world.ip("b", "link set br0 up");

    let held = hold_tap(&world, "b", "tap7");
    assert_eq!(world.problems("b"), [ProblemKind::Tap]);
    drop(held);
    assert_eq!(world.problems("b"), []);

    world.start("b", "");
    assert_eq!(world.problems("b"), [ProblemKind::NameTaken]);
    let stop = Request::VmStop { name: "vm".into(), timeout_s: 0, force: true };
    world.client("b").call(&stop, PATIENCE).unwrap();
    assert_eq!(world.problems("b"), [ProblemKind::NameTaken], "it is stopped");
    world.client("b").call(&Request::VmForget { name: "vm".into() }, PATIENCE).unwrap();

    // There are several problems at once.
    fs::remove_file(&disk).unwrap();
    world.ip("b", "link del br0");
    let changed = ProblemKind::DiskChanged;
    assert_eq!(world.problems("b"), [ProblemKind::DiskMissing, ProblemKind::Bridge, changed]);

    let text = "name = 'other'\nmemory = '128 MiB'\ncpus = 1\naccel = 'tcg'\n[[nic]]\nbridge = 'br0'\n".to_owned();
    let request = Request::VmStart {
        from: VmOrigin::Definition { file: "other.toml".into(), text },
        options: Default::default(),
    };
    let error = world.client("b").call(&request, PATIENCE).unwrap_err().to_string();
    assert!(error.contains("there is no bridge br0 on this host"), "{error}");

    match world.client("a").call(&Request::HostList, PATIENCE).unwrap() {
        Reply::Hosts { hosts } => {
            let told: Vec<_> =
                hosts.iter().map(|host| (host.name.as_str(), host.reachable, host.facts.is_some())).collect();
            assert_eq!(told, [("a", Some(true), true), ("b", Some(true), true)], "{hosts:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_overlay_brings_the_image_below_it() {
    let world = World::new();
    let (base, overlay) = (world.disk(), world.0.dir.path().join("overlay"));
    let qemu = skein_hypervisor::Config::new("", 0, "").program();
    let beside = qemu.with_file_name("qemu-img");
    let mut command = Command::new(if beside.exists() { beside } else { "qemu-img".into() });
    command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&base).arg(&overlay);
    assert!(command.status().unwrap().success());
    world.start("a", &format!("[[disk]]\npath = '{}'\nformat = 'qcow2'\ncache = 'writeback'\n", overlay.display()));
    assert_eq!(world.problems("b"), []);
    fs::remove_file(&base).unwrap();
    assert_eq!(world.problems("b"), [ProblemKind::DiskMissing, ProblemKind::DiskChanged]);
}

#[test]
fn a_guest_that_somebody_else_started() {
    let world = World::new();
    let (disk, qmp) = (world.disk(), world.0.dir.path().join("qmp"));
    world.ip("a", "tuntap add dev tap3 mode tap");
    let mut command = world.0.lab.command("a", skein_hypervisor::Config::new("", 0, "").program()).unwrap();
    command.args("-name vm -nodefaults -display none -machine pc,accel=tcg -cpu Nehalem -m 128 -netdev".split(' '));
    command.args(["tap,id=n,ifname=tap3,script=no,downscript=no", "-device", "virtio-net-pci,netdev=n,romfile="]);
    command.args(["-drive", &format!("file={},format=raw,if=virtio", disk.display())]);
    command.args(["-qmp", &format!("unix:{},server=on,wait=off", qmp.display())]);
    let _qemu = Killed(command.stdin(Stdio::null()).spawn().unwrap());
    wait_for(&qmp);
    let reply = world.client("a").call(&Request::VmAdopt { qmp, name: None }, PATIENCE).unwrap();
    assert!(matches!(reply, Reply::Vm(_)), "{reply:?}");
    assert_eq!(world.problems("b"), []);

    world.ip("b", "tuntap add dev tap3 mode tap");
    let _held = hold_tap(&world, "b", "tap3");
    fs::remove_file(&disk).unwrap();
    assert_eq!(world.problems("b"), [ProblemKind::DiskMissing, ProblemKind::Tap, ProblemKind::DiskChanged]);
}

#[test]
fn a_host_and_its_qemu() {
    let world = World::new();
    world.ip("a", "link add br0 type bridge");
    world.ip("a", "link set br0 up");
    world.ip("a", "link add br1 type bridge");
    world.start("a", "[[nic]]\nbridge = 'br0'\n");
    let facts = world.facts("a");
    assert_eq!((facts.name.as_str(), facts.journal.clone()), ("a", Ok(())));
    assert_eq!(facts.bridges.iter().collect::<Vec<_>>(), ["br0"], "br1 is down");
    assert_eq!(facts.taps_in_use.len(), 1, "{:?}", facts.taps_in_use);
    assert!(facts.taps_in_use.first().unwrap().starts_with("sk"));
    assert_eq!(
        facts.vms.iter().map(|vm| (vm.name.as_str(), &vm.presence)).collect::<Vec<_>>(),
        [("vm", &Presence::Guest)]
    );
    assert!(facts.nics.iter().any(|nic| nic.name == "nic0"), "{:?}", facts.nics);
    assert!(facts.files.is_empty());

    let qemu = facts.qemu.unwrap();
    let own = format!("pc-q35-{}.{}", qemu.version.major, qemu.version.minor);
    assert!(qemu.machines.iter().any(|machine| machine.name == own && machine.alias.as_deref() == Some("q35")));
    let tcg = qemu.accels.iter().find(|accel| accel.accel == Accel::Tcg).expect("each QEMU that is tried has TCG");
    assert!(tcg.features.as_ref().unwrap().contains("sse4.1"), "{:?}", tcg.features);
    let missing = |name: &str| &tcg.cpu_models.iter().find(|model| model.name == name).unwrap().missing;
    assert!(missing("Nehalem").is_empty() && !missing("Icelake-Server").is_empty());
    assert_eq!(facts.kvm.is_ok(), qemu.accels.iter().any(|accel| accel.accel == Accel::Kvm));

    // The second time the result is remembered.
    let begun = Instant::now();
    world.facts("a");
    println!("facts of a host whose QEMU is known: {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20));
}
