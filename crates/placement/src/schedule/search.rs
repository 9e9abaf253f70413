//! Searches for the best order of priorities: tries some that are known to be good, and changes of the best of them.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::detour::detour;
use super::draft::{Context, Draft, Hops, Priorities, TaskId, draft, left};
use super::guard::{Guard, Loose, broken};
use super::plan::waits_one_by_one;
use super::{Job, Left, Obstacle, Plan, Step, Waits, waits};
use crate::dice::Dice;
use crate::problem::GroupId;

/// A change may be as bad as what was best this many changes before (late acceptance hill climbing: Burke and Bykov,
/// "The late acceptance hill-climbing heuristic", EJOR 258, 2017).
const LATE_ACCEPTANCE_LENGTH: usize = 50;
/// The shares of a link with which a migration may start: one of this many equal parts.
const LINK_SHARES: [u8; 4] = [1, 2, 3, 4];
/// For how many tasks others step aside at once.
const HOPS: [usize; 4] = [1, 2, 4, usize::MAX];

pub(super) fn search(job: &Job, seed: u64, budget: u64) -> Plan {
    let mut way = Way::new(job, Loose::default(), seed, budget);
    let needs = needs_in_the_way(&way.guard, &way.left(job));
    if !needs.is_empty() {
        way.take(Way::new(job, Loose { needs, ..Loose::default() }, seed, budget));
    }
    let mut helps = Vec::new();
    if way.is_stopped_by_rules(job) {
        // No more is broken at any moment than now, with or without what is under way.
        let broken_max = broken(&job.problem, &job.problem.initial).max(broken(&job.problem, &job.begin()));
        if broken_max > 0 {
            way.take(way.exchanging(job, broken_max, seed, budget));
        }
        if way.is_stopped_by_rules(job) {
            let freed = way.exchanging(job, i64::MAX, seed, budget);
            if freed.draft.score.0 < way.draft.score.0 {
                helps.extend(freed.loose.exchanged);
            }
        }
    }
    let Way { loose, guard, draft: mut best } = way;
    // A guest that stepped aside and cannot go on stays where it was instead. In the last try no guest steps aside.
    let begin = job.begin();
    let mut goal = job.goal.clone();
    for hops in [Hops::Allowed, Hops::Allowed, Hops::None] {
        let ends = (0..).zip(best.at.iter().zip(begin.iter().zip(&job.goal)));
        let astray = ends.filter(|(_, (at, (begin, goal)))| at != begin && at != goal).map(|(guest, _)| guest);
        let astray: Vec<usize> = astray.collect();
        if astray.is_empty() {
            break;
        }
        astray.iter().for_each(|guest| goal[*guest] = begin[*guest]);
        best = self::best(&Job { goal: goal.clone(), ..job.clone() }, &guard, hops, seed, budget);
    }
    let left = left(job, &guard, &best);
    finish(job, best, left, loose, helps)
}

/// The most rounds in which further rules are found to be in the way.
const EXCHANGES_MAX: usize = 4;

/// The result of keeping some rules on the way and not others.
struct Way {
    loose: Loose,
    guard: Guard,
    draft: Draft,
}

impl Way {
    fn new(job: &Job, loose: Loose, seed: u64, budget: u64) -> Way {
        let guard = Guard::new(job, &loose);
        let draft = best(job, &guard, Hops::Allowed, seed, budget);
        Way { loose, guard, draft }
    }

    /// Takes another result if it brings more guests to where they are to be.
    fn take(&mut self, other: Way) {
        if other.draft.score.0 < self.draft.score.0 {
            *self = other;
        }
    }

    fn left(&self, job: &Job) -> Vec<Left> {
        left(job, &self.guard, &self.draft)
    }

    fn is_stopped_by_rules(&self, job: &Job) -> bool {
        !rules_in_the_way(&self.guard, &self.left(job)).is_empty()
    }

    /// Returns the result if the rules that are in the way may be broken for a while, though no more than `broken_max`
    /// at once. Rules that are in the way of that may be broken next.
    fn exchanging(&self, job: &Job, broken_max: i64, seed: u64, budget: u64) -> Way {
        let mut exchanged = rules_in_the_way(&self.guard, &self.left(job));
        let mut round = 1;
        loop {
            let loose = Loose { exchanged: exchanged.clone(), broken_max, ..self.loose.clone() };
            let way = Way::new(job, loose, seed, budget);
            let more = rules_in_the_way(&way.guard, &way.left(job));
            if more.is_subset(&exchanged) || round == EXCHANGES_MAX {
                return way;
            }
            exchanged.extend(more);
            round += 1;
        }
    }
}

/// Returns the groups whose rules keep guests from where they are to be.
fn rules_in_the_way(guard: &Guard, left: &[Left]) -> BTreeSet<GroupId> {
    let in_the_way = |left: &Left| match left {
        Left::Guest { obstacle: Obstacle::Rule { group }, .. } => guard.concerning(*group).collect(),
        _ => Vec::new(),
    };
    left.iter().flat_map(in_the_way).collect()
}

/// Returns the groups whose needs keep guests from where they are to be.
fn needs_in_the_way(guard: &Guard, left: &[Left]) -> BTreeSet<GroupId> {
    let in_the_way = |left: &Left| match left {
        Left::Guest { obstacle: Obstacle::Rule { group }, .. } => guard.needing(*group).collect(),
        _ => Vec::new(),
    };
    left.iter().flat_map(in_the_way).collect()
}

/// Returns the best order that is found.
fn best(job: &Job, guard: &Guard, hops: Hops, seed: u64, budget: u64) -> Draft {
    let context = Context::new(job, guard, hops);
    let (mut at, mut best) = first(&context);
    let mut best_score = best.score;
    let mut score = best_score;
    let mut late = [score; LATE_ACCEPTANCE_LENGTH];
    let dice = &mut Dice::new(seed);
    let rounds = if at.order.is_empty() { 0 } else { budget };
    for round in 0..rounds {
        let slot = (round % LATE_ACCEPTANCE_LENGTH as u64) as usize;
        let changed = change(&at, dice);
        let tried = draft(&context, &changed);
        if order(tried.score, score).is_le() || order(tried.score, late[slot]).is_le() {
            (at, score) = (changed, tried.score);
            if order(score, best_score).is_lt() {
                (best, best_score) = (tried, score);
            }
        }
        if order(score, late[slot]).is_lt() {
            late[slot] = score;
        }
    }
    let is_complete = best.score.0 == context.stuck();
    if hops == Hops::Allowed && !is_complete { detour(&context).unwrap_or(best) } else { best }
}

fn order(a: (usize, f64, f64), b: (usize, f64, f64)) -> Ordering {
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2))
}

/// Returns the best of some fixed orders: tasks on the busiest link first, the longest first, and those first that free
/// most for others.
fn first(context: &Context) -> (Priorities, Draft) {
    let tasks = &context.tasks;
    let hosts = context.job.problem.hosts.len();
    let (mut out, mut into) = (vec![0.0; hosts], vec![0.0; hosts]);
    let mut wanted = vec![0i64; hosts];
    for task in tasks {
        if let Some(seconds) = out.get_mut(task.from as usize) {
            *seconds += task.seconds;
        }
        if let Some(seconds) = into.get_mut(task.to as usize) {
            *seconds += task.seconds;
            wanted[task.to as usize] += 1;
        }
    }
    let of = |all: &[f64], host: u32| all.get(host as usize).copied().unwrap_or(0.0);
    let busiest = |id: TaskId| of(&out, tasks[id].from).max(of(&into, tasks[id].to));
    let frees = |id: TaskId| wanted.get(tasks[id].from as usize).copied().unwrap_or(0) as f64;
    let keys: [&dyn Fn(TaskId) -> f64; 3] = [&busiest, &|id| tasks[id].seconds, &frees];
    let sorted = |key: &dyn Fn(TaskId) -> f64| {
        let mut order: Vec<TaskId> = (0..tasks.len()).collect();
        order.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(tasks[*b].seconds.total_cmp(&tasks[*a].seconds)));
        order
    };
    let mut best: Option<(Priorities, Draft)> = None;
    for key in keys {
        for (share, hops_at_once) in [(1, 1), (2, 1), (1, usize::MAX)] {
            let priorities = Priorities { order: sorted(key), shares: vec![share; tasks.len()], hops_at_once };
            let tried = draft(context, &priorities);
            if best.as_ref().is_none_or(|(_, best)| order(tried.score, best.score).is_lt()) {
                best = Some((priorities, tried));
            }
        }
    }
    best.expect("there are rules")
}

/// Moves a task to another position, exchanges two tasks, gives a task another share, or changes for how many tasks
/// others step aside at once.
fn change(at: &Priorities, dice: &mut Dice) -> Priorities {
    let mut changed = at.clone();
    let (a, b) = (dice.below(at.order.len()), dice.below(at.order.len()));
    match dice.below(11) {
        0..4 => {
            let task = changed.order.remove(a);
            changed.order.insert(b, task);
        }
        4..8 => changed.order.swap(a, b),
        8 => changed.hops_at_once = *dice.pick(&HOPS),
        _ => changed.shares[a] = *dice.pick(&LINK_SHARES),
    }
    changed
}

/// Makes the plan: sorts the steps by their start, and adds what they wait for.
fn finish(job: &Job, best: Draft, left: Vec<Left>, loose: Loose, helps: Vec<GroupId>) -> Plan {
    let mut steps: Vec<Step> = best.steps;
    steps.sort_by(|a, b| a.start.total_cmp(&b.start));
    let is_exchanged = !loose.exchanged.is_empty();
    let waits = if is_exchanged { waits_one_by_one(job, &steps) } else { waits(job, &steps, Waits::Links) };
    steps.iter_mut().zip(waits).for_each(|(step, waits)| step.waits = waits);
    let exchanged = loose.exchanged.into_iter().collect();
    Plan { steps, left, broken: loose.needs.into_iter().collect(), exchanged, helps }
}
