//! Crashes, pauses, partitions, and a store that does not answer.

use super::event::Event;
use super::host::Ms;
use super::world::World;
use super::{agent, node, power};

/// How many faults a run has at most.
const FAULTS_MAX: u64 = 8;
/// When the last fault comes, in milliseconds.
pub const CALM_MS: u64 = 30_000;

/// After what time another controller leads than one that is paused.
const ELECTED_MS: Ms = 6000;
/// How long before its pause a controller is heard late.
const PAUSED_IN_MS: Ms = 1000;

/// Chooses when things go wrong.
pub fn schedule(world: &mut World) {
    for _ in 0..world.rng.below(FAULTS_MAX + 1) {
        let ms = world.rng.between(1500, CALM_MS);
        world.after(ms, Event::Fault);
    }
}

/// Pauses a controller.
pub fn pause(world: &mut World, node: usize, ms: Ms) {
    world.say(|| format!("c{node} is paused for {ms} ms"));
    world.nodes[node].paused_until = world.now + ms;
}

/// Lets something go wrong.
pub fn inject(world: &mut World) {
    let node = world.rng.below(world.nodes.len() as u64) as usize;
    // The leader is hit more often than others.
    let leader = (0..world.nodes.len()).find(|node| world.nodes[*node].term().is_some());
    let node = if world.rng.percent(60) { leader.unwrap_or(node) } else { node };
    let host = world.rng.below(world.agents.len() as u64) as usize;
    let ms = world.rng.between(500, 8000);
    match world.rng.below(10) {
        0 if world.nodes[node].is_alive => {
            node::kill(world, node);
            world.after(ms, Event::Restart { node: Some(node), host: None });
        }
        1 if ms > ELECTED_MS => {
            // What it says until it is paused arrives once another leads.
            world.say(|| format!("c{node} is heard late, and paused in {PAUSED_IN_MS} ms"));
            world.delay_lines_of(node, PAUSED_IN_MS + ms);
            world.after(PAUSED_IN_MS, Event::Pause { node, ms });
        }
        1 => pause(world, node, ms),
        2 => {
            world.say(|| format!("c{node} and host {host} are parted"));
            world.part(node, host);
            world.after(ms, Event::Fault);
        }
        3 if world.agents[host].is_up => {
            agent::stop(world, host);
            world.after(ms, Event::Restart { node: None, host: Some(host) });
        }
        4 if world.agents[host].is_on => {
            agent::switch_off(world, host);
            let ms = ms + 12_000 + world.rng.below(20_000);
            world.after(ms, Event::Restart { node: None, host: Some(host) });
        }
        5 => {
            world.say(|| format!("the store is silent for {ms} ms"));
            world.store_silent_until = world.now + ms;
        }
        6 => {
            let ms = 9_000 + 3 * ms;
            world.say(|| format!("host {host} is cut off for {ms} ms"));
            (0..world.nodes.len()).for_each(|node| world.part(node, host));
            world.after(ms, Event::Rejoin { host });
        }
        7..=8 => power::fault(world, host, ms),
        _ => world.cut.clear(),
    }
}
