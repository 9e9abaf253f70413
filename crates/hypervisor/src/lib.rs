//! Is what Skein needs of a hypervisor, over the hypervisor's unmodified interfaces: QMP and QEMU processes.
//!
//! - [`guest`]: a running guest, whatever runs it: the seam between an agent's workers and a hypervisor.
//! - [`hypervisor`]: what starts and finds such guests: the seam between an agent's VMs and a hypervisor.
//!   [`QemuHypervisor`]: QEMU's.
//! - [`Monitor`]: a guest of QEMU's, by a client of QEMU's control socket for several threads; every wait has a
//!   deadline. [`Qmp`]: a client for one thread.
//! - [`Config`]: a machine, and the command line of its QEMU. [`Qemu`]: the process, ended when dropped.
//! - [`process`]: QEMU processes that outlive their starter.
//! - [`config::devices`]: firmware, TPM, display, disks, NICs.
//! - [`migration`]: a migration's settings, its start and its progress, and what QEMU does when things go wrong.
//! - [`inspect`]: what a QEMU can do, and what a guest is made of.
//! - [`kvm`]: whether KVM runs guests, tried with a small guest.
//! - [`Monitor::ram_blocks`]: where the guest's RAM is in QEMU's memory.
//!
//! Tried with QEMU 7.2 and 10.0. Not here: guests' contents, hosts' networks, libvirt.

pub mod config;
pub mod guest;
pub mod hypervisor;
pub mod inspect;
pub mod kvm;
pub mod migration;
pub mod process;
mod qemu_guest;
mod qemu_hypervisor;
pub mod qmp;
mod ram_blocks;

pub use config::devices::{
    Boot, Bus, Cdrom, Disk, DiskCache, DiskFormat, DiskOptions, Display, Nic, NicBackend, Port, Serial, Tpm,
};
pub use config::{BINARY_VARIABLE, Config, HugePages, Incoming, MemoryBackend};
pub use guest::error::GuestError;
pub use guest::event::{EventSink, GuestEvent, ShutdownCause, StopCause};
pub use guest::facts::{DeviceSnapshot, DirtyTracking, ImageSnapshot};
pub use guest::inspect::{CompositionError, Inspect};
pub use guest::migrate::{CopyState, Hold, Migrate, MigrationSettings, MigrationState, MigrationStatus, Throttling};
pub use guest::run::{RunControl, RunState};
pub use guest::{Guest, Quirks};
pub use hypervisor::{ConnectError, Connected, Hypervisor};
pub use migration::commands::Announcement;
pub use migration::info::{MigrationInfo, RamInfo};
pub use migration::tuning::{Compression, SAMPLE_PAGES, Tls, Tuning};
pub use process::error::Error;
pub use process::log::Log;
pub use process::program::version_of;
pub use process::qemu::Qemu;
pub use process::start::{connect_started, spawn_command_detached, spawn_detached};
pub use process::{Exit, Process, ProcessId};
pub use qemu_hypervisor::QemuHypervisor;
pub use qmp::client::Qmp;
pub use qmp::connect::connect_within;
pub use qmp::error::QmpError;
pub use qmp::events::{Events, MonitorEvent};
pub use qmp::message::QmpEvent;
pub use qmp::monitor::Monitor;
pub use skein_inventory::QemuVersion;
