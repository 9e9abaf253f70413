//! Plays a recorded day to a policy and measures the result. The policy sees what was used until now, and moves guests.
//!
//! The world is CloudSim's PlanetLab example (Beloglazov, Buyya: "Optimal online deterministic algorithms and adaptive
//! heuristics", CCPE 24, 2012) with less spare capacity. Guests are of CloudSim's four flavours, but drawn by a seed.
//! CloudSim has 800 hosts that are mostly idle. Here the number of hosts is given, and they are as large as makes them
//! as busy as is asked for, but not smaller than the largest flavour. As in CloudSim, a guest that moves uses 10 % more
//! CPU on both hosts while it does, and moves over half of a link of 1 Gbit/s. A host takes part in one move at a time.

mod baseline;
mod foresight;
mod policy;
mod run;

use policy::{CPU, MEMORY, Policy, SAFE};
pub use run::{Replay, ReplayReport};

use serde::Serialize;
use thiserror::Error;

use crate::planetlab::{SAMPLES, Trace};
use skein_placement::dice::Dice;
use skein_placement::problem::{Guest, Host, HostId, HostMoves, Problem, Resource, Weights};
use skein_placement::schedule::{Traffic, forecast};

/// MIPS and MB of each of CloudSim's flavours (examples/power/Constants.java: VM_MIPS, VM_RAM).
const FLAVOURS: [(i64, i64); 4] = [(2500, 870), (2000, 1740), (1000, 1740), (500, 613)];
/// The bytes per second of a move: half of a link of 1 Gbit/s.
const LINK: f64 = 62.5e6;
/// How much memory a fully busy guest dirties: a fifth of that rate.
const DIRTY_AT_FULL: f64 = LINK / 5.0;
/// How long a guest may stand still.
const DOWNTIME_S: f64 = 0.3;

/// The policy that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Moves no guest.
    Still,
    /// Uses [`dynamic`](skein_placement::policy::dynamic) with a
    /// [`Forecast`](skein_placement::policy::forecast::LoadForecast) of each guest's CPU.
    Ours,
    /// Moves one guest from the most to the least loaded host in each round, with one round for each sample.
    Greedy,
    /// Does the same with ten rounds for each sample.
    GreedyOften,
    /// Takes guests from each host that uses more than 80 % of its CPU until it uses less.
    Thresholds,
}

impl Kind {
    /// All policies.
    pub const ALL: [Kind; 5] = [Kind::Still, Kind::Thresholds, Kind::Greedy, Kind::GreedyOften, Kind::Ours];

    fn policy(self) -> Box<dyn Policy> {
        match self {
            Kind::Still => Box::new(baseline::Still),
            Kind::Ours => Box::new(foresight::Foresight::default()),
            Kind::Greedy => Box::new(baseline::MostToLeast { rounds: 1 }),
            Kind::GreedyOften => Box::new(baseline::MostToLeast { rounds: 10 }),
            Kind::Thresholds => Box::new(baseline::Threshold),
        }
    }
}

/// The size of the world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// How many hosts there are.
    pub hosts: usize,
    /// The part of all CPU that is used on the average of the day, unless hosts would have to be smaller than a guest
    /// for it.
    pub cpu_used: f64,
    /// The part of all memory that is used.
    pub memory_used: f64,
    /// The seed that draws the guests' flavours.
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { hosts: 100, cpu_used: 0.6, memory_used: 0.75, seed: 1 }
    }
}

/// Why there can be no such world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadSetup {
    /// There are no hosts, or more hosts than guests.
    #[error("there have to be 1 to as many hosts as guests")]
    Hosts,
    /// A part is not above 0 and up to 1.
    #[error("the used part of CPU and of memory has to be above 0, up to 1")]
    Used,
    /// No guest uses any CPU all day.
    #[error("no guest uses any CPU")]
    Idle,
    /// The guests do not fit into the hosts' memory.
    #[error("guests do not fit into the hosts' memory: take a lower part of it")]
    Memory,
}

/// The hosts, and the guests with what they will use.
#[derive(Clone, Debug)]
pub struct World {
    /// The problem before anything is measured: the guests' demands are their sizes.
    problem: Problem,
    traces: Vec<Trace>,
    mips: Vec<i64>,
}

impl World {
    /// Makes the hosts and guests for a day's traces.
    ///
    /// # Errors
    ///
    /// [`BadSetup`] if there can be no such world.
    pub fn new(traces: &[Trace], setup: &Setup) -> Result<World, BadSetup> {
        let is_part = |part: f64| part > 0.0 && part <= 1.0;
        if setup.hosts == 0 || setup.hosts > traces.len() {
            return Err(BadSetup::Hosts);
        }
        if !is_part(setup.cpu_used) || !is_part(setup.memory_used) {
            return Err(BadSetup::Used);
        }
        let dice = &mut Dice::new(setup.seed);
        let flavours: Vec<(i64, i64)> = traces.iter().map(|_| *dice.pick(&FLAVOURS)).collect();
        let day = |trace: &Trace| trace.iter().map(|percent| i64::from(*percent)).sum::<i64>();
        let cpu: i64 = traces.iter().zip(&flavours).map(|(trace, (mips, _))| mips * day(trace)).sum();
        let memory: i64 = flavours.iter().map(|(_, memory)| memory).sum();
        let each = |all: f64, used: f64| (all / setup.hosts as f64 / used).ceil() as i64;
        let largest = FLAVOURS.map(|(mips, _)| mips * 100).into_iter().max().unwrap_or(0);
        let capacity = vec![
            each(cpu as f64 / SAMPLES as f64, setup.cpu_used).max(largest),
            each(memory as f64, setup.memory_used),
        ];
        if cpu == 0 {
            return Err(BadSetup::Idle);
        }
        let guest = |(mips, memory): &(i64, i64)| Guest {
            demand: vec![mips * 100, *memory],
            groups: Vec::new(),
            move_cost: 1,
            owners: None,
            preference: None,
        };
        let safe = vec![(capacity[CPU] as f64 * SAFE) as i64, capacity[MEMORY]];
        let host = Host { areas: Vec::new(), capacity, safe };
        let problem = Problem {
            resources: vec![
                Resource { transient: false, load_weight: 0 },
                Resource { transient: true, load_weight: 0 },
            ],
            levels: Vec::new(),
            hosts: vec![host; setup.hosts],
            groups: Vec::new(),
            initial: spread(&flavours, setup.hosts),
            guests: flavours.iter().map(guest).collect(),
            balances: Vec::new(),
            weights: Weights::default(),
            host_moves: HostMoves::Uniform(0),
            owners: Vec::new(),
            preferences: Vec::new(),
        };
        let mut used = vec![0; setup.hosts];
        problem.initial.iter().zip(&flavours).for_each(|(host, (_, memory))| used[*host as usize] += memory);
        if used.iter().any(|used| *used > problem.hosts[0].capacity[MEMORY]) {
            return Err(BadSetup::Memory);
        }
        Ok(World { problem, traces: traces.to_vec(), mips: flavours.iter().map(|(mips, _)| *mips).collect() })
    }

    /// Returns what a guest uses in a step.
    fn used(&self, guest: usize, step: usize) -> i64 {
        self.mips[guest] * i64::from(self.traces[guest][step])
    }

    /// Returns how many seconds a guest takes to move in a step.
    fn sends_s(&self, guest: usize, step: usize) -> f64 {
        let traffic = Traffic {
            memory_bytes: self.problem.guests[guest].demand[MEMORY] as f64 * 1e6,
            dirty_rate: DIRTY_AT_FULL * f64::from(self.traces[guest][step]) / 100.0,
            downtime_seconds: DOWNTIME_S,
            ..Traffic::default()
        };
        forecast(&traffic, LINK).map_or(f64::INFINITY, |forecast| forecast.seconds)
    }
}

/// Returns where guests begin: the largest first, each on the host with the least total size, as nothing has been
/// measured yet.
fn spread(flavours: &[(i64, i64)], hosts: usize) -> Vec<HostId> {
    let total = |of: fn(&(i64, i64)) -> i64| flavours.iter().map(of).sum::<i64>() as f64;
    let (cpu, memory) = (total(|flavour| flavour.0), total(|flavour| flavour.1));
    let mut order: Vec<usize> = (0..flavours.len()).collect();
    order.sort_by_key(|guest| std::cmp::Reverse(flavours[*guest]));
    let mut used = vec![(0i64, 0i64); hosts];
    let mut initial = vec![0; flavours.len()];
    for guest in order {
        let full = |host: &usize| (used[*host].0 as f64 / cpu).max(used[*host].1 as f64 / memory);
        let least = (0..hosts).min_by(|a, b| full(a).total_cmp(&full(b))).unwrap_or(0);
        initial[guest] = least as HostId;
        used[least] = (used[least].0 + flavours[guest].0, used[least].1 + flavours[guest].1);
    }
    initial
}
