//! Whole plans, checked by the simulator.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::simulate::{Outcome, Start, Violation, simulate};
use super::*;
use crate::dice::Dice;
use crate::problem::{Group, GuestId, HostId, NOWHERE, NeedsRule, Strength};

const BUDGET: u64 = 30;

fn planned(job: &Job) -> Plan {
    plan(job, 1, BUDGET).expect("it is a job")
}

/// Simulates a plan, asserts that nothing is wrong, and returns the outcome.
fn sound(job: &Job, plan: &Plan) -> Outcome {
    let outcome = simulate(job, plan, Start::Free);
    assert_eq!(outcome.violations, [], "{plan}");
    outcome
}

fn moves(plan: &Plan) -> Vec<(GuestId, HostId, HostId)> {
    let ends = plan.steps.iter().filter_map(|step| step.action.guest().zip(Some(step.action.ends())));
    ends.map(|(guest, (from, to))| (guest, from, to)).collect()
}

#[test]
fn those_that_are_in_place_stay() {
    assert_eq!(planned(&cases::job(&[4, 4], &[(2, 0, 0), (2, 1, 1)])), Plan::default());
}

#[test]
fn who_makes_room_goes_first() {
    let job = cases::job(&[4, 4, 4], &[(4, 0, 1), (4, 1, 2)]);
    let plan = planned(&job);
    assert_eq!(moves(&plan), [(1, 1, 2), (0, 0, 1)]);
    assert_eq!(plan.steps[1].waits, [0]);
    assert_eq!(plan.steps[1].why, Some(StepReason::Memory));
    let outcome = sound(&job, &plan);
    assert!((outcome.makespan - plan.makespan()).abs() < 1e-3);
}

#[test]
fn a_cycle_is_broken_by_the_cheaper_hop() {
    let plan = planned(&cases::swap());
    assert!(plan.is_complete());
    // The guest with 3 GB steps aside, not the one with 4.
    assert_eq!(moves(&plan), [(1, 1, 2), (0, 0, 1), (1, 2, 0)]);
    sound(&cases::swap(), &plan);
}

#[test]
fn a_hop_goes_where_rules_hold() {
    let mut job = cases::swap();
    // Guest 1 must not be on host 2, so the more expensive hop is taken.
    job.problem.owners = vec![[0, 1].into_iter().collect()];
    job.problem.guests[1].owners = Some(0);
    let plan = planned(&job);
    assert_eq!(moves(&plan), [(0, 0, 2), (1, 1, 0), (0, 2, 1)]);
    sound(&job, &plan);
}

#[test]
fn who_is_in_place_steps_aside_and_comes_back() {
    // Only guest 2 fits on host 2.
    let job = cases::job(&[5, 4, 1], &[(4, 0, 1), (4, 1, 0), (1, 0, 0)]);
    assert!(!planned(&job).is_complete(), "no room on host 2 for one of 4");
    let job = cases::job(&[5, 3, 1], &[(2, 0, 1), (3, 1, 0), (1, 0, 0), (2, 0, 0)]);
    assert!(!planned(&job).is_complete());
    let job = cases::job(&[4, 4, 2, 3], &[(3, 0, 1), (3, 1, 0), (1, 0, 0), (1, 1, 1)]);
    let plan = planned(&job);
    assert!(plan.is_complete(), "{plan}");
    sound(&job, &plan);
}

#[test]
fn an_unbreakable_cycle_is_told_and_the_rest_is_done() {
    let job = cases::job(&[4, 4, 2, 2], &[(4, 0, 1), (3, 1, 0), (2, 2, 3)]);
    let plan = planned(&job);
    assert_eq!(moves(&plan), [(2, 2, 3)]);
    let obstacle = Obstacle::Room { resource: 0, short: 3 };
    let first = Left::Guest { guest: 0, from: 0, to: 1, obstacle, behind: vec![1] };
    assert_eq!(plan.left[0], first);
    assert_eq!(
        plan.left[1].to_string(),
        "guest 1 stays host 1, and not host 0: there are 3 too few of resource 0; guests [0] should leave before"
    );
    sound(&job, &plan);
}

#[test]
fn nobody_steps_aside_for_what_cannot_be_in_the_end() {
    // Guest 0 would fit on host 1 if guest 1 left, but guest 1 could not come back.
    let job = cases::job(&[4, 4, 4], &[(2, 0, 1), (3, 1, 1)]);
    let plan = planned(&job);
    assert_eq!((moves(&plan), plan.left.len()), (vec![], 1));
}

#[test]
fn several_cycles_are_broken_at_once() {
    let mut job = cases::job(&[4, 4, 4, 4, 8], &[(4, 0, 1), (4, 1, 0), (4, 2, 3), (4, 3, 2)]);
    job.network.ports[4].inward *= 2.0;
    job.network.ports[4].outward *= 2.0;
    let plan = planned(&job);
    assert_eq!(moves(&plan).len(), 6);
    let at_once = plan.steps.iter().filter(|step| step.start == 0.0).count();
    assert_eq!(at_once, 2, "{plan}");
    sound(&job, &plan);
}

#[test]
fn those_apart_do_not_even_meet_on_the_way() {
    let mut job = cases::job(&[9, 9, 9], &[(2, 0, 1), (2, 1, 2)]);
    job.problem.groups = vec![crate::problem::Group { apart: Some(Strength::Hard), ..Default::default() }];
    job.problem.guests.iter_mut().for_each(|guest| guest.groups = vec![0]);
    let plan = planned(&job);
    assert_eq!(moves(&plan), [(1, 1, 2), (0, 0, 1)]);
    assert_eq!((plan.steps[1].why, &plan.steps[1].waits[..]), (Some(StepReason::Rule), &[0][..]));
    sound(&job, &plan);
}

#[test]
fn hosts_boot_before_and_shut_down_after() {
    let mut job = cases::job(&[4, 4], &[(4, 0, 1), (4, NOWHERE, 1), (1, 0, NOWHERE)]);
    job.problem.hosts[1].capacity[0] = 8;
    job.power[0] = Power { on_at_end: false, shutdown_seconds: 10.0, ..Power::ALWAYS };
    job.power[1] = Power { on: false, boot_seconds: 60.0, ..Power::ALWAYS };
    let plan = planned(&job);
    let of = |action| plan.steps.iter().position(|step| step.action == action).expect("it is planned");
    let (boot, shutdown) = (of(Action::Boot { host: 1 }), of(Action::Shutdown { host: 0 }));
    let (migrate, start) = (of(Action::Migrate { guest: 0, from: 0, to: 1 }), of(Action::Start { guest: 1, on: 1 }));
    assert!(plan.steps[migrate].waits.contains(&boot));
    assert_eq!(plan.steps[migrate].why, Some(StepReason::Power));
    assert_eq!(plan.steps[start].waits, [boot]);
    assert!(plan.steps[shutdown].waits.contains(&migrate));
    sound(&job, &plan);
}

#[test]
fn a_guest_that_writes_too_fast_is_told() {
    let mut job = cases::job(&[4, 4], &[(1, 0, 1)]);
    job.traffic[0] = Traffic { hot_bytes: 5e8, hot_seconds: 1.0, ..job.traffic[0] };
    let plan = planned(&job);
    let obstacle = Obstacle::Bandwidth { needs: None, has: cases::GIGABIT };
    assert_eq!(plan.left, [Left::Guest { guest: 0, from: 0, to: 1, obstacle, behind: vec![] }]);
}

#[test]
fn the_simulator_tells_what_is_wrong_with_a_plan() {
    let mut job = cases::swap();
    let mut plan = planned(&job);
    // All steps start at once, though they do not fit.
    plan.steps.iter_mut().for_each(|step| step.waits.clear());
    let told: Vec<Violation> = simulate(&job, &plan, Start::Free).violations.into_iter().map(|of| of.1).collect();
    assert!(told.contains(&Violation::Overload { host: 1, resource: 0, over: 3 }), "{told:?}");
    assert!(told.contains(&Violation::NotThere { step: 2 }), "{told:?}");
    // The link is too slow for what the guest writes.
    plan = planned(&job);
    job.traffic[0].hot_bytes = 1e8;
    plan.steps.iter_mut().for_each(|step| step.rate /= 4.0);
    let told: Vec<Violation> = simulate(&job, &plan, Start::Free).violations.into_iter().map(|of| of.1).collect();
    assert_eq!(told, [Violation::Downtime { guest: 0 }]);
    // Two migrations run at once where one is allowed, and a host is off.
    let mut job = cases::job(&[4, 4], &[(1, 0, 1), (1, 0, 1)]);
    let plan = planned(&job);
    job.limits[1].incoming = 0;
    job.power[1].on = false;
    let told: Vec<Violation> = simulate(&job, &plan, Start::Free).violations.into_iter().map(|of| of.1).collect();
    let expected = [Violation::Off { host: 1, guest: 0 }, Violation::Limit { host: 1 }, Violation::Power { host: 1 }];
    assert!(expected.iter().all(|of| told.contains(of)), "{told:?}");
}

#[test]
fn flows_share_a_link_fairly() {
    // Both guests leave host 0; one goes to a host that takes only a fifth of what host 0 sends.
    let mut job = cases::job(&[9, 9, 9], &[(1, 0, 1), (4, 0, 2)]);
    job.network.ports[1].inward = cases::GIGABIT / 5.0;
    job.traffic.iter_mut().for_each(|of| (of.hot_bytes, of.dirty_rate) = (0.0, 0.0));
    let step = |guest, to| Step {
        action: Action::Migrate { guest, from: 0, to },
        start: 0.0,
        end: 0.0,
        rate: f64::INFINITY,
        waits: vec![],
        why: None,
        under_way: false,
    };
    let plan = Plan { steps: vec![step(0, 1), step(1, 2)], ..Plan::default() };
    let outcome = simulate(&job, &plan, Start::Free);
    let ends: Vec<f64> = outcome.steps.iter().map(|times| times.expect("it ended").end).collect();
    // 1 GB at 25 MB/s, and 4 GB at 100 MB/s.
    assert!(ends.iter().all(|end| (end - 40.0).abs() < 1e-3), "{ends:?}");
}

#[test]
fn hardly_any_room_is_enough() {
    // Two guests have to step aside. One of them does so twice, and is already where it is to be.
    let job = cases::job(&[8, 5, 5], &[(2, 2, 1), (4, 1, 2), (1, 0, 0), (4, 0, 0), (3, 2, 1)]);
    let plan = planned(&job);
    assert!(plan.is_complete(), "{plan}");
    assert_eq!(moves(&plan).len(), 7);
    sound(&job, &plan);
}

/// Makes guests of 1 on three hosts, of which the second group needs the first where it is.
fn needing(guests: &[(HostId, HostId)], members: [&[GuestId]; 2]) -> Job {
    let guests: Vec<(i64, HostId, HostId)> = guests.iter().map(|(from, to)| (1, *from, *to)).collect();
    let mut job = cases::job(&[4, 4, 4], &guests);
    (0..).zip(&mut job.problem.hosts).for_each(|(area, host)| host.areas = vec![area]);
    let need = NeedsRule { level: 0, of: 1, strength: Strength::Hard };
    job.problem.groups = vec![Group { needs: vec![need], ..Group::default() }, Group::default()];
    for (group, members) in (0..).zip(members) {
        members.iter().for_each(|guest| job.problem.guests[*guest as usize].groups.push(group));
    }
    job
}

#[test]
fn who_is_in_what_it_needs_has_itself_wherever_it_is() {
    let job = needing(&[(0, 1)], [&[0], &[0]]);
    let plan = planned(&job);
    assert!(plan.is_complete() && plan.broken.is_empty(), "{plan}");
    sound(&job, &plan);
}

#[test]
fn two_that_cannot_go_one_after_the_other_break_their_need_and_that_is_told() {
    let job = needing(&[(0, 1), (0, 1)], [&[1], &[0]]);
    let plan = planned(&job);
    assert!(plan.is_complete(), "{plan}");
    assert_eq!(plan.broken, [0]);
    sound(&job, &plan);
    // Another needed guest stays, so the two can move one after the other.
    let job = needing(&[(0, 1), (0, 1), (0, 0), (1, 1)], [&[1], &[0, 2, 3]]);
    let plan = planned(&job);
    assert!(plan.is_complete() && plan.broken.is_empty(), "{plan}");
    sound(&job, &plan);
}

/// Returns whether the guests of a job without rules can get to their goals one after the other.
fn is_possible(job: &Job) -> bool {
    let (problem, mut open, mut known) = (&job.problem, vec![job.problem.initial.clone()], BTreeSet::new());
    while let Some(at) = open.pop() {
        if at == job.goal {
            return true;
        }
        if !known.insert(at.clone()) {
            continue;
        }
        for (guest, of) in problem.guests.iter().enumerate() {
            for to in (0..problem.hosts.len() as HostId).filter(|to| *to != at[guest]) {
                let there = problem.guests.iter().zip(&at).filter(|(_, host)| **host == to);
                let used: i64 = there.map(|(other, _)| other.demand[0]).sum();
                if used + of.demand[0] <= problem.hosts[to as usize].capacity[0] {
                    let mut next = at.clone();
                    next[guest] = to;
                    open.push(next);
                }
            }
        }
    }
    false
}

/// Carries a plan out in a random order. Returns the rest of the job after this many events, with what is under way.
fn carry_out(job: &Job, plan: &Plan, dice: &mut Dice, events: usize) -> Job {
    let mut progress = Progress::new(plan);
    for _ in 0..events {
        let (ready, running) = (progress.ready(), progress.running());
        if progress.is_over() {
            break;
        }
        if running.is_empty() || (!ready.is_empty() && dice.chance(0.6)) {
            progress.start(*dice.pick(&ready)).expect("it may start");
        } else {
            let step = *dice.pick(&running);
            if dice.chance(0.1) { progress.fail(step) } else { progress.done(step) }.expect("it runs");
        }
    }
    progress.rest(job, |step| (plan.steps[step].end - plan.steps[step].start) / 2.0)
}

#[test]
fn guests_that_go_to_hosts_with_room_need_not_wait() {
    let job = cases::job(&[8, 8, 8], &[(2, 0, 1), (2, 0, 1), (2, 0, 2), (6, 1, 0)]);
    let plan = plan(&job, 1, BUDGET).unwrap();
    let waits = waits_for_room(&job, &plan);
    let step = |guest| plan.steps.iter().position(|step| step.action.guest() == Some(guest)).unwrap();
    assert!(plan.steps[..3].iter().any(|step| !step.waits.is_empty()), "{plan}");
    assert!([0, 1, 2].iter().all(|guest| !waits[step(*guest)].contains(&step(2))), "{plan}");
    assert!(!waits[step(3)].is_empty(), "the last needs the room of others: {plan}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Checks that no plan has a violation, that all guests get to their goals or the plan says why not, and that the
    /// planner's times are the simulator's.
    #[test]
    fn plans_are_sound(seed: u64) {
        let job = cases::any(&mut Dice::new(seed));
        let plan = plan(&job, seed, BUDGET).unwrap();
        let outcome = simulate(&job, &plan, Start::Free);
        prop_assert_eq!(&outcome.violations, &[], "{}", plan);
        prop_assert!(outcome.makespan <= plan.makespan() * (1.0 + 1e-6) + 1e-3, "{} {}", outcome.makespan, plan);
        prop_assert_eq!(&super::plan(&job, seed, BUDGET).unwrap(), &plan);
        prop_assert_eq!(simulate(&job, &plan, Start::AsPlanned).violations, []);
        let initial = &job.problem.initial;
        let stays = |left: &Left| matches!(left, Left::Guest { guest, from, .. } if *from != initial[*guest as usize]);
        prop_assert!(!plan.left.iter().any(stays), "somebody is left on the way\n{}", plan);
    }

    /// Checks that all guests on three hosts with hardly any room get to their goals, one after the other if need be,
    /// if that is possible at all.
    #[test]
    fn what_is_possible_is_planned(seed: u64) {
        let dice = &mut Dice::new(seed);
        let mut room = [[(); 3]; 2].map(|ends| ends.map(|()| 4 + dice.below(5) as i64));
        room[1] = room[0];
        let capacities = room[0];
        let mut guests = Vec::new();
        for _ in 0..6 {
            let (used, from, to) = (1 + dice.below(4) as i64, dice.below(3), dice.below(3));
            if room[0][from] >= used && room[1][to] >= used {
                (room[0][from], room[1][to]) = (room[0][from] - used, room[1][to] - used);
                guests.push((used, from as HostId, to as HostId));
            }
        }
        let job = cases::job(&capacities, &guests);
        let plan = plan(&job, seed, BUDGET).unwrap();
        prop_assert_eq!(plan.is_complete(), is_possible(&job), "{:?} {:?}\n{}", capacities, guests, plan);
        prop_assert_eq!(simulate(&job, &plan, Start::Free).violations, []);
    }

    /// Checks that wherever a plan is stopped, and however it went, a new plan brings all guests to their goals.
    #[test]
    fn what_is_stopped_can_be_planned_anew(seed: u64) {
        let dice = &mut Dice::new(seed);
        let mut job = cases::roomy(dice);
        for _ in 0..3 {
            let plan = plan(&job, seed, 5).unwrap();
            prop_assert!(plan.is_complete(), "{}", plan);
            let outcome = simulate(&job, &plan, Start::Free);
            prop_assert_eq!(outcome.violations, [], "{}", plan);
            let events = dice.below(2 * plan.steps.len() + 1);
            job = carry_out(&job, &plan, dice, events);
            prop_assert_eq!(job.check(), Ok(()));
        }
    }

    /// Checks that what steps wait for suffices for every other timing: no violation occurs with other durations.
    #[test]
    fn other_durations_break_nothing(seed: u64) {
        let dice = &mut Dice::new(seed);
        let job = cases::any(dice);
        let plan = plan(&job, seed, 5).unwrap();
        let mut other = job.clone();
        for traffic in &mut other.traffic {
            *traffic = Traffic { memory_bytes: traffic.memory_bytes * (0.2 + 3.0 * dice.unit()), ..Traffic::default() };
        }
        let violations = simulate(&other, &plan, Start::Free).violations;
        prop_assert_eq!(violations, [], "{}", plan);
    }

    /// Checks that waiting for room and rules alone breaks neither, whatever the durations. Limits and links are for
    /// whoever carries the plan out.
    #[test]
    fn waiting_for_room_suffices(seed: u64) {
        let dice = &mut Dice::new(seed);
        let job = cases::any(dice);
        let mut plan = plan(&job, seed, 5).unwrap();
        let waits = waits_for_room(&job, &plan);
        plan.steps.iter_mut().zip(waits).for_each(|(step, waits)| step.waits = waits);
        let mut other = job.clone();
        for traffic in &mut other.traffic {
            *traffic = Traffic { memory_bytes: traffic.memory_bytes * (0.2 + 3.0 * dice.unit()), ..Traffic::default() };
        }
        let mut violations = simulate(&other, &plan, Start::Free).violations;
        violations.retain(|(_, of)| !matches!(of, Violation::Limit { .. } | Violation::Downtime { .. }));
        prop_assert_eq!(violations, [], "{}", plan);
    }

    /// Checks that no content of a job makes the planner panic.
    #[test]
    fn a_spoilt_job_is_told(
        seed: u64,
        amount in prop_oneof![Just(f64::NAN), Just(-1.0), Just(0.0), Just(1e18), 0.0..1e9],
    ) {
        let dice = &mut Dice::new(seed);
        let mut job = cases::any(dice);
        let guests = job.traffic.len();
        if guests > 0 {
            let of = &mut job.traffic[dice.below(guests)];
            let fields = [&mut of.memory_bytes, &mut of.hot_bytes, &mut of.hot_seconds, &mut of.dirty_rate];
            let which = dice.below(4);
            *fields.into_iter().nth(which).unwrap() = amount;
            job.goal[dice.below(guests)] = dice.below(8) as HostId;
        }
        job.network.ports[0].inward = amount;
        if let Ok(plan) = plan(&job, seed, 2) {
            simulate(&job, &plan, Start::Free);
        }
    }
}

/// Makes two hosts, on each a guest of either kind; guests of different kinds are to be apart. There is a rule for each
/// pair.
fn crossed(exchange: bool) -> Job {
    let mut job = cases::job(&[9, 9], &[(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]);
    let pairs: &[[usize; 2]] = if exchange { &[[0, 1], [0, 3], [2, 1], [2, 3]] } else { &[[0, 3], [2, 1]] };
    for (id, pair) in (0..).zip(pairs) {
        job.problem.groups.push(Group { apart: Some(Strength::Hard), ..Group::default() });
        pair.iter().for_each(|guest| job.problem.guests[*guest].groups.push(id));
    }
    job
}

#[test]
fn rules_are_exchanged_where_no_more_are_broken_than_now() {
    let job = crossed(true);
    let plan = planned(&job);
    assert!(plan.is_complete(), "{plan}");
    assert_eq!((plan.steps.len(), &plan.helps[..]), (2, &[][..]));
    // The guests move one after the other, though the hosts could take both at once.
    assert_eq!(plan.steps[1].waits, [0]);
    let outcome = simulate(&job, &plan, Start::Free);
    assert_eq!(outcome.violations, []);
    let lapse = &outcome.lapses[..];
    assert!(matches!(lapse, [of] if of.start > 0.0 && of.end > of.start), "{lapse:?}");
    // The simulator does not trust the plan: moving both at once is worse than before.
    let mut at_once = plan;
    at_once.exchanged.clear();
    let told: Vec<_> = simulate(&job, &at_once, Start::Free).violations.into_iter().map(|of| of.1).collect();
    assert!(matches!(told[..], [simulate::Violation::Apart { .. }, ..]), "{told:?}");
}

#[test]
fn what_was_whole_is_not_exchanged_and_what_would_help_is_told() {
    let job = crossed(false);
    let plan = planned(&job);
    // Nothing is broken now, and a rule would be broken on the way.
    assert_eq!((plan.steps.len(), plan.left.len()), (0, 2), "{plan}");
    assert!(!plan.helps.is_empty());
}

#[test]
fn a_plan_that_breaks_more_than_before_is_found_out() {
    let mut job = crossed(true);
    let plan = planned(&job);
    // This is as if one pair fewer were broken now.
    job.problem.groups[0].apart = None;
    let told: Vec<_> = simulate(&job, &plan, Start::Free).violations.into_iter().map(|of| of.1).collect();
    let worse = [simulate::Violation::Worse { broken: 2, before: 1 }];
    let is_better_way = planned(&job).is_complete();
    assert!(told == worse || told.is_empty() && is_better_way, "{told:?}");
}

#[test]
fn groups_apart_do_not_meet_on_the_way() {
    let mut job = cases::job(&[9, 9, 9], &[(2, 0, 1), (2, 1, 2)]);
    job.problem.levels = vec![3];
    (0..).zip(&mut job.problem.hosts).for_each(|(area, host)| host.areas = vec![area]);
    let avoid = crate::problem::Avoid { level: 0, of: 1, strength: Strength::Hard };
    job.problem.groups = vec![Group { avoids: vec![avoid], ..Group::default() }, Group::default()];
    (0..).zip(&mut job.problem.guests).for_each(|(group, guest)| guest.groups = vec![group]);
    let plan = planned(&job);
    assert_eq!(moves(&plan), [(1, 1, 2), (0, 0, 1)]);
    assert_eq!((plan.steps[1].why, &plan.steps[1].waits[..]), (Some(StepReason::Rule), &[0][..]));
    sound(&job, &plan);
    // If they moved at once, they would meet.
    let mut at_once = plan;
    at_once.steps.iter_mut().for_each(|step| step.waits.clear());
    let told = simulate(&job, &at_once, Start::Free).violations;
    assert!(told.iter().any(|(_, of)| *of == simulate::Violation::Rule { breach: "avoid", group: 0 }), "{told:?}");
}
