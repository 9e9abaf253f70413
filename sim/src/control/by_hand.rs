//! People who start VMs by hand, also on a host that has not heard yet where the cluster started them meanwhile, and
//! who move guests by hand, also between hosts that lose contact meanwhile: agents ask the controller that leads.

use skein_api::{MigrationId, ToController};
use skein_cluster::Planted;

use super::event::Event;
use super::host::{Ms, Question, Wanted};
use super::world::World;

/// How long an agent waits for an answer, and for another than one that may pass.
const ANSWER_MS: Ms = 15_000;
const AGAIN_MS: Ms = 3_000;
/// How often an agent asks again.
const RESEND_MS: Ms = 1_000;
/// When people have started the last VM by themselves.
const LAST_MS: Ms = 35_000;
/// When people have moved the last guest by themselves: a host may die of it before all is calm.
const LAST_MOVE_MS: Ms = 15_000;

/// Until when hosts begin to lose the controllers one after the other: what follows comes before all is calm.
const LAST_LOST_MS: Ms = 15_000;
/// How often the hosts of a migration do.
const LOST_PERCENT: u64 = 20;

/// Chooses when somebody starts some VM on some host, and when somebody moves a guest to some host.
pub fn schedule(world: &mut World) {
    let hosts = world.agents.len() as u64;
    let Some(rng) = &mut world.hand_rng else { return };
    let wants: Vec<(Ms, usize, String)> = (0..rng.below(4))
        .map(|_| (rng.between(4000, LAST_MS), rng.below(hosts) as usize, format!("v{}", rng.below(10))))
        .collect();
    let moves: Vec<(Ms, usize, String)> = (0..rng.below(4))
        .map(|_| (rng.between(4000, LAST_MOVE_MS), rng.below(hosts) as usize, format!("v{}", rng.below(10))))
        .collect();
    for (ms, host, vm) in wants {
        world.after(ms, Event::StartHere { host, vm });
    }
    for (ms, to, vm) in moves {
        world.after(ms, Event::MoveHere { to, vm });
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
    let agent = &world.agents[host];
    if !agent.is_up || agent.is_there(vm) || agent.reserved.contains_key(vm) {
        return;
    }
    let is_here = agent.guests.contains_key(vm);
    ask(world, host, vm, Wanted::Start { is_here });
}

/// Somebody wants a guest moved to a host.
pub fn want_move(world: &mut World, to: usize, vm: &str) {
    let is_asked = world.agents.iter().any(|agent| agent.is_asked(vm));
    let here = world.agents.iter().position(|agent| agent.guests.get(vm).is_some_and(|guest| guest.runs));
    let Some(host) = here.filter(|host| *host != to && world.agents[*host].is_up && !is_asked) else { return };
    // What is asked replaces what was asked before.
    if world.agents[host].guests[vm].migration.is_none() {
        // Often neither host has contact any more.
        let rng = world.hand_rng.as_mut();
        if let Some(ms) = rng.and_then(|rng| rng.percent(30).then(|| rng.between(1500, 4500))) {
            lose_both(world, (host, to), ANSWER_MS + ms);
        }
        let (to, id) = (world.agents[to].name.clone(), world.number());
        ask(world, host, vm, Wanted::Move { to, id });
    }
}

fn ask(world: &mut World, host: usize, vm: &str, wanted: Wanted) {
    let ask = world.number();
    world.say(|| format!("somebody on host {host} wants {wanted:?} of {vm}, and its agent asks as {ask}"));
    let until = world.now + ANSWER_MS;
    let question = Question { vm: vm.to_owned(), wanted, until, is_put_off: false, is_allowed: false };
    world.agents[host].questions.insert(ask, question);
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
        let planted = match question.wanted {
            Wanted::Start { .. } => Planted::StartByHandUnanswered,
            Wanted::Move { .. } => Planted::MoveByHandUnanswered,
        };
        if !question.is_put_off && world.has(planted) {
            return allow(world, host, ask);
        }
        world.agents[host].questions.remove(&ask);
        return;
    }
    let leader = agent.sent.iter().find(|(_, sent)| sent.led == Some(agent.highest)).map(|(session, _)| *session);
    if let Some(session) = leader {
        let Question { vm, wanted, .. } = question;
        let line = match wanted {
            Wanted::Start { is_here } => ToController::AskStart { ask, vm, is_here },
            Wanted::Move { to, id } => ToController::AskMove { ask, vm, to, migration: Some(MigrationId(id)) },
        };
        world.send_to_controller(session, line);
    }
    world.after(RESEND_MS, Event::AskAgain { host, life, ask });
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

/// Cuts both hosts of a migration off from the controllers, and has the source die after a while.
pub fn lose_both(world: &mut World, (from, to): (usize, usize), ms: Ms) {
    if world.is_calm {
        return;
    }
    world.say(|| format!("hosts {from} and {to} are cut off"));
    for node in 0..world.nodes.len() {
        world.part(node, from);
        world.part(node, to);
    }
    world.after(ms, Event::Dies { host: from });
}

/// Returns whether the hosts of a migration that was just asked for lose the controllers one after the other: until
/// then the migration waits at its source.
pub fn is_lost_in_turn(world: &mut World, id: u64) -> bool {
    let is_late = world.is_calm || world.now > LAST_LOST_MS;
    let Some(rng) = world.hand_rng.as_mut().filter(|_| !is_late) else { return false };
    let ms = rng.percent(LOST_PERCENT).then(|| rng.between(100, 900));
    if let Some(ms) = ms {
        world.after(ms, Event::LosesSource { id });
    }
    ms.is_some()
}

/// Somebody starts a new guest by hand, on its host.
pub fn new_guest(world: &mut World, host: usize) {
    let name = format!("l{}", world.number());
    world.guests.insert(name.clone(), 512);
    want(world, host, &name);
}
