//! `skein placement`: files, clocks, threads and words around `skein-placement`, which decides.

mod bench;
mod check;
mod cluster;
mod explain;
mod files;
mod import;
mod replay;
mod schedule;
mod screen;
mod solve;
mod words;

use std::process::ExitCode;

/// Something is broken, or a plan does not get everybody where they are to be.
const EXIT_BROKEN: u8 = 3;

/// The part of `--help` that scripts are written from.
const EXIT_CODES: &str = "\
Exit codes:
  0  nothing hard is broken
  1  an error; what it was is said
  2  wrong arguments
  3  something hard is broken, or left undone; it is told";

/// Decide where guests run, and in which order they move there.
///
/// Works on files: no agent is asked, nothing is moved. docs/placement.md is a walk-through.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Solve(solve::Args),
    Check(check::Args),
    Explain(explain::Args),
    Schedule(schedule::Args),
    Replay(replay::Args),
    Bench(bench::Args),
    Import(import::Args),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Solve(args) => solve::run(args),
        Command::Check(args) => check::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Schedule(args) => schedule::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Import(args) => import::run(args),
    }
}

/// Returns the exit code of a command that found nothing broken, or something.
fn success_if(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BROKEN) }
}
