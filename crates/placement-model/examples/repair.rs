//! Measures how fast a cluster is repaired: `cargo run --release --example repair [HOSTS GUESTS]`.

#![expect(clippy::disallowed_types, reason = "an example is a program: it measures how long the crate takes")]
#![expect(clippy::disallowed_methods, reason = "an example is a program: it reads files")]

use std::time::{Duration, Instant};

use skein_placement::bound::moves_min;
use skein_placement::dice::Dice;
use skein_placement::fleet;
use skein_placement::problem::{HostId, Problem};
use skein_placement::schedule::simulate::{Start, simulate};
use skein_placement::schedule::{ConcurrencyLimits, Job, Network, Port, Power, Traffic, plan};
use skein_placement::search::{Repair, Search};
use skein_placement::verdict::judge;

const SEEDS: u64 = 3;
const STEPS: u64 = 1000;
const REPAIR_SECONDS: Duration = Duration::from_millis(600);
const SEARCH_SECONDS: f64 = 3.5;
/// The bytes of a MiB, and the bytes per second of a 10 Gb/s link.
const MIB: f64 = 1048576.0;
const LINK: f64 = 1.25e9;

/// What goes wrong with a host.
type Spoil = fn(&mut Problem, HostId);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<usize> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let (hosts, guests) = match arguments[..] {
        [hosts, guests, ..] => (hosts, guests),
        _ => (1000, 20_000),
    };
    println!(
        "what                    seed  valid  mended   at all  moves least  placed   cost   cost then  replan  plan: \
         steps, makespan, violations, left, took    MiB"
    );
    for seed in 0..SEEDS {
        let whole = fleet::fleet(hosts, guests, seed);
        let dice = &mut Dice::new(seed);
        let kinds: [(&str, Spoil, usize); 4] = [
            ("1 host failed", fleet::fail, 1),
            ("1 host overloaded", fleet::overload, 1),
            ("5 hosts failed", fleet::fail, 5),
            ("5 hosts overloaded", fleet::overload, 5),
        ];
        for (name, spoil, count) in kinds {
            let mut problem = whole.clone();
            (0..count).for_each(|_| spoil(&mut problem, dice.below(hosts) as HostId));
            measure(name, seed, problem)?;
        }
    }
    Ok(())
}

fn measure(name: &str, seed: u64, problem: Problem) -> Result<(), Box<dyn std::error::Error>> {
    let least = moves_min(&problem);
    let began = Instant::now();
    let mut repair = Repair::new(&problem, &problem.initial, seed);
    while !repair.is_mended() && repair.run(STEPS) {}
    let mended = began.elapsed();
    while began.elapsed() < REPAIR_SECONDS && repair.run(STEPS) {}
    let verdict = judge(&problem, repair.assignment());
    let in_all = began.elapsed();
    let mut search = Search::new(&problem, repair.assignment(), seed);
    loop {
        let spent = (began.elapsed() - in_all).as_secs_f64() / SEARCH_SECONDS;
        if spent >= 1.0 {
            break;
        }
        search.run(10_000, spent);
    }
    let better = judge(&problem, search.assignment());
    let goal = search.assignment().to_vec();
    let job = job(problem, goal);
    let planning = Instant::now();
    let plan = plan(&job, seed, 0)?;
    let planned = planning.elapsed();
    let outcome = simulate(&job, &plan, Start::Free);
    println!(
        "{name:22} {seed:5} {:>6} {:7.3} {:8.3} {:6} {:5} {:7} {:7} {:10} {:7.3}  {:5} {:6.0} {} {} {:.3} {:4}",
        verdict.is_valid(),
        mended.as_secs_f64(),
        in_all.as_secs_f64(),
        verdict.moves,
        least.moves,
        least.placements,
        verdict.cost.total(),
        better.cost.total(),
        (planning - began + planned).as_secs_f64(),
        plan.steps.len(),
        outcome.makespan,
        outcome.violations.len(),
        plan.left.len(),
        planned.as_secs_f64(),
        memory_mib(),
    );
    Ok(())
}

/// Returns the job of the moves, over 10 Gb/s for each host.
fn job(problem: Problem, goal: Vec<HostId>) -> Job {
    let (hosts, guests) = (problem.hosts.len(), problem.guests.len());
    let memory = |guest: usize| problem.guests[guest].demand[fleet::MEMORY] as f64 * MIB;
    let traffic = |guest| Traffic {
        memory_bytes: memory(guest),
        hot_bytes: memory(guest) / 100.0,
        hot_seconds: 1.0,
        dirty_rate: memory(guest) / 1000.0,
        downtime_seconds: 0.3,
    };
    let port = Port { outward: LINK, inward: LINK, switch: None };
    Job {
        traffic: (0..guests).map(traffic).collect(),
        start_seconds: vec![10.0; guests],
        stop_seconds: vec![5.0; guests],
        network: Network { ports: vec![port; hosts], switches: Vec::new() },
        limits: vec![ConcurrencyLimits::default(); hosts],
        power: vec![Power::ALWAYS; hosts],
        running: Vec::new(),
        problem,
        goal,
    }
}

/// Returns the most memory that this process has had.
fn memory_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.split_whitespace().next()?.parse::<usize>().ok()).map_or(0, |kib| kib / 1024)
}
