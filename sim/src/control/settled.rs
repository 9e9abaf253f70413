//! What must hold once all has been calm for long.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{Contact, HostMode, Operation, OperationKind, VmRunState};
use skein_cluster::{HostRecord, VmRecord};
use skein_store::Entry;

use super::host::Agent;
use super::node;
use super::world::World;

/// Checks the world once all has been calm for long.
pub fn settled(world: &mut World) -> Result<(), String> {
    if let Some(failure) = world.check.failure.take() {
        return Err(failure);
    }
    let (_, entries) = world.all();
    let mut hosts: BTreeMap<String, HostRecord> = BTreeMap::new();
    let (mut open, mut started) = (Vec::new(), BTreeSet::new());
    for entry in &entries {
        let (key, value) = (entry.key.as_str(), entry.value.as_bytes());
        if let Some(name) = key.strip_prefix("host/") {
            hosts.insert(name.to_owned(), serde_json::from_slice(value).map_err(|error| error.to_string())?);
        } else if let Some(id) = key.strip_prefix("operation/") {
            let operation: Operation = serde_json::from_slice(value).map_err(|error| error.to_string())?;
            match &operation.kind {
                OperationKind::Autostart { vms, .. } => started.extend(vms.iter().cloned()),
                OperationKind::Failover { .. } => started.extend(operation.moves.iter().map(|of| of.vm.clone())),
                _ => {}
            }
            if !operation.state.is_over() {
                open.push(format!("{id}: {operation:#?}"));
            }
        }
    }
    if let Some(open) = open.first() {
        return Err(format!("an operation does not end: {open}"));
    }
    let kept = |id: &String| entries.iter().any(|entry| entry.key.as_str() == format!("operation/{id}"));
    if let Some(lost) = world.check.operations.iter().find(|id| !kept(id)) {
        return Err(format!("operation {lost} was answered, and is forgotten"));
    }
    if !world.nodes.iter().any(|node| node.term().is_some()) {
        return Err("no controller leads".into());
    }
    for agent in &world.agents {
        let Some(host) = hosts.get(&agent.name) else { return Err(format!("{} is no host", agent.name)) };
        let is_off = !agent.is_on && matches!(host.contact, Contact::Asleep | Contact::Lost | Contact::Off);
        if host.contact != Contact::Online && !is_off {
            return Err(format!("{} is up, and counts as {:?}", agent.name, host.contact));
        }
        let shown = node::certificate(&agent.name, agent.certificate);
        if host.replaced.contains(&shown) || !host.certificates.contains(&shown) {
            return Err(format!("{} has the certificate {shown}, and the store has {host:?}", agent.name));
        }
        if host.mode == HostMode::Draining {
            return Err(format!("{} is drained by nobody, and takes no guests", agent.name));
        }
    }
    vms_are_where_they_are_known(world, &entries)?;
    let known = |vm: &String| entries.iter().any(|entry| entry.key.as_str() == format!("vm/{vm}"));
    let mut all = world.agents.iter().flat_map(|agent| agent.guests.iter().map(move |(vm, of)| (vm, &agent.name, of)));
    if let Some((vm, host, guest)) = all.find(|(vm, ..)| !known(vm)) {
        return Err(format!("{vm} is on {host}: {guest:?}, and the store does not know it"));
    }
    if let Some(vm) = world.check.created.iter().find(|vm| !world.check.deleted.contains(*vm) && !known(vm)) {
        return Err(format!("{vm} was created, and is forgotten"));
    }
    let runs = |vm: &String| world.agents.iter().any(|agent| agent.guests.get(vm).is_some_and(|guest| guest.runs));
    if let Some(vm) = world.check.autostarts.iter().find(|vm| !runs(vm) && !started.contains(*vm)) {
        return Err(format!("{vm} ended with its host, and was to be started again"));
    }
    world.check.stats.autostarted = started.len() as u64;
    // A host that was back forgets the guests that were started elsewhere; a host that sleeps does so when it wakes.
    let awake = || world.agents.iter().filter(|of| of.is_on);
    let twice = world.guests.keys().find(|vm| awake().filter(|of| of.guests.contains_key(*vm)).count() > 1);
    twice.map_or(Ok(()), |vm| Err(format!("{vm} is known to two hosts")))
}

/// Checks that the store has each VM where the VM is, and that no move of one that is off is forgotten.
fn vms_are_where_they_are_known(world: &World, entries: &[Entry]) -> Result<(), String> {
    for entry in entries {
        let Some(name) = entry.key.as_str().strip_prefix("vm/") else { continue };
        let vm: VmRecord = serde_json::from_slice(entry.value.as_bytes()).map_err(|error| error.to_string())?;
        if let Some(set) = world.check.set.get(name).filter(|set| **set != vm.settings) {
            return Err(format!("{name} was set to {set:?}, and is {:?}", vm.settings));
        }
        let at = world.agents.iter().find(|agent| agent.guests.get(name).is_some_and(|guest| guest.runs));
        // A host that is off may know what another host has by now.
        let counts = |agent: &&Agent| agent.is_on || vm.host.as_ref() == Some(&agent.name);
        let knows = |agent: &&Agent| agent.guests.contains_key(name) && counts(agent);
        let at = at.or_else(|| world.agents.iter().find(knows));
        // A host that is off hears that a VM is its own when it is back.
        let at = at.or_else(|| world.agents.iter().find(|agent| !agent.is_on && agent.reserved.contains_key(name)));
        let runs = at.and_then(|agent| agent.guests.get(name)).is_some_and(|guest| guest.runs);
        let is_right = at.map(|agent| agent.name.clone()) == vm.host && runs == (vm.state == VmRunState::Running);
        if !is_right {
            return Err(format!("{name} is on {:?} and runs: {runs}; the store has {vm:?}", at.map(|a| &a.name)));
        }
    }
    let mut on = world.agents.iter().filter(|agent| agent.is_on);
    if let Some((agent, vm)) = on.find_map(|agent| Some((agent, agent.reserved.keys().next()?))) {
        return Err(format!("{vm} is still on its way to {}", agent.name));
    }
    Ok(())
}
