//! Finds the best placement of a small cluster, and proves that it is the best: the oracle by which the search is
//! measured.
//!
//! | what | does |
//! |---|---|
//! | [`prove`] | asks HiGHS about one [`Problem`]; its answer is judged by [`verdict::judge`], never believed |
//! | [`cases`] | makes small clusters with little room from a seed |
//! | [`compare`] | compares a heuristic with the proven best, over many of them |
//!
//! The crate is in a program only if its feature `exact` is asked for: HiGHS is C++, takes minutes to build, and looks
//! at the clock. HiGHS runs with one thread and a fixed seed, so that an answer is the same each time unless time was
//! up.

#![forbid(unsafe_code)]

pub mod cases;
pub mod compare;
mod error;
mod mip;

use std::time::Duration;

pub use error::ExactError;

use skein_placement::problem::{HostId, NOWHERE, Problem};
use skein_placement::score::Score;
use skein_placement::verdict;

/// The result of a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The best assignment that is known, a host for each guest: what HiGHS found, or the start if that is as good.
    pub assignment: Vec<HostId>,
    /// The score of the assignment, from [`verdict::judge`].
    pub score: Score,
    /// A lower bound of the cost of any assignment that keeps all hard rules: HiGHS's bound, less what floating point
    /// may have added, rounded up to a whole number. `None`: it is proven that there is no such assignment.
    pub bound: Option<i64>,
}

impl Proof {
    /// Returns whether it is proven that no assignment is better. If hard rules cannot be kept, nothing is proven of
    /// how many have to be broken.
    pub fn is_optimal(&self) -> bool {
        self.bound.is_some_and(|bound| self.score == Score::cost(bound))
    }

    /// Returns whether it is proven that no assignment keeps all hard rules.
    pub fn is_infeasible(&self) -> bool {
        self.bound.is_none()
    }
}

/// Finds an assignment that keeps all hard rules and costs least, and proves this as far as it can in the given time.
/// HiGHS looks at the clock between steps, which take long in models of hundreds of thousands of factors: there it can
/// exceed the time by half.
///
/// # Errors
///
/// [`ExactError`] if the problem is not valid, the start is not one of its assignments, the problem is too large, or
/// floating point numbers are too coarse for it.
pub fn prove(problem: &Problem, start: &[HostId], time: Duration) -> Result<Proof, ExactError> {
    problem.check()?;
    let hosts = problem.hosts.len();
    let has = start.iter().filter(|host| **host == NOWHERE || (**host as usize) < hosts).count();
    if has != start.len() || has != problem.guests.len() {
        return Err(ExactError::Start { has, hosts, wants: problem.guests.len() });
    }
    let begin = verdict::judge(problem, start);
    let answer = mip::solve(problem, time)?;
    let mut proof = Proof { assignment: start.to_vec(), score: begin.score(), bound: answer.bound };
    if let Some(assignment) = answer.assignment {
        let verdict = verdict::judge(problem, &assignment);
        if !verdict.is_valid() {
            return Err(ExactError::Broken { hard: verdict.hard });
        }
        if verdict.score() < proof.score {
            proof = Proof { assignment, score: verdict.score(), ..proof };
        }
    }
    let Score { broken, cost } = proof.score;
    if broken == 0 && answer.bound.is_none_or(|bound| bound > cost) {
        return Err(ExactError::Refuted { bound: answer.bound, cost });
    }
    Ok(proof)
}

#[cfg(test)]
mod tests {
    use skein_placement::bits::Bits;
    use skein_placement::dice::Dice;
    use skein_placement::problem::{Guest, Host, HostMoves, Resource, Strength, Weights};
    use skein_placement::verdict::judge;

    use super::*;
    use crate::cases::case;

    /// The time for one case. No case takes seconds, unless the machine has much else to do.
    const TIME: Duration = Duration::from_secs(600);

    /// Finds the least cost of a valid assignment, by trying them all.
    fn least(problem: &Problem) -> Option<i64> {
        let hosts = problem.hosts.len();
        let mut assignment = vec![0; problem.guests.len()];
        let mut least: Option<i64> = None;
        for n in 0..hosts.pow(problem.guests.len() as u32) {
            let mut rest = n;
            for host in &mut assignment {
                *host = (rest % hosts) as HostId;
                rest /= hosts;
            }
            let verdict = judge(problem, &assignment);
            if verdict.is_valid() {
                let cost = verdict.cost.total();
                least = Some(least.map_or(cost, |least| least.min(cost)));
            }
        }
        least
    }

    fn prove_from_initial(problem: &Problem) -> Result<Proof, ExactError> {
        prove(problem, &problem.initial, TIME)
    }

    fn proven(problem: &Problem) -> Option<i64> {
        let proof = prove_from_initial(problem).unwrap();
        assert!(proof.is_optimal() || proof.is_infeasible(), "{proof:?}");
        proof.bound
    }

    #[test]
    fn nothing_is_cheaper_than_what_is_proven() {
        let (mut feasible, mut infeasible) = (0, 0);
        for seed in 0..200 {
            let (hosts, guests) = if seed % 10 == 0 { (5, 5) } else { (3, 6) };
            let problem = cases::cluster(&mut Dice::new(seed), hosts, guests);
            let least = least(&problem);
            assert_eq!(proven(&problem), least, "seed {seed}");
            *if least.is_some() { &mut feasible } else { &mut infeasible } += 1;
        }
        assert!(feasible > 130 && infeasible > 5, "{feasible} feasible, {infeasible} not");
    }

    #[test]
    fn nothing_is_cheaper_with_groups_that_are_apart_or_even() {
        let (mut feasible, mut infeasible) = (0, 0);
        for seed in 0..200 {
            let problem = cases::cluster_with_pairs(&mut Dice::new(seed), 3, 6);
            assert_eq!(problem.check(), Ok(()));
            let least = least(&problem);
            assert_eq!(proven(&problem), least, "seed {seed}");
            *if least.is_some() { &mut feasible } else { &mut infeasible } += 1;
        }
        assert!(feasible > 60 && infeasible > 5, "{feasible} feasible, {infeasible} not");
    }

    /// HiGHS called values proven that were not, or gave too low a bound, when it was given a start.
    #[test]
    fn a_start_leads_to_no_wrong_bound() {
        assert_eq!([proven(&case(850)), proven(&case(2137))], [Some(230), Some(35)]);
    }

    #[test]
    fn an_answer_is_the_same_each_time() {
        for seed in 0..10 {
            assert_eq!(prove_from_initial(&case(seed)), prove_from_initial(&case(seed)));
        }
    }

    /// Makes hosts of 10 each, and guests of 1 that are nowhere yet, without rules. No two guests are alike.
    fn bare(hosts: usize, guests: usize) -> Problem {
        let guest = Guest { demand: vec![1], groups: Vec::new(), move_cost: 0, owners: None, preference: None };
        Problem {
            resources: vec![Resource { transient: false, load_weight: 1 }],
            levels: Vec::new(),
            hosts: vec![Host { areas: Vec::new(), capacity: vec![10], safe: vec![10] }; hosts],
            groups: Vec::new(),
            guests: (0..guests).map(|n| Guest { move_cost: n as i64, ..guest.clone() }).collect(),
            balances: Vec::new(),
            weights: Weights::default(),
            host_moves: HostMoves::Uniform(1),
            owners: vec![Bits::default()],
            preferences: Vec::new(),
            initial: vec![NOWHERE; guests],
        }
    }

    #[test]
    fn what_has_nowhere_to_go_is_infeasible() {
        assert_eq!(proven(&bare(1, 10)), Some(0));
        assert_eq!(proven(&bare(1, 11)), None);
        assert_eq!(proven(&bare(0, 1)), None);
        let mut owned = bare(1, 1);
        owned.guests[0].owners = Some(0);
        assert_eq!(proven(&owned), None, "nobody owns it");
    }

    #[test]
    fn nobody_has_to_go_anywhere() {
        assert_eq!(proven(&bare(3, 0)), Some(0));
        assert_eq!(proven(&bare(0, 0)), Some(0));
    }

    #[test]
    fn amounts_in_bytes_are_as_good_as_small_ones() {
        for seed in 0..40 {
            let mut problem = cases::cluster(&mut Dice::new(seed), 3, 6);
            let bytes = |amounts: &mut Vec<i64>| amounts.iter_mut().for_each(|amount| *amount <<= 30);
            problem.hosts.iter_mut().for_each(|host| bytes(&mut host.capacity));
            problem.guests.iter_mut().for_each(|guest| bytes(&mut guest.demand));
            // One byte more than what just fits does not fit.
            problem.guests[0].demand[0] += 1;
            problem.resources.iter_mut().for_each(|resource| resource.load_weight = 0);
            problem.balances.clear();
            assert_eq!(proven(&problem), least(&problem), "seed {seed}");
        }
    }

    #[test]
    fn large_costs_are_as_good_as_small_ones() {
        for seed in 0..40 {
            let mut problem = cases::cluster(&mut Dice::new(seed), 3, 6);
            let large = |amounts: &mut Vec<i64>| amounts.iter_mut().for_each(|amount| *amount <<= 20);
            problem.hosts.iter_mut().for_each(|host| [&mut host.capacity, &mut host.safe].into_iter().for_each(large));
            problem.guests.iter_mut().for_each(|guest| large(&mut guest.demand));
            problem.guests[0].demand[0] += 1;
            let (proof, least) = (prove_from_initial(&problem).unwrap(), least(&problem));
            // Costs of a thousand million are not always proven to the last unit.
            assert!(
                proof.bound <= least && proof.is_infeasible() == least.is_none(),
                "seed {seed}: {least:?} {proof:?}"
            );
            assert!(
                least.is_none_or(|least| proof.score.broken == 0 && proof.score.cost - least <= least / 1_000_000),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn what_is_no_problem_is_told() {
        let mut problem = case(0);
        problem.guests[0].groups = vec![99];
        assert!(matches!(prove_from_initial(&problem), Err(ExactError::Flaw(_))));
    }

    #[test]
    fn what_is_no_start_is_told() {
        let problem = bare(3, 2);
        let told = |start: &[HostId]| prove(&problem, start, TIME).unwrap_err();
        assert_eq!(told(&[0]), ExactError::Start { has: 1, hosts: 3, wants: 2 });
        assert_eq!(told(&[0, 3]), ExactError::Start { has: 1, hosts: 3, wants: 2 });
        assert_eq!(told(&[0, 1, 2]), ExactError::Start { has: 3, hosts: 3, wants: 2 });
    }

    #[test]
    fn what_is_large_is_told_and_what_would_do_does() {
        let told = prove_from_initial(&bare(1 << 13, 1 << 10)).unwrap_err();
        let most = mip::FACTORS_MAX;
        let ExactError::TooLarge { factors, hosts, guests, .. } = told else { panic!("{told}") };
        assert_eq!(factors, 3 << 23);
        assert!(3 * hosts * guests <= most && 3 * (hosts + 8) * (guests + 1) > most, "{hosts} hosts, {guests} guests");
    }

    #[test]
    fn a_start_is_kept_if_nothing_is_better() {
        for seed in 0..20 {
            let best = prove_from_initial(&case(seed)).unwrap();
            let again = prove(&case(seed), &best.assignment, Duration::ZERO).unwrap();
            assert_eq!((&again.assignment, again.score), (&best.assignment, best.score), "seed {seed}");
            assert_eq!(prove(&case(seed), &best.assignment, TIME).unwrap(), best, "seed {seed}");
        }
    }

    #[test]
    fn without_time_there_is_a_bound_if_nothing_else() {
        for seed in 0..20 {
            let mut problem = case(seed);
            problem.groups.iter_mut().for_each(|group| group.apart = Some(Strength::Soft(1)));
            if let Some(bound) = prove(&problem, &problem.initial, Duration::ZERO).unwrap().bound {
                assert!(proven(&problem).is_none_or(|cost| bound <= cost), "seed {seed}");
            }
        }
    }
}
