//! Explains why a guest cannot be on a host, what would help, and why it was moved.
//!
//! A rule speaks against a host if it is broken more often with the guest there than in the best case: with the guest
//! on another host or on none, and all other guests where they are. So a rule that is broken by other guests speaks
//! against no host, and a spread speaks against areas that do not help it while others would.

mod conflict;
mod relax;
mod report;
#[cfg(test)]
mod tests;
mod why;

pub use conflict::{Conflict, conflict};
pub use relax::{Relaxation, Relaxations, Step, relax};
pub use report::{Explanation, Fragmented, Objection, explain, objections};
pub use why::{Why, why_moved};

use crate::cluster::{Compiled, HOST_LEVEL, RuleId, agree};
use skein_placement::problem::{GroupId, GuestId, HostId, NOWHERE};
use skein_placement::score::Score;
use skein_placement::verdict::{Breach, judge_group, members};

/// A cause: what speaks against a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A rule, by its number in [`Names::rules`](crate::cluster::Names::rules).
    Rule(RuleId),
    /// Too little of a resource, by its number in [`Names::rows`](crate::cluster::Names::rows).
    Capacity(usize),
}

/// A reason: what speaks against a guest on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The rule or resource that speaks against the host.
    pub cause: Cause,
    /// Whether the reason is hard: no cost can outweigh it.
    pub is_hard: bool,
    /// For a soft rule, its cost in microseconds of traffic. For capacity, how much is missing.
    pub amount: i64,
    /// The reason, in the words of the cluster file.
    pub what: String,
}

/// A guest that is to be placed, with all other guests where they are.
pub struct Placing<'a> {
    compiled: &'a Compiled,
    guest: GuestId,
    /// The host of each guest. The guest to be placed is nowhere.
    at: Vec<HostId>,
    /// What is used, by host and resource, with what is held by guests that left.
    used: Vec<Vec<i64>>,
    members: &'a [Vec<GuestId>],
    /// The groups that the guest is in, or that have rules about one of these, and what each breaks at best.
    groups: Vec<(GroupId, Score)>,
}

impl<'a> Placing<'a> {
    /// Takes a guest out of an assignment.
    pub fn new(compiled: &'a Compiled, assignment: &[HostId], guest: GuestId) -> Placing<'a> {
        let problem = &compiled.problem;
        let mut at = assignment.to_vec();
        at[guest as usize] = NOWHERE;
        let mut used = vec![vec![0; problem.resources.len()]; problem.hosts.len()];
        for ((of, now), before) in problem.guests.iter().zip(&at).zip(&problem.initial) {
            for (row, demand) in of.demand.iter().enumerate() {
                if *now != NOWHERE {
                    used[*now as usize][row] += demand;
                }
                if problem.resources[row].transient && *before != NOWHERE && now != before {
                    used[*before as usize][row] += demand;
                }
            }
        }
        let members = &compiled.names.members[..];
        debug_assert_eq!(members, self::members(problem));
        let mut placing = Placing { compiled, guest, at, used, members, groups: Vec::new() };
        let of = &problem.guests[guest as usize].groups;
        let concerned = (0..).zip(&problem.groups).filter(|(id, group)| {
            let needs = group.needs.iter().map(|need| need.of);
            let mut others = needs.chain(group.avoids.iter().map(|avoid| avoid.of));
            of.contains(id) || others.any(|other| of.contains(&other))
        });
        let groups: Vec<GroupId> = concerned.map(|(id, _)| id).collect();
        for group in groups {
            let anywhere = (0..problem.hosts.len() as HostId).chain([NOWHERE]);
            let best = anywhere.map(|host| placing.broken(group, host)).min().unwrap_or_default();
            placing.groups.push((group, best));
        }
        placing
    }

    /// Returns what a group breaks with the guest on a host.
    fn broken(&mut self, group: GroupId, host: HostId) -> Score {
        self.at[self.guest as usize] = host;
        let breaches = judge_group(&self.compiled.problem, self.members, &self.at, group);
        self.at[self.guest as usize] = NOWHERE;
        breaches.iter().fold(Score::default(), |sum, (strength, breach)| sum + strength.score(breach.count()))
    }

    /// Returns all that speaks against a host, hard reasons first.
    pub fn against(&mut self, host: HostId) -> Vec<Reason> {
        let mut reasons = self.fences(host);
        reasons.extend(self.capacity(host));
        for (group, best) in self.groups.clone() {
            let more = self.broken(group, host) - best;
            if more > Score::default() {
                reasons.push(Reason {
                    cause: Cause::Rule(self.compiled.names.groups[group as usize]),
                    is_hard: more.broken > 0,
                    amount: more.cost,
                    what: self.of_group(group, host),
                });
            }
        }
        reasons.extend(self.leanings(host));
        reasons.sort_by_key(|reason| !reason.is_hard);
        reasons
    }

    /// Returns whether no hard reason speaks against a host.
    pub fn accepts(&mut self, host: HostId) -> bool {
        self.against(host).iter().all(|reason| !reason.is_hard)
    }

    fn fences(&self, host: HostId) -> Vec<Reason> {
        let names = &self.compiled.names;
        let fences = names.fences_of[self.guest as usize].iter().map(|fence| &names.fences[*fence as usize]);
        let against = fences.filter(|fence| !fence.hosts.contains(host)).map(|fence| fence.rule);
        let reason = |rule: RuleId| Reason {
            cause: Cause::Rule(rule),
            is_hard: true,
            amount: 0,
            what: names.fenced_out(&names.rules[rule as usize], self.guest, host),
        };
        against.map(reason).collect()
    }

    fn leanings(&self, host: HostId) -> Vec<Reason> {
        let names = &self.compiled.names;
        let leanings = names.leanings_of[self.guest as usize].iter().map(|of| &names.leanings[*of as usize]);
        let reason = |rule: RuleId, amount: i64| Reason {
            cause: Cause::Rule(rule),
            is_hard: false,
            amount,
            what: names.leant_away(&names.rules[rule as usize], self.guest, host),
        };
        leanings.filter(|of| of.cost(host) > 0).map(|of| reason(of.rule, of.cost(host))).collect()
    }

    /// Returns how much of a resource is free on a host for the guest.
    fn free(&self, host: HostId, row: usize) -> i64 {
        let problem = &self.compiled.problem;
        let is_held = problem.resources[row].transient && problem.initial[self.guest as usize] == host;
        let held = if is_held { self.demand(row) } else { 0 };
        problem.hosts[host as usize].capacity[row] - self.used[host as usize][row] + held
    }

    fn demand(&self, row: usize) -> i64 {
        self.compiled.problem.guests[self.guest as usize].demand[row]
    }

    fn capacity(&self, host: HostId) -> Vec<Reason> {
        let (problem, names) = (&self.compiled.problem, &self.compiled.names);
        let mut reasons = Vec::new();
        for (row, name) in names.rows.iter().enumerate() {
            let (needs, free) = (self.demand(row), self.free(host, row));
            let short = needs - free;
            if needs > 0 && short > 0 {
                let what = format!(
                    "{name}: needs {}, {} free on '{}', {} short",
                    name.text(needs),
                    name.text(free.max(0)),
                    names.host(host),
                    name.text(short)
                );
                reasons.push(Reason { cause: Cause::Capacity(row), is_hard: true, amount: short, what });
                continue;
            }
            let of = &problem.hosts[host as usize];
            let beyond = of.capacity[row] - free + needs - of.safe[row];
            let more = beyond.min(needs).max(0);
            let amount = more * problem.resources[row].load_weight;
            if amount > 0 {
                let by = if more < beyond { " more" } else { "" };
                let mut what =
                    format!("{name}: '{}' would be {}{by} beyond its start level", names.host(host), name.text(more));
                if more < beyond {
                    what += &format!(", {} in all", name.text(beyond));
                }
                reasons.push(Reason { cause: Cause::Capacity(row), is_hard: false, amount, what });
            }
        }
        reasons
    }

    /// Returns whether a group would exceed its allowed skew with the guest on a host.
    fn is_uneven(&self, group: GroupId, host: HostId) -> bool {
        let mut at = self.at.clone();
        at[self.guest as usize] = host;
        let breaches = judge_group(&self.compiled.problem, self.members, &at, group);
        breaches.iter().any(|(_, breach)| matches!(breach, Breach::Uneven { .. }))
    }

    /// Describes how a group's rule is broken with the guest on a host.
    fn of_group(&self, group: GroupId, host: HostId) -> String {
        let (problem, names) = (&self.compiled.problem, &self.compiled.names);
        let (of, rule) = (&problem.groups[group as usize], names.group(group));
        let members_at = |group: GroupId, is_there: &dyn Fn(HostId) -> bool| -> Vec<GuestId> {
            let members = self.members[group as usize].iter().copied();
            let is_there = |at: HostId| at != NOWHERE && is_there(at);
            members.filter(|guest| is_there(self.at[*guest as usize])).collect()
        };
        let others = |is_there: &dyn Fn(HostId) -> bool| names.list(&members_at(group, is_there));
        // Names the place where the others are: "there" could be the host that the guest goes to or the one it comes
        // from.
        let are_in = |guests: &[GuestId], level: usize, area: u32| {
            let place = match names.levels[level].name == HOST_LEVEL {
                true => format!("on {}", names.area_name(level, area)),
                false => format!("in {}", names.area_name(level, area)),
            };
            format!("{} {} {place}", names.list(guests), agree(guests, "is", "are"))
        };
        let area = |level: usize, host: HostId| problem.hosts[host as usize].areas[level];
        if of.apart.is_some() {
            let there = members_at(group, &|at| at == host);
            let are = agree(&there, "is", "are");
            return format!("{} {are} on '{}': {rule} keeps them apart", names.list(&there), names.host(host));
        }
        if let Some(avoid) = of.avoids.first() {
            let here = area(avoid.level, host);
            let is_in = problem.guests[self.guest as usize].groups.contains(&group);
            let there = members_at(if is_in { avoid.of } else { group }, &|at| area(avoid.level, at) == here);
            return format!("{}: {rule} keeps them apart", are_in(&there, avoid.level, here));
        }
        if of.together.is_some() {
            return format!("{} elsewhere: {rule} keeps them together", others(&|at| at != host));
        }
        if let Some(even) = &of.even
            && self.is_uneven(group, host)
        {
            let here = area(even.level, host);
            let there = members_at(group, &|at| area(even.level, at) == here);
            let are = are_in(&there, even.level, here);
            return format!("{are}: {rule} allows a skew of {}", even.skew_max);
        }
        if let Some(spread) = of.spread {
            let here = area(spread.level, host);
            let there = members_at(group, &|at| area(spread.level, at) == here);
            let are = are_in(&there, spread.level, here);
            return format!("{are}: {rule} asks for {} areas", spread.areas_min);
        }
        let is_in = |group: GroupId| problem.guests[self.guest as usize].groups.contains(&group);
        for need in &of.needs {
            if is_in(need.of) && !is_in(group) {
                return format!(
                    "{rule}: {} would be without it",
                    others(&|at| area(need.level, at) != area(need.level, host))
                );
            }
            if is_in(group) {
                let needed = names.list(&names.members[need.of as usize]);
                return format!("{rule} needs one of {needed} in {}", names.area(need.level, area(need.level, host)));
            }
        }
        format!("{rule} allows none of its sets of hosts for all of its guests then")
    }
}
