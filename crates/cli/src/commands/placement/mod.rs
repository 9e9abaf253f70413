//! `skein placement`: adds cluster files and output to `skein-placement`, which decides.

mod check;
mod cluster;
mod explain;
mod import;
mod schedule;
mod solve;

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
    Import(import::Args),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Solve(args) => solve::run(args),
        Command::Check(args) => check::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Schedule(args) => schedule::run(args),
        Command::Import(args) => import::run(args),
    }
}
