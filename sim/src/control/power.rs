//! Fencing devices: out of reach, slow, wrong about what they have done, wrong about the power until they are told to
//! switch it off, and late to say that it is off.

use skein_api::cluster::{
    ClusterSettings, Contact, FailoverSettings, FencingDevice, HostSettings, PowerSettings, PowerState,
};
use skein_cluster::{Ask, Asked, PowerAction, PowerResult};

use super::agent;
use super::event::Event;
use super::host::Ms;
use super::node;
use super::world::World;

/// How often it is seen whether each host has a device, in milliseconds.
const OUTFIT_MS: Ms = 500;
/// Gives hosts their devices, as somebody does who sets a cluster up.
pub fn outfit(world: &mut World) {
    world.after(OUTFIT_MS, Event::Outfit);
    let leader = (0..world.nodes.len()).find(|node| world.nodes[*node].term().is_some());
    let Some(node) = leader.filter(|node| world.nodes[*node].paused_until <= world.now) else { return };
    let bare =
        |name: &String| world.nodes[node].controller.host(name).is_some_and(|host| host.settings.fencing.is_none());
    let Some(host) = world.agents.iter().map(|agent| agent.name.clone()).find(bare) else { return };
    let failover = FailoverSettings { grace_s: world.rng.below(4) as u32, ..FailoverSettings::default() };
    let settings = Box::new(ClusterSettings { failover, power: saving(world), ..ClusterSettings::default() });
    ask(world, node, Ask::SetSettings { settings, version: None });
    let device = FencingDevice::Redfish {
        url: format!("http://{host}"),
        system: None,
        user: None,
        secret: None,
        certificate_sha256: None,
        ca: None,
    };
    let settings = HostSettings { fencing: Some(device), ..HostSettings::default() };
    let set = Ask::SetHost { host, settings, version: None };
    ask(world, node, set);
}

/// Returns how hosts sleep: at once where they can, in some runs.
pub fn saving(world: &mut World) -> PowerSettings {
    PowerSettings {
        saving: world.rng.percent(40),
        hosts_min: world.rng.between(1, 3) as u32,
        spare_hosts: world.rng.below(2) as u32,
        settle_s: 0,
        awake_min_s: 0,
        wake_within_s: 30,
        hours: None,
    }
}

fn ask(world: &mut World, node: usize, ask: Ask) {
    let (id, what) = (world.number(), format!("{ask:?}"));
    node::ask(world, node, Asked { id, by: "people".into(), from: "sim".into(), what, repeat: None, ask });
}

/// Takes a word at the device.
pub fn take(world: &mut World, (node, life, job): (usize, u64, u64), host: usize, action: PowerAction) {
    let now = world.now;
    let result = match action {
        _ if world.bmcs[host].silent_until > now => {
            let is_refused = world.rng.percent(50);
            let why = "it does not answer".to_owned();
            if action == PowerAction::Shutdown && !is_refused && world.rng.percent(50) {
                let ms = world.rng.between(20, 8000);
                world.after(ms, Event::ShutDown { host });
            }
            if matches!(action, PowerAction::Off | PowerAction::Shutdown) && !is_refused {
                // The word may have come to it: from here on it does not lie.
                (world.bmcs[host].says_off_until, world.bmcs[host].is_ordered) = (0, true);
            }
            if is_refused { PowerResult::Refused(why) } else { PowerResult::Unknown(why) }
        }
        PowerAction::Off => switch(world, host),
        PowerAction::Shutdown | PowerAction::On => turn(world, host, action == PowerAction::On),
        PowerAction::Read | PowerAction::Check { .. } => {
            let bmc = &world.bmcs[host];
            let is_off = bmc.says_off_until > now || (!world.agents[host].is_on && bmc.says_on_until <= now);
            let state = if is_off { PowerState::Off } else { PowerState::On };
            PowerResult::State(state, String::new())
        }
    };
    let name = world.agents[host].name.clone();
    world.say(|| format!("the device of {name}: {action:?} {result:?}"));
    if action == PowerAction::Shutdown && matches!(result, PowerResult::Refused(_)) {
        world.check.not_told_to_sleep(&name);
    }
    let ms = if matches!(result, PowerResult::Unknown(_)) {
        world.rng.between(500, 9000)
    } else {
        world.rng.between(1, 200)
    };
    world.after(ms, Event::Powered { node, life, job, result });
}

/// Switches a host off, or does not, and says so, or does not.
fn switch(world: &mut World, host: usize) -> PowerResult {
    let bmc = &mut world.bmcs[host];
    // From here on it does not say that the host is off before that is so.
    (bmc.says_off_until, bmc.is_ordered) = (0, true);
    let kind = if world.is_calm { 0 } else { world.rng.below(10) };
    if kind < 8 {
        let ms = world.rng.between(20, 4000);
        world.after(ms, Event::PowerOff { host });
    }
    match kind {
        0..=6 | 8 => PowerResult::Accepted,
        7 => PowerResult::Unknown("it answered with an error".into()),
        _ => PowerResult::Refused("it answered with an error".into()),
    }
}

/// Has a host shut itself down, or be on, or does not; and says so, or does not.
fn turn(world: &mut World, host: usize, is_on: bool) -> PowerResult {
    if !is_on {
        let bmc = &mut world.bmcs[host];
        (bmc.says_off_until, bmc.is_ordered) = (0, true);
    }
    let kind = if world.is_calm { 0 } else { world.rng.below(10) };
    if kind < 8 {
        let ms = world.rng.between(20, 8000);
        world.after(ms, if is_on { Event::PowerOn { host } } else { Event::ShutDown { host } });
    }
    match kind {
        0..=6 | 8 => PowerResult::Accepted,
        7 => PowerResult::Unknown("it answered with an error".into()),
        _ => PowerResult::Refused("it answered with an error".into()),
    }
}

/// The host's power is off.
pub fn off(world: &mut World, host: usize) {
    if !world.agents[host].is_on {
        return;
    }
    let lags_ms = if world.rng.percent(30) { world.rng.between(500, 6000) } else { 0 };
    world.bmcs[host].says_on_until = world.now + lags_ms;
    world.check.stats.switched_off += 1;
    // A host that was only cut off has guests that run.
    world.check.stats.switched_off_alive += u64::from(world.agents[host].is_up);
    agent::switch_off(world, host);
    let ms = world.rng.between(8_000, 30_000);
    world.after(ms, Event::Restart { node: None, host: Some(host) });
}

/// Lets a device go wrong.
pub fn fault(world: &mut World, host: usize, ms: Ms) {
    let now = world.now;
    let says_off = world.rng.percent(50);
    let bmc = &mut world.bmcs[host];
    if says_off && !bmc.is_ordered {
        bmc.says_off_until = now + 4 * ms;
    } else {
        bmc.silent_until = now + 2 * ms;
    }
}

/// Returns a host that a controller counts as lost.
pub fn lost(world: &World, node: usize) -> Option<String> {
    let is_lost = |name: &String| world.nodes[node].controller.host(name).is_some_and(|of| of.contact == Contact::Lost);
    world.agents.iter().map(|agent| agent.name.clone()).find(is_lost)
}
