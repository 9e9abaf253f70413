//! What agents do of moves of VMs that are off, and what must hold of these.

use skein_api::{Reply, VmState, VmView};

use super::event::Event;
use super::host::refused;
use super::host::{Agent, Guest, Ms};
use super::world::World;

/// For how long a host that is on again may know VMs that other hosts have by now.
const BACK_MS: Ms = 10_000;

/// Says what a host keeps of a VM that is off.
pub fn offer(world: &World, host: usize, vm: &str) -> Reply {
    let agent = &world.agents[host];
    if agent.is_off(vm) { Reply::Offer { offer: vm.to_owned() } } else { refused("it is not off") }
}

/// Keeps a VM of another host.
pub fn reserve(world: &mut World, host: usize, reservation: String, vm: &str) -> Reply {
    if world.rng.percent(5) {
        return refused("too many commands are under way");
    }
    let agent = &mut world.agents[host];
    if agent.guests.contains_key(vm) || agent.starting.contains_key(vm) || agent.incoming.contains_key(vm) {
        return refused("it is here already");
    }
    if agent.refuses.contains(vm) {
        return refused("its disk is not here");
    }
    agent.reserved.insert(vm.to_owned(), reservation);
    // Somebody may start it where it is.
    if let Some(source) = world.agents.iter().position(|of| of.guests.contains_key(vm))
        && world.rng.percent(5)
    {
        let ms = world.rng.between(1, 2000);
        world.after(ms, Event::StartHere { host: source, vm: vm.to_owned() });
    }
    shown(world, host, vm)
}

fn shown(world: &World, host: usize, vm: &str) -> Reply {
    let views: VmView = world.agents[host].views().remove(vm).unwrap_or_else(|| VmView::new(vm, VmState::Stopped));
    Reply::Vm(Box::new(views))
}

/// Ends a reservation.
pub fn release(world: &mut World, host: usize, vm: &str, reservation: &str, keep: bool) -> Reply {
    if world.agents[host].reserved.get(vm).is_none_or(|of| of != reservation) {
        return if world.agents[host].guests.contains_key(vm) { shown(world, host, vm) } else { Reply::Done };
    }
    world.agents[host].reserved.remove(vm);
    if !keep {
        world.say(|| format!("the reservation of {vm} on host {host} ends"));
        return Reply::Done;
    }
    // A host that was off forgets it when it is back, and may just be back.
    let now = world.now;
    let is_known = |of: &&Agent| of.is_on && now - of.on_since > BACK_MS && of.guests.contains_key(vm);
    if let Some(other) = world.agents.iter().find(is_known) {
        let what = format!("{vm} can be started on host {host}, and on {}", other.name);
        world.check.broken(world.now, what);
    }
    world.say(|| format!("{vm} is host {host}'s while it is off"));
    let guest = Guest { ram_mb: world.guests[vm], runs: false, migration: None };
    world.agents[host].guests.insert(vm.to_owned(), guest);
    world.check.stats.moved_off += 1;
    shown(world, host, vm)
}

/// Gives a VM up that is off, once or never.
pub fn leave(world: &mut World, host: usize, vm: &str, reservation: String) -> Reply {
    let agent = &world.agents[host];
    let has_left = agent.left.get(&reservation).copied().unwrap_or(agent.is_off(vm));
    let is_new = world.agents[host].left.insert(reservation.clone(), has_left).is_none();
    if is_new && has_left {
        if !world.agents.iter().any(|of| of.reserved.get(vm) == Some(&reservation)) {
            world.check.broken(world.now, format!("{vm} is given up by host {host}, and nobody keeps it"));
        }
        world.say(|| format!("{vm} is given up by host {host}"));
        world.agents[host].guests.remove(vm);
    }
    if world.rng.percent(5) {
        return refused("it takes long: ask again");
    }
    match has_left {
        true => Reply::Done,
        false => Reply::NotForgotten(skein_api::Refusal { message: "it is not off".into(), cure: String::new() }),
    }
}
