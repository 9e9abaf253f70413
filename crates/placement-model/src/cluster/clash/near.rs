//! Groups that need each other near and cannot be, or that are apart and cannot be.

use std::collections::{BTreeMap, BTreeSet};

use super::finder::{Finder, Rules};
use crate::cluster::HOST_LEVEL;
use crate::cluster::names::agree;
use skein_placement::bits::Bits;
use skein_placement::problem::{GroupId, GuestId, HostId, Strength};

impl Finder<'_> {
    /// Finds members that can never be near a guest that they need.
    pub(super) fn need(&mut self, group: GroupId, of: GroupId, level: usize) {
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
            self.report(rules, &out, what, "allow them hosts near each other");
        }
        if self.names.levels[level].name == HOST_LEVEL && needed.len() > 1 {
            self.needed_though_apart(group, needed);
        }
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
                self.report(
                    [self.rule_of(group), self.rule_of(apart)],
                    &out,
                    what,
                    "remove one of these rules, or make one soft",
                );
            }
        }
    }

    /// Finds members of two groups that are apart and have to be on one host, or in one area.
    pub(super) fn avoid(&mut self, group: GroupId, of: GroupId, level: usize) {
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
            self.report(rules, &[one, other], what, "remove one of these rules, or make one soft");
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
            self.report(rules, &both, what, "allow one of them hosts elsewhere, or make the rule soft");
        }
    }
}
