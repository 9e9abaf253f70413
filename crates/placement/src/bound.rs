//! A lower bound on the moves that a valid placement needs, whatever a search finds.

use std::collections::{BTreeMap, BTreeSet};

use crate::bits::Bits;
use crate::problem::{GroupId, GuestId, HostId, NOWHERE, Problem, Strength};
use crate::verdict::members;

/// What every assignment that breaks no hard rule must do at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Least {
    /// How many guests cannot stay where they are.
    pub moves: usize,
    /// How many guests are nowhere and have to be placed.
    pub placements: usize,
    /// Whether there is certainly no such assignment: a rule asks for more areas than there are, or than its group has
    /// guests. The other numbers count nothing of that rule then. `false` says nothing: there may be no such assignment
    /// either.
    pub is_impossible: bool,
}

/// Returns a lower bound on the moves of a problem, as [`Verdict::moves`](crate::verdict::Verdict::moves) counts them.
///
/// Each host is bounded by itself. A guest has to leave its host if it may not be there, or if it alone is larger than
/// the host. Of the guests that are left, as many have to leave as it takes to end each overload, the largest first;
/// and of members that are apart, all but one. The largest of these numbers counts. Each guest is on one host only, so
/// the numbers of hosts add up. A resource that leaving does not free ([`transient`]) is not counted: no move ends its
/// overload.
///
/// Each group is bounded by itself, too. Of members that belong together, or on one of several sets of hosts, all but
/// the largest number that is already in one possible place have to move. If the group must be in more areas, one
/// member has to move for each area that no guest from nowhere could take. The numbers of groups that share guests do
/// not add up, so each guest counts for the first of its groups only. The guests of groups with broken rules are left
/// out of the hosts' numbers, so that both can be added.
///
/// The bound ignores needs and soft rules, and whether there is room on other hosts.
///
/// [`transient`]: crate::problem::Resource::transient
pub fn moves_min(problem: &Problem) -> Least {
    let guests_on = guests_on(problem);
    let hosts = |counted: &Bits| -> usize {
        (0..).zip(&guests_on).map(|(host, guests)| leaving_min(problem, host, guests, counted)).sum()
    };
    let members = members(problem);
    let is_impossible = inhabited(&members).any(|(group, members)| areas_wanted(problem, group, members).is_none());
    let (of_groups, counted) = groups_min(problem, &members);
    Least {
        moves: hosts(&Bits::default()).max(of_groups + hosts(&counted)),
        placements: problem.initial.iter().filter(|host| **host == NOWHERE).count(),
        is_impossible,
    }
}

fn guests_on(problem: &Problem) -> Vec<Vec<GuestId>> {
    let mut guests_on = vec![Vec::new(); problem.hosts.len()];
    for (guest, host) in (0..).zip(&problem.initial).filter(|(_, host)| **host != NOWHERE) {
        guests_on[*host as usize].push(guest);
    }
    guests_on
}

/// Returns how many guests have to leave a host, besides those that are counted already.
fn leaving_min(problem: &Problem, host: HostId, guests: &[GuestId], counted: &Bits) -> usize {
    let (staying, forced): (Vec<GuestId>, Vec<GuestId>) =
        guests.iter().filter(|guest| !counted.contains(**guest)).partition(|guest| can_be_on(problem, **guest, host));
    let overload = (0..problem.resources.len()).map(|resource| overload_min(problem, host, &staying, resource)).max();
    forced.len() + overload.unwrap_or(0).max(apart_min(problem, &staying))
}

/// Returns whether a guest could be on a host if it were alone there.
fn can_be_on(problem: &Problem, guest: GuestId, host: HostId) -> bool {
    let of = &problem.guests[guest as usize];
    let is_among = |group: &GroupId| {
        let among = &problem.groups[*group as usize].among;
        among.is_empty() || among.iter().any(|set| set.contains(host))
    };
    let fits = |(demand, capacity): (&i64, &i64)| demand <= capacity;
    problem.may_own(guest, host)
        && of.groups.iter().all(is_among)
        && of.demand.iter().zip(&problem.hosts[host as usize].capacity).all(fits)
}

/// Returns how many of a host's guests have to leave until the host is no longer overloaded in a resource.
fn overload_min(problem: &Problem, host: HostId, guests: &[GuestId], resource: usize) -> usize {
    if problem.resources[resource].transient {
        return 0;
    }
    let mut demands: Vec<i64> = guests.iter().map(|guest| problem.guests[*guest as usize].demand[resource]).collect();
    let mut over = demands.iter().sum::<i64>() - problem.hosts[host as usize].capacity[resource];
    if over <= 0 {
        return 0;
    }
    demands.sort_unstable_by(|a, b| b.cmp(a));
    let leave = |demand: &i64| {
        let leaves = over > 0;
        over -= demand;
        leaves
    };
    demands.iter().copied().take_while(leave).count()
}

/// Returns how many guests of a host have to leave so that no two that are apart are there.
fn apart_min(problem: &Problem, guests: &[GuestId]) -> usize {
    let mut members: BTreeMap<GroupId, usize> = BTreeMap::new();
    for guest in guests {
        let groups = &problem.guests[*guest as usize].groups;
        let first = groups.iter().find(|group| problem.groups[**group as usize].apart == Some(Strength::Hard));
        first.into_iter().for_each(|group| *members.entry(*group).or_default() += 1);
    }
    members.values().map(|members| members - 1).sum()
}

/// Iterates over the groups that have members. Groups without members break nothing.
fn inhabited(members: &[Vec<GuestId>]) -> impl Iterator<Item = (GroupId, &Vec<GuestId>)> {
    (0..).zip(members).filter(|(_, members)| !members.is_empty())
}

/// Returns in how many areas members have to be. `None` if that is impossible, as each member is in one area only.
fn areas_wanted(problem: &Problem, group: GroupId, members: &[GuestId]) -> Option<usize> {
    let spread = problem.groups[group as usize].spread.filter(|spread| spread.strength == Strength::Hard);
    let Some(spread) = spread else { return Some(0) };
    let most = members.len().min(problem.levels[spread.level] as usize);
    Some(spread.areas_min as usize).filter(|wanted| *wanted <= most)
}

/// Returns how many members of groups have to move, and the set of all members of those groups.
fn groups_min(problem: &Problem, members: &[Vec<GuestId>]) -> (usize, Bits) {
    let (mut moves, mut counted) = (0, Bits::default());
    for (group, members) in inhabited(members) {
        let least = group_min(problem, group, members, &counted);
        if least > 0 {
            moves += least;
            members.iter().for_each(|guest| counted.insert(*guest));
        }
    }
    (moves, counted)
}

/// Returns how many members of a group have to move, besides those that are counted already. Those that are counted may
/// end anywhere.
fn group_min(problem: &Problem, group: GroupId, members: &[GuestId], counted: &Bits) -> usize {
    let of = &problem.groups[group as usize];
    let open = members.iter().filter(|guest| !counted.contains(**guest));
    let on: Vec<HostId> = open.map(|guest| problem.initial[*guest as usize]).filter(|host| *host != NOWHERE).collect();
    let mut least = 0;
    if of.together == Some(Strength::Hard) {
        let mut each: BTreeMap<HostId, usize> = BTreeMap::new();
        on.iter().for_each(|host| *each.entry(*host).or_default() += 1);
        least = on.len() - each.into_values().max().unwrap_or(0);
    }
    if let (Some(spread), Some(wanted)) = (of.spread, areas_wanted(problem, group, members)) {
        let areas: BTreeSet<u32> = on.iter().map(|host| problem.hosts[*host as usize].areas[spread.level]).collect();
        let reached = areas.len() + members.len() - on.len();
        least = least.max(wanted.saturating_sub(reached));
    }
    let inside = of.among.iter().map(|set| on.iter().filter(|host| set.contains(**host)).count());
    inside.max().map_or(least, |most| least.max(on.len() - most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases;
    use crate::dice::Dice;
    use crate::problem::{Group, Guest, Host, HostMoves, Resource, Spread, Weights};
    use crate::verdict::judge;

    /// Finds the fewest moves of any valid assignment, by trying all.
    fn moves_of_best(problem: &Problem) -> Option<usize> {
        let (hosts, guests) = (problem.hosts.len(), problem.guests.len());
        let all = (0..hosts.pow(guests as u32)).map(|n| -> Vec<HostId> {
            (0..guests).map(|guest| (n / hosts.pow(guest as u32) % hosts) as HostId).collect()
        });
        all.map(|assignment| judge(problem, &assignment))
            .filter(|verdict| verdict.is_valid())
            .map(|verdict| verdict.moves)
            .min()
    }

    /// Makes a small problem with enough room that most are solvable.
    fn small(seed: u64) -> Problem {
        let dice = &mut Dice::new(seed);
        let mut problem = cases::problem(dice, 3, 6);
        for host in &mut problem.hosts {
            host.capacity.iter_mut().for_each(|capacity| *capacity = *capacity / 2 + 60);
        }
        for group in &mut problem.groups {
            group.needs.truncate(usize::from(dice.chance(0.1)));
        }
        problem
    }

    proptest! {
        #[test]
        fn no_valid_assignment_does_with_less(seed: u64) {
            let problem = small(seed);
            if let Some(best) = moves_of_best(&problem) {
                let least = moves_min(&problem);
                prop_assert!(least.moves <= best && !least.is_impossible, "{:?} of {}", least, best);
            }
            prop_assert!(moves_min(&problem).moves <= problem.guests.len());
        }
    }

    /// Checks that the bound is mostly reached: a bound of 0 would also never be too large.
    #[test]
    fn it_is_mostly_what_is_needed() {
        let (mut solvable, mut needed, mut told) = (0, 0, 0);
        for seed in 0..400 {
            let problem = small(seed);
            if let Some(best) = moves_of_best(&problem) {
                solvable += 1;
                needed += best;
                told += moves_min(&problem).moves;
            }
        }
        assert!(solvable > 100, "{solvable}");
        assert!(told * 10 > needed * 7, "{told} of {needed} moves");
    }

    /// Makes four hosts with a capacity of 10, each in an area of its own, and guests of the given sizes on the given
    /// hosts.
    fn hosts(guests: &[(i64, HostId)]) -> Problem {
        let guest =
            |demand| Guest { demand: vec![demand], groups: Vec::new(), move_cost: 1, owners: None, preference: None };
        Problem {
            resources: vec![Resource { transient: false, load_weight: 0 }],
            levels: vec![4],
            hosts: (0..4).map(|area| Host { areas: vec![area], capacity: vec![10], safe: vec![10] }).collect(),
            groups: Vec::new(),
            guests: guests.iter().map(|(demand, _)| guest(*demand)).collect(),
            balances: Vec::new(),
            weights: Weights::default(),
            host_moves: HostMoves::Uniform(0),
            owners: Vec::new(),
            preferences: Vec::new(),
            initial: guests.iter().map(|(_, host)| *host).collect(),
        }
    }

    fn group(problem: &mut Problem, group: Group, members: std::ops::Range<usize>) {
        let id = problem.groups.len() as GroupId;
        problem.groups.push(group);
        problem.guests[members].iter_mut().for_each(|guest| guest.groups.push(id));
    }

    #[test]
    fn overloads_end_when_the_largest_leave() {
        let problem = hosts(&[(6, 0), (5, 0), (4, 0), (3, 0), (9, 1), (2, NOWHERE)]);
        assert_eq!(moves_min(&problem), Least { moves: 2, placements: 1, is_impossible: false });
        let mut problem = hosts(&[(6, 0), (5, 0), (4, 0), (3, 0)]);
        problem.resources[0].transient = true;
        assert_eq!(moves_min(&problem).moves, 0, "who leaves still holds it");
    }

    #[test]
    fn who_may_not_stay_leaves() {
        let mut problem = hosts(&[(1, 0), (1, 0), (11, 1), (1, 2)]);
        problem.owners = vec![[1, 2].into_iter().collect()];
        problem.guests[0].owners = Some(0);
        problem.guests[3].owners = Some(0);
        assert_eq!(moves_min(&problem).moves, 2, "one that is no owner's, and one that is too large");
    }

    #[test]
    fn groups_count_where_most_are() {
        let mut problem = hosts(&[(1, 0), (1, 0), (1, 1), (1, 2), (1, 3)]);
        group(&mut problem, Group { together: Some(Strength::Hard), ..Group::default() }, 0..4);
        assert_eq!(moves_min(&problem).moves, 2);
        let mut problem = hosts(&[(1, 0), (1, 0), (1, 0), (1, 1)]);
        group(&mut problem, Group { apart: Some(Strength::Hard), ..Group::default() }, 0..4);
        assert_eq!(moves_min(&problem).moves, 2);
        let mut problem = hosts(&[(1, 0), (1, 1), (1, 2), (1, 3)]);
        let among = vec![[0, 1].into_iter().collect(), [1, 2].into_iter().collect()];
        group(&mut problem, Group { among, ..Group::default() }, 0..4);
        assert_eq!(moves_min(&problem).moves, 2);
        let mut problem = hosts(&[(1, 0), (1, 0), (1, 0), (1, NOWHERE)]);
        let spread = Some(Spread { level: 0, areas_min: 3, strength: Strength::Hard });
        group(&mut problem, Group { spread, ..Group::default() }, 0..4);
        assert_eq!(moves_min(&problem).moves, 1, "who is nowhere yet comes to an area of its own");
    }

    #[test]
    fn what_cannot_be_takes_no_moves() {
        let of = |areas_min: u32, members: usize| {
            let mut problem = hosts(&[(1, 0), (1, 0), (1, 0), (1, 1), (1, 1)]);
            let spread = Some(Spread { level: 0, areas_min, strength: Strength::Hard });
            group(&mut problem, Group { spread, ..Group::default() }, 0..members);
            let least = moves_min(&problem);
            (least.is_impossible, least.moves)
        };
        assert_eq!(of(4, 5), (false, 2));
        assert_eq!(of(5, 5), (true, 0), "there are four areas");
        assert_eq!(of(3, 2), (true, 0), "two guests are in two areas at most");
        assert_eq!(of(u32::MAX, 5), (true, 0));
    }
}
