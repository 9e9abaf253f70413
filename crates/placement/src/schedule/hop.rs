//! Chooses the guests that step aside when nothing is under way and all tasks wait for each other.

use std::collections::BTreeMap;

use super::draft::{Drafter, TaskId};
use super::flight::{Task, seconds};
use crate::problem::{GuestId, HostId, NOWHERE};

/// The most times that a guest steps aside.
const HOPS_MAX: u32 = 3;

/// A guest that goes to another host meanwhile, and how many more seconds of traffic that costs.
#[derive(Clone, Copy, Debug)]
struct Hop {
    guest: GuestId,
    to: HostId,
    seconds: f64,
}

impl Drafter<'_> {
    /// Lets guests step aside for as many tasks at once as the priorities say: those that are cheapest among all hops
    /// that let a task start. Returns whether there are any.
    pub(super) fn hop(&mut self) -> bool {
        let mut on = vec![Vec::new(); self.context.job.problem.hosts.len()];
        for guest in (0..self.context.job.goal.len() as GuestId)
            .filter(|guest| self.hops.get(guest).is_none_or(|hops| *hops < HOPS_MAX))
        {
            if let Some(host) = self.flight.settled(guest).filter(|host| *host != NOWHERE) {
                on[host as usize].push(guest);
            }
        }
        let mut known = BTreeMap::new();
        let mut found: Vec<(f64, TaskId, Vec<Hop>)> = Vec::new();
        for id in self.pending.clone() {
            if let Some(hops) = self.hops_for(id, &on, &mut known) {
                found.push((hops.iter().map(|hop| hop.seconds).sum(), id, hops));
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut helped = 0;
        for (_, id, hops) in found {
            // The guest of the task may itself have stepped aside by now.
            let Some(place) = self.pending.iter().position(|other| *other == id) else { continue };
            if hops.iter().filter(|hop| self.step_aside(**hop, id)).count() > 0 {
                self.pending[..=place].rotate_right(1);
                helped += 1;
            }
            if helped == self.hops_at_once {
                break;
            }
        }
        helped > 0
    }

    /// Returns the guests that could leave a task's target so that the task can start: the cheapest that is enough
    /// alone, or several, the cheapest first.
    fn hops_for(
        &mut self,
        id: TaskId,
        on: &[Vec<GuestId>],
        known: &mut BTreeMap<GuestId, Option<Hop>>,
    ) -> Option<Vec<Hop>> {
        let task = self.task(id).clone();
        if task.to == NOWHERE || self.flight.settled(task.guest) != Some(task.from) || self.lets(&task) {
            return None;
        }
        // A guest that is where it is to be has to get back there.
        let returns = self.context.holds_goal[task.to as usize];
        let goal = &self.context.job.goal;
        let guests = on[task.to as usize].iter().filter(|guest| returns || goal[**guest as usize] != task.to);
        let mut hops: Vec<Hop> =
            guests.filter_map(|guest| *known.entry(*guest).or_insert_with(|| self.cheapest(*guest, task.to))).collect();
        hops.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.guest.cmp(&b.guest)));
        for hop in &hops {
            self.flight.settle(hop.guest, hop.to);
            let lets = self.lets(&task);
            self.flight.settle(hop.guest, task.to);
            if lets {
                return Some(vec![*hop]);
            }
        }
        self.several(&task, &hops)
    }

    fn several(&mut self, task: &Task, hops: &[Hop]) -> Option<Vec<Hop>> {
        let mut gone = Vec::new();
        for hop in hops {
            // The host where it could go may be full by now.
            let Some(hop) = self.cheapest(hop.guest, task.to) else { continue };
            self.flight.settle(hop.guest, hop.to);
            gone.push(hop);
            if self.lets(task) {
                break;
            }
        }
        let lets = self.lets(task);
        gone.iter().for_each(|hop| self.flight.settle(hop.guest, task.to));
        lets.then_some(gone)
    }

    fn lets(&self, task: &Task) -> bool {
        self.flight.room(task.guest, task.from, task.to).is_ok()
    }

    /// Returns the cheapest place for a guest meanwhile.
    fn cheapest(&self, guest: GuestId, from: HostId) -> Option<Hop> {
        let job = self.context.job;
        let goal = job.goal[guest as usize];
        let seconds = |from, to| if from == to { 0.0 } else { seconds(job, guest, from, to) };
        let direct = seconds(from, goal);
        let mut best: Option<Hop> = None;
        for to in 0..job.problem.hosts.len() as HostId {
            let serves = to != from
                && to != goal
                && job.power[to as usize].on_at_end
                && job.problem.may_own(guest, to)
                && self.flight.room(guest, from, to).is_ok();
            if !serves {
                continue;
            }
            let more = seconds(from, to) + seconds(to, goal) - direct;
            if more.is_finite() && best.is_none_or(|best| more < best.seconds) {
                best = Some(Hop { guest, to, seconds: more });
            }
        }
        best
    }

    /// Starts a hop, unless links or limits prevent it. The guest goes on from there once the task `until` has started.
    fn step_aside(&mut self, hop: Hop, until: TaskId) -> bool {
        let job = self.context.job;
        let Some(from) = self.flight.settled(hop.guest) else { return false };
        let task = Task::new(job, hop.guest, from, hop.to);
        let Ok(rate) = self.flight.rate(&task, 4) else { return false };
        let aside = self.add(task);
        *self.hops.entry(hop.guest).or_default() += 1;
        let planned = self.pending.iter().position(|id| self.task(*id).guest == hop.guest);
        let goal = job.goal[hop.guest as usize];
        let onward = self.add(Task::new(job, hop.guest, hop.to, goal));
        match planned {
            Some(place) => self.pending[place] = onward,
            None => self.pending.push(onward),
        }
        // A guest that goes back would be in the way again.
        if goal == from {
            self.aside.insert(onward, until);
        }
        self.start(aside, rate);
        true
    }
}
