//! Clusters in virtual time: one seed is one exact run of agents, QEMUs, disks, networks and what goes wrong with them.
//!
//! `SKEIN_SEED=n` runs one seed, `SKEIN_TRACE=1` with it shows what happens (2: every frame, too); `SKEIN_SEEDS=n` runs
//! so many, from `SKEIN_FIRST` on.

use skein_sim::cluster::scenario::{replay, run};
use skein_sim::cluster::{Plant, Stats};
use skein_sim::{number, sweep};

/// What runs in ten seconds on two cores.
const SEEDS: u64 = 6000;

#[test]
fn every_guest_runs_once_whatever_happens() {
    if let Some(seed) = number("SKEIN_SEED") {
        match run(seed, None) {
            Ok(stats) => println!("seed {seed}: {stats:#?}"),
            Err(why) => panic!("seed {seed}: {why}"),
        }
        return;
    }
    let first = number("SKEIN_FIRST").unwrap_or(0);
    let last = first + number("SKEIN_SEEDS").unwrap_or(SEEDS);
    let (mut stats, mut failed) = (Stats::default(), Vec::new());
    for (seed, result) in sweep(first, |seed| seed < last, |seed| run(seed, None)) {
        match result {
            Ok(run) => stats.add(&run),
            Err(why) => {
                println!("seed {seed}: {why}\n{}", replay(seed));
                failed.push(seed);
            }
        }
    }
    println!("{stats}");
    assert!(failed.is_empty(), "seeds {failed:?} failed");
}

/// The promise that a replay stands on.
#[test]
fn a_seed_is_one_exact_run() {
    for seed in 0..40 {
        let runs = [run(seed, None), run(seed, None)].map(|result| format!("{result:?}"));
        assert_eq!(runs[0], runs[1], "seed {seed}");
    }
}

/// What is planted is found, each within a few seeds.
#[test]
fn what_is_planted_is_found() {
    let plants = [
        Plant::LostAck,
        Plant::StaleRange,
        Plant::DoubleResume,
        Plant::ForgottenJournal,
        Plant::LeakedBuffer,
        Plant::CreditDeadlock,
    ];
    for plant in plants {
        let found = (0..300).find_map(|seed| Some((seed, run(seed, Some(plant)).err()?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{plant:?} is not found in 300 seeds"));
        println!("{plant:?} is found by seed {seed}: {}", why.lines().next().unwrap_or_default());
    }
}
