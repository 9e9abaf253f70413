//! `skein man`.

use std::path::PathBuf;
use std::process::ExitCode;

/// Write the manual pages: skein(1), and one for each subcommand.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein man --out /usr/local/share/man/man1
  skein man --out . && man ./skein-migrate.1")]
pub struct Args {
    /// The directory; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs the command. `program` is the command that the pages describe.
pub fn run(args: Args, program: clap::Command) -> anyhow::Result<ExitCode> {
    skein_terminal::write_manual_pages(program, &args.out)?;
    Ok(ExitCode::SUCCESS)
}
