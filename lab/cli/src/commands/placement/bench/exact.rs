//! Compares the search with the proven lowest cost, by HiGHS, in random small clusters.

use super::rows::Bench;

#[cfg(feature = "exact")]
pub fn run(bench: &mut Bench) -> anyhow::Result<()> {
    use std::time::Duration;

    use skein_exact::compare::{Grade, searched, tally};

    /// The time that HiGHS gets for one cluster. It needs milliseconds.
    const TIME: Duration = Duration::from_secs(60);
    /// How many cases run between checks whether to go on.
    const MANY: u64 = 50;
    let cases = if bench.quick { 100 } else { 1000 };
    let mut counts = std::collections::BTreeMap::<Grade, usize>::new();
    for from in (0..cases).step_by(MANY as usize) {
        for (grade, seeds) in tally(from..from + MANY, TIME, |problem| searched(problem, &problem.initial, bench.seed))?
        {
            *counts.entry(grade).or_default() += seeds.len();
        }
        bench.go_on()?;
    }
    let count = |grade| counts.get(&grade).copied().unwrap_or(0);
    let feasible = cases as usize - count(Grade::Infeasible);
    let wrong = [Grade::Worse, Grade::Invalid, Grade::Unproven, Grade::Refuted].map(count).into_iter().sum::<usize>();
    let measured = format!(
        "{} of {feasible} optimal, {} within 2 %, {} worse, {} invalid",
        count(Grade::Optimal),
        count(Grade::Near),
        count(Grade::Worse),
        count(Grade::Invalid),
    );
    let beside = format!("{} that cannot be valid, {} unproven", count(Grade::Infeasible), count(Grade::Unproven));
    bench.row("small clusters", measured, beside, Some(wrong == 0 && count(Grade::Optimal) * 10 >= feasible * 9))?;
    let Some(dir) = bench.directory("roadef2012")? else { return Ok(()) };
    let file = |what: &str| dir.join(format!("{what}_a1_1.txt"));
    let problem = super::super::solve::read_roadef(&file("model"), &file("assignment"))?;
    let proof = skein_exact::prove(&problem, &problem.initial, TIME)?;
    let measured = format!("{} found, {} at least", proof.score.cost, proof.bound.unwrap_or(0));
    bench.row("roadef a1_1", measured, String::new(), Some(proof.is_optimal()))
}

#[cfg(not(feature = "exact"))]
pub fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let skipped = format!("skipped: {}", skein_solver::ProofError::NotBuilt);
    bench.row("small clusters", skipped, String::new(), None)
}
