//! Holds the facts of a host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The facts of a host, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostFacts {
    /// The host's name in the cluster.
    pub name: String,
    /// `/proc/sys/kernel/random/boot_id`. Two hosts with the same id share a kernel, and so its local file systems.
    pub boot_id: Option<String>,
    /// MemTotal.
    pub ram_bytes: u64,
    /// MemAvailable: what can be used without swapping.
    pub ram_available_bytes: u64,
    /// The RAM of guests that left, kept for their way back.
    #[serde(default)]
    pub kept_ram_bytes: u64,
    /// The bounds of a QEMU that the host's agent starts, its memory among them; `None`: the agent's version does not
    /// tell.
    #[serde(default)]
    pub room: Option<Room>,
    /// The pools of huge pages.
    pub hugepages: Vec<Hugepages>,
    /// The CPUs that are online.
    pub cpus: u32,
    /// `GenuineIntel`, `AuthenticAMD`...
    pub cpu_vendor: String,
    /// The flags, as in `/proc/cpuinfo`.
    pub cpu_flags: BTreeSet<String>,
    /// Whether KVM works, or the reason why not.
    pub kvm: Result<(), String>,
    /// The QEMU that would run the guest (the QEMU that the definition names, if any), or the reason why there is none.
    pub qemu: Result<QemuFacts, String>,
    /// The bridges that are up.
    pub bridges: BTreeSet<String>,
    /// The tap devices that a guest or another program uses.
    pub taps_in_use: BTreeSet<String>,
    /// The VMs whose names are taken.
    pub vms: Vec<VmFacts>,
    /// The slots of migrations to this host.
    pub incoming: MigrationSlots,
    /// The slots of migrations from this host.
    pub outgoing: MigrationSlots,
    /// Whether the agent's journal can be written, or the reason why not.
    pub journal: Result<(), String>,
    /// The guest's disks, kernel, initramfs and firmware that exist here.
    pub files: Vec<FileFacts>,
    /// The SHA-256 of files that a QEMU reads as it starts, in hexadecimal digits.
    #[serde(default)]
    pub digests: BTreeMap<PathBuf, String>,
    /// The host's NICs.
    pub nics: Vec<NicFacts>,
    /// The version of swtpm, which emulates guests' TPMs; `None`: not installed.
    #[serde(default)]
    pub swtpm: Option<String>,
    /// Why the host takes no guest now; `None`: the host takes guests, or the agent's version does not tell.
    #[serde(default)]
    pub closed: Option<String>,
}

/// QEMU's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QemuVersion {
    /// The 10 of 10.0.2.
    pub major: u32,
    /// The 0 of 10.0.2.
    pub minor: u32,
    /// The 2 of 10.0.2.
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
    /// The size of a page, in bytes.
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
    /// The program's path.
    pub program: PathBuf,
    /// The version by QEMU's own word.
    pub version: QemuVersion,
    /// The machine types, by `query-machines`.
    pub machines: Vec<MachineType>,
    /// What QEMU can do under each accelerator that works here.
    pub accels: Vec<AccelFacts>,
}

/// A machine type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MachineType {
    /// The name, as `pc-q35-10.0`.
    pub name: String,
    /// The alias, as `q35`.
    pub alias: Option<String>,
}

/// A QEMU under one accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AccelFacts {
    /// The accelerator: KVM or TCG.
    pub accel: Accel,
    /// The CPU models, by `query-cpu-definitions`.
    pub cpu_models: Vec<CpuModel>,
    /// The features, by QEMU's names, that a guest can have here: those of `query-cpu-model-expansion` of `max` that
    /// are true (static: the full expansion names other properties, too). `None`: not known.
    pub features: Option<BTreeSet<String>>,
}

/// What executes a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM where KVM works, else TCG. Only a definition says this; what runs is KVM or TCG.
    #[default]
    Auto,
    /// The host's CPU executes the instructions.
    Kvm,
    /// QEMU executes the instructions.
    Tcg,
}

/// A CPU model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CpuModel {
    /// The name, as `EPYC-v4`.
    pub name: String,
    /// The features of the model that this host cannot give, by `unavailable-features`. Empty: the model can be used.
    pub missing: Vec<String>,
    /// How many features the model has; `None`: the model lacks some here, its name does not mean the same everywhere
    /// (an alias, `max`), or the agent's version does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_count: Option<u32>,
}

/// A VM that a host knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VmFacts {
    /// The VM's name.
    pub name: String,
    /// What the host has of the VM.
    pub presence: Presence,
}

/// What a host has of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// The host has a guest, running or paused.
    Guest,
    /// The host has a definition, and no QEMU.
    Stopped,
    /// The host has a QEMU, or an entry in the journal, that a migration to this host left.
    Leftover {
        /// The migration, if it is known.
        migration: Option<String>,
    },
}

/// The slots of migrations that a host takes part in at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MigrationSlots {
    /// The most migrations at once.
    pub limit: u32,
    /// How many migrations are under way.
    pub used: u32,
}

/// A file or block device of a guest, as a host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileFacts {
    /// The path by which the guest's QEMU names the file.
    pub path: PathBuf,
    /// Whether QEMU may read it.
    pub readable: bool,
    /// Whether QEMU may write it.
    pub writable: bool,
    /// The kind of file system that the file lies on.
    pub file_system: FileSystem,
    /// The file system's name, as `ext4` or `nfs`, for messages.
    pub file_system_name: String,
    /// The mounted export of a network file system, as `nas:/export/vm` (proc_pid_mountinfo(5)).
    #[serde(default)]
    pub mounted_from: Option<String>,
    /// The network file system's own name of the file (name_to_handle_at(2)), if it has one: for NFS, the server's
    /// handle.
    #[serde(default)]
    pub handle: Option<String>,
    /// The file's st_dev, which means something within one kernel only.
    pub device: u64,
    /// The file's st_ino; on a network file system, the server's.
    pub inode: u64,
    /// The block device's own, worldwide name (`/sys/block/*/device/wwid`, a multipath or LVM UUID), if the device has
    /// one.
    pub wwid: Option<String>,
}

/// A kind of file system, by statfs' magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// The file system is this kernel's alone: ext4, xfs, btrfs, tmpfs, overlay...
    Local,
    /// The file system is a server's or a cluster's: NFS, CIFS, Ceph, GFS2, OCFS2...
    Network,
    /// The file system may be either: FUSE, 9p, a block device, and unknown kinds.
    Unknown,
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NicFacts {
    /// The NIC's name.
    pub name: String,
    /// The NIC's speed, if its driver tells.
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
    /// The limited resource.
    pub resource: Resource,
    /// The owner of the limit, as in a sentence: `the control group /sys/fs/cgroup/machine.slice`. Empty: the host
    /// itself.
    pub owner: String,
    /// The setting that makes the limit, as `memory.max`.
    pub name: String,
    /// How much there is altogether.
    pub limit: u64,
    /// How much is in use and cannot be given back.
    pub used: u64,
    /// How much of the rest was promised to others, who have not used it yet.
    pub promised: u64,
    /// The guests that have the promises.
    pub promised_to: Vec<String>,
}

impl RoomLimit {
    /// Returns how much is left for another guest.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used).saturating_sub(self.promised)
    }
}

/// A resource that a limit bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Memory, in bytes.
    Ram,
    /// Memory that the kernel accounts before its use, in bytes (`vm.overcommit_memory` 2).
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
    /// A resource of a newer version of Skein. Nothing is asked of it.
    #[serde(other)]
    Other,
}
