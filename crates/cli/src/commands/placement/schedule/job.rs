//! Makes the job that leads from one placement of a cluster to another.

use skein_placement::problem::HostId;
use skein_placement::schedule::{ConcurrencyLimits, Job, Network, Port, Power};
use skein_placement_model::cluster::Compiled;
use skein_placement_model::cluster::model::HostState;

/// Returns the job. Each host is linked with the file's bandwidth in both directions. How long guests take to start and
/// hosts to boot is not in the file, and counts as nothing.
pub fn job(compiled: &Compiled, goal: Vec<HostId>, states_at_end: &[HostState]) -> Job {
    let (hosts, guests) = (compiled.problem.hosts.len(), compiled.problem.guests.len());
    let power = compiled.names.states.iter().zip(states_at_end).map(|(now, then)| Power {
        on: *now != HostState::Offline,
        on_at_end: *then != HostState::Offline,
        ..Power::ALWAYS
    });
    let port = Port { outward: compiled.bandwidth, inward: compiled.bandwidth, switch: None };
    Job {
        problem: compiled.problem.clone(),
        goal,
        traffic: compiled.traffic.clone(),
        start_seconds: vec![0.0; guests],
        stop_seconds: vec![0.0; guests],
        network: Network { ports: vec![port; hosts], switches: Vec::new() },
        limits: vec![ConcurrencyLimits::default(); hosts],
        power: power.collect(),
        running: Vec::new(),
    }
}
