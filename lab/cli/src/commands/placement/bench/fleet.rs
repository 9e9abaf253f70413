//! Measures made-up clusters of 1,000 hosts and 20,000 guests in which a host fails or is overloaded.

use std::time::{Duration, Instant};

use skein_placement::bound::moves_min;
use skein_placement::fleet;
use skein_placement::problem::{HostId, Problem};
use skein_placement::verdict::judge;
use skein_solver::Goal;

use super::rows::Bench;

const HOSTS: usize = 1000;
const GUESTS: usize = 20_000;
/// The host that fails or is overloaded.
const VICTIM: HostId = 17;
/// The most memory that the process may use, in MiB.
const MEMORY_MAX: u64 = 500;

/// What happens to the host.
type Trouble = fn(&mut Problem, HostId);
const TROUBLES: [(&str, Trouble); 2] = [("host failed", fleet::fail), ("host overloaded", fleet::overload)];

/// Measures the repair, which has to take at most a second.
pub fn run(bench: &mut Bench) -> anyhow::Result<()> {
    within(bench, Goal::Mended, Duration::from_secs(1))
}

/// Measures a new plan for the whole cluster, which has to take at most five seconds.
pub fn replan(bench: &mut Bench) -> anyhow::Result<()> {
    within(bench, Goal::Cheapest, Duration::from_secs(5))
}

fn within(bench: &mut Bench, goal: Goal, time: Duration) -> anyhow::Result<()> {
    for (name, trouble) in TROUBLES {
        forget_peak();
        let mut problem = fleet::fleet(HOSTS, GUESTS, bench.seed);
        trouble(&mut problem, VICTIM);
        let begin = Instant::now();
        let found = bench.solve(name, &problem, goal, time)?;
        let (before, after) = (judge(&problem, &problem.initial), judge(&problem, &found.assignment));
        let (took, peak) = (begin.elapsed(), peak_mib());
        let measured = format!(
            "{} broken, {} moves, cost {} to {}, {:.2} s, {}",
            after.hard.len(),
            after.moves,
            before.cost.total(),
            after.cost.total(),
            took.as_secs_f64(),
            peak.map_or("memory unknown".into(), |mib| format!("{mib} MiB")),
        );
        let least = moves_min(&problem);
        let beside =
            format!("{} broken; least {} moves, {} placements", before.hard.len(), least.moves, least.placements);
        let is_met = after.is_valid() && peak.is_none_or(|mib| mib < MEMORY_MAX);
        bench.row(name, measured, beside, Some(is_met))?;
    }
    Ok(())
}

/// Makes the kernel measure the peak from now on (proc(5), clear_refs).
fn forget_peak() {
    // Where this is not possible, the peak is that of the whole bench: too much, never too little.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the most memory that this process has had, in MiB.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}
