//! Jobs for tests.

use super::{ConcurrencyLimits, Job, Network, Port, Power, Switch, Traffic};
use crate::bits::Bits;
use crate::dice::Dice;
use crate::problem::{
    Avoid, Group, Guest, Host, HostId, HostMoves, NOWHERE, NeedsRule, Problem, Resource, Spread, Strength, Weights,
};

/// The bytes per second of a port: 1 Gb/s.
pub(crate) const GIGABIT: f64 = 125e6;

/// Makes the traffic of a guest that uses this much memory and writes a little.
pub(crate) fn traffic(memory_bytes: f64) -> Traffic {
    Traffic { memory_bytes, hot_bytes: 1e7, hot_seconds: 1.0, dirty_rate: 1e6, downtime_seconds: 0.3 }
}

/// Makes a job from the hosts' capacities, and for each guest what it uses, where it is, and where it is to be.
pub(crate) fn job(capacities: &[i64], guests: &[(i64, HostId, HostId)]) -> Job {
    let hosts = capacities.iter().map(|most| Host { areas: vec![0], capacity: vec![*most], safe: vec![*most] });
    let guest = |used: i64| Guest { demand: vec![used], groups: vec![], move_cost: 0, owners: None, preference: None };
    let problem = Problem {
        resources: vec![Resource { transient: true, load_weight: 0 }],
        levels: vec![capacities.len() as u32],
        hosts: hosts.collect(),
        groups: Vec::new(),
        guests: guests.iter().map(|(used, ..)| guest(*used)).collect(),
        balances: Vec::new(),
        weights: Weights::default(),
        host_moves: HostMoves::Uniform(0),
        owners: Vec::new(),
        preferences: Vec::new(),
        initial: guests.iter().map(|(_, from, _)| *from).collect(),
    };
    let port = Port { outward: GIGABIT, inward: GIGABIT, switch: None };
    Job {
        problem,
        goal: guests.iter().map(|(.., to)| *to).collect(),
        traffic: guests.iter().map(|(used, ..)| traffic(*used as f64 * 1e9)).collect(),
        start_seconds: vec![5.0; guests.len()],
        stop_seconds: vec![2.0; guests.len()],
        network: Network { ports: vec![port; capacities.len()], switches: Vec::new() },
        limits: vec![ConcurrencyLimits::default(); capacities.len()],
        power: vec![Power::ALWAYS; capacities.len()],
        running: Vec::new(),
    }
}

/// Makes two guests that are to change places on full hosts, and a third host with room.
pub(crate) fn swap() -> Job {
    job(&[4, 4, 4], &[(4, 0, 1), (3, 1, 0)])
}

/// Makes jobs of all kinds: some hosts are off, some guests start or stop, and groups have rules.
pub(crate) fn any(dice: &mut Dice) -> Job {
    let hosts = 2 + dice.below(4);
    let capacity = 6 + dice.below(8) as i64;
    let mut room = [vec![capacity; hosts], vec![capacity; hosts]];
    let mut guests = Vec::new();
    for _ in 0..dice.below(12) {
        let used = 1 + dice.below(4) as i64;
        let ends = room.each_mut().map(|room| {
            let at = dice.below(hosts);
            let fits = room[at] >= used && !dice.chance(0.1);
            room[at] -= if fits { used } else { 0 };
            if fits { at as HostId } else { NOWHERE }
        });
        guests.push((used, ends[0], ends[1]));
    }
    let mut job = job(&vec![capacity; hosts], &guests);
    power(&mut job, dice);
    rules(&mut job, dice);
    links(&mut job, dice);
    job
}

/// Makes jobs that can always be done: one host is empty and has room for all guests.
pub(crate) fn roomy(dice: &mut Dice) -> Job {
    let mut job = loop {
        let job = any(dice);
        if !job.problem.guests.is_empty() {
            break job;
        }
    };
    job.problem.groups.iter_mut().for_each(|group| *group = Group::default());
    job.problem.guests.iter_mut().for_each(|guest| guest.owners = None);
    job.traffic.iter_mut().for_each(|of| *of = traffic(of.memory_bytes));
    let most = job.problem.guests.iter().map(|guest| guest.demand[0]).sum();
    job.problem.hosts.push(Host { areas: vec![0], capacity: vec![most], safe: vec![most] });
    job.network.ports.push(Port { outward: GIGABIT, inward: GIGABIT, switch: None });
    job.limits.push(ConcurrencyLimits::default());
    job.power.push(Power::ALWAYS);
    job
}

fn power(job: &mut Job, dice: &mut Dice) {
    for host in 0..job.power.len() {
        let is_used = |at: &[HostId]| at.contains(&(host as HostId));
        let on = is_used(&job.problem.initial) || dice.chance(0.5);
        let on_at_end = is_used(&job.goal) || dice.chance(0.5);
        job.power[host] = Power { on, on_at_end, boot_seconds: 30.0, shutdown_seconds: 10.0 };
    }
}

fn rules(job: &mut Job, dice: &mut Dice) {
    let hosts = job.problem.hosts.len();
    let areas = 1 + dice.below(hosts);
    job.problem.hosts.iter_mut().for_each(|host| host.areas[0] = dice.below(areas) as u32);
    let set = |dice: &mut Dice| -> Bits { (0..hosts as HostId).filter(|_| dice.chance(0.7)).collect() };
    job.problem.owners = vec![set(dice)];
    let groups = dice.below(4);
    for _ in 0..groups {
        let strength = if dice.chance(0.8) { Strength::Hard } else { Strength::Soft(1) };
        let spread = Spread { level: 0, areas_min: 1 + dice.below(3) as u32, strength };
        job.problem.groups.push(Group {
            apart: dice.chance(0.5).then_some(strength),
            together: dice.chance(0.1).then_some(strength),
            spread: dice.chance(0.4).then_some(spread),
            even: None,
            needs: (0..dice.below(2))
                .map(|_| NeedsRule { level: 0, of: dice.below(groups) as u32, strength })
                .collect(),
            avoids: (0..dice.below(2)).map(|_| Avoid { level: 0, of: dice.below(groups) as u32, strength }).collect(),
            among: (0..dice.below(3)).map(|_| set(dice)).collect(),
            counts_moves: false,
        });
    }
    for guest in &mut job.problem.guests {
        guest.groups = (0..groups as u32).filter(|_| dice.chance(0.4)).collect();
        // No guest may be in two groups that are apart.
        let avoids =
            |one: u32, other: u32| job.problem.groups[one as usize].avoids.iter().any(|avoid| avoid.of == other);
        let all = guest.groups.clone();
        guest
            .groups
            .retain(|one| all.iter().all(|other| !avoids(*one, *other) && (other == one || !avoids(*other, *one))));
        guest.owners = dice.chance(0.3).then_some(0);
    }
}

fn links(job: &mut Job, dice: &mut Dice) {
    let switches = dice.below(4);
    for n in 0..switches {
        let most = |dice: &mut Dice| dice.chance(0.6).then(|| GIGABIT * (0.5 + dice.unit()));
        let parent = (n > 0 && dice.chance(0.7)).then(|| dice.below(n));
        let switch = Switch { parent, upward: most(dice), downward: most(dice), through: most(dice) };
        job.network.switches.push(switch);
    }
    for port in &mut job.network.ports {
        *port = Port {
            outward: GIGABIT * (0.3 + dice.unit()),
            inward: GIGABIT * (0.3 + dice.unit()),
            switch: (switches > 0).then(|| dice.below(switches)),
        };
    }
    for limits in &mut job.limits {
        let most = 1 + dice.below(3) as u32;
        *limits = ConcurrencyLimits { incoming: most, outgoing: most, total: most + dice.below(2) as u32 };
    }
    for traffic in &mut job.traffic {
        traffic.hot_bytes = 1e8 * dice.unit();
        traffic.hot_seconds = 0.5 + dice.unit();
        traffic.dirty_rate = 1e7 * dice.unit();
    }
}
