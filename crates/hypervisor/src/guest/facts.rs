//! What a guest is made of, as values.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skein_inventory::QemuVersion;

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// QEMU, by translation.
    Tcg,
    /// The CPU, by `/dev/kvm`.
    Kvm,
}

impl Accel {
    /// As QEMU's command line has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }
}

/// Part of the guest's RAM, as the host has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDevice {
    /// Its `-object` id; none for RAM without one.
    pub id: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Whether other processes can map it.
    #[serde(default)]
    pub share: bool,
    /// The file that it is in, by the hypervisor's word.
    #[serde(default)]
    pub file: Option<String>,
    /// The pages that it is made of.
    #[serde(default)]
    pub pages: MemoryPages,
}

/// The pages that a part of a guest's RAM is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MemoryPages {
    /// Those of the file system that it is in.
    #[default]
    OfFile,
    /// The host's usual ones.
    Usual,
    /// Huge ones, of this size; none: the host's usual huge ones.
    Huge(Option<u64>),
}

/// A node of QEMU's block layer: an image, or a file or device below one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockNode {
    /// Its name; `#block…` if it was given none.
    #[serde(rename = "node-name")]
    pub name: String,
    /// `qcow2`, `raw`; `file`, `host_device`, `nbd`, `rbd`...
    #[serde(rename = "drv")]
    pub driver: String,
    /// A path, or a `json:` or `nbd://` description.
    #[serde(rename = "file")]
    pub filename: String,
    /// The image that it is an overlay of.
    pub backing_file: Option<String>,
    /// Whether it is only read.
    #[serde(rename = "ro")]
    pub read_only: bool,
}

/// A device that was asked for on the command line or plugged in later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its id; `device[0]`… if it was given none.
    pub id: String,
    /// `virtio-net-pci`.
    pub kind: String,
}

impl Device {
    /// Whether it is a device of the host (VFIO), which stays on its host.
    pub fn is_passed_through(&self) -> bool {
        self.kind.starts_with("vfio-")
    }
}

/// What a guest is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedGuest {
    /// Its QEMU's version.
    pub version: QemuVersion,
    /// What runs its instructions.
    pub accel: Accel,
    /// Its machine type, without alias: `pc-q35-7.2`.
    pub machine: String,
    /// Its CPU model: `Haswell`, `max`.
    pub cpu_model: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// The CPU features that it has seen: those of its first CPU. A target must have them all. Without `ht`, which
    /// follows from the number of CPUs.
    pub cpu_features: BTreeSet<String>,
    /// Bytes of RAM, with what was plugged in later.
    pub memory_bytes: u64,
    /// Where its RAM is; empty if QEMU has it from no `-object`.
    pub memory: Vec<MemoryDevice>,
    /// Its devices, but those that belong to every machine of its type.
    pub devices: Vec<Device>,
    /// What keeps it here, by the hypervisor's word; see
    /// [`Inspect::blocked_reasons`](super::inspect::Inspect::blocked_reasons).
    pub blocked_reasons: Vec<String>,
}

/// How much RAM a guest has, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RamSize {
    /// What it was started with.
    pub base_bytes: u64,
    /// What was plugged in later.
    pub plugged_bytes: u64,
}

impl RamSize {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.base_bytes.saturating_add(self.plugged_bytes)
    }
}

/// The images of a guest's drives, to be compared with those of another moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSnapshot(pub Value);

/// The images of a guest's drives and its devices, to be compared with those of another moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSnapshot(pub Vec<Value>);

/// How exactly a hypervisor knows which pages its guest has written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirtyTracking {
    /// It misses none.
    Exact,
    /// It may miss some of RAM blocks that are no multiple of 256 KiB.
    MissesUnalignedBlocks,
    /// It may miss some of any RAM block.
    MissesAllBlocks,
}
