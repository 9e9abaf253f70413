//! Places the guests of failed hosts on the other hosts: first by quick heuristics, then by trying all ways.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Failure, Proof};
use crate::problem::{GroupId, Guest, GuestId, HostId, NOWHERE, Problem, Strength};
use crate::score::Score;
use crate::state::State;
use crate::verdict::{judge_group, members};

/// How often a guest may be tried on a host for one set of failed hosts before the set is given up.
const LOOKS_OF_SET: u64 = 400_000;

/// An assignment in which one set of hosts fails after the other.
pub(super) struct BinPacking<'a> {
    problem: &'a Problem,
    state: State<'a>,
    members: Vec<Vec<GuestId>>,
    /// What is used, by host and resource.
    used: Vec<Vec<i64>>,
    /// The groups with a hard rule of which more guests can end a breach, or which cannot be judged by one host.
    mends: Vec<bool>,
    /// How many breaches of each group's hard rules there were before the failure.
    broken: Vec<i64>,
    /// For each group, the groups with rules about its members: itself, and those that need or avoid it.
    about: Vec<Vec<GroupId>>,
    /// The groups with rules about the guests of the failed hosts.
    concerned: BTreeSet<GroupId>,
}

/// Which of the possible hosts is taken.
#[derive(Clone, Copy)]
enum Fit {
    /// The fullest host, so that free room stays in one piece.
    Best,
    /// The emptiest host.
    Worst,
}

impl<'a> BinPacking<'a> {
    pub(super) fn new(problem: &'a Problem, assignment: &[HostId]) -> BinPacking<'a> {
        let members = members(problem);
        let mut used = vec![vec![0; problem.resources.len()]; problem.hosts.len()];
        for (guest, host) in problem.guests.iter().zip(assignment).filter(|(_, host)| **host != NOWHERE) {
            used[*host as usize].iter_mut().zip(&guest.demand).for_each(|(used, demand)| *used += demand);
        }
        let mut mends: Vec<bool> = problem
            .groups
            .iter()
            .map(|group| {
                let others = group.together.is_some() || group.spread.is_some() || group.even.is_some();
                others || !group.among.is_empty() || !group.needs.is_empty()
            })
            .collect();
        problem.groups.iter().flat_map(|group| &group.needs).for_each(|need| mends[need.of as usize] = true);
        let mut about: Vec<Vec<GroupId>> = (0..problem.groups.len() as GroupId).map(|group| vec![group]).collect();
        for (id, group) in (0..).zip(&problem.groups) {
            group.needs.iter().for_each(|need| about[need.of as usize].push(id));
            group.avoids.iter().for_each(|avoid| about[avoid.of as usize].push(id));
        }
        let groups = 0..problem.groups.len() as GroupId;
        let broken = groups.map(|group| broken(problem, &members, assignment, group)).collect();
        let state = State::new(problem, assignment);
        BinPacking { problem, state, members, used, mends, broken, about, concerned: BTreeSet::new() }
    }

    /// Returns the used part of a host, for the resource of which most is used.
    pub(super) fn share(&self, host: HostId) -> f64 {
        let capacity = &self.problem.hosts[host as usize].capacity;
        let share = |(used, capacity): (&i64, &i64)| *used as f64 / (*capacity).max(1) as f64;
        self.used[host as usize].iter().zip(capacity).map(share).fold(0.0, f64::max)
    }

    /// Lets hosts fail. Returns `None` if their guests find room.
    pub(super) fn fail(&mut self, hosts: &[HostId], looks: &mut u64) -> Option<Failure> {
        let lost: Vec<GuestId> = hosts.iter().flat_map(|host| self.state.guests_on(*host).to_vec()).collect();
        let was: Vec<HostId> = lost.iter().map(|guest| self.state.host_of(*guest)).collect();
        lost.iter().for_each(|guest| self.shift(*guest, NOWHERE));
        let groups = lost.iter().flat_map(|guest| &self.problem.guests[*guest as usize].groups);
        self.concerned = groups.flat_map(|group| self.about[*group as usize].iter().copied()).collect();
        let open: Vec<HostId> = (0..self.problem.hosts.len() as HostId).filter(|host| !hosts.contains(host)).collect();
        let mut left = (*looks).min(LOOKS_OF_SET);
        let spent = left;
        let failure = self.place(hosts, &lost, &open, &mut left);
        *looks -= spent - left;
        lost.iter().zip(was).for_each(|(guest, host)| self.shift(*guest, host));
        failure
    }

    fn place(&mut self, failed: &[HostId], lost: &[GuestId], open: &[HostId], looks: &mut u64) -> Option<Failure> {
        let failure = |left: Vec<GuestId>, rules: Vec<GroupId>, proof: Option<Proof>| Failure {
            hosts: failed.to_vec(),
            left,
            rules,
            proof,
        };
        if let Some(guest) = lost.iter().find(|guest| !open.iter().any(|host| self.takes(**guest, *host))) {
            return Some(failure(vec![*guest], Vec::new(), Some(Proof::Guest(*guest))));
        }
        let short = self.short(lost, open);
        let mut order = lost.to_vec();
        let mut best: Option<(Vec<GuestId>, Vec<GroupId>)> = None;
        for fit in [Fit::Best, Fit::Worst] {
            for by_choice in [false, true] {
                let size = |guest: &GuestId| Reverse((self.size(*guest) * 1e6) as u64);
                match by_choice {
                    false => order.sort_by_key(size),
                    true => {
                        order.sort_by_cached_key(|guest| open.iter().filter(|host| self.takes(*guest, **host)).count())
                    }
                }
                *looks = looks.saturating_sub((lost.len() * open.len()) as u64);
                let left = self.greedy(&order, open, fit);
                let rules = self.more_broken();
                let is_done = left.is_empty() && rules.is_empty() && self.is_within(lost);
                order.iter().for_each(|guest| self.shift(*guest, NOWHERE));
                if is_done {
                    return None;
                }
                let is_better = |best: &(Vec<_>, Vec<_>)| (left.len(), rules.len()) < (best.0.len(), best.1.len());
                if best.as_ref().is_none_or(is_better) {
                    best = Some((left, rules));
                }
                if short.is_some() {
                    break;
                }
            }
        }
        let (left, rules) = best.unwrap_or_default();
        if short.is_some() {
            return Some(failure(left, rules, short));
        }
        order.sort_by_key(|guest| Reverse((self.size(*guest) * 1e6) as u64));
        match self.all_ways(&order, 0, open, looks) {
            Some(true) => None,
            Some(false) => Some(failure(left, rules, Some(Proof::Tried))),
            None => Some(failure(left, rules, None)),
        }
    }

    /// Returns a proof if more of a resource is needed than is free.
    fn short(&self, lost: &[GuestId], open: &[HostId]) -> Option<Proof> {
        let is_open = |host: &&HostId| lost.iter().any(|guest| self.problem.may_own(*guest, **host));
        let open: Vec<HostId> = open.iter().filter(is_open).copied().collect();
        (0..self.problem.resources.len()).find_map(|resource| {
            let needs: i64 = lost.iter().map(|guest| self.guest(*guest).demand[resource]).sum();
            let free = |host: &HostId| {
                let host = *host as usize;
                (self.problem.hosts[host].capacity[resource] - self.used[host][resource]).max(0)
            };
            let free: i64 = open.iter().map(free).sum();
            (needs > free).then_some(Proof::Resource { resource, needs, free })
        })
    }

    /// Places guests one after the other where each breaks least. Returns the guests that find no room.
    fn greedy(&mut self, order: &[GuestId], open: &[HostId], fit: Fit) -> Vec<GuestId> {
        let mut left = Vec::new();
        for guest in order {
            let takes = open.iter().filter(|host| self.takes(*guest, **host));
            let key = |host: &HostId| {
                let share = match fit {
                    Fit::Best => -self.share(*host),
                    Fit::Worst => self.share(*host),
                };
                (self.state.shift_score(*guest, *host).broken, (share * 1e9) as i64, *host)
            };
            match takes.copied().min_by_key(key) {
                Some(host) => self.shift(*guest, host),
                None => left.push(*guest),
            }
        }
        left
    }

    /// Tries all ways for the guests from `nth` on. Returns whether one was found, or `None` if there were too many
    /// ways.
    fn all_ways(&mut self, order: &[GuestId], nth: usize, open: &[HostId], looks: &mut u64) -> Option<bool> {
        let Some(guest) = order.get(nth).copied() else {
            *looks = looks.saturating_sub(order.len() as u64);
            return Some(self.more_broken().is_empty() && self.is_within(order));
        };
        // A guest that is like the one before does not come to an earlier host: the exchanged placement is the same.
        let is_like = |other: &GuestId| self.guest(*other) == self.guest(guest);
        let before = nth.checked_sub(1).map(|before| order[before]).filter(is_like);
        let from = before.map_or(0, |before| self.state.host_of(before));
        for host in open.iter().filter(|host| **host >= from) {
            if *looks == 0 {
                return None;
            }
            *looks -= 1;
            if !self.takes(guest, *host) {
                continue;
            }
            self.shift(guest, *host);
            let done = self.all_ways(order, nth + 1, open, looks);
            self.shift(guest, NOWHERE);
            if done != Some(false) {
                return done;
            }
        }
        Some(false)
    }

    /// Returns whether a host may have a guest and has room for it, and whether it keeps those rules that more guests
    /// never mend.
    fn takes(&self, guest: GuestId, host: HostId) -> bool {
        let is_final = |group: &GroupId| !self.mends[*group as usize] && self.broken[*group as usize] == 0;
        // The groups include those that avoid this guest. A group whose rule was broken before may be broken as often
        // again.
        let mut groups = self.guest(guest).groups.iter().flat_map(|group| &self.about[*group as usize]);
        self.problem.may_own(guest, host)
            && self.state.fits(guest, host, None)
            && (!groups.all(is_final) || self.state.shift_score(guest, host).broken <= -Score::UNPLACED)
    }

    /// Returns the groups of whose hard rules more is broken than before.
    fn more_broken(&self) -> Vec<GroupId> {
        let now = |group: &GroupId| broken(self.problem, &self.members, self.state.assignment(), *group);
        self.concerned.iter().copied().filter(|group| now(group) > self.broken[*group as usize]).collect()
    }

    /// Checks from scratch that no host on which these guests are is overloaded.
    fn is_within(&self, placed: &[GuestId]) -> bool {
        let hosts: BTreeSet<HostId> = placed.iter().map(|guest| self.state.host_of(*guest)).collect();
        hosts.into_iter().all(|host| {
            let capacity = &self.problem.hosts[host as usize].capacity;
            (0..capacity.len()).all(|r| {
                let here = self.state.guests_on(host).iter();
                let used: i64 = here.map(|guest| self.guest(*guest).demand[r]).sum();
                let comes = placed.iter().filter(|guest| self.state.host_of(**guest) == host);
                used <= capacity[r] || comes.map(|guest| self.guest(*guest).demand[r]).sum::<i64>() == 0
            })
        })
    }

    /// Returns the size of a guest: its largest share of a mean host's capacity over all resources.
    fn size(&self, guest: GuestId) -> f64 {
        let hosts = self.problem.hosts.len().max(1) as f64;
        let share = |(r, demand): (usize, &i64)| {
            let capacity: i64 = self.problem.hosts.iter().map(|host| host.capacity[r]).sum();
            *demand as f64 * hosts / capacity.max(1) as f64
        };
        self.guest(guest).demand.iter().enumerate().map(share).fold(0.0, f64::max)
    }

    fn guest(&self, guest: GuestId) -> &'a Guest {
        &self.problem.guests[guest as usize]
    }

    fn shift(&mut self, guest: GuestId, to: HostId) {
        let demand = &self.problem.guests[guest as usize].demand;
        for (host, sign) in [(self.state.host_of(guest), -1), (to, 1)].into_iter().filter(|(host, _)| *host != NOWHERE)
        {
            self.used[host as usize].iter_mut().zip(demand).for_each(|(used, demand)| *used += sign * demand);
        }
        self.state.shift(guest, to);
    }
}

/// Returns how many breaches of a group's hard rules there are.
fn broken(problem: &Problem, members: &[Vec<GuestId>], at: &[HostId], group: GroupId) -> i64 {
    let breaches = judge_group(problem, members, at, group);
    breaches.iter().filter(|(strength, _)| *strength == Strength::Hard).map(|(_, breach)| breach.count()).sum()
}
