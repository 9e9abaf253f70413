//! The parts of a guest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::file_facts::FileFacts;
use crate::qemu_version::QemuVersion;

/// What a guest is composed of. See the [module](super).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Composition {
    /// The QEMU's version. Devices have more properties in a newer QEMU.
    pub qemu: Option<QemuVersion>,
    /// The machine type without alias: `pc-q35-10.0`.
    pub machine: String,
    /// The devices on buses, as a tree.
    pub devices: Vec<Device>,
    /// The devices that the command line or a later command asked for, also those without a bus: QOM name and type.
    pub peripherals: BTreeMap<String, String>,
    /// The vCPUs that are plugged, by their places: `socket-id 0, core-id 1, thread-id 0`.
    pub vcpus: BTreeSet<String>,
    /// The RAM by its backends.
    pub ram: Vec<RamBackend>,
    /// The memory devices (`pc-dimm`, `nvdimm`, `virtio-mem`...), each as a sentence of its fields.
    pub memory_devices: BTreeSet<String>,
    /// The drives that a device of the guest has.
    pub drives: Vec<Drive>,
    /// The network backends and NICs: name and type.
    pub network: BTreeMap<String, String>,
    /// The TPM backends: id, and type with model.
    pub tpms: BTreeMap<String, String>,
    /// The user-creatable objects: id and type.
    pub objects: BTreeMap<String, String>,
    /// The block jobs and the exports of block nodes, each in words.
    pub activities: BTreeSet<String>,
    /// The files below the drives, as this host sees them. Empty where no agent looked.
    pub files: Vec<OpenFile>,
    /// The kernel that has these files: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<String>,
}

/// A device on a bus.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Device {
    /// The bus: `pcie.0`.
    pub bus: String,
    /// QEMU's name of the device's kind: `virtio-blk-pci`.
    pub driver: String,
    /// The device's id. Empty if the device was given none.
    pub id: String,
    /// The device's properties, as `info qtree` prints them.
    pub properties: BTreeMap<String, String>,
    /// The devices on the device's own buses.
    pub children: Vec<Device>,
}

impl Device {
    /// Returns this device and all devices on its buses.
    pub fn all(&self) -> Box<dyn Iterator<Item = &Device> + '_> {
        Box::new(std::iter::once(self).chain(self.children.iter().flat_map(Device::all)))
    }
}

/// A part of the guest's RAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamBackend {
    /// The id of the RAM's object. Empty if the object has none.
    pub id: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// A drive of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// The device: its id or QOM path.
    pub device: String,
    /// The name of the drive (`-drive id=`). Empty where a node stands in its place.
    pub name: String,
    /// Whether the medium may be changed while the guest runs.
    pub removable: bool,
    /// The medium in the drive. `None`: the drive is empty.
    pub medium: Option<Medium>,
}

/// The medium in a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Medium {
    /// The image that the guest sees first, then the image that it is an overlay of, and so on.
    pub chain: Vec<Image>,
    /// The files that are below beside those of the chain: the data file of a qcow2, the children of a quorum. A key is
    /// the way there from the first image's node (`data-file`, `backing/data-file`), a value is what QEMU calls the
    /// file.
    #[serde(default)]
    pub beside: BTreeMap<String, String>,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// The limits and cache modes, which QEMU does not move: name and value.
    pub tuning: BTreeMap<String, String>,
    /// The dirty bitmaps that only this QEMU has.
    pub bitmaps: BTreeSet<String>,
}

impl Medium {
    /// Returns whether a file on this way is only read, since it is of an image that another is an overlay of.
    pub fn is_backing(way: &str) -> bool {
        way.split('/').any(|step| step == "backing")
    }

    /// Returns the name of the image that the guest sees first.
    pub fn filename(&self) -> &str {
        self.chain.first().map_or("", |image| &image.filename)
    }
}

/// An image of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// QEMU's driver: `qcow2`, `raw`.
    pub format: String,
    /// The file as QEMU calls it: a path, relative perhaps, or a description (`json:`, `nbd://`).
    pub filename: String,
    /// The bytes that the guest sees.
    pub virtual_bytes: u64,
}

/// A file below a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// The file as QEMU calls it.
    pub filename: String,
    /// What is at that path, as QEMU's process sees it. `None`: nothing is there, or its file system does not answer.
    pub facts: Option<FileFacts>,
    /// Whether that is what the process has open.
    pub is_open: bool,
    /// Whether the agent keeps the file for the guest, and its contents arrive with the guest: UEFI's variables. Each
    /// host has its own.
    #[serde(default)]
    pub moves: bool,
}

/// Returns whether a device has no id but a number in QOM, in the order in which such devices were made: `device[3]`.
pub fn is_numbered(id: &str) -> bool {
    id.starts_with("device[")
}

impl Composition {
    /// Returns the file that QEMU calls so.
    pub fn file(&self, filename: &str) -> Option<&OpenFile> {
        self.files.iter().find(|file| file.filename == filename)
    }

    /// Returns the names of all files below all drives, each once.
    pub fn filenames(&self) -> BTreeSet<&str> {
        let media = self.drives.iter().filter_map(|drive| drive.medium.as_ref());
        let names = media.flat_map(|medium| {
            let images = medium.chain.iter().map(|image| &image.filename);
            images.chain(medium.beside.values())
        });
        names.map(String::as_str).collect()
    }

    /// Returns what the command line makes again: the composition without what only a source's QEMU does, and without
    /// what was seen of its files.
    pub fn as_launched(&self) -> Composition {
        Composition { activities: BTreeSet::new(), files: Vec::new(), boot_id: None, ..self.clone() }
    }
}
