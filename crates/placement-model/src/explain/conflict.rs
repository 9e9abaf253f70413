//! Finds the fewest causes that together rule out every host: a smallest hitting set of what speaks against each host.

use std::collections::BTreeSet;

/// The most steps of the exact search. Beyond this a greedy search is used.
const STEPS_MAX: u32 = 100_000;

/// A set of causes that together rule out every host, none of which can be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<C> {
    /// The causes, in order.
    pub causes: Vec<C>,
    /// Whether no smaller set would do. `false`: there were too many sets to try, and it is only certain that no cause
    /// of this set can be left out.
    pub is_smallest: bool,
}

/// Returns the smallest set of causes that has at least one cause of each host, or `None` if a host has no cause: it is
/// not ruled out.
pub fn conflict<C: Ord + Clone>(hosts: &[BTreeSet<C>]) -> Option<Conflict<C>> {
    if hosts.iter().any(BTreeSet::is_empty) {
        return None;
    }
    let sets = least(hosts);
    let greedy = greedy(&sets);
    let mut steps = STEPS_MAX;
    for size in 0..greedy.len() {
        let mut chosen = Vec::new();
        if search(&sets, size, &mut chosen, &mut steps) {
            chosen.sort();
            return Some(Conflict { causes: chosen, is_smallest: true });
        }
        if steps == 0 {
            return Some(Conflict { causes: greedy, is_smallest: false });
        }
    }
    Some(Conflict { causes: greedy, is_smallest: true })
}

/// Returns each set once, without those that contain another set: a cause that hits the smaller set hits both.
fn least<C: Ord + Clone>(hosts: &[BTreeSet<C>]) -> Vec<BTreeSet<C>> {
    let distinct: BTreeSet<&BTreeSet<C>> = hosts.iter().collect();
    let mut by_size: Vec<&BTreeSet<C>> = distinct.into_iter().collect();
    by_size.sort_by_key(|set| set.len());
    let mut kept: Vec<BTreeSet<C>> = Vec::new();
    for set in by_size {
        if !kept.iter().any(|other| other.is_subset(set)) {
            kept.push(set.clone());
        }
    }
    kept
}

/// Returns whether `size` more causes can hit all sets that the chosen causes do not.
fn search<C: Ord + Clone>(sets: &[BTreeSet<C>], size: usize, chosen: &mut Vec<C>, steps: &mut u32) -> bool {
    let Some(missed) = sets.iter().find(|set| !chosen.iter().any(|cause| set.contains(cause))) else {
        return true;
    };
    if size == 0 || *steps == 0 {
        return false;
    }
    for cause in missed {
        *steps = steps.saturating_sub(1);
        chosen.push(cause.clone());
        if search(sets, size - 1, chosen, steps) {
            return true;
        }
        chosen.pop();
    }
    false
}

/// Takes the cause that hits most sets first, then leaves out those that turned out not to be needed.
fn greedy<C: Ord + Clone>(sets: &[BTreeSet<C>]) -> Vec<C> {
    let all: BTreeSet<&C> = sets.iter().flatten().collect();
    let mut missed: Vec<&BTreeSet<C>> = sets.iter().collect();
    let mut chosen: Vec<C> = Vec::new();
    while !missed.is_empty() {
        let hits = |cause: &C| missed.iter().filter(|set| set.contains(cause)).count();
        let Some(best) = all.iter().rev().max_by_key(|cause| hits(cause)) else { break };
        chosen.push((*best).clone());
        missed.retain(|set| !set.contains(*best));
    }
    let mut at = 0;
    while at < chosen.len() {
        let is_needed = |set: &BTreeSet<C>| chosen.iter().enumerate().all(|(n, cause)| n == at || !set.contains(cause));
        if sets.iter().any(is_needed) {
            at += 1;
        } else {
            chosen.remove(at);
        }
    }
    chosen.sort();
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn hits(causes: &[u8], hosts: &[BTreeSet<u8>]) -> bool {
        hosts.iter().all(|host| causes.iter().any(|cause| host.contains(cause)))
    }

    proptest! {
        #[test]
        fn no_fewer_would_do(hosts in vec(btree_set(0u8..8, 1..4), 0..12)) {
            let found = conflict(&hosts).unwrap();
            prop_assert!(found.is_smallest);
            prop_assert!(hits(&found.causes, &hosts));
            for all in 0u32..256 {
                let some: Vec<u8> = (0..8).filter(|n| all >> n & 1 == 1).collect();
                prop_assert!(some.len() >= found.causes.len() || !hits(&some, &hosts));
            }
        }

        #[test]
        fn of_the_greedy_ones_none_can_be_left_out(hosts in vec(btree_set(0u8..20, 1..6), 1..40)) {
            let causes = greedy(&hosts);
            prop_assert!(hits(&causes, &hosts));
            for n in 0..causes.len() {
                let mut fewer = causes.clone();
                fewer.remove(n);
                prop_assert!(!hits(&fewer, &hosts));
            }
        }
    }

    #[test]
    fn a_host_that_nothing_speaks_against_is_no_conflict() {
        assert_eq!(conflict(&[BTreeSet::from([1]), BTreeSet::new()]), None);
    }
}
