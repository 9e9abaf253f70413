//! The `skein-lab` program: hosts on one machine, the bench, the demo, placement on public problems. Only arguments and
//! output are here.

mod commands;
mod skein;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Hosts in network namespaces on this machine, with links to shape, cut and heal; and what is measured and shown in
/// them.
///
/// A lab is a few hosts, each a network namespace with NICs nic0, nic1 … of its own, around a switch. It stands until
/// `skein-lab down`, or until the machine restarts. Needs root and iproute2.
#[derive(Parser)]
#[command(
    name = "skein-lab",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  skein-lab up --nics 2 --rate 1000         hosts a and b, two pairs of NICs of 1 Gb/s
  skein-lab exec a -- ping -c3 10.77.0.2    run a program in host a
  skein-lab cut a nic0                      pull the cable of host a's nic0
  skein-lab cut a nic1 --black-hole         nothing passes nic1, though its carrier stays
  skein-lab heal                            all links are whole again
  skein-lab rate b nic1 250                 host b's nic1 is a link of 250 Mb/s
  skein-lab status                          hosts, NICs, addresses, rates, cuts
  skein-lab down                            remove it all
  skein-lab demo                            see Skein's agents move a guest between two such hosts
  skein-lab bench run two-nics --quick      measure Skein and its peers, side by side
  skein-lab placement bench --list          measure how Skein places guests, on public problems"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Hosts(commands::hosts::Command),
    Bench(commands::bench::Args),
    Demo(commands::demo::Args),
    Placement(commands::placement::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
    /// Be the process of some hundred simulated agents, for fleet-1000
    #[command(hide = true)]
    FleetAgents,
}

fn main() -> ExitCode {
    skein_terminal::log_to_stderr();
    let success = |()| ExitCode::SUCCESS;
    let done = match Cli::parse().command {
        Command::Hosts(command) => commands::hosts::run(command).map(success),
        Command::Bench(args) => commands::bench::run(args).map(success),
        Command::Demo(args) => commands::demo::run(args).map(success),
        Command::Placement(args) => commands::placement::run(args),
        Command::Completions(args) => commands::completions::run(args, &Cli::command()).map(success),
        Command::Man(args) => commands::man::run(args, Cli::command()).map(success),
        Command::FleetAgents => skein_lab_fleet::agents::run().map_err(Into::into).map(success),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            skein_terminal::print_error("skein-lab", &error);
            ExitCode::FAILURE
        }
    }
}
