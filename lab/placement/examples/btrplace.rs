//! Prints what is in an instance of BtrPlace, and what is wrong in it: `gzip -dc FILE.gz | cargo run --release
//! --example btrplace`.

#![expect(clippy::disallowed_types, reason = "an example is a program: it measures how long the crate takes")]
#![expect(clippy::disallowed_methods, reason = "an example is a program: it reads files")]

use std::collections::BTreeMap;
use std::time::Instant;

use skein_lab_placement::btrplace;
use skein_placement::bound::moves_min;
use skein_placement::schedule::plan;
use skein_placement::schedule::simulate::{Start, simulate};
use skein_placement::search::Repair;
use skein_placement::state::State;
use skein_placement::verdict::{Breach, judge};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let text = match std::env::args().nth(1) {
        Some(file) => std::fs::read_to_string(file)?,
        None => std::io::read_to_string(std::io::stdin())?,
    };
    let (before, start) = (memory_mib(), Instant::now());
    let instance = btrplace::read(&text)?;
    println!("read in {:.3} s, {} MiB more at most", start.elapsed().as_secs_f64(), memory_mib() - before);
    let problem = &instance.problem;
    println!(
        "{} hosts, {} guests, {} groups, {} sets of owners, {} of {} resources transient",
        problem.hosts.len(),
        problem.guests.len(),
        problem.groups.len(),
        problem.owners.len(),
        problem.resources.iter().filter(|resource| resource.transient).count(),
        problem.resources.len(),
    );
    for (resource, name) in instance.resources.iter().enumerate() {
        let demand: i64 = problem.guests.iter().map(|guest| guest.demand[resource]).sum();
        let capacity: i64 = problem.hosts.iter().map(|host| host.capacity[resource]).sum();
        println!("{name}: {demand} of {capacity} ({:.1} %)", 100.0 * demand as f64 / capacity as f64);
    }
    let mut breaches: BTreeMap<&str, usize> = BTreeMap::new();
    for breach in judge(problem, &problem.initial).hard {
        *breaches.entry(kind(&breach)).or_default() += 1;
    }
    println!("broken now: {breaches:?}");
    let start = Instant::now();
    println!("{:?} ({:.3} s)", moves_min(problem), start.elapsed().as_secs_f64());
    let start = Instant::now();
    let state = State::new(problem, &problem.initial);
    println!("books in {:.3} s: {:?}", start.elapsed().as_secs_f64(), state.score());
    let start = Instant::now();
    let mut repair = Repair::new(problem, &problem.initial, 1);
    while !repair.is_mended() && repair.run(1000) {}
    println!("mended in {:.3} s", start.elapsed().as_secs_f64());
    while start.elapsed().as_secs_f64() < 2.0 && repair.run(1000) {}
    let verdict = judge(problem, repair.assignment());
    let took = start.elapsed().as_secs_f64();
    println!("{took:.3} s: {} moves, {} hard rules broken", verdict.moves, verdict.hard.len());
    let start = Instant::now();
    let job = instance.job(repair.assignment());
    let plan = plan(&job, 1, 0)?;
    let written = btrplace::write_plan(&instance, &btrplace::moves(&plan));
    println!(
        "planned in {:.3} s: {} steps, {} s, {} left, {} bytes",
        start.elapsed().as_secs_f64(),
        plan.steps.len(),
        plan.makespan(),
        plan.left.len(),
        written.len(),
    );
    let end = btrplace::read_plan(&written, &instance)?;
    println!("what was written leaves {} hard rules broken", judge(problem, &end).hard.len());
    println!("{:.3} s in all, but for the simulation", began.elapsed().as_secs_f64());
    let start = Instant::now();
    let outcome = simulate(&job, &plan, Start::Free);
    println!(
        "simulated in {:.3} s: {} violations, {} s",
        start.elapsed().as_secs_f64(),
        outcome.violations.len(),
        outcome.makespan,
    );
    println!("{} MiB in all, at most", memory_mib());
    Ok(())
}

fn kind(breach: &Breach) -> &'static str {
    match breach {
        Breach::Unplaced { .. } => "unplaced",
        Breach::NotOwner { .. } => "not owner",
        Breach::Overload { .. } => "overload",
        Breach::Apart { .. } => "apart",
        Breach::Together { .. } => "together",
        Breach::Spread { .. } => "spread",
        Breach::Uneven { .. } => "uneven",
        Breach::Need { .. } => "need",
        Breach::Avoid { .. } => "avoid",
        Breach::Among { .. } => "among",
    }
}

/// Returns the most memory that this process has had.
fn memory_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.split_whitespace().next()?.parse::<usize>().ok()).map_or(0, |kib| kib / 1024)
}
