//! What an agent does. Who runs a guest is settled here at once and always rightly: agents that settle it
//! are tried in [`crate::cluster`].

use skein_api::cluster::VmRunState;
use skein_api::{
    CheckResult, FailureReason, Hello, HostLoad, HostReport, Migration, MigrationId, MigrationPhase, Outcome, Problem,
    ProblemKind, Refusal, Reply, Request, Role, Severity, SourcePhase, ToAgent, ToController, VmOrigin,
};
use skein_cluster::{Planted, VmRecord};

use super::by_hand;
use super::event::{Event, Session};
use super::host::{Flight, Guest, Ms, Sent, Start, refused};
use super::off;
use super::update;
use super::watchdog;
use super::world::World;

/// How often an agent reports.
const REPORT_MS: Ms = 1000;

/// How often an agent asks for another certificate with a report.
const RENEWALS_PERCENT: u64 = 4;

/// Starts an agent's process: it dials all controllers.
pub fn start(world: &mut World, host: usize) {
    let now = world.now;
    let agent = &mut world.agents[host];
    agent.life += 1;
    let was_off = !agent.is_on;
    if was_off {
        agent.on_since = now;
    }
    (agent.is_up, agent.is_on) = (true, true);
    let life = agent.life;
    if was_off {
        by_hand::back(world, host);
    }
    watchdog::start(world, host);
    for node in 0..world.nodes.len() {
        let ms = world.rng.between(1, 300);
        world.after(ms, Event::Dial { host, life, node });
    }
}

/// Ends an agent's process. Its guests go on.
pub fn stop(world: &mut World, host: usize) {
    let name = world.agents[host].name.clone();
    world.say(|| format!("the agent of {name} ends"));
    watchdog::close(world, host);
    world.agents[host].is_up = false;
    world.agents[host].life += 1;
    world.agents[host].questions.clear();
    end_sessions(world, host);
    // What was being started runs, or does not, and the agent wrote nothing down of that.
    for vm in std::mem::take(&mut world.agents[host].starting).into_keys() {
        if world.rng.percent(50) {
            run_guest(world, host, &vm);
        }
    }
    let flights: Vec<u64> = flights_of(world, host);
    for id in flights {
        if world.rng.percent(50)
            && let Some(flight) = world.migrations.get_mut(&id)
        {
            flight.called_off = flight.called_off.or(Some(FailureReason::AgentRestarted));
        }
    }
}

/// Switches a host off: its guests end.
pub fn switch_off(world: &mut World, host: usize) {
    note_autostarts(world, host);
    stop(world, host);
    let name = world.agents[host].name.clone();
    world.say(|| format!("{name} is off"));
    let agent = &mut world.agents[host];
    agent.is_on = false;
    agent.boot += 1;
    agent.closed_until = 0;
    agent.guests.values_mut().for_each(|guest| guest.runs = false);
    agent.incoming.clear();
    for id in flights_of(world, host) {
        let flight = world.migrations.remove(&id).expect("it is under way");
        let outcome = if flight.from == host { Outcome::Ended } else { Outcome::CalledOff };
        over(world, id, &flight, outcome, Some(FailureReason::ContactLost));
    }
}

/// Notes which guests are to be started again once the host is on.
fn note_autostarts(world: &mut World, host: usize) {
    let agent = &world.agents[host];
    let calm = agent.guests.iter().filter(|(_, guest)| guest.runs && guest.migration.is_none());
    let names: Vec<String> = calm.map(|(name, _)| name.clone()).collect();
    let host = agent.name.clone();
    for name in names {
        let record = world.value(&format!("vm/{name}")).and_then(|v| serde_json::from_slice::<VmRecord>(&v).ok());
        let is_known = |record: &VmRecord| {
            record.host.as_ref() == Some(&host) && record.state == VmRunState::Running && record.settings.autostart
        };
        if record.is_some_and(|record| is_known(&record) && !record.stop_asked) {
            world.check.autostarts.insert(name);
        }
    }
}

fn flights_of(world: &World, host: usize) -> Vec<u64> {
    let all = world.migrations.iter().filter(|(_, flight)| flight.from == host || flight.to == host);
    all.map(|(id, _)| *id).collect()
}

fn end_sessions(world: &mut World, host: usize) {
    let sessions = std::mem::take(&mut world.agents[host].sessions);
    world.agents[host].sent.clear();
    sessions.into_values().for_each(|session| world.break_session(session));
}

/// Dials a controller.
pub fn dial(world: &mut World, host: usize, node: usize) {
    let agent = &world.agents[host];
    if !agent.is_up || agent.sessions.contains_key(&node) {
        return;
    }
    let life = agent.life;
    if !world.nodes[node].is_alive || world.nodes[node].paused_until > world.now || world.cut.contains(&(host, node)) {
        let ms = world.rng.between(500, 1500);
        return world.after(ms, Event::Dial { host, life, node });
    }
    let session = world.number();
    let certificate = world.agents[host].certificate;
    world.sessions.insert(session, Session { host, node, open: true, certificate, last_ms: [0, 0] });
    let agent = &mut world.agents[host];
    agent.sessions.insert(node, session);
    agent.sent.insert(session, Sent::default());
    let hello = Hello {
        host: agent.name.clone(),
        release: "sim".into(),
        api: 1,
        instance: agent.life,
        boot_id: Some(format!("boot{}", agent.boot)),
        addresses: vec![format!("10.0.0.{}:7070", host + 1)],
        highest_term: agent.highest,
        moves_off: true,
    };
    world.send_to_controller(session, ToController::Hello(hello));
    report(world, host, session);
    world.after(REPORT_MS, Event::Report { host, life, session });
}

/// Reports now and after each period.
pub fn report_again(world: &mut World, host: usize, life: u64, session: u64) {
    if world.agents[host].sent.contains_key(&session) {
        report(world, host, session);
        let is_calm = world.is_calm;
        if world.renewal_rng.as_mut().is_some_and(|rng| !is_calm && rng.percent(RENEWALS_PERCENT)) {
            world.send_to_controller(session, ToController::Renew);
        }
        world.after(REPORT_MS, Event::Report { host, life, session });
    }
}

/// Keeps a new certificate, and shows it from then on; or dies before or after that.
fn renewed(world: &mut World, host: usize, number: u64) {
    let dies = world.rng.percent(20);
    if !dies || world.rng.percent(50) {
        let agent = &mut world.agents[host];
        agent.certificate = agent.certificate.max(number);
        world.check.stats.renewed += 1;
    }
    if dies {
        stop(world, host);
        let ms = world.rng.between(100, 4000);
        return world.after(ms, Event::Restart { node: None, host: Some(host) });
    }
    let sessions: Vec<u64> = world.agents[host].sessions.values().copied().collect();
    sessions.into_iter().for_each(|session| world.break_session(session));
}

pub(super) fn report_all(world: &mut World, host: usize) {
    let sessions: Vec<u64> = world.agents[host].sessions.values().copied().collect();
    sessions.into_iter().for_each(|session| report(world, host, session));
}

fn report(world: &mut World, host: usize, session: u64) {
    let agent = &mut world.agents[host];
    let (views, facts, loads) = (agent.views(), agent.facts(), agent.loads());
    let state = agent.watchdog.as_ref().map(|of| (of.heard, of.state(agent.boot)));
    let asked = agent.moves_asked();
    let Some(sent) = agent.sent.get_mut(&session) else { return };
    sent.sequence += 1;
    let mut report = HostReport { sequence: sent.sequence, ..HostReport::default() };
    if let Some((heard, state)) = state {
        (report.heard, report.watchdog) = (heard, Some(state));
        sent.times.insert(sent.sequence, world.now);
    }
    if sent.sequence == 1 {
        report.facts = Some(Box::new(facts));
    }
    report.load = Some(HostLoad { cpu_millicores: 500, ram_bytes: agent.ram_mb << 20, ..HostLoad::default() });
    report.vm_loads = loads;
    report.vms = views.iter().filter(|(name, vm)| sent.vms.get(*name) != Some(vm)).map(|(_, vm)| vm.clone()).collect();
    report.vms_gone = sent.vms.keys().filter(|name| !views.contains_key(*name)).cloned().collect();
    let changed = agent.migrations.iter().filter(|(id, migration)| sent.migrations.get(*id) != Some(migration));
    report.migrations = changed.map(|(_, migration)| migration.clone()).collect();
    (report.moves_asked, report.led) = (asked, sent.led);
    (sent.vms, sent.migrations) = (views, agent.migrations.clone());
    world.send_to_controller(session, ToController::Report(Box::new(report)));
}

/// Notices that a session is over, and dials again.
pub fn broken(world: &mut World, session: u64) {
    let Some(of) = world.sessions.get(&session).copied() else { return };
    let agent = &mut world.agents[of.host];
    agent.sent.remove(&session);
    if agent.sessions.get(&of.node) == Some(&session) {
        agent.sessions.remove(&of.node);
        let (host, life, node) = (of.host, agent.life, of.node);
        let ms = world.rng.between(100, 1500);
        world.after(ms, Event::Dial { host, life, node });
    }
}

/// Takes a line from a controller.
pub fn line(world: &mut World, host: usize, session: u64, line: ToAgent) {
    if !world.agents[host].sent.contains_key(&session) {
        return;
    }
    match line {
        ToAgent::Leads { term } => {
            let agent = &mut world.agents[host];
            agent.highest = agent.highest.max(term);
            world.check.knows(host, term);
            agent.sent.get_mut(&session).expect("it is open").led = Some(term);
        }
        ToAgent::Command { command, term, request_id, request } => {
            let highest = world.agents[host].highest;
            if term < highest && !world.has(Planted::DeposedObeyed) {
                world.check.stats.deposed += 1;
                return world.send_to_controller(session, ToController::Deposed { command, highest });
            }
            world.agents[host].highest = term;
            world.check.obeyed(world.now, host, term);
            if let Some(reply) = obey(world, host, (session, command), request_id, *request) {
                world.send_to_controller(session, ToController::Reply { command, reply: Box::new(reply) });
            }
            report_all(world, host);
        }
        ToAgent::Renewed { certificate } => renewed(world, host, certificate.parse().expect("a number")),
        ToAgent::Heard { term, number, sequence, voters, hosts } => {
            watchdog::acknowledged(world, host, session, (term, number, sequence, voters), hosts);
        }
        ToAgent::May { ask } => by_hand::answered(world, host, session, ask, Ok(())),
        ToAgent::MayNot { ask, again, refusal } => {
            world.say(|| format!("{ask} is refused: {}", refusal.message));
            by_hand::answered(world, host, session, ask, Err(again));
        }
        ToAgent::Welcome(_)
        | ToAgent::Refused(_)
        | ToAgent::Hosts { .. }
        | ToAgent::Controllers { .. }
        | ToAgent::NotRenewed(_)
        | ToAgent::Watch { .. }
        | ToAgent::Look { .. }
        | ToAgent::Console { .. }
        | ToAgent::Other => {}
    }
}

fn obey(
    world: &mut World,
    host: usize,
    from_whom: (u64, u64),
    request_id: Option<String>,
    request: Request,
) -> Option<Reply> {
    Some(match request {
        Request::Migrate { vm, to, .. } => {
            let id = world.number();
            migrate(world, host, (request_id, id), &vm, &to)
        }
        Request::VmList => Reply::Vms { vms: world.agents[host].views().into_values().collect() },
        Request::MigrationCancel { id } => match u64::from_str_radix(&id, 16) {
            Ok(id) if call_off(world, id) => Reply::Done,
            _ => refused("no such migration is under way"),
        },
        Request::MigrationWithdraw { id } => withdraw(world, host, id),
        Request::VmStart { from, .. } => {
            let (vm, is_defined) = match &from {
                VmOrigin::Definition { file, .. } => (file.trim_end_matches(".toml"), false),
                VmOrigin::Name(name) => (name.as_str(), true),
            };
            return start_vm(world, host, from_whom, request_id, vm, is_defined);
        }
        Request::VmStop { name, force, .. } => stop_vm(world, host, &name, force),
        Request::VmForget { name } if let Some(id) = request_id => off::leave(world, host, &name, id),
        Request::VmOffer { name } => off::offer(world, host, &name),
        Request::VmReserve { reservation, offer } => off::reserve(world, host, reservation, &offer),
        Request::VmRelease { name, reservation, keep } => off::release(world, host, &name, &reservation, keep),
        Request::VmForget { name } => {
            let agent = &mut world.agents[host];
            if agent.is_there(&name) || agent.is_asked(&name) {
                return Some(refused("it runs, or is being started"));
            }
            if agent.reserved.contains_key(&name) {
                return Some(refused("it is on its way here"));
            }
            agent.guests.remove(&name);
            world.say(|| format!("{name} is forgotten by host {host}"));
            Reply::Done
        }
        Request::HostUpdate { id, how, order, for_s } => {
            update::take(world, host, id, how, order, |world| close(world, host, for_s))
        }
        Request::HostClose { for_s, .. } => close(world, host, for_s),
        _ => refused("the simulated agent does not do that"),
    })
}

/// Takes no guests for a while, if there is none.
pub fn close(world: &mut World, host: usize, for_s: u64) -> Reply {
    let now = world.now;
    let agent = &mut world.agents[host];
    if for_s > 0 && agent.ram_used_mb() > 0 {
        return refused("it has a guest");
    }
    if for_s == 0 && agent.may_boot() {
        return refused("it may be booted at any moment");
    }
    agent.closed_until = if for_s > 0 { now + 1000 * for_s } else { 0 };
    // Somebody may be about to start one by hand.
    if for_s > 0 && world.rng.percent(60) {
        let ms = world.rng.between(1, 6000);
        world.after(ms, Event::ByHand { host });
    }
    Reply::Done
}

/// Shuts a host down in order, as it was told. Whatever runs there would end.
pub fn shut_down(world: &mut World, host: usize) {
    if !world.agents[host].is_on {
        return;
    }
    if world.agents[host].ram_used_mb() > 0 {
        let what = format!("{} is shut down, and has guests", world.agents[host].name);
        world.check.broken(world.now, what);
    }
    world.check.stats.slept += 1;
    switch_off(world, host);
}

/// Begins a start that has a name. `None`: the reply comes when the guest runs.
fn start_vm(
    world: &mut World,
    host: usize,
    (session, command): (u64, u64),
    name: Option<String>,
    vm: &str,
    is_defined: bool,
) -> Option<Reply> {
    let Some(name) = name else { return Some(refused("a start has a name")) };
    let agent = &world.agents[host];
    let runs = agent.incoming.contains_key(vm) || agent.guests.get(vm).is_some_and(|guest| guest.runs);
    let known = match agent.starts.get(&name) {
        Some(Start::Begun) if agent.starting.contains_key(vm) => return Some(refused("it is still being started")),
        // The agent ended meanwhile: what came of the start is what is there.
        Some(Start::Begun) => Some(if runs { Start::Started } else { Start::NotStarted }),
        Some(known) => Some(known.clone()),
        None if world.rng.percent(5) => return Some(refused("too many commands are under way")),
        None => None,
    };
    let agent = &world.agents[host];
    let has_no_room = agent.ram_used_mb() + world.guests[vm] > agent.ram_mb;
    let is_unknown = is_defined && !agent.guests.contains_key(vm);
    let is_closed = agent.is_closed(world.now);
    let is_reserved = agent.reserved.contains_key(vm);
    let cannot = is_reserved
        || is_closed
        || agent.refuses.contains(vm)
        || agent.starting.contains_key(vm)
        || has_no_room
        || is_unknown;
    let outcome = match known {
        Some(known) => known,
        None if runs => Start::Started,
        None if cannot || world.rng.percent(10) => Start::NotStarted,
        None => Start::Begun,
    };
    world.agents[host].starts.insert(name.clone(), outcome.clone());
    match outcome {
        Start::Begun => {
            world.say(|| format!("{vm} is being started on host {host}"));
            let ram_mb = world.guests[vm];
            world.agents[host].starting.insert(vm.to_owned(), ram_mb);
            let ms = if world.rng.percent(10) { world.rng.between(2000, 9000) } else { world.rng.between(10, 800) };
            let (life, vm) = (world.agents[host].life, vm.to_owned());
            world.after(ms, Event::Started { host, life, session, command, name, vm });
            // An error says nothing of a start that goes on.
            world.rng.percent(15).then(|| refused("it takes long: ask again"))
        }
        Start::Started => Some(started_reply(world, host, vm)),
        Start::NotStarted => {
            Some(Reply::NotStarted(Refusal { message: "it cannot be started here".into(), cure: String::new() }))
        }
    }
}

fn started_reply(world: &World, host: usize, vm: &str) -> Reply {
    world.agents[host].views().get(vm).map_or(Reply::Done, |view| Reply::Vm(Box::new(view.clone())))
}

/// Has a guest run that was started.
pub(super) fn run_guest(world: &mut World, host: usize, vm: &str) {
    world.say(|| format!("{vm} starts on host {host}"));
    if let Some(other) = world.agents.iter().find(|agent| agent.guests.get(vm).is_some_and(|guest| guest.runs)) {
        let what = format!("{vm} is started on host {host}, and runs on {}", other.name);
        world.check.broken(world.now, what);
    }
    let guest = Guest { ram_mb: world.guests[vm], runs: true, migration: None };
    world.agents[host].guests.insert(vm.to_owned(), guest);
    world.check.stats.started += 1;
}

/// Brings a start to its end.
pub fn started(world: &mut World, host: usize, (session, command): (u64, u64), name: &str, vm: &str) {
    if world.agents[host].starting.remove(vm).is_none() {
        return;
    }
    run_guest(world, host, vm);
    world.agents[host].starts.insert(name.to_owned(), Start::Started);
    let reply = Box::new(started_reply(world, host, vm));
    world.send_to_controller(session, ToController::Reply { command, reply });
    report_all(world, host);
}

fn stop_vm(world: &mut World, host: usize, vm: &str, force: bool) -> Reply {
    let heeds = force || !world.rng.percent(20);
    let Some(guest) = world.agents[host].guests.get_mut(vm).filter(|guest| guest.runs) else {
        return refused("it does not run");
    };
    if guest.migration.is_some() {
        return refused("it is in a migration");
    }
    if !heeds {
        return refused("it did not shut down");
    }
    guest.runs = false;
    world.check.stats.stopped += 1;
    world.say(|| format!("{vm} is stopped on host {host}"));
    started_reply(world, host, vm)
}

/// Begins a migration, which gets this id.
fn call_off(world: &mut World, id: u64) -> bool {
    let flight = world.migrations.get_mut(&id);
    flight.map(|flight| flight.called_off = Some(FailureReason::Cancelled)).is_some()
}

/// Calls off what was asked for under a name, under which nothing is begun any more.
fn withdraw(world: &mut World, host: usize, name: String) -> Reply {
    let Some(id) = world.agents[host].requests.get(&name).copied() else {
        world.agents[host].withdrawn.insert(name);
        return Reply::Done;
    };
    call_off(world, id);
    Reply::Migration(Box::new(world.agents[host].migrations[&id].clone()))
}

pub fn migrate(world: &mut World, host: usize, (request_id, id): (Option<String>, u64), vm: &str, to: &str) -> Reply {
    if let Some(known) = request_id.as_ref().and_then(|name| world.agents[host].requests.get(name)) {
        return Reply::Migration(Box::new(world.agents[host].migrations[known].clone()));
    }
    if request_id.as_ref().is_some_and(|name| world.agents[host].withdrawn.contains(name)) {
        return refused("it was called off before it came");
    }
    let Some(target) = world.agents.iter().position(|agent| agent.name == to) else { return refused("no such host") };
    let Some(guest) = world.agents[host].guests.get(vm).filter(|guest| guest.runs).cloned() else {
        return refused("no such VM runs here");
    };
    if guest.migration.is_some() {
        return refused("it is in a migration");
    }
    let there = &world.agents[target];
    if !there.is_up {
        return refused("the target's agent cannot be reached");
    }
    if there.is_closed(world.now) {
        return refused("the target takes no guests");
    }
    let has_no_room = there.ram_used_mb() + guest.ram_mb > there.ram_mb;
    if there.reserved.contains_key(vm) {
        return refused("it is on its way there while it is off");
    }
    if there.refuses.contains(vm) || has_no_room {
        let problem = Problem {
            kind: ProblemKind::CpuVendor,
            severity: Severity::Blocks,
            what: if has_no_room { "there is no room".into() } else { "that host cannot run it".into() },
            cure: String::new(),
        };
        let to = to.to_owned();
        return Reply::Check(CheckResult { vm: vm.to_owned(), to, problems: vec![problem], forecast: None });
    }
    if let Some(name) = &request_id {
        world.check.executed(world.now, name);
    }
    world.say(|| format!("migration {id} of {vm} to {to} begins"));
    let migration = migration(id, vm, Role::Source, (&world.agents[host].name, to));
    let agent = &mut world.agents[host];
    agent.migrations.insert(id, migration);
    agent.guests.get_mut(vm).expect("it is here").migration = Some(id);
    if let Some(name) = &request_id {
        agent.requests.insert(name.clone(), id);
    }
    let name = request_id.clone().unwrap_or_default();
    world
        .migrations
        .insert(id, Flight { name, vm: vm.to_owned(), from: host, to: target, called_off: None, is_queued: true });
    world.check.flights(&world.migrations);
    let ms = if world.rng.percent(10) { world.rng.between(3000, 12_000) } else { world.rng.between(200, 2500) };
    world.after(ms, Event::Migrated { id });
    if !by_hand::is_lost_in_turn(world, id) {
        reaches_target(world, id);
    }
    Reply::Migration(Box::new(world.agents[host].migrations[&id].clone()))
}

fn migration(id: u64, vm: &str, role: Role, (from, to): (&str, &str)) -> Migration {
    let stage = Some(MigrationPhase::Source(SourcePhase::Precopy));
    Migration { stage, ..Migration::new(MigrationId(id), vm, role, from, to) }
}

/// Has a migration's target take part, once its turn has come at the source.
pub(super) fn reaches_target(world: &mut World, id: u64) {
    let Some(flight) = world.migrations.get_mut(&id) else { return };
    flight.is_queued = false;
    let (vm, from, to) = (flight.vm.clone(), flight.from, flight.to);
    let names = (&*world.agents[from].name, &*world.agents[to].name);
    let migration = migration(id, &vm, Role::Target, names);
    let there = &mut world.agents[to];
    there.migrations.insert(id, migration);
    there.incoming.insert(vm.clone(), world.guests[&vm]);
    report_all(world, to);
}

/// Brings a migration to its end.
pub fn migrated(world: &mut World, id: u64) {
    let is_queued = |flight: &Flight| flight.is_queued && flight.called_off.is_none();
    if world.migrations.get(&id).is_some_and(is_queued) {
        return world.after(500, Event::Migrated { id });
    }
    let Some(flight) = world.migrations.remove(&id) else { return };
    // What cannot be settled without the other agent waits for it.
    if !world.agents[flight.from].is_up || !world.agents[flight.to].is_up {
        world.migrations.insert(id, flight);
        return world.after(500, Event::Migrated { id });
    }
    let fails = !world.is_calm && world.rng.percent(10);
    match flight.called_off.or(fails.then_some(FailureReason::MigrationFailed)) {
        Some(why) => over(world, id, &flight, Outcome::CalledOff, Some(why)),
        None => over(world, id, &flight, Outcome::Moved, None),
    }
}

fn over(world: &mut World, id: u64, flight: &Flight, outcome: Outcome, why: Option<FailureReason>) {
    world.say(|| format!("migration {id} of {} is over: {outcome:?} {why:?}", flight.vm));
    world.agents[flight.to].incoming.remove(&flight.vm);
    match outcome {
        Outcome::Moved => {
            let mut guest = world.agents[flight.from].guests.remove(&flight.vm).expect("it was there");
            guest.migration = None;
            world.agents[flight.to].guests.insert(flight.vm.clone(), guest);
            world.check.stats.moved += 1;
        }
        Outcome::CalledOff | Outcome::Ended => {
            if let Some(guest) = world.agents[flight.from].guests.get_mut(&flight.vm) {
                guest.migration = None;
            }
        }
    }
    for host in [flight.from, flight.to] {
        if let Some(migration) = world.agents[host].migrations.get_mut(&id) {
            (migration.stage, migration.outcome, migration.why) = (None, Some(outcome), why);
        }
        if world.agents[host].is_up {
            report_all(world, host);
        }
    }
}

/// Starts a VM by hand that a controller allows, if the host takes the VM.
pub fn start_by_hand(world: &mut World, host: usize, vm: &str) {
    let (now, agent) = (world.now, &world.agents[host]);
    let has_room = agent.ram_used_mb() + world.guests[vm] <= agent.ram_mb;
    if !agent.is_closed(now) && has_room && !agent.is_there(vm) && !agent.refuses.contains(vm) {
        world.say(|| format!("{vm} is started by hand on host {host}"));
        world.check.stats.by_hand_started += 1;
        run_guest(world, host, vm);
        report_all(world, host);
    }
}
