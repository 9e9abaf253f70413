//! What a check before a migration wants to know of this host, and of a guest that runs here.
//!
//! | fact | source |
//! |---|---|
//! | NICs, bridges, taps | netlink, in the calling thread's network namespace; `/sys` shows that of whoever mounted it |
//! | memory, CPUs | `/proc/meminfo`, `/proc/cpuinfo`, `/sys/kernel/mm/hugepages` |
//! | QEMU | a start of it without a machine, remembered for a while |
//! | files | `stat`, `statfs`, `access`, in threads of their own: a dead server of a file system blocks them for good |
//! | a guest | its QEMU, by QMP; NICs from what it was started with, since QEMU does not tell what they are plugged into |
//!
//! What cannot be read is left out, or is nothing: the check blocks or warns then.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::digest::{Context, SHA256};
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, eaccess};
use parking_lot::Mutex;
use serde_json::Value;
use skein_hypervisor::guest::facts::{self, MemoryDevice, MemoryPages};
use skein_hypervisor::inspect::{self as qemu, QemuProgram};
use skein_hypervisor::{Config, SAMPLE_PAGES};
use skein_inventory::command_line;
use skein_inventory::composition::Medium;
use skein_inventory::facts::GuestFiles;
use skein_inventory::{
    Accel, AccelFacts, Attachment, Composition, CpuModel, Definition, DiskFormat, FileFacts, FileSystem, GuestDisk,
    GuestFacts, GuestNic, HostFacts, Hugepages, MachineType, MigrationSlots, Nic, NicFacts, Presence, QemuFacts, Room,
    VmFacts,
};
use tracing::warn;

use crate::launch::{CommandLine, Launch, ODD_BYTES, tap_name};
use crate::vms::{Vm, VmError, Vms, swtpm};

/// All that is asked of a QEMU program, and waiting until others have asked: it starts and answers in a tenth of a
/// second. Less than another agent waits for facts.
const PROBE_TIME: Duration = Duration::from_secs(8);
/// A QEMU that looks the same may be a wrapper script around another, and KVM's modules may be loaded anew.
const PROBE_AGE_MAX: Duration = Duration::from_secs(600);
/// Programs times accelerators that are remembered, some 50 KiB each.
const PROBES_MAX: usize = 8;
/// All of a guest's files are looked at within this.
const FILES_TIME: Duration = Duration::from_secs(5);
/// A guest's disks (at most 64), their backing files, kernel and initramfs.
const FILES_MAX: usize = 256;
/// Largest file whose contents are compared: no kernel or initramfs is larger, and it is read in the time that files
/// have.
const LOADED_BYTES_MAX: u64 = 1 << 30;
/// Threads that look at files: those that a dead server blocks stay.
const LOOKERS_MAX: usize = 512;
/// LVM on RAID on multipath: layers of block devices.
const LAYERS_MAX: usize = 8;

/// What is asked of this host.
pub(crate) struct HostQuestion<'a> {
    /// This host's name.
    pub(crate) name: &'a str,
    /// The program that would run the guest: its definition's, else the agent's; else [`Config::program`] decides.
    pub(crate) qemu: Option<&'a Path>,
    /// What the guest's QEMU opens and reads.
    pub(crate) files: &'a GuestFiles,
    /// What runs here.
    pub(crate) vms: &'a Vms,
    /// RAM of guests that left it.
    pub(crate) kept_ram_bytes: u64,
    /// What a QEMU gets here at most.
    pub(crate) room: Room,
    /// Migrations to this host.
    pub(crate) incoming: MigrationSlots,
    /// Migrations from this host.
    pub(crate) outgoing: MigrationSlots,
    /// Whether the agent's journal can be written.
    pub(crate) journal: Result<(), String>,
}

/// What this host is and has, for one guest's sake. Takes a few milliseconds, the first time a start of QEMU; at most
/// [`PROBE_TIME`] and what the kernel takes for its NICs, once also a trial of KVM.
pub(crate) fn host(question: HostQuestion) -> HostFacts {
    let HostQuestion { name, qemu, files, vms, kept_ram_bytes, room, incoming, outgoing, journal } = question;
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
        qemu: program(qemu, kvm.is_ok()),
        kvm,
        // Switched on is enough: one without a port that is up has no carrier, until a guest is plugged in.
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
    }
}

/// Which boot of which kernel this is.
pub(crate) fn boot_id() -> Option<String> {
    Some(text("/proc/sys/kernel/random/boot_id").trim().to_owned()).filter(|id| !id.is_empty())
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

/// An error and what it comes from, for a sentence.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

/// A file of `/proc` or `/sys`; nothing if it cannot be read.
fn text(path: impl AsRef<Path>) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The value of `NAME:  123 kB`, in bytes.
pub(crate) fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let value = file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What `/proc/cpuinfo` says of the CPUs that are online.
#[derive(Debug, Default, PartialEq)]
struct CpuInfo {
    online: u32,
    vendor: String,
    /// Those that all of them have.
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

/// `hugepages-2048kB` and its like, by size.
fn hugepages(dir: &Path) -> Vec<Hugepages> {
    let pool = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kib: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = |file| text(entry.path().join(file)).trim().parse::<u64>().ok();
        // What is reserved is spoken for, though not yet taken.
        let free = count("free_hugepages")?.saturating_sub(count("resv_hugepages")?);
        Some(Hugepages { page_bytes: kib.checked_mul(1024)?, total: count("nr_hugepages")?, free })
    };
    let mut pools: Vec<Hugepages> = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

/// Whether KVM works, or why not.
fn kvm(vms: &Vms) -> Result<(), String> {
    vms.kvm_works().map_err(|error| format!("{error}; {}", error.cure()))
}

/// What a QEMU was asked: the same file, and so the same answer.
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

/// Locked while one is asked: never two at a time.
static PROBED_PROGRAMS: Mutex<Vec<Probed>> = Mutex::new(Vec::new());

/// The QEMU program that would run a guest, under each accelerator that works.
fn program(named: Option<&Path>, kvm: bool) -> Result<QemuFacts, String> {
    let mut config = Config::new("", 0, "");
    config.binary = named.map(Path::to_owned);
    let path = find(&config.program())?;
    let found = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let accels = [facts::Accel::Kvm, facts::Accel::Tcg].into_iter().filter(|accel| kvm || *accel != facts::Accel::Kvm);
    let (mut programs, mut why) = (Vec::new(), String::new());
    let end = Instant::now() + PROBE_TIME;
    for accel in accels {
        // One of the two may not be built in.
        match ask(&path, &found, accel, end) {
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

fn ask(path: &Path, found: &Metadata, accel: facts::Accel, end: Instant) -> Result<QemuProgram, String> {
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
    let program = QemuProgram::probe(path, None, accel, end.saturating_duration_since(Instant::now()))
        .map_err(|error| chain(&error))?;
    if probed.len() >= PROBES_MAX {
        probed.remove(0);
    }
    probed.push(Probed { probe, at: Instant::now(), program: program.clone() });
    Ok(program)
}

/// The version of the swtpm that is installed, asked once for each file.
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

/// Where a program is, as `execvp` finds it.
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
    let model =
        |model: &qemu::CpuModel| CpuModel { name: model.name.clone(), missing: model.unavailable_features.clone() };
    AccelFacts {
        accel: accel(program.accel),
        cpu_models: program.cpu_models.iter().map(model).collect(),
        features: Some(program.cpu_features.clone()).filter(|features| !features.is_empty()),
    }
}

/// Threads that look at files now.
static LOOKERS: AtomicUsize = AtomicUsize::new(0);

/// Does `work` in a thread of its own, which may be waited for or not. None: too many are still at it.
fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<Receiver<T>> {
    struct Looker;
    impl Drop for Looker {
        fn drop(&mut self) {
            LOOKERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let others = LOOKERS.fetch_add(1, Ordering::Relaxed);
    let looker = Looker;
    let (tell, told) = sync_channel(1);
    let look = move || {
        let _looker = looker;
        let _ = tell.send(work());
    };
    (others < LOOKERS_MAX).then(|| thread::Builder::new().name("look".into()).spawn(look).ok())??;
    Some(told)
}

/// Files that are being looked at.
struct Looks<T> {
    files: Vec<(PathBuf, Option<Receiver<Option<T>>>)>,
    end: Instant,
}

fn looks<T: Send + 'static>(paths: &[PathBuf], look: fn(&Path) -> Option<T>) -> Looks<T> {
    let files = paths.iter().take(FILES_MAX).map(|path| {
        let looked_at = path.clone();
        (path.clone(), aside(move || look(&looked_at)))
    });
    Looks { files: files.collect(), end: Instant::now() + FILES_TIME }
}

/// Of these files those that exist, and whose file system answers in time.
pub(crate) fn looked_at(paths: &[PathBuf]) -> Vec<FileFacts> {
    looks(paths, look).wait().into_iter().map(|(_, facts)| facts).collect()
}

impl<T> Looks<T> {
    /// Those that exist, and whose file system answers.
    fn wait(self) -> Vec<(PathBuf, T)> {
        let end = self.end;
        let seen = |(path, told): (PathBuf, Option<Receiver<Option<T>>>)| {
            let told = told.and_then(|told| told.recv_timeout(end.saturating_duration_since(Instant::now())).ok());
            let seen = told.unwrap_or_else(|| {
                warn!("{}: its file system does not answer", path.display());
                None
            });
            Some((path, seen?))
        };
        self.files.into_iter().filter_map(seen).collect()
    }
}

/// SHA-256 of what is in a file of at most [`LOADED_BYTES_MAX`]. None: it is no such file, or cannot be read.
fn digest(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() <= LOADED_BYTES_MAX)?;
    let mut file = fs::File::open(path).ok()?.take(found.len());
    let mut digest = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => break,
            bytes => digest.update(&buffer[..bytes]),
        }
    }
    Some(digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn look(path: &Path) -> Option<FileFacts> {
    let found = fs::metadata(path).ok()?;
    let may = |access| eaccess(path, access).is_ok();
    let mut facts = FileFacts {
        path: path.to_owned(),
        readable: may(AccessFlags::R_OK),
        writable: may(AccessFlags::W_OK),
        file_system: FileSystem::Unknown,
        file_system_name: "block device".into(),
        device: found.dev(),
        inode: found.ino(),
        mounted_from: None,
        handle: None,
        wwid: None,
    };
    if found.file_type().is_block_device() {
        // What the device is, and not the node that leads to it, of which each host has its own.
        let (major, minor) = (nix::sys::stat::major(found.rdev()), nix::sys::stat::minor(found.rdev()));
        (facts.device, facts.inode) = (found.rdev(), 0);
        facts.wwid = wwid(&Path::new("/sys/dev/block").join(format!("{major}:{minor}")), LAYERS_MAX);
    } else {
        let magic = statfs(path).map_or(0, |stat| stat.filesystem_type().0 as u32);
        (facts.file_system, facts.file_system_name) = file_system(magic);
        if facts.file_system == FileSystem::Network {
            facts.mounted_from = mounted_from(&text("/proc/self/mountinfo"), found.dev());
            facts.handle = skein_host::file_handle(path).ok();
        }
    }
    Some(facts)
}

/// The source of the mount with this device number, by proc_pid_mountinfo(5).
fn mounted_from(mountinfo: &str, device: u64) -> Option<String> {
    let device = format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    mountinfo.lines().find_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let source = file_system.split(' ').nth(1)?;
        (place.split(' ').nth(2)? == device).then(|| source.to_owned())
    })
}

/// Names that QEMU gives to the disks that it emulates, the same in each guest: no name for a host that is a guest.
const EMULATED_DISK_NAMES: [&str; 3] = ["QEMU", "nvme.1b36-", "eui.525400"];

/// The worldwide name of a block device, by its directory in `/sys`. For LVM, encryption and RAID that is their UUID
/// with the names of what is below: hosts installed from one image have the same UUIDs on disks of their own.
fn wwid(dir: &Path, layers: usize) -> Option<String> {
    let said = |file: &str| Some(text(dir.join(file)).trim().to_owned()).filter(|text| !text.is_empty());
    let layers = layers.checked_sub(1)?;
    if let Some(number) = said("partition") {
        return Some(format!("{} partition {number}", wwid(&fs::canonicalize(dir).ok()?.join(".."), layers)?));
    }
    if let Some(uuid) = said("dm/uuid").or_else(|| said("md/uuid")) {
        if uuid.starts_with("mpath-") {
            return Some(uuid);
        }
        let below = fs::read_dir(dir.join("slaves")).ok()?.map(|slave| wwid(&slave.ok()?.path(), layers));
        let mut below = below.collect::<Option<Vec<String>>>().filter(|below| !below.is_empty())?;
        below.sort();
        return Some(format!("{uuid} on {}", below.join(", ")));
    }
    // NVMe has its own beside, SCSI one level below.
    let name = said("wwid").or_else(|| said("device/wwid"))?;
    (!EMULATED_DISK_NAMES.iter().any(|emulated| name.contains(emulated))).then_some(name)
}

/// Magic numbers of linux/magic.h, and of file systems that keep theirs elsewhere.
const FILE_SYSTEMS: [(u32, FileSystem, &str); 31] = [
    (0xef53, FileSystem::Local, "ext4"),
    (0x5846_5342, FileSystem::Local, "xfs"),
    (0x9123_683e, FileSystem::Local, "btrfs"),
    (0x0102_1994, FileSystem::Local, "tmpfs"),
    (0x8584_58f6, FileSystem::Local, "ramfs"),
    (0x9584_58f6, FileSystem::Local, "hugetlbfs"),
    (0x794c_7630, FileSystem::Local, "overlay"),
    (0x2fc1_2fc1, FileSystem::Local, "zfs"),
    (0xca45_1a4e, FileSystem::Local, "bcachefs"),
    (0xf2f5_2010, FileSystem::Local, "f2fs"),
    (0x3153_464a, FileSystem::Local, "jfs"),
    (0x5265_4973, FileSystem::Local, "reiserfs"),
    (0x7371_7368, FileSystem::Local, "squashfs"),
    (0xe0f5_e1e2, FileSystem::Local, "erofs"),
    (0x9660, FileSystem::Local, "iso9660"),
    (0x4d44, FileSystem::Local, "vfat"),
    (0x2011_bab0, FileSystem::Local, "exfat"),
    (0x7366_746e, FileSystem::Local, "ntfs3"),
    (0x6969, FileSystem::Network, "nfs"),
    (0xff53_4d42, FileSystem::Network, "cifs"),
    (0xfe53_4d42, FileSystem::Network, "smb3"),
    (0x517b, FileSystem::Network, "smb"),
    (0x00c3_6400, FileSystem::Network, "ceph"),
    (0x0116_1970, FileSystem::Network, "gfs2"),
    (0x7461_636f, FileSystem::Network, "ocfs2"),
    (0x0bd0_0bd0, FileSystem::Network, "lustre"),
    (0x4750_4653, FileSystem::Network, "gpfs"),
    (0x5346_414f, FileSystem::Network, "afs"),
    (0x7375_7245, FileSystem::Network, "coda"),
    (0x6573_5546, FileSystem::Unknown, "fuse"),
    (0x0102_1997, FileSystem::Unknown, "9p"),
];

fn file_system(magic: u32) -> (FileSystem, String) {
    let known = FILE_SYSTEMS.iter().find(|(other, ..)| *other == magic);
    known.map_or_else(
        || (FileSystem::Unknown, format!("file system {magic:#x}")),
        |(_, kind, name)| (*kind, (*name).to_owned()),
    )
}

/// What runs here under a VM's name. Asks QEMU some hundred times, tens of milliseconds altogether.
///
/// # Errors
/// If it does not run, or its QEMU does not answer.
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
            // QEMU moves what these hold; that the target has them is asked of the definition.
            let image = definition.firmware.as_ref().and_then(|firmware| firmware.image.clone());
            disks.retain(|disk| Some(&disk.path) != image.as_ref() && !disk.path.starts_with(vm.own().dir()));
            let place = |disk: &GuestDisk| definition.disks.iter().position(|other| other.path == disk.path);
            disks.sort_by_key(|disk| place(disk).unwrap_or(usize::MAX));
            (definition.cpu_for(accel).to_owned(), plugged(definition))
        }
        Launch::CommandLine(line) => {
            let cpu = options(&line.args, &["cpu"]).last();
            (cpu.map_or(guest.cpu_model, str::to_owned), nics(&line.args))
        }
    };
    let ram_blocks: u64 = asked.ram_blocks().map_err(of_guest)?.iter().map(|block| block.used_bytes).sum();
    // Asked in this order: at the end of a migration of ours the guest stands still.
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
        // Who asks for a check says it.
        copy: None,
        locks_ram: locks_ram(&vm.launch()),
        // As QEMU calls it.
        run_state: run_state.word(),
        migration: migration.map(|id| id.to_string()),
        holds_migration: migration.or_else(|| vm.moved_by()).is_none() && asked.holds_migration().map_err(of_guest)?,
    })
}

/// What of an adopted QEMU no other will have.
fn left_behind(vm: &Vm) -> Vec<String> {
    let adopted = vm.adopted_socket();
    adopted.zip(vm.process()).map_or(Vec::new(), |(own, process)| CommandLine::left_behind(process.id().pid, &own))
}

/// Files that QEMU read as it started, and that do not move.
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

/// The file that a part of the RAM is in, if that has a name.
fn ram_file(memory: &MemoryDevice) -> Option<PathBuf> {
    let file = PathBuf::from(memory.file.as_ref()?);
    // In a directory QEMU makes a file without a name.
    let is_dir = {
        let file = file.clone();
        aside(move || file.is_dir())?.recv_timeout(FILES_TIME).ok()?
    };
    (!is_dir).then_some(file)
}

/// The size of the huge pages below a part of the RAM; none: it has usual ones.
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

/// The files below the guest's drives: images, those that they are overlays of, and what else these lie on. The target
/// opens them all.
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

/// The path in what QEMU calls a filename: `/a`, `file:/a`, or `json:{"driver": "raw", "file": {"filename": "/a"}}`
/// where a path does not say it all. None: it is not on this host (`nbd://...`).
pub(crate) fn image(filename: &str) -> Option<PathBuf> {
    if let Some(options) = filename.strip_prefix("json:") {
        let options: Value = serde_json::from_str(options).ok()?;
        let said =
            ["/filename", "/file/filename", "/file.filename"].iter().find_map(|at| options.pointer(at)?.as_str());
        return said.map(PathBuf::from);
    }
    let path = filename.strip_prefix("file:").unwrap_or(filename);
    (!path.is_empty() && !path.contains("://")).then(|| path.into())
}

/// The values of options of a command line.
fn options<'a>(args: &'a [String], names: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let named = command_line::options(args).into_iter().filter(|option| names.contains(&option.name));
    named.map(|option| option.value).filter(|value| !value.is_empty())
}

/// Whether a QEMU is told to lock its guest's RAM.
pub(crate) fn locks_ram(launch: &Launch) -> bool {
    let args = match launch {
        Launch::Definition(defined) => &defined.definition.qemu.args,
        Launch::CommandLine(line) => &line.args,
    };
    // As the system calls it, and as QEMU did before 5.0.
    let locks = |value: &str| {
        let keys = command_line::keys(value);
        ["mem-lock", "mlock"].iter().any(|key| keys.get(*key).is_some_and(|on| on == "on"))
    };
    options(args, &["overcommit", "realtime"]).any(locks)
}

/// What the NICs of a definition are plugged into, and where their taps are now.
fn plugged(definition: &Definition) -> Vec<GuestNic> {
    let bridged = definition.nics.iter().any(|nic| matches!(nic.attachment, Attachment::Bridge(_)));
    let links = bridged.then(|| skein_host::nics().ok()).flatten();
    let moved = |nic: &Nic| {
        let Attachment::Bridge(bridge) = &nic.attachment else { return None };
        let (links, tap) = (links.as_ref()?, tap_name(nic));
        // None: it is another namespace's.
        let link = links.iter().find(|link| link.name == tap)?;
        let master = links.iter().find(|other| Some(other.index) == link.master);
        let now = master.map_or(String::new(), |master| master.name.clone());
        (now != *bridge).then_some((tap, now))
    };
    let nic = |nic: &Nic| GuestNic { attachment: Some(nic.attachment.clone()), moved: moved(nic) };
    definition.nics.iter().map(nic).collect()
}

/// What the NICs of a command line are plugged into.
fn nics(args: &[String]) -> Vec<GuestNic> {
    options(args, &["netdev", "nic", "net"]).filter_map(backend).collect()
}

/// Of `tap,id=net0,ifname=tap0`, or the same as JSON; none for what is no backend.
fn backend(value: &str) -> Option<GuestNic> {
    let keys = command_line::keys(value);
    let get = |key: &str| keys.get(key).map(String::as_str);
    let attachment = match get("type").or(get(""))? {
        "none" | "nic" | "hubport" => return None,
        "tap" => {
            let tap = get("ifname").map(|name| Attachment::Tap(name.to_owned()));
            tap.or_else(|| get("br").map(|bridge| Attachment::Bridge(bridge.to_owned())))
        }
        // QEMU's helper plugs into br0 if nothing else is said (DEFAULT_BRIDGE_INTERFACE of its include/net/net.h).
        "bridge" => Some(Attachment::Bridge(get("br").unwrap_or("br0").to_owned())),
        _ => None,
    };
    Some(GuestNic { attachment, moved: None })
}

/// Bytes a second that the guest dirties, by samples of its pages over `measure` (whole seconds, at least one): QEMU
/// hashes 512 pages of each GiB, twice, and the guest does not notice. A page counts once however often it is written,
/// so the longer the measure, the less: a guest that rewrote 224 MiB all the time measured 222 MiB/s over one second,
/// 110 over two. None if QEMU cannot say within 5 s more.
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

    #[test]
    fn memory() {
        let text =
            "MemTotal:       16307972 kB\nMemFree:  12 kB\nMemAvailable:   15000000 kB\nHugepagesize:       2048 kB\n";
        assert_eq!(kilobytes(text, "MemTotal"), Some(16_307_972 * 1024));
        assert_eq!(kilobytes(text, "MemAvailable"), Some(15_360_000_000));
        assert_eq!(kilobytes(text, "Hugepagesize"), Some(2 * MIB));
        for odd in [
            "",
            "MemTotal: x kB",
            "MemTotal: 1",
            "MemTotal: 99999999999999999999 kB",
            "MemTotal: 18446744073709551615 kB",
        ] {
            assert_eq!(kilobytes(odd, "MemTotal"), None, "{odd}");
        }
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

    #[test]
    fn names_of_block_devices() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| wwid(&dir.path().join(name), LAYERS_MAX);
        write(
            dir.path(),
            &[
                ("scsi/device/wwid", "naa.600508b1001c\n"),
                ("scsi/part/partition", "2\n"),
                ("nvme/wwid", "eui.0025388b710ff22a\n"),
                ("virtio/serial", "\n"),
                ("nested/device/wwid", "t10.ATA     QEMU HARDDISK                           QM00001\n"),
                ("nested-nvme/wwid", "eui.5254000000000001\n"),
                ("mpath/dm/uuid", "mpath-3600508b1001c\n"),
                ("lv/dm/uuid", "LVM-abc\n"),
                ("lv-of-unnamed/dm/uuid", "LVM-abc\n"),
                ("empty-lv/dm/uuid", "LVM-abc\n"),
                ("empty-lv/slaves/.keep/x", ""),
                ("ring/dm/uuid", "LVM-ring\n"),
            ],
        );
        let link = |lv: &str, below: &str| {
            fs::create_dir_all(dir.path().join(lv).join("slaves")).unwrap();
            std::os::unix::fs::symlink(dir.path().join(below), dir.path().join(lv).join("slaves").join(below)).unwrap();
        };
        link("lv", "scsi");
        link("lv", "mpath");
        link("lv-of-unnamed", "virtio");
        link("ring", "ring");
        assert_eq!(at("scsi").as_deref(), Some("naa.600508b1001c"));
        assert_eq!(at("scsi/part").as_deref(), Some("naa.600508b1001c partition 2"));
        assert_eq!(at("nvme").as_deref(), Some("eui.0025388b710ff22a"));
        assert_eq!(at("mpath").as_deref(), Some("mpath-3600508b1001c"));
        assert_eq!(at("lv").as_deref(), Some("LVM-abc on mpath-3600508b1001c, naa.600508b1001c"));
        // Two hosts of one image could have the same: none is better.
        for unnamed in ["virtio", "nested", "nested-nvme", "lv-of-unnamed", "empty-lv", "ring", "missing"] {
            assert_eq!(at(unnamed), None, "{unnamed}");
        }
    }

    #[test]
    fn file_systems() {
        let kind = |magic: i64| file_system(magic as u32);
        assert_eq!(kind(nix::sys::statfs::NFS_SUPER_MAGIC.0), (FileSystem::Network, "nfs".into()));
        assert_eq!(kind(nix::sys::statfs::BTRFS_SUPER_MAGIC.0), (FileSystem::Local, "btrfs".into()));
        assert_eq!(kind(nix::sys::statfs::FUSE_SUPER_MAGIC.0), (FileSystem::Unknown, "fuse".into()));
        assert_eq!(kind(0x1234), (FileSystem::Unknown, "file system 0x1234".into()));
        let magics: BTreeSet<u32> = FILE_SYSTEMS.iter().map(|(magic, ..)| *magic).collect();
        assert_eq!(magics.len(), FILE_SYSTEMS.len());
    }

    #[test]
    fn files_of_this_host() {
        let dir = tempfile::tempdir().unwrap();
        let (file, missing) = (dir.path().join("disk"), dir.path().join("missing"));
        fs::write(&file, "x").unwrap();
        let seen = looked_at(&[missing, file.clone(), "/proc/self/mounts".into()]);
        assert_eq!(seen.len(), 2);
        let found = fs::metadata(&file).unwrap();
        assert_eq!((&seen[0].path, seen[0].device, seen[0].inode), (&file, found.dev(), found.ino()));
        assert_eq!((seen[0].readable, seen[0].writable, &seen[0].wwid), (true, true, &None));
        assert_eq!(seen[1].file_system, FileSystem::Unknown, "{:?}", seen[1]);
    }

    #[test]
    fn who_does_not_come_back_is_not_waited_for() {
        let told = aside(|| thread::sleep(Duration::from_secs(2))).unwrap();
        let looks: Looks<FileFacts> = Looks {
            files: vec![("/srv/dead".into(), aside(move || told.recv().map(|()| None).unwrap()))],
            end: Instant::now() + Duration::from_millis(50),
        };
        let begun = Instant::now();
        assert_eq!(looks.wait(), []);
        assert!(begun.elapsed() < Duration::from_secs(1));
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
    fn where_it_is_mounted_from() {
        let text = "36 27 0:45 / /srv/vm rw,relatime shared:9 - nfs4 nas:/export/vm rw,vers=4.2\n\
                    37 27 0:46 / /srv/iso rw - nfs4 nas:/iso rw\nodd\n";
        let device = |minor| nix::sys::stat::makedev(0, minor);
        assert_eq!(mounted_from(text, device(45)).unwrap(), "nas:/export/vm");
        assert_eq!(mounted_from(text, device(46)).unwrap(), "nas:/iso");
        assert_eq!(mounted_from(text, device(47)), None);
    }

    #[test]
    fn this_host() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs { state: dir.path().join("state"), run: dir.path().join("run") };
        dirs.create().unwrap();
        let vms = Vms::open(dirs, None, Duration::from_secs(60)).unwrap();
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
        });
        assert_eq!((facts.name.as_str(), facts.boot_id.as_ref().unwrap().len()), ("a", 36));
        assert!(0 < facts.ram_available_bytes && facts.ram_available_bytes <= facts.ram_bytes, "{facts:?}");
        assert!(facts.cpus > 0 && !facts.cpu_vendor.is_empty() && facts.cpu_flags.contains("fpu"), "{facts:?}");
        assert!(facts.qemu.as_ref().unwrap_err().contains("/nonexistent/qemu"), "{:?}", facts.qemu);
        let files: BTreeSet<_> = facts.files.iter().map(|file| &file.path).collect();
        assert_eq!(files, BTreeSet::from([&own, &kernel]));
        // FIPS 180-2, appendix B.1.
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
        let why = program(Some(Path::new("/bin/true")), false).unwrap_err();
        assert!(why.contains("ended with"), "{why}");
    }
}
