//! Decides which rules hold on the way, and which are given up or exchanged.

use std::collections::BTreeSet;

use super::Job;
use crate::problem::{Avoid, Group, GroupId, GuestId, HostId, NOWHERE, NeedsRule, Problem, Strength};
use crate::verdict::{Breach, judge, members};

/// The hard rules that hold before and after, and therefore on the way.
///
/// Where rules are exchanged, guests with hard rules move one at a time, and only so that no more of these rules are
/// broken than before the first step.
pub(super) struct Guard {
    pub(super) members: Vec<Vec<GuestId>>,
    pub(super) apart: Vec<bool>,
    pub(super) spread: Vec<bool>,
    pub(super) needs: Vec<Vec<NeedsRule>>,
    /// For each group, the groups that need it.
    pub(super) needed_by: Vec<Vec<GroupId>>,
    pub(super) among: Vec<bool>,
    pub(super) avoids: Vec<Vec<Avoid>>,
    /// For each group, the groups that avoid it.
    pub(super) avoided_by: Vec<Vec<GroupId>>,
    /// How many breaches of hard rules there may be at a moment, if rules are exchanged. `None`: each rule is kept by
    /// itself.
    pub(super) broken_max: Option<i64>,
    /// For each guest, whether there are hard rules about it and others.
    pub(super) ruled: Vec<bool>,
}

/// The rules that need not hold on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Loose {
    /// The groups whose needs are given up.
    pub needs: BTreeSet<GroupId>,
    /// The groups all of whose rules may be broken for a while.
    pub exchanged: BTreeSet<GroupId>,
    /// How many breaches of hard rules there may be at a moment then.
    pub broken_max: i64,
}

/// Returns how many breaches there are of the hard rules that are to hold on the way.
pub(super) fn broken(problem: &Problem, at: &[HostId]) -> i64 {
    judge(problem, at).hard.iter().filter(|breach| lasts(breach)).map(Breach::count).sum()
}

/// Returns whether a breach is of a rule that is to hold on the way. Groups that are together or spread evenly are so
/// at the ends only.
pub(super) fn lasts(breach: &Breach) -> bool {
    matches!(
        breach,
        Breach::Apart { .. }
            | Breach::Spread { .. }
            | Breach::Need { .. }
            | Breach::Among { .. }
            | Breach::Avoid { .. }
    )
}

impl Guard {
    /// Makes the guard without the rules that need not hold on the way.
    pub fn new(job: &Job, loose: &Loose) -> Guard {
        let (groups, problem) = (&job.problem.groups, &job.problem);
        let mut broken = judge(problem, &problem.initial).hard;
        broken.extend(judge(problem, &job.goal).hard);
        let holds = |is: &dyn Fn(&Breach) -> bool| !broken.iter().any(is);
        let is_kept = |id: GroupId| !loose.exchanged.contains(&id);
        let members = members(problem);
        let numbered = || (0..).zip(groups);
        let is_hard = |strength: Strength| strength == Strength::Hard;
        let apart = numbered().map(|(id, group): (GroupId, &Group)| {
            is_kept(id)
                && group.apart.is_some_and(is_hard)
                && holds(&|b| matches!(b, Breach::Apart { group, .. } if *group == id))
        });
        let spread = numbered().map(|(id, group): (GroupId, &Group)| {
            is_kept(id)
                && group.spread.is_some_and(|spread| is_hard(spread.strength))
                && holds(&|b| matches!(b, Breach::Spread { group, .. } if *group == id))
        });
        let needs = numbered().map(|(id, group): (GroupId, &Group)| -> Vec<NeedsRule> {
            let holds = |need: &&NeedsRule| {
                holds(&|b| {
                    matches!(b, Breach::Need { group, of, level, .. }
                    if (*group, *of, *level) == (id, need.of, need.level))
                })
            };
            let kept = group.needs.iter().filter(|_| !loose.needs.contains(&id) && is_kept(id));
            kept.filter(|need| is_hard(need.strength)).filter(holds).copied().collect()
        });
        let needs: Vec<Vec<NeedsRule>> = needs.collect();
        let mut needed_by = vec![Vec::new(); groups.len()];
        for (id, needs) in (0..).zip(&needs) {
            needs.iter().for_each(|need| needed_by[need.of as usize].push(id));
        }
        let avoids = numbered().map(|(id, group): (GroupId, &Group)| -> Vec<Avoid> {
            let holds = |avoid: &&Avoid| {
                holds(&|b| {
                    matches!(b, Breach::Avoid { group, of, level, .. }
                    if (*group, *of, *level) == (id, avoid.of, avoid.level))
                })
            };
            let kept = group.avoids.iter().filter(|_| is_kept(id));
            kept.filter(|avoid| is_hard(avoid.strength)).filter(holds).copied().collect()
        });
        let avoids: Vec<Vec<Avoid>> = avoids.collect();
        let mut avoided_by = vec![Vec::new(); groups.len()];
        for (id, avoids) in (0..).zip(&avoids) {
            avoids.iter().for_each(|avoid| avoided_by[avoid.of as usize].push(id));
        }
        let among = numbered().zip(&members).map(|((id, group), members): ((GroupId, _), &Vec<GuestId>)| {
            if !is_kept(id) {
                return false;
            }
            let group: &Group = group;
            let hosts = || members.iter().flat_map(|g| [problem.initial[*g as usize], job.goal[*g as usize]]);
            group.among.iter().any(|set| hosts().all(|host| host == NOWHERE || set.contains(host)))
        });
        let among = among.collect();
        let ruled = ruled(problem);
        Guard {
            apart: apart.collect(),
            spread: spread.collect(),
            needs,
            needed_by,
            among,
            avoids,
            avoided_by,
            broken_max: (!loose.exchanged.is_empty()).then_some(loose.broken_max),
            ruled,
            members,
        }
    }

    /// Returns the groups whose rules keep a group's guests from where they are to be, or could keep them.
    pub fn concerning(&self, group: GroupId) -> impl Iterator<Item = GroupId> {
        let others = [&self.needed_by, &self.avoided_by].into_iter().flat_map(move |by| &by[group as usize]);
        std::iter::once(group).chain(others.copied())
    }

    /// Returns the groups whose needs keep a group's guests from where they are to be, or could keep them.
    pub fn needing(&self, group: GroupId) -> impl Iterator<Item = GroupId> {
        let itself = (!self.needs[group as usize].is_empty()).then_some(group);
        itself.into_iter().chain(self.needed_by[group as usize].iter().copied())
    }
}

/// Returns for each guest whether there are hard rules about it and others that are to hold on the way.
pub(super) fn ruled(problem: &Problem) -> Vec<bool> {
    let members = members(problem);
    let mut ruled = vec![false; problem.guests.len()];
    for (id, group) in problem.groups.iter().enumerate().filter(|(_, group)| has_hard(group)) {
        let others = group.needs.iter().map(|need| need.of).chain(group.avoids.iter().map(|avoid| avoid.of));
        let concerned = others.map(|of| of as usize).chain([id]);
        concerned.flat_map(|id| &members[id]).for_each(|guest| ruled[*guest as usize] = true);
    }
    ruled
}

/// Returns whether a group has a hard rule that is to hold on the way.
pub(super) fn has_hard(group: &Group) -> bool {
    let spread = group.spread.map(|spread| spread.strength);
    let needs = group.needs.iter().map(|need| need.strength);
    let avoids = group.avoids.iter().map(|avoid| avoid.strength);
    let mut all = [group.apart, spread].into_iter().flatten().chain(needs).chain(avoids);
    !group.among.is_empty() || all.any(|strength| strength == Strength::Hard)
}
