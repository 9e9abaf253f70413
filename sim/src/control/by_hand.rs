//! People who start VMs by hand, also on a host that has not heard yet where the cluster started them meanwhile: its
//! agent asks the controller that leads.

use skein_api::ToController;
use skein_cluster::Planted;

use super::event::Event;
use super::host::{Ms, Question};
use super::world::World;

/// How long an agent waits for an answer, and for another than one that may pass.
const ANSWER_MS: Ms = 15_000;
const AGAIN_MS: Ms = 3_000;
/// How often an agent asks again.
const RESEND_MS: Ms = 1_000;
/// When people have started the last VM by themselves.
const LAST_MS: Ms = 35_000;

/// Chooses when somebody starts some VM on some host.
pub fn schedule(world: &mut World) {
    let hosts = world.agents.len() as u64;
    let Some(rng) = &mut world.hand_rng else { return };
    let wants: Vec<(Ms, usize, String)> = (0..rng.below(4))
        .map(|_| (rng.between(4000, LAST_MS), rng.below(hosts) as usize, format!("v{}", rng.below(10))))
        .collect();
    for (ms, host, vm) in wants {
        world.after(ms, Event::StartHere { host, vm });
    }
}

/// Has somebody start VMs on a host that is on again, which had them before.
pub fn back(world: &mut World, host: usize) {
    let off: Vec<String> = world.agents[host].guests.keys().cloned().collect();
    let Some(rng) = &mut world.hand_rng else { return };
    let mut wants: Vec<(Ms, String)> = Vec::new();
    for vm in off {
        if rng.percent(50) {
            // At once, when no controller has been heard, or later.
            let most = if rng.percent(50) { 1500 } else { 9000 };
            wants.push((rng.between(1, most), vm));
        }
    }
    for (ms, vm) in wants {
        world.after(ms, Event::StartHere { host, vm });
    }
}

/// Somebody wants a VM started on a host: by its name if the host has the VM, else from a file.
pub fn want(world: &mut World, host: usize, vm: &str) {
    let is_asked = world.agents.iter().any(|agent| agent.is_asked(vm));
    // Of what the cluster does not know it says nothing.
    if !world.guests.contains_key(vm) || world.check.deleted.contains(vm) || is_asked {
        return;
    }
    let now = world.now;
    let ask = world.number();
    let agent = &mut world.agents[host];
    if !agent.is_up || agent.is_there(vm) || agent.reserved.contains_key(vm) {
        return;
    }
    let is_here = agent.guests.contains_key(vm);
    let question =
        Question { vm: vm.to_owned(), is_here, until: now + ANSWER_MS, is_put_off: false, is_allowed: false };
    agent.questions.insert(ask, question);
    world.say(|| format!("somebody wants {vm} started on host {host}, which asks as {ask}"));
    world.check.stats.by_hand += 1;
    let life = world.agents[host].life;
    send(world, host, life, ask);
}

/// Sends a question to the controller that leads, as far as the agent knows, or gives up.
pub fn send(world: &mut World, host: usize, life: u64, ask: u64) {
    let now = world.now;
    let agent = &world.agents[host];
    let Some(question) = agent.questions.get(&ask).filter(|of| agent.life == life && !of.is_allowed).cloned() else {
        return;
    };
    if now >= question.until {
        world.say(|| format!("{ask} has no answer"));
        if !question.is_put_off && has(world, Planted::StartByHandUnanswered) {
            return allow(world, host, ask);
        }
        world.agents[host].questions.remove(&ask);
        return;
    }
    let leader = agent.sent.iter().find(|(_, sent)| sent.led == Some(agent.highest)).map(|(session, _)| *session);
    if let Some(session) = leader {
        let Question { vm, is_here, .. } = question;
        world.send_to_controller(session, ToController::AskStart { ask, vm, is_here });
    }
    world.after(RESEND_MS, Event::AskAgain { host, life, ask });
}

fn has(world: &World, planted: Planted) -> bool {
    world.nodes.iter().any(|node| node.settings.planted == Some(planted))
}

/// Takes an answer. An error: whether it may pass.
pub fn answered(world: &mut World, host: usize, session: u64, ask: u64, answer: Result<(), bool>) {
    let (now, agent) = (world.now, &mut world.agents[host]);
    let is_leader = agent.sent.get(&session).is_some_and(|sent| sent.led == Some(agent.highest));
    let Some(question) = agent.questions.get_mut(&ask).filter(|of| is_leader && !of.is_allowed) else { return };
    match answer {
        Ok(()) => allow(world, host, ask),
        Err(true) => {
            if !std::mem::replace(&mut question.is_put_off, true) {
                question.until = now + AGAIN_MS;
            }
        }
        Err(false) => {
            agent.questions.remove(&ask);
            world.check.stats.by_hand_refused += 1;
        }
    }
}

fn allow(world: &mut World, host: usize, ask: u64) {
    let agent = &mut world.agents[host];
    let life = agent.life;
    agent.questions.get_mut(&ask).expect("it is asked").is_allowed = true;
    let ms = world.rng.between(1, 400);
    world.after(ms, Event::BeginByHand { host, life, ask });
}

/// Somebody starts a new guest by hand, on its host.
pub fn new_guest(world: &mut World, host: usize) {
    let name = format!("l{}", world.number());
    world.guests.insert(name.clone(), 512);
    want(world, host, &name);
}
