//! Runs clusters on all cores for `SOAK_SECONDS` (60), from seed `SKEIN_FIRST` (a million) on, and says what was seen.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use skein_sim::cluster::Stats;
use skein_sim::cluster::scenario::run;
use skein_sim::{number, sweep};

fn main() -> ExitCode {
    let budget = Duration::from_secs(number("SOAK_SECONDS").unwrap_or(60));
    // Others than those of the tests.
    let first = number("SKEIN_FIRST").unwrap_or(1_000_000);
    let begin = Instant::now();
    let results = sweep(first, |_| begin.elapsed() < budget, |seed| run(seed, None));
    let (mut stats, mut failed) = (Stats::default(), 0);
    for (seed, result) in &results {
        match result {
            Ok(run) => stats.add(run),
            Err(why) => {
                println!("seed {seed}: {why}\n{}", skein_sim::cluster::scenario::replay(*seed));
                failed += 1;
            }
        }
    }
    println!("{} seeds in {:.1} s, {failed} failed; {stats}", results.len(), begin.elapsed().as_secs_f64());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
