//! What a host is: its NICs and their counters ([`nics`]), its cores, what a process takes of CPU and memory, and what
//! limits it ([`ControlGroups`]); and a [`Sampler`] that records them over time.
//!
//! Everything is read at the moment of the call and nothing is cached, so that a caller may ask every 250 ms and see
//! NICs come and go. What belongs to a network namespace is read from the namespace of the calling *thread* (netlink),
//! never from `/sys`, which shows the namespace of whoever mounted it.

mod clock;
mod control_groups;
mod cpu;
mod ethtool;
mod file_handle;
pub mod idle_scheduling;
mod memory;
mod netlink;
mod netns;
mod nic;
mod sampler;
mod thread_priority;

pub use clock::clock_synchronised;
pub use control_groups::{ControlGroups, GroupLimit, GroupResource};
pub use cpu::{CoreTime, ProcessTime, cores, process_time, thread_time};
pub use ethtool::{Offloads, offloads};
pub use file_handle::file_handle;
pub use memory::{Memory, process_memory};
pub use netns::enter;
pub use nic::{Counters, InterfaceAddress, Nic, NicError, nics, uplink};
pub use sampler::{Rates, Sample, Sampler, SamplerOptions, Series};
pub use thread_priority::raise_thread_priority;

/// A file of `/proc` that could not be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// Most often: the process has ended.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The kernel wrote something that this program does not know.
    #[error("cannot understand {path}: no usable `{field}`")]
    Field {
        /// The file.
        path: String,
        /// What was looked for.
        field: &'static str,
    },
}

fn read_proc(path: &str) -> Result<String, ProcError> {
    std::fs::read_to_string(path).map_err(|source| ProcError::Read { path: path.to_owned(), source })
}
