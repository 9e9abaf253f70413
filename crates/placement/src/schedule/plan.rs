//! The result of planning: steps, and which step waits for which.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::action::Action;
use super::job::INSTANT;
use super::{Job, NetworkDirection};
use crate::bits::Bits;
use crate::problem::{GroupId, GuestId, HostId, NOWHERE};

/// The index of a step in [`Plan::steps`].
pub type StepId = usize;

/// What kept a step from starting earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepReason {
    /// Its target had too little memory, or too little of another resource.
    Memory,
    /// A rule was in the way.
    Rule,
    /// A host had its most migrations at once.
    Limit,
    /// Other migrations used the links.
    Bandwidth,
    /// Its host was off. For a shutdown: the host was not empty.
    Power,
}

/// Why something cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Obstacle {
    /// The target has too little of a resource.
    Room {
        /// The index in [`Problem::resources`](crate::problem::Problem::resources).
        resource: usize,
        /// How much is missing, in the resource's unit.
        short: i64,
    },
    /// A rule of a group would not hold on the way.
    Rule {
        /// The group whose rule it is.
        group: GroupId,
    },
    /// A host has as many migrations as it is allowed.
    Limit {
        /// The host that is at its limit.
        host: HostId,
    },
    /// The links have too little left. If that is permanent, the dirty memory never becomes small enough.
    Bandwidth {
        /// The lowest rate that it needs, in bytes per second. `None`: no rate is enough.
        needs: Option<f64>,
        /// The rate that the links have left, in bytes per second.
        has: f64,
    },
    /// A host is off.
    Off {
        /// The host that is off.
        host: HostId,
    },
    /// A guest that stepped aside waits until another guest has made use of the room.
    Aside,
}

impl Obstacle {
    /// Returns the obstacle as the reason of a step.
    pub fn why(self) -> StepReason {
        match self {
            Obstacle::Room { .. } => StepReason::Memory,
            Obstacle::Rule { .. } | Obstacle::Aside => StepReason::Rule,
            Obstacle::Limit { .. } => StepReason::Limit,
            Obstacle::Bandwidth { .. } => StepReason::Bandwidth,
            Obstacle::Off { .. } => StepReason::Power,
        }
    }
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// What the step does.
    pub action: Action,
    /// When the step should start, in seconds from now.
    pub start: f64,
    /// When the step should have ended, in seconds from now.
    pub end: f64,
    /// The most that a migration sends, in bytes per second. 0 for other actions.
    pub rate: f64,
    /// The steps that have to be done before. Those for which these steps wait themselves are left out.
    pub waits: Vec<StepId>,
    /// What kept the step from starting earlier. `None`: nothing did.
    pub why: Option<StepReason>,
    /// Whether the step was under way before.
    pub under_way: bool,
}

/// Something that the plan does not do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Left {
    /// A guest does not get to where it is to be.
    Guest {
        /// The guest that does not get there.
        guest: GuestId,
        /// The host where it stays.
        from: HostId,
        /// The host where it should be.
        to: HostId,
        /// What keeps it from there.
        obstacle: Obstacle,
        /// The guests on the target that should leave it and do not either. If such chains close, they are a cycle.
        behind: Vec<GuestId>,
    },
    /// A host is not switched off because guests stay on it.
    Host {
        /// The host that stays on.
        host: HostId,
    },
}

/// A plan: what is done when.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// The steps, by their start.
    pub steps: Vec<Step>,
    /// What the plan does not do.
    pub left: Vec<Left>,
    /// The groups whose needs do not hold for a while on the way, though they hold before and after. No order was found
    /// in which they hold.
    pub broken: Vec<GroupId>,
    /// The groups whose rules may not hold for a while on the way, though they hold before and after. No order was
    /// found in which they hold. At no moment are more hard rules broken than before the first step.
    pub exchanged: Vec<GroupId>,
    /// If something is left: groups whose rules would allow more to be done if more of them were broken for a while
    /// than are now.
    pub helps: Vec<GroupId>,
}

impl Plan {
    /// Returns when all should be done, in seconds from now.
    pub fn makespan(&self) -> f64 {
        self.steps.iter().map(|step| step.end).fold(0.0, f64::max)
    }

    /// Returns whether the plan brings all guests to where they are to be.
    pub fn is_complete(&self) -> bool {
        self.left.is_empty()
    }
}

/// Where steps can be in each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// On hosts, and in the rules of groups.
    Hosts,
    /// Also on links and switches that all steps together could fill.
    Links,
}

/// Returns which steps each step has to wait for, by when they start and end: those that end before it starts and share
/// something with it.
///
/// With links this also suffices for every other timing. Of the steps that have started, take the one that starts last
/// by the plan. All steps that end before that by the plan are done, so no more is used of a host or a channel than was
/// planned at that time.
pub fn waits(job: &Job, steps: &[Step], at: Waits) -> Vec<Vec<StepId>> {
    let ordered = ordered_groups(job);
    waits_for(job, steps, at, steps.iter().map(|step| shares(job, &ordered, step)).collect())
}

/// Returns the same with links, where guests with hard rules move one at a time.
pub(super) fn waits_one_by_one(job: &Job, steps: &[Step]) -> Vec<Vec<StepId>> {
    let ordered = ordered_groups(job);
    let mut shared: Vec<BTreeSet<Shared>> = steps.iter().map(|step| shares(job, &ordered, step)).collect();
    let ruled = super::guard::ruled(&job.problem);
    for (step, shared) in steps.iter().zip(&mut shared) {
        if step.action.guest().is_some_and(|guest| ruled[guest as usize]) {
            shared.insert(Shared::Rules);
        }
    }
    waits_for(job, steps, Waits::Links, shared)
}

/// Returns which steps of a plan have to wait for others where whoever carries the plan out sees to links and limits by
/// what is under way: only those that need room which another makes, or that rules put in an order.
///
/// This suffices for every other timing. Of the steps to a host that have started, take the one that starts last by the
/// plan. All that leave the host before by the plan have left it, so no more is used of the host than was planned then.
pub fn waits_for_room(job: &Job, plan: &Plan) -> Vec<Vec<StepId>> {
    let steps = &plan.steps;
    if !plan.exchanged.is_empty() {
        return steps.iter().map(|step| step.waits.clone()).collect();
    }
    let ordered = ordered_groups(job);
    let groups: Vec<BTreeSet<Shared>> = steps
        .iter()
        .map(|step| shares(job, &ordered, step).into_iter().filter(|of| matches!(of, Shared::Group(_))).collect())
        .collect();
    latest_of(steps, |step, other| {
        let (late, early) = (&steps[step].action, &steps[other].action);
        match (late.guest(), early.guest()) {
            (Some(guest), Some(before)) => {
                let (to, left) = (late.ends().1, early.ends().0);
                guest == before || (to == left && to != NOWHERE) || !groups[step].is_disjoint(&groups[other])
            }
            // A host is switched on before, or off after.
            _ => late.hosts().any(|host| early.hosts().any(|of| of == host)),
        }
    })
}

fn waits_for(job: &Job, steps: &[Step], at: Waits, shared: Vec<BTreeSet<Shared>>) -> Vec<Vec<StepId>> {
    let shared = without_idle_channels(job, steps, shared, at);
    latest_of(steps, |step, other| !shared[step].is_disjoint(&shared[other]))
}

/// Returns for each step those that end before it starts and are related to it, without those for which these wait.
fn latest_of(steps: &[Step], is_related: impl Fn(StepId, StepId) -> bool) -> Vec<Vec<StepId>> {
    let mut order: Vec<StepId> = (0..steps.len()).collect();
    order.sort_by(|a, b| steps[*a].start.total_cmp(&steps[*b].start).then(a.cmp(b)));
    let mut before: Vec<Bits> = vec![Bits::default(); steps.len()];
    let mut waits = vec![Vec::new(); steps.len()];
    for (place, &step) in order.iter().enumerate() {
        let mut covered = Bits::default();
        // The latest steps come first: the steps that they wait for themselves need not be named.
        for &other in order[..place].iter().rev() {
            let ends = steps[other].end <= steps[step].start + INSTANT;
            if !ends || covered.contains(other as u32) || !is_related(step, other) {
                continue;
            }
            waits[step].push(other);
            covered.insert(other as u32);
            before[other].iter().for_each(|earlier| covered.insert(earlier));
        }
        waits[step].sort_unstable();
        before[step] = covered;
    }
    waits
}

/// Something that several steps share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shared {
    Host(HostId),
    Channel(NetworkDirection),
    Group(GroupId),
    Rules,
}

/// Returns for each group whether it has rules about more than one host.
fn ordered_groups(job: &Job) -> Vec<bool> {
    let groups = &job.problem.groups;
    let mut ordered: Vec<bool> = groups
        .iter()
        .map(|group| group.spread.is_some() || !group.needs.is_empty() || !group.among.is_empty())
        .collect();
    groups.iter().flat_map(|group| &group.needs).for_each(|need| ordered[need.of as usize] = true);
    for (id, group) in groups.iter().enumerate() {
        for avoid in &group.avoids {
            (ordered[id], ordered[avoid.of as usize]) = (true, true);
        }
    }
    ordered
}

fn shares(job: &Job, ordered: &[bool], step: &Step) -> BTreeSet<Shared> {
    let mut shared: BTreeSet<Shared> = step.action.hosts().map(Shared::Host).collect();
    if let Action::Migrate { from, to, .. } = step.action {
        shared.extend(job.network.path(from, to).into_iter().map(Shared::Channel));
    }
    if let Some(guest) = step.action.guest() {
        let groups = job.problem.guests[guest as usize].groups.iter().filter(|group| ordered[**group as usize]);
        for &group in groups {
            shared.insert(Shared::Group(group));
            let of = &job.problem.groups[group as usize];
            shared.extend(of.needs.iter().map(|need| Shared::Group(need.of)));
            shared.extend(of.avoids.iter().map(|avoid| Shared::Group(avoid.of)));
        }
    }
    shared
}

/// Leaves out the channels that all steps together would not fill, or all channels.
fn without_idle_channels(
    job: &Job,
    steps: &[Step],
    mut shared: Vec<BTreeSet<Shared>>,
    at: Waits,
) -> Vec<BTreeSet<Shared>> {
    let mut load = vec![0.0; job.network.channels()];
    for (step, shared) in steps.iter().zip(&shared) {
        for of in shared {
            if let Shared::Channel(channel) = of {
                load[*channel] += step.rate;
            }
        }
    }
    let is_full = |channel: NetworkDirection| {
        at == Waits::Links && job.network.capacity(channel).is_some_and(|most| load[channel] > most)
    };
    for shared in &mut shared {
        shared.retain(|of| !matches!(of, Shared::Channel(channel) if !is_full(*channel)));
    }
    shared
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Room { resource, short } => write!(f, "there are {short} too few of resource {resource}"),
            Obstacle::Rule { group } => write!(f, "a rule of group {group} would not hold on the way"),
            Obstacle::Limit { host } => write!(f, "no more migrations at once are allowed on host {host}"),
            Obstacle::Bandwidth { needs: Some(needs), has } => {
                write!(f, "it needs {:.1} MB/s, and the links have {:.1}", needs / 1e6, has / 1e6)
            }
            Obstacle::Bandwidth { needs: None, has } => {
                write!(f, "it writes too fast for the {:.1} MB/s of the links", has / 1e6)
            }
            Obstacle::Off { host } => write!(f, "host {host} is off"),
            Obstacle::Aside => write!(f, "it stepped aside for another"),
        }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Host { host } => write!(f, "host {host} stays on, since there are guests on it"),
            Left::Guest { guest, from, to, obstacle, behind } => {
                let place = |host: HostId| if host == NOWHERE { "nowhere".into() } else { format!("host {host}") };
                write!(f, "guest {guest} stays {}, and not {}: {obstacle}", place(*from), place(*to))?;
                if !behind.is_empty() {
                    write!(f, "; guests {behind:?} should leave before")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, step) in self.steps.iter().enumerate() {
            write!(f, "{id}: {:.1} to {:.1} s: {}", step.start, step.end, step.action)?;
            if step.rate > 0.0 && step.rate.is_finite() {
                write!(f, " at {:.1} MB/s", step.rate / 1e6)?;
            }
            if !step.waits.is_empty() {
                write!(f, ", after {:?}", step.waits)?;
            }
            if let Some(why) = step.why {
                write!(f, " ({})", format!("{why:?}").to_lowercase())?;
            }
            writeln!(f)?;
        }
        self.left.iter().try_for_each(|left| writeln!(f, "not done: {left}"))
    }
}
