//! Computes what a plan leads to, independently of the planner: data flows, links are shared, and guests write
//! meanwhile.
//!
//! Nothing here is the planner's: neither its formulas for a migration, nor its books, nor what it takes to be safe on
//! the way. The simulation relies on the [`Job`], on what [`Traffic`] says of a migration, and on the network's paths.
//!
//! Migrations share each channel fairly (max-min: Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2), and
//! none exceeds its planned rate. After each event everything is checked again: room on each host, members that meet,
//! hosts that are off, limits, and, by [`judge`], the rules for where guests run at that moment.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Job, NetworkDirection, Plan, ROUNDS_MAX, StepId, Traffic};
use crate::problem::{GroupId, GuestId, HostId, NOWHERE, Strength};
use crate::verdict::{Breach, judge};

/// Seconds, and parts of a whole, below which a difference does not count.
const TINY: f64 = 1e-6;
/// Bytes below which an amount counts as none.
const CRUMB: f64 = 1e-3;

/// When a step starts that no longer waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once.
    Free,
    /// Not before its planned start.
    AsPlanned,
}

/// Something that should not have happened.
#[expect(missing_docs, reason = "fields are named for what they are")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// A guest is not where a step takes it from, or is on its way. The step does not start.
    NotThere { step: StepId },
    /// More is used on a host than the host has, and more than was used at first.
    Overload { host: HostId, resource: usize, over: i64 },
    /// Members that are apart before and after meet on a host.
    Apart { group: GroupId, host: HostId },
    /// A guest is on a host that is neither an owner nor its goal.
    Owner { guest: GuestId, host: HostId },
    /// A rule that holds before and after does not hold.
    Rule { breach: &'static str, group: GroupId },
    /// A plan that exchanges rules breaks more hard rules than before the first step.
    Worse { broken: i64, before: i64 },
    /// A host has more migrations at once than it may have.
    Limit { host: HostId },
    /// A guest uses a host that is off, is booting, or is being shut down.
    Off { host: HostId, guest: GuestId },
    /// A guest stood still for longer than it may because too much of its memory stayed dirty.
    Downtime { guest: GuestId },
    /// Steps never started, or never ended.
    Stalled { steps: Vec<StepId> },
    /// In the end a guest is not where the plan says.
    NotArrived { guest: GuestId },
    /// In the end a host is not on or off as it should be.
    Power { host: HostId },
}

/// A time in which a rule did not hold that holds before and after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lapse {
    /// The group whose rule it is.
    pub group: GroupId,
    /// When the rule stopped holding, in seconds.
    pub start: f64,
    /// When the rule held again, in seconds.
    pub end: f64,
}

/// The times of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// When the step started, in seconds.
    pub start: f64,
    /// When the step ended, in seconds.
    pub end: f64,
}

/// The outcome of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// When all was done, in seconds.
    pub makespan: f64,
    /// The times of each step. `None`: the step never ended.
    pub steps: Vec<Option<Times>>,
    /// When migrations were done on average, in seconds.
    pub mean_completion: f64,
    /// The longest time that a guest stood still, in seconds.
    pub downtime_max: f64,
    /// The rules that the plan says it breaks for a while, as far as it did. The rules together and spread evenly are
    /// not checked on the way.
    pub lapses: Vec<Lapse>,
    /// The violations, with the time when each first happened.
    pub violations: Vec<(f64, Violation)>,
}

/// Simulates a plan.
///
/// # Panics
///
/// If [`Job::check`] fails, or a step names something that the job does not have.
pub fn simulate(job: &Job, plan: &Plan, start: Start) -> Outcome {
    let mut world = World::new(job, plan, start);
    world.look();
    loop {
        let started = world.start_steps();
        if !started && !world.advance() {
            break;
        }
        if std::mem::take(&mut world.changed) {
            world.share_links();
            world.look();
        }
    }
    world.outcome()
}

/// Data that is being sent, or something else that takes time.
struct Flow {
    step: StepId,
    path: Vec<NetworkDirection>,
    cap: f64,
    rate: f64,
    kind: Kind,
}

enum Kind {
    /// Waits until a time.
    Wait { until: f64 },
    /// The rest of a migration that was under way before: nothing more is written.
    Rest { left: f64 },
    /// A round: the guest runs.
    Round { number: u32, began: f64, left: f64 },
    /// The last round: the guest stands still.
    Stop { began: f64, left: f64 },
}

struct World<'a> {
    job: &'a Job,
    plan: &'a Plan,
    mode: Start,
    now: f64,
    times: Vec<Option<Times>>,
    started: Vec<Option<f64>>,
    flows: Vec<Flow>,
    /// The host where each guest runs, or will run once its step is done.
    at: Vec<HostId>,
    /// The other host that each guest uses: the target of its move.
    moving_to: Vec<HostId>,
    on: Vec<bool>,
    /// What was used on each host at first.
    before: Vec<Vec<i64>>,
    /// The rules that do not hold before or after, or that the plan says it breaks.
    broken: BTreeSet<(&'static str, GroupId)>,
    /// The rules that do not hold before or after.
    broken_at_ends: BTreeSet<(&'static str, GroupId)>,
    /// How many breaches of hard rules there may be, if the plan exchanges rules.
    broken_max: Option<i64>,
    /// The groups with a rule that does not hold now though it holds before and after, and since when.
    lapsing: BTreeMap<GroupId, f64>,
    lapses: Vec<Lapse>,
    /// Whether something started or ended since the last check.
    changed: bool,
    downtime_max: f64,
    seen: BTreeSet<Violation>,
    violations: Vec<(f64, Violation)>,
}

impl<'a> World<'a> {
    fn new(job: &'a Job, plan: &'a Plan, mode: Start) -> World<'a> {
        let guests = job.problem.guests.len();
        let mut world = World {
            job,
            plan,
            mode,
            now: 0.0,
            times: vec![None; plan.steps.len()],
            started: vec![None; plan.steps.len()],
            flows: Vec::new(),
            at: job.problem.initial.clone(),
            moving_to: vec![NOWHERE; guests],
            on: job.power.iter().map(|power| power.on).collect(),
            before: Vec::new(),
            broken: BTreeSet::new(),
            broken_at_ends: rules(job, &job.problem.initial).union(&rules(job, &job.goal)).copied().collect(),
            broken_max: None,
            lapsing: BTreeMap::new(),
            lapses: Vec::new(),
            changed: false,
            downtime_max: 0.0,
            seen: BTreeSet::new(),
            violations: Vec::new(),
        };
        world.broken_at_ends.extend(among_others(job));
        world.broken.clone_from(&world.broken_at_ends);
        world.broken.extend(plan.broken.iter().map(|group| ("need", *group)));
        let kinds = ["apart", "spread", "need", "among", "avoid"];
        world.broken.extend(plan.exchanged.iter().flat_map(|group| kinds.map(|kind| (kind, *group))));
        if !plan.exchanged.is_empty() {
            let begun = job.running.iter().filter_map(|of| Some((of.action.guest()?, of.action.ends().1)));
            let mut begin = job.problem.initial.clone();
            begun.for_each(|(guest, to)| begin[guest as usize] = to);
            world.broken_max = Some(broken(job, &job.problem.initial).max(broken(job, &begin)));
        }
        world.before = world.used();
        world
    }

    /// Starts all steps that may start. Returns whether any did.
    fn start_steps(&mut self) -> bool {
        let mut any = false;
        for id in 0..self.plan.steps.len() {
            let step = &self.plan.steps[id];
            let early = self.mode == Start::AsPlanned && step.start > self.now + TINY;
            let waits = step.waits.iter().any(|other| self.times[*other].is_none());
            if self.started[id].is_some() || early || waits {
                continue;
            }
            if let Some((guest, (from, _))) = step.action.guest().zip(Some(step.action.ends()))
                && (self.at[guest as usize] != from || self.moving_to[guest as usize] != NOWHERE)
            {
                self.tell(Violation::NotThere { step: id });
                continue;
            }
            self.start(id);
            any = true;
        }
        any
    }

    fn start(&mut self, id: StepId) {
        let step = &self.plan.steps[id];
        self.started[id] = Some(self.now);
        self.changed = true;
        let running = self.job.running.iter().find(|running| step.under_way && running.action == step.action);
        let (mut path, mut cap) = (Vec::new(), 0.0);
        let lasts = |seconds: f64| running.map_or(seconds, |running| running.seconds_left);
        let wait = |seconds: f64| Kind::Wait { until: self.now + lasts(seconds) };
        let kind = match step.action {
            Action::Boot { host } => wait(self.job.power[host as usize].boot_seconds),
            Action::Shutdown { host } => {
                self.on[host as usize] = false;
                wait(self.job.power[host as usize].shutdown_seconds)
            }
            Action::Start { guest, .. } => wait(self.job.start_seconds[guest as usize]),
            Action::Stop { guest, .. } => wait(self.job.stop_seconds[guest as usize]),
            Action::Migrate { guest, from, to } => {
                path = self.job.network.path(from, to);
                cap = step.rate;
                match running {
                    Some(running) => Kind::Rest { left: running.rate * running.seconds_left },
                    None => {
                        let left = self.job.traffic[guest as usize].memory_bytes;
                        Kind::Round { number: 1, began: self.now, left }
                    }
                }
            }
        };
        if let Some(guest) = step.action.guest() {
            self.moving_to[guest as usize] = step.action.ends().1;
        }
        self.flows.push(Flow { step: id, path, cap, rate: 0.0, kind });
    }

    /// Advances to the next event. Returns whether there is one.
    fn advance(&mut self) -> bool {
        let ends = self.flows.iter().map(|flow| match flow.kind {
            Kind::Wait { until } => until - self.now,
            Kind::Rest { left } | Kind::Round { left, .. } | Kind::Stop { left, .. } if left <= CRUMB => 0.0,
            Kind::Rest { left } | Kind::Round { left, .. } | Kind::Stop { left, .. } => left / flow.rate,
        });
        let planned = self.plan.steps.iter().zip(&self.started).filter(|(step, started)| {
            self.mode == Start::AsPlanned && started.is_none() && step.start > self.now + TINY
        });
        let next = ends.chain(planned.map(|(step, _)| step.start - self.now)).fold(f64::INFINITY, f64::min).max(0.0);
        if !next.is_finite() {
            return false;
        }
        self.now += next;
        for flow in &mut self.flows {
            if let Kind::Rest { left } | Kind::Round { left, .. } | Kind::Stop { left, .. } = &mut flow.kind {
                *left -= flow.rate * next;
            }
        }
        for flow in std::mem::take(&mut self.flows) {
            if let Some(flow) = self.go_on(flow) {
                self.flows.push(flow);
            }
        }
        true
    }

    /// Returns a flow's next state, or `None` if it has ended.
    fn go_on(&mut self, mut flow: Flow) -> Option<Flow> {
        let Action::Migrate { guest, .. } = self.plan.steps[flow.step].action else {
            let Kind::Wait { until } = flow.kind else { return Some(flow) };
            if until > self.now + TINY {
                return Some(flow);
            }
            self.end(flow.step);
            return None;
        };
        let traffic = &self.job.traffic[guest as usize];
        match flow.kind {
            Kind::Rest { left } | Kind::Round { left, .. } | Kind::Stop { left, .. } if left > CRUMB => Some(flow),
            Kind::Round { number, began, .. } => {
                let left = written(traffic, self.now - began);
                let stops = left <= traffic.downtime_seconds * flow.rate || number == ROUNDS_MAX;
                flow.kind = match stops {
                    true => Kind::Stop { began: self.now, left },
                    false => Kind::Round { number: number + 1, began: self.now, left },
                };
                Some(flow)
            }
            Kind::Stop { began, .. } => {
                let downtime = self.now - began;
                self.downtime_max = self.downtime_max.max(downtime);
                if downtime > traffic.downtime_seconds * (1.0 + TINY) + TINY {
                    self.tell(Violation::Downtime { guest });
                }
                self.end(flow.step);
                None
            }
            Kind::Rest { .. } | Kind::Wait { .. } => {
                self.end(flow.step);
                None
            }
        }
    }

    fn end(&mut self, id: StepId) {
        let action = self.plan.steps[id].action;
        self.changed = true;
        self.times[id] = self.started[id].map(|start| Times { start, end: self.now });
        if let Action::Boot { host } = action {
            self.on[host as usize] = true;
        }
        if let Some(guest) = action.guest() {
            self.at[guest as usize] = action.ends().1;
            self.moving_to[guest as usize] = NOWHERE;
        }
    }

    /// Gives each flow its rate: all rates grow alike until a channel is full, or a flow has as much as it may have.
    fn share_links(&mut self) {
        let mut free: Vec<Option<f64>> =
            (0..self.job.network.channels()).map(|channel| self.job.network.capacity(channel)).collect();
        let mut growing: Vec<usize> = (0..self.flows.len()).filter(|n| !self.flows[*n].path.is_empty()).collect();
        growing.iter().for_each(|n| self.flows[*n].rate = 0.0);
        while !growing.is_empty() {
            let mut users = vec![0u32; free.len()];
            for n in &growing {
                self.flows[*n].path.iter().for_each(|channel| users[*channel] += 1);
            }
            let of_channels = free.iter().zip(&users).filter(|(_, users)| **users > 0);
            let of_channels = of_channels.filter_map(|(free, users)| free.map(|free| free / f64::from(*users)));
            let of_flows = growing.iter().map(|n| self.flows[*n].cap - self.flows[*n].rate);
            let more = of_channels.chain(of_flows).fold(f64::INFINITY, f64::min).max(0.0);
            for n in &growing {
                self.flows[*n].rate += more;
                for channel in &self.flows[*n].path {
                    free[*channel] = free[*channel].map(|free| free - more);
                }
            }
            let is_full = |channel: &NetworkDirection| {
                let capacity = self.job.network.capacity(*channel);
                free[*channel].zip(capacity).is_some_and(|(free, most)| free <= most * 1e-12)
            };
            let flows = &self.flows;
            growing.retain(|n| {
                let flow = &flows[*n];
                flow.rate < flow.cap * (1.0 - 1e-12) && !flow.path.iter().any(is_full)
            });
        }
    }

    fn tell(&mut self, violation: Violation) {
        if self.seen.insert(violation.clone()) {
            self.violations.push((self.now, violation));
        }
    }

    /// Returns what is used on each host, by the guests there and by those on their way to it.
    fn used(&self) -> Vec<Vec<i64>> {
        let problem = &self.job.problem;
        let mut used = vec![vec![0; problem.resources.len()]; problem.hosts.len()];
        for (guest, hosts) in problem.guests.iter().zip(self.at.iter().zip(&self.moving_to)) {
            for host in [hosts.0, hosts.1].into_iter().filter(|host| **host != NOWHERE) {
                used[*host as usize].iter_mut().zip(&guest.demand).for_each(|(used, demand)| *used += demand);
            }
        }
        used
    }

    /// Checks all that has to hold at each moment.
    fn look(&mut self) {
        let mut wrong = Vec::new();
        self.look_at_room(&mut wrong);
        self.look_at_guests(&mut wrong);
        self.look_at_limits(&mut wrong);
        self.look_at_meetings(&mut wrong);
        let now_broken = rules(self.job, &self.at);
        if let Some(before) = self.broken_max {
            let broken = broken(self.job, &self.at);
            wrong.extend((broken > before).then_some(Violation::Worse { broken, before }));
        }
        let lapsed: BTreeSet<GroupId> = now_broken.difference(&self.broken_at_ends).map(|(_, group)| *group).collect();
        for group in &lapsed {
            self.lapsing.entry(*group).or_insert(self.now);
        }
        let over: Vec<GroupId> = self.lapsing.keys().copied().filter(|group| !lapsed.contains(group)).collect();
        for group in over {
            let start = self.lapsing.remove(&group).unwrap_or(self.now);
            self.lapses.push(Lapse { group, start, end: self.now });
        }
        wrong.extend(
            now_broken.difference(&self.broken).map(|(breach, group)| Violation::Rule { breach, group: *group }),
        );
        wrong.into_iter().for_each(|violation| self.tell(violation));
    }

    fn look_at_room(&self, wrong: &mut Vec<Violation>) {
        for (host, (used, before)) in (0..).zip(self.used().iter().zip(&self.before)) {
            for (resource, (used, before)) in used.iter().zip(before).enumerate() {
                let over = used - self.job.problem.hosts[host as usize].capacity[resource];
                if over > 0 && used > before {
                    wrong.push(Violation::Overload { host, resource, over });
                }
            }
        }
    }

    fn look_at_guests(&self, wrong: &mut Vec<Violation>) {
        let problem = &self.job.problem;
        let mut met: BTreeSet<(GroupId, HostId)> = BTreeSet::new();
        for (guest, of) in (0..).zip(&problem.guests) {
            let g = guest as usize;
            for host in [self.at[g], self.moving_to[g]].into_iter().filter(|host| *host != NOWHERE) {
                if !self.on[host as usize] {
                    wrong.push(Violation::Off { host, guest });
                }
                let is_end = host == self.job.goal[g] || host == problem.initial[g];
                if !is_end && !problem.may_own(guest, host) {
                    wrong.push(Violation::Owner { guest, host });
                }
                for &group in &of.groups {
                    let apart = problem.groups[group as usize].apart == Some(Strength::Hard);
                    if apart && !met.insert((group, host)) && !self.broken.contains(&("apart", group)) {
                        wrong.push(Violation::Apart { group, host });
                    }
                }
            }
        }
    }

    /// Checks that guests of groups that are apart do not even meet on the way.
    fn look_at_meetings(&self, wrong: &mut Vec<Violation>) {
        let problem = &self.job.problem;
        let areas = |group: GroupId, level: usize| -> BTreeSet<u32> {
            let of = problem.guests.iter().zip(self.at.iter().zip(&self.moving_to));
            let members = of.filter(|(guest, _)| guest.groups.contains(&group));
            let hosts = members.flat_map(|(_, (at, target))| [*at, *target]).filter(|host| *host != NOWHERE);
            hosts.map(|host| problem.hosts[host as usize].areas[level]).collect()
        };
        for (group, of) in (0..).zip(&problem.groups).filter(|(id, _)| !self.broken.contains(&("avoid", *id))) {
            for avoid in of.avoids.iter().filter(|avoid| avoid.strength == Strength::Hard) {
                if !areas(group, avoid.level).is_disjoint(&areas(avoid.of, avoid.level)) {
                    wrong.push(Violation::Rule { breach: "avoid", group });
                }
            }
        }
    }

    fn look_at_limits(&self, wrong: &mut Vec<Violation>) {
        let hosts = self.job.problem.hosts.len();
        let (mut incoming, mut outgoing) = (vec![0u32; hosts], vec![0u32; hosts]);
        for flow in &self.flows {
            if let Action::Migrate { from, to, .. } = self.plan.steps[flow.step].action {
                outgoing[from as usize] += 1;
                incoming[to as usize] += 1;
            }
        }
        for (host, limits) in self.job.limits.iter().enumerate() {
            let (incoming, outgoing) = (incoming[host], outgoing[host]);
            if incoming > limits.incoming || outgoing > limits.outgoing || incoming + outgoing > limits.total {
                wrong.push(Violation::Limit { host: host as HostId });
            }
        }
    }

    fn outcome(mut self) -> Outcome {
        let stalled: Vec<StepId> = (0..self.times.len()).filter(|step| self.times[*step].is_none()).collect();
        if !stalled.is_empty() {
            self.tell(Violation::Stalled { steps: stalled });
        }
        let left = |guest: GuestId| {
            self.plan.left.iter().any(|left| matches!(left, super::Left::Guest { guest: of, .. } if *of == guest))
        };
        let is_away = |guest: &GuestId| self.at[*guest as usize] != self.job.goal[*guest as usize] && !left(*guest);
        let away: Vec<GuestId> = (0..self.at.len() as GuestId).filter(is_away).collect();
        away.into_iter().for_each(|guest| self.tell(Violation::NotArrived { guest }));
        for host in 0..self.on.len() as HostId {
            let stays = self.plan.left.contains(&super::Left::Host { host });
            if self.on[host as usize] != self.job.power[host as usize].on_at_end && !stays {
                self.tell(Violation::Power { host });
            }
        }
        let migrations = self.plan.steps.iter().zip(&self.times).filter_map(|(step, times)| match step.action {
            Action::Migrate { .. } => times.map(|times| times.end),
            _ => None,
        });
        let count = migrations.clone().count().max(1) as f64;
        Outcome {
            makespan: self.times.iter().flatten().map(|times| times.end).fold(0.0, f64::max),
            mean_completion: migrations.sum::<f64>() / count,
            steps: self.times,
            downtime_max: self.downtime_max,
            lapses: self.lapses,
            violations: self.violations,
        }
    }
}

/// Returns what a guest has written after `seconds`.
fn written(traffic: &Traffic, seconds: f64) -> f64 {
    let hot = if seconds >= traffic.hot_seconds { 1.0 } else { seconds / traffic.hot_seconds };
    let rest = traffic.dirty_rate * (seconds - traffic.hot_seconds).max(0.0);
    (hot * traffic.hot_bytes + rest).min(traffic.memory_bytes)
}

/// Returns the groups that are among other sets after than before: this rule holds at the ends only.
fn among_others(job: &Job) -> impl Iterator<Item = (&'static str, GroupId)> {
    let groups = (0..).zip(&job.problem.groups).filter(|(id, group)| {
        let members = job.problem.guests.iter().zip(job.problem.initial.iter().zip(&job.goal));
        let members = members.filter(|(guest, _)| guest.groups.contains(id));
        let hosts: Vec<HostId> = members.flat_map(|(_, (from, to))| [*from, *to]).filter(|h| *h != NOWHERE).collect();
        !group.among.iter().any(|set| hosts.iter().all(|host| set.contains(*host)))
    });
    groups.map(|(id, _)| ("among", id))
}

/// Returns how many breaches of hard rules there are with guests where they run.
fn broken(job: &Job, at: &[HostId]) -> i64 {
    let hard = judge(&job.problem, at).hard;
    let is_at_ends_only = |breach: &Breach| matches!(breach, Breach::Together { .. } | Breach::Uneven { .. });
    let is_rule = |breach: &Breach| {
        !matches!(breach, Breach::Unplaced { .. } | Breach::NotOwner { .. } | Breach::Overload { .. })
    };
    hard.iter().filter(|breach| is_rule(breach) && !is_at_ends_only(breach)).map(Breach::count).sum()
}

/// Returns the hard rules that do not hold with guests where they run. The rules together and spread evenly hold at the
/// ends only.
fn rules(job: &Job, at: &[HostId]) -> BTreeSet<(&'static str, GroupId)> {
    if job.problem.groups.is_empty() {
        return BTreeSet::new();
    }
    let breaches = judge(&job.problem, at).hard.into_iter().filter_map(|breach| match breach {
        Breach::Apart { group, .. } => Some(("apart", group)),
        Breach::Spread { group, .. } => Some(("spread", group)),
        Breach::Need { group, .. } => Some(("need", group)),
        Breach::Among { group, .. } => Some(("among", group)),
        Breach::Avoid { group, .. } => Some(("avoid", group)),
        _ => None,
    });
    breaches.collect()
}
