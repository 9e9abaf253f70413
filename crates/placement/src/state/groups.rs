//! The books of groups: on which hosts and in which areas their members are.

use std::collections::BTreeMap;

use crate::problem::{Even, GroupId, GuestId, HostId, NOWHERE, Problem, Strength};
use crate::score::Score;

/// Which guests are in which group, and where each group is.
pub(super) struct Rules {
    /// The range in `ids` of each guest's groups.
    groups: Vec<(u32, u32)>,
    ids: Vec<GroupId>,
    pub(super) members: Vec<Vec<GuestId>>,
    /// Bits, indexed by group and host: whether a member is there.
    occupied: Vec<u64>,
    words: usize,
    /// Where a host has more than one member of a group: how many more.
    doubled: BTreeMap<(GroupId, HostId), u32>,
    /// The number of members, by group, level and area.
    in_area: Vec<u32>,
    /// The number of areas of all levels together.
    stride: usize,
    /// The index of each level's first area.
    level: Vec<usize>,
    /// The number of areas in which a group with a spread has members.
    pub(super) spread: Vec<u32>,
    /// The number of hosts on which a group has members.
    hosts: Vec<u32>,
    needed_by: Vec<Vec<(usize, GroupId, Strength)>>,
    /// The pairs of groups that are apart.
    avoids: Vec<Pair>,
    /// The pairs that each group is in, on either side.
    avoids_of: Vec<Vec<u32>>,
    /// For each group with an even spread: how many areas have each number of members.
    areas_with: Vec<Vec<u32>>,
}

/// Two groups that are apart in the areas of a level.
#[derive(Clone, Copy)]
struct Pair {
    groups: [GroupId; 2],
    level: usize,
    strength: Strength,
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
            others.for_each(|need| needed_by[need.of as usize].push((need.level, id, need.strength)));
        }
        let (mut avoids, mut avoids_of) = (Vec::new(), vec![Vec::new(); count]);
        for (id, group) in (0..).zip(&problem.groups) {
            for avoid in &group.avoids {
                [id, avoid.of].into_iter().for_each(|group| avoids_of[group as usize].push(avoids.len() as u32));
                avoids.push(Pair { groups: [id, avoid.of], level: avoid.level, strength: avoid.strength });
            }
        }
        let areas_with = problem.groups.iter().zip(&members).map(|(group, members): (_, &Vec<GuestId>)| {
            let Some(even) = &group.even else { return Vec::new() };
            let mut areas_with = vec![0; members.len() + 1];
            areas_with[0] = even.areas.len() as u32;
            areas_with
        });
        let areas_with = areas_with.collect();
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
            avoids,
            avoids_of,
            areas_with,
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

    /// Returns how many members of a group are on a host.
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
                if counts(&of.even, level, *area) {
                    let areas_with = &mut self.areas_with[group as usize];
                    areas_with[*count as usize - 1] -= 1;
                    areas_with[*count as usize] += 1;
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
                if counts(&of.even, level, *area) {
                    let areas_with = &mut self.areas_with[group as usize];
                    areas_with[*count as usize + 1] -= 1;
                    areas_with[*count as usize] += 1;
                }
            }
        }
    }

    /// Returns the change of the rules of a guest's groups if the guest moves. `at` is the host of each guest.
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
            for avoid in &self.avoids_of[*group as usize] {
                // The guest is in one of the two groups.
                let pair = &self.avoids[*avoid as usize];
                score += self.pair_score(problem, pair, [(Some(*group), from, to), (None, NOWHERE, NOWHERE)]);
            }
        }
        score
    }

    /// Returns the change of the rule of two groups that are apart if one or two guests move. Each guest is in one of
    /// the groups, or in neither.
    fn pair_score(&self, problem: &Problem, pair: &Pair, moves: [(Option<GroupId>, HostId, HostId); 2]) -> Score {
        let area = |host: HostId| (host != NOWHERE).then(|| problem.hosts[host as usize].areas[pair.level]);
        let ends = moves.map(|(group, from, to)| (group, area(from), area(to)));
        let touched = ends.iter().flat_map(|(_, from, to)| [*from, *to]);
        let mut breaches = 0;
        for (n, area) in touched.clone().enumerate() {
            let Some(area) = area.filter(|area| touched.clone().take(n).all(|other| other != Some(*area))) else {
                continue;
            };
            let over = |is_then: bool| {
                let count = |group: GroupId| {
                    let more = |(of, from, to): &(Option<GroupId>, Option<u32>, Option<u32>)| match *of == Some(group) {
                        true => i64::from(*to == Some(area)) - i64::from(*from == Some(area)),
                        false => 0,
                    };
                    let more = if is_then { ends.iter().map(more).sum() } else { 0 };
                    i64::from(self.in_area(group, pair.level, area)) + more
                };
                match pair.groups.map(count) {
                    [0, _] | [_, 0] => 0,
                    [one, other] => one + other - 1,
                }
            };
            breaches += over(true) - over(false);
        }
        pair.strength.score(breaches)
    }

    /// Returns how many members of a group would exceed the allowed skew if a member moved from one area to another.
    /// Areas that do not count are ignored.
    fn uneven(&self, group: GroupId, even: &Even, from: Option<u32>, to: Option<u32>) -> i64 {
        let counted = |area: Option<u32>| area.filter(|area| even.areas.contains(*area));
        let (from, to) = (counted(from), counted(to));
        let members = |area: Option<u32>| area.map(|area| self.in_area(group, even.level, area) as usize);
        let (from, to) = (members(from), members(to));
        let (mut least, mut over) = (None, 0);
        for (count, areas) in self.areas_with[group as usize].iter().enumerate() {
            let is = |of: Option<usize>| i64::from(of == Some(count));
            let areas = i64::from(*areas) - is(from) + is(from.map(|from| from - 1)) - is(to) + is(to.map(|to| to + 1));
            if areas > 0 {
                let least = *least.get_or_insert(count);
                over += areas * (count as i64 - least as i64 - i64::from(even.skew_max)).max(0);
            }
        }
        over
    }

    /// Returns the change of the rules of one group.
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
        // The area that loses its last member, and the area that gets its first.
        let last = |level: usize, area: Option<u32>| area.filter(|area| self.in_area(group, level, *area) == 1);
        let first = |level: usize, area: Option<u32>| area.filter(|area| self.in_area(group, level, *area) == 0);
        // A needed group that the guest is in as well moves along with it.
        let is_in = |other: GroupId| self.of(guest).contains(&other);
        for need in of.needs.iter().filter(|need| need.of != group && !is_in(need.of)) {
            let (from, to) = (area(from, need.level), area(to, need.level));
            if from != to {
                let lacks = |area: u32| self.in_area(need.of, need.level, area) == 0;
                let more = i64::from(first(need.level, to).is_some_and(lacks));
                score += need.strength.score(more - i64::from(last(need.level, from).is_some_and(lacks)));
            }
        }
        for (level, by, strength) in &self.needed_by[group as usize] {
            let (from, to) = (area(from, *level), area(to, *level));
            if from != to {
                let has = |area: u32| self.in_area(*by, *level, area);
                let goes = u32::from(is_in(*by));
                let more = i64::from(last(*level, from).is_some_and(|area| has(area) > goes));
                score += strength.score(more - i64::from(first(*level, to).is_some_and(|area| has(area) > 0)));
            }
        }
        if let Some(even) = &of.even {
            let (from, to) = (area(from, even.level), area(to, even.level));
            if from != to {
                let more = self.uneven(group, even, from, to) - self.uneven(group, even, None, None);
                score += even.strength.score(more);
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

    /// Returns how many members of a group would be outside the set of hosts that has most of them, if one member
    /// moved.
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

    /// Returns the change of the rules if two guests change places. Returns `None` if their groups need each other: the
    /// change is then not the sum of both moves.
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
        // Groups that both guests are in have the same number of members everywhere as before.
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
        Some(score + self.pairs_swapped(problem, (a, on_a), (b, on_b)))
    }

    /// Returns the change of the rules of groups that are apart if two guests change places. Each pair counts once.
    fn pairs_swapped(&self, problem: &Problem, (a, on_a): (GuestId, HostId), (b, on_b): (GuestId, HostId)) -> Score {
        let mut score = Score::default();
        if self.avoids.is_empty() {
            return score;
        }
        let avoids = |guest: GuestId| self.of(guest).iter().flat_map(|group| &self.avoids_of[*group as usize]);
        let of_b = avoids(b).filter(|avoid| avoids(a).all(|other| other != *avoid));
        for avoid in avoids(a).chain(of_b) {
            let pair = &self.avoids[*avoid as usize];
            let of = |guest: GuestId| pair.groups.into_iter().find(|group| self.of(guest).contains(group));
            score += self.pair_score(problem, pair, [(of(a), on_a, on_b), (of(b), on_b, on_a)]);
        }
        score
    }
}

/// Returns whether an area counts for an even spread.
fn counts(even: &Option<Even>, level: usize, area: u32) -> bool {
    even.as_ref().is_some_and(|even| even.level == level && even.areas.contains(area))
}
