//! The state at a moment: where each guest is, what that uses, and what may start then.

use std::collections::{BTreeMap, BTreeSet};

use super::guard::{Guard, broken, has_hard, lasts};
use super::job::RATE_LEAST;
use super::{Action, Job, NetworkDirection, Obstacle, forecast, rate_min};
use crate::problem::{GroupId, GuestId, HostId, NOWHERE, NeedsRule, Strength};
use crate::verdict::judge_group;

/// Rates that differ by less than this part are equal: the sums of other rates are not exact.
const ROUGHLY: f64 = 1e-9;

/// A guest that goes from one host to another, from nowhere, or to nowhere.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub guest: GuestId,
    pub from: HostId,
    pub to: HostId,
    path: Vec<NetworkDirection>,
    /// The rate if nothing else is on the path.
    pub bottleneck: f64,
    /// The lowest rate at which the migration ends. `None`: it never does.
    rate_min: Option<f64>,
    /// How long the task takes at the bottleneck's rate.
    pub seconds: f64,
}

impl Task {
    pub fn new(job: &Job, guest: GuestId, from: HostId, to: HostId) -> Task {
        let seconds = seconds(job, guest, from, to);
        if from == NOWHERE || to == NOWHERE {
            return Task { guest, from, to, path: Vec::new(), bottleneck: 0.0, rate_min: Some(0.0), seconds };
        }
        let path = job.network.path(from, to);
        let bottleneck = job.network.bottleneck(&path);
        let least = seconds.is_finite().then(|| rate_min(&job.traffic[guest as usize], bottleneck)).flatten();
        let rate_min = least.map(|rate| rate.max(RATE_LEAST));
        Task { guest, from, to, path, bottleneck, rate_min, seconds }
    }

    /// Returns whether the task can be done at all.
    pub fn is_possible(&self) -> bool {
        self.rate_min.is_some()
    }

    pub fn action(&self) -> Action {
        match (self.from, self.to) {
            (NOWHERE, on) => Action::Start { guest: self.guest, on },
            (on, NOWHERE) => Action::Stop { guest: self.guest, on },
            (from, to) => Action::Migrate { guest: self.guest, from, to },
        }
    }

    /// Returns how long the task takes at a rate at which it ends.
    pub fn seconds_at(&self, job: &Job, rate: f64) -> f64 {
        if self.path.is_empty() {
            return self.seconds;
        }
        forecast(&job.traffic[self.guest as usize], rate).map_or(self.seconds, |told| told.seconds)
    }
}

/// Returns how long a guest takes from one host to another, from nowhere, or to nowhere, while nothing else is on the
/// way. The result is infinite if the guest never gets there.
pub(super) fn seconds(job: &Job, guest: GuestId, from: HostId, to: HostId) -> f64 {
    let g = guest as usize;
    match (from, to) {
        (NOWHERE, _) => job.start_seconds[g],
        (_, NOWHERE) => job.stop_seconds[g],
        _ => match job.network.bottleneck(&job.network.path(from, to)) {
            rate if rate < RATE_LEAST => f64::INFINITY,
            rate => forecast(&job.traffic[g], rate).map_or(f64::INFINITY, |told| told.seconds),
        },
    }
}

/// The hosts of a guest. They differ while it is on its way from the first to the second.
type GuestHosts = (HostId, HostId);

/// The state at a moment, with what it uses.
#[derive(Clone)]
pub(super) struct Flight<'a> {
    job: &'a Job,
    guard: &'a Guard,
    at: Vec<GuestHosts>,
    /// What is used, row by row: host, resource.
    used: Vec<i64>,
    /// The number of guests on each host, or on their way from or to it.
    guests: Vec<u32>,
    apart: BTreeMap<(GroupId, HostId), u32>,
    incoming: Vec<u32>,
    outgoing: Vec<u32>,
    /// The sum of the rates on each channel, and how many there are.
    load: Vec<(f64, u32)>,
    on: Vec<bool>,
    /// Used where rules are exchanged: where each guest runs, how many breaches of hard rules there are, and how many
    /// guests with hard rules are on their way.
    runs: Vec<HostId>,
    broken: i64,
    ruled: u32,
}

impl<'a> Flight<'a> {
    /// Makes the state at the begin, with what is under way.
    pub fn new(job: &'a Job, guard: &'a Guard) -> Flight<'a> {
        let hosts = job.problem.hosts.len();
        let mut flight = Flight {
            job,
            guard,
            at: vec![(NOWHERE, NOWHERE); job.problem.guests.len()],
            used: vec![0; hosts * job.problem.resources.len()],
            guests: vec![0; hosts],
            apart: BTreeMap::new(),
            incoming: vec![0; hosts],
            outgoing: vec![0; hosts],
            load: vec![(0.0, 0); job.network.channels()],
            on: job.power.iter().map(|power| power.on).collect(),
            runs: Vec::new(),
            broken: 0,
            ruled: 0,
        };
        for (guest, host) in (0..).zip(&job.problem.initial) {
            flight.settle(guest, *host);
        }
        if guard.broken_max.is_some() {
            flight.runs.clone_from(&job.problem.initial);
            flight.broken = broken(&job.problem, &flight.runs);
        }
        for running in &job.running {
            if let Action::Shutdown { host } = running.action {
                flight.on[host as usize] = false;
            }
            if let Some(guest) = running.action.guest() {
                let (from, to) = running.action.ends();
                flight.start(&Task::new(job, guest, from, to), running.rate);
            }
        }
        flight
    }

    /// Returns the host of a guest, unless the guest is on its way.
    pub fn settled(&self, guest: GuestId) -> Option<HostId> {
        let (from, to) = self.at[guest as usize];
        (from == to).then_some(from)
    }

    pub fn is_on(&self, host: HostId) -> bool {
        self.on[host as usize]
    }

    pub fn is_empty(&self, host: HostId) -> bool {
        self.guests[host as usize] == 0
    }

    pub fn switch_on(&mut self, host: HostId) {
        self.on[host as usize] = true;
    }

    pub fn switch_off(&mut self, host: HostId) {
        self.on[host as usize] = false;
    }

    /// Returns the rate at which a task can start now. The task takes all that there is, but not less than one of
    /// `share` equal parts of its bottleneck.
    ///
    /// # Errors
    ///
    /// The [`Obstacle`] that keeps the task from starting.
    pub fn rate(&self, task: &Task, share: u8) -> Result<f64, Obstacle> {
        self.room(task.guest, task.from, task.to)?;
        if task.path.is_empty() {
            return Ok(0.0);
        }
        for (host, count, most) in [
            (task.from, self.outgoing[task.from as usize], self.job.limits[task.from as usize].outgoing),
            (task.to, self.incoming[task.to as usize], self.job.limits[task.to as usize].incoming),
        ] {
            let total = self.outgoing[host as usize] + self.incoming[host as usize];
            if count >= most || total >= self.job.limits[host as usize].total {
                return Err(Obstacle::Limit { host });
            }
        }
        let free =
            |channel: &NetworkDirection| self.job.network.capacity(*channel).map(|most| most - self.load[*channel].0);
        let has = task.path.iter().filter_map(free).fold(f64::INFINITY, f64::min);
        let Some(least) = task.rate_min else { return Err(Obstacle::Bandwidth { needs: None, has: task.bottleneck }) };
        let needs = least.max(task.bottleneck / f64::from(share));
        if has < needs * (1.0 - ROUGHLY) {
            return Err(Obstacle::Bandwidth { needs: Some(needs), has });
        }
        Ok(if has > needs { has } else { needs })
    }

    /// Checks that a host is on, that it has room for a guest, and that no rule is in the way.
    ///
    /// # Errors
    ///
    /// The [`Obstacle`] that is in the way.
    pub fn room(&self, guest: GuestId, from: HostId, to: HostId) -> Result<(), Obstacle> {
        if to != NOWHERE {
            if !self.is_on(to) {
                return Err(Obstacle::Off { host: to });
            }
            let demand = &self.job.problem.guests[guest as usize].demand;
            let capacity = &self.job.problem.hosts[to as usize].capacity;
            let used = &self.used[to as usize * demand.len()..];
            for (resource, ((demand, capacity), used)) in demand.iter().zip(capacity).zip(used).enumerate() {
                let short = used + demand - capacity;
                if *demand > 0 && short > 0 {
                    return Err(Obstacle::Room { resource, short });
                }
            }
        }
        let groups = &self.job.problem.guests[guest as usize].groups;
        match groups.iter().copied().find(|group| !self.holds(*group, guest, (from, to))) {
            Some(group) => Err(Obstacle::Rule { group }),
            None => self.exchange(guest, to),
        }
    }

    /// Checks, if rules are exchanged, that no more than is allowed is broken once a guest has arrived.
    fn exchange(&self, guest: GuestId, to: HostId) -> Result<(), Obstacle> {
        let Some(most) = self.guard.broken_max.filter(|_| self.guard.ruled[guest as usize]) else { return Ok(()) };
        let groups = self.groups_about(guest);
        let Some(group) = groups.first().copied() else { return Ok(()) };
        if self.ruled > 0 {
            return Err(Obstacle::Rule { group });
        }
        let mut runs = self.runs.clone();
        let before = self.broken_of(&groups, &runs);
        runs[guest as usize] = to;
        match self.broken + self.broken_of(&groups, &runs) - before {
            then if then > most => Err(Obstacle::Rule { group }),
            _ => Ok(()),
        }
    }

    /// Returns the groups with hard rules about a guest, its own first.
    fn groups_about(&self, guest: GuestId) -> Vec<GroupId> {
        let of = &self.job.problem.guests[guest as usize].groups;
        let groups = &self.job.problem.groups;
        let concerns = |group: &GroupId| {
            let group = &groups[*group as usize];
            let mut others = group.needs.iter().map(|need| need.of).chain(group.avoids.iter().map(|avoid| avoid.of));
            others.any(|other| of.contains(&other))
        };
        let others = (0..groups.len() as GroupId).filter(|group| !of.contains(group) && concerns(group));
        of.iter().copied().chain(others).filter(|group| has_hard(&groups[*group as usize])).collect()
    }

    /// Returns how many breaches of the hard rules of groups there are.
    fn broken_of(&self, groups: &[GroupId], runs: &[HostId]) -> i64 {
        let of = |group: &GroupId| judge_group(&self.job.problem, &self.guard.members, runs, *group);
        let hard = groups.iter().flat_map(of).filter(|(strength, _)| *strength == Strength::Hard);
        hard.filter(|(_, breach)| lasts(breach)).map(|(_, breach)| breach.count()).sum()
    }

    /// Records where a guest runs now, if rules are exchanged.
    fn runs_on(&mut self, guest: GuestId, host: HostId) {
        if self.runs.is_empty() || self.runs[guest as usize] == host {
            return;
        }
        let groups = self.groups_about(guest);
        self.broken -= self.broken_of(&groups, &self.runs);
        self.runs[guest as usize] = host;
        self.broken += self.broken_of(&groups, &self.runs);
    }

    fn is_ruled(&self, guest: GuestId) -> u32 {
        u32::from(self.guard.broken_max.is_some() && self.guard.ruled[guest as usize])
    }

    /// Lets a guest set out, which uses the links at this rate.
    pub fn start(&mut self, task: &Task, rate: f64) {
        self.occupy(task.guest, task.to, 1);
        self.at[task.guest as usize] = (task.from, task.to);
        self.ruled += self.is_ruled(task.guest);
        self.travel(task, rate, 1);
    }

    /// Lets a guest arrive.
    pub fn arrive(&mut self, task: &Task, rate: f64) {
        self.occupy(task.guest, task.from, -1);
        self.at[task.guest as usize] = (task.to, task.to);
        self.ruled -= self.is_ruled(task.guest);
        self.runs_on(task.guest, task.to);
        self.travel(task, rate, -1);
    }

    /// Puts a guest on another host, or nowhere, at once.
    pub fn settle(&mut self, guest: GuestId, host: HostId) {
        self.occupy(guest, self.at[guest as usize].0, -1);
        self.occupy(guest, host, 1);
        self.at[guest as usize] = (host, host);
        self.runs_on(guest, host);
    }

    fn occupy(&mut self, guest: GuestId, host: HostId, sign: i32) {
        if host == NOWHERE {
            return;
        }
        let of = &self.job.problem.guests[guest as usize];
        let used = &mut self.used[host as usize * of.demand.len()..];
        used.iter_mut().zip(&of.demand).for_each(|(used, demand)| *used += i64::from(sign) * demand);
        self.guests[host as usize] = self.guests[host as usize].wrapping_add_signed(sign);
        for &group in of.groups.iter().filter(|group| self.guard.apart[**group as usize]) {
            let count = self.apart.entry((group, host)).or_default();
            *count = count.wrapping_add_signed(sign);
        }
    }

    fn travel(&mut self, task: &Task, rate: f64, sign: i32) {
        if task.path.is_empty() {
            return;
        }
        for count in [&mut self.outgoing[task.from as usize], &mut self.incoming[task.to as usize]] {
            *count = count.wrapping_add_signed(sign);
        }
        for &channel in &task.path {
            let (load, count) = &mut self.load[channel];
            *count = count.wrapping_add_signed(sign);
            // What is left of sums that are not exact is dropped when no migration is on the channel.
            *load = if *count == 0 { 0.0 } else { *load + f64::from(sign) * rate };
        }
    }

    /// Returns whether a group's rules hold if one of its guests sets out, in whatever order the guests on their way
    /// arrive.
    fn holds(&self, group: GroupId, guest: GuestId, place: GuestHosts) -> bool {
        let (guard, id) = (self.guard, group as usize);
        let (from, to) = place;
        if guard.apart[id]
            && to != NOWHERE
            && to != from
            && self.apart.get(&(group, to)).is_some_and(|count| *count > 0)
        {
            return false;
        }
        let of = &self.job.problem.groups[id];
        let moving = (guest, place);
        if guard.among[id] && !of.among.iter().any(|set| self.hosts(group, moving).all(|host| set.contains(host))) {
            return false;
        }
        let holds_need = |group: GroupId, need: &NeedsRule| {
            let surely: BTreeSet<u32> = self.areas(need.of, need.level, moving).filter_map(surely).collect();
            // A guest in both groups has itself near wherever it is.
            let others = guard.members[group as usize].iter().zip(self.areas(group, need.level, moving));
            let others = others.filter(|(member, _)| !self.is_in(**member, need.of));
            others.flat_map(|(_, (a, b))| [a, b]).flatten().all(|area| surely.contains(&area))
        };
        if !guard.needs[id].iter().all(|need| holds_need(group, need)) {
            return false;
        }
        let needed =
            guard.needed_by[id].iter().flat_map(|by| guard.needs[*by as usize].iter().map(move |need| (*by, need)));
        if !needed.filter(|(_, need)| need.of == group).all(|(by, need)| holds_need(by, need)) {
            return false;
        }
        if !self.keeps_apart(group, guest, to) {
            return false;
        }
        match of.spread.filter(|_| guard.spread[id]) {
            None => true,
            Some(spread) => {
                let areas: Vec<_> = self.areas(group, spread.level, moving).collect();
                let sure: BTreeSet<u32> = areas.iter().copied().filter_map(surely).collect();
                // Guests on their way between two further areas are in at least one more area.
                let further = areas
                    .iter()
                    .any(|ends| matches!(ends, (Some(a), Some(b)) if !sure.contains(a) && !sure.contains(b)));
                sure.len() + usize::from(further) >= spread.areas_min as usize
            }
        }
    }

    /// Returns whether no guest from which a group's rules keep this guest apart is on its new host, or on its way
    /// there.
    fn keeps_apart(&self, group: GroupId, guest: GuestId, to: HostId) -> bool {
        let Some(host) = self.job.problem.hosts.get(to as usize) else { return true };
        let ours = self.guard.avoids[group as usize].iter().map(|avoid| (avoid.of, avoid.level));
        let theirs = self.guard.avoided_by[group as usize].iter().flat_map(|by| {
            let avoids = self.guard.avoids[*by as usize].iter().filter(|avoid| avoid.of == group);
            avoids.map(|avoid| (*by, avoid.level))
        });
        let moving = (guest, (to, to));
        let mut others = ours.chain(theirs);
        others.all(|(other, level)| {
            let area = Some(host.areas[level]);
            self.areas(other, level, moving).all(|(from, to)| from != area && to != area)
        })
    }

    fn is_in(&self, guest: GuestId, group: GroupId) -> bool {
        self.job.problem.guests[guest as usize].groups.contains(&group)
    }

    fn places(&self, group: GroupId, moving: (GuestId, GuestHosts)) -> impl Iterator<Item = GuestHosts> {
        self.guard.members[group as usize].iter().map(move |member| match *member == moving.0 {
            true => moving.1,
            false => self.at[*member as usize],
        })
    }

    fn hosts(&self, group: GroupId, moving: (GuestId, GuestHosts)) -> impl Iterator<Item = HostId> {
        self.places(group, moving).flat_map(|(a, b)| [a, b]).filter(|host| *host != NOWHERE)
    }

    /// Returns for each member the areas that it comes from and goes to.
    fn areas(
        &self,
        group: GroupId,
        level: usize,
        moving: (GuestId, GuestHosts),
    ) -> impl Iterator<Item = (Option<u32>, Option<u32>)> {
        let area = move |host: HostId| (host != NOWHERE).then(|| self.job.problem.hosts[host as usize].areas[level]);
        self.places(group, moving).map(move |(from, to)| (area(from), area(to)))
    }
}

/// Returns the area where a member is whether it has arrived or not.
fn surely(ends: (Option<u32>, Option<u32>)) -> Option<u32> {
    ends.0.filter(|area| Some(*area) == ends.1)
}
