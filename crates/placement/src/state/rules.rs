//! The books of groups: where their members are.

use std::collections::BTreeMap;

use crate::problem::{GroupId, GuestId, HostId, NOWHERE, Problem};
use crate::score::Score;

/// Who is in which group, and where each group is.
pub(super) struct Rules {
    /// Where a guest's groups are in `ids`.
    groups: Vec<(u32, u32)>,
    ids: Vec<GroupId>,
    pub(super) members: Vec<Vec<GuestId>>,
    /// Bits: group by host.
    occupied: Vec<u64>,
    words: usize,
    /// Where more than one member of a group is on a host: how many more.
    doubled: BTreeMap<(GroupId, HostId), u32>,
    /// Members by group, level and area.
    in_area: Vec<u32>,
    /// Areas of all levels together.
    stride: usize,
    /// Where a level's areas begin.
    level: Vec<usize>,
    /// Areas in which a group with a spread has members.
    pub(super) spread: Vec<u32>,
    /// Hosts on which a group has members.
    hosts: Vec<u32>,
    needed_by: Vec<Vec<(usize, GroupId)>>,
}

impl Rules {
    pub(super) fn new(problem: &Problem) -> Rules {
        let count = problem.groups.len();
        let mut members = vec![Vec::new(); count];
        let mut needed_by = vec![Vec::new(); count];
        let (mut groups, mut ids) = (Vec::new(), Vec::new());
        for (guest, of) in (0..).zip(&problem.guests) {
            let from = ids.len() as u32;
            ids.extend_from_slice(&of.groups);
            groups.push((from, ids.len() as u32));
            of.groups.iter().for_each(|group| members[*group as usize].push(guest));
        }
        for (id, group) in (0..).zip(&problem.groups) {
            let others = group.needs.iter().filter(|need| need.of != id);
            others.for_each(|need| needed_by[need.of as usize].push((need.level, id)));
        }
        let mut level = Vec::new();
        let mut stride = 0;
        for areas in &problem.levels {
            level.push(stride);
            stride += *areas as usize;
        }
        let words = problem.hosts.len().div_ceil(64);
        Rules {
            groups,
            ids,
            members,
            occupied: vec![0; count * words],
            words,
            doubled: BTreeMap::new(),
            in_area: vec![0; count * stride],
            stride,
            level,
            spread: vec![0; count],
            hosts: vec![0; count],
            needed_by,
        }
    }

    #[inline]
    pub(super) fn of(&self, guest: GuestId) -> &[GroupId] {
        let (from, to) = self.groups[guest as usize];
        &self.ids[from as usize..to as usize]
    }

    #[inline]
    fn is_on(&self, group: GroupId, host: HostId) -> bool {
        self.occupied[group as usize * self.words + host as usize / 64] >> (host % 64) & 1 == 1
    }

    /// How many of a group are on a host.
    #[inline]
    fn count_on(&self, group: GroupId, host: HostId) -> u32 {
        if !self.is_on(group, host) {
            return 0;
        }
        1 + if self.doubled.is_empty() { 0 } else { self.doubled.get(&(group, host)).copied().unwrap_or(0) }
    }

    #[inline]
    fn in_area(&self, group: GroupId, level: usize, area: u32) -> u32 {
        self.in_area[group as usize * self.stride + self.level[level] + area as usize]
    }

    pub(super) fn put(&mut self, problem: &Problem, guest: GuestId, host: HostId) {
        let (from, to) = self.groups[guest as usize];
        for at in from..to {
            let group = self.ids[at as usize];
            let of = &problem.groups[group as usize];
            let word = &mut self.occupied[group as usize * self.words + host as usize / 64];
            let bit = 1 << (host % 64);
            if *word & bit != 0 {
                *self.doubled.entry((group, host)).or_default() += 1;
            } else {
                *word |= bit;
                self.hosts[group as usize] += 1;
            }
            for (level, area) in problem.hosts[host as usize].areas.iter().enumerate() {
                let count = &mut self.in_area[group as usize * self.stride + self.level[level] + *area as usize];
                *count += 1;
                if *count == 1 && of.spread.is_some_and(|spread| spread.level == level) {
                    self.spread[group as usize] += 1;
                }
            }
        }
    }

    pub(super) fn take(&mut self, problem: &Problem, guest: GuestId, host: HostId) {
        let (from, to) = self.groups[guest as usize];
        for at in from..to {
            let group = self.ids[at as usize];
            let of = &problem.groups[group as usize];
            match self.doubled.get_mut(&(group, host)) {
                Some(1) => drop(self.doubled.remove(&(group, host))),
                Some(more) => *more -= 1,
                None => {
                    self.occupied[group as usize * self.words + host as usize / 64] &= !(1 << (host % 64));
                    self.hosts[group as usize] -= 1;
                }
            }
            for (level, area) in problem.hosts[host as usize].areas.iter().enumerate() {
                let count = &mut self.in_area[group as usize * self.stride + self.level[level] + *area as usize];
                *count -= 1;
                if *count == 0 && of.spread.is_some_and(|spread| spread.level == level) {
                    self.spread[group as usize] -= 1;
                }
            }
        }
    }

    /// What changes of the rules of a guest's groups if it moves. `at`: where each guest is.
    #[inline]
    pub(super) fn shift_score(
        &self,
        problem: &Problem,
        at: &[HostId],
        guest: GuestId,
        from: HostId,
        to: HostId,
    ) -> Score {
        let mut score = Score::default();
        for group in self.of(guest) {
            score += self.group_score(problem, at, guest, *group, from, to);
        }
        score
    }

    /// What changes of one of them.
    #[inline]
    fn group_score(
        &self,
        problem: &Problem,
        at: &[HostId],
        guest: GuestId,
        group: GroupId,
        from: HostId,
        to: HostId,
    ) -> Score {
        let of = &problem.groups[group as usize];
        let mut score = Score::default();
        let (leaves, comes) = (from != NOWHERE, to != NOWHERE);
        if let Some(strength) = of.apart {
            let more = i64::from(comes && self.is_on(group, to)) - i64::from(leaves && self.count_on(group, from) > 1);
            score += strength.score(more);
        }
        let area = |host: HostId, level: usize| (host != NOWHERE).then(|| problem.hosts[host as usize].areas[level]);
        if let Some(spread) = &of.spread {
            let (from, to) = (area(from, spread.level), area(to, spread.level));
            if from != to {
                let members = |area: Option<u32>| area.map(|area| self.in_area(group, spread.level, area));
                let now = i64::from(self.spread[group as usize]);
                let then = now - i64::from(members(from) == Some(1)) + i64::from(members(to) == Some(0));
                let missing = |areas: i64| (i64::from(spread.areas_min) - areas).max(0);
                score += spread.strength.score(missing(then) - missing(now));
            }
        }
        // Where the last one leaves, and where the first one comes.
        let last = |level: usize, area: Option<u32>| area.filter(|area| self.in_area(group, level, *area) == 1);
        let first = |level: usize, area: Option<u32>| area.filter(|area| self.in_area(group, level, *area) == 0);
        // A group that the guest is in, too, comes and goes with it.
        let is_in = |other: GroupId| self.of(guest).contains(&other);
        for need in of.needs.iter().filter(|need| need.of != group && !is_in(need.of)) {
            let (from, to) = (area(from, need.level), area(to, need.level));
            if from != to {
                let lacks = |area: u32| self.in_area(need.of, need.level, area) == 0;
                score.broken += Score::BREACH * i64::from(first(need.level, to).is_some_and(lacks));
                score.broken -= Score::BREACH * i64::from(last(need.level, from).is_some_and(lacks));
            }
        }
        for (level, by) in &self.needed_by[group as usize] {
            let (from, to) = (area(from, *level), area(to, *level));
            if from != to {
                let has = |area: u32| self.in_area(*by, *level, area);
                let goes = u32::from(is_in(*by));
                score.broken += Score::BREACH * i64::from(last(*level, from).is_some_and(|area| has(area) > goes));
                score.broken -= Score::BREACH * i64::from(first(*level, to).is_some_and(|area| has(area) > 0));
            }
        }
        if let Some(strength) = of.together {
            let hosts = i64::from(self.hosts[group as usize]);
            let left = i64::from(leaves && self.count_on(group, from) == 1);
            let then = hosts - left + i64::from(comes && !self.is_on(group, to));
            score += strength.score((then - 1).max(0) - (hosts - 1).max(0));
        }
        if !of.among.is_empty() {
            let outside = |moves| self.outside(problem, at, group, moves);
            score.broken += Score::BREACH * (outside(Some((from, to))) - outside(None));
        }
        score
    }

    /// How many of a group are outside that of its sets of hosts which has most of them, if one moved.
    fn outside(&self, problem: &Problem, at: &[HostId], group: GroupId, moves: Option<(HostId, HostId)>) -> i64 {
        let among = &problem.groups[group as usize].among;
        let mut inside = vec![0i64; among.len()];
        let mut placed = 0;
        let mut count = |host: HostId, by: i64| {
            if host != NOWHERE {
                placed += by;
                among
                    .iter()
                    .zip(&mut inside)
                    .filter(|(set, _)| set.contains(host))
                    .for_each(|(_, inside)| *inside += by);
            }
        };
        self.members[group as usize].iter().for_each(|guest| count(at[*guest as usize], 1));
        if let Some((from, to)) = moves {
            count(from, -1);
            count(to, 1);
        }
        placed - inside.into_iter().max().unwrap_or(placed)
    }

    /// What two that change places change. None: their groups need each other, so that it is not the sum of both.
    #[inline]
    pub(super) fn swap_score(
        &self,
        problem: &Problem,
        at: &[HostId],
        (a, on_a): (GuestId, HostId),
        (b, on_b): (GuestId, HostId),
    ) -> Option<Score> {
        let (of_a, of_b) = (self.of(a), self.of(b));
        let mut score = Score::default();
        // Of what both are in, as many are everywhere as before.
        if of_a == of_b {
            return Some(score);
        }
        let needs =
            |one: GroupId, other: GroupId| problem.groups[one as usize].needs.iter().any(|need| need.of == other);
        let is_entangled = |group: GroupId| {
            let mut others = of_a.iter().chain(of_b).filter(|other| **other != group);
            others.any(|other| needs(group, *other) || needs(*other, group))
        };
        for (guest, of, but, from, to) in [(a, of_a, of_b, on_a, on_b), (b, of_b, of_a, on_b, on_a)] {
            for group in of.iter().filter(|group| !but.contains(group)) {
                if is_entangled(*group) {
                    return None;
                }
                score += self.group_score(problem, at, guest, *group, from, to);
            }
        }
        Some(score)
    }
}
