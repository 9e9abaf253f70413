//! `skein placement solve`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::{Value, json};
use skein_placement::bound::{Least, moves_min};
use skein_placement::problem::{GuestId, HostId, Problem, Strength};
use skein_placement::schedule::plan;
use skein_placement::score::Score;
use skein_placement::verdict::{judge, moves};
use skein_placement_model::cluster::{Check, Compiled, History, check};
use skein_placement_model::explain::{Why, why_moved};
use skein_placement_model::formats::{btrplace, roadef};
use skein_solver::{Budget, Ending, Goal, Options, Progress, Proof, ProofError, Solution, Task, solve};

use super::cluster::{ClusterFile, Placement};
use super::exit::{EXIT_CODES, success_if};
use super::screen::Screen;
use super::words::{Judged, Outcome, Unit, beside};
use super::{check as checked, files};
use crate::commands::text::{clean, count, print, print_json};

/// The most moves that are printed one by one, with their reason.
const MOVES_PRINTED_MAX: usize = 50;
const SECONDS: u64 = 10;

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
  skein placement solve --format roadef model_a1_1.txt assignment_a1_1.txt --seconds 300 --seed 1 --out solution.txt
  skein placement solve --cluster cluster.yaml --seconds 5 --prove 60
  skein placement solve --format btrplace li6-c100.gz --steps 1000000 --threads 2

{EXIT_CODES}"))]
pub struct Args {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    options: SearchArgs,
    /// Then prove for so many seconds at most how little any placement costs; HiGHS does, for some hundreds of guests
    /// on tens of hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    prove: Option<u64>,
    /// Write what was found here: an assignment (roadef), a plan (btrplace), or a host for each guest for
    /// `schedule --solution` (--cluster)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// An object: initial, found (valid, breaches, cost, moves), moves_min (null: something is always broken), proof;
    /// of a cluster also moved (with why), complaints, survived, clashes, placement; costs of a cluster are
    /// microseconds
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("input").required(true))]
struct InputArgs {
    /// Skein's own file, YAML or JSON: see docs/cluster-file.md
    #[arg(long, value_name = "FILE", group = "input", conflicts_with = "files")]
    cluster: Option<PathBuf>,
    /// The files are of this format
    #[arg(long, value_enum, requires = "files", group = "input")]
    format: Option<Format>,
    /// MODEL and INITIAL of roadef, or the instance of btrplace; gzip's, too
    #[arg(value_name = "FILE", requires = "format", num_args = 1..=2)]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Google Machine Reassignment, as in the ROADEF/EURO challenge 2012
    Roadef,
    /// An instance of BtrPlace, JSON
    Btrplace,
}

/// How long a search goes on, and with what.
#[derive(clap::Args)]
pub struct SearchArgs {
    /// By the clock: another run finds something else [default: 10]
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: Option<u64>,
    /// By steps of each thread instead: the same answer for the same --seed and --threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Another one finds something else
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Only mend what is broken, with the fewest moves; what costs less is looked for with as few moves only
    #[arg(long)]
    repair_only: bool,
    /// Threads that search, each from its own seed, and tell each other what they find [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl SearchArgs {
    /// Returns the options of a search. At most `prove` seconds are for a proof.
    fn resolve(&self, prove: Option<u64>) -> Options {
        let budget = match self.steps {
            Some(steps) => Budget::Steps(steps),
            None => Budget::Time(Duration::from_secs(self.seconds.unwrap_or(SECONDS))),
        };
        let goal = if self.repair_only { Goal::Repaired } else { Goal::Cheapest };
        let threads = self.threads.and_then(|threads| NonZeroUsize::new(threads.into())).unwrap_or_else(all_threads);
        Options { budget, seed: self.seed, threads, goal, proof: prove.map(Duration::from_secs) }
    }
}

/// Returns one thread for each CPU.
pub fn all_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// What is to be solved.
enum Input {
    Roadef(Box<Problem>),
    Btrplace(Box<btrplace::Instance>),
    Cluster(Box<ClusterFile>),
}

impl Input {
    fn read(args: &InputArgs) -> anyhow::Result<Input> {
        match (&args.cluster, args.format, &args.files[..]) {
            (Some(path), ..) => Ok(Input::Cluster(ClusterFile::read(path)?.into())),
            (None, Some(Format::Roadef), [model, initial]) => Ok(Input::Roadef(read_roadef(model, initial)?.into())),
            (None, Some(Format::Roadef), _) => bail!("--format roadef needs two files: MODEL INITIAL"),
            (None, _, [file]) => Ok(Input::Btrplace(read_btrplace(file)?.into())),
            _ => bail!("--format btrplace needs one file"),
        }
    }

    fn problem(&self) -> &Problem {
        match self {
            Input::Roadef(problem) => problem,
            Input::Btrplace(instance) => &instance.problem,
            Input::Cluster(source) => &source.compiled.problem,
        }
    }

    fn task(&self) -> Task<'_> {
        match self {
            Input::Roadef(problem) => problem.as_ref().into(),
            Input::Btrplace(instance) => (&instance.problem).into(),
            Input::Cluster(source) => (&source.compiled).into(),
        }
    }

    fn unit(&self) -> Unit {
        match self {
            Input::Roadef(_) | Input::Btrplace(_) => Unit::Plain,
            Input::Cluster(_) => Unit::Seconds,
        }
    }

    /// Returns the outcome of an assignment, and for a cluster also its check.
    fn outcome(&self, assignment: &[HostId]) -> (Outcome, Option<Check>) {
        let verdict = judge(self.problem(), assignment);
        let Input::Cluster(source) = self else { return (Outcome { verdict, failures: 0 }, None) };
        let (check, _) = check(&source.compiled, assignment, &History::default(), 0);
        let failures = match &check.survived {
            Some(told) if self.has_to_survive() => told.tried - told.survived,
            _ => 0,
        };
        (Outcome { verdict, failures }, Some(check))
    }

    /// Returns whether failures of hosts that are not survived are breaches.
    fn has_to_survive(&self) -> bool {
        match self {
            Input::Cluster(source) => source.compiled.survive.is_some_and(|rule| rule.strength == Strength::Hard),
            _ => false,
        }
    }

    fn solution(&self, assignment: &[HostId]) -> anyhow::Result<String> {
        match self {
            Input::Roadef(_) => Ok(roadef::write_assignment(assignment)),
            Input::Cluster(source) => Placement::new(&source.compiled, assignment).text(),
            Input::Btrplace(instance) => btrplace_plan(instance, assignment).map(|(_, text)| text),
        }
    }
}

/// Reads the two files of an instance of the challenge.
pub fn read_roadef(model: &Path, initial: &Path) -> anyhow::Result<Problem> {
    let (model, initial) = (&model, &initial);
    let name = |path: &Path| path.display().to_string();
    let mut problem = roadef::read_model(&files::read(model)?).with_context(|| name(model))?;
    problem.initial = roadef::read_assignment(&files::read(initial)?, &problem).with_context(|| name(initial))?;
    problem.check().with_context(|| name(model))?;
    Ok(problem)
}

/// Reads an instance of BtrPlace.
pub fn read_btrplace(path: &Path) -> anyhow::Result<btrplace::Instance> {
    btrplace::read(&files::read(path)?).with_context(|| path.display().to_string())
}

/// Returns how many guests do not get to their hosts, and the plan to an assignment.
pub fn btrplace_plan(instance: &btrplace::Instance, assignment: &[HostId]) -> anyhow::Result<(usize, String)> {
    // The first order is taken: many thousands of moves leave no time for more.
    let plan = plan(&instance.job(assignment), 1, 0).context("the moves cannot be planned")?;
    Ok((plan.left.len(), btrplace::write_plan(instance, &btrplace::moves(&plan))))
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let inputs: Vec<&Path> = args.input.files.iter().chain(&args.input.cluster).map(PathBuf::as_path).collect();
    let out = files::output(args.out.as_deref(), &inputs)?;
    let input = Input::read(&args.input)?;
    if out.is_some() {
        // If it cannot be written, the user had better know before the search than after.
        input.solution(&input.problem().initial)?;
    }
    let options = args.options.resolve(args.prove);
    let found = searched(&input, &options)?;
    if let Some(path) = out {
        files::write(path, &input.solution(&found.assignment)?)?;
    }
    let ((initial, _), (judged, check)) = (input.outcome(&input.problem().initial), input.outcome(&found.assignment));
    let result = Solved { input: &input, options, found: &found, initial, judged, check };
    match args.json {
        true => print_json(&result.json()?)?,
        false => print(&clean(&result.text()))?,
    }
    Ok(success_if(result.judged.is_valid()))
}

/// Searches, and shows the progress.
fn searched(input: &Input, options: &Options) -> anyhow::Result<Solution> {
    let (interrupt, mut screen) = (skein_terminal::interrupt_flag()?, Screen::new());
    let valid = if input.has_to_survive() { "valid (failures of hosts not tried yet)" } else { "valid" };
    let show = |progress: &Progress<'_>| {
        let moves = moves(input.problem(), progress.assignment);
        let is_valid = if progress.score.broken == 0 { valid } else { "not valid yet" };
        let cost = input.unit().text(progress.score.cost);
        screen.show(&format!(
            "{:.1} s  {is_valid}  cost {cost}  moves {moves}  (Ctrl-C ends it with this)",
            progress.elapsed.as_secs_f64()
        ));
    };
    Ok(solve(&input.task(), options, &interrupt, show)?)
}

/// The result of a search.
struct Solved<'a> {
    input: &'a Input,
    options: Options,
    found: &'a Solution,
    initial: Outcome,
    judged: Outcome,
    /// The check of what was found, for a cluster.
    check: Option<Check>,
}

impl Solved<'_> {
    fn text(&self) -> String {
        let mut text = beside(&self.initial, &self.judged, self.input.unit());
        let how = if self.found.ending == Ending::Cancelled { "ended early" } else { "searched" };
        text += &format!(
            "{how}, {:.1} s on {}, seed {}; {}\n",
            self.found.elapsed.as_secs_f64(),
            count(self.options.threads.get(), "thread"),
            self.options.seed,
            self.least_text(),
        );
        if let Some(proof) = &self.found.proof {
            text += &self.proven(proof);
        }
        if let (Input::Cluster(source), Some(check)) = (self.input, &self.check) {
            text += &self.cluster_text(source, check);
        }
        text
    }

    /// Returns what is needed at least to break nothing, or why something is always broken.
    fn least(&self) -> Result<Least, String> {
        let mut least = moves_min(self.input.problem());
        if least.is_impossible {
            return Err("a rule asks for more areas than there are, or than it has guests".into());
        }
        let survived = self.check.as_ref().and_then(|check| check.survived.as_ref());
        if let Some(why) = survived.and_then(|told| told.impossible.as_ref()).filter(|_| self.input.has_to_survive()) {
            return Err(format!("no placement survives all failures: {why}"));
        }
        // The bound ignores some rules. If something is broken now, at least one move is needed.
        if least.moves + least.placements == 0 && !self.initial.is_valid() {
            least.moves = 1;
        }
        Ok(least)
    }

    fn least_text(&self) -> String {
        let least = match self.least() {
            Ok(least) => least,
            Err(why) => return format!("something is always broken: {why}"),
        };
        // A bound does not say whether the moves are possible.
        let can = if self.judged.is_valid() { "takes" } else { "would take, if it can be," };
        let (moves, placements) = (count(least.moves, "move"), count(least.placements, "placement"));
        format!("to break nothing {can} {moves} and {placements} at least")
    }

    fn proven(&self, proof: &Result<Proof, ProofError>) -> String {
        let cost = |cost: i64| self.input.unit().text(cost);
        match proof {
            Err(error) => format!("nothing is proven: {}\n", error_chain(error)),
            Ok(Proof { bound: None, .. }) => "proven: every placement breaks something\n".into(),
            Ok(Proof { bound: Some(bound), .. })
                if self.judged.is_valid() && self.judged.verdict.score() == Score::cost(*bound) =>
            {
                "proven: no placement that breaks nothing costs less\n".into()
            }
            Ok(Proof { bound: Some(bound), .. }) => {
                format!("proven: every placement that breaks nothing costs {} at least\n", cost(*bound))
            }
        }
    }

    fn cluster_text(&self, source: &ClusterFile, check: &Check) -> String {
        let compiled = &source.compiled;
        let guests = moved(compiled, &self.found.assignment);
        let mut text = String::new();
        for guest in guests.iter().take(MOVES_PRINTED_MAX) {
            text += &format!("{}\n", self.why(compiled, *guest));
        }
        if guests.len() > MOVES_PRINTED_MAX {
            text += &format!("and {} more (--json has all)\n", count(guests.len() - MOVES_PRINTED_MAX, "move"));
        }
        text + "then: " + &checked::check_text(check, None) + &source.clashes()
    }

    fn why(&self, compiled: &Compiled, guest: GuestId) -> Why {
        why_moved(compiled, &compiled.problem.initial, &self.found.assignment, guest)
    }

    fn json(&self) -> anyhow::Result<Value> {
        let least = self.least().ok();
        let moves_min = least.map(|least| json!({ "moves": least.moves, "placements": least.placements }));
        let mut value = json!({
            "initial": Judged::new(&self.initial),
            "found": Judged::new(&self.judged),
            "moves_min": moves_min,
            "seconds": self.found.elapsed.as_secs_f64(),
            "interrupted": self.found.ending == Ending::Cancelled,
            "seed": self.options.seed,
            "threads": self.options.threads,
        });
        match &self.found.proof {
            Some(Ok(proof)) => {
                value["proof"] = json!({ "is_feasible": proof.bound.is_some(), "cost_min": proof.bound })
            }
            Some(Err(error)) => value["proof"] = json!({ "error": error_chain(error) }),
            None => {}
        }
        if let (Input::Cluster(source), Some(check)) = (self.input, &self.check) {
            let compiled = &source.compiled;
            let guests = moved(compiled, &self.found.assignment);
            value["moved"] = plain(&guests.iter().map(|guest| self.why(compiled, *guest)).collect::<Vec<_>>())?;
            value["complaints"] = plain(&check.complaints)?;
            value["survived"] = plain(&check.survived)?;
            value["clashes"] = plain(&compiled.clashes)?;
            value["placement"] = plain(&Placement::new(compiled, &self.found.assignment))?["placement"].take();
        }
        Ok(value)
    }
}

/// Returns an error and its causes in one line.
fn error_chain(error: &ProofError) -> String {
    anyhow::Chain::new(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn plain(value: &impl Serialize) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(value)?)
}

/// Returns the guests that are on another host than before.
fn moved(compiled: &Compiled, assignment: &[HostId]) -> Vec<GuestId> {
    let both = assignment.iter().zip(&compiled.problem.initial);
    (0..).zip(both).filter(|(_, (now, before))| now != before).map(|(guest, _)| guest).collect()
}
