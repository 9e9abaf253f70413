//! What a host is and has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A host, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostFacts {
    /// Its name in the cluster.
    pub name: String,
    /// `/proc/sys/kernel/random/boot_id`: two hosts with the same one share a kernel, and so its local file systems.
    pub boot_id: Option<String>,
    /// MemTotal.
    pub ram_bytes: u64,
    /// MemAvailable: what can be used without swapping.
    pub ram_available_bytes: u64,
    /// RAM of guests that left, kept for their way back.
    #[serde(default)]
    pub kept_ram_bytes: u64,
    /// What bounds a QEMU that its agent starts, its memory among it; none: its agent is of a version that does not
    /// tell.
    #[serde(default)]
    pub room: Option<Room>,
    /// Its pools of huge pages.
    pub hugepages: Vec<Hugepages>,
    /// CPUs that are online.
    pub cpus: u32,
    /// `GenuineIntel`, `AuthenticAMD`...
    pub cpu_vendor: String,
    /// As in `/proc/cpuinfo`.
    pub cpu_flags: BTreeSet<String>,
    /// Whether KVM works, or why not.
    pub kvm: Result<(), String>,
    /// The QEMU that would run the guest (the definition's, if it names one), or why there is none.
    pub qemu: Result<QemuFacts, String>,
    /// Bridges that are up.
    pub bridges: BTreeSet<String>,
    /// Tap devices that a guest, or somebody else, uses.
    pub taps_in_use: BTreeSet<String>,
    /// Names that are taken.
    pub vms: Vec<VmFacts>,
    /// Migrations to this host.
    pub incoming: MigrationSlots,
    /// Migrations from this host.
    pub outgoing: MigrationSlots,
    /// Whether the agent's journal can be written, or why not.
    pub journal: Result<(), String>,
    /// Of the guest's disks, kernel, initramfs and firmware those that exist here.
    pub files: Vec<FileFacts>,
    /// SHA-256 of what is in files that a QEMU reads as it starts, in hexadecimal digits.
    #[serde(default)]
    pub digests: BTreeMap<PathBuf, String>,
    /// Its NICs.
    pub nics: Vec<NicFacts>,
    /// The version of swtpm, which emulates guests' TPMs; none: it is not installed.
    #[serde(default)]
    pub swtpm: Option<String>,
}

/// QEMU's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QemuVersion {
    /// 10 of 10.0.2.
    pub major: u32,
    /// 0 of 10.0.2.
    pub minor: u32,
    /// 2 of 10.0.2.
    pub micro: u32,
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// A pool of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Hugepages {
    /// Size of a page.
    pub page_bytes: u64,
    /// `nr_hugepages`.
    pub total: u64,
    /// `free_hugepages` less `resv_hugepages`.
    pub free: u64,
}

/// A QEMU program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QemuFacts {
    /// The program.
    pub program: PathBuf,
    /// By its own word.
    pub version: QemuVersion,
    /// `query-machines`.
    pub machines: Vec<MachineType>,
    /// What it can do under each accelerator that works here.
    pub accels: Vec<AccelFacts>,
}

/// A machine type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MachineType {
    /// `pc-q35-10.0`.
    pub name: String,
    /// `q35`.
    pub alias: Option<String>,
}

/// A QEMU under one accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AccelFacts {
    /// Kvm or Tcg.
    pub accel: Accel,
    /// `query-cpu-definitions`.
    pub cpu_models: Vec<CpuModel>,
    /// The features, by QEMU's names, that a guest can have here: those of `query-cpu-model-expansion` of `max` that
    /// are true (static: the full expansion names other properties too). None: not known.
    pub features: Option<BTreeSet<String>>,
}

/// Who runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM where it works, else TCG. Only in a definition: what runs is one of the others.
    #[default]
    Auto,
    /// The CPU.
    Kvm,
    /// QEMU.
    Tcg,
}

/// A CPU model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CpuModel {
    /// `EPYC-v4`.
    pub name: String,
    /// `unavailable-features`: what of it this host cannot give. Empty: it can be used.
    pub missing: Vec<String>,
}

/// A VM that a host knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VmFacts {
    /// Its name.
    pub name: String,
    /// What there is of it.
    pub presence: Presence,
}

/// What a host has of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// A guest, running or paused.
    Guest,
    /// A definition, and no QEMU.
    Stopped,
    /// A QEMU, or an entry in the journal, that a migration to this host left.
    Leftover {
        /// Which migration, if that is known.
        migration: Option<String>,
    },
}

/// How many migrations a host takes part in at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MigrationSlots {
    /// At most.
    pub limit: u32,
    /// How many migrations are under way.
    pub used: u32,
}

/// A file or block device of a guest, as a host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileFacts {
    /// As the guest's QEMU names it.
    pub path: PathBuf,
    /// Whether QEMU may read it.
    pub readable: bool,
    /// Whether QEMU may write it.
    pub writable: bool,
    /// Where it is.
    pub file_system: FileSystem,
    /// `ext4`, `nfs`...: for messages.
    pub file_system_name: String,
    /// What is mounted there, of a network file system: `nas:/export/vm` (proc_pid_mountinfo(5)).
    #[serde(default)]
    pub mounted_from: Option<String>,
    /// What a network file system calls the file (name_to_handle_at(2)), where it tells: of NFS, the server's handle.
    #[serde(default)]
    pub handle: Option<String>,
    /// st_dev: means something within one kernel only.
    pub device: u64,
    /// st_ino: on a network file system, the server's.
    pub inode: u64,
    /// A block device's own, worldwide name (`/sys/block/*/device/wwid`, a multipath or LVM UUID), where it has one.
    pub wwid: Option<String>,
}

/// What kind of file system, by statfs' magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// This kernel's alone: ext4, xfs, btrfs, tmpfs, overlay...
    Local,
    /// A server's or a cluster's: NFS, CIFS, Ceph, GFS2, OCFS2...
    Network,
    /// FUSE, 9p, a block device, and what nobody has heard of.
    Unknown,
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NicFacts {
    /// Its name.
    pub name: String,
    /// Its speed, where it tells.
    pub speed_bits_per_s: Option<u64>,
}

/// All bounds on what a QEMU gets on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Room {
    /// The bounds.
    pub limits: Vec<RoomLimit>,
    /// Bounds that could not be read, in words.
    pub unread: Vec<String>,
}

/// A bound on what QEMUs of a host get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoomLimit {
    /// Of what.
    pub resource: Resource,
    /// Whose, as in a sentence: `the control group /sys/fs/cgroup/machine.slice`. Empty: the host itself.
    pub owner: String,
    /// What sets it: `memory.max`.
    pub name: String,
    /// All there is.
    pub limit: u64,
    /// Of that, what is in use and cannot be given back.
    pub used: u64,
    /// Of the rest, what others were promised and have not used yet.
    pub promised: u64,
    /// Who was.
    pub promised_to: Vec<String>,
}

impl RoomLimit {
    /// Returns what is left for another.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used).saturating_sub(self.promised)
    }
}

/// What a limit is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Memory, in bytes.
    Ram,
    /// Memory that the kernel accounts before it is used, in bytes (`vm.overcommit_memory` 2).
    Commit,
    /// Huge pages of one size, in bytes.
    HugePages {
        /// The size of a page.
        page_bytes: u64,
    },
    /// Processes and threads.
    Tasks,
    /// Addresses of one process, in bytes (`RLIMIT_AS`).
    Addresses,
    /// Memory that one process may lock, in bytes (`RLIMIT_MEMLOCK`).
    LockedRam,
    /// Of a newer version of Skein: nothing is asked of it.
    #[serde(other)]
    Other,
}
