//! Describes a machine. Its QEMU's command line is made from that.

mod arguments;
mod command_line;
pub mod devices;
mod storage;

use std::ffi::OsString;
use std::path::PathBuf;

use self::devices::{Boot, Cdrom, Disk, Display, Nic, Port, Serial, Tpm};

/// Names the environment variable with the QEMU program that is used if a [`Config`] names none.
pub const BINARY_VARIABLE: &str = "SKEIN_QEMU";
const BINARY_DEFAULT: &str = "qemu-system-x86_64";

/// The memory that holds the guest's RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryBackend {
    /// A shared memfd, which other processes can map: `memory-backend-memfd,share=on`.
    #[default]
    Memfd,
    /// Memory of QEMU's own, in transparent huge pages where the host allows: `memory-backend-ram`.
    Private,
    /// QEMU's default, which is the same without a backend's name.
    Anonymous,
}

/// The size of the host's huge pages under the guest's RAM. The pages must be reserved (`vm.nr_hugepages`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HugePages {
    /// 2 MiB.
    #[serde(rename = "2M")]
    Size2M,
    /// 1 GiB.
    #[serde(rename = "1G")]
    Size1G,
}

impl HugePages {
    /// Returns the size as QEMU writes it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Size2M => "2M",
            Self::Size1G => "1G",
        }
    }
}

/// Whether this QEMU waits for a migration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Incoming {
    /// The QEMU boots.
    #[default]
    No,
    /// The QEMU waits for [`Monitor::migrate_incoming`](crate::Monitor::migrate_incoming).
    Defer,
    /// The QEMU listens at once.
    Uri(String),
}

/// A machine, and where its sockets are. Source and target differ only in the sockets and in `incoming`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The program; `None`: `$SKEIN_QEMU`, or `qemu-system-x86_64`. A wrapper script must `exec` the QEMU.
    pub binary: Option<PathBuf>,
    /// The directory of the firmware (`-L`), for a QEMU that is not installed.
    pub firmware: Option<PathBuf>,
    /// The name, which `ps` shows.
    pub name: String,
    /// The machine type: `q35`, `pc`, `pc-q35-7.2`...
    pub machine: String,
    /// The accelerator: `tcg`, `kvm`.
    pub accel: String,
    /// The CPU model.
    pub cpu: String,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// The RAM in KiB, a multiple of 8.
    pub memory_kib: u64,
    /// The memory that holds the RAM.
    pub memory: MemoryBackend,
    /// The huge pages under a memfd, and under no other memory; `None`: the kernel's choice.
    pub hugepages: Option<HugePages>,
    /// The kernel of a direct boot.
    pub kernel: Option<PathBuf>,
    /// The initramfs of a direct boot.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line of a direct boot.
    pub append: String,
    /// The firmware.
    pub boot: Boot,
    /// The TPM.
    pub tpm: Option<Tpm>,
    /// The SMBIOS table of the machine: `uuid`, and the keys of QEMU's `-smbios type=1`.
    pub system: Vec<(String, String)>,
    /// What follows `-rtc`; empty: universal time.
    pub rtc: String,
    /// The graphics card, and the unix socket with its picture.
    pub display: Option<Display>,
    /// The disks.
    pub disks: Vec<Disk>,
    /// The CD drives.
    pub cdroms: Vec<Cdrom>,
    /// The NICs.
    pub nics: Vec<Nic>,
    /// The first serial port.
    pub serial: Serial,
    /// The virtio-serial ports.
    pub ports: Vec<Port>,
    /// The socket at which QMP listens. A unix socket's path has at most 107 bytes.
    pub qmp: PathBuf,
    /// Whether the QEMU waits for a migration.
    pub incoming: Incoming,
    /// Whether the guest stays stopped until `cont` (`-S`).
    pub paused: bool,
    /// Whether QEMU ends if the guest would reboot.
    pub no_reboot: bool,
    /// Whether QEMU gives up the system calls that it does not need (`-sandbox`), so that a guest that breaks out of
    /// QEMU finds fewer. QEMU can start no other program then: no network scripts or helpers.
    pub sandbox: bool,
    /// The last arguments.
    pub extra: Vec<OsString>,
}

impl Config {
    /// Makes a q35 machine with one CPU under TCG and `memory_kib` KiB of RAM that listens for QMP on `qmp`.
    pub fn new(name: impl Into<String>, memory_kib: u64, qmp: impl Into<PathBuf>) -> Self {
        Self {
            binary: None,
            firmware: None,
            name: name.into(),
            machine: "q35".into(),
            accel: "tcg".into(),
            cpu: "max".into(),
            cpus: 1,
            memory_kib,
            memory: MemoryBackend::default(),
            hugepages: None,
            kernel: None,
            initrd: None,
            append: String::new(),
            boot: Boot::default(),
            tpm: None,
            system: Vec::new(),
            rtc: String::new(),
            display: None,
            disks: Vec::new(),
            cdroms: Vec::new(),
            nics: Vec::new(),
            serial: Serial::None,
            ports: Vec::new(),
            qmp: qmp.into(),
            incoming: Incoming::No,
            paused: false,
            no_reboot: true,
            sandbox: false,
            extra: Vec::new(),
        }
    }

    /// Returns the same machine as a migration's target: it waits for [`Monitor::migrate_incoming`] and then for
    /// `cont`.
    ///
    /// [`Monitor::migrate_incoming`]: crate::Monitor::migrate_incoming
    pub fn as_incoming(self) -> Self {
        Self { incoming: Incoming::Defer, paused: true, ..self }
    }

    /// Returns the program that will run.
    pub fn program(&self) -> PathBuf {
        let named = || std::env::var_os(BINARY_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        self.binary.clone().or_else(named).unwrap_or_else(|| BINARY_DEFAULT.into())
    }
}
