//! An assignment of which some guests are out, with its books. Guests that belong together move as one: a unit.

use crate::problem::{Even, GroupId, GuestId, HostId, NOWHERE, Problem, Strength};
use crate::score::Score;
use crate::search::units::{UnitId, units};
use crate::state::State;
use crate::verdict::members;

pub(super) struct Partial<'a> {
    pub(super) state: State<'a>,
    /// The members of each group.
    members: Vec<Vec<GuestId>>,
    /// For each group, the groups that need it.
    needed_by: Vec<Vec<GroupId>>,
    pub(super) units: Vec<Vec<GuestId>>,
    unit_of: Vec<UnitId>,
    /// For each unit, whether guests that are still out can mend one of its rules.
    hopes: Vec<bool>,
    /// The size of each unit: the sum over all resources, in millionths of all capacities.
    pub(super) size: Vec<u64>,
}

impl<'a> Partial<'a> {
    pub(super) fn new(problem: &'a Problem, from: &[HostId]) -> Partial<'a> {
        let members = members(problem);
        let mut needed_by = vec![Vec::new(); problem.groups.len()];
        for (id, group) in (0..).zip(&problem.groups) {
            group.needs.iter().for_each(|need| needed_by[need.of as usize].push(id));
        }
        let (units, unit_of) = units(problem, &members);
        let is_hopeful = |group: &GroupId| {
            let of = &problem.groups[*group as usize];
            let spread = of.spread.is_some_and(|spread| spread.strength == Strength::Hard);
            let even = of.even.as_ref().is_some_and(|even| even.strength == Strength::Hard);
            spread || even || !of.needs.is_empty() || !needed_by[*group as usize].is_empty()
        };
        let hopeful = |unit: &Vec<GuestId>| {
            unit.iter().any(|guest| problem.guests[*guest as usize].groups.iter().any(is_hopeful))
        };
        let hopes = units.iter().map(hopeful).collect();
        let size = sizes(problem, &units);
        Partial { state: State::new(problem, from), members, needed_by, units, unit_of, hopes, size }
    }

    /// Continues from another assignment.
    pub(super) fn restore(&mut self, at: &[HostId]) {
        for (guest, host) in (0..).zip(at) {
            self.state.shift(guest, *host);
        }
    }

    pub(super) fn problem(&self) -> &'a Problem {
        self.state.problem()
    }

    pub(super) fn unit_of(&self, guest: GuestId) -> UnitId {
        self.unit_of[guest as usize]
    }

    pub(super) fn members(&self, group: GroupId) -> &[GuestId] {
        &self.members[group as usize]
    }

    /// Returns the host of a unit if all of its guests are there.
    pub(super) fn place(&self, unit: UnitId) -> Option<HostId> {
        let mut places = self.units[unit as usize].iter().map(|guest| self.state.host_of(*guest));
        let first = places.next()?;
        places.all(|place| place == first).then_some(first)
    }

    /// Returns how many guests of a unit would count as moved on a host.
    pub(super) fn moves(&self, unit: UnitId, on: HostId) -> usize {
        let initial = self.units[unit as usize].iter().map(|guest| self.problem().initial[*guest as usize]);
        initial.filter(|home| *home != NOWHERE && *home != on).count()
    }

    pub(super) fn may_own(&self, unit: UnitId, host: HostId) -> bool {
        self.units[unit as usize].iter().all(|guest| self.problem().may_own(*guest, host))
    }

    /// Returns whether each guest of a unit would have room on a host if it were there alone.
    pub(super) fn could_fit(&self, unit: UnitId, host: HostId) -> bool {
        self.units[unit as usize].iter().all(|guest| self.state.fits(*guest, host, None))
    }

    /// Moves a unit, which is on one host or out, to another place. Returns the change of the score. Being out does not
    /// count as broken here, nor do breaches that guests which are out can still mend.
    pub(super) fn shift(&mut self, unit: UnitId, to: HostId) -> Score {
        let (before, hope) = (self.state.score(), self.hope(unit));
        let mut placed = 0;
        for at in 0..self.units[unit as usize].len() {
            let guest = self.units[unit as usize][at];
            placed += i64::from(self.state.host_of(guest) == NOWHERE) - i64::from(to == NOWHERE);
            self.state.shift(guest, to);
        }
        let hope = self.hope(unit) - hope;
        self.state.score() - before + Score::broken(placed * Score::UNPLACED - hope * Score::BREACH)
    }

    /// Returns what [`Partial::shift`] would return, and changes nothing.
    pub(super) fn shift_score(&mut self, unit: UnitId, to: HostId) -> Score {
        let guest = self.units[unit as usize][0];
        let from = self.state.host_of(guest);
        if self.units[unit as usize].len() > 1 || self.hopes[unit as usize] {
            let score = self.shift(unit, to);
            self.shift(unit, from);
            return score;
        }
        let placed = i64::from(from == NOWHERE) - i64::from(to == NOWHERE);
        self.state.shift_score(guest, to) + Score::broken(placed * Score::UNPLACED)
    }

    /// Returns how many breaches of the unit's groups could be ended by guests that are out.
    fn hope(&self, unit: UnitId) -> i64 {
        if !self.hopes[unit as usize] {
            return 0;
        }
        let mut groups: Vec<GroupId> = Vec::new();
        for guest in &self.units[unit as usize] {
            for group in &self.problem().guests[*guest as usize].groups {
                groups.push(*group);
                groups.extend(&self.needed_by[*group as usize]);
            }
        }
        groups.sort_unstable();
        groups.dedup();
        groups.into_iter().map(|group| self.hope_of(group)).sum()
    }

    fn hope_of(&self, group: GroupId) -> i64 {
        let of = &self.problem().groups[group as usize];
        let mut hope = 0;
        if let Some(spread) = of.spread.filter(|spread| spread.strength == Strength::Hard) {
            let missing = (spread.areas_min as usize).saturating_sub(self.areas(group, spread.level).len());
            hope += missing.min(self.out(group));
        }
        if let Some(even) = of.even.as_ref().filter(|even| even.strength == Strength::Hard)
            && self.out(group) > 0
        {
            hope += self.over(group, even);
        }
        for need in of.needs.iter().filter(|need| need.strength == Strength::Hard) {
            let out = self.out(need.of);
            if out > 0 {
                let has = self.areas(need.of, need.level);
                let lacks = self.areas(group, need.level).into_iter().filter(|area| has.binary_search(area).is_err());
                hope += lacks.count().min(out);
            }
        }
        hope as i64
    }

    /// Returns how many members of a group exceed the allowed skew.
    fn over(&self, group: GroupId, even: &Even) -> usize {
        let counts: Vec<u32> = even.areas.iter().map(|area| self.members_in(group, even.level, area)).collect();
        let least = counts.iter().min().copied().unwrap_or(0);
        counts.iter().map(|count| count.saturating_sub(least.saturating_add(even.skew_max)) as usize).sum()
    }

    /// Returns how many members of a group are in an area.
    pub(super) fn members_in(&self, group: GroupId, level: usize, area: u32) -> u32 {
        let host = |guest: &&GuestId| self.problem().hosts.get(self.state.host_of(**guest) as usize);
        let is_there = |guest: &&GuestId| host(guest).is_some_and(|host| host.areas[level] == area);
        self.members(group).iter().filter(is_there).count() as u32
    }

    fn out(&self, group: GroupId) -> usize {
        self.members(group).iter().filter(|guest| self.state.host_of(**guest) == NOWHERE).count()
    }

    /// Returns the areas in which a group has members, in order.
    fn areas(&self, group: GroupId, level: usize) -> Vec<u32> {
        let hosts = self.members(group).iter().map(|guest| self.state.host_of(*guest));
        let area = |host: HostId| self.problem().hosts[host as usize].areas[level];
        let mut areas: Vec<u32> = hosts.filter(|host| *host != NOWHERE).map(area).collect();
        areas.sort_unstable();
        areas.dedup();
        areas
    }
}

fn sizes(problem: &Problem, units: &[Vec<GuestId>]) -> Vec<u64> {
    let capacity = |r: usize| problem.hosts.iter().map(|host| host.capacity[r]).sum::<i64>().max(1) as f64;
    let capacities: Vec<f64> = (0..problem.resources.len()).map(capacity).collect();
    let of = |guest: &GuestId| -> f64 {
        let demand = &problem.guests[*guest as usize].demand;
        demand.iter().zip(&capacities).map(|(demand, capacity)| *demand as f64 / capacity).sum()
    };
    units.iter().map(|unit| (1e6 * problem.hosts.len() as f64 * unit.iter().map(of).sum::<f64>()) as u64).collect()
}
