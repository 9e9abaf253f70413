//! A pair of sessions in virtual time: one seed is one exact run of streams, paths and faults.
//!
//! `SKEIN_SEED=n` runs one seed, `SKEIN_TRACE=1` with it shows what happens; `SKEIN_SEEDS=n` runs so many.

use std::sync::atomic::{AtomicU64, Ordering};

use skein_sim::number;
use skein_sim::pair::World;
use skein_sim::pair::scenario::Scenario;
use skein_sim::world::Sabotage;

/// What runs in a few seconds without optimisation.
const SEEDS: u64 = 400;

fn run(seed: u64, sabotage: Option<Sabotage>) -> Result<World, String> {
    skein_sim::caught(|| {
        let mut scenario = Scenario::from_seed(seed);
        scenario.config.sabotage = sabotage;
        scenario.run()
    })
}

#[test]
fn every_stream_comes_out_whole_whatever_happens() {
    if let Some(seed) = number("SKEIN_SEED") {
        if let Err(why) = run(seed, None) {
            panic!("seed {seed}: {why}");
        }
        return;
    }
    let seeds = number("SKEIN_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(number("SKEIN_FIRST").unwrap_or(0));
    let last = next.load(Ordering::Relaxed) + seeds;
    let (actions, given_up) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let failures: Vec<(u64, String)> = std::thread::scope(|scope| {
        let work = || {
            let mut failures = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= last || failures.len() >= 20 {
                    return failures;
                }
                match run(seed, None) {
                    Ok(world) => {
                        actions.fetch_add(world.actions, Ordering::Relaxed);
                        given_up.fetch_add(u64::from(world.given_up), Ordering::Relaxed);
                    }
                    Err(why) => failures.push((seed, why)),
                }
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    let given_up = given_up.into_inner();
    println!("{seeds} seeds, {} actions; {given_up} sessions given up in the dark", actions.into_inner());
    for (seed, why) in &failures {
        println!(
            "seed {seed}: {why}\nreplay: SKEIN_SEED={seed} SKEIN_TRACE=1 cargo test -p skein-sim --test pair every -- \
             --nocapture"
        );
    }
    assert!(given_up <= 1 + seeds / 1000, "{given_up} of {seeds} sessions were given up");
    assert!(failures.is_empty(), "seeds {:?} failed", failures.iter().map(|(seed, _)| seed).collect::<Vec<_>>());
}

/// A session that lies, as a broken one would, is found out within a few seeds.
#[test]
fn the_checkers_find_what_is_broken() {
    let lies = [
        Sabotage::LostAcks,
        Sabotage::LostCredits,
        Sabotage::StaleRange,
        Sabotage::LostWakeups,
        Sabotage::LostReadable,
        Sabotage::EarlyFin,
    ];
    let found = lies.map(|lie| (lie, (0..50).find_map(|seed| Some((seed, run(seed, Some(lie)).err()?)))));
    for (lie, found) in found {
        let (seed, why) = found.unwrap_or_else(|| panic!("{lie:?} is not found in 50 seeds"));
        println!("{lie:?} is found by seed {seed}: {}", why.lines().next().unwrap_or_default());
    }
}
