//! `skein-lab placement solve`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use skein_lab_placement::{btrplace, roadef};
use skein_placement::problem::{HostId, Problem};
use skein_placement::schedule::plan;
use skein_placement::verdict::judge;
use skein_placement_command::{EXIT_CODES, Outcome, SearchArgs, Solved, Unit, search, success_if};
use skein_terminal::{files, print, print_json};

/// Solve a public problem of research, as `skein placement solve` does a cluster
///
/// First what is broken is mended with few moves, then it is searched for what costs less, moves included.
/// Prints what the initial placement and the one that was found break and cost, as a judge says who counts from
/// scratch.
/// Ctrl-C ends the search early, with the best so far.
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein-lab placement solve --format roadef model_a1_1.txt assignment_a1_1.txt --seconds 300 --seed 1 --out solution.txt
  skein-lab placement solve --format btrplace li6-c100.gz --steps 1000000 --threads 2

{EXIT_CODES}"))]
pub struct Args {
    /// What the files are
    #[arg(long, value_enum)]
    format: Format,
    /// MODEL and INITIAL of roadef, or the instance of btrplace; gzip's, too
    #[arg(value_name = "FILE", required = true, num_args = 1..=2)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    options: SearchArgs,
    /// Then prove for so many seconds at most how little any placement costs; HiGHS does, for some hundreds of guests
    /// on tens of hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    prove: Option<u64>,
    /// Write what was found here: an assignment (roadef) or a plan (btrplace)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// An object: initial, found (valid, breaches, cost, moves), moves_min (null: something is always broken), proof
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Google Machine Reassignment, as in the ROADEF/EURO challenge 2012
    Roadef,
    /// An instance of BtrPlace, JSON
    Btrplace,
}

/// What is to be solved.
enum Input {
    Roadef(Box<Problem>),
    Btrplace(Box<btrplace::Instance>),
}

impl Input {
    fn read(format: Format, files: &[PathBuf]) -> anyhow::Result<Input> {
        match (format, files) {
            (Format::Roadef, [model, initial]) => Ok(Input::Roadef(read_roadef(model, initial)?.into())),
            (Format::Roadef, _) => bail!("--format roadef needs two files: MODEL INITIAL"),
            (Format::Btrplace, [file]) => Ok(Input::Btrplace(read_btrplace(file)?.into())),
            (Format::Btrplace, _) => bail!("--format btrplace needs one file"),
        }
    }

    fn problem(&self) -> &Problem {
        match self {
            Input::Roadef(problem) => problem,
            Input::Btrplace(instance) => &instance.problem,
        }
    }

    fn solution(&self, assignment: &[HostId]) -> anyhow::Result<String> {
        match self {
            Input::Roadef(_) => Ok(roadef::write_assignment(assignment)),
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
    let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    let out = files::output(args.out.as_deref(), &inputs)?;
    let input = Input::read(args.format, &args.files)?;
    let problem = input.problem();
    if out.is_some() {
        // If it cannot be written, the user had better know before the search than after.
        input.solution(&problem.initial)?;
    }
    let options = args.options.resolve(args.prove);
    let found = search(&problem.into(), &options, Unit::Plain)?;
    if let Some(path) = out {
        files::write(path, &input.solution(&found.assignment)?)?;
    }
    let outcome = |assignment: &[HostId]| Outcome { verdict: judge(problem, assignment), failures: 0 };
    let (initial, judged) = (outcome(&problem.initial), outcome(&found.assignment));
    let is_valid = judged.is_valid();
    let solved = Solved { problem, unit: Unit::Plain, options, found: &found, initial, judged, impossible: None };
    match args.json {
        true => print_json(&solved.json())?,
        false => print(&solved.text())?,
    }
    Ok(success_if(is_valid))
}
