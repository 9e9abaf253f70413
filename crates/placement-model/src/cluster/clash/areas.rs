//! Guests that cannot be in as many areas, or as evenly in them, as a rule asks.

use std::collections::{BTreeMap, BTreeSet};

use super::finder::{Finder, Rules};
use super::matching::Matching;
use crate::cluster::names::agree;
use skein_placement::bits::Bits;
use skein_placement::problem::{GroupId, GuestId};

impl Finder<'_> {
    /// Finds spreads that ask for more areas than can be reached at the same time.
    pub(super) fn spread(&mut self, group: GroupId, level: usize, areas_min: usize) {
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
            self.report(
                rules,
                members,
                what,
                "ask for fewer areas, allow hosts in more of them, or make the rule soft",
            );
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

    /// Finds members that cannot be spread evenly enough, by how many they are and where they may be.
    pub(super) fn even(&mut self, group: GroupId, level: usize, skew_max: u32) {
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
        self.report(rules, members, what, "allow a larger skew, allow them the same hosts, or make the rule soft");
    }

    /// Returns a lower bound of how unevenly guests are spread. Of the guests that may be in some areas only, at least
    /// a certain number are in one of these areas. The other guests leave each of the other areas with at most a
    /// certain number. The true skew may be larger.
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
}
