//! What people do: what a controller allows them, and what befalls hosts between which they move guests.

use skein_api::Reply;
use skein_api::cluster::{Contact, FenceRequest};
use skein_cluster::{Ask, Asked};

use super::event::Event;
use super::host::{Agent, Ms, Question, Wanted};
use super::world::World;
use super::{agent, by_hand, node};

/// For how long a host is off that died.
const OFF_MS: Ms = 35_000;
/// How often somebody says again that a host is off.
const SAID_MS: Ms = 1_000;

/// Takes what people do.
pub fn take(world: &mut World, event: Event) {
    match event {
        Event::ByHand { host } => by_hand::new_guest(world, host),
        Event::StartHere { host, vm } => by_hand::want(world, host, &vm),
        Event::MoveHere { to, vm } => by_hand::want_move(world, to, &vm),
        Event::AskAgain { host, life, ask } => by_hand::send(world, host, life, ask),
        Event::BeginByHand { host, life, ask } => begin(world, host, life, ask),
        Event::LosesSource { id } => lose_source(world, id),
        Event::LosesTarget { id } => lose_target(world, id),
        Event::Dies { host } => dies(world, host),
        Event::SaysOff { host } => says_off(world, host),
        _ => {}
    }
}

/// Does what a person wants, if the host does.
fn begin(world: &mut World, host: usize, life: u64, ask: u64) {
    let Some(agent) = Some(&mut world.agents[host]).filter(|agent| agent.life == life) else { return };
    let Some(Question { vm, wanted, .. }) = agent.questions.remove(&ask) else { return };
    match wanted {
        Wanted::Start { .. } => agent::start_by_hand(world, host, &vm),
        Wanted::Move { to, id } => {
            if let Reply::Migration(_) = agent::migrate(world, host, (None, id), &vm, &to) {
                world.check.stats.by_hand_moved += 1;
                let to = world.agents.iter().position(|agent| agent.name == to).expect("it goes there");
                let rng = world.hand_rng.as_mut();
                if let Some(ms) = rng.and_then(|rng| rng.percent(60).then(|| rng.between(1000, 6000))) {
                    by_hand::lose_both(world, (host, to), ms);
                }
            }
            agent::report_all(world, host);
        }
    }
}

/// Has the source of a migration that waits there lose the controllers.
fn lose_source(world: &mut World, id: u64) {
    let Some(from) = world.migrations.get(&id).map(|flight| flight.from) else { return };
    world.say(|| format!("host {from}, the source of {id}, is cut off"));
    (0..world.nodes.len()).for_each(|node| world.part(node, from));
    let ms = world.hand_rng.as_mut().map_or(0, |rng| rng.between(9_000, 11_000));
    world.after(ms, Event::LosesTarget { id });
}

/// Has a migration begin as its target loses the controllers, which do not notice; the source dies once the guest has
/// gone, and somebody says so at once.
fn lose_target(world: &mut World, id: u64) {
    let Some((from, to)) = world.migrations.get(&id).map(|flight| (flight.from, flight.to)) else { return };
    if world.is_calm {
        return agent::reaches_target(world, id);
    }
    world.say(|| format!("host {to}, the target of {id}, is cut off"));
    world.part_unnoticed(to);
    agent::reaches_target(world, id);
    world.after(10, Event::Migrated { id });
    let ms = world.hand_rng.as_mut().map_or(0, |rng| rng.between(11, 300));
    world.after(ms, Event::Dies { host: from });
    for said in 1..4 {
        world.after(ms + 500 * said, Event::SaysOff { host: from });
    }
}

/// Has a host die, and come back much later.
fn dies(world: &mut World, host: usize) {
    if world.agents[host].is_on {
        agent::switch_off(world, host);
        world.after(OFF_MS, Event::Restart { node: None, host: Some(host) });
        world.after(SAID_MS, Event::SaysOff { host });
    }
}

/// Somebody who has seen that a host is off says so, until the host is back.
fn says_off(world: &mut World, host: usize) {
    if !world.agents[host].is_on {
        say_off(world, host);
        world.after(SAID_MS, Event::SaysOff { host });
    }
}

/// Somebody says that a host is off, if the host is off and counts as lost.
pub fn say_off(world: &mut World, host: usize) {
    let leader = (0..world.nodes.len()).find(|node| world.nodes[*node].term().is_some());
    let Some(node) = leader.filter(|node| world.nodes[*node].paused_until <= world.now) else { return };
    let Agent { name, is_on, .. } = &world.agents[host];
    let contact = world.nodes[node].controller.host(name).map(|host| host.contact);
    if !is_on && contact == Some(Contact::Lost) {
        let ask = Ask::Fence { host: name.clone(), request: FenceRequest { is_off: true } };
        let (id, what) = (world.number(), format!("{ask:?}"));
        node::ask(world, node, Asked { id, by: "people".into(), from: "sim".into(), what, repeat: None, ask });
    }
}
