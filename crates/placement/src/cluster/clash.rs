//! Finds rules that can never hold together, wherever guests are. They are reported when they are made.
//!
//! Whatever is found is certainly a clash. Not every clash is found, since that is as hard as placing all guests. Hosts
//! that are offline or in maintenance count as available: they come back, and rules stay.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

use super::HOST_LEVEL;
use super::names::{Fence, Names, RuleId, RuleKind, agree, listed};
use crate::bits::Bits;
use crate::explain::conflict;
use crate::problem::{GroupId, GuestId, HostId, Problem, Strength};

/// Rules that can never hold together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Clash {
    /// The rules. Without any one of them these guests would not clash like this. Empty if the guests and hosts alone
    /// clash.
    pub rules: Vec<String>,
    /// The guests that the rules are about.
    pub guests: Vec<String>,
    /// Why they cannot hold together.
    pub what: String,
    /// What to do about it.
    pub todo: String,
}

impl Clash {
    /// Makes the warning about a rule that is about no guest.
    pub(super) fn nobody(rule: &str, what: String) -> Clash {
        Clash {
            rules: vec![format!("rule '{rule}'")],
            guests: Vec::new(),
            what: format!("it is about no guest: {what}"),
            todo: "correct the name, or remove the rule".into(),
        }
    }
}

/// Makes the warning about a property that a rule compares and that is not set on all hosts and guests of the group.
pub(super) fn unset(names: &Names, rule: RuleId, property: &str, hosts: &[&str], guests: &[GuestId]) -> Option<Clash> {
    if hosts.is_empty() && guests.is_empty() {
        return None;
    }
    let mut lacking = Vec::new();
    if !hosts.is_empty() {
        lacking.push(format!("of hosts {}", listed(hosts.iter().copied())));
    }
    if !guests.is_empty() {
        lacking.push(format!("of guests {}", names.list(guests)));
    }
    Some(Clash {
        rules: vec![names.rules[rule as usize].to_string()],
        guests: guests.iter().map(|guest| names.guest(*guest).to_owned()).collect(),
        what: format!(
            "the property '{property}' is not set {}, so that it matches nothing there",
            lacking.join(" and ")
        ),
        todo: "set it on all hosts and guests of the group".into(),
    })
}

/// Returns all clashes that are found.
pub(super) fn find(problem: &Problem, names: &Names) -> Vec<Clash> {
    let mut finder = Finder::new(problem, names);
    finder.nowhere();
    finder.bound();
    for (group, of) in (0..).zip(&problem.groups) {
        if of.apart == Some(Strength::Hard) {
            finder.apart(group);
        }
        if let Some(spread) = of.spread.filter(|spread| spread.strength == Strength::Hard) {
            finder.spread(group, spread.level, spread.areas_min as usize);
        }
        finder.among(group, &of.among);
        for need in of.needs.iter().filter(|need| need.strength == Strength::Hard) {
            finder.need(group, need.of, need.level);
        }
        for avoid in of.avoids.iter().filter(|avoid| avoid.strength == Strength::Hard) {
            finder.avoid(group, avoid.of, avoid.level);
        }
        if let Some(even) = of.even.as_ref().filter(|even| even.strength == Strength::Hard) {
            finder.even(group, even.level, even.skew_max);
        }
    }
    finder.found
}

/// The steps that are spent on a clash to find out which rules it needs: about a second. Rules for which no steps are
/// left are reported as part of the clash.
const STEPS_MAX: usize = 50_000_000;

type Rules = BTreeSet<RuleId>;

struct Finder<'a> {
    problem: &'a Problem,
    names: &'a Names,
    /// The fences that last, and the indices of each guest's.
    fences: Vec<Fence>,
    fences_of: Vec<Vec<u32>>,
    /// The sets of hosts that rules allow guests to be on, and the index of each guest's set.
    allowed: Vec<Bits>,
    allowed_of: Vec<u32>,
    bonds: Bonds,
    found: Vec<Clash>,
}

impl<'a> Finder<'a> {
    fn new(problem: &'a Problem, names: &'a Names) -> Finder<'a> {
        let (fences, fences_of) = lasting_fences(problem, names);
        let mut sets: BTreeMap<&[u32], u32> = BTreeMap::new();
        let mut allowed = Vec::new();
        let hosts = problem.hosts.len() as HostId;
        let mut allowed_of = Vec::new();
        for of in &fences_of {
            let inside = |host: &HostId| of.iter().all(|fence| fences[*fence as usize].hosts.contains(*host));
            allowed_of.push(*sets.entry(of).or_insert_with(|| {
                allowed.push((0..hosts).filter(inside).collect());
                allowed.len() as u32 - 1
            }));
        }
        let bonds = Bonds::new(problem, names);
        Finder { problem, names, fences, fences_of, allowed, allowed_of, bonds, found: Vec::new() }
    }

    fn allowed(&self, guest: GuestId) -> &Bits {
        &self.allowed[self.allowed_of[guest as usize] as usize]
    }

    fn fences(&self, guest: GuestId) -> impl Iterator<Item = &Fence> {
        self.fences_of[guest as usize].iter().map(|fence| &self.fences[*fence as usize])
    }

    /// Returns the hosts where a guest may be by some rules alone.
    fn allowed_by(&self, guest: GuestId, rules: &Rules) -> Bits {
        let fences = self.fences(guest).filter(|fence| rules.contains(&fence.rule));
        let fences: Vec<&Bits> = fences.map(|fence| &fence.hosts).collect();
        let hosts = 0..self.problem.hosts.len() as HostId;
        hosts.filter(|host| fences.iter().all(|fence| fence.contains(*host))).collect()
    }

    /// Returns the rules that a clash needs: each rule is left out if the clash is there without it.
    fn needed(&self, mut rules: Rules, guests: &[GuestId], clashes: impl Fn(&Rules) -> bool) -> Rules {
        let tries = STEPS_MAX / (guests.len() * self.problem.hosts.len()).max(1);
        // A guest's own fences come first in the order, so rules about many guests are tried first.
        let tried: Vec<RuleId> = rules.iter().rev().take(tries).copied().collect();
        for rule in tried {
            rules.remove(&rule);
            if !clashes(&rules) {
                rules.insert(rule);
            }
        }
        rules
    }

    /// Returns the rules that fence any of these guests in.
    fn fencing(&self, guests: &[GuestId]) -> Rules {
        guests.iter().flat_map(|guest| self.fences(*guest)).map(|fence| fence.rule).collect()
    }

    fn rule_of(&self, group: GroupId) -> RuleId {
        self.names.groups[group as usize]
    }

    fn members(&self, group: GroupId) -> &'a [GuestId] {
        &self.names.members[group as usize]
    }

    fn tell(&mut self, rules: impl IntoIterator<Item = RuleId>, guests: &[GuestId], what: String, todo: &str) {
        let rules: Rules = rules.into_iter().collect();
        self.found.push(Clash {
            rules: rules.into_iter().map(|rule| self.names.rules[rule as usize].to_string()).collect(),
            guests: guests.iter().map(|guest| self.names.guest(*guest).to_owned()).collect(),
            what,
            todo: todo.into(),
        });
    }

    /// Finds guests whose fences have no host in common, and the fewest rules that leave none.
    fn nowhere(&mut self) {
        let mut stuck: BTreeMap<u32, Vec<GuestId>> = BTreeMap::new();
        for (guest, allowed) in (0..).zip(&self.allowed_of) {
            if self.allowed[*allowed as usize].is_empty() {
                stuck.entry(*allowed).or_default().push(guest);
            }
        }
        let mut told: BTreeMap<Vec<RuleId>, Vec<GuestId>> = BTreeMap::new();
        for guests in stuck.into_values() {
            let against: Vec<BTreeSet<RuleId>> =
                (0..self.problem.hosts.len() as HostId).map(|host| self.fenced_out(guests[0], host)).collect();
            if let Some(conflict) = conflict(&against).filter(|conflict| !conflict.causes.is_empty()) {
                told.entry(conflict.causes).or_default().extend(guests);
            }
        }
        for (rules, guests) in told {
            let what = format!("together they leave no host for {}", self.names.list(&guests));
            self.tell(rules, &guests, what, "widen one of them so that they have a host in common");
        }
    }

    /// Returns the rules that do not allow a guest on a host.
    fn fenced_out(&self, guest: GuestId, host: HostId) -> Rules {
        self.fences(guest).filter(|fence| !fence.hosts.contains(host)).map(|fence| fence.rule).collect()
    }

    /// Checks guests that have to be on one host: none may be apart, and a host has to be allowed to all and have room
    /// for them.
    fn bound(&mut self) {
        for (group, of) in (0..).zip(&self.problem.groups) {
            if of.apart == Some(Strength::Hard) {
                self.apart_though_bound(group);
            }
        }
        for guests in self.bonds.classes(self.problem.guests.len()) {
            if guests.iter().any(|guest| self.allowed(*guest).is_empty()) {
                continue;
            }
            let common = |host: &HostId| guests.iter().all(|guest| self.allowed(*guest).contains(*host));
            let hosts: Vec<HostId> = (0..self.problem.hosts.len() as HostId).filter(common).collect();
            if hosts.is_empty() {
                let (rules, guests, _) = self.reduced(&guests, |_, hosts| hosts.is_empty());
                let what = format!(
                    "{} have to be on one host, and no host is allowed to all of them",
                    self.names.list(&guests)
                );
                self.tell(rules, &guests, what, "let them share a host, or no longer require that they do");
            } else if self.is_too_large(&guests, &hosts) {
                let (rules, guests, hosts) =
                    self.reduced(&guests, |guests, hosts| !hosts.is_empty() && self.is_too_large(guests, hosts));
                let what = self.too_large(&guests, &hosts);
                self.tell(rules, &guests, what, "add a larger host, or make the guests smaller or fewer");
            }
        }
    }

    /// Returns, for guests that have to be on one host and do not fit on any, the rules that this needs, the guests
    /// that they bind, and the hosts that they leave.
    fn reduced(
        &self,
        guests: &[GuestId],
        is_unfit: impl Fn(&[GuestId], &[HostId]) -> bool,
    ) -> (Rules, Vec<GuestId>, Vec<HostId>) {
        let part = |rules: &Rules| {
            self.bonds.parts(guests, |group| rules.contains(&self.rule_of(group))).into_iter().find_map(|part| {
                let allowed: Vec<Bits> = part.iter().map(|guest| self.allowed_by(*guest, rules)).collect();
                let common = |host: &HostId| allowed.iter().all(|of| of.contains(*host));
                let hosts: Vec<HostId> = (0..self.problem.hosts.len() as HostId).filter(common).collect();
                is_unfit(&part, &hosts).then_some((part, hosts))
            })
        };
        let bonds = self.bonds.rules(guests).into_iter().map(|group| self.rule_of(group));
        let rules = bonds.chain(self.fencing(guests)).collect();
        let rules = self.needed(rules, guests, |rules| part(rules).is_some());
        let (guests, hosts) = part(&rules).unwrap_or_default();
        (rules, guests, hosts)
    }

    fn apart_though_bound(&mut self, group: GroupId) {
        let mut first: BTreeMap<u32, GuestId> = BTreeMap::new();
        for guest in self.members(group) {
            let Some(other) = first.insert(self.bonds.class[*guest as usize], *guest) else { continue };
            let path: Rules = self.bonds.path(other, *guest).into_iter().map(|group| self.rule_of(group)).collect();
            let is_bound = |rules: &Rules| {
                let parts = self.bonds.parts(&[other, *guest], |group| rules.contains(&self.rule_of(group)));
                parts.len() == 1
            };
            let mut rules = self.needed(path, &[other, *guest], is_bound);
            rules.insert(self.rule_of(group));
            let what = format!("{} have to be on one host and apart", self.names.list(&[other, *guest]));
            self.tell(rules, &[other, *guest], what, "remove one of these rules, or make one soft");
        }
    }

    /// Returns what guests need together, for each row.
    fn need_of(&self, guests: &[GuestId]) -> Vec<i64> {
        let of = |row: usize| guests.iter().map(|guest| self.problem.guests[*guest as usize].demand[row]).sum();
        (0..self.problem.resources.len()).map(of).collect()
    }

    /// Returns whether none of the hosts has what these guests need together.
    fn is_too_large(&self, guests: &[GuestId], hosts: &[HostId]) -> bool {
        let need = self.need_of(guests);
        let capacity = |host: &HostId| &self.problem.hosts[*host as usize].capacity;
        !hosts.iter().any(|host| need.iter().zip(capacity(host)).all(|(need, has)| need <= has))
    }

    /// Describes what none of these hosts has.
    fn too_large(&self, guests: &[GuestId], hosts: &[HostId]) -> String {
        let need = self.need_of(guests);
        let who = self.names.list(guests);
        let capacity = |host: &HostId, row: usize| self.problem.hosts[*host as usize].capacity[row];
        let most = |row: usize| hosts.iter().map(|host| capacity(host, row)).max().unwrap_or(0);
        let (needs, they) = (agree(guests, "needs", "need"), agree(guests, "it", "they"));
        match (0..need.len()).find(|row| need[*row] > most(*row)) {
            Some(row) => {
                let of = &self.names.rows[row];
                format!(
                    "of {of} {who} {needs} {}, and the largest host that {they} may be on has {}",
                    of.text(need[row]),
                    of.text(most(row))
                )
            }
            None => format!("no host that {who} may be on has enough of everything"),
        }
    }

    /// Finds groups that are apart with more members than hosts for them. By Hall's theorem some of the members then
    /// have fewer hosts than there are of them. Each such crowd is reported.
    fn apart(&mut self, group: GroupId) {
        // A guest that no host is allowed to is reported separately.
        let members = self.members(group).iter().filter(|guest| !self.allowed(**guest).is_empty());
        let mut members: Vec<GuestId> = members.copied().collect();
        if members.iter().all(|guest| self.allowed(*guest).len() >= members.len()) {
            return;
        }
        loop {
            let hosts = |n: usize| self.allowed(members[n]).iter().collect::<Vec<HostId>>();
            let Err(right) = Matching::complete(members.len(), self.problem.hosts.len(), hosts) else { return };
            let right: Bits = right.into_iter().collect();
            // Members that may be on no other hosts belong to the crowd, too, or they would be the next clash.
            let is_in = |allowed: &Bits| allowed.iter().all(|host| right.contains(host));
            let (guests, others): (Vec<GuestId>, Vec<GuestId>) =
                members.iter().partition(|guest| is_in(self.allowed(**guest)));
            let mut rules = self.needed(self.fencing(&guests), &guests, |rules| {
                guests.iter().all(|guest| is_in(&self.allowed_by(*guest, rules)))
            });
            rules.insert(self.rule_of(group));
            let what = format!(
                "{} guests ({}) are apart and may only be on {} ({})",
                guests.len(),
                self.names.list(&guests),
                if right.len() == 1 { "1 host".into() } else { format!("{} hosts", right.len()) },
                listed(right.iter().map(|host| self.names.host(host)))
            );
            self.tell(
                rules,
                &guests,
                what,
                "allow more hosts or add some, have fewer guests in the rule, or make it soft",
            );
            members = others;
        }
    }

    /// Finds spreads that ask for more areas than can be reached at the same time.
    fn spread(&mut self, group: GroupId, level: usize, areas_min: usize) {
        let members = self.members(group);
        if members.is_empty() {
            return;
        }
        let all = self.fencing(members).into_iter();
        let all: Rules = all.chain(self.bonds.rules(members).into_iter().map(|group| self.rule_of(group))).collect();
        if self.reached(members, level, areas_min, &all) < areas_min {
            let mut rules =
                self.needed(all, members, |rules| self.reached(members, level, areas_min, rules) < areas_min);
            let reached = self.reached(members, level, areas_min, &rules);
            rules.insert(self.rule_of(group));
            let what = format!(
                "{} {} to be in {areas_min} areas of level '{}', and can be in {reached} at most",
                self.names.list(members),
                agree(members, "is", "are"),
                self.names.levels[level].name
            );
            self.tell(rules, members, what, "ask for fewer areas, allow hosts in more of them, or make the rule soft");
        }
    }

    /// Returns in how many areas guests can be at once by some rules, counted up to `enough`.
    fn reached(&self, guests: &[GuestId], level: usize, enough: usize, rules: &Rules) -> usize {
        let areas_of = |guest: &GuestId| -> BTreeSet<u32> {
            self.allowed_by(*guest, rules).iter().map(|host| self.problem.hosts[host as usize].areas[level]).collect()
        };
        // Guests that have to be on one host are in one area.
        let parts = self.bonds.parts(guests, |group| rules.contains(&self.rule_of(group)));
        let common = |part: &Vec<GuestId>| -> Vec<u32> {
            let mut areas = areas_of(&part[0]);
            part[1..].iter().map(areas_of).for_each(|others| areas.retain(|area| others.contains(area)));
            areas.into_iter().collect()
        };
        let units: Vec<Vec<u32>> = parts.iter().map(common).collect();
        Matching::most(units.len(), self.problem.levels[level] as usize, enough, |n| units[n].clone())
    }

    /// Finds groups for which there is no set in which every member may be.
    fn among(&mut self, group: GroupId, sets: &[Bits]) {
        // A guest that no host is allowed to is reported separately.
        let members = self.members(group).iter().filter(|guest| !self.allowed(**guest).is_empty());
        let members: &[GuestId] = &members.copied().collect::<Vec<_>>();
        let takes = |set: &Bits, guest: &GuestId| set.iter().any(|host| self.allowed(*guest).contains(host));
        if sets.is_empty() || sets.iter().any(|set| members.iter().all(|guest| takes(set, guest))) {
            return;
        }
        let takes = |set: &Bits, guest: &GuestId, rules: &Rules| {
            let allowed = self.allowed_by(*guest, rules);
            set.iter().any(|host| allowed.contains(host))
        };
        let mut rules = self.needed(self.fencing(members), members, |rules| {
            sets.iter().all(|set| members.iter().any(|guest| !takes(set, guest, rules)))
        });
        let is_out = |guest: &&GuestId| sets.iter().any(|set| !takes(set, guest, &rules));
        let out: Vec<GuestId> = members.iter().filter(is_out).copied().collect();
        rules.insert(self.rule_of(group));
        let what = format!("in none of its sets may all of its guests be: not {}", self.names.list(&out));
        self.tell(rules, &out, what, "name sets that their other rules allow");
    }

    /// Finds members that can never be near a guest that they need.
    fn need(&mut self, group: GroupId, of: GroupId, level: usize) {
        let needed = self.members(of);
        let area = |host: HostId| self.problem.hosts[host as usize].areas[level];
        let near: BTreeSet<u32> = needed.iter().flat_map(|guest| self.allowed(*guest).iter()).map(area).collect();
        let reaches = |guest: &GuestId| self.allowed(*guest).iter().any(|host| near.contains(&area(host)));
        let out: Vec<GuestId> = self.members(group).iter().filter(|guest| !reaches(guest)).copied().collect();
        if !out.is_empty() {
            let fencing: Rules = self.fencing(&out).into_iter().chain(self.fencing(needed)).collect();
            let both = [&out[..], needed].concat();
            let mut rules = self.needed(fencing, &both, |rules| {
                let areas =
                    |guest: &GuestId| self.allowed_by(*guest, rules).iter().map(area).collect::<BTreeSet<u32>>();
                let near: BTreeSet<u32> = needed.iter().flat_map(areas).collect();
                out.iter().all(|guest| areas(guest).is_disjoint(&near))
            });
            rules.insert(self.rule_of(group));
            let what = format!(
                "{} can never be in the same area of level '{}' as whom {} ({})",
                self.names.list(&out),
                self.names.levels[level].name,
                agree(&out, "it needs", "they need"),
                self.names.list(needed)
            );
            self.tell(rules, &out, what, "allow them hosts near each other");
        }
        if self.names.levels[level].name == HOST_LEVEL && needed.len() > 1 {
            self.needed_though_apart(group, needed);
        }
    }

    /// Finds members of two groups that are apart and have to be on one host, or in one area.
    fn avoid(&mut self, group: GroupId, of: GroupId, level: usize) {
        let (ours, theirs) = (self.members(group), self.members(of));
        let classes: BTreeMap<u32, GuestId> =
            theirs.iter().map(|guest| (self.bonds.class[*guest as usize], *guest)).collect();
        let bound = ours.iter().find_map(|one| Some((*one, *classes.get(&self.bonds.class[*one as usize])?)));
        if let Some((one, other)) = bound {
            let path: Rules = self.bonds.path(one, other).into_iter().map(|group| self.rule_of(group)).collect();
            let mut rules = self.needed(path, &[one, other], |rules| {
                self.bonds.parts(&[one, other], |group| rules.contains(&self.rule_of(group))).len() == 1
            });
            rules.insert(self.rule_of(group));
            let what = format!("{} have to be on one host and apart", self.names.list(&[one, other]));
            self.tell(rules, &[one, other], what, "remove one of these rules, or make one soft");
        }
        let areas = |allowed: &Bits| -> BTreeSet<u32> {
            allowed.iter().map(|host| self.problem.hosts[host as usize].areas[level]).collect()
        };
        let only = |allowed: &Bits| -> Option<u32> {
            let areas = areas(allowed);
            areas.first().copied().filter(|_| areas.len() == 1)
        };
        let there: BTreeMap<u32, GuestId> =
            theirs.iter().filter_map(|guest| Some((only(self.allowed(*guest))?, *guest))).collect();
        let met = ours.iter().find_map(|one| {
            let area = only(self.allowed(*one))?;
            Some((*one, *there.get(&area)?, area))
        });
        if let Some((one, other, area)) = met {
            let both = [one, other];
            let mut rules = self.needed(self.fencing(&both), &both, |rules| {
                both.iter().all(|guest| only(&self.allowed_by(*guest, rules)) == Some(area))
            });
            rules.insert(self.rule_of(group));
            let place = self.names.area_name(level, area);
            let what = format!("{} may only be in {place}, and are apart there", self.names.list(&both));
            self.tell(rules, &both, what, "allow one of them hosts elsewhere, or make the rule soft");
        }
    }

    /// Finds members that cannot be spread evenly enough, by how many they are and where they may be.
    fn even(&mut self, group: GroupId, level: usize, skew_max: u32) {
        let members = self.members(group);
        // A member without a host is reported already. Without that member the others may be of a number that cannot be
        // even, but only by rules of that member, which are not theirs.
        if members.is_empty() || members.iter().any(|guest| self.allowed(*guest).is_empty()) {
            return;
        }
        let skew = |rules: &Rules| self.skew_min(members, level, |guest| self.allowed_by(guest, rules));
        if self.skew_min(members, level, |guest| self.allowed(guest).clone()) <= skew_max {
            return;
        }
        let mut rules = self.needed(self.fencing(members), members, |rules| skew(rules) > skew_max);
        let least = skew(&rules);
        rules.insert(self.rule_of(group));
        let what = format!(
            "{} can never be spread over the areas of level '{}' with less than a skew of {least}",
            self.names.list(members),
            self.names.levels[level].name
        );
        self.tell(rules, members, what, "allow a larger skew, allow them the same hosts, or make the rule soft");
    }

    /// Returns a lower bound of how unevenly guests are spread. Those that may be in some areas only are at least a
    /// certain number in one of these areas, and the other guests leave each of the other areas with at most a certain
    /// number. The true skew may be larger.
    fn skew_min(&self, guests: &[GuestId], level: usize, allowed: impl Fn(GuestId) -> Bits) -> u32 {
        let mut confined: BTreeMap<BTreeSet<u32>, usize> = BTreeMap::new();
        for guest in guests {
            let hosts = allowed(*guest);
            let areas = hosts.iter().map(|host| self.problem.hosts[host as usize].areas[level]).collect();
            *confined.entry(areas).or_default() += 1;
        }
        let all: BTreeSet<u32> = confined.keys().flatten().copied().collect();
        let skew = |areas: &BTreeSet<u32>| {
            let inside: usize = confined.iter().filter(|(of, _)| of.is_subset(areas)).map(|(_, many)| many).sum();
            let most = inside.div_ceil(areas.len());
            let (others, rest) = (guests.len() - inside, all.len() - areas.len());
            let least = others.checked_div(rest).unwrap_or(guests.len() / all.len());
            most.saturating_sub(least) as u32
        };
        confined.keys().chain([&all]).filter(|areas| !areas.is_empty()).map(skew).max().unwrap_or(0)
    }

    /// Finds members that are apart from all guests that they need on their host.
    fn needed_though_apart(&mut self, group: GroupId, needed: &[GuestId]) {
        for (apart, of) in (0..).zip(&self.problem.groups) {
            let members: BTreeSet<GuestId> = self.members(apart).iter().copied().collect();
            if of.apart != Some(Strength::Hard) || !needed.iter().all(|guest| members.contains(guest)) {
                continue;
            }
            let out: Vec<GuestId> = self
                .members(group)
                .iter()
                .filter(|guest| members.contains(guest) && !needed.contains(guest))
                .copied()
                .collect();
            if !out.is_empty() {
                let what = format!(
                    "{} {} apart from ({})",
                    self.names.list(&out),
                    agree(&out, "needs on its host whom it is", "need on their host whom they are"),
                    self.names.list(needed)
                );
                self.tell(
                    [self.rule_of(group), self.rule_of(apart)],
                    &out,
                    what,
                    "remove one of these rules, or make one soft",
                );
            }
        }
    }
}

/// Returns all fences except that around hosts that are online, and the indices of each guest's. A guest of a group
/// that is among sets of hosts is within the union of these sets, whichever is chosen: that is a fence, too.
fn lasting_fences(problem: &Problem, names: &Names) -> (Vec<Fence>, Vec<Vec<u32>>) {
    let mut fences = names.fences.clone();
    let mut fences_of = names.fences_of.clone();
    let lasts = |fence: &u32| {
        let rule = names.fences[*fence as usize].rule;
        names.rules[rule as usize].kind != RuleKind::HostState
    };
    fences_of.iter_mut().for_each(|of| of.retain(lasts));
    for (group, of) in problem.groups.iter().enumerate().filter(|(_, of)| !of.among.is_empty()) {
        names.members[group].iter().for_each(|guest| fences_of[*guest as usize].push(fences.len() as u32));
        fences.push(Fence { rule: names.groups[group], hosts: of.among.iter().flat_map(Bits::iter).collect() });
    }
    (fences, fences_of)
}

/// Which guests have to be on one host, and by which groups: a hard rule that they are together, or a need on the same
/// host of one particular guest.
struct Bonds {
    edges: Vec<Vec<(GuestId, GroupId)>>,
    /// The class of each guest. Guests of one class have to be on one host.
    class: Vec<u32>,
}

impl Bonds {
    fn new(problem: &Problem, names: &Names) -> Bonds {
        let mut edges: Vec<Vec<(GuestId, GroupId)>> = vec![Vec::new(); problem.guests.len()];
        let mut bind = |a: GuestId, b: GuestId, group: GroupId| {
            edges[a as usize].push((b, group));
            edges[b as usize].push((a, group));
        };
        for (id, group) in (0..).zip(&problem.groups) {
            let members = &names.members[id as usize];
            if group.together == Some(Strength::Hard) {
                members.iter().skip(1).for_each(|guest| bind(members[0], *guest, id));
            }
            for need in group.needs.iter().filter(|need| need.strength == Strength::Hard) {
                if names.levels[need.level].name == HOST_LEVEL
                    && let [one] = names.members[need.of as usize][..]
                {
                    members.iter().filter(|guest| **guest != one).for_each(|guest| bind(one, *guest, id));
                }
            }
        }
        let mut class = vec![u32::MAX; problem.guests.len()];
        for guest in 0..problem.guests.len() {
            let mut open = vec![guest];
            while let Some(at) = open.pop() {
                if class[at] == u32::MAX {
                    class[at] = guest as u32;
                    open.extend(edges[at].iter().map(|(other, _)| *other as usize));
                }
            }
        }
        Bonds { edges, class }
    }

    /// Splits guests into parts that some groups bind together, directly or through other guests.
    fn parts(&self, guests: &[GuestId], binds: impl Fn(GroupId) -> bool) -> Vec<Vec<GuestId>> {
        let mut part_of: BTreeMap<GuestId, GuestId> = BTreeMap::new();
        let mut parts: BTreeMap<GuestId, Vec<GuestId>> = BTreeMap::new();
        for guest in guests {
            let mut open = vec![*guest];
            while let Some(at) = open.pop() {
                if let Entry::Vacant(free) = part_of.entry(at) {
                    free.insert(*guest);
                    let bound = self.edges[at as usize].iter().filter(|(_, group)| binds(*group));
                    open.extend(bound.map(|(other, _)| *other));
                }
            }
            parts.entry(part_of[guest]).or_default().push(*guest);
        }
        parts.into_values().collect()
    }

    /// Returns the guests of each class.
    fn classes(&self, guests: usize) -> Vec<Vec<GuestId>> {
        let mut classes: BTreeMap<u32, Vec<GuestId>> = BTreeMap::new();
        (0..guests).for_each(|guest| classes.entry(self.class[guest]).or_default().push(guest as GuestId));
        classes.into_values().collect()
    }

    /// Returns all groups that bind any of these guests.
    fn rules(&self, guests: &[GuestId]) -> BTreeSet<GroupId> {
        guests.iter().flat_map(|guest| &self.edges[*guest as usize]).map(|(_, group)| *group).collect()
    }

    /// Returns the groups on a shortest way from a guest to another of its class.
    fn path(&self, from: GuestId, to: GuestId) -> BTreeSet<GroupId> {
        let mut came: BTreeMap<GuestId, (GuestId, GroupId)> = BTreeMap::new();
        let mut open = VecDeque::from([from]);
        while let Some(at) = open.pop_front() {
            for (next, group) in &self.edges[at as usize] {
                if *next != from && !came.contains_key(next) {
                    came.insert(*next, (at, *group));
                    open.push_back(*next);
                }
            }
        }
        let mut groups = BTreeSet::new();
        let mut at = to;
        while let Some((before, group)) = came.get(&at) {
            groups.insert(*group);
            at = *before;
        }
        groups
    }
}

/// A matching that gives each on the left a place of its own on the right, by augmenting paths (Kuhn).
struct Matching<F> {
    /// For each place on the right, which on the left has it.
    with: Vec<Option<usize>>,
    choices: F,
}

impl<F: Fn(usize) -> Vec<u32>> Matching<F> {
    /// Finds a place for each on the left.
    ///
    /// # Errors
    ///
    /// A set of places for which there are more on the left than there are places.
    fn complete(left: usize, right: usize, choices: F) -> Result<(), Vec<u32>> {
        let mut matching = Matching { with: vec![None; right], choices };
        (0..left).try_for_each(|n| matching.add(n))
    }

    /// Returns how many on the left can have a place, counted up to `enough`.
    fn most(left: usize, right: usize, enough: usize, choices: F) -> usize {
        let mut matching = Matching { with: vec![None; right], choices };
        let mut placed = 0;
        for n in 0..left {
            if placed < enough {
                placed += usize::from(matching.add(n).is_ok());
            }
        }
        placed
    }

    /// Finds a place for one more, breadth first: one whose place is taken looks for another.
    ///
    /// # Errors
    ///
    /// All places that were tried, if there is no free one: those that have them can have no others.
    fn add(&mut self, new: usize) -> Result<(), Vec<u32>> {
        let mut left = vec![new];
        let mut came: BTreeMap<u32, usize> = BTreeMap::new();
        let mut at = 0;
        while at < left.len() {
            let one = left[at];
            at += 1;
            for place in (self.choices)(one) {
                if came.contains_key(&place) {
                    continue;
                }
                came.insert(place, one);
                match self.with[place as usize] {
                    Some(other) => left.push(other),
                    None => {
                        self.shift(place, new, &came);
                        return Ok(());
                    }
                }
            }
        }
        Err(came.into_keys().collect())
    }

    /// Moves each on the way to a free place one place further.
    fn shift(&mut self, free: u32, new: usize, came: &BTreeMap<u32, usize>) {
        let mut place = free;
        loop {
            let one = came[&place];
            let left = self.with.iter().position(|with| *with == Some(one));
            self.with[place as usize] = Some(one);
            match left {
                Some(before) if one != new => place = before as u32,
                _ => return,
            }
        }
    }
}
