//! What all checks for clashes need: where guests may be by some rules, and which of these rules a clash needs.

use std::collections::{BTreeMap, BTreeSet};

use super::bonds::Bonds;
use super::report::Clash;
use crate::cluster::names::{Fence, Names, RuleId, RuleKind};
use skein_placement::bits::Bits;
use skein_placement::problem::{GroupId, GuestId, HostId, Problem};

/// The steps that are spent on a clash to find out which rules it needs: about a second. Rules for which no steps are
/// left are reported as part of the clash.
const STEPS_MAX: usize = 50_000_000;

pub(super) type Rules = BTreeSet<RuleId>;

pub(super) struct Finder<'a> {
    pub(super) problem: &'a Problem,
    pub(super) names: &'a Names,
    /// The fences that last, and the indices of each guest's fences.
    fences: Vec<Fence>,
    fences_of: Vec<Vec<u32>>,
    /// The sets of hosts that rules allow guests to be on, and the index of each guest's set.
    pub(super) allowed: Vec<Bits>,
    pub(super) allowed_of: Vec<u32>,
    pub(super) bonds: Bonds,
    pub(super) found: Vec<Clash>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(problem: &'a Problem, names: &'a Names) -> Finder<'a> {
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

    pub(super) fn allowed(&self, guest: GuestId) -> &Bits {
        &self.allowed[self.allowed_of[guest as usize] as usize]
    }

    fn fences(&self, guest: GuestId) -> impl Iterator<Item = &Fence> {
        self.fences_of[guest as usize].iter().map(|fence| &self.fences[*fence as usize])
    }

    /// Returns the hosts where a guest may be by some rules alone.
    pub(super) fn allowed_by(&self, guest: GuestId, rules: &Rules) -> Bits {
        let fences = self.fences(guest).filter(|fence| rules.contains(&fence.rule));
        let fences: Vec<&Bits> = fences.map(|fence| &fence.hosts).collect();
        let hosts = 0..self.problem.hosts.len() as HostId;
        hosts.filter(|host| fences.iter().all(|fence| fence.contains(*host))).collect()
    }

    /// Returns the rules that a clash needs: each rule is left out if the clash is there without it.
    pub(super) fn needed(&self, mut rules: Rules, guests: &[GuestId], clashes: impl Fn(&Rules) -> bool) -> Rules {
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
    pub(super) fn fencing(&self, guests: &[GuestId]) -> Rules {
        guests.iter().flat_map(|guest| self.fences(*guest)).map(|fence| fence.rule).collect()
    }

    /// Returns the rules that do not allow a guest on a host.
    pub(super) fn fenced_out(&self, guest: GuestId, host: HostId) -> Rules {
        self.fences(guest).filter(|fence| !fence.hosts.contains(host)).map(|fence| fence.rule).collect()
    }

    pub(super) fn rule_of(&self, group: GroupId) -> RuleId {
        self.names.groups[group as usize]
    }

    pub(super) fn members(&self, group: GroupId) -> &'a [GuestId] {
        &self.names.members[group as usize]
    }

    pub(super) fn report(
        &mut self,
        rules: impl IntoIterator<Item = RuleId>,
        guests: &[GuestId],
        what: String,
        todo: &str,
    ) {
        let rules: Rules = rules.into_iter().collect();
        self.found.push(Clash {
            rules: rules.into_iter().map(|rule| self.names.rules[rule as usize].to_string()).collect(),
            guests: guests.iter().map(|guest| self.names.guest(*guest).to_owned()).collect(),
            what,
            todo: todo.into(),
        });
    }
}

/// Returns all fences except that around hosts that are online, and the indices of each guest's fences. A guest of a
/// group that is among sets of hosts is within the union of these sets, whichever set is chosen: that is a fence, too.
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
