//! Controllers in virtual time: one seed is one exact run of a store, controllers, agents.
//!
//! `SKEIN_SEED=n` runs one seed, `SKEIN_TRACE=1` with it shows what happens; `SKEIN_SEEDS=n` runs so many, from
//! `SKEIN_FIRST` on; `SKEIN_PLANTED=name` looks for one planted mistake.

use skein_cluster::{Planted, Settings};
use skein_sim::control::Stats;
use skein_sim::control::scenario::run;
use skein_sim::{number, sweep};

/// What runs in a minute on two cores.
const SEEDS: u64 = 5000;

/// Within so many seeds each planted mistake is found.
const PLANTED_SEEDS: u64 = 10_000;

fn settings() -> Settings {
    Settings { power_round_ms: 4_000, stop_within_ms: 20_000, ..Settings::default() }
}

#[test]
fn what_was_begun_ends_whatever_happens() {
    if let Some(seed) = number("SKEIN_SEED") {
        match run(seed, settings()) {
            Ok(stats) => println!("seed {seed}: {stats:#?}"),
            Err(why) => panic!("seed {seed}: {why}"),
        }
        return;
    }
    let first = number("SKEIN_FIRST").unwrap_or(0);
    let last = first + number("SKEIN_SEEDS").unwrap_or(SEEDS);
    let (mut stats, mut failed) = (Stats::default(), Vec::new());
    for (seed, result) in sweep(first, |seed| seed < last, |seed| run(seed, settings())) {
        match result {
            Ok(run) => stats.add(&run),
            Err(why) => {
                println!("seed {seed}: {why}");
                failed.push(seed);
            }
        }
    }
    println!("{stats:?}");
    assert!(failed.is_empty(), "{} of {} seeds failed: {failed:?}", failed.len(), last - first);
}

#[test]
fn a_seed_is_one_exact_run() {
    for seed in 0..20 {
        let runs = [run(seed, settings()), run(seed, settings())].map(|result| format!("{result:?}"));
        assert_eq!(runs[0], runs[1], "seed {seed}");
    }
}

/// What is planted is found, each within some hundred seeds.
#[test]
fn what_is_planted_is_found() {
    let plants = [
        Planted::WordBeforeStore,
        Planted::NameChanged,
        Planted::LeaseForgotten,
        Planted::ModeForgotten,
        Planted::SlotsForgotten,
        Planted::OverTooEarly,
        Planted::BegunForgotten,
        Planted::RefusalForgotten,
        Planted::MissingForgotten,
        Planted::PlanKept,
        Planted::ReplacedAtOnce,
        Planted::AnyErrorTrusted,
        Planted::ProofForgotten,
        Planted::IntentForgotten,
        Planted::OffAssumed,
        Planted::EarlyReadingTrusted,
        Planted::ReturnForgotten,
        Planted::ClosingForgotten,
        Planted::SleepIntentForgotten,
        Planted::AwakeMinForgotten,
        Planted::SleeperTrusted,
        Planted::UpdateDrainForgotten,
        Planted::UpdateRepeated,
        Planted::KeptTooEarly,
        Planted::LeftTooEarly,
        Planted::WatchdogVotersForgotten,
        Planted::WatchdogCloseForgotten,
        Planted::FedOn,
        Planted::LeaderOfOthersIgnored,
        Planted::RestoreForgotten,
        Planted::AnyStartByHand,
        Planted::StartByHandUnanswered,
        Planted::AnyMoveByHand,
        Planted::MoveByHandUnanswered,
        Planted::StaleReportTrusted,
        Planted::DeposedObeyed,
    ];
    let only = std::env::var("SKEIN_PLANTED").ok();
    for planted in plants.into_iter().filter(|of| only.as_ref().is_none_or(|only| *only == format!("{of:?}"))) {
        let settings = Settings { planted: Some(planted), ..settings() };
        let found = (0..PLANTED_SEEDS).find_map(|seed| Some((seed, run(seed, settings.clone()).err()?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{planted:?} is not found in {PLANTED_SEEDS} seeds"));
        println!("{planted:?} is found by seed {seed}: {}", why.lines().next().unwrap_or_default());
    }
}
