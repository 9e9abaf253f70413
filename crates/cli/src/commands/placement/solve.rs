//! `skein placement solve`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;
use skein_placement::problem::{GuestId, HostId, Strength};
use skein_placement::verdict::judge;
use skein_placement_command::{EXIT_CODES, Outcome, SearchArgs, Solved, Unit, search, success_if};
use skein_placement_model::cluster::{Check, Compiled, History, check};
use skein_placement_model::explain::{Why, why_moved};
use skein_terminal::files;

use super::check as checked;
use super::cluster::{ClusterFile, Placement};
use crate::commands::text::{clean, count, print, print_json};

/// The most moves that are printed one by one, with their reason.
const MOVES_PRINTED_MAX: usize = 50;

/// Find where guests should run: nothing broken first, then what costs least
///
/// First what is broken is mended with few moves, then it is searched for what costs less, moves included.
/// Prints what the initial placement and the one that was found break and cost, as a judge says who counts from
/// scratch.
/// Ctrl-C ends the search early, with the best so far.
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein placement solve --cluster cluster.yaml --out placement.json
  skein placement solve --cluster cluster.yaml --seconds 5 --prove 60
  skein placement solve --cluster cluster.yaml --steps 1000000 --threads 2

{EXIT_CODES}"))]
pub struct Args {
    /// The cluster: YAML or JSON, see docs/cluster-file.md
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    #[command(flatten)]
    options: SearchArgs,
    /// Then prove for so many seconds at most how little any placement costs; HiGHS does, for some hundreds of guests
    /// on tens of hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    prove: Option<u64>,
    /// Write what was found here: a host for each guest, for `schedule --solution`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// An object: initial, found (valid, breaches, cost, moves), moves_min (null: something is always broken), proof,
    /// moved (with why), complaints, survived, clashes, placement; costs are microseconds
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = files::output(args.out.as_deref(), &[&args.cluster])?;
    let source = ClusterFile::read(&args.cluster)?;
    let compiled = &source.compiled;
    let options = args.options.resolve(args.prove);
    let found = search(&compiled.into(), &options, Unit::Seconds)?;
    if let Some(path) = out {
        files::write(path, &Placement::new(compiled, &found.assignment).text()?)?;
    }
    let ((initial, _), (judged, check)) =
        (outcome(compiled, &compiled.problem.initial), outcome(compiled, &found.assignment));
    let is_valid = judged.is_valid();
    let impossible = check.survived.as_ref().and_then(|told| told.impossible.as_ref());
    let impossible = impossible.filter(|_| has_to_survive(compiled));
    let solved = Solved {
        problem: &compiled.problem,
        unit: Unit::Seconds,
        options,
        found: &found,
        initial,
        judged,
        impossible: impossible.map(|why| format!("no placement survives all failures: {why}")),
    };
    match args.json {
        true => print_json(&json(&source, &solved, &check)?)?,
        false => print(&clean(&(solved.text() + &text(&source, &found.assignment, &check))))?,
    }
    Ok(success_if(is_valid))
}

/// Returns the outcome of an assignment, and its check.
fn outcome(compiled: &Compiled, assignment: &[HostId]) -> (Outcome, Check) {
    let (check, _) = check(compiled, assignment, &History::default(), 0);
    let failures = match &check.survived {
        Some(told) if has_to_survive(compiled) => told.tried - told.survived,
        _ => 0,
    };
    (Outcome { verdict: judge(&compiled.problem, assignment), failures }, check)
}

/// Returns whether failures of hosts that are not survived are breaches.
fn has_to_survive(compiled: &Compiled) -> bool {
    compiled.survive.is_some_and(|rule| rule.strength == Strength::Hard)
}

/// Returns who is moved and why, and what is broken then.
fn text(source: &ClusterFile, assignment: &[HostId], check: &Check) -> String {
    let compiled = &source.compiled;
    let guests = moved(compiled, assignment);
    let mut text = String::new();
    for guest in guests.iter().take(MOVES_PRINTED_MAX) {
        text += &format!("{}\n", why(compiled, assignment, *guest));
    }
    if guests.len() > MOVES_PRINTED_MAX {
        text += &format!("and {} more (--json has all)\n", count(guests.len() - MOVES_PRINTED_MAX, "move"));
    }
    text + "then: " + &checked::check_text(check, None) + &source.clashes()
}

/// Returns the result for programs.
fn json(source: &ClusterFile, solved: &Solved<'_>, check: &Check) -> anyhow::Result<Value> {
    let (compiled, assignment) = (&source.compiled, &solved.found.assignment);
    let guests = moved(compiled, assignment);
    let mut value = solved.json();
    value["moved"] = plain(&guests.iter().map(|guest| why(compiled, assignment, *guest)).collect::<Vec<_>>())?;
    value["complaints"] = plain(&check.complaints)?;
    value["survived"] = plain(&check.survived)?;
    value["clashes"] = plain(&compiled.clashes)?;
    value["placement"] = plain(&Placement::new(compiled, assignment))?["placement"].take();
    Ok(value)
}

fn why(compiled: &Compiled, assignment: &[HostId], guest: GuestId) -> Why {
    why_moved(compiled, &compiled.problem.initial, assignment, guest)
}

fn plain(value: &impl Serialize) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(value)?)
}

/// Returns the guests that are on another host than before.
fn moved(compiled: &Compiled, assignment: &[HostId]) -> Vec<GuestId> {
    let both = assignment.iter().zip(&compiled.problem.initial);
    (0..).zip(both).filter(|(_, (now, before))| now != before).map(|(guest, _)| guest).collect()
}
