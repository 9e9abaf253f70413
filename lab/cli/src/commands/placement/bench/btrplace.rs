//! Measures BtrPlace's instances of 5,000 nodes and 30,000 VMs.

use std::time::{Duration, Instant};

use skein_placement::bound::moves_min;
use skein_placement::verdict::judge;
use skein_solver::Goal;

use super::super::solve;
use super::rows::Bench;

const INSTANCES: [&str; 2] = ["li6-c100", "nr6-c100"];
/// The time for an instance, from reading its file on.
const TIME: Duration = Duration::from_secs(5);

pub fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(dir) = bench.directory("btrplace")? else { return Ok(()) };
    for name in INSTANCES {
        let begin = Instant::now();
        let instance = solve::read_btrplace(&dir.join(format!("{name}.gz")))?;
        let problem = &instance.problem;
        let read = begin.elapsed();
        let found = bench.solve(name, problem, Goal::Mended, TIME.saturating_sub(read))?;
        let (before, after) = (judge(problem, &problem.initial), judge(problem, &found.assignment));
        let (left, _) = solve::btrplace_plan(&instance, &found.assignment)?;
        let took = begin.elapsed();
        let least = moves_min(problem);
        let measured = format!(
            "{} broken, {} moves, {left} left undone, {:.2} s ({:.2} s reading, {:.2} s mending)",
            after.hard.len(),
            after.moves,
            took.as_secs_f64(),
            read.as_secs_f64(),
            found.elapsed.as_secs_f64(),
        );
        let beside =
            format!("{} broken; least {} moves, {} placements", before.hard.len(), least.moves, least.placements);
        bench.row(name, measured, beside, Some(after.is_valid() && left == 0 && took <= TIME))?;
    }
    Ok(())
}
