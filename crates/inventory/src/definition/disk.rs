//! `[[disk]]` and `[[cdrom]]`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::names::check_path;
use super::values::{Line, ROOT_KEYS, VALUE_BYTES_MAX, is_q35, path, word};
use crate::toml_reader::{Reader, Table, Value};

/// The most disks.
pub const DISKS_MAX: usize = 64;
/// The most CD drives.
pub const CDROMS_MAX: usize = 16;
/// The most controllers of a kind.
const CONTROLLERS_MAX: u64 = 16;
/// The order of disks in which the firmware tries to boot from them.
const BOOT_INDEX: std::ops::RangeInclusive<u64> = 0..=255;

/// An image's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// The bytes are those of the disk.
    Raw,
    /// QEMU's format.
    Qcow2,
}

/// How QEMU uses the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// QEMU bypasses the cache (O_DIRECT): two hosts see the same bytes.
    #[default]
    None,
    /// QEMU uses the cache, for file systems without O_DIRECT.
    Writeback,
}

const FORMATS: [(&str, DiskFormat); 2] = [("raw", DiskFormat::Raw), ("qcow2", DiskFormat::Qcow2)];
const CACHES: [(&str, Cache); 2] = [("none", Cache::None), ("writeback", Cache::Writeback)];

/// A disk on storage that source and target share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The absolute path of the image or the block device.
    pub path: PathBuf,
    /// The image's format.
    pub format: DiskFormat,
    /// Whether the guest may only read.
    pub readonly: bool,
    /// How the disk is cached.
    pub cache: Cache,
    /// How the guest sees the disk, and how QEMU reads it. Left out where it is the default, as older versions know it.
    #[serde(default, skip_serializing_if = "DiskOptions::is_default")]
    pub options: DiskOptions,
}

/// How the guest sees a disk, and how QEMU reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskOptions {
    /// What the disk is plugged into.
    pub bus: Bus,
    /// Which controller of that kind, where several have room for several disks each.
    pub controller: u8,
    /// The disk's serial number.
    pub serial: Option<String>,
    /// The worldwide name of a SCSI or SATA disk.
    pub wwn: Option<u64>,
    /// Whether the guest takes a SCSI or SATA disk for a disk without moving parts.
    pub ssd: bool,
    /// The place in the boot order. The firmware tries disks with a lower number first.
    pub boot_index: Option<u8>,
    /// Whether what the guest discards is given back to the storage.
    pub discard: bool,
    /// How QEMU reads and writes. `None`: QEMU's default, threads.
    pub io: Option<Io>,
    /// Whether a thread of its own serves the disk (or the controller of a SCSI disk).
    pub iothread: bool,
}

impl DiskOptions {
    fn is_default(&self) -> bool {
        *self == DiskOptions::default()
    }
}

/// What a disk or CD drive is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bus {
    /// A PCI device of its own.
    #[default]
    VirtioBlk,
    /// A virtio SCSI controller.
    VirtioScsi,
    /// An AHCI controller.
    Sata,
    /// The PIIX controller of an i440FX machine.
    Ide,
    /// An NVMe controller of its own. QEMU cannot move such a controller (`unmigratable` in its hw/nvme/ctrl.c).
    Nvme,
}

impl Bus {
    /// Returns how many disks and CD drives a controller has room for: hw/scsi/virtio-scsi.c (VIRTIO_SCSI_MAX_TARGET),
    /// hw/ide/ich.c (six ports), hw/ide/piix.c (two channels with two devices each).
    fn room(self) -> usize {
        match self {
            Bus::VirtioScsi => 255,
            Bus::Sata => 6,
            Bus::Ide => 4,
            Bus::VirtioBlk | Bus::Nvme => usize::MAX,
        }
    }
}

/// How QEMU reads and writes a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// QEMU has a pool of threads.
    Threads,
    /// QEMU uses the kernel's own asynchronous I/O, without the page cache only.
    Native,
    /// QEMU uses io_uring.
    IoUring,
}

/// A CD drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cdrom {
    /// The image in the drive. `None`: the drive is empty.
    pub path: Option<PathBuf>,
    /// What the drive is plugged into: SATA, IDE or virtio SCSI.
    pub bus: Bus,
    /// Which controller of that kind.
    pub controller: u8,
    /// The place in the boot order. The firmware tries drives with a lower number first.
    pub boot_index: Option<u8>,
}

const BUSES: [(&str, Bus); 5] = [
    ("virtio-blk", Bus::VirtioBlk),
    ("virtio-scsi", Bus::VirtioScsi),
    ("sata", Bus::Sata),
    ("ide", Bus::Ide),
    ("nvme", Bus::Nvme),
];
const CDROM_BUSES: [(&str, Bus); 3] = [("sata", Bus::Sata), ("ide", Bus::Ide), ("virtio-scsi", Bus::VirtioScsi)];
const IOS: [(&str, Io); 3] = [("threads", Io::Threads), ("native", Io::Native), ("io_uring", Io::IoUring)];

impl Disk {
    pub(super) fn write(&self, line: &mut Line) {
        line("\n[[disk]]\npath", path(&self.path));
        line("format", word(&FORMATS, self.format).into());
        line("readonly", self.readonly.into());
        line("cache", word(&CACHES, self.cache).into());
        let options = &self.options;
        if options.bus != Bus::default() {
            line("bus", word(&BUSES, options.bus).into());
        }
        if options.controller != 0 {
            line("controller", i64::from(options.controller).into());
        }
        options.serial.iter().for_each(|serial| line("serial", serial.as_str().into()));
        options.wwn.iter().for_each(|wwn| line("wwn", format!("{wwn:#018x}").into()));
        options.boot_index.iter().for_each(|index| line("boot_index", i64::from(*index).into()));
        options.io.iter().for_each(|io| line("io", word(&IOS, *io).into()));
        for (key, value) in [("ssd", options.ssd), ("discard", options.discard), ("iothread", options.iothread)] {
            if value {
                line(key, true.into());
            }
        }
    }
}

impl Cdrom {
    pub(super) fn write(&self, line: &mut Line) {
        line("\n[[cdrom]]\nbus", word(&CDROM_BUSES, self.bus).into());
        self.path.iter().for_each(|image| line("path", path(image)));
        if self.controller != 0 {
            line("controller", i64::from(self.controller).into());
        }
        self.boot_index.iter().for_each(|index| line("boot_index", i64::from(*index).into()));
    }
}

/// What the VM's disks and CD drives are plugged into, as they are read.
pub(super) struct Storage<'a> {
    /// The VM's `-machine`.
    machine: &'a str,
    /// Whether the VM is never moved.
    stays: bool,
    taken: BTreeMap<(Bus, u8), usize>,
    paths: BTreeSet<PathBuf>,
    boot_indexes: BTreeSet<u8>,
}

impl Storage<'_> {
    pub(super) fn new(machine: &str, stays: bool) -> Storage<'_> {
        let (taken, paths, boot_indexes) = Default::default();
        Storage { machine, stays, taken, paths, boot_indexes }
    }

    fn path(&mut self, reader: &mut Reader, value: Option<Value>) -> Option<PathBuf> {
        let value = value?;
        let path = value.parsed(reader, VALUE_BYTES_MAX, check_path)?;
        // The path is compared by components, so that a doubled slash hides nothing.
        if !self.paths.insert(path.components().collect()) {
            value.report_at(reader, "this disk is there already", "remove one: two disks on one file destroy it");
        }
        Some(path)
    }

    /// Reads a controller, and takes a place at it.
    fn read_controller(&mut self, reader: &mut Reader, table: &mut Table, bus: Bus, value: Option<Value>) -> u8 {
        let span = value.map_or(table.span.clone(), |value| value.span);
        let controller = table.get("controller");
        let number = controller.as_ref().and_then(|value| value.integer(reader, 0..=CONTROLLERS_MAX - 1)).unwrap_or(0);
        match bus {
            Bus::Ide if is_q35(self.machine) => {
                reader.report_at(span.clone(), "a q35 machine has no IDE controller", "write bus = \"sata\"");
            }
            Bus::Nvme if !self.stays => {
                let cure = "write bus = \"virtio-scsi\", or, if the VM is never to move, [migration] allowed = false";
                reader.report_at(span.clone(), "QEMU cannot move a guest with an NVMe disk", cure);
            }
            _ => {}
        }
        if let Some(value) = controller.filter(|_| number > 0 && !matches!(bus, Bus::VirtioScsi | Bus::Sata)) {
            value.report_at(reader, "only virtio-scsi and sata have several controllers", "remove this line");
        }
        let (taken, room) = (self.taken.entry((bus, number as u8)).or_default(), bus.room());
        *taken += 1;
        if *taken > room {
            let reason = format!("this controller is full: it has room for {room}");
            reader.report_at(span, reason, "give some of its disks another controller (controller = 1) or bus");
        }
        number as u8
    }

    fn boot_index(&mut self, reader: &mut Reader, table: &mut Table) -> Option<u8> {
        let value = table.get("boot_index")?;
        let index = value.integer(reader, BOOT_INDEX)? as u8;
        if !self.boot_indexes.insert(index) {
            value.report_at(reader, "another disk has this boot_index already", "give each its own");
        }
        Some(index)
    }
}

fn check_wwn(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 16);
    let wwn = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).filter(|wwn| *wwn != 0);
    wwn.ok_or_else(|| "write 16 hexadecimal digits, such as \"0x5000c50015ea71ac\"".into())
}

/// Checks a serial number: letters, digits, `_`, `-`, `.` and blanks, which disks' drivers and udev pass on as they
/// are.
fn check_serial(text: &str, most: usize) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-. ".contains(&b);
    let is_serial = text.len() <= most && text.bytes().all(fits);
    is_serial.then(|| text.to_owned()).ok_or_else(|| format!("it may be at most {most} of a-z A-Z 0-9 _ - . and blank"))
}

/// Returns the length of the longest serial number: VIRTIO_BLK_ID_BYTES of linux/virtio_blk.h, the ATA and NVMe
/// standards, hw/scsi/scsi-disk.c.
fn serial_bytes_max(bus: Bus) -> usize {
    if bus == Bus::VirtioScsi { 36 } else { 20 }
}

fn read_options(reader: &mut Reader, table: &mut Table, storage: &mut Storage, cache: Cache) -> DiskOptions {
    let value = table.get("bus");
    let bus = value.as_ref().and_then(|value| value.word(reader, &BUSES)).unwrap_or_default();
    let controller = storage.read_controller(reader, table, bus, value);
    let most = serial_bytes_max(bus);
    let serial = table.get("serial").and_then(|v| v.parsed(reader, most + 1, |text| check_serial(text, most)));
    let (wwn, ssd, iothread) = (table.get("wwn"), table.get("ssd"), table.get("iothread"));
    for value in [&wwn, &ssd].into_iter().flatten().filter(|_| !matches!(bus, Bus::VirtioScsi | Bus::Sata | Bus::Ide)) {
        let cure = "remove this line, or write bus = \"virtio-scsi\"";
        value.report_at(reader, format!("{} is of SCSI, SATA and IDE disks only", value.key), cure);
    }
    if let Some(value) = iothread.as_ref().filter(|_| !matches!(bus, Bus::VirtioBlk | Bus::VirtioScsi)) {
        value.report_at(reader, "iothread is of virtio-blk and virtio-scsi disks only", "remove this line");
    }
    let value = table.get("io");
    let io = value.as_ref().and_then(|value| value.word(reader, &IOS));
    if let Some(value) = value.filter(|_| io == Some(Io::Native) && cache != Cache::None) {
        value.report_at(reader, "io = \"native\" needs cache = \"none\"", "change one of the two");
    }
    let mut flag = |value: Option<Value>| value.and_then(|value| value.boolean(reader)).unwrap_or_default();
    let (ssd, iothread, discard) = (flag(ssd), flag(iothread), flag(table.get("discard")));
    let wwn = wwn.and_then(|value| value.parsed(reader, 64, check_wwn));
    let boot_index = storage.boot_index(reader, table);
    DiskOptions { bus, controller, serial, wwn, ssd, boot_index, discard, io, iothread }
}

pub(super) fn read(reader: &mut Reader, tables: Vec<Table>, storage: &mut Storage) -> Vec<Disk> {
    let mut disks = Vec::new();
    for mut table in tables {
        let value = table.require(reader, "path", "path = \"/srv/images/web1.qcow2\"");
        let path = storage.path(reader, value);
        let format = table.require(reader, "format", "format = \"qcow2\" or format = \"raw\"");
        let format = format.and_then(|value| value.word(reader, &FORMATS));
        let readonly = table.get("readonly").and_then(|value| value.boolean(reader)).unwrap_or_default();
        let cache = table.get("cache").and_then(|value| value.word(reader, &CACHES)).unwrap_or_default();
        let options = read_options(reader, &mut table, storage, cache);
        table.finish(reader, &ROOT_KEYS);
        if let (Some(path), Some(format)) = (path, format) {
            disks.push(Disk { path, format, readonly, cache, options });
        }
    }
    disks
}

pub(super) fn read_cdroms(reader: &mut Reader, tables: Vec<Table>, storage: &mut Storage) -> Vec<Cdrom> {
    let mut cdroms = Vec::new();
    for mut table in tables {
        let value = table.get("path");
        let path = storage.path(reader, value);
        let value = table.get("bus");
        let default = if is_q35(storage.machine) { Bus::Sata } else { Bus::Ide };
        let bus = value.as_ref().and_then(|value| value.word(reader, &CDROM_BUSES)).unwrap_or(default);
        let controller = storage.read_controller(reader, &mut table, bus, value);
        let boot_index = storage.boot_index(reader, &mut table);
        table.finish(reader, &ROOT_KEYS);
        cdroms.push(Cdrom { path, bus, controller, boot_index });
    }
    cdroms
}
