//! Holds what a guest is made of, as values.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skein_inventory::QemuVersion;

/// The accelerator, which runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// QEMU runs the instructions, by translation.
    Tcg,
    /// The CPU runs the instructions, by `/dev/kvm`.
    Kvm,
}

impl Accel {
    /// Returns the accelerator as QEMU's command line has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }
}

/// A part of the guest's RAM, as the host has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDevice {
    /// The `-object` id; `None` for RAM without one.
    pub id: Option<String>,
    /// The size, in bytes.
    pub size: u64,
    /// Whether other processes can map the part.
    #[serde(default)]
    pub share: bool,
    /// The file that holds the part, by the hypervisor's word.
    #[serde(default)]
    pub file: Option<String>,
    /// The pages of the part.
    #[serde(default)]
    pub pages: MemoryPages,
}

/// The pages that a part of a guest's RAM is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MemoryPages {
    /// The pages are those of the file's file system.
    #[default]
    OfFile,
    /// The pages are the host's usual pages.
    Usual,
    /// The pages are huge, of this size; `None`: the host's usual huge pages.
    Huge(Option<u64>),
}

/// A node of QEMU's block layer: an image, or a file or device below one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockNode {
    /// The name; `#block…` if the node was given none.
    #[serde(rename = "node-name")]
    pub name: String,
    /// The driver: `qcow2`, `raw`; `file`, `host_device`, `nbd`, `rbd`...
    #[serde(rename = "drv")]
    pub driver: String,
    /// The file: a path, or a `json:` or `nbd://` description.
    #[serde(rename = "file")]
    pub filename: String,
    /// The image that this image is an overlay of.
    pub backing_file: Option<String>,
    /// Whether the node is only read.
    #[serde(rename = "ro")]
    pub read_only: bool,
}

/// A device that the command line asked for, or that was plugged in later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The id; `device[0]`… if the device was given none.
    pub id: String,
    /// The kind, as `virtio-net-pci`.
    pub kind: String,
}

impl Device {
    /// Returns whether the device is a device of the host (VFIO), which stays on its host.
    pub fn is_passed_through(&self) -> bool {
        self.kind.starts_with("vfio-")
    }
}

/// What a guest is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedGuest {
    /// The version of the guest's QEMU.
    pub version: QemuVersion,
    /// The accelerator.
    pub accel: Accel,
    /// The machine type, without alias: `pc-q35-7.2`.
    pub machine: String,
    /// The CPU model: `Haswell`, `max`.
    pub cpu_model: String,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// The CPU features that the guest has seen: those of its first CPU. A target must have them all. `ht` is left out,
    /// because it follows from the number of CPUs.
    pub cpu_features: BTreeSet<String>,
    /// The bytes of RAM, with what was plugged in later.
    pub memory_bytes: u64,
    /// The parts of the RAM; empty if no `-object` gives QEMU the RAM.
    pub memory: Vec<MemoryDevice>,
    /// The devices, without those that belong to every machine of the guest's type.
    pub devices: Vec<Device>,
    /// The reasons why the guest cannot be migrated, by the hypervisor's word; see
    /// [`Inspect::blocked_reasons`](super::inspect::Inspect::blocked_reasons).
    pub blocked_reasons: Vec<String>,
}

/// The size of a guest's RAM, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RamSize {
    /// The RAM that the guest was started with.
    pub base_bytes: u64,
    /// The RAM that was plugged in later.
    pub plugged_bytes: u64,
}

impl RamSize {
    /// Returns the size of all RAM.
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
    /// The hypervisor misses no page.
    Exact,
    /// The hypervisor may miss pages of RAM blocks that are no multiple of 256 KiB.
    MissesUnalignedBlocks,
    /// The hypervisor may miss pages of any RAM block.
    MissesAllBlocks,
}
