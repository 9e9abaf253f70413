//! Compares the plans in the files of UCC'15 with this crate's, both by the same simulator: `cargo run --release
//! --example ucc15 DIR`.

#![expect(clippy::disallowed_types, reason = "an example is a program: it measures how long the crate takes")]
#![expect(clippy::disallowed_methods, reason = "an example is a program: it reads files")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use skein_lab_placement::ucc15;
use skein_placement::schedule::simulate::{Outcome, Start, simulate};
use skein_placement::schedule::{Waits, plan, waits};

const SEED: u64 = 1;
const BUDGET: u64 = 3000;

fn files(dir: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "json") {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

/// Returns the best outcome of the file's plan: by its order on the nodes alone, by its order on the links as well, or
/// with no step before its time.
fn theirs(case: &ucc15::Case) -> Outcome {
    let mut by_links = case.plan.clone();
    let after = waits(&case.job, &by_links.steps, Waits::Links);
    by_links.steps.iter_mut().zip(after).for_each(|(step, waits)| step.waits = waits);
    let tries = [(&case.plan, Start::Free), (&case.plan, Start::AsPlanned), (&by_links, Start::Free)];
    let outcomes = tries.map(|(plan, start)| simulate(&case.job, plan, start));
    let key = |outcome: &Outcome| (outcome.violations.len(), outcome.makespan);
    outcomes
        .into_iter()
        .min_by(|a, b| key(a).partial_cmp(&key(b)).expect("times are numbers"))
        .expect("there are three")
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).ok_or("which directory?")?;
    let mut found = Vec::new();
    files(Path::new(&dir), &mut found)?;
    println!("file                     planned  theirs (mean)  wrong    ours (mean)  wrong  plan says  took");
    let mut sums = [0.0; 4];
    let mut count = 0.0;
    for path in found {
        let name = path.strip_prefix(&dir)?.display().to_string();
        let case = ucc15::read(&std::fs::read_to_string(&path)?).map_err(|e| format!("{name}: {e}"))?;
        let theirs = theirs(&case);
        let began = Instant::now();
        let plan = plan(&case.job, SEED, BUDGET)?;
        let took = began.elapsed().as_secs_f64();
        let ours = simulate(&case.job, &plan, Start::Free);
        println!(
            "{name:24} {:7.0}  {:6.1} ({:5.1}) {:5}  {:6.1} ({:5.1}) {:5}  {:9.1}  {took:.2} s",
            case.plan.makespan(),
            theirs.makespan,
            theirs.mean_completion,
            theirs.violations.len(),
            ours.makespan,
            ours.mean_completion,
            ours.violations.len() + plan.left.len(),
            plan.makespan(),
        );
        if name.starts_with("random.") {
            let of = [theirs.makespan, theirs.mean_completion, ours.makespan, ours.mean_completion];
            sums.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
            count += 1.0;
        }
    }
    let [theirs, theirs_mean, ours, ours_mean] = sums.map(|sum| sum / count);
    println!("mean of {count} random files: {theirs:.2} ({theirs_mean:.2}) theirs, {ours:.2} ({ours_mean:.2}) ours");
    Ok(())
}
