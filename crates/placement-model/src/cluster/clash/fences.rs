//! Guests for which fences leave too few hosts.

use std::collections::{BTreeMap, BTreeSet};

use super::finder::{Finder, Rules};
use super::matching::Matching;
use crate::cluster::names::{RuleId, listed};
use crate::explain::conflict;
use skein_placement::bits::Bits;
use skein_placement::problem::{GroupId, GuestId, HostId};

impl Finder<'_> {
    /// Finds guests whose fences have no host in common, and the fewest rules that leave none.
    pub(super) fn nowhere(&mut self) {
        let mut stuck: BTreeMap<u32, Vec<GuestId>> = BTreeMap::new();
        for (guest, allowed) in (0..).zip(&self.allowed_of) {
            if self.allowed[*allowed as usize].is_empty() {
                stuck.entry(*allowed).or_default().push(guest);
            }
        }
        let mut guests_of: BTreeMap<Vec<RuleId>, Vec<GuestId>> = BTreeMap::new();
        for guests in stuck.into_values() {
            let against: Vec<BTreeSet<RuleId>> =
                (0..self.problem.hosts.len() as HostId).map(|host| self.fenced_out(guests[0], host)).collect();
            if let Some(conflict) = conflict(&against).filter(|conflict| !conflict.causes.is_empty()) {
                guests_of.entry(conflict.causes).or_default().extend(guests);
            }
        }
        for (rules, guests) in guests_of {
            let what = format!("together they leave no host for {}", self.names.list(&guests));
            self.report(rules, &guests, what, "widen one of them so that they have a host in common");
        }
    }

    /// Finds groups for which there is no set in which every member may be.
    pub(super) fn among(&mut self, group: GroupId, sets: &[Bits]) {
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
        self.report(rules, &out, what, "name sets that their other rules allow");
    }

    /// Finds groups that are apart with more members than hosts for them. By Hall's theorem some of the members then
    /// have fewer hosts than there are of these members. Each such crowd is reported.
    pub(super) fn apart(&mut self, group: GroupId) {
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
            self.report(
                rules,
                &guests,
                what,
                "allow more hosts or add some, have fewer guests in the rule, or make it soft",
            );
            members = others;
        }
    }
}
