//! Finds a plan by trying all ways, one guest at a time, where list scheduling leaves some guests behind: few guests on
//! few hosts with hardly any room. The search is A* (Hart, Nilsson, Raphael: "A formal basis for the heuristic
//! determination of minimum cost paths", IEEE TSSC 4, 1968), which finds the plan with the least traffic. Steps that
//! share nothing need not wait for each other afterwards ([`waits`](super::waits())).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::draft::{Context, Draft};
use super::flight::Task;
use super::{Action, Job, Step};
use crate::problem::{GuestId, HostId, NOWHERE};

/// The most moves that are tried: some tenths of a second's work. A tenth of them may be from one placement.
const LOOKS_MAX: usize = 200_000;
/// The most entries, over the guests of all placements, that are kept: 16 MB.
const KNOWN_MAX: usize = 4_000_000;
/// Costs are whole microseconds. Each move counts one more, so that no move is made for nothing.
const MICROSECOND: f64 = 1e-6;
/// The cost of a move is at most this, a year, so that no sum of costs overflows.
const COST_MAX: f64 = 3e13;

/// A placement, and how it is reached.
struct Known {
    at: Vec<HostId>,
    cost: u64,
    /// The placement before, and the guest that moved from there.
    before: Option<(usize, GuestId)>,
}

/// Returns a draft that brings all guests to their goals that can get there at all. Returns `None` if there is no such
/// draft, or none was found.
pub(super) fn detour(context: &Context) -> Option<Draft> {
    let job = context.job;
    let has_power = |power: &super::Power| power.on && power.on_at_end;
    let is_small = job.goal.len() * job.problem.hosts.len() <= LOOKS_MAX / 10;
    if !is_small || !job.running.is_empty() || !job.power.iter().all(has_power) {
        return None;
    }
    let mut goal = job.goal.clone();
    let stuck = context.tasks.iter().filter(|task| !task.is_possible());
    stuck.for_each(|task| goal[task.guest as usize] = task.from);
    let mut costs = Costs { job, known: BTreeMap::new() };
    let first = job.problem.initial.clone();
    let mut open = BinaryHeap::from([Reverse((costs.rest(&first, &goal), 0))]);
    let mut ids = BTreeMap::from([(first.clone(), 0)]);
    let mut known = vec![Known { at: first, cost: 0, before: None }];
    let mut looks = 0;
    while let Some(Reverse((least, id))) = open.pop() {
        if known[id].at == goal {
            return Some(draft(context, &known, id));
        }
        // A cheaper way to this placement was found since.
        if least > known[id].cost + costs.rest(&known[id].at, &goal) {
            continue;
        }
        let flight = context.flight(&known[id].at);
        for guest in 0..goal.len() as GuestId {
            let from = known[id].at[guest as usize];
            for to in places(context, &goal, guest, from) {
                looks += 1;
                let Some(cost) = costs.of(guest, from, to).filter(|_| flight.room(guest, from, to).is_ok()) else {
                    continue;
                };
                let mut at = known[id].at.clone();
                at[guest as usize] = to;
                let cost = known[id].cost + cost;
                let next = *ids.entry(at.clone()).or_insert(known.len());
                if next == known.len() {
                    known.push(Known { at, cost, before: Some((id, guest)) });
                } else if cost < known[next].cost {
                    (known[next].cost, known[next].before) = (cost, Some((id, guest)));
                } else {
                    continue;
                }
                open.push(Reverse((cost + costs.rest(&known[next].at, &goal), next)));
            }
        }
        if looks > LOOKS_MAX || known.len() * goal.len() > KNOWN_MAX {
            return None;
        }
    }
    None
}

/// The costs of moves, each computed once.
struct Costs<'a> {
    job: &'a Job,
    known: BTreeMap<(GuestId, HostId, HostId), Option<u64>>,
}

impl Costs<'_> {
    /// Returns the cost of a move, or `None` if it cannot be done.
    fn of(&mut self, guest: GuestId, from: HostId, to: HostId) -> Option<u64> {
        *self.known.entry((guest, from, to)).or_insert_with(|| {
            let task = Task::new(self.job, guest, from, to);
            task.is_possible().then(|| 1 + (task.seconds / MICROSECOND).min(COST_MAX) as u64)
        })
    }

    /// Returns a lower bound of what is still to be done. A guest that cannot get to its goal directly has at least one
    /// move to make.
    fn rest(&mut self, at: &[HostId], goal: &[HostId]) -> u64 {
        let away = (0..).zip(at.iter().zip(goal)).filter(|(_, (at, goal))| at != goal);
        away.map(|(guest, (at, goal))| self.of(guest, *at, *goal).unwrap_or(1)).sum()
    }
}

/// Returns where a guest may go. A guest that is nowhere may only go to its goal, and no guest is stopped on the way.
fn places(context: &Context, goal: &[HostId], guest: GuestId, from: HostId) -> impl Iterator<Item = HostId> {
    let goal = goal[guest as usize];
    let hosts = if from == NOWHERE || goal == NOWHERE { 0 } else { context.job.problem.hosts.len() as HostId };
    let aside = (0..hosts).filter(move |host| *host != goal && context.job.problem.may_own(guest, *host));
    std::iter::once(goal).chain(aside).filter(move |host| *host != from)
}

/// Returns the steps that lead to a placement, one after the other.
fn draft(context: &Context, known: &[Known], id: usize) -> Draft {
    let mut moves = Vec::new();
    let mut of = &known[id];
    while let Some((before, guest)) = of.before {
        moves.push((guest, known[before].at[guest as usize], of.at[guest as usize]));
        of = &known[before];
    }
    let (job, mut now, mut steps) = (context.job, 0.0, Vec::new());
    for (guest, from, to) in moves.into_iter().rev() {
        let task = Task::new(job, guest, from, to);
        let rate = if matches!(task.action(), Action::Migrate { .. }) { task.bottleneck } else { 0.0 };
        let end = now + task.seconds;
        steps.push(Step {
            action: task.action(),
            start: now,
            end,
            rate,
            waits: Vec::new(),
            why: None,
            under_way: false,
        });
        now = end;
    }
    Draft::new(job, steps, known[id].at.clone(), Vec::new())
}
