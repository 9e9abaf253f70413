//! Holds the parts of a machine, as QEMU's options have them: firmware, TPM, display, disks, NICs, ports.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::config::arguments::{Argument, escape};

/// The firmware, which runs before the guest's software.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Boot {
    /// The BIOS that QEMU brings.
    #[default]
    Default,
    /// An image of a BIOS.
    Bios(PathBuf),
    /// UEFI in flash memory. QEMU moves the contents of both flash devices with the guest's RAM, and writes the
    /// variables to the target's store when the guest runs there (`postload_update_cb` of its
    /// hw/block/pflash_cfi01.c): at the target the files need only be as long as at the source.
    Uefi {
        /// The code, which QEMU only reads.
        code: PathBuf,
        /// The variable store.
        vars: PathBuf,
        /// Whether only code in system management mode may write the variables.
        secure: bool,
    },
}

impl Boot {
    /// Returns what follows the machine type.
    pub(crate) fn machine_options(&self) -> &'static str {
        match self {
            Boot::Uefi { secure: true, .. } => ",smm=on,pflash0=firmware-code,pflash1=firmware-vars",
            Boot::Uefi { secure: false, .. } => ",pflash0=firmware-code,pflash1=firmware-vars",
            Boot::Default | Boot::Bios(_) => "",
        }
    }

    pub(crate) fn arguments(&self) -> Vec<Argument> {
        match self {
            Boot::Default => Vec::new(),
            Boot::Bios(image) => vec![("-bios", image.into())],
            Boot::Uefi { code, vars, secure } => {
                let mut arguments = vec![
                    ("-blockdev", image("firmware-code", ",read-only=on", "file", code)),
                    ("-blockdev", image("firmware-vars", "", "file", vars)),
                ];
                if *secure {
                    arguments.push(("-global", "driver=cfi.pflash01,property=secure,value=on".into()));
                }
                arguments
            }
        }
    }
}

/// Returns a raw image as a block node.
pub(super) fn image(node: &str, options: &str, driver: &str, path: &Path) -> OsString {
    let mut value = OsString::from(format!(
        "driver=raw,node-name={node}{options},file.driver={driver},file.locking=auto,file.filename="
    ));
    value.push(escape(path));
    value
}

/// A TPM that another process emulates: swtpm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tpm {
    /// The model: `tpm-crb` or `tpm-tis`.
    pub model: String,
    /// The unix socket that swtpm takes its commands at.
    pub socket: PathBuf,
}

/// A graphics card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Display {
    /// The card: `VGA`, `virtio-vga`.
    pub card: String,
    /// The unix socket that QEMU listens on, with VNC.
    pub vnc: PathBuf,
}

/// The bus that a disk is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Bus {
    /// The disk is a PCI device of its own.
    #[default]
    VirtioBlk,
    /// The disk is at a virtio SCSI controller.
    VirtioScsi,
    /// The disk is at an AHCI controller: a q35 machine has one itself.
    Sata,
    /// The disk is at the controller of an i440FX machine.
    Ide,
    /// The disk has an NVMe controller of its own.
    Nvme,
}

/// How a guest sees a disk, and how QEMU reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskOptions {
    /// The bus that the disk is plugged into.
    pub bus: Bus,
    /// The number of the controller of that kind.
    pub controller: u8,
    /// The disk's serial number.
    pub serial: Option<String>,
    /// The disk's worldwide name.
    pub wwn: Option<u64>,
    /// Whether the disk has no moving parts.
    pub ssd: bool,
    /// The boot index: the firmware tries disks with a lower number first.
    pub boot_index: Option<u8>,
    /// Whether what the guest discards is given back to the storage.
    pub discard: bool,
    /// QEMU's `aio`: `threads`, `native`, `io_uring`.
    pub aio: Option<&'static str>,
    /// Whether a thread of its own serves the disk.
    pub iothread: bool,
}

impl DiskOptions {
    /// Returns the options of the node with the disk's format.
    pub(crate) fn format_options(&self) -> &'static str {
        if self.discard { ",discard=unmap" } else { "" }
    }

    /// Returns the options of the node with the file.
    pub(crate) fn file_options(&self) -> String {
        let aio = self.aio.map(|aio| format!(",file.aio={aio}")).unwrap_or_default();
        let discard = if self.discard { ",file.discard=unmap" } else { "" };
        format!("{aio}{discard}")
    }

    pub(super) fn device_options(&self) -> String {
        let mut options = String::new();
        if let Some(serial) = &self.serial {
            options.push_str(&format!(",serial={serial}"));
        }
        if let Some(wwn) = self.wwn {
            options.push_str(&format!(",wwn={wwn:#018x}"));
        }
        if self.ssd {
            options.push_str(",rotation_rate=1");
        }
        options.push_str(&boot_option(self.boot_index));
        options
    }
}

pub(super) fn boot_option(index: Option<u8>) -> String {
    index.map(|index| format!(",bootindex={index}")).unwrap_or_default()
}

/// A CD drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cdrom {
    /// The image in the drive, and whether the image is a block device; `None`: the drive is empty.
    pub medium: Option<(PathBuf, bool)>,
    /// The bus: SATA, IDE or virtio SCSI.
    pub bus: Bus,
    /// The number of the controller of that kind.
    pub controller: u8,
    /// The boot index: the firmware tries drives with a lower number first.
    pub boot_index: Option<u8>,
}

/// The guest's first serial port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Serial {
    /// The guest has no serial port.
    #[default]
    None,
    /// The output is appended to this file.
    File(PathBuf),
    /// The port is a unix socket that QEMU listens on.
    Socket(PathBuf),
}

/// A named virtio-serial port, at the end of a unix socket that QEMU listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The name that the guest finds in `/sys/class/virtio-ports/*/name`.
    pub name: String,
    /// The unix socket.
    pub socket: PathBuf,
}

/// How QEMU's block layer uses the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskCache {
    /// Disks go past the page cache (O_DIRECT): needed if source and target are different kernels.
    #[default]
    None,
    /// Disks go through the page cache: for file systems without O_DIRECT. This is coherent only within one kernel.
    Writeback,
}

/// The format of a disk's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// The image holds the disk's own bytes.
    #[default]
    Raw,
    /// The image is of QEMU's format, with its backing files if it names any.
    Qcow2,
}

/// A virtio disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The path of the image, or of a block device.
    pub path: PathBuf,
    /// Whether the path is a block device: QEMU has another driver for those.
    pub block_device: bool,
    /// The format of the image.
    pub format: DiskFormat,
    /// How QEMU caches the disk.
    pub cache: DiskCache,
    /// Whether QEMU locks the image. A source gives its lock up when it stops for the switchover, and a target takes
    /// the lock then. So the lock protects from other programs, not from source and target both running.
    pub locked: bool,
    /// Whether the guest may only read the disk.
    pub read_only: bool,
    /// How the guest sees the disk, and how QEMU reads it.
    pub options: DiskOptions,
}

impl Disk {
    /// Makes a raw image past the page cache, not locked.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            block_device: false,
            format: DiskFormat::Raw,
            cache: DiskCache::None,
            locked: false,
            read_only: false,
            options: DiskOptions::default(),
        }
    }

    pub(super) fn blockdev(&self, number: usize) -> OsString {
        let format = if self.format == DiskFormat::Raw { "raw" } else { "qcow2" };
        let direct = if self.cache == DiskCache::None { "on" } else { "off" };
        let read_only = if self.read_only { ",read-only=on" } else { "" };
        let file = if self.block_device { "host_device" } else { "file" };
        let locking = if self.locked { "auto" } else { "off" };
        let mut node = OsString::from(format!(
            "driver={format},node-name=disk{number},cache.direct={direct}{read_only}{},file.driver={file},\
             file.locking={locking}{},file.filename=",
            self.options.format_options(),
            self.options.file_options(),
        ));
        node.push(escape(&self.path));
        node
    }
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// The MAC address, `52:54:00:...`: the same on source and target.
    pub mac: String,
    /// The PCI device: `virtio-net-pci`, `e1000e`...
    pub model: String,
    /// What the NIC is plugged into.
    pub backend: NicBackend,
    /// Whether the kernel moves a tap's packets (`/dev/vhost-net`), not QEMU.
    pub vhost: bool,
    /// The pairs of queues of a virtio card and its tap, which has to be made with as many. `None`: one pair, and no
    /// negotiation of more.
    pub queues: Option<u8>,
}

impl Nic {
    /// Makes a virtio NIC without vhost.
    pub fn new(mac: impl Into<String>, backend: NicBackend) -> Self {
        Self { mac: mac.into(), model: "virtio-net-pci".into(), backend, vhost: false, queues: None }
    }

    /// Returns what the NIC is plugged into, as `-netdev` has it.
    pub(super) fn netdev(&self, number: usize) -> String {
        match &self.backend {
            NicBackend::Tap(tap) => {
                let vhost = if self.vhost { ",vhost=on" } else { "" };
                let queues = self.queues.map(|queues| format!(",queues={queues}")).unwrap_or_default();
                format!("tap,id=net{number},ifname={tap},script=no,downscript=no{queues}{vhost}")
            }
            NicBackend::Other(rest) => match rest.split_once(',') {
                Some((kind, options)) => format!("{kind},id=net{number},{options}"),
                None => format!("{rest},id=net{number}"),
            },
        }
    }

    /// Returns the card, as `-device` has it.
    pub(super) fn device(&self, number: usize) -> String {
        // There is no option ROM: it is a file that firmware directories may lack, and nothing boots from here. Each
        // queue has a vector, changes have one and control has one (hw/virtio/virtio-net-pci.c).
        let queues = self.queues.map(|queues| format!(",mq=on,vectors={}", 2 * u32::from(queues) + 2));
        let queues = queues.unwrap_or_default();
        format!("{},netdev=net{number},mac={},romfile={queues}", self.model, self.mac)
    }
}

/// What a NIC is plugged into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NicBackend {
    /// A tap device that exists in QEMU's network namespace.
    Tap(String),
    /// The rest of a `-netdev` argument with its type, without its id: `user,restrict=on`.
    Other(String),
}
