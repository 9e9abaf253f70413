//! A run from a seed.

use serde_json::json;
use skein_api::cluster::{
    ClusterSettings, Contact, CreateVmRequest, DrainRequest, FailoverSettings, FenceRequest, MigrateRequest,
    OperationKind, OptimizeRequest, OptimizeSettings, ResumeRequest, StartVmRequest, StopVmRequest, UpdateRequest,
    VmSettings,
};
use skein_api::{ToController, UpdateHow};
use skein_cluster::{Ask, Asked, Settings};

use super::check::{APART, Stats};
use super::event::Event;
use super::faults::{self, CALM_MS};
use super::host::{Agent, Bmc, Guest, Node};
use super::settled::settled;
use super::world::World;
use super::{agent, by_hand, hands, node, power, restore, update, watchdog};

/// When a run ends, in milliseconds: all that was begun should be over long before.
const END_MS: u64 = 600_000;
/// When people stop to ask for things.
const PEOPLE_MS: u64 = 40_000;
/// How often it is seen whether all is settled, in milliseconds.
const LOOK_MS: u64 = 2_500;
const CONTROLLERS: usize = 3;
/// How many VMs people create.
const CREATED: u64 = 3;

/// Runs a seed.
///
/// # Errors
///
/// What did not hold.
pub fn run(seed: u64, settings: Settings) -> Result<Stats, String> {
    let mut world = World::new(seed);
    let controllers = if world.rng.percent(30) { 1 } else { CONTROLLERS };
    world.nodes = (0..controllers).map(|_| Node::new(settings.clone())).collect();
    populate(&mut world);
    watchdog::populate(&mut world);
    for node in 0..controllers {
        node::start(&mut world, node);
    }
    for host in 0..world.agents.len() {
        agent::start(&mut world, host);
    }
    faults::schedule(&mut world);
    restore::schedule(&mut world);
    by_hand::schedule(&mut world);
    if world.rng.percent(70) {
        world.after(500, Event::Outfit);
    }
    for _ in 0..world.rng.between(1, 12) {
        let ms = world.rng.between(500, PEOPLE_MS);
        world.after(ms, Event::People);
    }
    let mut look_ms = PEOPLE_MS + LOOK_MS;
    while let Some(event) = world.next() {
        world.check.stats.events += 1;
        if world.now > CALM_MS && !world.is_calm {
            calm(&mut world);
        }
        take(&mut world, event);
        if world.check.failure.is_some() || world.now > END_MS {
            break;
        }
        if world.now > look_ms {
            look_ms += LOOK_MS;
            if world.migrations.is_empty() && settled(&mut world).is_ok() {
                break;
            }
            say_what_is_off(&mut world);
        }
    }
    settled(&mut world).map(|()| world.check.stats.clone())
}

/// Somebody who reads for what a drain waits says that its host is off, if that is so.
fn say_what_is_off(world: &mut World) {
    let Some(leader) = world.nodes.iter().position(|node| node.term().is_some()) else { return };
    let drained =
        world.nodes[leader].controller.operations("", usize::MAX).into_iter().filter_map(|of| match of.kind {
            OperationKind::Drain { host, .. } if !of.state.is_over() => Some(host),
            _ => None,
        });
    for name in drained.collect::<Vec<String>>() {
        if let Some(host) = world.agents.iter().position(|agent| agent.name == name) {
            hands::say_off(world, host);
        }
    }
}

fn populate(world: &mut World) {
    let hosts = world.rng.between(2, 5);
    for host in 0..hosts {
        let ram_mb = 1024 * world.rng.between(4, 12);
        world.agents.push(Agent::new(&format!("h{host}"), ram_mb));
        world.bmcs.push(Bmc::default());
    }
    for vm in 0..world.rng.between(1, 10) {
        let host = world.rng.below(hosts) as usize;
        let ram_mb = 512 * world.rng.between(1, 4);
        let name = format!("v{vm}");
        world.guests.insert(name.clone(), ram_mb);
        world.agents[host].guests.insert(name.clone(), Guest { ram_mb, runs: !world.rng.percent(15), migration: None });
        if world.rng.percent(10) {
            let refuses = world.rng.below(hosts) as usize;
            world.agents[refuses].refuses.insert(name);
        }
    }
    for vm in 0..CREATED {
        let ram_mb = 512 * world.rng.between(1, 4);
        world.guests.insert(format!("n{vm}"), ram_mb);
    }
}

/// Ends what is wrong, but for what mends itself later.
fn calm(world: &mut World) {
    world.is_calm = true;
    world.cut.clear();
    world.store_silent_until = 0;
}

fn take(world: &mut World, event: Event) {
    if let Some(node) = node_of(&event)
        && world.nodes[node].is_alive
        && world.nodes[node].paused_until > world.now
    {
        let ms = world.nodes[node].paused_until - world.now;
        return world.after(ms, event);
    }
    match event {
        Event::Tick { node, life } if is_life(world, node, life) => node::tick(world, node, life),
        Event::Stored { node, life, done } if is_life(world, node, life) => node::stored(world, node, done),
        Event::Planning { node, life, plan } if is_life(world, node, life) => node::plan(world, node, plan),
        Event::Plan { node, life, plan, request } if is_life(world, node, life) => {
            node::planned(world, node, plan, &request);
        }
        Event::ToAgent { host, session, line } => agent::line(world, host, session, *line),
        Event::ToController { node, session, line } => {
            let of = world.sessions[&session];
            if world.nodes[node].is_alive && !world.check.is_ended(session) {
                // A question is no report.
                if !matches!(*line, ToController::AskStart { .. } | ToController::AskMove { .. }) {
                    world.check.heard(world.now, node, of.host);
                }
                node::line(world, node, session, *line);
            }
        }
        Event::Dial { host, life, node } if world.agents[host].life == life => agent::dial(world, host, node),
        Event::Report { host, life, session } if world.agents[host].life == life => {
            agent::report_again(world, host, life, session);
        }
        Event::Started { host, life, session, command, name, vm } if world.agents[host].life == life => {
            agent::started(world, host, (session, command), &name, &vm);
        }
        Event::Migrated { id } => agent::migrated(world, id),
        Event::Broken { session, at_node: true } => {
            let node = world.sessions[&session].node;
            world.check.ended(session);
            node::handle(world, node, skein_cluster::Input::AgentDown { session });
        }
        Event::Broken { session, at_node: false } => agent::broken(world, session),
        Event::Power { node, life, job, host, action } => power::take(world, (node, life, job), host, action),
        Event::Powered { node, life, job, result } if is_life(world, node, life) => {
            node::handle(world, node, skein_cluster::Input::Power { job, result });
        }
        Event::PowerOff { host } => power::off(world, host),
        Event::ShutDown { host } => agent::shut_down(world, host),
        Event::PowerOn { host } if !world.agents[host].is_on => {
            world.check.stats.woken += 1;
            agent::start(world, host);
        }
        Event::Updated { host, id } => update::ended(world, host, &id),
        Event::Boot { host } => update::boot(world, host, |world| agent::switch_off(world, host)),
        Event::Feed { host, life } => watchdog::feed(world, host, life),
        Event::FeedLate { host, life } => watchdog::feed_late(world, host, life),
        Event::Bite { host, boot, fed } => {
            watchdog::bite(world, host, (boot, fed), |world| agent::switch_off(world, host));
        }
        Event::AgentEnds { host, life } if world.agents[host].life == life => agent::stop(world, host),
        Event::PeerAsks { from, to, life, round } => watchdog::asked(world, from, to, life, round),
        Event::PeerSays { from, to, life, round, has_leader } => {
            watchdog::answered(world, from, to, life, (round, has_leader));
        }
        Event::Backup => restore::backup(world),
        Event::Restore => restore::restore(world),
        Event::Partition if !world.is_calm => watchdog::partition(world),
        Event::Outfit => power::outfit(world),
        Event::Rejoin { host } => world.cut.retain(|(of, _)| *of != host),
        Event::Fault if !world.is_calm => faults::inject(world),
        Event::Pause { node, ms } if !world.is_calm => faults::pause(world, node, ms),
        Event::People => people(world),
        Event::Restart { node: Some(node), .. } if !world.nodes[node].is_alive => node::start(world, node),
        Event::Restart { host: Some(host), .. } if !world.agents[host].is_up => agent::start(world, host),
        other => hands::take(world, other),
    }
}

fn node_of(event: &Event) -> Option<usize> {
    match event {
        Event::Tick { node, .. } | Event::Stored { node, .. } | Event::Plan { node, .. } => Some(*node),
        Event::Planning { node, .. } => Some(*node),
        Event::ToController { node, .. } | Event::Powered { node, .. } => Some(*node),
        _ => None,
    }
}

fn is_life(world: &World, node: usize, life: u64) -> bool {
    world.nodes[node].is_alive && world.nodes[node].life == life
}

/// Returns an update of one host, or of all.
fn update_of(world: &mut World, host: String, dry_run: bool) -> UpdateRequest {
    let hosts = if world.rng.percent(50) { vec![host] } else { Vec::new() };
    let hows = [UpdateHow::UpdateReboot, UpdateHow::Update, UpdateHow::Reboot, UpdateHow::Manual];
    let how = hows[world.rng.below(4) as usize];
    let skip_blocked = world.rng.percent(80);
    UpdateRequest { hosts, how, bring_home: world.rng.percent(70), wait_s: 60, skip_blocked, dry_run }
}

/// Returns what somebody does about a host that is lost.
fn of_a_lost_host(world: &mut World, node: usize) -> Option<Ask> {
    // Whoever sees that a host is off says so, often.
    let is_off = |agent: &Agent| {
        let contact = world.nodes[node].controller.host(&agent.name).map(|host| host.contact);
        !agent.is_on && contact == Some(Contact::Lost)
    };
    let off = world.agents.iter().find(|agent| is_off(agent)).map(|agent| agent.name.clone());
    if let Some(host) = off.filter(|_| world.rng.percent(60)) {
        return Some(Ask::Fence { host, request: FenceRequest { is_off: true } });
    }
    // Who does not see that a host is off has it switched off.
    let lost = power::lost(world, node).filter(|_| world.rng.percent(40))?;
    Some(Ask::Fence { host: lost, request: FenceRequest::default() })
}

/// Somebody asks for something.
fn people(world: &mut World) {
    let leader = (0..world.nodes.len()).find(|node| world.nodes[*node].term().is_some());
    let Some(node) = leader.filter(|node| world.nodes[*node].paused_until <= world.now) else {
        return world.after(700, Event::People);
    };
    let host = world.agents[world.rng.below(world.agents.len() as u64) as usize].name.clone();
    let vm = match world.rng.percent(20) {
        true => format!("n{}", world.rng.below(CREATED)),
        false => format!("v{}", world.rng.below(10)),
    };
    let dry_run = world.rng.percent(10);
    let ask = match world.rng.below(25) {
        0..=3 => {
            let deadline_s = world.rng.percent(20).then(|| world.rng.between(1, 20));
            let evacuate = world.rng.percent(20);
            Ask::Drain { host, request: DrainRequest { deadline_s, evacuate, dry_run } }
        }
        4 => Ask::Resume { host, request: ResumeRequest { bring_home: world.rng.percent(70) } },
        5..=6 => {
            let to = world.rng.percent(40).then_some(host);
            Ask::Migrate {
                vm,
                request: MigrateRequest { to, dry_run, ..MigrateRequest::default() },
                breaks: Vec::new(),
            }
        }
        7 => {
            let owners = world.rng.percent(50).then(|| vec![host]);
            let autostart = world.rng.percent(60);
            Ask::SetVm { vm, settings: VmSettings { owners, autostart, ..VmSettings::default() }, version: None }
        }
        8 => Ask::Optimize {
            request: OptimizeRequest { apply: !dry_run, aggressiveness: Some(world.rng.between(1, 5) as u8) },
        },
        9 => {
            let optimize = OptimizeSettings { automatic: true, interval_s: 60, ..OptimizeSettings::default() };
            let failover = FailoverSettings { grace_s: world.rng.below(4) as u32, ..FailoverSettings::default() };
            let power = power::saving(world);
            let settings = Box::new(ClusterSettings { optimize, failover, power, ..Default::default() });
            Ask::SetSettings { settings, version: None }
        }
        10 => {
            let rule = json!({"apart": {"of": {"guests": ["v0", "v1"]}, "force": "hard"}});
            Ask::SetRule { name: APART.into(), rule, version: None }
        }
        11..=13 => {
            let name = format!("n{}", world.rng.below(CREATED));
            let definition = format!("name = '{name}'\nmemory = '{} MiB'\n", world.guests[&name]);
            let on = world.rng.percent(20).then_some(host);
            let start = world.rng.percent(80);
            Ask::CreateVm { request: Box::new(CreateVmRequest { definition, start, on, dry_run }) }
        }
        14..=15 => {
            let on = world.rng.percent(20).then_some(host);
            Ask::StartVm { vm, request: StartVmRequest { on, dry_run } }
        }
        16..=17 => Ask::StopVm { vm, request: StopVmRequest { timeout_s: 10, force: world.rng.percent(50) } },
        18 => Ask::DeleteVm { vm },
        19..=20 => Ask::Sleep { host },
        21 => Ask::Wake { host },
        22..=23 => Ask::Update { request: update_of(world, host, dry_run) },
        _ => match world.nodes[node].controller.operations("", 1).first() {
            Some(newest) => Ask::Cancel { operation: newest.id.clone() },
            None => Ask::Drain { host, request: DrainRequest::default() },
        },
    };
    let ask = of_a_lost_host(world, node).unwrap_or(ask);
    let id = world.number();
    world.say(|| format!("somebody asks c{node}: {ask:?}"));
    let what = format!("{ask:?}");
    node::ask(world, node, Asked { id, by: "people".into(), from: "sim".into(), what, repeat: None, ask });
}
