//! Real libvirt over the tunnel and over the migration network: two daemons in two of the lab's hosts, a guest that
//! moves between them, and faults of the network in the finish phase, where libvirt itself runs the guest on both hosts
//! when its control connection fails.
//!
//! One program, run in order, which says what it sees. Where a machine cannot do this it says `skipped` and why.
//!
//! Timeout: 480 s
//! Cores: 0.7

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use skein_lab_guest::{BEAT_PORT, Beat, Beats, CONTROL_PORT, Gaps, Image, Params, WorkloadClient, default_cache};
use skein_lab_hosts::{Cut, Lab, Spec};
use skein_lab_libvirt::{Error, Moment, Relay, World, domain_xml, unpacked};
use tempfile::TempDir;

const SKEIN: &str = env!("CARGO_BIN_EXE_skein");
/// The names of the hosts: as they call themselves, and as the lab calls them.
const HOSTS: [&str; 2] = ["hosta", "hostb"];
const LAB: [&str; 2] = ["a", "b"];
const UUIDS: [&str; 2] = ["aaaaaaaa-0000-4000-8000-00000000000a", "bbbbbbbb-0000-4000-8000-00000000000b"];
const NICS: usize = 2;
const ALL_NICS: [usize; NICS] = [0, 1];
/// The rate of each NIC, in Mb/s.
const RATE: u32 = 1000;

const GUEST: &str = "vm1";
const MEMORY_MIB: u32 = 256;
const GUEST_CONTROL: &str = "/run/guest/control";
const GUEST_BEAT: &str = "/run/guest/beat";

/// The hosts' addresses in the migration network, which is on no wire.
const CAUGHT: [&str; 2] = ["10.9.9.1", "10.9.9.2"];

const DISK: &str = "/var/lib/libvirt/images/vm1.raw";
const DISK_MIB: u32 = 32;

/// libvirt's own socket, and where a relay listens before it or before the tunnel.
const DAEMON: &str = "/run/libvirt/libvirt-sock";
const RELAY: &str = "/run/skein/control/relay.sock";

const PLAIN: &[&str] = &[];
const PARALLEL: &[&str] = &["--parallel", "--parallel-connections", "4"];
const STORAGE: &[&str] = &["--copy-storage-all"];
const STORAGE_PARALLEL: &[&str] = &["--copy-storage-all", "--p2p", "--parallel", "--parallel-connections", "4"];
const P2P: &[&str] = &["--p2p"];
const P2P_PARALLEL: &[&str] = &["--p2p", "--parallel", "--parallel-connections", "4"];
/// With these, virsh gives a silent connection up after 4 s instead of the default 35 s: the test is quicker, and
/// stricter.
const IMPATIENT: &[&str] = &["--keepalive-interval", "1", "--keepalive-count", "3"];
const PATIENT: &[&str] = &[];

fn main() -> ExitCode {
    let mut tests = Tests::default();
    let begin = Instant::now();
    let mut skipped = 0;
    match all(&mut tests) {
        Ok(()) => {}
        Err(error) => match error.downcast_ref() {
            Some(Error::Skip(why)) => {
                println!("skipped: {why}");
                skipped = 1;
            }
            _ => {
                println!("FAILED: {error:#}");
                tests.failed += 1;
            }
        },
    }
    let Tests { passed, failed } = tests;
    let (status, seconds) = (if failed == 0 { "ok" } else { "FAILED" }, begin.elapsed().as_secs());
    println!("\ntest result: {status}. {passed} passed; {failed} failed; {skipped} ignored; finished in {seconds} s");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all(tests: &mut Tests) -> Result<()> {
    let hosts = Hosts::up()?;
    let mut guest = tests.run("the guest boots under libvirt", || hosts.boot(Disk::None))?;

    // socat is not used with --parallel: its processes connect in any order, and this QEMU takes the first connection
    // for the main channel.
    guest = tests.run("socat, plain", || hosts.moves(guest, Mover::Socat, PATIENT, PLAIN, None))?;
    for (way, options) in
        [("plain", PLAIN), ("--parallel", PARALLEL), ("--p2p", P2P), ("--p2p --parallel", P2P_PARALLEL)]
    {
        guest = tests.run(format!("skein, {way}"), || hosts.moves(guest, Mover::Skein, PATIENT, options, None))?;
    }

    for (way, options) in [("plain", PLAIN), ("--parallel", PARALLEL), ("--p2p --parallel", P2P_PARALLEL)] {
        let name = format!("migration network, {way}");
        guest = tests.run(name, || hosts.moves(guest, Mover::MigrationNetwork, PATIENT, options, None))?;
    }

    // Cut before the answer to FINISH: the guest runs on the target, and the source does not know.
    for (nic, cut) in [(0, Cut::Carrier), (1, Cut::Carrier), (0, Cut::BlackHole), (1, Cut::BlackHole)] {
        let name = format!("skein, NIC {nic} cut ({cut:?}) before the answer to FINISH");
        let fault = Fault { at: Moment::Answer, cut, nics: vec![nic], heals: None };
        let options = if nic == 0 { PLAIN } else { PARALLEL };
        guest = tests.run(name, || hosts.moves(guest, Mover::Skein, IMPATIENT, options, Some(fault)))?;
    }
    for cut in [Cut::Carrier, Cut::BlackHole] {
        let name = format!("socat, NIC 0 cut ({cut:?}) before the answer to FINISH: the guest runs twice");
        let fault = Fault { at: Moment::Answer, cut, nics: vec![0], heals: None };
        guest = tests.run(name, || hosts.runs_twice(guest, Mover::Socat, fault))?;
    }

    // Whichever path carried the answer, it is lost, and only one of the paths comes back.
    for nic in ALL_NICS {
        let name = format!("skein, all NICs dark before the answer to FINISH, and NIC {nic} back after 1 s");
        let heals = Some((Duration::from_secs(1), vec![nic]));
        let fault = Fault { at: Moment::Answer, cut: Cut::BlackHole, nics: ALL_NICS.into(), heals };
        guest = tests.run(name, || hosts.moves(guest, Mover::Skein, IMPATIENT, PLAIN, Some(fault)))?;
    }

    // Cut before the call: the guest runs nowhere until the call has arrived.
    for nic in ALL_NICS {
        let name = format!("skein, NIC {nic} cut (BlackHole) before the call of FINISH");
        let fault = Fault { at: Moment::Call, cut: Cut::BlackHole, nics: vec![nic], heals: None };
        guest = tests.run(name, || hosts.moves(guest, Mover::Skein, IMPATIENT, PLAIN, Some(fault)))?;
    }
    let fault = Fault { at: Moment::Call, cut: Cut::BlackHole, nics: vec![0], heals: None };
    let name = "socat, NIC 0 cut (BlackHole) before the call of FINISH: the guest stays";
    guest = tests.run(name, || hosts.stays(guest, Mover::Socat, fault))?;

    // All paths are frozen for less than the keepalive allows, and for more. No tunnel helps against the latter.
    let frozen = |at| {
        let heals = Some((Duration::from_secs(8), ALL_NICS.into()));
        Fault { at, cut: Cut::BlackHole, nics: ALL_NICS.into(), heals }
    };
    for (mover, at) in [(Mover::Skein, Moment::Answer), (Mover::Socat, Moment::Answer), (Mover::Skein, Moment::Call)] {
        let name = format!("{mover}, all NICs dark for 8 s before FINISH's {at:?}");
        guest = tests.run(name, || hosts.moves(guest, mover, PATIENT, PLAIN, Some(frozen(at))))?;
    }
    let name = "skein, all NICs dark for longer than the keepalive: the guest runs twice";
    guest = tests.run(name, || hosts.runs_twice(guest, Mover::Skein, frozen(Moment::Answer)))?;
    guest = tests.run("skein, and afterwards", || hosts.moves(guest, Mover::Skein, PATIENT, PARALLEL, None))?;

    hosts.remove(guest)?;
    guest = tests.run("a guest with a disk of its own boots", || hosts.boot(Disk::Own))?;
    for (way, options) in [("", STORAGE), (" --p2p --parallel", STORAGE_PARALLEL)] {
        let name = format!("migration network, --copy-storage-all{way}");
        guest = tests.run(name, || hosts.moves(guest, Mover::MigrationNetwork, PATIENT, options, None))?;
    }
    hosts.remove(guest)
}

/// Counts tests, and prints the name of each before it runs and its result after.
#[derive(Default)]
struct Tests {
    passed: usize,
    failed: usize,
}

impl Tests {
    /// Runs a test. Returns its value, and prints its text.
    fn run<T>(&mut self, name: impl fmt::Display, test: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        println!("test {name}");
        let (value, said) = test()?;
        println!("  ok: {said}");
        self.passed += 1;
        Ok(value)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mover {
    /// libvirt's control connection and QEMU's go through `skein tunnel`.
    Skein,
    /// QEMU's connections are caught; libvirt's control connection goes through `skein tunnel`.
    MigrationNetwork,
    Socat,
}

/// What the guest has besides its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disk {
    None,
    /// A file on its host, which moves with it.
    Own,
}

impl fmt::Display for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Skein => "skein",
            Self::MigrationNetwork => "migration network",
            Self::Socat => "socat",
        })
    }
}

/// What happens to the source's NICs in the finish phase.
struct Fault {
    at: Moment,
    cut: Cut,
    nics: Vec<usize>,
    /// The NICs that come back, and after how long. The others come back when virsh has ended.
    heals: Option<(Duration, Vec<usize>)>,
}

/// The guest, and the host that it is on.
struct Guest {
    host: usize,
    beats: Beats,
}

/// What was seen of a migration, a moment after virsh ended.
struct Outcome {
    virsh: Result<String, Error>,
    took: Duration,
    /// The state in which libvirt knows the guest, such as "running" or "paused". Empty if it knows no guest.
    source_state: String,
    target_state: String,
    source: Vec<Beat>,
    target: Vec<Beat>,
    /// The beats of the guest at the target. `None`: no guest ever arrived.
    target_beats: Option<Beats>,
    source_beats: Beats,
    /// How many connections of the source's the migration network took.
    caught: u64,
}

impl Outcome {
    /// Returns whether the guest ran on one host after it had run on the other: the same beat was received from both.
    fn lived_twice(&self) -> bool {
        matches!((self.source.last(), self.target.first()), (Some(last), Some(first)) if last.number >= first.number)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.virsh {
            Ok(_) => write!(f, "virsh succeeded")?,
            Err(Error::Program { said, .. }) => write!(f, "virsh failed ({})", said.replace('\n', " "))?,
            Err(error) => write!(f, "virsh failed ({error})")?,
        }
        let span = |beats: &[Beat]| match (beats.first(), beats.last()) {
            (Some(first), Some(last)) => format!("beats {} to {}", first.number, last.number),
            _ => "no beat".into(),
        };
        let state = |state: &str| if state.is_empty() { "unknown" } else { state }.to_owned();
        write!(
            f,
            " after {:.1} s; source: {}, {}",
            self.took.as_secs_f64(),
            state(&self.source_state),
            span(&self.source)
        )?;
        write!(f, "; target: {}, {}", state(&self.target_state), span(&self.target))?;
        if self.caught > 0 {
            write!(f, "; {} connections caught", self.caught)?;
        }
        if !self.lived_twice()
            && let Some(gaps) = Gaps::between(&self.source, &self.target)
        {
            write!(f, "; downtime {:.0} ms", gaps.switchover_ms)?;
        }
        Ok(())
    }
}

/// Two libvirt hosts, joined by two NICs each.
struct Hosts {
    worlds: [World; 2],
    /// The lab, declared after the worlds so that it is dropped after them.
    lab: Arc<Lab>,
    image: Image,
    /// The logs of agents and tunnels.
    logs: TempDir,
    agents: Vec<Child>,
}

impl Hosts {
    fn up() -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::Skip("needs root, for namespaces and mounts".into()).into());
        }
        let root = unpacked(Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/libvirt")))?;
        let image = Image::prepare(&default_cache())?;
        let begin = Instant::now();
        let lab =
            Lab::up(Spec::pairs(&format!("libvirt-{}", std::process::id()), NICS, Some(RATE))).map_err(|error| {
                Error::Skip(format!("no hosts can be made on this machine: {:#}", anyhow::Error::new(error)))
            })?;
        let start = |n: usize| {
            let host = lab.command(LAB[n], "setpriv")?;
            anyhow::Ok(World::start(host, HOSTS[n], UUIDS[n], &root)?)
        };
        let worlds = [start(0)?, start(1)?];
        let logs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).context("make a directory for logs")?;
        let mut hosts = Self { worlds, lab: lab.into(), image, logs, agents: Vec::new() };
        hosts.equip()?;
        for world in &hosts.worlds {
            println!("{}: {} after {:.1} s", world.name(), world.answers()?, begin.elapsed().as_secs_f64());
        }
        Ok(hosts)
    }

    /// Gives each host what the guest boots from, Skein with an identity, and a running agent.
    fn equip(&mut self) -> Result<()> {
        let ca = self.logs.path().join("ca");
        let skein_ca = |arguments: &[&str]| {
            let out =
                Command::new(SKEIN).args(["ca", "--dir"]).arg(&ca).args(arguments).output().context("run skein ca")?;
            ensure!(out.status.success(), "skein ca {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
            Ok(())
        };
        skein_ca(&["init", "--name", "lab"])?;
        let addresses = [self.lab.ip(LAB[0], 0)?, self.lab.ip(LAB[1], 0)?];
        let names = format!("127.0.0.1 localhost\n{} {}\n{} {}\n", addresses[0], HOSTS[0], addresses[1], HOSTS[1]);
        let networks = ["network = ['10.9.9.0/24']\nallow = ['host*']\n".to_owned(), listed(&CAUGHT)].concat();
        for (nth, (name, world)) in HOSTS.iter().zip(&self.worlds).enumerate() {
            world.write("/etc/hosts", &names, 0o644)?;
            world.write("/etc/skein/hosts.toml", &listed(&addresses.map(|address| address.to_string())), 0o644)?;
            world.write("/etc/skein/migration-network.toml", &networks, 0o644)?;
            let via = addresses[1 - nth].to_string();
            run(world, "ip", &["addr", "add", &format!("{}/32", CAUGHT[nth]), "dev", "lo"])?;
            run(world, "ip", &["route", "add", "10.9.9.0/24", "via", &via])?;
            for (file, name) in [(&self.image.kernel, "vmlinuz"), (&self.image.initrd, "initrd")] {
                world.put(file, &format!("/var/lib/libvirt/boot/{name}"))?;
            }
            world.put(Path::new(SKEIN), "/usr/local/bin/skein")?;
            skein_ca(&["issue", name])?;
            for file in ["ca.pem", "host.pem", "host.key"] {
                world.put(&ca.join("hosts").join(name).join(file), &format!("/etc/skein/identity/{file}"))?;
            }
            let mut agent = world.command("skein");
            agent.args(["agent", "--tunnels-only", "--allow", DAEMON, "--allow", RELAY]);
            agent.args(["--allow", "/run/skein/migration/*"]);
            let log = File::create(self.logs.path().join(format!("agent-{name}"))).context("make a log")?;
            self.agents.push(agent.stdout(log.try_clone()?).stderr(log).spawn().context("start skein agent")?);
            run(world, "skein", &["net", "catch", "install"])?;
        }
        Ok(())
    }

    /// Returns how many connections of a host the migration network took.
    fn caught(&self, host: usize) -> Result<u64> {
        let said = run(&self.worlds[host], "skein", &["net", "catch", "show", "--json"])?;
        let shown: serde_json::Value = serde_json::from_str(&said).context(said)?;
        shown["caught"]["connections"].as_u64().context("no count of connections")
    }

    /// Ends the guest for good.
    fn remove(&self, guest: Guest) -> Result<()> {
        self.worlds[guest.host].virsh(&["destroy", GUEST])?;
        self.worlds[guest.host].virsh(&["undefine", GUEST])?;
        Ok(())
    }

    fn boot(&self, disk: Disk) -> Result<(Guest, String)> {
        const DEADLINE: Duration = Duration::from_secs(90);
        let begin = Instant::now();
        let world = &self.worlds[0];
        let disk_mb = if disk == Disk::Own { DISK_MIB } else { 0 };
        let params = Params { fill_mb: 96, rewrite_mb: 16, rate: 500, disk_mb, ..Params::default() };
        let cmdline = format!("console=ttyS0 quiet panic=-1 mitigations=off nokaslr {}", params.command_line());
        let ports = [(CONTROL_PORT, GUEST_CONTROL), (BEAT_PORT, GUEST_BEAT)];
        if disk == Disk::Own {
            // libvirt makes no file at the target unless a storage pool is defined there.
            for world in &self.worlds {
                world.write(DISK, "", 0o644)?;
                let file = File::options().write(true).open(world.path(DISK)).context("open the disk")?;
                file.set_len(u64::from(DISK_MIB) << 20).context("size the disk")?;
            }
        }
        let disk = (disk == Disk::Own).then_some(DISK);
        world.write("/run/guest.xml", &domain_xml(GUEST, MEMORY_MIB, &cmdline, &ports, disk), 0o644)?;
        world.virsh(&["define", "/run/guest.xml"])?;
        world.virsh(&["start", GUEST])?;
        let beats = Beats::collect(UnixStream::connect(world.path(GUEST_BEAT)).context("connect to the guest")?)?;
        let mut agent = self.agent(0)?;
        while !agent.status().is_ok_and(|status| status.ready) {
            ensure!(begin.elapsed() < DEADLINE, "the guest is not ready:\n{}", world.last_words());
            std::thread::sleep(Duration::from_millis(50));
        }
        let said = format!("ready after {:.1} s", begin.elapsed().as_secs_f64());
        Ok((Guest { host: 0, beats }, said))
    }

    /// Returns a client for the guest on one host.
    fn agent(&self, host: usize) -> Result<WorkloadClient> {
        let stream = UnixStream::connect(self.worlds[host].path(GUEST_CONTROL)).context("connect to the guest")?;
        Ok(WorkloadClient::new(stream))
    }

    /// Runs a migration that must succeed: the guest runs on the target and nowhere else, and its memory is what it
    /// wrote.
    fn moves(
        &self,
        guest: Guest,
        mover: Mover,
        virsh: &[&str],
        options: &[&str],
        fault: Option<Fault>,
    ) -> Result<(Guest, String)> {
        let to = 1 - guest.host;
        let outcome = self.migrate(guest, mover, virsh, options, fault)?;
        let said = outcome.to_string();
        self.ensure(outcome.virsh.is_ok() && !outcome.lived_twice(), &said)?;
        self.ensure(outcome.source_state.is_empty() && outcome.target_state == "running", &said)?;
        let verdict = self.agent(to)?.verify(Duration::from_secs(30));
        let good = verdict.as_ref().is_ok_and(|verdict| verdict.is_good() && verdict.pages > 0);
        let moves_disk = options.contains(&"--copy-storage-all");
        let has_disk = verdict.as_ref().is_ok_and(|verdict| moves_disk == (verdict.blocks > 0));
        self.ensure(good && has_disk, &format!("{said}; the guest's memory and disk: {verdict:?}"))?;
        let connections = match mover {
            Mover::MigrationNetwork => 1 + 4 * u64::from(options.contains(&"--parallel")) + u64::from(moves_disk),
            Mover::Skein | Mover::Socat => 0,
        };
        self.ensure(outcome.caught == connections, &format!("{said}; {connections} were to be caught"))?;
        let beats = outcome.target_beats.with_context(|| format!("no beat from the target: {said}"))?;
        Ok((Guest { host: to, beats }, said))
    }

    /// Runs a migration that must end in libvirt's worst case, so that it is known what the tunnel is compared with.
    fn runs_twice(&self, guest: Guest, mover: Mover, fault: Fault) -> Result<(Guest, String)> {
        let from = guest.host;
        let outcome = self.migrate(guest, mover, IMPATIENT, PLAIN, Some(fault))?;
        let said = outcome.to_string();
        self.ensure(outcome.virsh.is_err() && outcome.lived_twice(), &said)?;
        self.ensure(outcome.source_state == "running" && outcome.target_state == "running", &said)?;
        // One of the two guests has to go; the other is the guest from now on.
        self.worlds[from].virsh(&["destroy", GUEST])?;
        self.worlds[from].virsh(&["undefine", GUEST])?;
        let beats = outcome.target_beats.with_context(|| format!("no beat from the target: {said}"))?;
        Ok((Guest { host: 1 - from, beats }, said))
    }

    /// Runs a migration that must fail with the guest where it was.
    fn stays(&self, guest: Guest, mover: Mover, fault: Fault) -> Result<(Guest, String)> {
        let from = guest.host;
        let outcome = self.migrate(guest, mover, IMPATIENT, PLAIN, Some(fault))?;
        let said = outcome.to_string();
        self.ensure(outcome.virsh.is_err() && outcome.target.is_empty(), &said)?;
        self.ensure(outcome.source_state == "running", &said)?;
        let silences = outcome.source.windows(2).map(|two| two[1].seen - two[0].seen);
        let said = format!("{said}; silent for up to {:.1} s", silences.max().unwrap_or_default().as_secs_f64());
        // The target gives up when its own keepalive does, or when the tunnel's end tells it.
        let deadline = Instant::now() + Duration::from_secs(40);
        while !self.state(1 - from).is_empty() {
            self.ensure(Instant::now() < deadline, "the target keeps a guest that stayed away")?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok((Guest { host: from, beats: outcome.source_beats }, said))
    }

    /// Moves the guest to the other host, with a fault if there is one, and looks at both hosts a moment later.
    fn migrate(
        &self,
        guest: Guest,
        mover: Mover,
        virsh: &[&str],
        options: &[&str],
        fault: Option<Fault>,
    ) -> Result<Outcome> {
        let (from, to) = (guest.host, 1 - guest.host);
        let (source, target) = (&self.worlds[from], &self.worlds[to]);
        // Each migration and direction has a path of its own: QEMU unlinks the file that it finds there.
        let migration = format!("/run/skein/migration/to-{}.sock", HOSTS[to]);
        let control = format!("/run/skein/control/{}.sock", HOSTS[to]);
        let faulty = fault.as_ref().map(|fault| fault.at);
        let daemon = if faulty == Some(Moment::Answer) { RELAY } else { DAEMON };
        let dialled = if faulty == Some(Moment::Call) { RELAY } else { &control };

        let relay = fault.map(|fault| match fault.at {
            // The relay stands before the tunnel if the call is to be held, which has yet to cross the network, and
            // behind it for the answer.
            Moment::Call => {
                Relay::start(&source.path(RELAY), &source.path(&control), fault.at, self.strike(from, fault))
            }
            Moment::Answer => {
                Relay::start(&target.path(RELAY), &target.path(DAEMON), fault.at, self.strike(from, fault))
            }
        });
        let relay = relay.transpose()?;
        let pipes: &[(&str, &str)] = match mover {
            Mover::MigrationNetwork => &[(&control, daemon)],
            Mover::Skein | Mover::Socat => &[(&control, daemon), (&migration, &migration)],
        };
        let tunnel = self.tunnel(mover, from, pipes)?;
        let caught = self.caught(from)?;
        let arrival = Arrival::watch(target.path(GUEST_BEAT));

        let begin = Instant::now();
        let desturi = format!("qemu+unix:///system?socket={dialled}");
        let migrateuri = match mover {
            Mover::MigrationNetwork => format!("tcp://{}", CAUGHT[to]),
            Mover::Skein | Mover::Socat => format!("unix://{migration}"),
        };
        let mut arguments = virsh.to_vec();
        arguments.extend(["migrate", "--live", "--persistent", "--undefinesource", "--domain", GUEST]);
        arguments.extend(["--desturi", &desturi, "--migrateuri", &migrateuri]);
        arguments.extend(options);
        let virsh = source.virsh(&arguments);
        let took = begin.elapsed();

        std::thread::sleep(Duration::from_secs(1));
        let target_beats = arrival.end();
        let outcome = Outcome {
            virsh,
            took,
            source_state: self.state(from),
            target_state: self.state(to),
            source: guest.beats.since(begin),
            target: target_beats.as_ref().map(|beats| beats.since(begin)).unwrap_or_default(),
            target_beats,
            source_beats: guest.beats,
            caught: self.caught(from)? - caught,
        };
        for nic in ALL_NICS {
            self.lab.heal(LAB[from], nic)?;
        }
        if let Some(relay) = &relay {
            self.ensure(relay.acted(), &format!("there was no FINISH: {outcome}"))?;
        }
        tunnel.end(source)?;
        Ok(outcome)
    }

    /// Returns what makes a fault happen at host `from`.
    fn strike(&self, from: usize, fault: Fault) -> impl FnOnce() + Send + 'static {
        let lab = self.lab.clone();
        move || {
            for &nic in &fault.nics {
                lab.cut(LAB[from], nic, fault.cut).expect("cut a NIC");
            }
            if let Some((after, nics)) = fault.heals {
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    for nic in nics {
                        lab.heal(LAB[from], nic).expect("heal a NIC");
                    }
                });
            }
        }
    }

    /// Joins unix sockets of host `from` with those of the other.
    fn tunnel(&self, mover: Mover, from: usize, forwards: &[(&str, &str)]) -> Result<Tunnel> {
        let (source, target) = (&self.worlds[from], &self.worlds[1 - from]);
        let log = File::create(self.logs.path().join(format!("tunnel-{}", HOSTS[from]))).context("make a log")?;
        let mut tunnel = Tunnel { mover, children: Vec::new(), sockets: Vec::new() };
        tunnel.sockets.extend(forwards.iter().map(|(listen, _)| source.path(listen)));
        match mover {
            Mover::Skein | Mover::MigrationNetwork => {
                let mut command = source.command("skein");
                command.args(["tunnel", "--to", HOSTS[1 - from], "--host", HOSTS[1 - from]]);
                for (listen, to) in forwards {
                    command.args(["-L", &format!("{listen}={to}")]);
                }
                tunnel.children.push(command.stdout(Stdio::piped()).stderr(log).spawn().context("start skein tunnel")?);
                let out = tunnel.children[0].stdout.take().context("skein tunnel's output")?;
                let (say, said) = mpsc::sync_channel(1);
                // The output is read to the end: a tunnel whose output is not read is not what is tested here.
                std::thread::spawn(move || {
                    BufReader::new(out).lines().map_while(Result::ok).for_each(|line| drop(say.try_send(line)));
                });
                match said.recv_timeout(Duration::from_secs(15)) {
                    Ok(line) if line == "ready" => {}
                    other => self.ensure(false, &format!("skein tunnel is not ready: {other:?}"))?,
                }
            }
            Mover::Socat => {
                let address = self.lab.ip(LAB[1 - from], 0)?;
                for (port, (listen, to)) in (16510..).zip(forwards) {
                    let mut far = target.command("socat");
                    far.arg(format!("TCP-LISTEN:{port},bind={address},fork,reuseaddr,nodelay"));
                    tunnel.children.push(far.arg(format!("UNIX-CONNECT:{to}")).stderr(log.try_clone()?).spawn()?);
                    let mut near = source.command("socat");
                    near.arg(format!("UNIX-LISTEN:{listen},fork,mode=600"))
                        .arg(format!("TCP:{address}:{port},nodelay"));
                    tunnel.children.push(near.stderr(log.try_clone()?).spawn()?);
                }
                let listening = || tunnel.sockets.iter().all(|socket| socket.exists());
                wait(Duration::from_secs(5), listening).context("socat does not listen")?;
                // The other end of socat makes no file that could be waited for.
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(tunnel)
    }

    /// Returns libvirt's word for the guest's state on a host. Empty if libvirt knows of no guest.
    fn state(&self, host: usize) -> String {
        self.worlds[host].virsh(&["domstate", GUEST]).unwrap_or_default().trim().to_owned()
    }

    /// Fails with all that the hosts have to say about it, unless `holds`.
    fn ensure(&self, holds: bool, what: &str) -> Result<()> {
        if holds {
            return Ok(());
        }
        let mut words = self.worlds.iter().map(World::last_words).collect::<String>();
        for log in std::fs::read_dir(self.logs.path()).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(log.path()).unwrap_or_default();
            for line in text.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev() {
                words += &format!("{}: {line}\n", log.file_name().display());
            }
        }
        bail!("{what}\n{words}")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// A running tunnel. Dropping it ends its programs.
struct Tunnel {
    mover: Mover,
    children: Vec<Child>,
    sockets: Vec<PathBuf>,
}

impl Tunnel {
    /// Ends the tunnel. Skein's leaves no socket behind.
    fn end(mut self, source: &World) -> Result<()> {
        self.kill();
        match self.mover {
            Mover::Skein | Mover::MigrationNetwork => {
                let gone = || self.sockets.iter().all(|socket| !socket.exists());
                wait(Duration::from_secs(5), gone)
                    .with_context(|| format!("skein tunnel left a socket in {}", source.name()))
            }
            Mover::Socat => {
                // socat may leave its sockets; the next migration must not find them.
                std::thread::sleep(Duration::from_millis(100));
                for socket in &self.sockets {
                    let _ = std::fs::remove_file(socket);
                }
                Ok(())
            }
        }
    }

    fn kill(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Connects to an arriving guest's heartbeat as soon as its QEMU listens, which is before the guest runs.
struct Arrival {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Option<Beats>>,
}

impl Arrival {
    fn watch(socket: PathBuf) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = over.clone();
            move || loop {
                match UnixStream::connect(&socket) {
                    Ok(stream) => break Beats::collect(stream).ok(),
                    Err(_) if over.load(Ordering::Relaxed) => break None,
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Self { over, thread }
    }

    fn end(self) -> Option<Beats> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().ok().flatten()
    }
}

/// Returns the hosts with an address each, as Skein's files list them.
fn listed(addresses: &[impl fmt::Display; 2]) -> String {
    let line = |(name, address)| format!("[[host]]\nname = '{name}'\naddress = ['{address}']\n");
    HOSTS.iter().zip(addresses).map(line).collect()
}

/// Runs a program in a world, and returns what it said.
fn run(world: &World, program: &str, arguments: &[&str]) -> Result<String> {
    let out = world.command(program).args(arguments).output().with_context(|| format!("run {program}"))?;
    ensure!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn wait(deadline: Duration, holds: impl Fn() -> bool) -> Result<()> {
    let begin = Instant::now();
    while !holds() {
        ensure!(begin.elapsed() < deadline, "waited {} s for nothing", deadline.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
