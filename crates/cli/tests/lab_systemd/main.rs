//! Tests the agent as a systemd service: `make install` into hosts whose pid 1 is systemd, guests that outlive every
//! end of their agent, and agents that are replaced while they move a guest. Needs root, and systemd-nspawn.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.5

mod host;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use host::{Host, why_not};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_api::{Migration, MigrationPhase, Outcome, Reply, Request, SourcePhase, VmState, VmView};
use skein_identity::{ClusterCa, Validity};
use skein_lab_cluster::{Witness, arguments, until};
use skein_lab_hosts::{Lab, Spec};

/// The time after an agent's end within which everything is in order again.
const SOON: Duration = Duration::from_secs(60);
/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time for an agent that is asked to end, on a busy machine, too.
const STOP_TIME: Duration = Duration::from_secs(30);
/// The time for an agent to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the guest has in its RAM, so that there is something to copy.
const RAM_BYTES: usize = 32 << 20;
/// At this rate of each of the two NICs, that takes fourteen seconds.
const SLOW_MBIT: u32 = 10;

/// Two hosts with systemd and a running installed agent, a bridge br0 each, and a witness of the guest v1.
struct Site {
    /// The hosts, which are dropped before the lab.
    hosts: Vec<Host>,
    witness: Witness,
    lab: Lab,
    sockets: PathBuf,
    dir: tempfile::TempDir,
}

impl Site {
    /// Starts the site. Returns `None`, and prints why, if it is not possible here.
    fn up(name: &str) -> Option<Site> {
        if let Some(why) = why_not() {
            println!("skipped: no host with systemd: {why}");
            return None;
        }
        // Both NICs are in one subnet, which shows what the agent sets in /proc/sys/net for that case.
        let lab = Lab::up(Spec::same_subnet(&format!("{name}{}", std::process::id()), 2, None)).unwrap();
        let names = ["a", "b"];
        let dir = tempfile::Builder::new().prefix("skd").tempdir().unwrap();
        let sockets = dir.path().join("sockets");
        fs::create_dir(&sockets).unwrap();
        let ca = ClusterCa::create("lab").unwrap();
        let mut list = String::new();
        for host in names {
            let (one, two) = (lab.ip(host, 0).unwrap(), lab.ip(host, 1).unwrap());
            list += &format!("[[host]]\nname = '{host}'\naddress = ['{one}', '{two}']\n");
            for words in ["link add br0 type bridge", "link set br0 up"] {
                let made = lab.command(host, "ip").unwrap().args(words.split(' ')).status();
                assert!(made.unwrap().success(), "ip {words}");
            }
        }
        let witness = Witness::new(names.map(|host| (lab.netns(host).unwrap(), host.to_owned())));
        witness.watch(&sockets, "v1");
        let qemu = std::env::var_os("SKEIN_QEMU").filter(|name| !name.is_empty()).map(PathBuf::from);
        let mut binds = vec![sockets.clone()];
        binds.extend(qemu.as_ref().and_then(|qemu| qemu.parent()).map(Path::to_owned));
        let hosts = names.map(|host| {
            Host::boot(&lab, host, &binds, |etc| {
                let identity = ca.issue(host, Validity::days(2)).unwrap();
                identity.save(&etc.join("skein/identity")).unwrap();
                fs::write(etc.join("skein/hosts.toml"), &list).unwrap();
                if let Some(qemu) = &qemu {
                    let options = format!("SKEIN_AGENT_OPTIONS=\"--qemu {}\"\n", qemu.display());
                    fs::write(etc.join("default/skein-agent"), options).unwrap();
                }
            })
        });
        for host in &hosts {
            host.make("install", Path::new(env!("CARGO_BIN_EXE_skein")));
            host.run("systemctl", &["daemon-reload"]);
            host.run("systemctl", &["enable", "--now", "skein-agent"]);
        }
        Some(Site { hosts: hosts.into(), witness, lab, sockets, dir })
    }

    fn host(&self, name: &str) -> &Host {
        self.hosts.iter().find(|host| host.name == name).unwrap()
    }

    /// Starts the guest on `a`. It boots nothing, has a NIC on a bridge, and its RAM is not empty.
    fn start_guest(&self) {
        let content = self.sockets.join("content");
        let random = fs::File::open("/dev/urandom").unwrap().take(RAM_BYTES as u64);
        std::io::copy(&mut { random }, &mut fs::File::create(&content).unwrap()).unwrap();
        let loader = format!("loader,file={},addr=0x1000000,force-raw=on", content.display());
        let args = arguments(&self.sockets, "v1").into_iter().chain(["-device".into(), loader]);
        let args = args.map(|arg| format!("'{arg}'")).collect::<Vec<_>>().join(", ");
        // This machine may have no tun device.
        let nic = if Path::new("/dev/net/tun").exists() { "[[nic]]\nbridge = 'br0'\n" } else { "" };
        let text = format!("name = 'v1'\nmemory = '64 MiB'\naccel = 'tcg'\n{nic}[qemu]\nargs = [{args}]\n");
        let a = self.host("a");
        fs::write(a.path("/root/v1.toml"), text).unwrap();
        a.run("skein", &["vm", "start", "/root/v1.toml"]);
        assert!(until(DEADLINE, || self.witness.runs("v1").len() == 1), "the witness sees it");
    }

    /// Makes another build of the program: one with other bytes.
    fn upgrade(&self, number: u32) -> PathBuf {
        let path = self.dir.path().join(format!("skein-{number}"));
        fs::copy(env!("CARGO_BIN_EXE_skein"), &path).unwrap();
        write!(fs::OpenOptions::new().append(true).open(&path).unwrap(), "build {number}").unwrap();
        path
    }

    /// Returns the guest as the agent of `host` has it. `None`: it has no such guest, or there is no agent.
    fn vm(&self, host: &str) -> Option<VmView> {
        match self.host(host).client().call(&Request::VmShow { name: "v1".into() }, PATIENCE) {
            Ok(Reply::Vm(vm)) => Some(*vm),
            _ => None,
        }
    }

    /// Returns the last migration that `host` knows.
    fn migration(&self, host: &str) -> Option<Migration> {
        match self.host(host).client().call(&Request::MigrationList, PATIENCE) {
            Ok(Reply::Migrations { migrations }) => migrations.into_iter().next(),
            _ => None,
        }
    }

    /// Returns the hosts where the guest runs, as its QEMUs say.
    fn where_runs(&self) -> Vec<String> {
        self.witness.runs("v1").into_iter().filter(|run| run.until.is_none()).map(|run| run.host).collect()
    }

    #[track_caller]
    fn check(&self) {
        assert_eq!(self.witness.doubles(), [], "TWO GUESTS RAN");
        assert_eq!(self.witness.contradictions(), [""; 0]);
    }

    fn set_slow(&self, slow: bool) {
        for nic in 0..2 {
            self.lab.rate("a", nic, slow.then_some(SLOW_MBIT)).unwrap();
        }
    }
}

/// Returns a process's number in its own pid namespace.
fn inner_pid(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    pids.split_ascii_whitespace().next_back().unwrap().parse().unwrap()
}

/// Returns how many QEMUs of the guest are in the control group of the agent's unit.
fn qemus(host: &Host) -> usize {
    let status = host.command("systemctl", &["status", "--full", "--lines=0", "skein-agent"]).output().unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    status.lines().filter(|line| line.contains("qemu-system") && line.contains("-name v1")).count()
}

/// Returns the processes of a host that compress pages: the number of each there, and its control group (of version 2).
fn packers(host: &Host) -> Vec<(u32, String)> {
    let pids = fs::read_dir(host.path("/proc")).unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let found = pids.filter_map(|pid: u32| {
        let read = |file: &str| fs::read_to_string(host.path(&format!("/proc/{pid}/{file}"))).ok();
        let is_packer = read("cmdline")?.split('\0').any(|word| word == "pack-pages");
        let group = read("cgroup")?.lines().find_map(|line| Some(line.strip_prefix("0::")?.to_owned()))?;
        is_packer.then_some((pid, group))
    });
    found.collect()
}

#[test]
fn a_guest_outlives_its_agent() {
    let Some(site) = Site::up("sda") else { return };
    let a = site.host("a");
    a.run(
        "systemd-analyze",
        &["verify", "--man=no", "skein-agent.service", "skein-net-qos.service", "skeinidle.slice"],
    );
    // A share of the network outlives a boot as a unit.
    let shown = || a.run("skein", &["net", "qos", "show"]);
    let options = "SKEIN_NET_QOS_OPTIONS=--share 80 --rate 1Gbit/s nic0\n";
    fs::write(a.path("/etc/default/skein-net-qos"), options).unwrap();
    a.run("systemctl", &["enable", "--now", "skein-net-qos"]);
    assert!(shown().contains("nic0: at least 80 % for migrations"), "{}", shown());
    a.run("systemctl", &["restart", "skein-net-qos"]);
    assert!(shown().contains("nic0: at least 80 % for migrations"), "{}", shown());
    a.run("systemctl", &["disable", "--now", "skein-net-qos"]);
    assert!(!shown().contains("at least"), "{}", shown());
    for key in ["arp_ignore", "arp_announce"] {
        let file = format!("/proc/sys/net/ipv4/conf/nic0/{key}");
        assert!(a.run("cat", &[&file]).parse::<u32>().unwrap() >= 1, "the agent keeps NICs apart: {key}");
    }
    site.start_guest();
    let begun = site.witness.runs("v1");
    let pid = begun[0].pid;
    let vm = site.vm("a").unwrap();
    assert_eq!((vm.state, vm.pid), (VmState::Running, Some(inner_pid(pid))));
    assert_eq!(qemus(a), 1);
    // The unit's hardening applies to the QEMU, too.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let has = |line: &str| status.lines().any(|found| found == line);
    assert!(has("NoNewPrivs:\t1") && has("Seccomp:\t2"), "{status}");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let sys_admin = u64::from_str_radix(capabilities, 16).unwrap() & 1 << 21;
    assert_eq!(sys_admin, 0, "{capabilities}");

    let goes_on = |what: &str| {
        let found = until(SOON, || site.vm("a").is_some_and(|vm| vm.state == VmState::Running));
        assert!(found, "after {what}, the agent has {:?}", site.vm("a"));
        let vm = site.vm("a").unwrap();
        assert_eq!(vm.pid, Some(inner_pid(pid)), "after {what}");
        assert_eq!(site.witness.runs("v1"), begun, "after {what}, it is the same QEMU, which never stopped");
        site.check();
    };
    goes_on("nothing");
    let main = || a.property("MainPID");

    let before = (main(), Instant::now());
    a.run("systemctl", &["restart", "skein-agent"]);
    println!("systemctl restart: {} ms", before.1.elapsed().as_millis());
    // The agent was ready when systemctl returned, so it answers at once.
    assert!(site.vm("a").is_some());
    assert_ne!(main(), before.0);
    goes_on("restart");

    let begin = Instant::now();
    a.run("systemctl", &["stop", "skein-agent"]);
    println!("systemctl stop: {} ms", begin.elapsed().as_millis());
    thread::sleep(Duration::from_secs(1));
    assert_eq!((a.property("ActiveState").as_str(), a.property("Result").as_str()), ("inactive", "success"));
    assert_eq!(site.where_runs(), ["a"], "it runs without an agent");
    assert!(a.path("/run/skein/vms/v1/qmp").exists(), "its sockets stay");
    a.run("systemctl", &["start", "skein-agent"]);
    goes_on("stop and start");

    let (before, begin) = (main(), Instant::now());
    a.run("systemctl", &["kill", "--kill-whom=main", "--signal=KILL", "skein-agent"]);
    assert!(until(SOON, || ![before.as_str(), "0"].contains(&main().as_str()) && site.vm("a").is_some()), "it is back");
    println!("killed, and back after {} ms", begin.elapsed().as_millis());
    goes_on("kill -9");

    for number in [1, 2] {
        let build = site.upgrade(number);
        a.make("install", &build);
        a.run("systemctl", &["daemon-reload"]);
        goes_on("a new program is there, and the old agent runs");
        a.run("systemctl", &["restart", "skein-agent"]);
        let program = fs::read(a.path(&format!("/proc/{}/exe", main()))).unwrap();
        assert!(program == fs::read(&build).unwrap(), "the agent is the new program");
        goes_on("an upgrade");
    }
    a.run("systemctl", &["daemon-reexec"]);
    a.run("systemctl", &["restart", "skein-agent"]);
    goes_on("a systemd that was replaced itself");

    // The agent ends by itself, without systemd.
    let inner: u32 = main().parse().unwrap();
    let process = a.path(&format!("/proc/{inner}"));
    let begin = Instant::now();
    a.run("kill", &["-TERM", &inner.to_string()]);
    assert!(until(STOP_TIME, || !process.exists()), "an agent ends when it is asked to");
    println!("SIGTERM: gone after {} ms", begin.elapsed().as_millis());
    goes_on("SIGTERM");

    // An agent that hangs is killed when it should stop.
    let inner: u32 = main().parse().unwrap();
    a.run("kill", &["-STOP", &inner.to_string()]);
    a.run("systemctl", &["restart", "skein-agent"]);
    goes_on("an agent that hung");

    a.run("skein", &["vm", "stop", "v1", "--force", "--timeout", "0"]);
    assert!(until(SOON, || !Path::new(&format!("/proc/{pid}")).exists()), "the QEMU has ended");
    assert_eq!(qemus(a), 0);
    a.run("systemctl", &["disable", "--now", "skein-agent"]);
    a.make("uninstall", Path::new("/"));
    let units = ["skein-agent.service", "skein-net-qos.service", "skeinidle.slice"]
        .map(|unit| format!("/usr/lib/systemd/system/{unit}"));
    for path in ["/usr/bin/skein", "/usr/share/man/man1/skein.1"].into_iter().chain(units.iter().map(String::as_str)) {
        assert!(!a.path(path).exists(), "{path}");
    }
    assert!(a.path("/var/lib/skein/journal").exists() && a.path("/etc/skein/identity").exists());
}

#[test]
fn an_agent_is_replaced_in_mid_migration() {
    let Some(site) = Site::up("sdb") else { return };
    site.start_guest();
    let first = site.witness.runs("v1");
    let (a, b) = (site.host("a"), site.host("b"));
    let mut number = 0;
    for replaced in [a, b] {
        for killed in [false, true] {
            number += 1;
            replaced.make("install", &site.upgrade(number));
            site.set_slow(true);
            a.run("skein", &["migrate", "v1", "--to", "b", "--deadline", "10m", "--detach"]);
            let copies = || {
                let stage = site.migration("a").and_then(|migration| migration.stage);
                stage == Some(MigrationPhase::Source(SourcePhase::Precopy)) && qemus(b) == 1
            };
            assert!(until(DEADLINE, copies), "it copies: {:?}", site.migration("a"));
            let id = site.migration("a").unwrap().id;
            // Pages wait for room, and are compressed with the CPU that no other slice wants.
            let is_idle = |group: &str| group.contains("/skeinidle.slice/") && group.ends_with(".scope");
            let mut packer = None;
            until(DEADLINE, || {
                packer = packers(a).into_iter().find(|(_, group)| is_idle(group));
                packer.is_some()
            });
            let packer = packer.unwrap_or_else(|| panic!("{:?}\n{}", packers(a), a.journal())).0;

            let begin = Instant::now();
            if killed {
                replaced.run("systemctl", &["kill", "--kill-whom=main", "--signal=KILL", "skein-agent"]);
            } else {
                replaced.run("systemctl", &["restart", "skein-agent"]);
            }
            let back = begin.elapsed();
            let is_over = || {
                let migration = site.migration("a").filter(|migration| migration.id == id);
                migration.is_some_and(|migration| migration.outcome.is_some() && migration.stage.is_none())
                    && site.vm("a").is_some_and(|vm| vm.state == VmState::Running && vm.migration.is_none())
                    && site.vm("b").is_none()
                    && qemus(b) == 0
            };
            let over = until(SOON, is_over);
            let (host, how) = (&replaced.name, if killed { "killed" } else { "restarted" });
            let times = (back.as_millis(), begin.elapsed().as_millis());
            assert!(over, "agent of {host} {how}: {:?}, {} QEMUs on b", site.migration("a"), qemus(b));
            println!(
                "agent of {host} {how} as another build: systemctl took {} ms, all settled after {} ms",
                times.0, times.1
            );
            if replaced.name == a.name {
                assert!(
                    until(SOON, || packers(a).iter().all(|(pid, _)| *pid != packer)),
                    "no packer outlives its agent"
                );
            }
            assert_eq!(site.migration("a").unwrap().outcome, Some(Outcome::CalledOff));
            assert_eq!(site.witness.runs("v1"), first, "the guest stays in its QEMU, and never stopped");
            site.check();
        }
    }
    site.set_slow(false);
    for (from, to) in [(a, b), (b, a)] {
        from.run("skein", &["migrate", "v1", "--to", &to.name]);
        assert!(until(SOON, || site.where_runs() == [to.name.as_str()]), "it runs on {:?}", site.where_runs());
        assert!(until(SOON, || qemus(from) == 0 && site.vm(&from.name).is_none()), "nothing is left");
        site.check();
    }
    // Nothing is in the way of the end of a guest's process, either.
    let pid = site.witness.runs("v1").last().unwrap().pid;
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    assert!(until(SOON, || site.vm("a").is_some_and(|vm| vm.state == VmState::Stopped)), "{:?}", site.vm("a"));
}
