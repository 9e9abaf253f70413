//! Runs a day, and measures it.

use serde::Serialize;

use super::policy::{CPU, MEMORY, Policy, Seen};
use super::{Kind, World};
use crate::planetlab::{SAMPLE_S, SAMPLES};
use skein_placement::policy::dynamic::BadRound;
use skein_placement::problem::{GuestId, HostId, Problem};

/// The additional CPU on both hosts while a guest moves, as a part of what it uses (Beloglazov, Buyya 2012, section
/// 3.3).
const MOVE_CPU: f64 = 0.1;
/// The minutes of a sample.
const SAMPLE_MIN: u32 = SAMPLE_S / 60;

/// The result of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// The policy that was replayed.
    pub policy: Kind,
    /// How many hosts there were.
    pub hosts: usize,
    /// How many guests there were.
    pub guests: usize,
    /// How many steps of five minutes were played.
    pub steps: usize,
    /// The minutes in which the guests of a host wanted more CPU than it has, summed over all hosts.
    pub overload_min: f64,
    /// The longest time, in whole samples, for which a host was overloaded at the end of each sample while a single
    /// move would have ended that. This is in hindsight, by what was used then, which the policy did not know when it
    /// decided.
    pub longest_min: u32,
    /// The longest time, in whole samples, for which a host had been overloaded when the policy left it so, though by
    /// the last sample, which the policy knew, a single move would have ended that. It is 5 if the policy waits for one
    /// more sample, as the load may be a spike.
    pub left_alone_min: u32,
    /// The part of the CPU that guests wanted and did not get.
    pub lost: f64,
    /// The number of moves in all.
    pub moves: u32,
    /// The number of moves of the guest that moved most often.
    pub guest_moves_max: u32,
    /// The number of moves that were decided but not possible: there was no memory, or the move would not have ended
    /// within the step.
    pub refused: u32,
}

/// A move within a step.
struct Moving {
    guest: usize,
    from: usize,
    to: usize,
    start_s: f64,
    end_s: f64,
}

/// A day that is played to a policy.
pub struct Replay<'a> {
    world: &'a World,
    /// The problem, with where each guest is now as [`Problem::initial`].
    problem: Problem,
    policy: Box<dyn Policy>,
    moves_of: Vec<u32>,
    /// For each host, the number of samples in a row at whose end it was overloaded.
    runs: Vec<u32>,
    wanted: f64,
    not_got: f64,
    report: ReplayReport,
}

impl<'a> Replay<'a> {
    /// Begins the day.
    pub fn new(world: &'a World, policy: Kind) -> Replay<'a> {
        Replay::with(world, policy, policy.policy())
    }

    fn with(world: &'a World, kind: Kind, policy: Box<dyn Policy>) -> Replay<'a> {
        let (hosts, guests) = (world.problem.hosts.len(), world.problem.guests.len());
        Replay {
            world,
            problem: world.problem.clone(),
            policy,
            moves_of: vec![0; guests],
            runs: vec![0; hosts],
            wanted: 0.0,
            not_got: 0.0,
            report: ReplayReport {
                policy: kind,
                hosts,
                guests,
                steps: 0,
                overload_min: 0.0,
                longest_min: 0,
                left_alone_min: 0,
                lost: 0.0,
                moves: 0,
                guest_moves_max: 0,
                refused: 0,
            },
        }
    }

    /// Plays the next of the [`SAMPLES`] steps. Returns `false` if the day is over.
    ///
    /// # Errors
    ///
    /// [`BadRound`] if the policy cannot decide.
    pub fn step(&mut self) -> Result<bool, BadRound> {
        let step = self.report.steps;
        if step == SAMPLES {
            return Ok(false);
        }
        let used: Vec<i64> = (0..self.moves_of.len()).map(|guest| self.world.used(guest, step)).collect();
        let moving = self.decide(step)?;
        let pieces = pieces(&self.problem.initial, &used, self.runs.len(), &moving);
        self.carry_out(&moving);
        if let Some(before) = step.checked_sub(1) {
            self.count_left_alone(before);
        }
        self.wanted += used.iter().sum::<i64>() as f64 * f64::from(SAMPLE_S);
        for (host, pieces) in pieces.iter().enumerate() {
            self.count(host, pieces, &used);
        }
        self.report.steps += 1;
        self.report.lost = if self.wanted > 0.0 { self.not_got / self.wanted } else { 0.0 };
        Ok(true)
    }

    /// Returns the result until now.
    pub fn report(&self) -> &ReplayReport {
        &self.report
    }

    /// Returns the moves of a step. Nothing is known before the first step.
    fn decide(&mut self, step: usize) -> Result<Vec<Moving>, BadRound> {
        let Some(before) = step.checked_sub(1) else { return Ok(Vec::new()) };
        let guests = 0..self.moves_of.len();
        let used: Vec<i64> = guests.clone().map(|guest| self.world.used(guest, before)).collect();
        let sends_s: Vec<f64> = guests.map(|guest| self.world.sends_s(guest, before)).collect();
        let now_s = step as u64 * u64::from(SAMPLE_S);
        let seen = Seen { problem: &self.problem, now_s, used: &used, sends_s: &sends_s };
        let decided = self.policy.decide(&seen)?;
        let moving = start(self.world, step, &self.problem.initial, &decided);
        self.report.refused += (decided.len() - moving.len()) as u32;
        Ok(moving)
    }

    fn carry_out(&mut self, moving: &[Moving]) {
        for moved in moving {
            self.problem.initial[moved.guest] = moved.to as HostId;
            self.moves_of[moved.guest] += 1;
            self.report.guest_moves_max = self.report.guest_moves_max.max(self.moves_of[moved.guest]);
        }
        self.report.moves += moving.len() as u32;
    }

    /// Counts the hosts that were overloaded, and still are with the moves that are under way.
    fn count_left_alone(&mut self, before: usize) {
        let used: Vec<i64> = (0..self.moves_of.len()).map(|guest| self.world.used(guest, before)).collect();
        for host in (0..self.runs.len()).filter(|host| self.runs[*host] > 0) {
            if is_endable(&self.problem, &used, host) {
                self.report.left_alone_min = self.report.left_alone_min.max(self.runs[host] * SAMPLE_MIN);
            }
        }
    }

    fn count(&mut self, host: usize, pieces: &[(f64, f64)], used: &[i64]) {
        let capacity = self.problem.hosts[host].capacity[CPU] as f64;
        for (load, seconds) in pieces.iter().filter(|(load, _)| *load > capacity) {
            self.report.overload_min += seconds / 60.0;
            self.not_got += (load - capacity) * seconds;
        }
        let is_over = pieces.last().is_some_and(|(load, _)| *load > capacity);
        self.runs[host] = if is_over { self.runs[host] + 1 } else { 0 };
        let minutes = self.runs[host] * SAMPLE_MIN;
        if minutes > self.report.longest_min && is_endable(&self.problem, used, host) {
            self.report.longest_min = minutes;
        }
    }
}

/// Returns the moves that are possible, one after the other on each host.
fn start(world: &World, step: usize, at: &[HostId], decided: &[(GuestId, HostId)]) -> Vec<Moving> {
    let problem = &world.problem;
    let memory = |guest: usize| problem.guests[guest].demand[MEMORY];
    let mut free: Vec<i64> = problem.hosts.iter().map(|host| host.capacity[MEMORY]).collect();
    at.iter().enumerate().for_each(|(guest, host)| free[*host as usize] -= memory(guest));
    let mut idle_s = vec![0.0f64; problem.hosts.len()];
    let mut is_moving = vec![false; at.len()];
    let mut moving = Vec::new();
    for (guest, to) in decided.iter().map(|(guest, to)| (*guest as usize, *to as usize)) {
        let from = at[guest] as usize;
        let start_s = idle_s[from].max(idle_s[to]);
        let end_s = start_s + world.sends_s(guest, step);
        if from == to || is_moving[guest] || free[to] < memory(guest) || end_s > f64::from(SAMPLE_S) {
            continue;
        }
        // The memory of the host that is left is not counted as free before the next step.
        free[to] -= memory(guest);
        (idle_s[from], idle_s[to], is_moving[guest]) = (end_s, end_s, true);
        moving.push(Moving { guest, from, to, start_s, end_s });
    }
    moving
}

/// Returns what is wanted of each host's CPU over a step, as pairs of the amount and its seconds.
fn pieces(at: &[HostId], used: &[i64], hosts: usize, moving: &[Moving]) -> Vec<Vec<(f64, f64)>> {
    let mut base = vec![0i64; hosts];
    at.iter().zip(used).for_each(|(host, used)| base[*host as usize] += used);
    let mut changes: Vec<Vec<(f64, f64)>> = vec![Vec::new(); hosts];
    for moved in moving {
        let used = used[moved.guest] as f64;
        let more = MOVE_CPU * used;
        for (host, then) in [(moved.from, -used), (moved.to, used)] {
            changes[host].push((moved.start_s, more));
            changes[host].push((moved.end_s, then - more));
        }
    }
    base.iter()
        .zip(changes)
        .map(|(base, changes)| {
            // A host takes part in one move at a time, so its changes are in order.
            let (mut load, mut since) = (*base as f64, 0.0);
            let mut pieces = Vec::new();
            for (when, by) in changes {
                if when > since {
                    pieces.push((load, when - since));
                }
                (load, since) = (load + by, when);
            }
            pieces.push((load, f64::from(SAMPLE_S) - since));
            pieces
        })
        .collect()
}

/// Returns whether a host is overloaded and one move would end that.
fn is_endable(problem: &Problem, used: &[i64], host: usize) -> bool {
    let memory = |guest: usize| problem.guests[guest].demand[MEMORY];
    let mut free: Vec<[i64; 2]> =
        problem.hosts.iter().map(|host| [host.capacity[CPU], host.capacity[MEMORY]]).collect();
    for (guest, host) in problem.initial.iter().enumerate() {
        free[*host as usize][CPU] -= used[guest];
        free[*host as usize][MEMORY] -= memory(guest);
    }
    let fits =
        |guest: usize, to: usize| to != host && free[to][CPU] >= used[guest] && free[to][MEMORY] >= memory(guest);
    let ends = |guest: usize| free[host][CPU] + used[guest] >= 0 && (0..free.len()).any(|to| fits(guest, to));
    free[host][CPU] < 0 && (0..used.len()).filter(|guest| problem.initial[*guest] as usize == host).any(ends)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::planetlab::Trace;
    use crate::replay::Setup;
    use skein_placement::dice::Dice;

    fn setup(hosts: usize) -> Setup {
        Setup { hosts, ..Setup::default() }
    }

    /// Makes traces of machines that are mostly idle, with spikes; some of them are busy for hours.
    fn traces(dice: &mut Dice, machines: usize) -> Vec<Trace> {
        let machine = |dice: &mut Dice| {
            let (busy, from) = (dice.chance(0.1), dice.below(SAMPLES));
            let mut trace = [0; SAMPLES];
            for (n, sample) in trace.iter_mut().enumerate() {
                let is_up = dice.chance(0.02) || busy && (from..from + 80).contains(&n);
                *sample = if is_up { 60 + dice.below(40) } else { dice.below(12) } as u8;
            }
            trace
        };
        (0..machines).map(|_| machine(dice)).collect()
    }

    /// A policy that moves given guests at given steps.
    struct Script(Vec<(usize, GuestId, HostId)>);

    impl Policy for Script {
        fn decide(&mut self, seen: &Seen) -> Result<Vec<(GuestId, HostId)>, BadRound> {
            let now = self.0.iter().filter(|(step, ..)| *step as u64 * u64::from(SAMPLE_S) == seen.now_s);
            Ok(now.map(|(_, guest, to)| (*guest, *to)).collect())
        }
    }

    fn played(mut replay: Replay) -> ReplayReport {
        while replay.step().unwrap() {}
        replay.report().clone()
    }

    fn run(world: &World, policy: Kind) -> ReplayReport {
        played(Replay::new(world, policy))
    }

    fn script(world: &World, moves: Vec<(usize, GuestId, HostId)>) -> ReplayReport {
        played(Replay::with(world, Kind::Still, Box::new(Script(moves))))
    }

    #[test]
    fn what_is_measured_is_what_was() {
        // There are two hosts and eight guests. Three of the guests, all on the first host, are busy from step 10 to
        // 19.
        let mut day = vec![[10; SAMPLES]; 8];
        let setup = Setup { memory_used: 0.4, ..setup(2) };
        let still = World::new(&day, &setup).unwrap();
        let first: Vec<usize> = (0..8).filter(|guest| still.problem.initial[*guest] == 0).take(3).collect();
        first.iter().for_each(|guest| day[*guest][10..20].fill(100));
        let mut world = World::new(&day, &setup).unwrap();
        let size: i64 = first.iter().map(|guest| world.mips[*guest] * 100).sum();
        world.problem.hosts.iter_mut().for_each(|host| host.capacity[CPU] = size * 9 / 10);
        let of = run(&world, Kind::Still);
        assert_eq!((of.steps, of.moves, of.guest_moves_max), (SAMPLES, 0, 0));
        assert_eq!((of.overload_min, of.longest_min, of.left_alone_min), (50.0, 50, 50));
        assert!(of.lost > 0.0);
        // The overload was known after step 10, and ends in step 11 when the guest has moved.
        let guest = first[0];
        let moved = script(&world, vec![(11, guest as GuestId, 1)]);
        let seconds = world.sends_s(guest, 11);
        assert_eq!((moved.longest_min, moved.left_alone_min, moved.moves, moved.guest_moves_max), (5, 0, 1, 1));
        assert!((moved.overload_min - 5.0 - seconds / 60.0).abs() < 1e-6, "{} {seconds}", moved.overload_min);
        assert!(moved.lost < of.lost);
        let later = script(&world, vec![(12, guest as GuestId, 1)]);
        assert_eq!((later.longest_min, later.left_alone_min), (10, 5));
    }

    #[test]
    fn what_is_not_possible_is_refused() {
        let world = World::new(&[[10; SAMPLES]; 6], &Setup { memory_used: 1.0, ..setup(2) });
        let world = world.unwrap_or_else(|_| World::new(&[[10; SAMPLES]; 6], &setup(2)).unwrap());
        let of = script(&world, (0..6).map(|guest| (5, guest, 0)).collect());
        assert!(of.refused >= 3 && of.moves < 4, "{of:?}");
    }

    #[test]
    fn a_world_that_cannot_be_is_told() {
        let day = vec![[10; SAMPLES]; 4];
        let told = |traces: &[Trace], setup: Setup| World::new(traces, &setup).expect_err("it cannot be").to_string();
        assert_eq!(told(&day, setup(0)), "there have to be 1 to as many hosts as guests");
        assert_eq!(told(&day, setup(5)), "there have to be 1 to as many hosts as guests");
        let part = |cpu_used| Setup { cpu_used, ..setup(2) };
        assert!(told(&day, part(0.0)).starts_with("the used part"));
        assert!(told(&day, part(f64::NAN)).starts_with("the used part"));
        assert_eq!(told(&[[0; SAMPLES]; 4], setup(2)), "no guest uses any CPU");
    }

    #[test]
    fn ours_moves_less_for_less_overload_than_the_others() {
        let world = World::new(&traces(&mut Dice::new(7), 120), &setup(10)).unwrap();
        let ours = run(&world, Kind::Ours);
        assert!(ours.overload_min < run(&world, Kind::Still).overload_min, "{ours:?}");
        for other in [Kind::Greedy, Kind::Thresholds].map(|kind| run(&world, kind)) {
            assert!(ours.moves < other.moves && ours.overload_min < other.overload_min, "{ours:?} {other:?}");
        }
        assert!(ours.guest_moves_max <= 3, "{ours:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Checks for any day that no guest moves more than three times, that moves are possible, and that the same day
        /// ends the same.
        #[test]
        fn days_end(seed: u64) {
            let world = World::new(&traces(&mut Dice::new(seed), 30), &Setup { seed, ..setup(4) });
            let Ok(world) = world else { return Ok(()) };
            let of = run(&world, Kind::Ours);
            prop_assert_eq!(&run(&world, Kind::Ours), &of);
            prop_assert!(of.guest_moves_max <= 3 && (0.0..1.0).contains(&of.lost));
        }
    }
}
