//! Answers questions about rules, from a copy of the cluster: they take a while in a large one.

use skein_api::cluster::{Complaint, Explanation, HostObjections};
use skein_placement_model::cluster::model::Cluster;
use skein_placement_model::cluster::{History, check, compile};
use skein_placement_model::explain::{explain, objections};

use crate::planner::PlanError;

/// Returns what is broken, the worst first.
///
/// # Errors
///
/// The cluster is contradictory.
pub fn complaints(cluster: &Cluster) -> Result<Vec<Complaint>, PlanError> {
    let compiled = compile(cluster).map_err(|error| PlanError::Cluster(Box::new(error)))?;
    let (found, _) = check(&compiled, &compiled.problem.initial, &History::default(), 0);
    let complaint = |of: skein_placement_model::cluster::Complaint| Complaint {
        hard: of.hard,
        what: of.what,
        rule: of.rule,
        vms: of.guests,
        hosts: of.hosts,
    };
    Ok(found.complaints.into_iter().map(complaint).collect())
}

/// Returns what is wrong with a rule beside the others, one sentence each.
///
/// # Errors
///
/// The cluster is contradictory.
pub fn warnings(cluster: &Cluster, rule: &str) -> Result<Vec<String>, PlanError> {
    let compiled = compile(cluster).map_err(|error| PlanError::Cluster(Box::new(error)))?;
    let name = format!("rule '{rule}'");
    let clashes = compiled.clashes.iter().filter(|clash| clash.rules.contains(&name));
    let mut found: Vec<String> = clashes.map(|clash| format!("{}: {}", clash.what, clash.todo)).collect();
    if !cluster.rules.iter().any(|of| of.name() == rule) {
        found.push("it is about no VM that runs, or about no host".to_owned());
    }
    Ok(found)
}

/// Returns all that can be said of a VM and the hosts; `None`: no such VM runs on a host that reports.
///
/// # Errors
///
/// The cluster is contradictory.
pub fn explained(cluster: &Cluster, vm: &str) -> Result<Option<Explanation>, PlanError> {
    let compiled = compile(cluster).map_err(|error| PlanError::Cluster(Box::new(error)))?;
    let Some(guest) = compiled.names.guest_named(vm) else { return Ok(None) };
    let found = explain(&compiled, &compiled.problem.initial, guest);
    let hosts = found.hosts.into_iter().map(|of| HostObjections {
        host: of.host,
        accepts: of.accepts,
        objections: of.objections.into_iter().map(|objection| objection.what).collect(),
    });
    let remedies = found.relaxations.into_iter().map(|of| format!("{}: {}", of.host, of.steps.join(", then ")));
    Ok(Some(Explanation { vm: vm.to_owned(), on: found.on, hosts: hosts.collect(), remedies: remedies.collect() }))
}

/// Returns what a person breaks who has a VM run on a host: hard rules, and what the host has not got. Nothing is said
/// of a cluster whose rules contradict each other.
pub fn broken_by(cluster: &Cluster, vm: &str, host: &str) -> Vec<String> {
    let Ok(compiled) = compile(cluster) else { return Vec::new() };
    let guest = compiled.names.guest_named(vm);
    let host = (0..).zip(&compiled.names.hosts).find(|(_, name)| *name == host).map(|(host, _)| host);
    let (Some(guest), Some(host)) = (guest, host) else { return Vec::new() };
    let all = objections(&compiled, &compiled.problem.initial, guest, host);
    all.into_iter().filter(|objection| objection.hard).map(|objection| objection.what).collect()
}
