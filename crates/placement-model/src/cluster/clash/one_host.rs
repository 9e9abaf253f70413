//! Guests that have to be on one host, and cannot.

use std::collections::BTreeMap;

use super::finder::{Finder, Rules};
use crate::cluster::names::agree;
use skein_placement::bits::Bits;
use skein_placement::problem::{GroupId, GuestId, HostId, Strength};

impl Finder<'_> {
    /// Checks guests that have to be on one host: none may be apart, and a host has to be allowed to all and have room
    /// for them.
    pub(super) fn bound(&mut self) {
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
            let mut hosts = (0..self.problem.hosts.len() as HostId).filter(common);
            // Mostly the first host will do.
            let need = self.need_of(&guests);
            if hosts.any(|host| self.has_room(host, &need)) {
                continue;
            }
            let hosts: Vec<HostId> = (0..self.problem.hosts.len() as HostId).filter(common).collect();
            if hosts.is_empty() {
                let (rules, guests, _) = self.reduced(&guests, |_, hosts| hosts.is_empty());
                let what = format!(
                    "{} have to be on one host, and no host is allowed to all of them",
                    self.names.list(&guests)
                );
                self.report(rules, &guests, what, "let them share a host, or no longer require that they do");
            } else {
                let (rules, guests, hosts) =
                    self.reduced(&guests, |guests, hosts| !hosts.is_empty() && self.is_too_large(guests, hosts));
                let what = self.too_large(&guests, &hosts);
                self.report(rules, &guests, what, "add a larger host, or make the guests smaller or fewer");
            }
        }
    }

    /// Returns the rules that a clash of guests on one host needs, the guests that these rules bind, and the hosts that
    /// the rules leave. The guests do not fit on any host that is allowed to all of them.
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
            self.report(rules, &[other, *guest], what, "remove one of these rules, or make one soft");
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
        !hosts.iter().any(|host| self.has_room(*host, &need))
    }

    /// Returns whether a host has so much of each row.
    fn has_room(&self, host: HostId, need: &[i64]) -> bool {
        need.iter().zip(&self.problem.hosts[host as usize].capacity).all(|(need, has)| need <= has)
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
}
