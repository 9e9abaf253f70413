//! `skein-lab placement schedule`.

use std::path::PathBuf;
use std::process::ExitCode;

use skein_placement_command::{EXIT_CODES, STEPS_TRIED, success_if};
use skein_terminal::{files, print, print_json};

use super::ucc15::Compared;

/// Plan the moves of a public problem, beside the plan that its file has
///
/// Both plans are carried out by the same simulator.
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein-lab placement schedule --format ucc15 random.1.json

{EXIT_CODES}"))]
pub struct Args {
    /// What the file is
    #[arg(long, value_enum)]
    format: Format,
    /// Where guests are, where they are to be, and another's plan; gzip's, too
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Changes of the order that are tried
    #[arg(long, value_name = "N", default_value_t = STEPS_TRIED, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Another one finds something else
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the plan here, in the file's own format
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// An object: file and ours (planned_makespan_s, makespan_s, mean_completion_s, downtime_max_s, steps, violations,
    /// left), seconds
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Plans of Kherbache et al., UCC 2015, as BtrPlace writes them
    Ucc15,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = files::output(args.out.as_deref(), &[&args.file])?;
    let compared = match args.format {
        Format::Ucc15 => Compared::new(&args.file, args.seed, args.steps)?,
    };
    if let Some(out) = out {
        files::write(out, &compared.file())?;
    }
    match args.json {
        true => print_json(&compared.json())?,
        false => print(&compared.text())?,
    }
    Ok(success_if(compared.wrong() == 0))
}
