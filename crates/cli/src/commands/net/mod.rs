//! `skein net`: what carries migrations.

mod carriers;
mod catch;
mod compare;
mod picture;
mod probe;
mod qos;
mod show;
mod tune;

use std::process::ExitCode;

use super::local::LocalAgent;

/// What carries migrations: NICs and what they stand on, their queues and interrupts, what paths carry, and the
/// migration network
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein net show                          # this host: needs no agent
  skein net show hostb                    # another host, by this host's agent
  skein net show --to hostb               # the networks that join the two, and their NICs
  skein net probe --to hostb              # what the paths there carry, and what is wrong
  skein net catch install                 # carry what programs connect to in the migration network
  skein net qos apply --share 50          # half of each full NIC for migrations
  skein net tune                          # send NICs' interrupts to cores near them
  skein net show --json | jq '.[] | select(.carrier) | {name, speed_mbit, mtu}'")]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Show(show::Args),
    Probe(probe::Args),
    Catch(catch::Args),
    Qos(qos::Args),
    Tune(tune::Args),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Show(show) => show::run(&args.local, show)?,
        Command::Probe(probe) => return probe::run(&args.local, probe),
        Command::Catch(catch) => catch::run(catch)?,
        Command::Qos(qos) => qos::run(qos)?,
        Command::Tune(tune) => tune::run(tune)?,
    }
    Ok(ExitCode::SUCCESS)
}
