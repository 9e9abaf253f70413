//! Chooses the guests that have to be taken out.

use super::Repair;
use crate::problem::{GroupId, GuestId, HostId, NOWHERE};
use crate::verdict::{Breach, judge};

/// The largest group that is taken out as a whole.
const GROUP_MAX: usize = 16;

impl Repair<'_> {
    /// Takes out guests that break something, as few as possible, until nothing is broken that they could not mend.
    pub(super) fn reduce(&mut self) {
        for breach in judge(self.partial.problem(), self.partial.state.assignment()).hard {
            match breach {
                Breach::Unplaced { guest } | Breach::NotOwner { guest, .. } => self.take_out_guest(guest),
                Breach::Together { group, .. } => self.take_out_guest(self.partial.members(group)[0]),
                Breach::Overload { host, .. } | Breach::Apart { host, .. } => self.relieve(host),
                Breach::Spread { group, areas, areas_min } => self.spread(group, (areas_min - areas) as usize),
                Breach::Need { group, of, level, area } => self.need(group, of, level, area),
                Breach::Among { group, .. } => self.among(group),
                Breach::Avoid { group, of, level, area, .. } => self.avoid([group, of], level, area),
                Breach::Uneven { group, least, .. } => self.even(group, least),
            }
        }
    }

    fn take_out_guest(&mut self, guest: GuestId) {
        self.take_out(self.partial.unit_of(guest));
    }

    /// Takes out the fewest guests that end an overload, and all but one of those that are apart.
    fn relieve(&mut self, host: HostId) {
        while let Some((unit, _)) = self.victim(host, None) {
            self.take_out(unit);
        }
    }

    /// Takes out as many members as could go to further areas: members that are not alone in their area.
    fn spread(&mut self, group: GroupId, missing: usize) {
        let Some(spread) = self.partial.problem().groups[group as usize].spread else { return };
        for _ in 0..missing {
            let area = |guest: &GuestId| {
                let host = self.partial.state.host_of(*guest);
                self.partial.problem().hosts.get(host as usize).map(|host| host.areas[spread.level])
            };
            let members = self.partial.members(group);
            let areas: Vec<Option<u32>> = members.iter().map(area).collect();
            let is_double =
                |at: &usize| areas[*at].is_some() && areas.iter().filter(|other| **other == areas[*at]).count() > 1;
            let size = |at: &usize| {
                let unit = self.partial.unit_of(members[*at]);
                (self.fails[unit as usize], self.partial.size[unit as usize])
            };
            let Some(at) = (0..members.len()).filter(is_double).min_by_key(size) else { return };
            self.take_out_guest(members[at]);
        }
    }

    /// Takes out a group's members in an area that lacks the group they need; or takes out a member of that group,
    /// which may come there.
    fn need(&mut self, group: GroupId, of: GroupId, level: usize, area: u32) {
        let there = self.members_in(group, level, area);
        let others: Vec<GuestId> = self.partial.members(of).to_vec();
        if others.len() > 1 && (there.len() > 1) != self.dice.chance(0.2) {
            let other = *self.dice.pick(&others);
            self.take_out_guest(other);
        } else {
            there.into_iter().for_each(|guest| self.take_out_guest(guest));
        }
    }

    /// Takes out the members of whichever group has fewer in an area, or now and then those of the other group.
    fn avoid(&mut self, groups: [GroupId; 2], level: usize, area: u32) {
        let mut there = groups.map(|group| self.members_in(group, level, area));
        there.sort_by_key(Vec::len);
        let [fewer, more] = there;
        let leave = if !fewer.is_empty() && self.dice.chance(0.2) { more } else { fewer };
        leave.into_iter().for_each(|guest| self.take_out_guest(guest));
    }

    /// Takes out the members that are too many in an area, where `least` is the number in the area with the fewest.
    fn even(&mut self, group: GroupId, least: u32) {
        let problem = self.partial.problem();
        let Some(even) = &problem.groups[group as usize].even else { return };
        let most = least.saturating_add(even.skew_max) as usize;
        for area in even.areas.iter() {
            let mut there = self.members_in(group, even.level, area);
            let units = |guest: &GuestId| self.partial.unit_of(*guest) as usize;
            there.sort_by_key(|guest| (self.fails[units(guest)], self.partial.size[units(guest)]));
            let over = there.len().saturating_sub(most);
            there.into_iter().take(over).for_each(|guest| self.take_out_guest(guest));
        }
    }

    /// Returns the members of a group in an area.
    fn members_in(&self, group: GroupId, level: usize, area: u32) -> Vec<GuestId> {
        let hosts = &self.partial.problem().hosts;
        let is_there = |guest: &&GuestId| {
            let host = self.partial.state.host_of(**guest);
            host != NOWHERE && hosts[host as usize].areas[level] == area
        };
        self.partial.members(group).iter().filter(is_there).copied().collect()
    }

    /// Takes out the members outside the set that has most of them, or, now and then, outside another set.
    fn among(&mut self, group: GroupId) {
        let among = &self.partial.problem().groups[group as usize].among;
        let host = |guest: &GuestId| self.partial.state.host_of(*guest);
        let inside =
            |set: &usize| self.partial.members(group).iter().filter(|guest| among[*set].contains(host(guest))).count();
        let most = (0..among.len()).max_by_key(inside).unwrap_or(0);
        let set = if self.dice.chance(0.2) { self.dice.below(among.len()) } else { most };
        let is_outside = |guest: &&GuestId| host(guest) != NOWHERE && !among[set].contains(host(guest));
        let outside: Vec<GuestId> = self.partial.members(group).iter().filter(is_outside).copied().collect();
        outside.into_iter().for_each(|guest| self.take_out_guest(guest));
    }

    /// Takes out the other members of one of a unit's groups: they may stand in its way where they are.
    pub(super) fn take_out_a_group(&mut self, unit: super::UnitId) {
        let guests = &self.partial.units[unit as usize];
        let problem = self.partial.problem();
        let groups: Vec<GroupId> =
            guests.iter().flat_map(|guest| &problem.guests[*guest as usize].groups).copied().collect();
        if groups.is_empty() {
            return;
        }
        let group = *self.dice.pick(&groups);
        // Or takes out a group that this group needs.
        let needs = &problem.groups[group as usize].needs;
        let group = if !needs.is_empty() && self.dice.chance(0.5) { self.dice.pick(needs).of } else { group };
        let members = self.partial.members(group).to_vec();
        if members.len() > GROUP_MAX {
            return;
        }
        for guest in members {
            if self.partial.unit_of(guest) != unit && self.partial.state.host_of(guest) != NOWHERE {
                self.take_out_guest(guest);
            }
        }
    }
}
