//! The rows of a bench, and what they are measured with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use skein_placement::problem::Problem;
use skein_placement_command::all_threads;
use skein_solver::{Budget, Goal, Options, Solution};
use skein_terminal::{Screen, print};

/// One measurement.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) case: &'static str,
    pub(super) what: String,
    pub(super) measured: String,
    /// What others reached, or what is possible.
    pub(super) beside: String,
    /// Whether the figure was met. `None`: it is not judged.
    pub(super) met: Option<bool>,
}

/// A bench under way.
pub(super) struct Bench {
    pub(super) data: PathBuf,
    pub(super) quick: bool,
    pub(super) seed: u64,
    pub(super) interrupt: Arc<AtomicBool>,
    pub(super) case: &'static str,
    pub(super) rows: Vec<Row>,
}

impl Bench {
    /// Prints a row and keeps it.
    pub(super) fn row(
        &mut self,
        what: &str,
        measured: String,
        beside: String,
        met: Option<bool>,
    ) -> anyhow::Result<()> {
        let row = Row { case: self.case, what: what.to_owned(), measured, beside, met };
        let judged = match row.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "-",
        };
        let beside = if row.beside.is_empty() { String::new() } else { format!("   [{}]", row.beside) };
        print(&format!("{:12}  {judged:6}  {:20}  {}{beside}\n", row.case, row.what, row.measured))?;
        self.rows.push(row);
        Ok(())
    }

    /// Returns a data set's directory, or `None` if it is missing.
    pub(super) fn directory(&mut self, name: &str) -> anyhow::Result<Option<PathBuf>> {
        let dir = self.data.join(name);
        if dir.is_dir() {
            return Ok(Some(dir));
        }
        self.row(name, format!("skipped: there is no {}", dir.display()), String::new(), None)?;
        Ok(None)
    }

    /// Returns how long a search of 300 s takes here.
    pub(super) fn long(&self) -> Duration {
        Duration::from_secs(if self.quick { 10 } else { 300 })
    }

    /// Returns whether a figure for 300 s was met, or `None` if [`Bench::long`] is too short to tell.
    pub(super) fn judged(&self, met: bool) -> Option<bool> {
        (!self.quick).then_some(met)
    }

    /// Solves a problem on all CPUs.
    pub(super) fn solve(&self, what: &str, problem: &Problem, goal: Goal, time: Duration) -> anyhow::Result<Solution> {
        let options =
            Options { budget: Budget::Time(time), seed: self.seed, threads: all_threads(), goal, proof: None };
        let mut screen = Screen::new();
        let found = skein_solver::solve(&problem.into(), &options, &self.interrupt, |progress| {
            let is_valid = if progress.score.broken == 0 { "valid" } else { "not valid yet" };
            let (seconds, of, cost) = (progress.elapsed.as_secs_f64(), time.as_secs_f64(), progress.score.cost);
            screen.show(&format!("{what}: {seconds:.1} of {of:.0} s  {is_valid}  cost {cost}"));
        })?;
        self.go_on()?;
        Ok(found)
    }

    /// Returns an error once the user wants the bench to end.
    pub(super) fn go_on(&self) -> anyhow::Result<()> {
        if self.interrupt.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) }
    }
}

/// Returns the files of a directory whose names begin with a prefix, sorted by name.
pub(super) fn files_in(dir: &Path, prefix: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
        let is_it = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(".json"));
        if is_it && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
