//! Is the VMs of this host: their definitions, and their QEMUs, which live on without the agent.
//!
//! A name has one process at most. The name belongs to the thread that starts the process, from before its start until
//! it runs or everything that it left is removed (`State::busy`).
//!
//! | file | what |
//! |---|---|
//! | `vm` | a VM, and what may be asked of it |
//! | `registry` | all VMs by their names ([`Vms`]), and what is written down of them |
//! | `error`, `involvement`, `seen`, `saved` | plain data: errors, the part in a migration, what is kept on disk |
//! | `reattach` | what is there when the agent starts |
//! | `images`, `movable`, `start` | a start: what it is started with, whether it could be moved, its QEMU |
//! | `adopt` | a QEMU that another program started |
//! | `receive`, `arriving` | a guest comes from another host, or leaves for one |
//! | `watch`, `kills` | its end, and why |
//! | `stop` | it is stopped, resumed, forgotten |
//! | `search`, `swtpm`, `tap_devices` | processes, TPMs and taps of the host |

mod adopt;
mod arriving;
mod error;
mod images;
mod involvement;
mod kills;
#[cfg(test)]
mod life_tests;
mod movable;
mod off;
#[cfg(test)]
mod off_tests;
mod reattach;
mod receive;
mod registry;
mod saved;
mod search;
mod seen;
mod start;
mod stop;
pub(crate) mod swtpm;
mod tap_devices;
#[cfg(test)]
mod tests;
mod vm;
mod watch;

pub use self::error::VmError;
pub(crate) use self::involvement::Involvement;
pub(crate) use self::kills::Killed;
pub(crate) use self::off::HostFiles;
pub(crate) use self::registry::Vms;
pub(crate) use self::vm::{Running, Vm};
