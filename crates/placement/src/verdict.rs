//! Computes what an assignment breaks and costs from scratch. The search keeps books of its own, and this module checks
//! them.

use std::collections::{BTreeMap, BTreeSet};

use crate::problem::{GroupId, GuestId, HostId, NOWHERE, Problem, Strength};
use crate::score::{Score, overload};

/// A breach: one rule, capacity or owner that is broken. Amounts are in the resource's unit. `members`, `hosts`,
/// `areas` and `outside` are numbers of these.
#[expect(missing_docs, reason = "fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A guest is on no host.
    Unplaced { guest: GuestId },
    /// A guest is on a host that is not among its owners. `stays`: it was there before.
    NotOwner { guest: GuestId, host: HostId, stays: bool },
    /// More of a resource is used than the host has. `moving` of `used` is held by guests that left the host.
    Overload { host: HostId, resource: usize, used: i64, moving: i64, capacity: i64 },
    /// Members of a group that are apart share a host.
    Apart { group: GroupId, host: HostId, members: u32 },
    /// Members of a group that belong together are on several hosts.
    Together { group: GroupId, hosts: u32 },
    /// A group is in too few areas.
    Spread { group: GroupId, areas: u32, areas_min: u32 },
    /// Some areas have too many more members of a group than the area with the fewest. `least` and `most` are the
    /// fewest and the most members in an area; `over` is the number of members too many, over all areas.
    Uneven { group: GroupId, least: u32, most: u32, over: u32 },
    /// An area has members of a group, but none of the group that they need.
    Need { group: GroupId, of: GroupId, level: usize, area: u32 },
    /// Members of two groups that are apart share an area. `members` counts those of both groups.
    Avoid { group: GroupId, of: GroupId, level: usize, area: u32, members: u32 },
    /// `outside` members of a group are not in the set of hosts that has most of its members.
    Among { group: GroupId, outside: u32 },
}

/// The cost of an assignment, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The cost of what is used above [`Host::safe`](crate::problem::Host::safe).
    pub load: i64,
    /// The cost of what is missing for a [`Balance`](crate::problem::Balance).
    pub balance: i64,
    /// The cost of the guests that moved.
    pub guest_moves: i64,
    /// The cost of the group of which most guests moved.
    pub group_moves: i64,
    /// The cost of the moves by their two hosts.
    pub host_moves: i64,
    /// The cost of guests on hosts that are not preferred.
    pub preferences: i64,
    /// The cost of broken soft rules.
    pub rules: i64,
}

impl Cost {
    /// Returns the sum of all costs.
    pub fn total(&self) -> i64 {
        self.load + self.balance + self.guest_moves + self.group_moves + self.host_moves + self.preferences + self.rules
    }
}

/// The judgement of an assignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What the assignment costs.
    pub cost: Cost,
    /// The breaches of hard rules.
    pub hard: Vec<Breach>,
    /// The breaches of soft rules.
    pub soft: Vec<Breach>,
    /// The number of guests that are not where they were.
    pub moves: usize,
}

impl Verdict {
    /// Returns whether no hard rule is broken and every guest is on a host.
    pub fn is_valid(&self) -> bool {
        self.hard.is_empty()
    }

    /// Returns the verdict as a [`Score`], as the search computes it.
    pub fn score(&self) -> Score {
        let broken = self.hard.iter().map(|breach| match breach {
            Breach::Unplaced { .. } => Score::UNPLACED,
            Breach::Overload { used, capacity, .. } => overload(used - capacity, *capacity),
            Breach::NotOwner { stays: false, .. } => Score::FORBIDDEN,
            other => Score::BREACH * other.count(),
        });
        Score { broken: broken.sum(), cost: self.cost.total() }
    }

    fn add(&mut self, strength: Strength, breach: Breach) {
        match strength {
            Strength::Hard => self.hard.push(breach),
            Strength::Soft(weight) => {
                self.cost.rules += weight * breach.count();
                self.soft.push(breach);
            }
        }
    }
}

impl Breach {
    /// Returns how many breaches of its rule this counts as.
    pub fn count(&self) -> i64 {
        i64::from(match self {
            Breach::Apart { members, .. } => members - 1,
            Breach::Together { hosts, .. } => hosts - 1,
            Breach::Spread { areas, areas_min, .. } => areas_min - areas,
            Breach::Among { outside, .. } => *outside,
            Breach::Uneven { over, .. } => *over,
            Breach::Avoid { members, .. } => members - 1,
            Breach::Unplaced { .. } | Breach::NotOwner { .. } | Breach::Overload { .. } | Breach::Need { .. } => 1,
        })
    }
}

/// Judges an assignment: the host of each guest, or [`NOWHERE`].
pub fn judge(problem: &Problem, assignment: &[HostId]) -> Verdict {
    let mut verdict = Verdict { moves: moves(problem, assignment), ..Verdict::default() };
    guests(problem, assignment, &mut verdict);
    hosts(problem, assignment, &mut verdict);
    groups(problem, assignment, &mut verdict);
    verdict
}

fn guests(problem: &Problem, assignment: &[HostId], verdict: &mut Verdict) {
    let weights = &problem.weights;
    let mut moved = vec![0i64; problem.groups.len()];
    for (guest, (&now, &before)) in (0..).zip(assignment.iter().zip(&problem.initial)) {
        let of = &problem.guests[guest as usize];
        if now == NOWHERE {
            verdict.hard.push(Breach::Unplaced { guest });
        } else {
            if of.owners.is_some_and(|set| !problem.owners[set as usize].contains(now)) {
                verdict.hard.push(Breach::NotOwner { guest, host: now, stays: now == before });
            }
            verdict.cost.preferences += of.preference.map_or(0, |of| problem.preferences[of as usize][now as usize]);
        }
        if before != NOWHERE && now != before {
            if now != NOWHERE {
                verdict.cost.guest_moves += weights.guest_move * of.move_cost;
                verdict.cost.host_moves += weights.host_move * problem.host_move_cost(before, now);
            }
            of.groups.iter().for_each(|group| moved[*group as usize] += 1);
        }
    }
    let counted = moved.iter().zip(&problem.groups).filter(|(_, group)| group.counts_moves);
    verdict.cost.group_moves = weights.group_move * counted.map(|(moved, _)| *moved).max().unwrap_or(0);
}

fn hosts(problem: &Problem, assignment: &[HostId], verdict: &mut Verdict) {
    let resources = problem.resources.len();
    let mut used = vec![vec![0i64; resources]; problem.hosts.len()];
    let mut moving = used.clone();
    for (guest, (&now, &before)) in problem.guests.iter().zip(assignment.iter().zip(&problem.initial)) {
        for r in 0..resources {
            if now != NOWHERE {
                used[now as usize][r] += guest.demand[r];
            }
            if before != NOWHERE && now != before && problem.resources[r].transient {
                moving[before as usize][r] += guest.demand[r];
            }
        }
    }
    for (host, (of, (used, moving))) in (0..).zip(problem.hosts.iter().zip(used.iter().zip(&moving))) {
        for (resource, kind) in problem.resources.iter().enumerate() {
            let (used, moving, capacity) = (used[resource] + moving[resource], moving[resource], of.capacity[resource]);
            if used > capacity {
                verdict.hard.push(Breach::Overload { host, resource, used, moving, capacity });
            }
            verdict.cost.load += kind.load_weight * (used - moving - of.safe[resource]).max(0);
        }
        for balance in &problem.balances {
            let free = |r: usize| of.capacity[r] - used[r];
            verdict.cost.balance +=
                balance.weight * (balance.ratio * free(balance.first) - free(balance.second)).max(0);
        }
    }
}

fn groups(problem: &Problem, assignment: &[HostId], verdict: &mut Verdict) {
    let members = members(problem);
    for group in 0..problem.groups.len() as GroupId {
        for (strength, breach) in judge_group(problem, &members, assignment, group) {
            verdict.add(strength, breach);
        }
    }
}

/// Returns how many guests are not where they were.
pub fn moves(problem: &Problem, assignment: &[HostId]) -> usize {
    problem.initial.iter().zip(assignment).filter(|(before, now)| **before != NOWHERE && before != now).count()
}

/// Returns the members of each group.
pub fn members(problem: &Problem) -> Vec<Vec<GuestId>> {
    let mut members = vec![Vec::new(); problem.groups.len()];
    for (guest, of) in (0..).zip(&problem.guests) {
        of.groups.iter().for_each(|group| members[*group as usize].push(guest));
    }
    members
}

/// Returns the breaches of one group's rules. A group without members breaks none.
pub fn judge_group(
    problem: &Problem,
    members: &[Vec<GuestId>],
    assignment: &[HostId],
    id: GroupId,
) -> Vec<(Strength, Breach)> {
    let hosts_of = |group: GroupId| -> Vec<HostId> {
        let hosts = members[group as usize].iter().map(|guest| assignment[*guest as usize]);
        hosts.filter(|host| *host != NOWHERE).collect()
    };
    let in_areas = |group: GroupId, level: usize| -> BTreeMap<u32, u32> {
        let mut members = BTreeMap::new();
        for host in hosts_of(group) {
            *members.entry(problem.hosts[host as usize].areas[level]).or_default() += 1;
        }
        members
    };
    let areas = |group: GroupId, level: usize| -> BTreeSet<u32> { in_areas(group, level).into_keys().collect() };
    let mut breaches = Vec::new();
    if members[id as usize].is_empty() {
        return breaches;
    }
    let (group, on) = (&problem.groups[id as usize], hosts_of(id));
    let mut each: BTreeMap<HostId, u32> = BTreeMap::new();
    on.iter().for_each(|host| *each.entry(*host).or_default() += 1);
    if let Some(strength) = group.apart {
        for (&host, &members) in each.iter().filter(|(_, members)| **members > 1) {
            breaches.push((strength, Breach::Apart { group: id, host, members }));
        }
    }
    if let Some(strength) = group.together
        && each.len() > 1
    {
        breaches.push((strength, Breach::Together { group: id, hosts: each.len() as u32 }));
    }
    if let Some(spread) = &group.spread {
        let areas = areas(id, spread.level).len() as u32;
        if areas < spread.areas_min {
            breaches.push((spread.strength, Breach::Spread { group: id, areas, areas_min: spread.areas_min }));
        }
    }
    for need in &group.needs {
        for area in areas(id, need.level).difference(&areas(need.of, need.level)) {
            let breach = Breach::Need { group: id, of: need.of, level: need.level, area: *area };
            breaches.push((need.strength, breach));
        }
    }
    for avoid in &group.avoids {
        let others = in_areas(avoid.of, avoid.level);
        for (area, members) in in_areas(id, avoid.level) {
            if let Some(others) = others.get(&area) {
                let members = members + others;
                let breach = Breach::Avoid { group: id, of: avoid.of, level: avoid.level, area, members };
                breaches.push((avoid.strength, breach));
            }
        }
    }
    if let Some(even) = &group.even {
        let members = in_areas(id, even.level);
        let counts: Vec<u32> = even.areas.iter().map(|area| members.get(&area).copied().unwrap_or(0)).collect();
        let (least, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
        let over = counts.iter().map(|count| count.saturating_sub(least.saturating_add(even.skew_max))).sum();
        if over > 0 {
            breaches.push((even.strength, Breach::Uneven { group: id, least, most, over }));
        }
    }
    let inside = group.among.iter().map(|set| on.iter().filter(|host| set.contains(**host)).count());
    if let Some(most) = inside.max()
        && most < on.len()
    {
        breaches.push((Strength::Hard, Breach::Among { group: id, outside: (on.len() - most) as u32 }));
    }
    breaches
}
