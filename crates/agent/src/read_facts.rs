//! Reads what a check before a migration wants to know of this host, and of a guest that runs here.
//!
//! | fact | source |
//! |---|---|
//! | NICs, bridges, taps | netlink, in the calling thread's network namespace; `/sys` shows that of whoever mounted it |
//! | memory, CPUs | `/proc/meminfo`, `/proc/cpuinfo`, `/sys/kernel/mm/hugepages` |
//! | QEMU | a start of it without a machine, remembered for a while |
//! | files | `stat`, `statfs`, `access`, in threads of their own: a dead server of a file system blocks them for good |
//! | a guest | its QEMU, by QMP; NICs from what it was started with, since QEMU does not tell what they are plugged into |
//!
//! What cannot be read is left out, or is empty: the check blocks or warns then.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, eaccess};
use parking_lot::Mutex;
use skein_hypervisor::guest::facts::{self, MemoryDevice, MemoryPages};
use skein_hypervisor::inspect::{self as qemu, QemuProgram};
use skein_hypervisor::{Hypervisor, SAMPLE_PAGES};
use skein_inventory::command_line;
use skein_inventory::composition::Medium;
use skein_inventory::facts::GuestFiles;
use skein_inventory::{
    Accel, AccelFacts, Attachment, Composition, CpuModel, Definition, DiskFormat, GuestDisk, GuestFacts, GuestNic,
    HostFacts, Hugepages, MachineType, MigrationSlots, Nic, NicFacts, Presence, QemuFacts, Room, VmFacts,
};
use tracing::warn;

use crate::host_files::{FILES_TIME, aside, boot_id, digest, file_system, image, kilobytes, look, looks, text};
use crate::launch::{CommandLine, Launch, ODD_BYTES, tap_name};
use crate::vms::{Vm, VmError, Vms, swtpm};

/// Bounds all questions to a QEMU program, and the wait until others have asked. The program starts and answers in a
/// tenth of a second. The bound is less than another agent's wait for facts.
const PROBE_TIME: Duration = Duration::from_secs(8);
/// Bounds the age of remembered answers: a QEMU that looks the same may be a wrapper script around another, and KVM's
/// modules may be loaded anew.
const PROBE_AGE_MAX: Duration = Duration::from_secs(600);
/// Bounds the programs times accelerators that are remembered, some 50 KiB each.
const PROBES_MAX: usize = 8;

/// A question about this host.
pub(crate) struct HostQuestion<'a> {
    /// This host's name.
    pub(crate) name: &'a str,
    /// The program that would run the guest: its definition's, else the agent's; else [`Hypervisor::default_program`].
    pub(crate) qemu: Option<&'a Path>,
    /// The files that the guest's QEMU opens and reads.
    pub(crate) files: &'a GuestFiles,
    /// The VMs of this host.
    pub(crate) vms: &'a Vms,
    /// The kept RAM of guests that left, in bytes.
    pub(crate) kept_ram_bytes: u64,
    /// What a QEMU gets here at most.
    pub(crate) room: Room,
    /// The slots of migrations to this host.
    pub(crate) incoming: MigrationSlots,
    /// The slots of migrations from this host.
    pub(crate) outgoing: MigrationSlots,
    /// Whether the agent's journal can be written.
    pub(crate) journal: Result<(), String>,
    /// Why this host takes no guest.
    pub(crate) closed: Option<String>,
}

/// Returns the facts of this host, for one guest's sake. The call takes a few milliseconds, the first time a start of
/// QEMU; at most [`PROBE_TIME`] and what the kernel takes for the NICs, once also a trial of KVM.
pub(crate) fn host(question: HostQuestion) -> HostFacts {
    let HostQuestion { name, qemu, files, vms, kept_ram_bytes, room, incoming, outgoing, journal, closed } = question;
    let all: BTreeSet<PathBuf> = files.opened.iter().chain(&files.loaded).cloned().collect();
    let all: Vec<PathBuf> = all.into_iter().collect();
    let (files, digests) = (looks(&all, look), looks(&files.loaded, digest));
    let meminfo = text("/proc/meminfo");
    let cpuinfo = CpuInfo::parse(&text("/proc/cpuinfo"));
    let nics = skein_host::nics().unwrap_or_else(|error| {
        warn!("the check will miss this host's network: {}", chain(&error));
        Vec::new()
    });
    let is_kind = |nic: &skein_host::Nic, kind| nic.kind.as_deref() == Some(kind);
    let kvm = kvm(vms);
    HostFacts {
        name: name.to_owned(),
        boot_id: boot_id(),
        ram_bytes: kilobytes(&meminfo, "MemTotal").unwrap_or(0),
        ram_available_bytes: kilobytes(&meminfo, "MemAvailable").unwrap_or(0),
        kept_ram_bytes,
        room: Some(room),
        hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
        cpus: cpuinfo.online,
        cpu_vendor: cpuinfo.vendor,
        cpu_flags: cpuinfo.flags,
        qemu: program(vms.hypervisor(), qemu, kvm.is_ok()),
        kvm,
        // Switched on is enough: a bridge without a port that is up has no carrier, until a guest is plugged in.
        bridges: nics.iter().filter(|n| is_kind(n, "bridge") && n.admin_up).map(|n| n.name.clone()).collect(),
        // A tap has its carrier from the process that has it open (tun_attach and tun_detach of drivers/net/tun.c).
        taps_in_use: nics.iter().filter(|n| is_kind(n, "tun") && n.carrier).map(|n| n.name.clone()).collect(),
        vms: vms.all().iter().map(|vm| VmFacts { name: vm.name.clone(), presence: presence(vm) }).collect(),
        incoming,
        outgoing,
        journal,
        nics: nics.iter().filter(|n| !n.loopback && !is_kind(n, "tun")).map(nic).collect(),
        files: files.wait().into_iter().map(|(_, facts)| facts).collect(),
        digests: digests.wait().into_iter().collect(),
        swtpm: swtpm_version(),
        closed,
    }
}

fn nic(nic: &skein_host::Nic) -> NicFacts {
    NicFacts { name: nic.name.clone(), speed_bits_per_s: nic.speed_mbit.map(|mbit| u64::from(mbit) * 1_000_000) }
}

fn presence(vm: &Vm) -> Presence {
    let migration = vm.migration().map(|id| id.to_string());
    match vm.process() {
        Some(_) if !vm.is_incoming() => Presence::Guest,
        None if migration.is_none() => Presence::Stopped,
        _ => Presence::Leftover { migration },
    }
}

/// Returns an error and its causes, for a sentence.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

/// What `/proc/cpuinfo` says of the CPUs that are online.
#[derive(Debug, Default, PartialEq)]
struct CpuInfo {
    online: u32,
    vendor: String,
    /// The flags that all of these CPUs have.
    flags: BTreeSet<String>,
}

impl CpuInfo {
    fn parse(text: &str) -> CpuInfo {
        let mut info = CpuInfo::default();
        let mut flags: Option<BTreeSet<&str>> = None;
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            match key.trim() {
                "processor" => info.online = info.online.saturating_add(1),
                "vendor_id" if info.vendor.is_empty() => info.vendor = value.trim().to_owned(),
                "flags" => {
                    let these: BTreeSet<&str> = value.split_ascii_whitespace().collect();
                    flags = Some(flags.map_or(these.clone(), |all| &all & &these));
                }
                _ => {}
            }
        }
        info.flags = flags.into_iter().flatten().map(str::to_owned).collect();
        info
    }
}

/// Reads `hugepages-2048kB` and its like, by size.
fn hugepages(dir: &Path) -> Vec<Hugepages> {
    let pool = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kib: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = |file| text(entry.path().join(file)).trim().parse::<u64>().ok();
        // Reserved pages are promised, though not yet taken.
        let free = count("free_hugepages")?.saturating_sub(count("resv_hugepages")?);
        Some(Hugepages { page_bytes: kib.checked_mul(1024)?, total: count("nr_hugepages")?, free })
    };
    let mut pools: Vec<Hugepages> = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

/// Checks whether KVM works.
fn kvm(vms: &Vms) -> Result<(), String> {
    vms.kvm_works().map_err(|error| format!("{error}; {}", error.cure()))
}

/// A QEMU and its answers: the same file has the same answers.
#[derive(Clone, Debug, PartialEq)]
struct Probe {
    path: PathBuf,
    device: u64,
    inode: u64,
    modified: Option<SystemTime>,
    bytes: u64,
    accel: facts::Accel,
}

struct Probed {
    probe: Probe,
    at: Instant,
    program: QemuProgram,
}

/// Holds the remembered answers. The lock is held while a QEMU is asked, so never two are asked at a time.
static PROBED_PROGRAMS: Mutex<Vec<Probed>> = Mutex::new(Vec::new());

/// Returns the QEMU program that would run a guest, under each accelerator that works.
fn program(hypervisor: &dyn Hypervisor, named: Option<&Path>, kvm: bool) -> Result<QemuFacts, String> {
    let path = find(&named.map_or_else(|| hypervisor.default_program(), Path::to_owned))?;
    let found = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let accels = [facts::Accel::Kvm, facts::Accel::Tcg].into_iter().filter(|accel| kvm || *accel != facts::Accel::Kvm);
    let (mut programs, mut why) = (Vec::new(), String::new());
    let end = Instant::now() + PROBE_TIME;
    for accel in accels {
        // One of the two accelerators may not be built in.
        match ask(hypervisor, &path, &found, accel, end) {
            Ok(program) => programs.push(program),
            Err(error) => why = error,
        }
    }
    let first = programs.first().ok_or(why)?;
    let machine =
        |machine: &qemu::MachineType| MachineType { name: machine.name.clone(), alias: machine.alias.clone() };
    Ok(QemuFacts {
        version: first.version,
        machines: first.machines.iter().map(machine).collect(),
        accels: programs.iter().map(accel_facts).collect(),
        program: path,
    })
}

fn ask(
    hypervisor: &dyn Hypervisor,
    path: &Path,
    found: &Metadata,
    accel: facts::Accel,
    end: Instant,
) -> Result<QemuProgram, String> {
    let probe = Probe {
        path: path.to_owned(),
        device: found.dev(),
        inode: found.ino(),
        modified: found.modified().ok(),
        bytes: found.len(),
        accel,
    };
    let busy = || format!("{} cannot be asked now: another QEMU does not answer", path.display());
    let mut probed = PROBED_PROGRAMS.try_lock_until(end).ok_or_else(busy)?;
    probed.retain(|old| old.at.elapsed() < PROBE_AGE_MAX);
    if let Some(old) = probed.iter().find(|old| old.probe == probe) {
        return Ok(old.program.clone());
    }
    let program =
        hypervisor.probe(path, accel, end.saturating_duration_since(Instant::now())).map_err(|error| chain(&error))?;
    if probed.len() >= PROBES_MAX {
        probed.remove(0);
    }
    probed.push(Probed { probe, at: Instant::now(), program: program.clone() });
    Ok(program)
}

/// Returns the version of the installed swtpm. Each file is asked once.
fn swtpm_version() -> Option<String> {
    static SWTPM_VERSION: Mutex<Option<(PathBuf, SystemTime, String)>> = Mutex::new(None);
    let path = find(Path::new(swtpm::PROGRAM)).ok()?;
    let modified = fs::metadata(&path).and_then(|found| found.modified()).ok()?;
    let known = SWTPM_VERSION.lock().clone().filter(|(known, since, _)| (known, since) == (&path, &modified));
    if let Some((.., version)) = known {
        return Some(version);
    }
    let version = aside(swtpm::version)?.recv_timeout(FILES_TIME).ok()??;
    *SWTPM_VERSION.lock() = Some((path, modified, version.clone()));
    Some(version)
}

/// Finds a program as `execvp` does.
fn find(program: &Path) -> Result<PathBuf, String> {
    if program.components().count() > 1 {
        return Ok(program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&path).map(|dir| dir.join(program));
    let runs = |path: &PathBuf| path.is_file() && eaccess(path, AccessFlags::X_OK).is_ok();
    let missing = || format!("there is no {} in {}", program.display(), path.display());
    candidates.into_iter().find(runs).ok_or_else(missing)
}

fn accel(accel: facts::Accel) -> Accel {
    match accel {
        facts::Accel::Kvm => Accel::Kvm,
        facts::Accel::Tcg => Accel::Tcg,
    }
}

fn accel_facts(program: &QemuProgram) -> AccelFacts {
    let model = |model: &qemu::CpuModel| CpuModel {
        name: model.name.clone(),
        missing: model.unavailable_features.clone(),
        feature_count: model.feature_count,
    };
    AccelFacts {
        accel: accel(program.accel),
        cpu_models: program.cpu_models.iter().map(model).collect(),
        features: Some(program.cpu_features.clone()).filter(|features| !features.is_empty()),
    }
}

/// Returns the facts of the guest that runs here under a VM's name. The call asks QEMU some hundred times, tens of
/// milliseconds altogether.
///
/// # Errors
/// The guest does not run, or its QEMU does not answer.
pub(crate) fn guest(vm: &Vm) -> Result<GuestFacts, VmError> {
    let running = vm.running().ok_or_else(|| VmError::NotRunning(vm.name.clone()))?;
    let asked = &running.guest;
    let of_guest = |source| VmError::Guest { name: vm.name.clone(), source };
    let guest = asked.inspect().map_err(of_guest)?;
    let accel = accel(guest.accel);
    let composition = vm.composition()?;
    let mut disks = disks(&composition);
    let mut ram_bytes = guest.memory_bytes;
    let (cpu, nics) = match vm.launch() {
        Launch::Definition(defined) => {
            ram_bytes -= if defined.odd_ram { ODD_BYTES.min(ram_bytes) } else { 0 };
            let definition = &defined.definition;
            // QEMU moves the contents of these files; the definition says that the target has them.
            let image = definition.firmware.as_ref().and_then(|firmware| firmware.image.clone());
            disks.retain(|disk| Some(&disk.path) != image.as_ref() && !disk.path.starts_with(vm.own().dir()));
            let place = |disk: &GuestDisk| definition.disks.iter().position(|other| other.path == disk.path);
            disks.sort_by_key(|disk| place(disk).unwrap_or(usize::MAX));
            (defined.cpu(), plugged(definition))
        }
        Launch::CommandLine(line) => {
            let cpu = options(&line.args, &["cpu"]).last();
            (cpu.map_or(guest.cpu_model, str::to_owned), nics(&line.args))
        }
    };
    let ram_blocks: u64 = asked.ram_blocks().map_err(of_guest)?.iter().map(|block| block.used_bytes).sum();
    // The order matters: at the end of a migration of this agent the guest stands still.
    let migration = vm.moved_by();
    let run_state = asked.run_state().map_err(of_guest)?;
    let hot_plugged = asked.hot_plugged(&composition).map_err(of_guest)?;
    let passed_through = guest.devices.iter().filter(|device| device.is_passed_through() || device.kind == "usb-host");
    Ok(GuestFacts {
        name: vm.name.clone(),
        adopted: vm.is_adopted(),
        qemu: guest.version,
        machine_type: guest.machine,
        accel,
        cpu,
        cpu_features: guest.cpu_features,
        cpus: guest.cpus,
        ram_bytes,
        device_bytes: ram_blocks.saturating_sub(guest.memory_bytes),
        ram_shared: !guest.memory.is_empty() && guest.memory.iter().all(|memory| memory.share),
        hugepages: guest.memory.iter().find_map(page_bytes),
        blockers: guest.blocked_reasons,
        passed_through: passed_through.map(|device| device.id.clone()).collect(),
        disks,
        loaded: loaded(&vm.launch()),
        ram_files: guest.memory.iter().filter(|memory| memory.share).filter_map(ram_file).collect(),
        nics,
        composition,
        hot_plugged,
        left_behind: left_behind(vm),
        // The caller that asks for a check fills this in.
        copy: None,
        locks_ram: locks_ram(&vm.launch()),
        // The word is QEMU's.
        run_state: run_state.word(),
        migration: migration.map(|id| id.to_string()),
        holds_migration: migration.or_else(|| vm.moved_by()).is_none() && asked.holds_migration().map_err(of_guest)?,
    })
}

/// Returns the parts of an adopted QEMU that no other QEMU will have.
fn left_behind(vm: &Vm) -> Vec<String> {
    let adopted = vm.adopted_socket();
    adopted.zip(vm.process()).map_or(Vec::new(), |(own, process)| CommandLine::left_behind(process.id().pid, &own))
}

/// Returns the files that QEMU read as it started, and that do not move.
fn loaded(launch: &Launch) -> Vec<PathBuf> {
    let (args, own) = match launch {
        Launch::Definition(defined) => {
            let definition = &defined.definition;
            (&definition.qemu.args, [&definition.kernel, &definition.initrd].into_iter().flatten().cloned().collect())
        }
        Launch::CommandLine(line) => (&line.args, BTreeSet::new()),
    };
    command_line::loaded_files(args).into_iter().chain(own).collect()
}

/// Returns the file that a part of the RAM is in, if the file has a name.
fn ram_file(memory: &MemoryDevice) -> Option<PathBuf> {
    let file = PathBuf::from(memory.file.as_ref()?);
    // In a directory QEMU makes a file without a name.
    let is_dir = {
        let file = file.clone();
        aside(move || file.is_dir())?.recv_timeout(FILES_TIME).ok()?
    };
    (!is_dir).then_some(file)
}

/// Returns the size of the huge pages below a part of the RAM; `None`: the part has usual pages.
fn page_bytes(memory: &MemoryDevice) -> Option<u64> {
    match memory.pages {
        MemoryPages::Huge(bytes) => bytes.or_else(|| kilobytes(&text("/proc/meminfo"), "Hugepagesize")),
        MemoryPages::Usual => None,
        MemoryPages::OfFile => {
            let file = memory.file.clone()?;
            let stat = aside(move || statfs(file.as_str()).ok())?.recv_timeout(FILES_TIME).ok()??;
            (file_system(stat.filesystem_type().0 as u32).1 == "hugetlbfs").then_some(stat.block_size() as u64)
        }
    }
}

/// Returns the files below the guest's drives: images, those that they are overlays of, and what else these lie on. The
/// target opens them all.
fn disks(composition: &Composition) -> Vec<GuestDisk> {
    let mut disks: Vec<GuestDisk> = Vec::new();
    for medium in composition.drives.iter().filter_map(|drive| drive.medium.as_ref()) {
        let images = medium
            .chain
            .iter()
            .enumerate()
            .map(|(depth, image)| (image.filename.as_str(), &image.format[..], depth > 0));
        let beside = medium.beside.iter().map(|(way, file)| (file.as_str(), "raw", Medium::is_backing(way)));
        for (filename, format, is_backing) in images.chain(beside) {
            let Some(path) = image(filename) else { continue };
            let readonly = medium.read_only || is_backing;
            match disks.iter_mut().find(|disk| disk.path == path) {
                Some(disk) => disk.readonly &= readonly,
                None => {
                    let format = if format.ends_with("qcow2") { DiskFormat::Qcow2 } else { DiskFormat::Raw };
                    disks.push(GuestDisk { path, format, readonly });
                }
            }
        }
    }
    disks
}

/// Returns the values of options of a command line.
fn options<'a>(args: &'a [String], names: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let named = command_line::options(args).into_iter().filter(|option| names.contains(&option.name));
    named.map(|option| option.value).filter(|value| !value.is_empty())
}

/// Returns whether a QEMU's command line locks its guest's RAM.
pub(crate) fn locks_ram(launch: &Launch) -> bool {
    let args = match launch {
        Launch::Definition(defined) => &defined.definition.qemu.args,
        Launch::CommandLine(line) => &line.args,
    };
    // The option is as the system calls it, or as QEMU did before 5.0.
    let locks = |value: &str| {
        let keys = command_line::keys(value);
        ["mem-lock", "mlock"].iter().any(|key| keys.get(*key).is_some_and(|on| on == "on"))
    };
    options(args, &["overcommit", "realtime"]).any(locks)
}

/// Returns what the NICs of a definition are plugged into, and where their taps are now.
fn plugged(definition: &Definition) -> Vec<GuestNic> {
    let bridged = definition.nics.iter().any(|nic| matches!(nic.attachment, Attachment::Bridge(_)));
    let links = bridged.then(|| skein_host::nics().ok()).flatten();
    let moved = |nic: &Nic| {
        let Attachment::Bridge(bridge) = &nic.attachment else { return None };
        let (links, tap) = (links.as_ref()?, tap_name(nic));
        // Without a link the tap is in another namespace.
        let link = links.iter().find(|link| link.name == tap)?;
        let master = links.iter().find(|other| Some(other.index) == link.master);
        let now = master.map_or(String::new(), |master| master.name.clone());
        (now != *bridge).then_some((tap, now))
    };
    let nic = |nic: &Nic| GuestNic { attachment: Some(nic.attachment.clone()), moved: moved(nic) };
    definition.nics.iter().map(nic).collect()
}

/// Returns what the NICs of a command line are plugged into.
fn nics(args: &[String]) -> Vec<GuestNic> {
    options(args, &["netdev", "nic", "net"]).filter_map(backend).collect()
}

/// Reads `tap,id=net0,ifname=tap0`, or the same as JSON; `None` for what is no backend.
fn backend(value: &str) -> Option<GuestNic> {
    let keys = command_line::keys(value);
    let get = |key: &str| keys.get(key).map(String::as_str);
    let attachment = match get("type").or(get(""))? {
        "none" | "nic" | "hubport" => return None,
        "tap" => {
            let tap = get("ifname").map(|name| Attachment::Tap(name.to_owned()));
            tap.or_else(|| get("br").map(|bridge| Attachment::Bridge(bridge.to_owned())))
        }
        // QEMU's helper plugs into br0 unless an option says another (DEFAULT_BRIDGE_INTERFACE of its
        // include/net/net.h).
        "bridge" => Some(Attachment::Bridge(get("br").unwrap_or("br0").to_owned())),
        _ => None,
    };
    Some(GuestNic { attachment, moved: None })
}

/// Returns the bytes a second that the guest dirties, by samples of its pages over `measure` (whole seconds, at least
/// one). QEMU hashes 512 pages of each GiB, twice, and the guest does not notice. A page counts once however often it
/// is written, so the longer the measure, the less: a guest that rewrote 224 MiB all the time measured 222 MiB/s over
/// one second, 110 over two. `None` if QEMU cannot say within 5 s more.
pub(crate) fn dirty_bytes_per_s(vm: &Vm, measure: Duration) -> Option<u64> {
    const MARGIN: Duration = Duration::from_secs(5);
    const POLL: Duration = Duration::from_millis(50);
    let guest = vm.running()?.guest.with_patience(MARGIN);
    let time = Duration::from_secs(measure.as_secs().clamp(1, 60));
    let end = Instant::now() + time + MARGIN;
    guest.measure_dirty_rate(time, SAMPLE_PAGES).ok()?;
    while Instant::now() < end {
        thread::sleep(POLL);
        if let Some(rate) = guest.dirty_rate().ok()? {
            return Some(rate);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skein_units::MIB;

    use skein_inventory::composition::{Drive, Image};

    use skein_hypervisor::QemuHypervisor;

    use super::*;
    use crate::dirs::Dirs;

    #[test]
    fn cpus() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: x: y\nflags\t\t: fpu avx2 amx\n\n\
                    processor\t: 1\nvendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx\nbugs\t\t: spectre_v1\n\n";
        let info = CpuInfo::parse(text);
        assert_eq!((info.online, info.vendor.as_str()), (2, "GenuineIntel"));
        assert_eq!(info.flags.into_iter().collect::<Vec<_>>(), ["avx2", "fpu"], "those that a guest has on each");
        assert_eq!(CpuInfo::parse("BogoMIPS : 48\nFeatures : fp asimd\n\n:\n"), CpuInfo::default());
    }

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn pools_of_huge_pages() {
        let dir = tempfile::tempdir().unwrap();
        let pool = |name: &str, total: &str, free: &str, reserved: &str| {
            let file = |file: &str| format!("{name}/{file}");
            let [all, left, spoken_for] = ["nr_hugepages", "free_hugepages", "resv_hugepages"].map(file);
            write(dir.path(), &[(&all, total), (&left, free), (&spoken_for, reserved)]);
        };
        pool("hugepages-1048576kB", "4\n", "1\n", "2\n");
        pool("hugepages-2048kB", "1024\n", "512\n", "12\n");
        pool("hugepages-64kB", "?", "1", "0");
        pool("other", "1", "1", "0");
        let expect = [(2 * MIB, 1024, 500), (1024 * MIB, 4, 0)];
        let expect = expect.map(|(page_bytes, total, free)| Hugepages { page_bytes, total, free });
        assert_eq!(hugepages(dir.path()), expect);
        assert_eq!(hugepages(Path::new("/nonexistent")), []);
    }

    fn drive(read_only: bool, chain: &[(&str, &str)]) -> Drive {
        let image = |(format, filename): &(&str, &str)| Image {
            format: (*format).into(),
            filename: (*filename).into(),
            virtual_bytes: 1,
        };
        let chain = chain.iter().map(image).collect();
        let medium = Medium {
            chain,
            beside: Default::default(),
            read_only,
            tuning: Default::default(),
            bitmaps: BTreeSet::new(),
        };
        Drive { device: "d".into(), name: String::new(), removable: false, medium: Some(medium) }
    }

    #[test]
    fn disks_of_a_guest() {
        let json = r#"json:{"driver": "qcow2", "file": {"driver": "file", "filename": "/srv/a, b"}}"#;
        let drives = vec![
            drive(false, &[("raw", "nbd://10.0.0.1/a")]),
            drive(false, &[("raw", "/dev/vg0/web1")]),
            drive(false, &[("qcow2", json), ("raw", "/srv/base.raw")]),
            drive(false, &[("throttle on qcow2", "/srv/c"), ("raw", "/srv/base.raw")]),
            drive(true, &[("raw", "/srv/cd.iso")]),
            drive(false, &[("raw", "json:{")]),
        ];
        let disk = |path: &str, format, readonly| GuestDisk { path: path.into(), format, readonly };
        let expect = [
            disk("/dev/vg0/web1", DiskFormat::Raw, false),
            disk("/srv/a, b", DiskFormat::Qcow2, false),
            disk("/srv/base.raw", DiskFormat::Raw, true),
            disk("/srv/c", DiskFormat::Qcow2, false),
            disk("/srv/cd.iso", DiskFormat::Raw, true),
        ];
        assert_eq!(disks(&Composition { drives, ..Composition::default() }), expect);
    }

    #[test]
    fn a_command_line_that_locks_memory() {
        let line = |args: &[&str]| {
            let args = args.iter().map(|word| word.to_string()).collect();
            locks_ram(&Launch::CommandLine(crate::launch::CommandLine { program: "q".into(), args }))
        };
        assert!(line(&["-m", "64", "-overcommit", "cpu-pm=on,mem-lock=on"]));
        assert!(!line(&["-overcommit", "mem-lock=off"]) && !line(&["-m", "mem-lock=on"]));
    }

    #[test]
    fn nics_of_a_command_line() {
        let line = [
            "-netdev",
            "tap,id=a,ifname=tap0,script=no",
            "-netdev",
            "user,id=b,restrict=on",
            "--netdev",
            "bridge,id=c",
            "-netdev",
            "bridge,id=d,br=br7",
            "-netdev",
            r#"{"type":"tap","ifname":"tap1","id":"e","vhost":true}"#,
            "-nic",
            "tap,br=br8,model=e1000",
            "-nic",
            "none",
            "-net",
            "nic,model=e1000",
            "-net",
            "type=tap,ifname=tap2",
            "-netdev",
            "tap,id=f,fd=7",
            "-device",
            "virtio-net-pci,netdev=a,ifname=no",
            "-netdev",
        ];
        let line = line.map(str::to_owned);
        let found: Vec<_> = nics(&line).into_iter().map(|nic| nic.attachment).collect();
        let (tap, bridge) =
            (|name: &str| Some(Attachment::Tap(name.into())), |name: &str| Some(Attachment::Bridge(name.into())));
        let expect = [tap("tap0"), None, bridge("br0"), bridge("br7"), tap("tap1"), bridge("br8"), tap("tap2"), None];
        assert_eq!(found, expect);
    }

    proptest! {
        #[test]
        fn nothing_odd_panics(text in ".{0,80}", json in "\\{.{0,60}\\}", option in "-{1,2}(netdev|nic|cpu)") {
            CpuInfo::parse(&text);
            for text in [&text, &json, &format!("json:{json}"), &format!("json:{text}")] {
                image(text);
                backend(text);
                kilobytes(text, "a");
                nics(&[option.clone(), text.clone()]);
            }
        }
    }

    #[test]
    fn this_host() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs { state: dir.path().join("state"), run: dir.path().join("run") };
        dirs.create().unwrap();
        let vms = Vms::open(dirs, std::sync::Arc::new(QemuHypervisor), None, Duration::from_secs(60)).unwrap();
        let places = MigrationSlots { limit: 2, used: 1 };
        let own = std::env::current_exe().unwrap();
        let kernel = dir.path().join("kernel");
        fs::write(&kernel, "abc").unwrap();
        let facts = host(HostQuestion {
            name: "a",
            qemu: Some(Path::new("/nonexistent/qemu")),
            files: &GuestFiles { opened: vec![own.clone(), "/nonexistent/disk".into()], loaded: vec![kernel.clone()] },
            vms: &vms,
            kept_ram_bytes: 0,
            room: Room::default(),
            incoming: places,
            outgoing: places,
            journal: Err("full".into()),
            closed: None,
        });
        assert_eq!((facts.name.as_str(), facts.boot_id.as_ref().unwrap().len()), ("a", 36));
        assert!(0 < facts.ram_available_bytes && facts.ram_available_bytes <= facts.ram_bytes, "{facts:?}");
        assert!(facts.cpus > 0 && !facts.cpu_vendor.is_empty() && facts.cpu_flags.contains("fpu"), "{facts:?}");
        assert!(facts.qemu.as_ref().unwrap_err().contains("/nonexistent/qemu"), "{:?}", facts.qemu);
        let files: BTreeSet<_> = facts.files.iter().map(|file| &file.path).collect();
        assert_eq!(files, BTreeSet::from([&own, &kernel]));
        // The digest is of FIPS 180-2, appendix B.1.
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(facts.digests, [(kernel, digest.to_owned())].into());
        assert!(facts.vms.is_empty() && facts.nics.iter().all(|nic| nic.name != "lo"));
        assert_eq!((facts.incoming, facts.journal), (places, Err("full".into())));
        assert_eq!(facts.kvm.is_ok(), skein_hypervisor::kvm::works(None).is_ok());
    }

    #[test]
    fn programs() {
        assert_eq!(find(Path::new("./qemu")).unwrap(), Path::new("./qemu"));
        assert!(find(Path::new("sh")).unwrap().ends_with("bin/sh"));
        assert!(find(Path::new("no-such-qemu")).unwrap_err().starts_with("there is no no-such-qemu in "));
        let why = program(&QemuHypervisor, Some(Path::new("/bin/true")), false).unwrap_err();
        assert!(why.contains("ended with"), "{why}");
    }
}
