//! `skein placement`: adds files, clocks, threads and output to `skein-placement`, which decides.

mod bench;
mod check;
mod cluster;
mod exit;
mod explain;
mod files;
mod import;
mod replay;
mod schedule;
mod screen;
mod solve;
mod words;

use std::process::ExitCode;

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
