//! Hosts that are updated: commands that take a while or fail, boots that take long or do not come back by themselves.

use skein_api::cluster::{HostMode, HostUpdateState, Operation, OperationState};
use skein_api::{HostUpdateView, Reply, UpdateHow, UpdateRunState};
use skein_cluster::HostRecord;

use super::event::Event;
use super::world::World;

/// Takes an order to update the host, or tells how far it is. `close` has the host take no guests, or refuses that.
pub fn take(
    world: &mut World,
    host: usize,
    id: String,
    how: UpdateHow,
    order: bool,
    close: impl FnOnce(&mut World) -> Reply,
) -> Reply {
    let known = world.agents[host].update.as_ref().is_some_and(|update| update.0 == id);
    if !known && order {
        check_order(world, host, &id, how);
        if let Reply::Error(refusal) = close(world) {
            return Reply::Error(refusal);
        }
        let boot = world.agents[host].boot;
        world.say(|| format!("host {host} is updated: {id} {how:?}"));
        world.agents[host].update = Some((id.clone(), how, boot, None));
        let ran = id.split('.').take(2).collect::<Vec<_>>().join(".");
        world.check.updated(world.now, &ran);
        let ms = world.rng.between(50, 6000);
        match how {
            UpdateHow::Manual if world.rng.percent(80) => world.after(ms, Event::Boot { host }),
            UpdateHow::Manual => {}
            _ => world.after(ms, Event::Updated { host, id: id.clone() }),
        }
    }
    Reply::HostUpdate(look(world, host, &id))
}

fn look(world: &World, host: usize, id: &str) -> HostUpdateView {
    let agent = &world.agents[host];
    let state = match &agent.update {
        Some((known, how, boot, result)) if known == id => match (how, result) {
            (UpdateHow::Manual, _) if agent.boot != *boot => UpdateRunState::Done,
            (UpdateHow::Manual, _) => UpdateRunState::Running,
            (_, Some(false)) => UpdateRunState::Failed,
            (UpdateHow::Update, Some(true)) => UpdateRunState::Done,
            (_, Some(true)) if agent.boot != *boot => UpdateRunState::Done,
            (_, None) if agent.boot != *boot => UpdateRunState::Failed,
            _ => UpdateRunState::Running,
        },
        _ => UpdateRunState::Unknown,
    };
    HostUpdateView { state, message: "so says the agent".into() }
}

/// The command of an update ends.
pub fn ended(world: &mut World, host: usize, id: &str) {
    let is_well = world.is_calm || world.rng.percent(90);
    let agent = &mut world.agents[host];
    let boot = agent.boot;
    // What was under way when the host was switched off ended with it.
    let is_on = agent.is_on;
    let Some((known, how, begun, result)) = agent.update.as_mut().filter(|_| is_on) else { return };
    if known != id || *begun != boot || result.is_some() {
        return;
    }
    *result = Some(is_well);
    if is_well && how.boots() {
        let ms = world.rng.between(20, 2000);
        world.after(ms, Event::Boot { host });
    }
}

/// Boots a host, as was ordered. Whatever runs there would end. `switch_off` ends it.
pub fn boot(world: &mut World, host: usize, switch_off: impl FnOnce(&mut World)) {
    if !world.agents[host].is_on {
        return;
    }
    let agent = &world.agents[host];
    let is_manual = agent.update.as_ref().is_some_and(|update| update.1 == UpdateHow::Manual);
    // A person looks first.
    if is_manual && (agent.closed_until <= world.now || agent.ram_used_mb() > 0) {
        return;
    }
    world.check.stats.booted += 1;
    if world.agents[host].ram_used_mb() > 0 {
        let what = format!("{} is booted, and has guests", world.agents[host].name);
        world.check.broken(world.now, what);
    }
    switch_off(world);
    let ms = if world.rng.percent(15) { world.rng.between(40_000, 90_000) } else { world.rng.between(500, 9_000) };
    world.after(ms, Event::Restart { node: None, host: Some(host) });
}

/// Checks that a host which is ordered to be updated was emptied, by what the store has, and that its turn is written.
fn check_order(world: &mut World, host: usize, id: &str, how: UpdateHow) {
    let name = world.agents[host].name.clone();
    let key = format!("operation/{}", id.split('.').next().unwrap_or_default());
    let operation = world.value(&key).and_then(|value| serde_json::from_slice::<Operation>(&value).ok());
    let Some(operation) = operation else {
        return world.check.broken(world.now, format!("{id} is ordered, and the store has no such operation"));
    };
    if operation.state.is_over() {
        return;
    }
    let turn = operation.update.as_ref().and_then(|of| of.hosts.iter().find(|of| of.host == name)).cloned();
    let Some(turn) = turn.filter(|of| of.until.is_some()) else {
        return world
            .check
            .broken(world.now, format!("{id} is ordered, and the store does not have that it is updated"));
    };
    let drain = turn.drain.as_ref().and_then(|id| world.value(&format!("operation/{id}")));
    let drain = drain.and_then(|value| serde_json::from_slice::<Operation>(&value).ok());
    if drain.is_some_and(|drain| drain.state != OperationState::Done) {
        world.check.broken(world.now, format!("{id} is ordered, and the host was not emptied"));
    }
    let record = world.value(&format!("host/{name}")).and_then(|v| serde_json::from_slice::<HostRecord>(&v).ok());
    if how != UpdateHow::Manual
        && turn.state == HostUpdateState::Updating
        && record.is_some_and(|of| of.mode == HostMode::Active)
    {
        world.check.broken(world.now, format!("{id} is ordered, and the host takes guests"));
    }
}
