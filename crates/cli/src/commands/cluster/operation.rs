//! `skein operation`.

use std::process::ExitCode;

use anyhow::bail;
use skein_api::cluster::Operation;
use skein_client::{ControllerClient, ControllerError};

use super::access::ControllerArgs;
use super::follow::{EXIT_CODES, follow};
use super::output::Output;
use super::plan::moves;
use super::screen::print_table;
use super::update::hosts_table;
use super::words::{kind, operation_state, progress, time};
use crate::commands::text::{clean_line, fields, print, print_json};

/// How many operations are looked through for the beginning of an id.
const SEARCHED_MAX: usize = 2000;

/// Look at what the cluster does over a while: drains, migrations. Follow it, call it off.
///
/// An operation is named by the beginning of its id.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controllers: ControllerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Operations, the newest first
    #[command(after_help = "\
Examples:
  skein operation list
  skein operation list --limit 100 --json | jq '.[] | select(.state == \"failed\")'")]
    List {
        /// The most operations
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=2000))]
        limit: u16,
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// One operation: how far it is, each move, and why
    #[command(after_help = "\
Examples:
  skein operation show 7f3a")]
    Show {
        /// The beginning of its id
        id: String,
        /// The operation as JSON
        #[arg(long)]
        json: bool,
    },
    /// Follow one until it is over; Ctrl-C stops watching, not the operation
    #[command(after_help = format!("\
Examples:
  skein operation watch 7f3a
  skein operation watch 7f3a --json | jq -c .progress

{EXIT_CODES}"))]
    Watch {
        /// The beginning of its id
        id: String,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Call one off: what was not begun is not begun any more, what is under way stops if it still can
    #[command(after_help = "\
Examples:
  skein operation cancel 7f3a")]
    Cancel {
        /// The beginning of its id
        id: String,
        /// The operation as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.controllers.client()?;
    match args.command {
        Command::List { limit, json } => {
            let found = client.operations(u32::from(limit).min(500)).take(usize::from(limit));
            let found = found.collect::<Result<Vec<_>, _>>()?;
            if json {
                print_json(&found)?;
            } else {
                list(&found)?;
            }
        }
        Command::Show { id, json } => {
            let operation = find(&client, &id)?;
            if json { print_json(&operation)? } else { print(&shown(&operation))? }
        }
        Command::Watch { id, json } => return follow(&client, find(&client, &id)?, Output::of(json)),
        Command::Cancel { id, json } => {
            let operation = client.cancel(&find(&client, &id)?.id)?;
            if json {
                print_json(&operation)?;
            } else {
                let (what, state) = (kind(&operation.kind), operation_state(operation.state));
                print(&format!("{what}: {state}, {}\n", progress(&operation)))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the operation whose id begins so.
fn find(client: &ControllerClient, id: &str) -> anyhow::Result<Operation> {
    match client.operation(id) {
        Err(ControllerError::Refused(problem)) if problem.status == 404 => {}
        found => return Ok(found?),
    }
    let mut found: Option<Operation> = None;
    for operation in client.operations(500).take(SEARCHED_MAX) {
        let operation = operation?;
        if operation.id.starts_with(id) && found.replace(operation).is_some() {
            bail!("several operations begin with '{id}': give more of the id, see `skein operation list`");
        }
    }
    match found {
        Some(operation) => Ok(operation),
        None => bail!("there is no operation '{id}': see `skein operation list`"),
    }
}

fn list(operations: &[Operation]) -> anyhow::Result<()> {
    if operations.is_empty() {
        return print("there has been no operation; `skein host drain HOST` begins one\n");
    }
    let rows: Vec<_> = operations
        .iter()
        .map(|of| {
            [
                of.id.clone(),
                kind(&of.kind),
                operation_state(of.state).to_owned(),
                format!("{}/{}", of.progress.moves_done, of.progress.moves),
                time(of.created),
                of.by.clone(),
                of.message.clone(),
            ]
        })
        .collect();
    print_table(["ID", "WHAT", "STATE", "MOVES", "SINCE (UTC)", "BY", "NOTE"], &rows)
}

/// Returns an operation with all its moves.
fn shown(operation: &Operation) -> String {
    let rows = [
        ("state", operation_state(operation.state).to_owned()),
        ("progress", progress(operation)),
        ("asked for by", operation.by.clone()),
        ("since", time(operation.created)),
        ("until", operation.ended.map(time).unwrap_or_default()),
        ("note", operation.message.clone()),
    ];
    let moves = moves(operation) + &hosts_table(operation);
    format!("{} {}\n{}{moves}", clean_line(&operation.id), kind(&operation.kind), fields(&rows))
}
