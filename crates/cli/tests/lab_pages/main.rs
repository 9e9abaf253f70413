//! Tests that guests arrive byte for byte. When the target's copy is reported to be the same, both RAMs are compared,
//! before the target's QEMU has read anything that follows the pages. Errors that are planted in the copy are found.
//! Needs root.
//!
//! `SKEIN_PAGES_MIGRATIONS=N` compares N migrations instead of [`QUICK`], with `SKEIN_PAGES_SEED=N` (1) as the seed.
// Timeout: 900 s
// QEMU: 7.2 10
#![cfg(feature = "fault-points")]

mod rails;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skein_api::{
    LogEntry, LoggedEvent, MigrateOptions, Migration, MigrationId, Outcome, PageFigures, Reply, Request, Transport,
};
use skein_guest_ram::{Ram, find};
use skein_hypervisor::version_of;
use skein_inventory::Definition;
use skein_lab_cluster::{Cluster, Settings, Start, arguments, configuration, until};
use skein_lab_guest::{Params, Rewrite, Spec};
use skein_lab_hosts::Cut;

/// How many migrations are compared by default.
const QUICK: usize = 8;
const SOON: Duration = Duration::from_secs(60);
/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(180);
/// The rates of the three pairs of NICs, in Mb/s.
const RATES: [u32; 3] = [500, 300, 200];
const CHANNELS: [u8; 4] = [0, 1, 4, 16];
const CUTS: [Cut; 3] = [Cut::Carrier, Cut::BlackHole, Cut::BlackHoleFromHost];
/// A link is cut within this time from the begin.
const CUT_WITHIN: Duration = Duration::from_secs(1);
/// The process that compresses is killed within this time, if there is one.
const KILL_WITHIN: Duration = Duration::from_secs(1);
/// How many bytes are compared at once.
const PIECE_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// The RAM of a QEMU, by block.
type Rams = BTreeMap<String, Box<dyn Ram>>;

/// Returns the program that is tested. It is a copy, as one that is built meanwhile may lack the feature.
fn program() -> PathBuf {
    static PROGRAM: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("skein");
        fs::copy(env!("CARGO_BIN_EXE_skein"), &program).unwrap();
        (dir, program)
    });
    PROGRAM.1.clone()
}

fn settings() -> Settings {
    Settings::new(program())
}

/// Kills the processes that agents of a cluster have started with an argument. Returns how many there were.
fn kill_processes(dir: &Path, argument: &str) -> usize {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_own = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_wanted = words.split(|byte| *byte == 0).any(|word| word == argument.as_bytes());
        is_wanted && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.starts_with(dir))
    };
    pids.filter(is_own).filter(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).is_ok()).count()
}

/// Returns the parameters of a guest that writes, but less than the slowest path carries.
fn busy(seed: u64) -> Params {
    Params { fill_mb: 48, rewrite_mb: 24, rewrite: Rewrite::Quarter, rate: 4000, seed, ..Params::default() }
}

/// Hosts whose agents halt when a copy is known to be the same.
struct World {
    cluster: Cluster,
    /// The environment that agents are started with, so that a QEMU program in a script's environment finds its
    /// libraries.
    env: Vec<(String, String)>,
    /// More arguments of the agents.
    args: Vec<String>,
}

impl World {
    fn new(settings: Settings) -> World {
        let mut world = World { cluster: Cluster::idle(settings), env: Vec::new(), args: Vec::new() };
        for host in world.cluster.hosts() {
            world.start(&host, None);
        }
        world
    }

    /// Returns the file that exists while an agent halts.
    fn halted(&self) -> PathBuf {
        self.cluster.dir().join("halted")
    }

    /// Starts a host's agent anew.
    fn start(&mut self, host: &str, plant: Option<&str>) {
        self.cluster.stop(host);
        let file = self.halted().display().to_string();
        let mut env = self.env.clone();
        env.extend([("SKEIN_FAULT_POINT".into(), "ram-complete".into()), ("SKEIN_FAULT_FILE".into(), file)]);
        env.extend(plant.map(|plant| ("SKEIN_PLANT".into(), plant.to_owned())));
        self.cluster.start_as(host, &Start { env, args: self.args.clone(), ..Start::default() });
    }

    /// Starts a working guest on `a` without an agent, and lets the agent adopt it once it works. `ram` is what QEMU is
    /// told about its RAM.
    fn adopt(&mut self, vm: &str, params: &Params, ram: &[&str]) {
        let cluster = &mut self.cluster;
        let qemu = cluster.settings().qemu.clone();
        let definition = Definition::parse(&cluster.working(vm, params), "by-hand.toml").unwrap();
        let (qmp, config) = (cluster.dir().join("by-hand.qmp"), cluster.dir().join("by-hand.cfg"));
        fs::write(&config, configuration(&cluster.sockets(), vm)).unwrap();
        let path = |path: &Option<PathBuf>| path.as_ref().unwrap().display().to_string();
        let line = format!(
            "-name {vm} -nodefaults -no-user-config -display none -serial null -accel tcg -machine q35 -cpu max \
             -kernel {} -initrd {} -qmp unix:{},server=on,wait=off -readconfig {}",
            path(&definition.kernel),
            path(&definition.initrd),
            qmp.display(),
            config.display()
        );
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.extend(["-append".into(), definition.append.clone().unwrap()]);
        words.extend(ram.iter().map(|word| (*word).to_owned()));
        // All arguments except the witness's `-qmp`, which an agent would take for its own.
        let own = arguments(&cluster.sockets(), vm);
        words.extend(definition.qemu.args.into_iter().filter(|arg| !own.contains(arg)));
        let child = cluster.spawn("a", &qemu, &words);
        cluster.wait_working(vm);
        let environment = fs::read(format!("/proc/{}/environ", child.id())).unwrap();
        let variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let variables = variables.filter_map(|variable| {
            let (name, value) = variable.split_once('=')?;
            ["LD_LIBRARY_PATH", "QEMU_MODULE_DIR"].contains(&name).then(|| (name.to_owned(), value.to_owned()))
        });
        self.env = variables.collect();
        for host in self.cluster.hosts() {
            self.start(&host, None);
        }
        let adopted = self.cluster.asked("a", &Request::VmAdopt { qmp, name: None });
        assert!(matches!(adopted, Reply::Vm(vm) if vm.adopted));
        // Whoever started the guest does not wait for its end.
        thread::spawn(move || { child }.wait());
    }

    /// Returns the RAM of a VM's QEMU on a host.
    #[track_caller]
    fn rams(&self, vm: &str, host: &str) -> Rams {
        let mut seen = self.cluster.witness().seen(vm).into_iter();
        let seen = seen.rfind(|seen| seen.host() == host && !seen.is_over());
        let seen = seen.unwrap_or_else(|| panic!("{vm} has no QEMU on {host}"));
        let blocks = seen.monitor().ram_blocks().unwrap();
        let mapped =
            blocks.iter().filter_map(|block| Some((block.name.clone(), find(seen.process().pid, block).ok()?)));
        mapped.collect()
    }

    /// Moves a VM, calls `meanwhile`, and compares both RAMs when they are reported to be the same. Returns how many
    /// pages were compared, and the migration.
    fn compared(
        &self,
        vm: &str,
        (from, to): (&str, &str),
        options: MigrateOptions,
        meanwhile: impl FnOnce(&Cluster),
    ) -> (usize, Migration) {
        let cluster = &self.cluster;
        // Once QEMU writes into a socket that no process reads, it does not answer any more.
        let source = self.rams(vm, from);
        let id = cluster.begin(vm, from, to, options).id;
        meanwhile(cluster);
        let halted = self.halted();
        let is_over = || cluster.migration(from, id).outcome.is_some();
        assert!(until(DEADLINE, || halted.exists() || is_over()), "{vm} is still on its way from {from} to {to}");
        assert!(halted.exists(), "never said to be the same: {:?}", cluster.migration(from, id));
        let target = self.rams(vm, to);
        let pages = equal_pages(&source, &target);
        fs::remove_file(&halted).unwrap();
        let done = cluster.watched(from, id);
        assert_eq!(done.outcome, Some(Outcome::Moved), "{done:?}");
        is_alone(cluster, vm, to, from);
        (pages, done)
    }

    fn end(&self) {
        self.cluster.wait_clean(SOON);
        self.cluster.check();
    }
}

/// Checks that a VM that was moved is the target's alone.
#[track_caller]
fn is_alone(cluster: &Cluster, vm: &str, host: &str, before: &str) {
    let is_gone = || cluster.vms(before).iter().all(|other| other.name != vm);
    cluster.wait(SOON, "it runs there alone", || cluster.where_runs(vm) == [host] && is_gone());
}

fn pages_of(migration: &Migration) -> PageFigures {
    migration.copy.as_ref().and_then(|copy| copy.pages.clone()).unwrap_or_else(|| panic!("no figures: {migration:?}"))
}

/// Compares all that both have, byte for byte. Returns how many pages that are.
#[track_caller]
fn equal_pages(source: &Rams, target: &Rams) -> usize {
    assert!(!source.is_empty() && source.keys().eq(target.keys()), "{:?} {:?}", source.keys(), target.keys());
    let mut pages = 0;
    let mut differ = Vec::new();
    let [mut here, mut there] = [(); 2].map(|()| vec![0; PIECE_BYTES]);
    for ((name, source), target) in source.iter().zip(target.values()) {
        assert_eq!(source.bytes(), target.bytes(), "{name}");
        for at in (0..source.bytes()).step_by(PIECE_BYTES) {
            let bytes = (source.bytes() - at).min(PIECE_BYTES as u64) as usize;
            let (here, there) = (&mut here[..bytes], &mut there[..bytes]);
            source.read(at, here).unwrap();
            target.read(at, there).unwrap();
            let both = here.chunks(PAGE_BYTES).zip(there.chunks(PAGE_BYTES)).enumerate();
            let wrong = both.filter(|(_, (here, there))| here != there);
            differ.extend(wrong.map(|(page, (here, there))| {
                let bytes = (0..PAGE_BYTES).filter(|byte| here[*byte] != there[*byte]);
                let bytes: Vec<_> = bytes.map(|byte| (byte, here[byte], there[byte])).collect();
                format!(
                    "{name} page {}: {} bytes, {:x?}",
                    at as usize / PAGE_BYTES + page,
                    bytes.len(),
                    &bytes[..bytes.len().min(32)]
                )
            }));
            pages += bytes.div_ceil(PAGE_BYTES);
        }
    }
    assert!(differ.is_empty(), "{} pages of {pages} differ: {:?} ...", differ.len(), &differ[..differ.len().min(20)]);
    pages
}

/// The generator SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * n as u128) >> 64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn both_rams_are_the_same_before_the_first_device() {
    let migrations = variable("SKEIN_PAGES_MIGRATIONS").map_or(QUICK, |n| n as usize);
    let mut dice = Dice(variable("SKEIN_PAGES_SEED").unwrap_or(1));
    let rates = RATES.map(Some).to_vec();
    let mut world = World::new(Settings { nics: RATES.len(), rates, ..settings() });
    let machines = match version_of(&settings().qemu).unwrap().major {
        7 => ["pc-q35-7.2", "pc-i440fx-7.2", "pc-q35-6.2"],
        _ => ["pc-q35-7.2", "pc-q35-8.2", "pc-q35-10.0"],
    };
    let mut guests: Vec<(String, usize)> = Vec::new();
    for (number, machine) in machines.iter().enumerate() {
        let name = format!("v{number}");
        let definition = world.cluster.working(&name, &busy(number as u64 + 1));
        world.cluster.start_vm("a", &definition.replace("machine = 'q35'", &format!("machine = '{machine}'")));
        guests.push((name, 0));
    }
    guests.iter().for_each(|(name, _)| world.cluster.wait_working(name));

    let hosts = ["a", "b"];
    let mut deltas = 0;
    for number in 0..migrations {
        // The first migrations have each transport, each machine type and each number of channels.
        let transport = if number < QUICK { Transport::ALL[number % 4] } else { dice.pick(&Transport::ALL) };
        let channels = if number < QUICK { CHANNELS[(number + number / 4) % 4] } else { dice.pick(&CHANNELS) };
        let which = if number < QUICK { number % machines.len() } else { dice.below(machines.len()) };
        let cut = (number % 2 == 1).then(|| (dice.below(RATES.len()), dice.pick(&CUTS), dice.below(1000)));
        let (vm, at) = guests[which].clone();
        let (from, to) = (hosts[at], hosts[1 - at]);
        // On a busy machine the guest may write faster than its pages are sent.
        let options = MigrateOptions {
            channels: Some(channels),
            transport: Some(transport),
            allow_throttle: Some(99),
            ..MigrateOptions::default()
        };
        let begin = Instant::now();
        let mut killed = 0;
        let (pages, done) = world.compared(&vm, (from, to), options, |cluster| {
            if let Some((nic, cut, moment)) = cut {
                thread::sleep(CUT_WITHIN * moment as u32 / 1000);
                cluster.lab().cut("b", nic, cut).unwrap();
            }
            // The process that compresses pages loses them.
            if transport == Transport::Compression {
                until(KILL_WITHIN, || {
                    killed += kill_processes(cluster.dir(), "pack-pages");
                    killed > 0
                });
            }
        });
        let figures = pages_of(&done);
        println!(
            "{number:3} {transport} {channels} channels, {}, {}, {killed} packers killed: {pages} pages, {} sent, {} \
             as \
             deltas, {} unchanged, {} mended, {} missed, {} ms",
            machines[which],
            cut.map_or("no cut".into(), |(nic, cut, moment)| format!("NIC {nic} {cut:?} at {moment}/1000")),
            figures.counts.pages,
            figures.counts.delta_pages,
            figures.counts.unchanged_pages,
            figures.counts.repaired_pages,
            figures.counts.missed_pages,
            begin.elapsed().as_millis()
        );
        assert_eq!((figures.direct, figures.counts.repaired_pages), (Some(true), 0));
        deltas += figures.counts.delta_pages;
        let sent = figures.counts.pages;
        assert!(sent as usize >= pages, "{pages} pages, and only {sent} were sent");
        // The guest stood still meanwhile.
        let compared_ms = figures.counts.compared_us.expect("it was compared") / 1000;
        assert!(compared_ms <= done.downtime_ms.unwrap(), "{compared_ms} ms of {done:?}");
        if let Some((nic, ..)) = cut {
            world.cluster.lab().heal("b", nic).unwrap();
        }
        assert_eq!(world.cluster.verify(&vm).pages, 48 << 8);
        guests[which].1 = 1 - at;
    }
    assert!(deltas > 0, "no page was sent as what changed");
    world.end();
}

/// Checks that a guest which comes back to a host that kept its RAM gets only what differs.
#[test]
fn what_was_kept_is_not_sent_again() {
    const VM: &str = "v";
    let mut world = World::new(Settings { nics: 2, ..settings() });
    let hosts = world.cluster.dir().join("hosts.toml");
    let list = fs::read_to_string(&hosts).unwrap();
    fs::write(&hosts, format!("keep_ram = '1 GiB'\nkeep_time = '10m'\n{list}")).unwrap();
    let params = Params { fill_mb: 96, rewrite_mb: 8, rate: 500, ..busy(11) };
    let definition = world.cluster.working(VM, &params);
    world.cluster.start_vm("a", &definition);
    world.cluster.wait_working(VM);
    let notes = |host: &str, id, words: &str| {
        let Reply::Migration(shown) = world.cluster.asked(host, &Request::MigrationShow { id }) else { panic!() };
        let noted = |event: &&LoggedEvent| matches!(&event.event, LogEntry::Note { text } if text.contains(words));
        shown.events.iter().filter(noted).count()
    };
    let mut first = 0;
    for (trip, (from, to)) in [("a", "b"), ("b", "a"), ("a", "b")].into_iter().enumerate() {
        let options = MigrateOptions { channels: Some(4), ..MigrateOptions::default() };
        let (pages, done) = world.compared(VM, (from, to), options, |_| ());
        let counts = pages_of(&done).counts;
        let id = done.id.to_string();
        println!(
            "{from} to {to}: {pages} pages, {} bytes, {} unchanged, {} missed",
            counts.wire_bytes(),
            counts.unchanged_pages,
            counts.missed_pages
        );
        assert_eq!(counts.repaired_pages, 0);
        world.cluster.wait(SOON, "its RAM is kept", || notes(from, id.clone(), &format!("{from} keeps ")) == 1);
        assert_eq!(notes(from, id.clone(), &format!("built on what {to} kept")), usize::from(trip > 0));
        match trip {
            0 => first = counts.wire_bytes(),
            _ => assert!(counts.wire_bytes() * 10 < first * 3, "{} of {first}", counts.wire_bytes()),
        }
        assert_eq!(world.cluster.verify(VM).pages, 96 << 8);
    }
    // An agent that was started anew has forgotten the RAM.
    world.start("b", None);
    world.start("a", None);
    let (_, done) = world.compared(VM, ("b", "a"), MigrateOptions::default(), |_| ());
    assert!(pages_of(&done).counts.wire_bytes() * 10 > first * 3);
    world.cluster.verify(VM);
    world.end();
}

#[test]
fn what_is_planted_is_found() {
    const VM: &str = "v";
    let mut world = World::new(Settings { nics: 2, ..settings() });
    let params = Params { rate: 6000, ..busy(9) };
    // A second block, so that pages can go to the wrong one. A kernel that may get memory above 4 GiB keeps 64 MiB for
    // DMA (swiotlb).
    let kib = memory_kib(&params) + (80 << 10);
    let ram0 = format!("memory-backend-memfd,id=ram0,share=on,size={kib}K");
    let sizes = format!("{kib}K,slots=1,maxmem=1G");
    let ram = ["-m", &sizes, "-object", &ram0, "-machine", "memory-backend=ram0"];
    let more = ["-object", "memory-backend-memfd,id=m1,share=on,size=128M", "-device", "pc-dimm,memdev=m1"];
    world.adopt(VM, &params, &[&ram[..], &more].concat());
    assert_eq!(world.rams(VM, "a").len(), 2);

    let of_deltas = ["wrong-base", "short-mark"];
    let plants = ["stale-zero", "stale-version", "lost-batch", "wrong-page", "wrong-block"];
    for (number, plant) in plants.iter().chain(&of_deltas).enumerate() {
        let channels = Some(CHANNELS[number % CHANNELS.len()]);
        let options = || MigrateOptions { channels, ..MigrateOptions::default() };
        // A fault that cannot be mended does not arrive. What is sent again is no delta.
        if !of_deltas.contains(plant) {
            world.start("b", Some(&format!("{plant}:always")));
            // If bases do not come the copy is slow, but must not be given up before it is compared.
            let id = world.cluster.begin(VM, "a", "b", MigrateOptions { deadline_s: Some(120), ..options() }).id;
            let over = world.cluster.watched("a", id);
            assert!(!world.halted().exists());
            assert_eq!(over.outcome, Some(Outcome::CalledOff), "{plant}: {over:?}");
            assert!(over.detail.contains("could not be mended"), "{plant}: {over:?}");
            world.cluster.wait(SOON, "it runs where it was", || world.cluster.where_runs(VM) == ["a"]);
            world.cluster.wait_clean(SOON);
            world.cluster.verify(VM);
        }

        // A fault that can be mended is mended.
        world.start("b", Some(plant));
        let (pages, done) = world.compared(VM, ("a", "b"), options(), |_| ());
        let (mended, shown) = (pages_of(&done).counts.repaired_pages, shown(&world.cluster, done.id));
        println!("{plant}: {mended} pages of {pages} mended, downtime {} ms", done.downtime_ms.unwrap());
        assert!(mended > 0 && shown == mended, "{plant}: {mended}, shown as {shown}");
        world.cluster.verify(VM);
        world.start("b", None);
        let (_, done) = world.compared(VM, ("b", "a"), options(), |_| ());
        assert_eq!(pages_of(&done).counts.repaired_pages, 0);
    }
    world.cluster.verify(VM);
    world.end();
}

/// Returns how many pages were mended, as `skein migration show --json` says.
fn shown(cluster: &Cluster, id: MigrationId) -> u64 {
    let mut show = Command::new(program());
    show.args(["migration", "--socket"]).arg(cluster.run_dir("a").join("agent.sock"));
    let said = show.args(["show", "--json", &id.to_string()]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let migration: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    migration["copy"]["pages"]["repaired_pages"].as_u64().unwrap_or_else(|| panic!("{migration:#}"))
}

/// Returns the memory in KiB, which is not a multiple of 64 pages: see [`Spec::odd_ram`].
fn memory_kib(params: &Params) -> u32 {
    (Spec::memory_mb_for(params.fill_mb) << 10) + 8
}

/// Tests RAM that is QEMU's own, of a guest that somebody else started: pages are placed directly, and each is right.
#[test]
fn a_guest_with_private_ram_is_placed() {
    const VM: &str = "v";
    let mut world = World::new(settings());
    let ram = format!("memory-backend-ram,id=ram0,size={}K", memory_kib(&busy(3)));
    let size = format!("{}K", memory_kib(&busy(3)));
    // Slow enough to arrive on a busy machine.
    world.adopt(
        VM,
        &Params { rate: 500, ..busy(3) },
        &["-m", &size, "-object", &ram, "-machine", "memory-backend=ram0"],
    );
    for (from, to, channels) in [("a", "b", 0), ("b", "a", 4)] {
        let options = MigrateOptions { channels: Some(channels), ..MigrateOptions::default() };
        let (pages, moved) = world.compared(VM, (from, to), options, |_| ());
        assert!(pages > 0 && pages_of(&moved).direct == Some(true), "{moved:?}");
        assert_eq!(world.cluster.verify(VM).pages, 48 << 8);
    }
    world.end();
}

/// Tests RAM that the target's agent cannot reach: QEMU there gets every byte as the source's QEMU sent it.
#[test]
fn a_guest_whose_ram_is_out_of_reach_is_rebuilt() {
    const VM: &str = "v";
    let mut world = World::new(settings());
    world.adopt(VM, &busy(3), &["-m", &format!("{}K", memory_kib(&busy(3)))]);
    for host in ["a", "b"] {
        world.start(host, Some("unreachable"));
    }
    let cluster = &world.cluster;
    for (from, to, channels) in [("a", "b", 0), ("b", "a", 4)] {
        let options = MigrateOptions { channels: Some(channels), ..MigrateOptions::default() };
        let id = cluster.begin(VM, from, to, options).id;
        let moved = cluster.watched(from, id);
        assert_eq!(moved.outcome, Some(Outcome::Moved), "{moved:?}");
        let pages = pages_of(&moved);
        assert_eq!((pages.direct, pages.counts.compared_us), (Some(false), None), "{moved:?}");
        let why = "QEMU has no RAM block 'pc.ram' here";
        assert_eq!(pages.why_not_direct, why);
        let noted =
            |event: &LoggedEvent| event.event == LogEntry::Note { text: format!("direct placement: no: {why}") };
        assert_eq!(moved.events.iter().filter(|event| noted(event)).count(), 1, "{moved:?}");
        // Zeros that QEMU itself reports are counted, too, and the guest goes on writing.
        let counts = pages.counts;
        assert_eq!((counts.delta_pages, counts.unchanged_pages), (0, 0), "QEMU gets whole pages");
        assert!(counts.zero_pages > 0 && pages.again_bytes > 0, "{pages:?}");
        assert_eq!(counts.zero_pages + counts.packed_pages + counts.stored_pages, counts.pages);
        is_alone(cluster, VM, to, from);
        assert_eq!(cluster.verify(VM).pages, 48 << 8);
    }
    world.end();
}

/// Tests that a guest which cannot be moved by direct placement is called off, and moved without it automatically.
#[test]
fn what_cannot_be_placed_is_tried_again_through_qemu() {
    const VM: &str = "v";
    let mut world = World::new(settings());
    let definition = world.cluster.working(VM, &busy(5));
    world.cluster.start_vm("a", &definition);
    world.cluster.wait_working(VM);
    world.start("a", Some("unplaceable"));
    let cluster = &world.cluster;
    let moved = cluster.moved(VM, "a", "b");
    let pages = pages_of(&moved);
    assert_eq!(pages.direct, Some(false), "{moved:?}");
    assert_eq!(pages.why_not_direct, "retried without direct placement: it was planted");
    is_alone(cluster, VM, "b", "a");
    assert_eq!(cluster.verify(VM).pages, 48 << 8);

    let Reply::Migrations { migrations } = cluster.asked("a", &Request::MigrationList) else { panic!("no list") };
    let [_, first] = &migrations[..] else { panic!("{migrations:?}") };
    assert_eq!(first.outcome, Some(Outcome::CalledOff), "{first:?}");
    for words in
        ["cannot be written straight into the guest's RAM: it was planted", "without direct placement it can be moved"]
    {
        assert!(first.detail.contains(words), "{first:?}");
    }

    // Nobody waits for the migration: the agent tries again all the same.
    world.compared(VM, ("b", "a"), MigrateOptions::default(), |_| ());
    let id = cluster.begin(VM, "a", "b", MigrateOptions::default()).id;
    cluster.wait(DEADLINE, "it is tried again", || cluster.where_runs(VM) == ["b"]);
    is_alone(cluster, VM, "b", "a");
    let Reply::Migrations { migrations } = cluster.asked("a", &Request::MigrationList) else { panic!("no list") };
    let (again, first) = (&migrations[0], migrations.iter().find(|migration| migration.id == id).unwrap());
    assert_eq!((first.outcome, again.vm.as_str()), (Some(Outcome::CalledOff), VM), "{migrations:?}");
    assert_eq!(again.attempt.as_ref().map(|attempt| attempt.number), Some(2), "{again:?}");
    assert_eq!(cluster.verify(VM).pages, 48 << 8);
    world.end();
}
