//! What is run.

use std::path::PathBuf;
use std::time::Duration;

/// A fleet, and what happens to it.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// `skein-controller`.
    pub controller: PathBuf,
    /// The program of agents' processes with its arguments, which calls [`agents::run`](crate::agents::run).
    pub agents: Vec<String>,
    /// The hosts.
    pub hosts: u32,
    /// The guests of each host at the beginning.
    pub guests_per_host: u32,
    /// What a migration carries of a guest's memory in a second.
    pub copy_bytes_per_s: u64,
    /// The processes that the agents are in.
    pub processes: u32,
    /// A day of PlanetLab's traces, or a directory of such days. `None`: loads are drawn from the seed.
    pub planetlab: Option<PathBuf>,
    /// Draws loads, faults, migrations.
    pub seed: u64,
    /// The windows in which latencies are measured.
    pub windows: u32,
    /// How long each is.
    pub window: Duration,
    /// The hosts that are drained at a time.
    pub drains: u32,
}

impl FleetSettings {
    /// How many seconds of a trace pass in a second.
    pub const SPEED: u32 = 10;

    /// Returns the fleet of the case: 1,000 hosts with 20 guests each.
    pub fn new(controller: PathBuf, agents: Vec<String>) -> FleetSettings {
        FleetSettings {
            controller,
            agents,
            hosts: 1000,
            guests_per_host: 20,
            copy_bytes_per_s: 1_000_000_000,
            processes: 4,
            planetlab: None,
            seed: 1,
            windows: 3,
            window: Duration::from_secs(30),
            drains: 10,
        }
    }

    /// Returns a smaller fleet: 200 hosts.
    pub fn quick(self) -> FleetSettings {
        FleetSettings { hosts: 200, processes: 2, windows: 2, window: Duration::from_secs(10), drains: 4, ..self }
    }
}
