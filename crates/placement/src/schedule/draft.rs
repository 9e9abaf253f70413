//! Makes a plan for an order of priorities: list scheduling. Whenever something ends, all tasks that can start do, in
//! the order of their priority.

use std::collections::BTreeMap;

use super::flight::{Flight, Task};
use super::guard::Guard;
use super::job::INSTANT;
use super::{Action, Job, Left, Obstacle, Step, StepReason};
use crate::problem::{GuestId, Host, HostId, NOWHERE};

/// The index of a task. The tasks of the job come first, then those of hops.
pub(super) type TaskId = usize;

/// Whether guests may step aside for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hops {
    Allowed,
    None,
}

/// What is the same for each order.
pub(super) struct Context<'a> {
    pub job: &'a Job,
    pub tasks: Vec<Task>,
    /// For each host, whether it has room for all guests that are to be there in the end and all that cannot leave it.
    pub holds_goal: Vec<bool>,
    hops: Hops,
    /// The state at the begin, with what is under way.
    start: Flight<'a>,
}

impl<'a> Context<'a> {
    pub fn new(job: &'a Job, guard: &'a Guard, hops: Hops) -> Context<'a> {
        let from = job.begin();
        let ends = (0..).zip(from.iter().zip(&job.goal)).filter(|(_, (from, to))| from != to);
        let tasks: Vec<Task> = ends.map(|(guest, (from, to))| Task::new(job, guest, *from, *to)).collect();
        let mut used = vec![vec![0; job.problem.resources.len()]; job.problem.hosts.len()];
        let ends = (0..).zip(&job.goal).map(|(guest, host)| (guest, *host));
        let stuck = tasks.iter().filter(|task: &&Task| !task.is_possible()).map(|task| (task.guest, task.from));
        for (guest, host) in ends.chain(stuck).filter(|(_, host)| *host != NOWHERE) {
            let demand = &job.problem.guests[guest as usize].demand;
            used[host as usize].iter_mut().zip(demand).for_each(|(used, demand)| *used += demand);
        }
        let fits = |(host, used): (&Host, &Vec<i64>)| used.iter().zip(&host.capacity).all(|(used, most)| used <= most);
        let holds_goal = job.problem.hosts.iter().zip(&used).map(fits).collect();
        Context { job, tasks, holds_goal, hops, start: Flight::new(job, guard) }
    }

    /// Returns a state with each guest where `at` says, and none on its way.
    pub fn flight(&self, at: &[HostId]) -> Flight<'a> {
        let mut flight = self.start.clone();
        (0..).zip(at).for_each(|(guest, host)| flight.settle(guest, *host));
        flight
    }

    /// Returns how many guests cannot get to where they are to be, whatever the others do.
    pub fn stuck(&self) -> usize {
        self.tasks.iter().filter(|task| !task.is_possible()).count()
    }
}

/// The order in which tasks start, and for each task its share: it may start with one of `share` equal parts of its
/// bottleneck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Priorities {
    pub order: Vec<TaskId>,
    pub shares: Vec<u8>,
    /// For how many tasks others step aside at once, when all tasks wait for each other. One hop may free a whole
    /// cycle, but several cycles take longer one after the other.
    pub hops_at_once: usize,
}

/// The result of an order.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// The steps, without what they wait for.
    pub steps: Vec<Step>,
    /// The host of each guest in the end.
    pub at: Vec<HostId>,
    /// The hosts that should be switched off and are not.
    pub open: Vec<HostId>,
    /// How many guests do not get to their goals, when all is done, and when steps end on average. Less is better, and
    /// the first number counts first.
    pub score: (usize, f64, f64),
}

impl Draft {
    pub fn new(job: &Job, steps: Vec<Step>, at: Vec<HostId>, open: Vec<HostId>) -> Draft {
        let left = at.iter().zip(&job.goal).filter(|(at, goal)| at != goal).count();
        let ends = steps.iter().map(|step| step.end);
        let (makespan, sum) = (ends.clone().fold(0.0, f64::max), ends.sum::<f64>());
        let score = (left, makespan, sum / steps.len().max(1) as f64);
        Draft { steps, at, open, score }
    }
}

/// A step under way, with the time when it ends.
struct Underway {
    end: f64,
    kind: Kind,
}

enum Kind {
    Task { task: Task, rate: f64 },
    Boot(HostId),
    Shutdown,
}

pub(super) struct Drafter<'a> {
    pub context: &'a Context<'a>,
    pub flight: Flight<'a>,
    shares: &'a [u8],
    pub hops_at_once: usize,
    now: f64,
    underway: Vec<Underway>,
    /// The tasks that have not started, by priority.
    pub pending: Vec<TaskId>,
    /// The tasks of hops.
    extra: Vec<Task>,
    /// How often each guest has stepped aside.
    pub hops: BTreeMap<GuestId, u32>,
    /// Tasks of guests that stepped aside, each with the task that has to start before.
    pub aside: BTreeMap<TaskId, TaskId>,
    /// What kept each task from starting the last time.
    why: BTreeMap<TaskId, StepReason>,
    /// Hosts that are yet to be switched off.
    closing: Vec<HostId>,
    steps: Vec<Step>,
}

/// Makes a plan for an order of all tasks.
pub(super) fn draft(context: &Context, priorities: &Priorities) -> Draft {
    let power = &context.job.power;
    let already = |host: HostId| context.job.running.iter().any(|of| of.action == Action::Shutdown { host });
    let closing = (0..).zip(power).filter(|(host, power)| power.on && !power.on_at_end && !already(*host));
    let mut drafter = Drafter {
        context,
        flight: context.start.clone(),
        shares: &priorities.shares,
        hops_at_once: priorities.hops_at_once,
        now: 0.0,
        underway: Vec::new(),
        pending: priorities.order.iter().copied().filter(|task| context.tasks[*task].is_possible()).collect(),
        extra: Vec::new(),
        hops: BTreeMap::new(),
        aside: BTreeMap::new(),
        why: BTreeMap::new(),
        closing: closing.map(|(host, _)| host).collect(),
        steps: Vec::new(),
    };
    drafter.begin();
    drafter.run();
    drafter.finish()
}

impl<'a> Drafter<'a> {
    pub fn task(&self, id: TaskId) -> &Task {
        match id.checked_sub(self.context.tasks.len()) {
            None => &self.context.tasks[id],
            Some(extra) => &self.extra[extra],
        }
    }

    /// Begins with what is under way, and boots the hosts that are to be on, all at once.
    fn begin(&mut self) {
        let job = self.context.job;
        for running in &job.running {
            let (action, rate) = (running.action, running.rate);
            let kind = match action {
                Action::Boot { host } => Kind::Boot(host),
                Action::Shutdown { .. } => Kind::Shutdown,
                Action::Migrate { guest, .. } | Action::Start { guest, .. } | Action::Stop { guest, .. } => {
                    let (from, to) = action.ends();
                    Kind::Task { task: Task::new(job, guest, from, to), rate }
                }
            };
            self.push(action, rate, running.seconds_left, None, kind);
            self.steps.last_mut().expect("it was pushed").under_way = true;
        }
        let booting = |host: HostId| job.running.iter().any(|of| of.action == Action::Boot { host });
        for (host, power) in (0..).zip(&job.power) {
            if !power.on && power.on_at_end && !booting(host) {
                self.push(Action::Boot { host }, 0.0, power.boot_seconds, None, Kind::Boot(host));
            }
        }
    }

    fn run(&mut self) {
        loop {
            self.start_all();
            if !self.underway.is_empty() {
                self.advance();
            } else if self.pending.is_empty() || !(self.context.hops == Hops::Allowed && self.hop() || self.release()) {
                return;
            }
        }
    }

    /// Starts all tasks that can start.
    fn start_all(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for &id in &pending {
            let rate = match self.aside.get(&id) {
                Some(_) => Err(Obstacle::Aside),
                None => self.rate(id),
            };
            match rate {
                Ok(rate) => self.start(id, rate),
                Err(obstacle) => {
                    self.why.insert(id, obstacle.why());
                    self.pending.push(id);
                }
            }
        }
        self.close();
    }

    /// Returns the rate at which a task can start now, or what is in its way.
    fn rate(&self, id: TaskId) -> Result<f64, Obstacle> {
        let task = self.task(id);
        if self.flight.settled(task.guest) != Some(task.from) {
            return Err(Obstacle::Aside);
        }
        self.flight.rate(task, self.shares.get(id).copied().unwrap_or(1))
    }

    pub fn start(&mut self, id: TaskId, rate: f64) {
        let task = self.task(id).clone();
        let seconds = task.seconds_at(self.context.job, rate);
        self.flight.start(&task, rate);
        self.aside.retain(|_, until| *until != id);
        let why = self.why.get(&id).copied();
        self.push(task.action(), rate, seconds, why, Kind::Task { task, rate });
    }

    /// Switches off the hosts that are empty and stay so.
    fn close(&mut self) {
        let empty = |drafter: &Self, host: HostId| drafter.flight.is_empty(host);
        let (now, later) = std::mem::take(&mut self.closing).into_iter().partition(|host| empty(self, *host));
        self.closing = later;
        let now: Vec<HostId> = now;
        for host in now {
            self.flight.switch_off(host);
            let why = (self.now > 0.0).then_some(StepReason::Power);
            let seconds = self.context.job.power[host as usize].shutdown_seconds;
            self.push(Action::Shutdown { host }, 0.0, seconds, why, Kind::Shutdown);
        }
    }

    fn push(&mut self, action: Action, rate: f64, seconds: f64, why: Option<StepReason>, kind: Kind) {
        let (start, end) = (self.now, self.now + seconds);
        self.steps.push(Step { action, start, end, rate, waits: Vec::new(), why, under_way: false });
        self.underway.push(Underway { end, kind });
    }

    /// Advances to the time when something ends next.
    fn advance(&mut self) {
        self.now = self.underway.iter().map(|of| of.end).fold(f64::INFINITY, f64::min).max(self.now);
        let until = self.now + INSTANT;
        let (ended, underway) = std::mem::take(&mut self.underway).into_iter().partition(|of| of.end <= until);
        self.underway = underway;
        let ended: Vec<Underway> = ended;
        for of in ended {
            match of.kind {
                Kind::Task { task, rate } => self.flight.arrive(&task, rate),
                Kind::Boot(host) => self.flight.switch_on(host),
                Kind::Shutdown => {}
            }
        }
    }

    /// Adds the task of a hop.
    pub fn add(&mut self, task: Task) -> TaskId {
        self.extra.push(task);
        self.context.tasks.len() + self.extra.len() - 1
    }

    /// Lets guests go back that stepped aside for a task that never starts.
    fn release(&mut self) -> bool {
        !std::mem::take(&mut self.aside).is_empty()
    }

    fn finish(self) -> Draft {
        let guests = 0..self.context.job.goal.len() as GuestId;
        let at = guests.map(|guest| self.flight.settled(guest).unwrap_or(NOWHERE)).collect();
        Draft::new(self.context.job, self.steps, at, self.closing)
    }
}

/// Returns what a draft does not do, with what is in the way in the end.
pub(super) fn left(job: &Job, guard: &Guard, draft: &Draft) -> Vec<Left> {
    let at = |guest: GuestId| draft.at[guest as usize];
    let leaving = (0..job.goal.len() as GuestId).filter(|guest| at(*guest) != job.goal[*guest as usize]);
    let leaving: Vec<GuestId> = leaving.collect();
    let hosts = draft.open.iter().map(|host| Left::Host { host: *host });
    if leaving.is_empty() {
        return hosts.collect();
    }
    let mut after = Job { running: Vec::new(), ..job.clone() };
    after.problem.initial.clone_from(&draft.at);
    for (host, power) in (0..).zip(&mut after.power) {
        power.on = power.on_at_end || draft.open.contains(&host);
    }
    let flight = Flight::new(&after, guard);
    let left = |guest: GuestId| {
        let (from, to) = (at(guest), job.goal[guest as usize]);
        let obstacle = flight.rate(&Task::new(job, guest, from, to), u8::MAX).err().unwrap_or(Obstacle::Aside);
        let behind = leaving.iter().copied().filter(|other| *other != guest && at(*other) == to && to != NOWHERE);
        Left::Guest { guest, from, to, obstacle, behind: behind.collect() }
    };
    leaving.iter().map(|guest| left(*guest)).chain(hosts).collect()
}
