//! `skein-lab man`.

use std::path::PathBuf;

/// Write the manual pages: skein-lab(1), and one for each subcommand.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-lab man --out . && man ./skein-lab-cut.1")]
pub struct Args {
    /// The directory; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs the command. `program` is the command that the pages describe.
pub fn run(args: Args, program: clap::Command) -> anyhow::Result<()> {
    skein_terminal::write_manual_pages(program, &args.out)
}
