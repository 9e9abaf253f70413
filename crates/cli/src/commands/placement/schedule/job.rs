//! The way from one placement of a cluster to another, as a job.

use anyhow::anyhow;
use skein_placement::cluster::amount::{Amount, Unit};
use skein_placement::cluster::file::{Guest, HostState, Template};
use skein_placement::problem::HostId;
use skein_placement::schedule::{Job, Limits, Network, Port, Power, Traffic};

use super::super::cluster::Source;

/// How long guests may stand still: what `skein migrate` aims at unless it is told otherwise.
const DOWNTIME_S: f64 = 0.3;
/// The resource whose size is what there is to send, unless `memory` says otherwise.
const MEMORY: &str = "memory";

/// The job: each host is linked with the file's bandwidth both ways; how long guests take to start and hosts to boot is not in
/// the file, and counts as nothing.
pub fn job(source: &Source, goal: Vec<HostId>, states_at_end: &[HostState]) -> anyhow::Result<Job> {
    let (file, names) = (&source.file, &source.compiled.names);
    let rate = plain(&Unit::Rate, &file.bandwidth)?;
    let traffic = file.guests.iter().map(|guest| {
        let template = file.templates.iter().find(|template| Some(&template.name.value) == guest.template.as_ref());
        traffic(guest, template)
    });
    let (hosts, guests) = (file.hosts.len(), file.guests.len());
    let power = names.states.iter().zip(states_at_end).map(|(now, then)| Power {
        on: *now != HostState::Offline,
        on_at_end: *then != HostState::Offline,
        ..Power::ALWAYS
    });
    Ok(Job {
        problem: source.compiled.problem.clone(),
        goal,
        traffic: traffic.collect::<anyhow::Result<_>>()?,
        start_seconds: vec![0.0; guests],
        stop_seconds: vec![0.0; guests],
        network: Network {
            ports: vec![Port { outward: rate, inward: rate, switch: None }; hosts],
            switches: Vec::new(),
        },
        limits: vec![Limits::default(); hosts],
        power: power.collect(),
        running: Vec::new(),
    })
}

/// As the costs of moves count it: docs/placement-file.md, `memory` and `dirty`.
fn traffic(guest: &Guest, template: Option<&Template>) -> anyhow::Result<Traffic> {
    let size = || guest.size.get(MEMORY).or_else(|| template?.size.get(MEMORY));
    let memory = guest.memory.as_ref().or_else(|| template?.memory.as_ref()).or_else(size);
    let dirty = guest.dirty.as_ref().or_else(|| template?.dirty.as_ref());
    Ok(Traffic {
        memory_bytes: memory.map_or(Ok(0.0), |amount| plain(&Unit::Bytes, amount))?,
        dirty_rate: dirty.map_or(Ok(0.0), |amount| plain(&Unit::Rate, amount))?,
        downtime_seconds: DOWNTIME_S,
        ..Traffic::default()
    })
}

fn plain(unit: &Unit, amount: &Amount) -> anyhow::Result<f64> {
    unit.plain(amount).map_err(|what| anyhow!(what))
}
