//! Made-up clusters of 1,000 hosts and 20,000 guests, in which a host fails or is overloaded.

use std::time::{Duration, Instant};

use skein_placement::bound::moves_min;
use skein_placement::fleet;
use skein_placement::problem::{HostId, Problem};
use skein_placement::verdict::judge;
use skein_solver::Goal;

use super::rows::Bench;

const HOSTS: usize = 1000;
const GUESTS: usize = 20_000;
/// Which host it is.
const VICTIM: HostId = 17;
/// Most memory of the process, in MiB.
const MEMORY_MAX: u64 = 500;

/// What happens to the host.
type Trouble = fn(&mut Problem, HostId);
const TROUBLES: [(&str, Trouble); 2] = [("host failed", fleet::fail), ("host overloaded", fleet::overload)];

/// Repair within a second.
pub fn run(bench: &mut Bench) -> anyhow::Result<()> {
    within(bench, Goal::Mended, Duration::from_secs(1))
}

/// The whole cluster within five.
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

/// Has the kernel measure the peak from now on (proc(5), clear_refs).
fn forget_peak() {
    // Where it cannot, the peak is of the whole bench: too much, never too little.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most memory that this process has had.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}
