//! `skein-lab placement`: Skein's placement on public problems of research, beside what others reached.

mod bench;
mod replay;
mod schedule;
mod solve;
mod ucc15;

use std::process::ExitCode;

/// Measure how Skein places guests, on public problems of research and recorded days.
///
/// `skein placement` does the same for cluster files. docs/placement.md says more.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Bench(bench::Args),
    Replay(replay::Args),
    Solve(solve::Args),
    Schedule(schedule::Args),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Bench(args) => bench::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Solve(args) => solve::run(args),
        Command::Schedule(args) => schedule::run(args),
    }
}
