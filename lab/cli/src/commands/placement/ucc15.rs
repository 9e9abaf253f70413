//! Compares the plans of UCC'15 with Skein's.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use skein_lab_placement::ucc15::{self, Case};
use skein_placement::schedule::simulate::{Outcome, Start, simulate};
use skein_placement::schedule::{Plan, Waits, plan, waits};
use skein_terminal::{files, table};

/// A file's plan and Skein's, carried out by the same simulator.
pub struct Compared {
    case: Case,
    plan: Plan,
    /// The outcome of the file's plan.
    pub theirs: Outcome,
    /// The outcome of Skein's plan.
    pub ours: Outcome,
    took: Duration,
}

impl Compared {
    pub fn new(path: &Path, seed: u64, steps: u64) -> anyhow::Result<Compared> {
        let name = || path.display().to_string();
        let case = ucc15::read(&files::read(path)?).with_context(name)?;
        let begin = Instant::now();
        let plan = plan(&case.job, seed, steps).with_context(name)?;
        let took = begin.elapsed();
        let (theirs, ours) = (theirs(&case), simulate(&case.job, &plan, Start::Free));
        Ok(Compared { case, plan, theirs, ours, took })
    }

    /// Returns the file with Skein's plan instead of its own.
    pub fn file(&self) -> String {
        self.case.write(&self.plan)
    }

    /// Returns how much is wrong with Skein's plan: violations, and what it leaves undone.
    pub fn wrong(&self) -> usize {
        self.ours.violations.len() + self.plan.left.len()
    }

    pub fn text(&self) -> String {
        let seconds = |of: fn(&Outcome) -> f64| [of(&self.theirs), of(&self.ours)].map(|s| format!("{s:.1} s"));
        let whole = |theirs: usize, ours: usize| [theirs.to_string(), ours.to_string()];
        let row = |name: &str, [theirs, ours]: [String; 2]| [name.to_owned(), theirs, ours];
        let rows = [
            row("makespan, planned", [self.case.plan.makespan(), self.plan.makespan()].map(|s| format!("{s:.1} s"))),
            row("makespan, simulated", seconds(|of| of.makespan)),
            row("mean completion", seconds(|of| of.mean_completion)),
            row("longest downtime", seconds(|of| of.downtime_max)),
            row("steps", whole(self.case.plan.steps.len(), self.plan.steps.len())),
            row("wrong", whole(self.theirs.violations.len(), self.wrong())),
        ];
        table(["", "FILE", "OURS"], &rows) + &format!("planned in {:.2} s\n", self.took.as_secs_f64())
    }

    pub fn json(&self) -> Value {
        let side = |plan: &Plan, outcome: &Outcome| {
            json!({
                "planned_makespan_s": plan.makespan(),
                "makespan_s": outcome.makespan,
                "mean_completion_s": outcome.mean_completion,
                "downtime_max_s": outcome.downtime_max,
                "steps": plan.steps.len(),
                "violations": outcome.violations.len(),
                "left": plan.left.len(),
            })
        };
        json!({
            "file": side(&self.case.plan, &self.theirs),
            "ours": side(&self.plan, &self.ours),
            "seconds": self.took.as_secs_f64(),
        })
    }
}

/// Returns the best outcome of the file's plan: by its order on the nodes alone, by its order on the links as well, or
/// with no step before its time.
fn theirs(case: &Case) -> Outcome {
    let mut by_links = case.plan.clone();
    let after = waits(&case.job, &by_links.steps, Waits::Links);
    by_links.steps.iter_mut().zip(after).for_each(|(step, waits)| step.waits = waits);
    let tries = [(&case.plan, Start::Free), (&case.plan, Start::AsPlanned), (&by_links, Start::Free)];
    let outcomes = tries.map(|(plan, start)| simulate(&case.job, plan, start));
    let is_better =
        |a: &Outcome, b: &Outcome| a.violations.len().cmp(&b.violations.len()).then(a.makespan.total_cmp(&b.makespan));
    outcomes.into_iter().min_by(is_better).expect("there are three")
}
