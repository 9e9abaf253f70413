//! QMP and QEMU processes: what Skein needs of a hypervisor, over its unmodified interfaces.
//!
//! - [`Monitor`]: a client of QEMU's control socket for several threads; every wait has a deadline. [`Qmp`]: for one.
//! - [`Config`]: a machine, and the command line of its QEMU. [`Qemu`]: the process, ended when dropped.
//! - [`process`]: QEMU processes that outlive their starter.
//! - [`devices`]: firmware, TPM, display, and what disks are plugged into.
//! - [`migration`]: a migration's settings, its start and its progress, and what QEMU does when things go wrong.
//! - [`inspect`]: what a QEMU can do, and what a guest is made of.
//! - [`kvm`]: whether KVM runs guests, tried with a small one.
//! - [`Monitor::ram_blocks`]: where the guest's RAM is in QEMU's memory.
//!
//! Tried with QEMU 7.2 and 10.0. Not here: guests' contents, hosts' networks, libvirt.

pub mod devices;
pub mod inspect;
pub mod kvm;
pub mod migration;
pub mod monitor;
pub mod process;
pub mod qemu;
pub mod qmp;
mod ram_blocks;

pub use devices::{Boot, Bus, Cdrom, DiskOptions, Display, Tpm};
pub use migration::{
    Announcement, Compression, MigrationInfo, MigrationStatus, RamInfo, RunState, SAMPLE_PAGES, Tls, Tuning,
};
pub use monitor::{Events, Monitor, MonitorEvent};
pub use process::{Exit, Log, Process, ProcessId, connect_started, spawn_command_detached, spawn_detached};
pub use qemu::{
    Config, Disk, DiskCache, DiskFormat, Error, HugePages, Incoming, MemoryBackend, Nic, NicBackend, Port, Qemu,
    Serial, version_of,
};
pub use qmp::{QemuVersion, Qmp, QmpError, QmpEvent, connect_within};
