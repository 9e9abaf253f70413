//! Answers questions about rules, from a copy of the cluster: they take a while in a large one.

use std::collections::BTreeSet;

use skein_api::cluster::{Complaint, Explanation, HostObjections};
use skein_placement_model::cluster::model::Cluster;
use skein_placement_model::cluster::{Clash, Compiled, History, check};
use skein_placement_model::explain::{explain, objections};

use crate::planner::PlanError;
use crate::sound::{LeftOut, compile_sound};

/// Returns what is broken, the worst first.
///
/// # Errors
///
/// The cluster cannot be read, whatever is left out of it.
pub fn complaints(cluster: &Cluster) -> Result<Vec<Complaint>, PlanError> {
    let (compiled, left_out) = compiled(cluster)?;
    let (found, _) = check(&compiled, &compiled.problem.initial, &History::default(), 0);
    // A rule that is about no guest breaks nothing.
    let clashes: Vec<&Clash> = compiled.clashes.iter().filter(|clash| !clash.guests.is_empty()).collect();
    let mut told = BTreeSet::new();
    let complaints = found.complaints.into_iter().map(|of| {
        let is_of = |(_, clash): &(usize, &&Clash)| of.rule.as_ref().is_some_and(|rule| clash.rules.contains(rule));
        let of_rule = clashes.iter().enumerate().filter(is_of).filter(|_| of.hard);
        let clashes = of_rule.map(|(index, clash)| {
            told.insert(index);
            clash_words(clash)
        });
        let clashes = clashes.collect();
        Complaint { hard: of.hard, what: of.what, rule: of.rule, vms: of.guests, hosts: of.hosts, clashes }
    });
    let mut complaints: Vec<Complaint> = complaints.collect();
    let others = clashes.iter().enumerate().filter(|(index, _)| !told.contains(index)).map(|(_, clash)| Complaint {
        hard: true,
        what: clash.what.clone(),
        rule: clash.rules.first().cloned(),
        vms: clash.guests.clone(),
        hosts: Vec::new(),
        clashes: vec![clash_words(clash)],
    });
    let others: Vec<Complaint> = others.collect();
    complaints.splice(0..0, others);
    complaints.splice(0..0, left_out.into_iter().map(left_out_complaint));
    Ok(complaints)
}

/// Compiles a cluster without what placement cannot use, and returns that, too.
fn compiled(cluster: &Cluster) -> Result<(Compiled, Vec<LeftOut>), PlanError> {
    compile_sound(&mut cluster.clone()).map_err(|error| PlanError::Cluster(Box::new(error)))
}

/// Complains of what placement cannot use.
pub fn left_out_complaint(of: LeftOut) -> Complaint {
    let rule = of.rule.map(|name| format!("rule '{name}'"));
    let clashes = vec![format!("{}: {}", of.what, of.todo)];
    let what = format!("placement leaves out what it cannot use: {}", of.what);
    Complaint { hard: true, what, rule, vms: Vec::new(), hosts: Vec::new(), clashes }
}

/// Says which rules can never hold together, why, and what to do.
fn clash_words(clash: &Clash) -> String {
    match clash.rules.is_empty() {
        true => format!("{}: {}", clash.what, clash.todo),
        false => format!("{}: {}: {}", clash.rules.join(" and "), clash.what, clash.todo),
    }
}

/// Returns what is wrong with a rule beside the others, one sentence each.
///
/// # Errors
///
/// The cluster cannot be read, whatever is left out of it.
pub fn warnings(cluster: &Cluster, rule: &str) -> Result<Vec<String>, PlanError> {
    let (compiled, left_out) = compiled(cluster)?;
    let name = format!("rule '{rule}'");
    let clashes = compiled.clashes.iter().filter(|clash| clash.rules.contains(&name));
    let mut found: Vec<String> = clashes.map(|clash| format!("{}: {}", clash.what, clash.todo)).collect();
    let left_out = left_out.into_iter().filter(|of| of.rule.as_deref() == Some(rule));
    found.extend(left_out.map(|of| format!("{}: {}", of.what, of.todo)));
    if !cluster.rules.iter().any(|of| of.name() == rule) {
        found.push("it is about no VM that runs, or about no host".to_owned());
    }
    Ok(found)
}

/// Returns all that can be said of a VM and the hosts; `None`: no such VM runs on a host that reports.
///
/// # Errors
///
/// The cluster cannot be read, whatever is left out of it.
pub fn explained(cluster: &Cluster, vm: &str, here: Option<&str>) -> Result<Option<Explanation>, PlanError> {
    let mut cluster = cluster.clone();
    // Plans have a guest where it goes.
    let is_host = |here: &&str| cluster.hosts.iter().any(|host| host.name == **here);
    if let Some(here) = here.filter(is_host)
        && let Some(guest) = cluster.guests.iter_mut().find(|guest| guest.name == vm)
    {
        guest.host = Some(here.to_owned());
    }
    let (compiled, _) = compiled(&cluster)?;
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
/// of a cluster that cannot be read.
pub fn broken_by(cluster: &Cluster, vm: &str, host: &str) -> Vec<String> {
    let Ok((compiled, _)) = compiled(cluster) else { return Vec::new() };
    let guest = compiled.names.guest_named(vm);
    let host = (0..).zip(&compiled.names.hosts).find(|(_, name)| *name == host).map(|(host, _)| host);
    let (Some(guest), Some(host)) = (guest, host) else { return Vec::new() };
    let all = objections(&compiled, &compiled.problem.initial, guest, host);
    all.into_iter().filter(|objection| objection.hard).map(|objection| objection.what).collect()
}
