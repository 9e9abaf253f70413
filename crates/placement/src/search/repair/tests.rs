use proptest::prelude::*;

use super::*;
use crate::bound::moves_min;
use crate::cases;
use crate::fleet;
use crate::verdict::{Verdict, judge};

const STEPS: u64 = 1000;

fn key(verdict: &Verdict) -> (i64, usize, i64) {
    let Score { broken, cost } = verdict.score();
    (broken, verdict.moves, cost)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Checks that the result is never worse than before, has the judge's score, and is the same again however the
    /// steps are divided.
    #[test]
    fn what_is_mended_holds(seed: u64) {
        let dice = &mut Dice::new(seed);
        let problem = cases::problem(dice, 8, 20);
        let hosts = problem.hosts.len();
        let from: Vec<HostId> = problem.initial.iter().map(|home| match dice.below(4) {
            0 => NOWHERE,
            1 => dice.below(hosts) as HostId,
            _ => *home,
        }).collect();
        let mended = repair(&problem, &from, seed, STEPS);
        let verdict = judge(&problem, &mended);
        prop_assert!(key(&verdict) <= key(&judge(&problem, &from)));
        let mut slices = Repair::new(&problem, &from, seed);
        let mut left = STEPS;
        while left > 0 && slices.run(1) {
            left = left.saturating_sub(50);
            prop_assert_eq!(slices.score(), judge(&problem, slices.assignment()).score());
        }
        prop_assert_eq!(repair(&problem, &from, seed, STEPS), mended);
    }
}

/// Finds the fewest moves of any valid assignment, by trying all.
fn moves_of_best(problem: &Problem) -> Option<usize> {
    let (hosts, guests) = (problem.hosts.len(), problem.guests.len());
    let all = (0..hosts.pow(guests as u32))
        .map(|n| -> Vec<HostId> { (0..guests).map(|guest| (n / hosts.pow(guest as u32) % hosts) as HostId).collect() });
    all.map(|assignment| judge(problem, &assignment)).filter(Verdict::is_valid).map(|verdict| verdict.moves).min()
}

/// Makes a small problem with enough room that most are solvable, though few without a move.
fn small(seed: u64) -> Problem {
    let dice = &mut Dice::new(seed);
    let mut problem = cases::problem(dice, 4, 6);
    for host in &mut problem.hosts {
        host.capacity.iter_mut().for_each(|capacity| *capacity = *capacity / 2 + 40);
    }
    for group in &mut problem.groups {
        group.needs.truncate(usize::from(dice.chance(0.3)));
    }
    problem
}

#[test]
fn what_can_be_mended_is_with_few_moves() {
    let (mut solvable, mut solved, mut least, mut more) = (0, 0, 0, 0);
    for seed in 0..150 {
        let problem = small(seed);
        let Some(best) = moves_of_best(&problem) else { continue };
        solvable += 1;
        let verdict = judge(&problem, &repair(&problem, &problem.initial, seed, STEPS));
        if verdict.is_valid() {
            solved += 1;
            least += best;
            more += verdict.moves - best;
        }
    }
    assert!(solvable > 60, "{solvable}");
    assert!(solved * 100 >= solvable * 97, "{solved} of {solvable}");
    assert!(more * 20 <= least, "{more} moves more than {least}");
}

#[test]
fn a_cluster_is_mended_where_it_is_broken() {
    for seed in 0..3 {
        let mut problem = fleet::fleet(100, 2000, seed);
        fleet::fail(&mut problem, 7);
        fleet::overload(&mut problem, 11);
        let mut repair = Repair::new(&problem, &problem.initial, seed);
        while !repair.is_mended() && repair.run(100) {}
        let verdict = judge(&problem, repair.assignment());
        assert_eq!(verdict.hard, []);
        assert!(verdict.moves <= moves_min(&problem).moves + 1, "{} moves", verdict.moves);
    }
}
