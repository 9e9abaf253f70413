//! Hosts with a watchdog that resets them unless their agent feeds it, and agents that ask each other whether any has a
//! leader, in some runs.

use std::collections::BTreeSet;

use skein_api::cluster::Contact;
use skein_api::{HeardEcho, Term};
use skein_cluster::{Change, HostRecord, Planted};
use skein_watchdog::Feeder;

use super::event::Event;
use super::host::Ms;
use super::timer::{TIMEOUT_MS, TIMES, Watchdog};
use super::world::World;

/// Gives hosts their watchdogs, in some runs.
pub fn populate(world: &mut World) {
    let Some(mut rng) = world.watchdog_rng.take() else { return };
    for host in &mut world.agents {
        let mut watchdog = Watchdog::new(&host.name, 0);
        watchdog.has_device = rng.percent(80);
        watchdog.is_lonely = rng.percent(40);
        host.watchdog = Some(watchdog);
    }
    for _ in 0..rng.between(1, 2) {
        // Early, so that the proof comes before all is calm.
        let ms = rng.between(5_000, 16_000);
        world.after(ms, Event::Partition);
    }
    world.watchdog_rng = Some(rng);
}

/// Cuts some hosts off from some controllers for long.
pub fn partition(world: &mut World) {
    let Some(mut rng) = world.watchdog_rng.take() else { return };
    let is_all = rng.percent(50);
    for host in 0..world.agents.len() {
        let is_off = rng.percent(50);
        for node in 0..world.nodes.len() {
            if is_off && (is_all || rng.percent(60)) {
                world.part(node, host);
            }
        }
    }
    let cut = world.cut.clone();
    world.say(|| format!("hosts and controllers are parted: {cut:?}"));
    world.watchdog_rng = Some(rng);
}

/// An agent starts: of what was acknowledged before, it knows at most when that was sent.
pub fn start(world: &mut World, host: usize) {
    let (now, name) = (world.now, world.agents[host].name.clone());
    let (boot, life) = (world.agents[host].boot, world.agents[host].life);
    if let Some(watchdog) = &mut world.agents[host].watchdog {
        let sent_ms = watchdog.feeder.sent_ms();
        watchdog.feeder = Feeder::new(&name, TIMES, now);
        (watchdog.heard, watchdog.is_open, watchdog.is_halted) = (None, false, false);
        watchdog.armed = watchdog.armed.filter(|(of, _)| *of == boot);
        if let Some(sent_ms) = sent_ms.filter(|_| watchdog.armed.is_some()) {
            watchdog.feeder.go_on(now, sent_ms, TIMEOUT_MS);
        }
        world.after(TIMES.period_ms, Event::Feed { host, life });
    }
}

/// Feeds, if the agent may; asks the others, if it is time.
pub fn feed(world: &mut World, host: usize, life: u64) {
    if world.agents[host].life != life || !world.agents[host].is_up {
        return;
    }
    world.after(TIMES.period_ms, Event::Feed { host, life });
    let now = world.now;
    let is_fed_on = world.has(Planted::FedOn);
    let Some(watchdog) = &mut world.agents[host].watchdog else { return };
    let feeds = watchdog.feeder.feeds(now) || (watchdog.armed.is_some() && is_fed_on);
    let round = watchdog.feeder.ask(now);
    let is_silent = watchdog.is_open && !feeds;
    if watchdog.has_device && feeds && !watchdog.is_halted {
        let halted_ms = world.watchdog_rng.as_mut().and_then(|rng| rng.percent(2).then(|| rng.between(1, TIMEOUT_MS)));
        match halted_ms {
            Some(ms) => {
                watchdog.is_halted = true;
                world.after(ms, Event::FeedLate { host, life });
            }
            None => fed(world, host),
        }
    }
    if let Some(round) = round {
        for other in (0..world.agents.len()).filter(|other| *other != host) {
            send(world, (host, other), Event::PeerAsks { from: host, to: other, life, round });
        }
    }
    if is_silent {
        end_at_times(world, host, life);
    }
}

/// Ends, at times, an agent that may feed no more, before its host is reset.
fn end_at_times(world: &mut World, host: usize, life: u64) {
    let Some(rng) = &mut world.watchdog_rng else { return };
    if rng.percent(10) {
        let ms = rng.between(500, 8_000);
        world.after(0, Event::AgentEnds { host, life });
        world.after(ms, Event::Restart { node: None, host: Some(host) });
    }
}

/// The thread goes on that was halted when it had found that it may feed: it does, whatever holds now.
pub fn feed_late(world: &mut World, host: usize, life: u64) {
    if world.agents[host].life != life || !world.agents[host].is_up {
        return;
    }
    let Some(watchdog) = &mut world.agents[host].watchdog else { return };
    watchdog.is_halted = false;
    fed(world, host);
}

/// An agent ends. The kernel feeds a watchdog that is closed and cannot be stopped.
pub fn close(world: &mut World, host: usize) {
    let is_on = world.agents[host].is_on;
    let Some(watchdog) = world.agents[host].watchdog.as_mut().filter(|of| of.is_open) else { return };
    watchdog.is_open = false;
    if is_on {
        rewind(world, host);
    }
}

/// Feeds the watchdog, which is opened by that if it is not open.
fn fed(world: &mut World, host: usize) {
    let is_new = world.agents[host].watchdog.as_ref().is_some_and(|of| of.armed.is_none());
    world.check.stats.armed += u64::from(is_new);
    if let Some(watchdog) = &mut world.agents[host].watchdog {
        watchdog.is_open = true;
        rewind(world, host);
    }
}

/// Has the watchdog reset the host a timeout from now, and no sooner.
fn rewind(world: &mut World, host: usize) {
    let (now, boot) = (world.now, world.agents[host].boot);
    if let Some(watchdog) = &mut world.agents[host].watchdog {
        watchdog.armed = Some((boot, now));
        world.after(TIMEOUT_MS, Event::Bite { host, boot, fed: now });
    }
}

/// Returns whether a host is cut off from all controllers and all hosts.
fn is_alone(world: &World, host: usize) -> bool {
    let is_cut = (0..world.nodes.len()).all(|node| world.cut.contains(&(host, node)));
    is_cut && world.agents[host].watchdog.as_ref().is_some_and(|of| of.is_lonely)
}

/// Sends something from one host to another, or loses it.
fn send(world: &mut World, (from, to): (usize, usize), event: Event) {
    let Some(mut rng) = world.watchdog_rng.take() else { return };
    let is_lost = rng.percent(5) || is_alone(world, from) || is_alone(world, to);
    let ms = if rng.percent(10) { rng.between(100, 4000) } else { rng.between(1, 20) };
    world.watchdog_rng = Some(rng);
    if !is_lost {
        world.after(ms, event);
    }
}

/// An agent is asked whether it has a leader.
pub fn asked(world: &mut World, from: usize, to: usize, life: u64, round: u64) {
    let now = world.now;
    let is_ignored = world.has(Planted::LeaderOfOthersIgnored);
    let Some(watchdog) = world.agents[to].watchdog.as_ref().filter(|_| world.agents[to].is_up) else { return };
    let has_leader = watchdog.feeder.has_leader(now) && !is_ignored;
    send(world, (to, from), Event::PeerSays { from: to, to: from, life, round, has_leader });
}

/// An agent answers another.
pub fn answered(world: &mut World, from: usize, to: usize, life: u64, (round, has_leader): (u64, bool)) {
    let name = world.agents[from].name.clone();
    if world.agents[to].life != life {
        return;
    }
    if let Some(watchdog) = &mut world.agents[to].watchdog {
        watchdog.feeder.answered(round, &name, has_leader);
    }
}

/// A report was acknowledged.
pub fn acknowledged(
    world: &mut World,
    host: usize,
    session: u64,
    (term, number, sequence, voters): (Term, u64, u64, u64),
    hosts: BTreeSet<String>,
) {
    let now = world.now;
    let agent = &mut world.agents[host];
    let Some(sent_ms) = agent.sent.get(&session).and_then(|sent| sent.times.get(&sequence).copied()) else { return };
    if let Some(sent) = agent.sent.get_mut(&session) {
        sent.times.retain(|of, _| *of > sequence);
    }
    let Some(watchdog) = &mut agent.watchdog else { return };
    watchdog.feeder.acknowledged(now, sent_ms, voters, Some(hosts).filter(|hosts| !hosts.is_empty()));
    let voters = watchdog.feeder.voters().unwrap_or(0);
    watchdog.heard = Some(HeardEcho { term, number, voters });
}

/// The watchdog resets its host, if it was not fed since.
pub fn bite(world: &mut World, host: usize, (boot, fed): (u64, Ms), switch_off: impl FnOnce(&mut World)) {
    let agent = &world.agents[host];
    let is_due = agent.watchdog.as_ref().is_some_and(|of| of.armed == Some((boot, fed)));
    if !is_due || !agent.is_on || agent.boot != boot {
        return;
    }
    let name = agent.name.clone();
    world.say(|| format!("the watchdog of {name} resets it"));
    world.check.stats.reset += 1;
    switch_off(world);
    let Some(mut rng) = world.watchdog_rng.take() else { return };
    let ms = rng.between(8_000, 30_000);
    world.watchdog_rng = Some(rng);
    world.after(ms, Event::Restart { node: None, host: Some(host) });
}

/// Checks that a host that counts as off from now on is off, or was since it was heard of.
pub fn check_off(world: &mut World, change: &Change) {
    let Change::Put { key, value } = change else { return };
    let Some(name) = key.strip_prefix("host/").filter(|_| world.watchdog_rng.is_some()) else { return };
    let read = |value: &[u8]| serde_json::from_slice::<HostRecord>(value).ok().filter(|of| of.contact == Contact::Off);
    let Some(host) = read(value) else { return };
    if world.value(key).and_then(|value| read(&value)).is_some() {
        return;
    }
    let Some(agent) = world.agents.iter().find(|agent| agent.name == name) else { return };
    let is_same = agent.is_on && host.boot_id == Some(format!("boot{}", agent.boot));
    if is_same {
        let what = format!("{name} counts as off, and was on all the time");
        world.check.broken(world.now, what);
    } else if host.watchdog.is_some() {
        world.check.stats.proven_with_watchdog += 1;
    }
}
