//! `skein placement schedule`.

mod job;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use skein_placement::problem::HostId;
use skein_placement::schedule::plan;
use skein_placement::schedule::simulate::{Start, simulate};
use skein_placement_command::{EXIT_CODES, STEPS_TRIED, success_if};
use skein_placement_model::cluster::model::HostState;
use skein_placement_model::cluster::{Complaint, History, check};
use skein_terminal::files;

use super::cluster::{ClusterFile, Placement};
use crate::commands::text::{clean, print, print_json};

/// Plan in which order guests move, and how many at once
///
/// Hard rules that hold before and after hold on the way (`together` and `skew_max` do at the ends only), nothing is
/// overloaded on the way, and guests that wait for each other in a circle are freed by one that steps aside. Where no
/// order keeps all of them, `needs` is broken for a while, or others are, but at no moment more than are broken now;
/// which, and from when to when, is told. Where that does not do either, guests are left undone, and it is told which
/// rules are in the way. The plan is then carried out by a simulator with a model of its own; what it finds wrong is
/// told, and what is broken in the end.
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein placement solve --cluster cluster.yaml --out placement.json
  skein placement schedule --cluster cluster.yaml --solution placement.json
  skein placement schedule --cluster now.yaml --to tomorrow.yaml --out plan.json

{EXIT_CODES}
     (not what is broken for a while on the way, if it is no more than now, or a `needs`)"))]
#[command(group = clap::ArgGroup::new("goal").required(true))]
pub struct Args {
    /// Where guests are: Skein's own file, YAML or JSON
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Where they are to be: another file of the same hosts and guests, of which only that is taken, and which hosts
    /// are on. Its rules are judged in the end, amounts and bandwidth are of --cluster
    #[arg(long, value_name = "FILE", group = "goal")]
    to: Option<PathBuf>,
    /// Where they are to be: what `solve --cluster FILE --out` wrote
    #[arg(long, value_name = "FILE", group = "goal")]
    solution: Option<PathBuf>,
    /// Changes of the order that are tried
    #[arg(long, value_name = "N", default_value_t = STEPS_TRIED, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Another one finds something else
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the plan here, as --json prints it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// An object: steps (waits: those before it, counted from 0), left, helps, broken_on_the_way (rule, start_s,
    /// end_s), broken_then, makespan_s, simulated (makespan_s, mean_completion_s, downtime_max_s, violations)
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let inputs: Vec<&Path> =
        [&args.to, &args.solution].into_iter().flatten().chain([&args.cluster]).map(PathBuf::as_path).collect();
    let out = files::output(args.out.as_deref(), &inputs)?;
    let source = ClusterFile::read(&args.cluster)?;
    let mut states = source.compiled.names.states.clone();
    let (goal, from, then) = match (&args.to, &args.solution) {
        (Some(to), _) => {
            let other = ClusterFile::read(to)?;
            states = states_in(&source, &other)?;
            let then = complaints(&other, &other.compiled.problem.initial);
            (Placement::of(&other).assignment(&source, to)?, to, then)
        }
        (None, Some(solution)) => {
            let goal = Placement::read(solution)?.assignment(&source, solution)?;
            let then = complaints(&source, &goal);
            (goal, solution, then)
        }
        (None, None) => unreachable!("one of them is asked for"),
    };
    let job = job::job(&source.compiled, goal, &states);
    let names = &source.compiled.names;
    let plan = plan(&job, args.seed, args.steps).map_err(|flaw| report::flaw(names, flaw));
    let plan = plan.with_context(|| format!("{} cannot be reached", from.display()))?;
    let told = report::ScheduleReport {
        job: &job,
        plan: &plan,
        outcome: &simulate(&job, &plan, Start::Free),
        names,
        then: &then,
    };
    if let Some(out) = out {
        files::write(out, &(serde_json::to_string_pretty(&told.json())? + "\n"))?;
    }
    match args.json {
        true => print_json(&told.json())?,
        false => print(&clean(&told.text()))?,
    }
    Ok(success_if(told.is_good()))
}

/// Returns the hard rules that are broken where guests are to be.
fn complaints(source: &ClusterFile, goal: &[HostId]) -> Vec<Complaint> {
    let (check, _) = check(&source.compiled, goal, &History::default(), 0);
    check.complaints.into_iter().filter(|complaint| complaint.hard).collect()
}

/// Returns the state of each host in another file.
fn states_in(source: &ClusterFile, other: &ClusterFile) -> anyhow::Result<Vec<HostState>> {
    let (ours, theirs) = (&source.compiled.names, &other.compiled.names);
    let state = |name: &String| {
        let at = theirs.hosts.iter().position(|host| host == name);
        at.map(|at| theirs.states[at]).with_context(|| {
            format!("{}: host '{}' of {} is missing", other.path.display(), clean(name), source.path.display())
        })
    };
    ours.hosts.iter().map(state).collect()
}
