//! Virtual machines and hosts as Skein knows them, and what can be decided from that without touching either.
//!
//! | module | decides |
//! |---|---|
//! | [`definition`] | a VM as a TOML file |
//! | [`hosts_file`] | the list of other hosts, as a TOML file |
//! | [`migration_network`] | the migration network and who may connect to this host there, as a TOML file |
//! | [`facts`] | what was seen of a host, a guest and the paths between two hosts |
//! | [`composition`] | what a guest is composed of by its QEMU's word, and what two compositions do not have in common |
//! | [`command_line`] | what a QEMU's command line asks for |
//! | [`check`](mod@check) | everything that stands against a migration, each with its cure |
//! | [`room`] | what a QEMU will really get on a host, and what it needs |
//!
//! Absent on purpose: files, processes, sockets, clocks. Their owners collect the facts. What another host says about
//! itself arrives through serde, and is bounded and freed of control characters there.
//!
//! # Invariants
//!
//! - **A guest is what its QEMU reports** ([`composition`]), read at both ends by the same questions. The target
//!   compares before a page is copied. From then on whatever makes the guest another one, or stops it, calls the
//!   migration off. Tests: `each_part_is_compared`, `what_is_not_understood_is_no_composition`,
//!   `a_guest_that_changes_ends_where_it_has_to_with_what_it_has`.

#![forbid(unsafe_code)]

pub mod check;
mod claim;
pub mod command_line;
pub mod composition;
mod controllers_file;
mod cpu_baseline;
pub mod definition;
pub mod facts;
mod file_facts;
pub mod hosts_file;
pub mod migration_network;
mod problem;
mod qemu_version;
pub mod room;
pub mod route;
mod toml_reader;

pub use check::{NoRoom, TargetLaunch, check, closed_cure, refusal, refused_copy};
pub use claim::{printable, shortened};
pub use composition::Composition;
pub use controllers_file::{CONTROLLERS_MAX, ControllersFile};
pub use cpu_baseline::{CpuModels, cpu_baseline};
pub use definition::{Accel, Attachment, Cache, Definition, Disk, DiskFormat, MacAddress, Migration, Nic, Qemu};
pub use facts::{
    AccelFacts, CpuModel, FileFacts, FileSystem, GuestDisk, GuestFacts, GuestNic, HostFacts, Hugepages, MachineType,
    MigrationSlots, NicFacts, PathFacts, Presence, QemuFacts, QemuVersion, VmFacts,
};
pub use hosts_file::{HostAddress, HostEntry, HostsFile, KeptRamPolicy};
pub use migration_network::{MigrationNetwork, Ports, Subnet, WithoutAgent};
pub use problem::{Problem, ProblemKind, Severity};
pub use room::{CopyFits, CopyRoom, Resource, Room, RoomLimit, RoomNeed};
pub use route::{Links, Packing, Route, Width};
pub use toml_reader::{Diagnostic, ParseError, TEXT_BYTES_MAX};
