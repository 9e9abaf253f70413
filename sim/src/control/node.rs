//! A controller's process: its candidacy, its writes, its plans.

use std::time::Duration;

use skein_api::cluster::Contact;
use skein_api::{Term, ToAgent, ToController, Welcome};
use skein_cluster::{Ask, Asked, Change, HostRecord, Input, Output, PowerAction, PowerResult, Tables};
use skein_store::election::{HeldLease, TermBase, campaign, guarded};
use skein_store::{Entry, Key, Operation, Outcome, Revision, Transaction, Value};

use super::event::{Event, Stored};
use super::host::{Ms, Node};
use super::watchdog;
use super::world::World;

/// How often a controller's clock ticks.
const TICK_MS: Ms = 500;
/// How long a leader's lease lasts.
const TTL: Duration = Duration::from_secs(5);
/// How often the lease is kept alive.
const KEEP_MS: Ms = 1500;
/// How much of its lease a leader has left when it has a host switched off.
const LEASE_LEFT_MS: u128 = 3_000;
const BASE: TermBase = TermBase(0);

/// Starts a controller's process.
pub fn start(world: &mut World, node: usize) {
    let settings = world.nodes[node].settings.clone();
    let life = world.nodes[node].life + 1;
    world.nodes[node] = Node { life, ..Node::new(settings) };
    handle(world, node, Input::NeededAt { addresses: Some(Default::default()) });
    let first = world.rng.between(1, TICK_MS);
    world.after(first, Event::Tick { node, life });
}

/// Ends a controller's process.
pub fn kill(world: &mut World, node: usize) {
    world.say(|| format!("c{node} is killed"));
    let of = &mut world.nodes[node];
    of.life += 1;
    of.is_alive = false;
    let sessions: Vec<u64> =
        world.sessions.iter().filter(|(_, of)| of.node == node && of.open).map(|(id, _)| *id).collect();
    sessions.into_iter().for_each(|session| world.break_session(session));
}

/// Takes a tick: the candidacy, and the controller's own clock.
pub fn tick(world: &mut World, node: usize, life: u64) {
    world.after(TICK_MS, Event::Tick { node, life });
    let now = Duration::from_millis(world.now);
    let of = &mut world.nodes[node];
    match of.lease {
        Some(lease) if lease.left(now).is_zero() => {
            // Whatever the store says: the lease may be over there.
            (of.lease, of.term) = (None, None);
            if of.controller.term().is_some() {
                world.say(|| format!("c{node} has lost its lease"));
                follow(world, node);
            }
        }
        Some(lease) if of.term.is_some() && world.now >= of.kept_ms + KEEP_MS => {
            of.kept_ms = world.now;
            keep_alive(world, node, lease);
        }
        _ => {}
    }
    let of = &mut world.nodes[node];
    if of.term.is_none() && !of.is_asking {
        of.is_asking = true;
        ask_for_lease(world, node);
    }
    handle(world, node, Input::Tick);
}

fn ask_for_lease(world: &mut World, node: usize) {
    let (life, asked) = (world.nodes[node].life, world.now);
    match world.store_latency() {
        Some(latency) => {
            world.store.advance(Duration::from_millis(asked));
            let lease = world.store.grant(Duration::from_millis(asked), TTL);
            world.after(latency, Event::Stored { node, life, done: Stored::Granted { asked, lease } });
        }
        None => world.after(1000, Event::Stored { node, life, done: Stored::Silent }),
    }
}

fn keep_alive(world: &mut World, node: usize, lease: HeldLease) {
    let (life, asked) = (world.nodes[node].life, world.now);
    if let Some(latency) = world.store_latency() {
        world.store.advance(Duration::from_millis(asked));
        let ttl = world.store.keep_alive(Duration::from_millis(asked), lease.id).ok();
        world.after(latency, Event::Stored { node, life, done: Stored::KeptAlive { asked, ttl } });
    }
}

/// Takes an answer of the store.
pub fn stored(world: &mut World, node: usize, done: Stored) {
    let life = world.nodes[node].life;
    match done {
        Stored::Silent => world.nodes[node].is_asking = false,
        Stored::Granted { asked, lease } => {
            world.nodes[node].lease = Some(HeldLease::granted(lease, Duration::from_millis(asked)));
            let name = Value::new(format!("c{node}").into_bytes()).expect("that is short");
            let Some(latency) = world.store_latency() else {
                return world.after(1000, Event::Stored { node, life, done: Stored::Silent });
            };
            let won = match world.commit(&campaign(name, lease.id)) {
                Ok(Outcome::Committed { revision }) => {
                    world.check.elected(revision.0);
                    Some((revision, world.all().1))
                }
                _ => None,
            };
            world.after(latency, Event::Stored { node, life, done: Stored::Campaigned { won } });
        }
        Stored::Campaigned { won } => {
            let of = &mut world.nodes[node];
            of.is_asking = false;
            match won {
                Some((created, entries)) => {
                    let term = skein_store::election::Term { base: BASE, created };
                    (of.term, of.kept_ms) = (Some(term), world.now);
                    world.say(|| format!("c{node} leads in term {}", created.0));
                    let tables = Box::new(tables(&entries));
                    handle(world, node, Input::Elected { term: Term(term.number()), tables });
                }
                None => {
                    of.lease = None;
                    follow(world, node);
                }
            }
        }
        Stored::KeptAlive { asked, ttl } => {
            let of = &mut world.nodes[node];
            match (ttl, &mut of.lease) {
                (Some(ttl), Some(lease)) => {
                    lease.kept_alive(Duration::from_millis(asked), ttl);
                    if let Some(term) = of.controller.term() {
                        handle(world, node, Input::LeadConfirmed { term, begun_ms: asked });
                    }
                }
                _ => {
                    (of.lease, of.term) = (None, None);
                    if of.controller.term().is_some() {
                        follow(world, node);
                    }
                }
            }
        }
        Stored::Written { write, outcome } => {
            let input = match outcome {
                Some(Ok(Outcome::Committed { revision })) => Input::Written { write, revision: revision.0 },
                Some(Ok(Outcome::Conflict { .. })) => Input::WriteFailed { write, why: "another leads".into() },
                Some(Err(error)) => Input::WriteFailed { write, why: error.to_string() },
                None => Input::WriteFailed { write, why: "the store did not answer".into() },
            };
            handle(world, node, input);
        }
    }
}

/// Has a controller follow: it reads what the store has.
fn follow(world: &mut World, node: usize) {
    let (_, entries) = world.all();
    let tables = Box::new(tables(&entries));
    handle(world, node, Input::Following { tables });
}

fn tables(entries: &[Entry]) -> Tables {
    let all = entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_bytes(), entry.modified.0));
    Tables::load(all).expect("what was written can be read")
}

/// Gives a controller something, and does what it wants done.
pub fn handle(world: &mut World, node: usize, input: Input) {
    if !world.nodes[node].is_alive {
        return;
    }
    let now = world.clock();
    world.nodes[node].controller.handle(now, input).expect("what was written can be read");
    while let Some(output) = world.nodes[node].controller.output() {
        perform(world, node, output);
    }
}

fn perform(world: &mut World, node: usize, output: Output) {
    let life = world.nodes[node].life;
    match output {
        Output::Write { write, term, changes } => write_down(world, node, write, term, &changes),
        Output::Command { session, command, term, request_id, request } => {
            world.say(|| format!("c{node} commands in term {term}: {request_id:?} {request:?}"));
            let saved = request_id.as_deref().and_then(|name| name.split('.').next()).map(str::to_owned);
            if let Some(operation) = saved {
                let value = world.value(&format!("operation/{operation}"));
                let revision = world.store.revision();
                world.check.commanded(world.now, request_id.as_deref().unwrap_or_default(), value, revision.0);
            }
            world.send_to_agent(session, ToAgent::Command { command, term, request_id, request });
        }
        Output::Lead { session, term } => world.send_to_agent(session, ToAgent::Leads { term }),
        Output::Heard { session, term, number, sequence, voters, hosts } => {
            world.send_to_agent(session, ToAgent::Heard { term, number, sequence, voters, hosts });
        }
        Output::HangUp { session, .. } => world.break_session(session),
        Output::Refuse { session, refusal } => {
            let of = world.sessions[&session];
            // No host is removed here, so one is refused only if it has got another certificate since it dialled.
            if of.certificate >= world.agents[of.host].certificate {
                let what = format!("host {} is refused with the certificate that it has: {}", of.host, refusal.message);
                world.check.broken(world.now, what);
            }
            world.break_session(session);
        }
        Output::Plan { plan } => {
            let ms = world.rng.between(0, 100);
            world.after(ms, Event::Planning { node, life, plan });
        }
        Output::Power { job, term, host, action, .. } => send_power(world, node, job, term, &host, action),
        Output::Answer { asked, answer } => world.answered(node, asked, answer),
        Output::Changed { .. } => {}
        Output::StepDown { why } => {
            world.say(|| format!("c{node} steps down: {why}"));
            let of = &mut world.nodes[node];
            (of.lease, of.term) = (None, None);
            follow(world, node);
        }
    }
}

/// Sends a controller's word to a device.
fn send_power(world: &mut World, node: usize, job: u64, term: Term, host: &str, action: PowerAction) {
    let life = world.nodes[node].life;
    let Some(host) = world.agents.iter().position(|agent| agent.name == host) else { return };
    if matches!(action, PowerAction::Off | PowerAction::Shutdown | PowerAction::On) {
        check_told(world, node, term, host, action);
        let now = Duration::from_millis(world.now);
        let left = world.nodes[node].lease.map_or(0, |lease| lease.left(now).as_millis());
        if left < LEASE_LEFT_MS {
            if action == PowerAction::Shutdown {
                let name = world.agents[host].name.clone();
                world.check.not_told_to_sleep(&name);
            }
            let result = PowerResult::Refused("the leader's lease has too little left".into());
            return world.after(1, Event::Powered { node, life, job, result });
        }
    }
    let ms = if world.rng.percent(10) { world.rng.between(500, 3000) } else { world.rng.between(5, 100) };
    world.after(ms, Event::Power { node, life, job, host, action });
}

/// Checks that what a host's device is told was written before.
fn check_told(world: &mut World, node: usize, term: Term, host: usize, action: PowerAction) {
    if action == PowerAction::Off {
        return check_order(world, node, term, host);
    }
    let name = world.agents[host].name.clone();
    world.say(|| format!("c{node} orders in term {term} for {name}: {action:?}"));
    if action == PowerAction::Shutdown {
        let written = world.shutdowns_written(&name);
        world.check.told_to_sleep(world.now, &name, written);
        // Somebody may start a guest by hand before the host is off.
        let ms = world.rng.between(1, 3000);
        world.after(ms, Event::ByHand { host });
    }
}

/// Checks that a power-off was written before, and that the host is not heard of.
fn check_order(world: &mut World, node: usize, term: Term, host: usize) {
    let name = world.agents[host].name.clone();
    world.say(|| format!("c{node} orders in term {term} that {name} is switched off"));
    let written = world.attempts_written(&name);
    let (now, silent_ms) = (world.now, world.check.silent_ms(world.now, node, host));
    world.check.ordered(now, &name, written);
    if silent_ms < 2500 {
        world.check.broken(now, format!("{name} is to be switched off, and was heard of {silent_ms} ms ago"));
    }
}

/// Checks that a host that counts as lost from now on was not heard of for its lease. A host that slept counts as lost
/// once it was told to switch on and nobody waits for it.
fn check_lost(world: &mut World, node: usize, change: &Change) {
    let Change::Put { key, value } = change else { return };
    let Some(name) = key.strip_prefix("host/") else { return };
    // What a restored backup says of a host does not count.
    let read =
        |value: &[u8]| serde_json::from_slice::<HostRecord>(value).ok().filter(|host| !host.is_unheard_since_restore);
    let contact = |value: &[u8]| read(value).map(|host| host.contact);
    let before = world.value(key).and_then(|value| contact(&value));
    let is_news = contact(value) == Some(Contact::Lost) && before == Some(Contact::Online);
    let host = world.agents.iter().position(|agent| agent.name == name);
    let lease_ms = 1000 * u64::from(skein_api::cluster::ClusterSettings::default().host_lease_s);
    if let Some(host) = host.filter(|_| is_news) {
        let silent_ms = world.check.silent_ms(world.now, node, host);
        if silent_ms + TICK_MS * 4 < lease_ms {
            world.check.broken(world.now, format!("{name} counts as lost after {silent_ms} ms"));
        }
    }
}

/// Checks that a host that sleeps from now on was not heard of.
fn check_asleep(world: &mut World, node: usize, change: &Change) {
    let Change::Put { key, value } = change else { return };
    let Some(name) = key.strip_prefix("host/") else { return };
    let is = |value: &[u8]| serde_json::from_slice::<HostRecord>(value).is_ok_and(|of| of.contact == Contact::Asleep);
    let was = world.value(key).is_some_and(|value| is(&value));
    let host = world.agents.iter().position(|agent| agent.name == name);
    if let Some(host) = host.filter(|_| is(value) && !was) {
        let silent_ms = world.check.silent_ms(world.now, node, host);
        if silent_ms < 2500 {
            world.check.broken(world.now, format!("{name} counts as asleep, and was heard of {silent_ms} ms ago"));
        }
    }
}

fn write_down(world: &mut World, node: usize, write: u64, term: Term, changes: &[Change]) {
    let life = world.nodes[node].life;
    let mut transaction = Transaction::new();
    for change in changes {
        check_lost(world, node, change);
        check_asleep(world, node, change);
        watchdog::check_off(world, change);
        if let Change::Put { key, value } = change
            && key.starts_with("vm/")
        {
            world.say(|| format!("c{node} writes {key}: {}", String::from_utf8_lossy(value)));
        }
        let key = Key::new(change.key()).expect("the key is one");
        transaction = transaction.then(match change {
            Change::Put { value, .. } => Operation::put(key, Value::new(value.clone()).expect("the value is small")),
            Change::Delete { .. } => Operation::Delete(key),
        });
    }
    let transaction = guarded(transaction, skein_store::election::Term { base: BASE, created: Revision(term.0) });
    // The write may come to the store late, and its answer may be lost.
    let Some(latency) = world.store_latency() else {
        return world.after(2000, Event::Stored { node, life, done: Stored::Written { write, outcome: None } });
    };
    let is_lost = !world.is_calm && world.rng.percent(1);
    let outcome = world.commit(&transaction);
    let (ms, outcome) = if is_lost { (2000, None) } else { (latency, Some(outcome)) };
    world.after(ms, Event::Stored { node, life, done: Stored::Written { write, outcome } });
}

/// Begins a plan, as the process's planner does.
pub fn plan(world: &mut World, node: usize, number: u64) {
    let Some(request) = world.nodes[node].controller.plan_request(number) else { return };
    let (ms, life) = (world.rng.between(5, 400), world.nodes[node].life);
    world.after(ms, Event::Plan { node, life, plan: number, request: Box::new(request) });
}

/// Ends a plan.
pub fn planned(world: &mut World, node: usize, number: u64, request: &skein_cluster::PlanRequest) {
    let result = skein_cluster::plan(request);
    world.say(|| {
        let at: Vec<String> = request.cluster.guests.iter().map(|g| format!("{}@{:?}", g.name, g.host)).collect();
        let hosts: Vec<String> = request.cluster.hosts.iter().map(|h| format!("{}:{:?}", h.name, h.state)).collect();
        format!("c{node} plans {:?} rules {} {hosts:?} {at:?}: {result:?}", request.want, request.cluster.rules.len())
    });
    handle(world, node, Input::Planned { plan: number, result });
}

/// Takes a line from an agent.
pub fn line(world: &mut World, node: usize, session: u64, line: ToController) {
    let input = match line {
        ToController::Hello(hello) => {
            let welcome = Welcome {
                cluster: "sim".into(),
                controller: format!("c{node}"),
                release: "sim".into(),
                report_period_ms: 1000,
            };
            world.send_to_agent(session, ToAgent::Welcome(welcome));
            let certificate = certificate(&hello.host, world.sessions[&session].certificate);
            Input::AgentUp { session, hello, certificate: certificate.into() }
        }
        ToController::Report(report) => Input::AgentReport { session, report },
        ToController::Reply { command, reply } => Input::AgentReply { session, command, reply },
        ToController::Deposed { highest, .. } => Input::AgentDeposed { session, highest },
        ToController::Renew => return renew(world, node, session),
        ToController::AskStart { ask, vm, is_here } => {
            return ask_by_hand(world, node, (session, ask), |host| Ask::StartByHand { host, vm, is_here });
        }
        ToController::AskMove { ask, vm, to, migration } => {
            return ask_by_hand(world, node, (session, ask), |host| Ask::MoveByHand { host, vm, to, migration });
        }
        ToController::Sample(_) | ToController::Seen { .. } | ToController::Other => return,
    };
    handle(world, node, input);
}

/// Returns the SHA-256 of a host's certificate, as far as a run is concerned.
pub fn certificate(host: &str, number: u64) -> String {
    format!("of {host} {number}")
}

/// Signs a certificate in place of the one that an agent has shown. It is handed out when it is written.
fn renew(world: &mut World, node: usize, session: u64) {
    let of = world.sessions[&session];
    let agent = &mut world.agents[of.host];
    agent.signed += 1;
    let (host, number) = (agent.name.clone(), agent.signed);
    let shown_sha256 = certificate(&host, of.certificate);
    let signed_sha256 = certificate(&host, number);
    let request = Ask::RenewCertificate { host, shown_sha256, signed_sha256 };
    let id = world.number();
    world.renewals.insert(id, (session, number));
    let (by, from) = ("host".to_owned(), "sim".to_owned());
    ask(world, node, Asked { id, by, from, what: String::new(), repeat: None, ask: request });
}

/// Takes an agent's question about what a person wants on its host.
fn ask_by_hand(world: &mut World, node: usize, (session, number): (u64, u64), of_host: impl FnOnce(String) -> Ask) {
    let host = world.agents[world.sessions[&session].host].name.clone();
    let id = world.number();
    world.hand_asks.insert(id, (session, number));
    let (by, from, request) = (format!("host:{host}"), "sim".to_owned(), of_host(host));
    ask(world, node, Asked { id, by, from, what: format!("{request:?}"), repeat: None, ask: request });
}

/// Asks a controller for something.
pub fn ask(world: &mut World, node: usize, asked: Asked) {
    world.check.asked(&asked);
    handle(world, node, Input::Asked(Box::new(asked)));
}
