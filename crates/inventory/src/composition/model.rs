//! The parts of a guest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::file_facts::FileFacts;
use crate::qemu_version::QemuVersion;

/// What a guest is composed of. See the [module](super).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Composition {
    /// The QEMU's version: devices have more properties in a newer one.
    pub qemu: Option<QemuVersion>,
    /// The machine type without alias: `pc-q35-10.0`.
    pub machine: String,
    /// Devices on buses, as a tree.
    pub devices: Vec<Device>,
    /// Devices that the command line or somebody since asked for, also those without a bus: QOM name and type.
    pub peripherals: BTreeMap<String, String>,
    /// vCPUs that are plugged, by their places: `socket-id 0, core-id 1, thread-id 0`.
    pub vcpus: BTreeSet<String>,
    /// RAM by its backends.
    pub ram: Vec<RamBackend>,
    /// Memory devices (`pc-dimm`, `nvdimm`, `virtio-mem`...), each as a sentence of its fields.
    pub memory_devices: BTreeSet<String>,
    /// Drives that a device of the guest has.
    pub drives: Vec<Drive>,
    /// Network backends, and NICs: name and type.
    pub network: BTreeMap<String, String>,
    /// TPM backends: id, and type with model.
    pub tpms: BTreeMap<String, String>,
    /// User-creatable objects: id and type.
    pub objects: BTreeMap<String, String>,
    /// Block jobs and exports of block nodes, each in words.
    pub activities: BTreeSet<String>,
    /// The files below the drives, as this host sees them. Empty where nobody looked.
    pub files: Vec<OpenFile>,
    /// Whose files these are: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<String>,
}

/// A device on a bus.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Device {
    /// The bus: `pcie.0`.
    pub bus: String,
    /// QEMU's name of its kind: `virtio-blk-pci`.
    pub driver: String,
    /// Its id; empty if it was given none.
    pub id: String,
    /// Its properties, as `info qtree` prints them.
    pub properties: BTreeMap<String, String>,
    /// What its own buses hold.
    pub children: Vec<Device>,
}

impl Device {
    /// This device and all on its buses.
    pub fn all(&self) -> Box<dyn Iterator<Item = &Device> + '_> {
        Box::new(std::iter::once(self).chain(self.children.iter().flat_map(Device::all)))
    }
}

/// A part of the guest's RAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamBackend {
    /// Its object's id; empty if it has none.
    pub id: String,
    /// Bytes.
    pub bytes: u64,
}

/// A drive of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// The device: its id or QOM path.
    pub device: String,
    /// The name of the drive (`-drive id=`); empty where a node stands in its place.
    pub name: String,
    /// Whether its medium may be changed while the guest runs.
    pub removable: bool,
    /// What is in it; none: it is empty.
    pub medium: Option<Medium>,
}

/// What is in a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Medium {
    /// The image that the guest sees first, then the one that it is an overlay of, and so on.
    pub chain: Vec<Image>,
    /// What is below beside the files of the chain: the data file of a qcow2, the children of a quorum. The way there
    /// from the first image's node (`data-file`, `backing/data-file`), and what QEMU calls the file.
    #[serde(default)]
    pub beside: BTreeMap<String, String>,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// Limits and cache modes, which QEMU does not move: name and value.
    pub tuning: BTreeMap<String, String>,
    /// Dirty bitmaps that only this QEMU has.
    pub bitmaps: BTreeSet<String>,
}

impl Medium {
    /// Whether a file on this way is only read: it is of an image that another is an overlay of.
    pub fn is_backing(way: &str) -> bool {
        way.split('/').any(|step| step == "backing")
    }

    /// The name of the image that the guest sees first.
    pub fn filename(&self) -> &str {
        self.chain.first().map_or("", |image| &image.filename)
    }
}

/// An image of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// QEMU's driver: `qcow2`, `raw`.
    pub format: String,
    /// As QEMU calls it: a path, relative perhaps, or a description (`json:`, `nbd://`).
    pub filename: String,
    /// Bytes that the guest sees.
    pub virtual_bytes: u64,
}

/// A file below a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// As QEMU calls it.
    pub filename: String,
    /// What is at that path, as QEMU's process sees it; none: nothing is, or its file system does not answer.
    pub facts: Option<FileFacts>,
    /// Whether that is what the process has open.
    pub is_open: bool,
    /// Whether the agent keeps it for the guest, and what is in it arrives with the guest: UEFI's variables. Each host
    /// has its own.
    #[serde(default)]
    pub moves: bool,
}

/// Whether a device has no id but a number in QOM, in the order in which such devices were made: `device[3]`.
pub fn is_numbered(id: &str) -> bool {
    id.starts_with("device[")
}

impl Composition {
    /// The file that QEMU calls so.
    pub fn file(&self, filename: &str) -> Option<&OpenFile> {
        self.files.iter().find(|file| file.filename == filename)
    }

    /// The names of all files below all drives, each once.
    pub fn filenames(&self) -> BTreeSet<&str> {
        let media = self.drives.iter().filter_map(|drive| drive.medium.as_ref());
        let names = media.flat_map(|medium| {
            let images = medium.chain.iter().map(|image| &image.filename);
            images.chain(medium.beside.values())
        });
        names.map(String::as_str).collect()
    }

    /// The same without what only a source's QEMU does, and without what was seen of its files: what its command line
    /// makes again.
    pub fn as_launched(&self) -> Composition {
        Composition { activities: BTreeSet::new(), files: Vec::new(), boot_id: None, ..self.clone() }
    }
}
