//! What was seen of a host, of a guest, and of the paths between two hosts.
//!
//! Everything here goes over a wire. A host's words about itself are claims: strings are shortened and made printable
//! as they arrive, and sums of its numbers saturate. The message that carries the lists bounds their length.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::claim::{Claim, claim};
use crate::composition::Composition;
use crate::definition::{Accel, Attachment, DiskFormat};
pub use crate::file_facts::{FileFacts, FileSystem};
pub use crate::qemu_version::QemuVersion;
use crate::room::{CopyRoom, Room, RoomNeed};

/// A host, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The host's name in the cluster.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// `/proc/sys/kernel/random/boot_id`. Two hosts with the same boot ID share a kernel, and so its local file
    /// systems.
    #[serde(deserialize_with = "claim")]
    pub boot_id: Option<String>,
    /// MemTotal, in bytes.
    pub ram_bytes: u64,
    /// MemAvailable, in bytes: what can be used without swapping.
    pub ram_available_bytes: u64,
    /// RAM of guests that left the host, kept for their way back, in bytes.
    #[serde(default)]
    pub kept_ram_bytes: u64,
    /// What bounds a QEMU that the agent starts, the host's memory among it. `None`: the agent is of a version that
    /// does not report it.
    #[serde(default)]
    pub room: Option<Room>,
    /// The host's pools of huge pages.
    pub hugepages: Vec<Hugepages>,
    /// The number of CPUs that are online.
    pub cpus: u32,
    /// The CPUs' vendor: `GenuineIntel`, `AuthenticAMD`...
    #[serde(deserialize_with = "claim")]
    pub cpu_vendor: String,
    /// The CPUs' flags, as in `/proc/cpuinfo`.
    #[serde(deserialize_with = "claim")]
    pub cpu_flags: BTreeSet<String>,
    /// Whether KVM works, or why not.
    #[serde(deserialize_with = "claim")]
    pub kvm: Result<(), String>,
    /// The QEMU that would run the guest (the definition's, if it names one), or why there is none.
    #[serde(deserialize_with = "claim")]
    pub qemu: Result<QemuFacts, String>,
    /// The bridges that are up.
    #[serde(deserialize_with = "claim")]
    pub bridges: BTreeSet<String>,
    /// The tap devices that a guest, or another program, uses.
    #[serde(deserialize_with = "claim")]
    pub taps_in_use: BTreeSet<String>,
    /// The VMs whose names are taken.
    pub vms: Vec<VmFacts>,
    /// The migrations to this host.
    pub incoming: MigrationSlots,
    /// The migrations from this host.
    pub outgoing: MigrationSlots,
    /// Whether the agent's journal can be written, or why not.
    #[serde(deserialize_with = "claim")]
    pub journal: Result<(), String>,
    /// Those of the guest's disks, kernel, initramfs and firmware that exist here.
    pub files: Vec<FileFacts>,
    /// SHA-256 of the contents of files that a QEMU reads as it starts, in hexadecimal digits.
    #[serde(default, deserialize_with = "claim")]
    pub digests: BTreeMap<PathBuf, String>,
    /// The host's NICs.
    pub nics: Vec<NicFacts>,
    /// The version of swtpm, which emulates guests' TPMs. `None`: swtpm is not installed.
    #[serde(default, deserialize_with = "claim")]
    pub swtpm: Option<String>,
    /// Why the host takes no guest now. `None`: it takes guests, or its agent is of a version that does not report it.
    #[serde(default, deserialize_with = "claim", skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

/// The files of a guest that two hosts look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestFiles {
    /// The files whose identity matters: disks, firmware, files that hold RAM.
    pub opened: Vec<PathBuf>,
    /// The files whose contents matter, too.
    pub loaded: Vec<PathBuf>,
}

impl HostFacts {
    pub(crate) fn digest(&self, path: &Path) -> Option<&str> {
        self.digests.get(path).map(String::as_str)
    }

    pub(crate) fn file(&self, path: &Path) -> Option<&FileFacts> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// A pool of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    /// The size of a page.
    pub page_bytes: u64,
    /// `nr_hugepages`.
    pub total: u64,
    /// `free_hugepages` less `resv_hugepages`.
    pub free: u64,
}

/// A QEMU program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QemuFacts {
    /// The path of the program.
    #[serde(deserialize_with = "claim")]
    pub program: PathBuf,
    /// The version, by the program's own word.
    pub version: QemuVersion,
    /// The machine types of `query-machines`.
    pub machines: Vec<MachineType>,
    /// What the program can do under each accelerator that works here.
    pub accels: Vec<AccelFacts>,
}

impl Claim for QemuFacts {
    // The fields were bounded when they arrived.
    fn bounded(self) -> Self {
        self
    }
}

/// A machine type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineType {
    /// The name: `pc-q35-10.0`.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// The alias: `q35`.
    #[serde(deserialize_with = "claim")]
    pub alias: Option<String>,
}

/// A QEMU under one accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccelFacts {
    /// The accelerator: KVM or TCG.
    pub accel: Accel,
    /// The CPU models of `query-cpu-definitions`.
    pub cpu_models: Vec<CpuModel>,
    /// The features, by QEMU's names, that a guest can have here: those of `query-cpu-model-expansion` of `max` that
    /// are true (static, since the full expansion names other properties, too). `None`: not known.
    #[serde(deserialize_with = "claim")]
    pub features: Option<BTreeSet<String>>,
}

/// A CPU model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuModel {
    /// The name: `EPYC-v4`.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// `unavailable-features`: the features of the model that this host cannot give. Empty: the model can be used.
    #[serde(deserialize_with = "claim")]
    pub missing: Vec<String>,
    /// How many features the model has; `None`: the model lacks some here, its name does not mean the same everywhere
    /// (an alias, `max`), or the host's agent does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_count: Option<u32>,
}

/// A VM that a host knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmFacts {
    /// The VM's name.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// What the host has of the VM.
    pub presence: Presence,
}

/// What a host has of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// The host has a guest, running or paused.
    Guest,
    /// The host has a definition, and no QEMU.
    Stopped,
    /// The host has a QEMU, or an entry in the journal, that a migration to this host left.
    Leftover {
        /// Which migration, if that is known.
        #[serde(deserialize_with = "claim")]
        migration: Option<String>,
    },
}

/// How many migrations a host takes part in at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationSlots {
    /// The most migrations at once.
    pub limit: u32,
    /// How many migrations are under way.
    pub used: u32,
}

impl MigrationSlots {
    /// Returns how many more migrations may begin.
    pub fn free(self) -> u32 {
        self.limit.saturating_sub(self.used)
    }
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicFacts {
    /// The NIC's name.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// The NIC's speed, where the NIC tells, or else what it was measured to carry.
    pub speed_bits_per_s: Option<u64>,
}

/// A path between source and target that works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFacts {
    /// The source's NIC.
    #[serde(deserialize_with = "claim")]
    pub local: String,
    /// The target's NIC.
    #[serde(deserialize_with = "claim")]
    pub remote: String,
    /// What the path carries: what was measured, or the slower NIC's speed.
    pub bits_per_s: Option<u64>,
    /// Whether the source's configuration excludes the path's network from guests.
    #[serde(default)]
    pub source_excludes: bool,
    /// Whether the target's configuration does.
    #[serde(default)]
    pub target_excludes: bool,
}

impl PathFacts {
    /// Returns whether the path may carry no guest.
    pub fn is_excluded(&self) -> bool {
        self.source_excludes || self.target_excludes
    }
}

/// A guest at the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFacts {
    /// The guest's name.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// Whether a program other than the agent started the guest's QEMU.
    pub adopted: bool,
    /// The version of the QEMU that runs the guest.
    pub qemu: QemuVersion,
    /// The versioned machine type: `pc-q35-10.0`.
    #[serde(deserialize_with = "claim")]
    pub machine_type: String,
    /// The accelerator: KVM or TCG.
    pub accel: Accel,
    /// The CPU model and flags: `host`, `EPYC-v4,+avx2`.
    #[serde(deserialize_with = "claim")]
    pub cpu: String,
    /// The features that the guest has, by the same names as [`AccelFacts::features`]. Empty: not known.
    #[serde(deserialize_with = "claim")]
    pub cpu_features: BTreeSet<String>,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// The guest's RAM.
    pub ram_bytes: u64,
    /// The RAM of the guest's devices: graphics cards, ROMs.
    #[serde(default)]
    pub device_bytes: u64,
    /// Whether other processes can map the guest's RAM (`share=on`).
    pub ram_shared: bool,
    /// The size of the huge pages below the guest's RAM.
    pub hugepages: Option<u64>,
    /// What QEMU names as in the way of a migration (`blocked-reasons` of `query-migrate`).
    #[serde(deserialize_with = "claim")]
    pub blockers: Vec<String>,
    /// The devices of the host that the guest was given (vfio, host USB), by QEMU's ids.
    #[serde(deserialize_with = "claim")]
    pub passed_through: Vec<String>,
    /// The guest's disks.
    pub disks: Vec<GuestDisk>,
    /// The files that QEMU read as it started, and does not move: the guest reads what the target's QEMU finds in them.
    #[serde(default, deserialize_with = "claim")]
    pub loaded: Vec<PathBuf>,
    /// The files that hold the guest's RAM, and that other processes may map (`memory-backend-file` with `share=on`).
    #[serde(default, deserialize_with = "claim")]
    pub ram_files: Vec<PathBuf>,
    /// The guest's NICs.
    pub nics: Vec<GuestNic>,
    /// All that the guest's QEMU reports the guest to be.
    #[serde(default)]
    pub composition: Composition,
    /// The devices that were plugged in while the guest ran: `virtio-blk-pci "late"`.
    #[serde(default, deserialize_with = "claim")]
    pub hot_plugged: Vec<String>,
    /// The monitors and files that the guest's QEMU has beside the agent's, and that the target's QEMU will not have:
    /// `-monitor unix:/run/web1`.
    #[serde(default, deserialize_with = "claim")]
    pub left_behind: Vec<String>,
    /// QEMU's run state: `running`, `paused`, `io-error`...
    #[serde(deserialize_with = "claim")]
    pub run_state: String,
    /// What the guest's copy takes of the source. `None`: not known.
    #[serde(default)]
    pub copy: Option<CopyRoom>,
    /// Whether QEMU locks the guest's RAM (`-overcommit mem-lock=on`).
    #[serde(default)]
    pub locks_ram: bool,
    /// The migration of the guest that is under way or in doubt.
    #[serde(deserialize_with = "claim")]
    pub migration: Option<String>,
    /// Whether the guest's QEMU is busy with a migration that is not the agent's: with another program's, or with one
    /// that is over for everybody but this QEMU.
    pub holds_migration: bool,
}

impl GuestFacts {
    /// Returns what a QEMU needs to run the guest.
    pub fn need(&self) -> RoomNeed {
        let Self { device_bytes, locks_ram, .. } = *self;
        RoomNeed { device_bytes, locks_ram, ..RoomNeed::new(self.ram_bytes, self.hugepages, self.cpus, self.accel) }
    }
}

/// A disk of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDisk {
    /// The image.
    #[serde(deserialize_with = "claim")]
    pub path: PathBuf,
    /// The image's format.
    pub format: DiskFormat,
    /// Whether the guest may only read.
    pub readonly: bool,
}

/// A NIC of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNic {
    /// What the NIC is plugged into. `None`: it needs nothing of a host (user networking).
    #[serde(deserialize_with = "claim")]
    pub attachment: Option<Attachment>,
    /// The tap of a NIC that is plugged into a bridge and was taken out of it since, and the bridge that the tap is in
    /// now. The bridge is empty if the tap is in none.
    #[serde(default, deserialize_with = "claim")]
    pub moved: Option<(String, String)>,
}

impl Claim for Attachment {
    fn bounded(self) -> Self {
        match self {
            Attachment::Bridge(name) => Attachment::Bridge(name.bounded()),
            Attachment::Tap(name) => Attachment::Tap(name.bounded()),
        }
    }
}
