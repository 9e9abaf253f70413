//! Small clusters from a seed, with rules of all kinds. They have little room, and most of them are feasible.
//!
//! Each case is made around an assignment that fits. Capacities are what the assignment uses and some more, and hard
//! rules that it breaks are relaxed, except for a few. The initial placement of guests is near this assignment, and
//! usually breaks something.

use skein_placement::bits::Bits;
use skein_placement::dice::Dice;
use skein_placement::problem::{
    Avoid, Balance, Even, Group, Guest, Host, HostId, HostMoves, NOWHERE, NeedsRule, Problem, Resource, Spread,
    Strength, Weights,
};
use skein_placement::verdict::{Breach, judge};

/// The chance of a hard rule to stay although the assignment around which the case is made breaks it.
const CONTRARY_RULE_CHANCE: f64 = 0.03;

/// Makes the cluster of a seed: 2 to 6 hosts, 2 to 15 guests.
pub fn case(seed: u64) -> Problem {
    cluster(&mut Dice::new(seed), 6, 15)
}

/// Makes a cluster of 2 to `hosts_max` hosts and 2 to `guests_max` guests.
pub fn cluster(dice: &mut Dice, hosts_max: usize, guests_max: usize) -> Problem {
    let hosts = 2 + dice.below(hosts_max.saturating_sub(1));
    let count = 2 + dice.below(guests_max.saturating_sub(1));
    let resources = 1 + dice.below(3);
    let racks = 1 + dice.below(hosts) as u32;
    let sites = 1 + dice.below(2) as u32;
    let guests = guests(dice, count, resources);
    let planted = planted(dice, hosts, &guests);
    let mut problem = Problem {
        resources: (0..resources)
            .map(|r| Resource { transient: r == 1 && dice.chance(0.5), load_weight: dice.below(10) as i64 })
            .collect(),
        levels: vec![racks, sites],
        hosts: capacities(dice, hosts, &guests, &planted)
            .into_iter()
            .zip(0..)
            .map(|((capacity, safe), id)| Host { areas: vec![id % racks, id % racks % sites], capacity, safe })
            .collect(),
        groups: Vec::new(),
        balances: (0..dice.below(2)).map(|_| balance(dice, resources)).collect(),
        guests,
        weights: Weights {
            guest_move: dice.below(4) as i64,
            group_move: dice.below(20) as i64,
            host_move: dice.below(3) as i64,
        },
        host_moves: match dice.chance(0.7) {
            true => HostMoves::Uniform(dice.below(5) as i64),
            false => HostMoves::Matrix((0..hosts * hosts).map(|_| dice.below(10) as u32).collect()),
        },
        owners: (0..2).map(|_| set(dice, hosts)).collect(),
        preferences: (0..2).map(|_| (0..hosts).map(|_| dice.below(50) as i64).collect()).collect(),
        initial: planted.clone(),
    };
    let groups = dice.below(6);
    (0..groups).for_each(|id| group(dice, &mut problem, id, groups));
    relax(dice, &mut problem);
    for host in &mut problem.initial {
        *host = match dice.unit() {
            part if part < 0.05 => NOWHERE,
            part if part < 0.35 => dice.below(hosts) as HostId,
            _ => *host,
        };
    }
    problem
}

/// Makes such a cluster in which groups can also be apart from others or spread evenly, and needs can be soft.
pub fn cluster_with_pairs(dice: &mut Dice, hosts_max: usize, guests_max: usize) -> Problem {
    let mut problem = cluster(dice, hosts_max, guests_max);
    let groups = problem.groups.len();
    let mut added = Vec::new();
    for _ in 0..groups {
        let level = dice.below(2);
        let even = Even {
            level,
            areas: (0..problem.levels[level]).filter(|_| dice.chance(0.9)).collect(),
            skew_max: dice.below(3) as u32,
            strength: strength(dice),
        };
        let avoid = Avoid { level: dice.below(2), of: dice.below(groups) as u32, strength: strength(dice) };
        added.push((dice.chance(0.4).then_some(even), dice.chance(0.5).then_some(avoid), strength(dice)));
    }
    for (group, (even, avoid, need)) in problem.groups.iter_mut().zip(added) {
        group.even = even;
        group.avoids.extend(avoid);
        group.needs.iter_mut().for_each(|of| of.strength = need);
    }
    part(&mut problem);
    problem
}

/// Draws guests of a few flavours.
fn guests(dice: &mut Dice, count: usize, resources: usize) -> Vec<Guest> {
    let flavours = 2 + dice.below(4);
    let flavours: Vec<Guest> = (0..flavours)
        .map(|_| Guest {
            demand: (0..resources).map(|r| (1 + dice.below(16) as i64) << (2 * r)).collect(),
            groups: Vec::new(),
            move_cost: dice.below(20) as i64,
            owners: None,
            preference: None,
        })
        .collect();
    let mut guests: Vec<Guest> = (0..count).map(|_| dice.pick(&flavours).clone()).collect();
    for guest in &mut guests {
        guest.owners = dice.chance(0.15).then(|| dice.below(2) as u32);
        guest.preference = dice.chance(0.2).then(|| dice.below(2) as u32);
    }
    guests
}

/// Places guests, mostly each where least is used.
fn planted(dice: &mut Dice, hosts: usize, guests: &[Guest]) -> Vec<HostId> {
    let mut used = vec![0; hosts];
    let place = |guest: &Guest| {
        let least = (0..hosts).min_by_key(|host| used[*host]).unwrap_or(0);
        let host = if dice.chance(0.7) { least } else { dice.below(hosts) };
        used[host] += guest.demand[0];
        host as HostId
    };
    guests.iter().map(place).collect()
}

/// Draws how much each host has and how much of it is safe, either the same on all hosts or not. Of this 50 to 95 % is
/// used.
fn capacities(dice: &mut Dice, hosts: usize, guests: &[Guest], planted: &[HostId]) -> Vec<(Vec<i64>, Vec<i64>)> {
    let resources = guests[0].demand.len();
    let mut used = vec![vec![0; resources]; hosts];
    for (guest, host) in guests.iter().zip(planted) {
        used[*host as usize].iter_mut().zip(&guest.demand).for_each(|(used, demand)| *used += demand);
    }
    if dice.chance(0.6) {
        let most: Vec<i64> = (0..resources).map(|r| used.iter().map(|of| of[r]).max().unwrap_or(0)).collect();
        used.fill(most);
    }
    let full: Vec<i64> = (0..resources).map(|_| 50 + dice.below(46) as i64).collect();
    let host = |used: Vec<i64>| {
        let capacity: Vec<i64> = used.iter().zip(&full).map(|(used, full)| used * 100 / full).collect();
        let safe = capacity.iter().map(|capacity| capacity * (60 + dice.below(41) as i64) / 100).collect();
        (capacity, safe)
    };
    used.into_iter().map(host).collect()
}

fn balance(dice: &mut Dice, resources: usize) -> Balance {
    let target = dice.below(4) as i64;
    Balance { first: dice.below(resources), second: dice.below(resources), ratio: target, weight: dice.below(5) as i64 }
}

fn strength(dice: &mut Dice) -> Strength {
    if dice.chance(0.6) { Strength::Hard } else { Strength::Soft(dice.below(200) as i64) }
}

fn set(dice: &mut Dice, hosts: usize) -> Bits {
    (0..hosts as HostId).filter(|_| dice.chance(0.7)).collect()
}

/// Draws a group with one rule or two and a few members: any guests, or those of one host.
fn group(dice: &mut Dice, problem: &mut Problem, id: usize, groups: usize) {
    let hosts = problem.hosts.len();
    let together = dice.chance(0.3);
    let home = dice.below(hosts) as HostId;
    for (guest, host) in problem.guests.iter_mut().zip(&problem.initial) {
        let chance = match together {
            true if *host == home => 0.7,
            true => 0.02,
            false => 0.25,
        };
        if dice.chance(chance) {
            guest.groups.push(id as u32);
        }
    }
    let spread = Spread { level: dice.below(2), areas_min: 1 + dice.below(3) as u32, strength: strength(dice) };
    let need = NeedsRule { level: dice.below(2), of: dice.below(groups) as u32, strength: Strength::Hard };
    problem.groups.push(Group {
        apart: (!together && dice.chance(0.5)).then(|| strength(dice)),
        together: together.then(|| strength(dice)),
        spread: (!together && dice.chance(0.4)).then_some(spread),
        needs: if dice.chance(0.2) { vec![need] } else { Vec::new() },
        among: if dice.chance(0.2) { vec![set(dice, hosts), set(dice, hosts)] } else { Vec::new() },
        counts_moves: dice.chance(0.7),
        ..Group::default()
    });
}

/// Takes guests out of groups so that none is in two groups that are apart.
fn part(problem: &mut Problem) {
    let avoids = |one: u32, other: u32| problem.groups[one as usize].avoids.iter().any(|avoid| avoid.of == other);
    for guest in &mut problem.guests {
        let mut kept: Vec<u32> = Vec::new();
        for group in &guest.groups {
            if !avoids(*group, *group) && kept.iter().all(|other| !avoids(*group, *other) && !avoids(*other, *group)) {
                kept.push(*group);
            }
        }
        guest.groups = kept;
    }
}

/// Makes most hard rules hold with all guests where they are.
fn relax(dice: &mut Dice, problem: &mut Problem) {
    let weight = Strength::Soft(1 + dice.below(100) as i64);
    for breach in judge(problem, &problem.initial).hard {
        if dice.chance(CONTRARY_RULE_CHANCE) {
            continue;
        }
        match breach {
            Breach::NotOwner { guest, .. } => problem.guests[guest as usize].owners = None,
            Breach::Apart { group, .. } => problem.groups[group as usize].apart = Some(weight),
            Breach::Together { group, .. } => problem.groups[group as usize].together = Some(weight),
            Breach::Spread { group, .. } => {
                problem.groups[group as usize].spread.iter_mut().for_each(|spread| spread.strength = weight);
            }
            Breach::Uneven { group, .. } => {
                problem.groups[group as usize].even.iter_mut().for_each(|even| even.strength = weight);
            }
            Breach::Need { group, .. } => problem.groups[group as usize].needs.clear(),
            Breach::Avoid { group, .. } => {
                problem.groups[group as usize].avoids.iter_mut().for_each(|avoid| avoid.strength = weight);
            }
            Breach::Among { group, .. } => problem.groups[group as usize].among.clear(),
            // Each guest has a place, and there is room for it.
            Breach::Unplaced { .. } | Breach::Overload { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_problem_and_most_begin_broken() {
        let cases = (0..500).map(case);
        let broken = cases
            .map(|case| {
                assert_eq!(case.check(), Ok(()));
                judge(&case, &case.initial)
            })
            .filter(|verdict| !verdict.is_valid());
        assert!(broken.count() > 250);
    }
}
