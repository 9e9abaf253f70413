//! QMP and QEMU processes: what Skein needs of a hypervisor, over its unmodified interfaces.
//!
//! - [`Qmp`]: a blocking client of QEMU's control socket; every wait has a deadline.
//! - [`Config`] → [`Qemu`]: a command line, and the process that runs it, ended when dropped.
//! - [`migration`]: a migration's settings, its start and its progress.
//!
//! Tried with QEMU 7.2 and 10.0. Not here: guests' contents, hosts' networks, libvirt.

pub mod migration;
pub mod qemu;
pub mod qmp;

pub use migration::{Compression, MigrationInfo, MigrationStatus, RamInfo, Tls, Tuning};
pub use qemu::{
    Config, Disk, DiskCache, Error, Incoming, MemoryBackend, Nic, NicBackend, Port, Qemu, Serial, version_of,
};
pub use qmp::{Event, Qmp, QmpError, Version};
