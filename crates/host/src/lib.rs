//! Reads what a host is: its NICs and their counters ([`nics`]), its cores, disks and memory, the CPU, memory and disk
//! traffic of a process, and the limits of a process ([`ControlGroups`]). A [`Sampler`] records some of that over time.
//!
//! Everything is read at the moment of the call and nothing is cached but the word of Open vSwitch, for some seconds,
//! so a caller may ask every 250 ms and see NICs come and go. What belongs to a network namespace is read from the
//! namespace of the calling *thread* (netlink), never from `/sys`, which shows the namespace of whoever mounted it.

mod clock;
mod control_groups;
mod cpu;
mod cpu_latency;
mod disk;
mod ethtool;
mod file_handle;
pub mod idle_scheduling;
mod kernel;
mod local_program;
mod memory;
mod near_cores;
mod netlink;
mod netns;
mod nic;
mod sampler;
mod tcp;
mod thread_priority;
mod tool;
mod watchdog;

pub use clock::clock_synchronised;
pub use control_groups::{ControlGroups, GroupLimit, GroupResource};
pub use cpu::{CoreTime, ProcessTime, cores, own_process_time, process_time, thread_time};
pub use cpu_latency::{CpuLatency, cpu_latency_us};
pub use disk::{DiskBytes, disks, process_disk_bytes};
pub use file_handle::file_handle;
pub use kernel::Kernel;
pub use memory::{HostMemory, Memory, host_memory, process_memory, process_resident};
pub use near_cores::stay_on;
pub use netns::enter;
pub use nic::nics;
pub use sampler::{Rates, Sample, Sampler, SamplerOptions, Series};
pub use skein_network::{
    BondBelow, ConnectionsPath, CoreList, Counters, Interface, InterfaceAddress, Nic, NicError, PathConnections,
    WantedConnections, bond_below, connections, near_cores, nodes, ports_of_member, queues, read as interfaces, uplink,
};
pub use tcp::{TcpSegments, tcp_segments};
pub use thread_priority::{lower_thread_priority, raise_thread_priority};
pub use tool::{Tool, ToolOutput, run_tool};
pub use watchdog::{OpenWatchdog, WatchdogFacts, watchdog_facts};

/// The reason why a file of `/proc` could not be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The file cannot be read; most often the process has ended.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The kernel wrote something that this program does not know.
    #[error("cannot understand {path}: no usable `{field}`")]
    Field {
        /// The file.
        path: String,
        /// The field that was looked for.
        field: &'static str,
    },
}

fn read_proc(path: &str) -> Result<String, ProcError> {
    std::fs::read_to_string(path).map_err(|source| ProcError::Read { path: path.to_owned(), source })
}
