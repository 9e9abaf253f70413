//! `skein placement explain`.

use std::path::PathBuf;
use std::process::ExitCode;

use skein_placement_model::explain::explain;

use super::cluster::ClusterFile;
use crate::commands::text::{clean, print, print_json};

/// Say for each host why a guest can or cannot be there, and what would help if it can be nowhere
///
/// All others are where the file has them. A host that says no gives every reason; 'rather not' costs only. If all
/// hosts say no: the fewest rules and resources that rule them out together, and what to change, the cheapest first.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein placement explain --cluster cluster.yaml db2
  skein placement explain --cluster cluster.yaml db2 --json | jq '.hosts[] | select(.accepts) | .host'")]
pub struct Args {
    /// The cluster: YAML or JSON, see docs/cluster-file.md
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Its name in the file
    guest: String,
    /// An object: guest, on, lost (its host that is offline), hosts, conflict, relaxations, fragmented; costs in
    /// microseconds
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let source = ClusterFile::read(&args.cluster)?;
    let guest = source.guest(&args.guest)?;
    let explanation = explain(&source.compiled, &source.compiled.problem.initial, guest);
    if args.json {
        print_json(&explanation)?;
    } else {
        print(&clean(&explanation.to_string()))?;
    }
    Ok(ExitCode::SUCCESS)
}
