//! Compares answers for small clusters with a search of all ways.

use proptest::prelude::*;

use super::*;
use crate::cases;
use crate::dice::Dice;
use crate::verdict::{Breach, judge};

/// Returns how many breaches of each group's hard rules there are, by how much each host is overloaded, and how many
/// guests are nowhere or on hosts that they may not be on.
fn wrong(problem: &Problem, at: &[HostId]) -> (Vec<i64>, Vec<Vec<i64>>, usize) {
    let mut groups = vec![0; problem.groups.len()];
    let mut over = vec![vec![0; problem.resources.len()]; problem.hosts.len()];
    let mut misplaced = 0;
    for breach in judge(problem, at).hard {
        match breach {
            Breach::Unplaced { .. } | Breach::NotOwner { .. } => misplaced += 1,
            Breach::Overload { host, resource, used, capacity, .. } => over[host as usize][resource] = used - capacity,
            Breach::Apart { group, .. }
            | Breach::Together { group, .. }
            | Breach::Spread { group, .. }
            | Breach::Uneven { group, .. }
            | Breach::Need { group, .. }
            | Breach::Avoid { group, .. }
            | Breach::Among { group, .. } => groups[group as usize] += breach.count(),
        }
    }
    (groups, over, misplaced)
}

/// Returns whether the guests of failed hosts find room, by trying all ways.
fn finds_room(problem: &Problem, failed: &[HostId]) -> bool {
    let mut problem = without_areas(problem, failed).unwrap_or_else(|| problem.clone());
    let at = problem.initial.clone();
    let lost: Vec<usize> = (0..at.len()).filter(|guest| failed.contains(&at[*guest])).collect();
    let open: Vec<HostId> = (0..problem.hosts.len() as HostId).filter(|host| !failed.contains(host)).collect();
    let before = wrong(&problem, &at);
    // The failed hosts are no places at which their guests may stay.
    lost.iter().for_each(|guest| problem.initial[*guest] = NOWHERE);
    let mut others = at.clone();
    lost.iter().for_each(|guest| others[*guest] = NOWHERE);
    let misplaced = wrong(&problem, &others).2 - lost.len();
    (0..open.len().pow(lost.len() as u32)).any(|n| {
        let mut then = at.clone();
        let place = |(k, guest): (usize, &usize)| then[*guest] = open[n / open.len().pow(k as u32) % open.len()];
        lost.iter().enumerate().for_each(place);
        let now = wrong(&problem, &then);
        let over = |host: &HostId| {
            let (before, now) = (&before.1[*host as usize], &now.1[*host as usize]);
            now.iter().zip(before).all(|(now, before)| now <= before)
        };
        now.0.iter().zip(&before.0).all(|(now, before)| now <= before) && open.iter().all(over) && now.2 == misplaced
    })
}

/// Makes a small problem with some room, in which no guest left transient resources behind.
fn small(seed: u64) -> Problem {
    let dice = &mut Dice::new(seed);
    let mut problem = cases::problem(dice, 4, 7);
    for host in &mut problem.hosts {
        host.capacity.iter_mut().for_each(|capacity| *capacity = *capacity / 2 + 40);
    }
    problem
}

/// Checks that a set said to have room has room, and a set said to have none has none.
fn agrees(seed: u64, failures: u32) -> Result<(), TestCaseError> {
    let problem = small(seed);
    let hosts: Vec<HostId> = (0..problem.hosts.len() as HostId).collect();
    let told = survive(&problem, &problem.initial, &hosts, failures);
    prop_assert_eq!(told.tried, told.sets);
    let mut sets = Vec::new();
    for size in 1..=(failures as usize).min(hosts.len()) {
        each_set(&hosts, size, &mut |set| sets.push(set.to_vec()));
    }
    prop_assert_eq!(sets.len() as u64, told.sets);
    for set in sets {
        let failure = told.failures.iter().find(|failure| {
            let mut hosts = failure.hosts.clone();
            hosts.sort_unstable();
            hosts == set
        });
        let lost = problem.initial.iter().filter(|host| set.contains(host)).count();
        let has_room = lost == 0 || set.len() < hosts.len() && finds_room(&problem, &set);
        prop_assert_eq!(failure.is_none(), has_room, "{:?}: {:?}", set, failure);
        prop_assert!(failure.is_none_or(|failure| failure.proof.is_some()));
    }
    if impossible(&problem, &hosts, failures).is_some() && !problem.initial.contains(&NOWHERE) {
        prop_assert!(!told.failures.is_empty() || !judge(&problem, &problem.initial).is_valid());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn failures_are_those_that_trying_everything_finds(seed: u64, failures in 1u32..3) {
        agrees(seed, failures)?;
    }
}

/// A group that avoids a guest may be broken by that guest as often as before.
#[test]
fn an_avoided_guest_goes_where_it_is_avoided_again() {
    agrees(3_537_219_089_289_906_993, 1).unwrap();
}

/// Checks that the properties above say something: some sets fail and some do not.
#[test]
fn small_ones_do_and_do_not_survive() {
    let survives = |seed: &u64| {
        let problem = small(*seed);
        let hosts: Vec<HostId> = (0..problem.hosts.len() as HostId).collect();
        survive(&problem, &problem.initial, &hosts, 1).holds()
    };
    let many = (0..200).filter(survives).count();
    assert!((30..170).contains(&many), "{many}");
}

#[test]
fn sets_are_counted() {
    assert_eq!([choose(5, 2), choose(100, 3), choose(3, 3), choose(2, 0)], [10, 161_700, 1, 1]);
    assert_eq!(choose(100_000, 50_000), u64::MAX);
}
