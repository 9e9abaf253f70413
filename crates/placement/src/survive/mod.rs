//! Checks whether guests find room if hosts fail (N+1, high availability admission control).
//!
//! If hosts fail, their guests are started again on other hosts. All other guests stay where they are: none makes room
//! by moving. The rule holds if this is possible for every set of up to N hosts, without more overload and without more
//! breaches of any group's hard rules than before.
//!
//! This is a packing problem. That the rule holds is shown by a placement, which is checked from scratch. That it does
//! not hold is shown by a bound, or by trying all ways. If neither ends within its steps, the answer is that no way was
//! found.

mod bin_packing;
mod failure;
mod mend;
#[cfg(test)]
mod tests;

use bin_packing::BinPacking;
pub use failure::{Failure, Proof};
pub use mend::mend;

use crate::bits::Bits;
use crate::problem::{HostId, NOWHERE, Problem, Strength};

/// The most sets of hosts that are tried. If there are more, only the sets of the fullest hosts are tried.
const SETS_MAX: u64 = 5_000;
/// The most times that a guest is tried on a host in all: some seconds' work.
const LOOKS_MAX: u64 = 30_000_000;

/// The rule about failures that have to be survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survive {
    /// How many hosts may fail at once.
    pub failures: u32,
    /// Each set of hosts whose failure is not survived is a breach.
    pub strength: Strength,
}

/// The result of letting hosts fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survival {
    /// The failures that are not survived, those with the most guests first.
    pub failures: Vec<Failure>,
    /// How many sets of hosts were tried.
    pub tried: u64,
    /// How many sets of hosts there are.
    pub sets: u64,
}

impl Survival {
    /// Returns whether every set of hosts was tried and survived.
    pub fn holds(&self) -> bool {
        self.failures.is_empty() && self.tried == self.sets
    }
}

/// Lets each set of up to `failures` of `hosts` fail, with all guests where the assignment has them.
///
/// # Panics
///
/// If the assignment is not one of the problem.
pub fn survive(problem: &Problem, assignment: &[HostId], hosts: &[HostId], failures: u32) -> Survival {
    // What moved guests hold on the hosts that they left is free by then.
    let steady = Problem { initial: assignment.to_vec(), ..problem.clone() };
    let failures = (failures as usize).min(hosts.len());
    let mut survival = Survival::default();
    let mut packing = BinPacking::new(&steady, assignment);
    let mut fullest = hosts.to_vec();
    fullest.sort_by(|a, b| packing.share(*b).total_cmp(&packing.share(*a)).then(a.cmp(b)));
    let mut looks = LOOKS_MAX;
    for size in 1..=failures {
        survival.sets = survival.sets.saturating_add(choose(hosts.len(), size));
        let most = (size..=hosts.len()).rev().find(|many| choose(*many, size) <= SETS_MAX).unwrap_or(size);
        each_set(&fullest[..most], size, &mut |set| {
            if looks == 0 {
                return;
            }
            survival.tried += 1;
            let failed = match without_areas(&steady, set) {
                None => packing.fail(set, &mut looks),
                Some(other) => BinPacking::new(&other, assignment).fail(set, &mut looks),
            };
            survival.failures.extend(failed);
        });
    }
    survival.failures.sort_by_key(|failure| std::cmp::Reverse(failure.left.len()));
    survival
}

/// Returns how many sets of `size` elements there are among `many`.
fn choose(many: usize, size: usize) -> u64 {
    let step = |ways: u128, n: usize| (ways * (many - n) as u128 / (n as u128 + 1)).min(1 << 100);
    (0..size.min(many)).fold(1, step).min(u64::MAX.into()) as u64
}

/// Calls `call` for each set of `size` hosts.
fn each_set(hosts: &[HostId], size: usize, call: &mut dyn FnMut(&[HostId])) {
    let mut at: Vec<usize> = (0..size).collect();
    loop {
        let set: Vec<HostId> = at.iter().map(|n| hosts[*n]).collect();
        call(&set);
        // Moves the last index that can go further by one; the indices after it follow.
        let Some(n) = (0..size).rev().find(|n| at[*n] + size - n < hosts.len()) else { return };
        at[n] += 1;
        (n + 1..size).for_each(|next| at[next] = at[next - 1] + 1);
    }
}

/// Returns the problem without those areas of even spreads of which all hosts failed, or `None` if there are none: no
/// guest can be in these areas.
fn without_areas(problem: &Problem, failed: &[HostId]) -> Option<Problem> {
    let is_lost = |level: usize, area: u32| {
        let there = (0..).zip(&problem.hosts).filter(|(_, host)| host.areas[level] == area);
        there.map(|(id, _): (HostId, _)| id).all(|host| failed.contains(&host))
    };
    let mut other = None;
    for (id, group) in problem.groups.iter().enumerate() {
        let Some(even) = &group.even else { continue };
        let kept: Bits = even.areas.iter().filter(|area| !is_lost(even.level, *area)).collect();
        if kept != even.areas {
            let other: &mut Problem = other.get_or_insert_with(|| problem.clone());
            other.groups[id].even.iter_mut().for_each(|even| even.areas = kept.clone());
        }
    }
    other
}

/// Returns the resource of which all guests use more than is left when the largest hosts have failed, with how much is
/// used and how much is left. If there is one, no placement survives.
pub fn impossible(problem: &Problem, hosts: &[HostId], failures: u32) -> Option<(usize, i64, i64)> {
    (0..problem.resources.len()).find_map(|r| {
        let used: i64 = problem.guests.iter().map(|guest| guest.demand[r]).sum();
        let mut capacities: Vec<i64> = hosts.iter().map(|host| problem.hosts[*host as usize].capacity[r]).collect();
        capacities.sort_unstable_by(|a, b| b.cmp(a));
        let left: i64 = capacities.iter().skip(failures as usize).sum();
        (used > left).then_some((r, used, left))
    })
}

/// Returns the problem with a part of each host kept free. The part is chosen so that on average the guests of failed
/// hosts have room on the others, times a factor. A search in this problem is likely to find a placement that survives.
pub fn reserving(problem: &Problem, hosts: &[HostId], failures: u32, factor: f64) -> Problem {
    let mut reserving = problem.clone();
    let share = (f64::from(failures) / hosts.len().max(1) as f64 * factor).min(1.0);
    for host in hosts {
        for capacity in &mut reserving.hosts[*host as usize].capacity {
            *capacity -= (*capacity as f64 * share) as i64;
        }
    }
    // A guest that has no room here in its place need not move for that: the judge uses the true problem.
    debug_assert!(reserving.initial.iter().all(|host| *host == NOWHERE || (*host as usize) < problem.hosts.len()));
    reserving
}
