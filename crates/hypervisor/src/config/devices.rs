//! What a machine is plugged together from, as QEMU's options have it: firmware, TPM, display, disks, NICs, ports.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::config::arguments::{Argument, escape};

/// What runs before the guest's software.
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
        /// The code, which is only read.
        code: PathBuf,
        /// The variable store.
        vars: PathBuf,
        /// Whether only code in system management mode may write the variables.
        secure: bool,
    },
}

impl Boot {
    /// What follows the machine type.
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

/// A raw image as a block node.
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
    /// `tpm-crb` or `tpm-tis`.
    pub model: String,
    /// The unix socket that swtpm takes its orders at.
    pub socket: PathBuf,
}

/// A graphics card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Display {
    /// `VGA`, `virtio-vga`.
    pub card: String,
    /// A unix socket that QEMU listens on, with VNC.
    pub vnc: PathBuf,
}

/// What a disk is plugged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Bus {
    /// A PCI device of its own.
    #[default]
    VirtioBlk,
    /// A virtio SCSI controller.
    VirtioScsi,
    /// An AHCI controller: a q35 machine has one itself.
    Sata,
    /// The controller of an i440FX machine.
    Ide,
    /// An NVMe controller of its own.
    Nvme,
}

/// How a guest sees a disk, and how QEMU reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskOptions {
    /// What the disk is plugged into.
    pub bus: Bus,
    /// Which controller of that kind.
    pub controller: u8,
    /// Its serial number.
    pub serial: Option<String>,
    /// Its worldwide name.
    pub wwn: Option<u64>,
    /// Whether it has no moving parts.
    pub ssd: bool,
    /// The firmware tries disks with a lower number first.
    pub boot_index: Option<u8>,
    /// Whether what the guest discards is given back to the storage.
    pub discard: bool,
    /// QEMU's `aio`: `threads`, `native`, `io_uring`.
    pub aio: Option<&'static str>,
    /// Whether a thread of its own serves it.
    pub iothread: bool,
}

impl DiskOptions {
    /// Of the node with the disk's format.
    pub(crate) fn format_options(&self) -> &'static str {
        if self.discard { ",discard=unmap" } else { "" }
    }

    /// Of the node with the file.
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
    /// The image in it, and whether that is a block device; none: the drive is empty.
    pub medium: Option<(PathBuf, bool)>,
    /// SATA, IDE or virtio SCSI.
    pub bus: Bus,
    /// Which controller of that kind.
    pub controller: u8,
    /// The firmware tries drives with a lower number first.
    pub boot_index: Option<u8>,
}

/// The guest's first serial port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Serial {
    /// There is none.
    #[default]
    None,
    /// Appended to this file.
    File(PathBuf),
    /// A unix socket that QEMU listens on.
    Socket(PathBuf),
}

/// A named virtio-serial port, at the end of a unix socket that QEMU listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// What the guest finds in `/sys/class/virtio-ports/*/name`.
    pub name: String,
    /// The socket.
    pub socket: PathBuf,
}

/// How QEMU's block layer uses the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskCache {
    /// Past it (O_DIRECT): needed where source and target are different kernels.
    #[default]
    None,
    /// Through it: for file systems without O_DIRECT; coherent only within one kernel.
    Writeback,
}

/// What a disk's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// The disk's own.
    #[default]
    Raw,
    /// QEMU's, with its backing files if it names any.
    Qcow2,
}

/// A virtio disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The image, or a block device.
    pub path: PathBuf,
    /// Whether the path is a block device: QEMU has another driver for those.
    pub block_device: bool,
    /// What its bytes are.
    pub format: DiskFormat,
    /// How it is cached.
    pub cache: DiskCache,
    /// Whether QEMU locks the image. A source gives its lock up when it stops for the switchover, and a target takes it
    /// then, so this protects from strangers, not from source and target both running.
    pub locked: bool,
    /// Whether the guest may only read it.
    pub read_only: bool,
    /// How the guest sees it, and how QEMU reads it.
    pub options: DiskOptions,
}

impl Disk {
    /// A raw image past the page cache, not locked.
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
    /// Its address, `52:54:00:...`: the same on source and target.
    pub mac: String,
    /// A PCI device: `virtio-net-pci`, `e1000e`...
    pub model: String,
    /// What it is plugged into.
    pub backend: NicBackend,
    /// Whether the kernel moves a tap's packets (`/dev/vhost-net`), not QEMU.
    pub vhost: bool,
    /// Pairs of queues of a virtio card and its tap, which has to be made so; none: one, and no negotiation of more.
    pub queues: Option<u8>,
}

impl Nic {
    /// A virtio NIC without vhost.
    pub fn new(mac: impl Into<String>, backend: NicBackend) -> Self {
        Self { mac: mac.into(), model: "virtio-net-pci".into(), backend, vhost: false, queues: None }
    }

    /// What it is plugged into, as `-netdev` has it.
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

    /// The card, as `-device` has it.
    pub(super) fn device(&self, number: usize) -> String {
        // No option ROM: it is a file that firmware directories may lack, and nothing boots from here.
        // A vector for each queue, one for changes and one for control (hw/virtio/virtio-net-pci.c).
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
