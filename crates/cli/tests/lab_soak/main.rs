//! The real soak: real guests move back and forth between real hosts under random real faults of links, agents and
//! QEMUs, and after each round everything has to be resolved: each guest runs once, whole, and nothing is left over.
//!
//! One program for `make test` (a few migrations of a fixed seed) and `make soak-real`; `SOAK_MIGRATIONS=N` (10),
//! `SOAK_SEED=N` (1), `SOAK_SECONDS=N`: not longer than that, `SOAK_FAULTS=WORDS`: only faults with one of these words
//! in their name, separated by |. `--json FILE`: the result for programs. Needs root.
//!
//! Timeout: 600 s
//! QEMU: 7.2 10

mod plan;
mod world;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skein_api::Outcome;
use skein_hypervisor::version_of;
use skein_lab_cluster::Settings;

use plan::{KINDS, Kind, Planner};
use world::{Done, Failure, Harm, NICS, World};

/// After this many failed rounds there is no use in more.
const FAILURES_MAX: usize = 3;

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn main() -> ExitCode {
    let mut args = std::env::args();
    let json = args.find(|arg| arg == "--json").and_then(|_| args.next());
    let wanted: usize = variable("SOAK_MIGRATIONS").unwrap_or(10);
    let seed: u64 = variable("SOAK_SEED").unwrap_or(1);
    let limit = Duration::from_secs(variable("SOAK_SECONDS").unwrap_or(u64::MAX));
    let words = std::env::var("SOAK_FAULTS").unwrap_or_default();
    let is_wanted = |kind: &Kind| words.split('|').any(|word| kind.to_string().contains(word.trim()));
    let kinds: Vec<Kind> = KINDS.into_iter().filter(is_wanted).collect();
    assert!(!kinds.is_empty(), "no fault has one of these words: {words}");
    let settings = Settings::new(env!("CARGO_BIN_EXE_skein").into());
    let qemu = version_of(&settings.qemu).expect("QEMU says its version");
    println!("seed {seed}, {wanted} migrations, QEMU {qemu}");

    let begin = Instant::now();
    let mut tally = Tally::default();
    let mut planner = Planner::new(seed, kinds);
    // A failure is followed by a new world.
    let mut world: Option<World> = None;
    while tally.asked < wanted && begin.elapsed() < limit && tally.failures.len() < FAILURES_MAX {
        let new = || catch_unwind(|| World::new(&settings.program, seed));
        let Ok(mut own) = world.take().map_or_else(new, Ok) else {
            tally.failures.push(Failure { harm: Harm::Other, why: "the guests cannot be started, see above".into() });
            break;
        };
        tally.rounds += 1;
        let plan = planner.round(own.guests(), NICS);
        let done = own.round(&plan);
        let faults: Vec<String> = plan.faults.iter().map(|fault| format!("{}, {}", fault.kind, fault.moment)).collect();
        print!("{:3} {} moved at {} Mb/s; {}: ", tally.rounds, plan.moves.len(), plan.rate, faults.join("; "));
        match done {
            Ok(done) => {
                let ms = |time: Duration| time.as_millis();
                println!(
                    "{}{}, resolved {} ms, clean {} ms, stopped {} ms",
                    done.outcomes.iter().map(|one| outcome(*one)).collect::<Vec<_>>().join(" "),
                    if done.done.len() < faults.len() { " (not all faults came)" } else { "" },
                    ms(done.resolved),
                    ms(done.clean),
                    ms(done.stopped)
                );
                tally.add(done);
                world = Some(own);
            }
            Err(failure) => {
                println!("FAILED: {}", failure.why);
                println!("---- seed {seed}, round {}: {plan:#?}", tally.rounds);
                for (at, what) in &own.timeline {
                    println!("{:10.1} ms  {what}", at.as_secs_f64() * 1e3);
                }
                let (known, files) = own.keep();
                println!("{known}---- the files stay in {}", files.display());
                tally.asked += plan.moves.len();
                tally.failures.push(failure);
                tally.boots += own.boots.len();
            }
        }
    }
    tally.boots += world.as_ref().map_or(0, |world| world.boots.len());
    drop(world);
    let took = begin.elapsed();
    println!("\n{}", tally.table(took));
    if let Some(path) = json {
        let text = format!("{:#}\n", tally.json(seed, &qemu, took));
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let failed = tally.failures.len();
    let status = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {status}. {} passed; {failed} failed; finished in {} s",
        tally.rounds.saturating_sub(failed),
        took.as_secs()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn outcome(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Moved) => "moved",
        Some(Outcome::CalledOff) => "kept",
        Some(Outcome::Ended) => "ended",
        None => "refused",
    }
}

/// The times that rounds with one kind of fault took.
#[derive(Default)]
struct Times {
    resolved: Vec<Duration>,
    clean: Vec<Duration>,
    stopped: Vec<Duration>,
}

#[derive(Default)]
struct Tally {
    rounds: usize,
    asked: usize,
    outcomes: BTreeMap<&'static str, usize>,
    /// The number of guests that ended with the QEMU that ran them.
    ended: usize,
    doubts: BTreeMap<&'static str, usize>,
    faults: BTreeMap<String, usize>,
    times: BTreeMap<String, Times>,
    failures: Vec<Failure>,
    /// How many times a guest had to be started again because it did not boot.
    boots: usize,
}

impl Tally {
    fn add(&mut self, done: Done) {
        self.asked += done.outcomes.len();
        done.outcomes.iter().for_each(|one| *self.outcomes.entry(outcome(*one)).or_default() += 1);
        done.doubts.iter().for_each(|one| *self.doubts.entry(outcome(*one)).or_default() += 1);
        done.done.iter().for_each(|kind| *self.faults.entry(kind.to_string()).or_default() += 1);
        self.ended += done.ended;
        let kind = match &done.done[..] {
            [] => "no fault".to_owned(),
            [kind] => kind.to_string(),
            _ => "two in a round".to_owned(),
        };
        let times = self.times.entry(kind).or_default();
        times.resolved.push(done.resolved);
        times.clean.push(done.clean);
        times.stopped.push(done.stopped);
    }

    fn harmed(&self, harm: Harm) -> usize {
        self.failures.iter().filter(|failure| failure.harm == harm).count()
    }

    fn count(&self, name: &str) -> usize {
        self.outcomes.get(name).copied().unwrap_or(0)
    }

    fn table(&self, took: Duration) -> String {
        let mut text = format!(
            "{:28}{:>7}{:>20}{:>20}{:>20}\n{:28}{:>7}{:>20}{:>20}{:>20}\n",
            "fault",
            "rounds",
            "resolved",
            "clean",
            "guest stopped",
            "",
            "",
            "median  max ms",
            "median  max ms",
            "median  max ms"
        );
        for (kind, times) in &self.times {
            let shown = |times: &[Duration]| {
                let (median, max) = median_and_max(times);
                format!("{median:>11} {max:>8}")
            };
            let cells = [&times.resolved, &times.clean, &times.stopped].map(|times| shown(times)).concat();
            text += &format!("{kind:28}{:>7}{cells}\n", times.resolved.len());
        }
        let list = |counts: &BTreeMap<&str, usize>| {
            counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
        };
        text += &format!(
            "resolved, clean: from the end of the fault, what was left of the copy included\n\
             {} rounds in {} s: {} migrations asked for: {}\n\
             {} faults; {} guests ended with the QEMU that ran them, which was killed\n\
             in doubt: {}{}\n\
             guests lost {}, doubled {}, corrupted {}; other failures {}; boots that failed, before any migration: {}",
            self.rounds,
            took.as_secs(),
            self.asked,
            list(&self.outcomes),
            self.faults.values().sum::<usize>(),
            self.ended,
            self.doubts.values().sum::<usize>(),
            if self.doubts.is_empty() { String::new() } else { format!(", then {}", list(&self.doubts)) },
            self.harmed(Harm::Lost),
            self.harmed(Harm::Doubled),
            self.harmed(Harm::Corrupted),
            self.harmed(Harm::Other),
            self.boots,
        );
        text
    }

    fn json(&self, seed: u64, qemu: &impl Display, took: Duration) -> Value {
        let recovery = |times: &[Duration]| {
            let (median, max) = median_and_max(times);
            json!({ "median_ms": median as u64, "max_ms": max as u64 })
        };
        let kinds = self.times.iter().map(|(kind, times)| {
            let entry = json!({
                "rounds": times.resolved.len(),
                "resolved": recovery(&times.resolved),
                "clean": recovery(&times.clean),
                "stopped": recovery(&times.stopped),
            });
            (kind.clone(), entry)
        });
        json!({
            "seed": seed,
            "qemu": qemu.to_string(),
            "seconds": took.as_secs(),
            "rounds": self.rounds,
            "migrations": self.asked,
            "moved": self.count("moved"),
            "kept": self.count("kept"),
            "ended": self.count("ended"),
            "refused": self.count("refused"),
            "guests_ended_with_their_qemu": self.ended,
            "in_doubt": self.doubts,
            "faults": self.faults,
            "recovery": kinds.collect::<serde_json::Map<_, _>>(),
            "lost": self.harmed(Harm::Lost),
            "doubled": self.harmed(Harm::Doubled),
            "corrupted": self.harmed(Harm::Corrupted),
            "failed_boots": self.boots,
            "failures": self.failures.iter().map(|failure| &failure.why).collect::<Vec<_>>(),
        })
    }
}

/// Returns the median and the maximum, in milliseconds.
fn median_and_max(times: &[Duration]) -> (u128, u128) {
    let mut times: Vec<u128> = times.iter().map(Duration::as_millis).collect();
    times.sort();
    (times.get(times.len() / 2).copied().unwrap_or(0), times.last().copied().unwrap_or(0))
}
