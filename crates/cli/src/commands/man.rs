//! `skein man`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

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

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    skein_terminal::write_manual_pages(crate::Cli::command(), &args.out)?;
    Ok(ExitCode::SUCCESS)
}
