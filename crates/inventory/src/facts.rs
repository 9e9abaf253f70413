//! What was seen of a host, of a guest, and of the paths between two hosts.
//!
//! Everything here goes over a wire. A host's words about itself are claims: strings are shortened and made printable
//! as they arrive, sums of its numbers saturate. How long the lists are is bounded by the message that carries them.

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
    /// Its name in the cluster.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// `/proc/sys/kernel/random/boot_id`: two hosts with the same one share a kernel, and so its local file systems.
    #[serde(deserialize_with = "claim")]
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
    #[serde(deserialize_with = "claim")]
    pub cpu_vendor: String,
    /// As in `/proc/cpuinfo`.
    #[serde(deserialize_with = "claim")]
    pub cpu_flags: BTreeSet<String>,
    /// Whether KVM works, or why not.
    #[serde(deserialize_with = "claim")]
    pub kvm: Result<(), String>,
    /// The QEMU that would run the guest (the definition's, if it names one), or why there is none.
    #[serde(deserialize_with = "claim")]
    pub qemu: Result<QemuFacts, String>,
    /// Bridges that are up.
    #[serde(deserialize_with = "claim")]
    pub bridges: BTreeSet<String>,
    /// Tap devices that a guest, or somebody else, uses.
    #[serde(deserialize_with = "claim")]
    pub taps_in_use: BTreeSet<String>,
    /// Names that are taken.
    pub vms: Vec<VmFacts>,
    /// Migrations to this host.
    pub incoming: MigrationSlots,
    /// Migrations from this host.
    pub outgoing: MigrationSlots,
    /// Whether the agent's journal can be written, or why not.
    #[serde(deserialize_with = "claim")]
    pub journal: Result<(), String>,
    /// Of the guest's disks, kernel, initramfs and firmware those that exist here.
    pub files: Vec<FileFacts>,
    /// SHA-256 of what is in files that a QEMU reads as it starts, in hexadecimal digits.
    #[serde(default, deserialize_with = "claim")]
    pub digests: BTreeMap<PathBuf, String>,
    /// Its NICs.
    pub nics: Vec<NicFacts>,
    /// The version of swtpm, which emulates guests' TPMs; none: it is not installed.
    #[serde(default, deserialize_with = "claim")]
    pub swtpm: Option<String>,
}

/// Files of a guest, which two hosts look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestFiles {
    /// What they are is of interest: disks, firmware, what RAM is in.
    pub opened: Vec<PathBuf>,
    /// What is in them is of interest, too.
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
    /// Size of a page.
    pub page_bytes: u64,
    /// `nr_hugepages`.
    pub total: u64,
    /// `free_hugepages` less `resv_hugepages`.
    pub free: u64,
}

/// A QEMU program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QemuFacts {
    /// The program.
    #[serde(deserialize_with = "claim")]
    pub program: PathBuf,
    /// By its own word.
    pub version: QemuVersion,
    /// `query-machines`.
    pub machines: Vec<MachineType>,
    /// What it can do under each accelerator that works here.
    pub accels: Vec<AccelFacts>,
}

impl Claim for QemuFacts {
    // Its fields have done it.
    fn bounded(self) -> Self {
        self
    }
}

/// A machine type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineType {
    /// `pc-q35-10.0`.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// `q35`.
    #[serde(deserialize_with = "claim")]
    pub alias: Option<String>,
}

/// A QEMU under one accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccelFacts {
    /// Kvm or Tcg.
    pub accel: Accel,
    /// `query-cpu-definitions`.
    pub cpu_models: Vec<CpuModel>,
    /// The features, by QEMU's names, that a guest can have here: those of `query-cpu-model-expansion` of `max` that
    /// are true (static: the full expansion names other properties too). None: not known.
    #[serde(deserialize_with = "claim")]
    pub features: Option<BTreeSet<String>>,
}

/// A CPU model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuModel {
    /// `EPYC-v4`.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// `unavailable-features`: what of it this host cannot give. Empty: it can be used.
    #[serde(deserialize_with = "claim")]
    pub missing: Vec<String>,
}

/// A VM that a host knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmFacts {
    /// Its name.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// What there is of it.
    pub presence: Presence,
}

/// What a host has of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// A guest, running or paused.
    Guest,
    /// A definition, and no QEMU.
    Stopped,
    /// A QEMU, or an entry in the journal, that a migration to this host left.
    Leftover {
        /// Which migration, if that is known.
        #[serde(deserialize_with = "claim")]
        migration: Option<String>,
    },
}

/// How many migrations a host takes part in at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationSlots {
    /// At most.
    pub limit: u32,
    /// How many migrations are under way.
    pub used: u32,
}

impl MigrationSlots {
    /// How many more.
    pub fn free(self) -> u32 {
        self.limit.saturating_sub(self.used)
    }
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicFacts {
    /// Its name.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// Its speed, where it tells.
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
    /// What it carries: the slower NIC's speed, or what was measured.
    pub bits_per_s: Option<u64>,
}

/// A guest at the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFacts {
    /// Its name.
    #[serde(deserialize_with = "claim")]
    pub name: String,
    /// Whether somebody else started its QEMU.
    pub adopted: bool,
    /// Of the QEMU that runs it.
    pub qemu: QemuVersion,
    /// Versioned: `pc-q35-10.0`.
    #[serde(deserialize_with = "claim")]
    pub machine_type: String,
    /// Kvm or Tcg.
    pub accel: Accel,
    /// Model and flags: `host`, `EPYC-v4,+avx2`.
    #[serde(deserialize_with = "claim")]
    pub cpu: String,
    /// Features that it has, by the same names as [`AccelFacts::features`]. Empty: not known.
    #[serde(deserialize_with = "claim")]
    pub cpu_features: BTreeSet<String>,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Its RAM.
    pub ram_bytes: u64,
    /// RAM of its devices: graphics cards, ROMs.
    #[serde(default)]
    pub device_bytes: u64,
    /// Whether other processes can map its RAM (`share=on`).
    pub ram_shared: bool,
    /// Size of the huge pages below its RAM.
    pub hugepages: Option<u64>,
    /// What QEMU names as in the way of a migration (`blocked-reasons` of `query-migrate`).
    #[serde(deserialize_with = "claim")]
    pub blockers: Vec<String>,
    /// Devices of the host that it was given (vfio, host USB), by QEMU's ids.
    #[serde(deserialize_with = "claim")]
    pub passed_through: Vec<String>,
    /// Its disks.
    pub disks: Vec<GuestDisk>,
    /// Files that its QEMU read as it started, and that QEMU does not move: the guest reads what the target's QEMU
    /// finds in them.
    #[serde(default, deserialize_with = "claim")]
    pub loaded: Vec<PathBuf>,
    /// Files that hold its RAM, and that other processes may map (`memory-backend-file` with `share=on`).
    #[serde(default, deserialize_with = "claim")]
    pub ram_files: Vec<PathBuf>,
    /// Its NICs.
    pub nics: Vec<GuestNic>,
    /// All that its QEMU reports it to be.
    #[serde(default)]
    pub composition: Composition,
    /// Devices that were plugged in while it ran: `virtio-blk-pci "late"`.
    #[serde(default, deserialize_with = "claim")]
    pub hot_plugged: Vec<String>,
    /// Monitors and files that its QEMU has beside the agent's, and that the target's will not have:
    /// `-monitor unix:/run/web1`.
    #[serde(default, deserialize_with = "claim")]
    pub left_behind: Vec<String>,
    /// QEMU's run state: `running`, `paused`, `io-error`...
    #[serde(deserialize_with = "claim")]
    pub run_state: String,
    /// What its copy takes of the source; none: not known.
    #[serde(default)]
    pub copy: Option<CopyRoom>,
    /// Whether its QEMU locks its RAM (`-overcommit mem-lock=on`).
    #[serde(default)]
    pub locks_ram: bool,
    /// A migration of it that is under way or in doubt.
    #[serde(deserialize_with = "claim")]
    pub migration: Option<String>,
    /// Its QEMU is busy with a migration that is not the agent's: somebody else's, or one that is over for everybody
    /// but this QEMU.
    pub holds_migration: bool,
}

impl GuestFacts {
    /// What a QEMU needs to run it.
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
    /// What is in it.
    pub format: DiskFormat,
    /// Whether the guest may only read.
    pub readonly: bool,
}

/// A NIC of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNic {
    /// What it is plugged into; none: what needs nothing of a host (user networking).
    #[serde(deserialize_with = "claim")]
    pub attachment: Option<Attachment>,
    /// The tap of a NIC that is plugged into a bridge, where somebody took it out since, and the bridge that it is in
    /// now, if it is in one.
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
