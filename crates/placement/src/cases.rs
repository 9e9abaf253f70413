//! Random problems with all kinds of rules, for tests.

use crate::bits::Bits;
use crate::dice::Dice;
use crate::problem::{
    Avoid, Balance, Even, Group, Guest, Host, HostId, HostMoves, NOWHERE, NeedsRule, Problem, Resource, Spread,
    Strength, Weights,
};

/// The number of area levels in each problem.
const LEVELS: usize = 2;

/// Makes a problem with at most this many hosts and guests.
pub(crate) fn problem(dice: &mut Dice, hosts_max: usize, guests_max: usize) -> Problem {
    let hosts = 1 + dice.below(hosts_max);
    let guests = dice.below(guests_max + 1);
    let resources = 1 + dice.below(6);
    let levels: Vec<u32> = (0..LEVELS).map(|_| 1 + dice.below(hosts) as u32).collect();
    let strength = |dice: &mut Dice| match dice.chance(0.5) {
        true => Strength::Hard,
        false => Strength::Soft(dice.below(1000) as i64),
    };
    let set = |dice: &mut Dice| -> Bits { (0..hosts as HostId).filter(|_| dice.chance(0.6)).collect() };
    let numbers =
        |dice: &mut Dice, most: usize| -> Vec<i64> { (0..resources).map(|_| dice.below(most) as i64).collect() };
    let groups = dice.below(6);
    let mut problem = Problem {
        resources: (0..resources)
            .map(|_| Resource { transient: dice.chance(0.3), load_weight: dice.below(20) as i64 })
            .collect(),
        hosts: (0..hosts)
            .map(|_| Host {
                areas: levels.iter().map(|areas| dice.below(*areas as usize) as u32).collect(),
                capacity: numbers(dice, 200),
                safe: numbers(dice, 150),
            })
            .collect(),
        groups: Vec::new(),
        guests: Vec::new(),
        balances: (0..dice.below(3))
            .map(|_| Balance {
                first: dice.below(resources),
                second: dice.below(resources),
                ratio: dice.below(5) as i64,
                weight: dice.below(10) as i64,
            })
            .collect(),
        weights: Weights {
            guest_move: dice.below(3) as i64,
            group_move: dice.below(20) as i64,
            host_move: dice.below(3) as i64,
        },
        host_moves: match dice.chance(0.5) {
            true => HostMoves::Uniform(dice.below(10) as i64),
            false => HostMoves::Matrix((0..hosts * hosts).map(|_| dice.below(10) as u32).collect()),
        },
        owners: (0..2).map(|_| set(dice)).collect(),
        preferences: (0..2).map(|_| (0..hosts).map(|_| dice.below(50) as i64).collect()).collect(),
        initial: Vec::new(),
        levels,
    };
    for _ in 0..groups {
        let spread = dice.chance(0.4).then(|| Spread {
            level: dice.below(LEVELS),
            areas_min: 1 + dice.below(3) as u32,
            strength: strength(dice),
        });
        let group = Group {
            apart: dice.chance(0.5).then(|| strength(dice)),
            together: dice.chance(0.2).then(|| strength(dice)),
            spread,
            even: dice.chance(0.3).then(|| {
                let level = dice.below(LEVELS);
                let areas = (0..problem.levels[level]).filter(|_| dice.chance(0.8)).collect();
                Even { level, areas, skew_max: dice.below(3) as u32, strength: strength(dice) }
            }),
            needs: (0..dice.below(3))
                .map(|_| NeedsRule {
                    level: dice.below(LEVELS),
                    of: dice.below(groups) as u32,
                    strength: strength(dice),
                })
                .collect(),
            avoids: (0..dice.below(2))
                .map(|_| Avoid { level: dice.below(LEVELS), of: dice.below(groups) as u32, strength: strength(dice) })
                .collect(),
            among: (0..if dice.chance(0.2) { 2 } else { 0 }).map(|_| set(dice)).collect(),
            counts_moves: dice.chance(0.7),
        };
        problem.groups.push(group);
    }
    for _ in 0..guests {
        let mut of: Vec<u32> = (0..dice.below(3).min(groups)).map(|_| dice.below(groups) as u32).collect();
        of.sort_unstable();
        of.dedup();
        // No guest may be in two groups that are apart.
        let avoids = |one: u32, other: u32| problem.groups[one as usize].avoids.iter().any(|avoid| avoid.of == other);
        let all = of.clone();
        of.retain(|one| all.iter().all(|other| !avoids(*one, *other) && (other == one || !avoids(*other, *one))));
        problem.guests.push(Guest {
            demand: numbers(dice, 40),
            groups: of,
            move_cost: dice.below(10) as i64,
            owners: dice.chance(0.3).then(|| dice.below(2) as u32),
            preference: dice.chance(0.3).then(|| dice.below(2) as u32),
        });
        problem.initial.push(if dice.chance(0.1) { NOWHERE } else { dice.below(hosts) as HostId });
    }
    problem
}
