//! Which guests have to be on one host.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cluster::HOST_LEVEL;
use crate::cluster::names::Names;
use skein_placement::problem::{GroupId, GuestId, Problem, Strength};

/// Which guests have to be on one host, and by which groups: a hard rule that they are together, or a need on the same
/// host of one particular guest.
pub(super) struct Bonds {
    edges: Vec<Vec<(GuestId, GroupId)>>,
    /// The class of each guest. Guests of one class have to be on one host.
    pub(super) class: Vec<u32>,
}

impl Bonds {
    pub(super) fn new(problem: &Problem, names: &Names) -> Bonds {
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
    pub(super) fn parts(&self, guests: &[GuestId], binds: impl Fn(GroupId) -> bool) -> Vec<Vec<GuestId>> {
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
    pub(super) fn classes(&self, guests: usize) -> Vec<Vec<GuestId>> {
        let mut classes: BTreeMap<u32, Vec<GuestId>> = BTreeMap::new();
        (0..guests).for_each(|guest| classes.entry(self.class[guest]).or_default().push(guest as GuestId));
        classes.into_values().collect()
    }

    /// Returns all groups that bind any of these guests.
    pub(super) fn rules(&self, guests: &[GuestId]) -> BTreeSet<GroupId> {
        guests.iter().flat_map(|guest| &self.edges[*guest as usize]).map(|(_, group)| *group).collect()
    }

    /// Returns the groups on a shortest way from a guest to another of its class.
    pub(super) fn path(&self, from: GuestId, to: GuestId) -> BTreeSet<GroupId> {
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
