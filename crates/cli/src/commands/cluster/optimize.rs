//! `skein optimize`.

use std::process::ExitCode;

use skein_api::cluster::OptimizeRequest;
use skein_client::ControllerClient;

use super::access::ControllerArgs;
use super::follow::EXIT_CODES;
use super::hosts::{Wait, begun};
use super::output::Output;
use super::plan::moves;
use crate::commands::text::{clean_line, count, print, print_json};

/// Move guests where fewer rules are broken, or where load is better spread.
///
/// Without --apply the moves are only shown, each with its reason. Doing nothing is a plan, too: a move that costs more
/// than it brings is not made. The controller does this by itself where that is switched on: skein cluster settings
/// optimize.automatic=yes
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein optimize                             what would be moved, and why
  skein optimize --apply
  skein optimize --aggressiveness 1          only what is broken

{EXIT_CODES}"))]
pub struct Args {
    #[command(flatten)]
    controllers: ControllerArgs,
    /// Make the moves, and watch
    #[arg(long)]
    apply: bool,
    /// How much is done, from 1 (only what is broken is repaired) to 5 [default: as is set]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    aggressiveness: Option<u8>,
    /// Return as soon as the moves have begun
    #[arg(long, requires = "apply")]
    detach: bool,
    /// The operation as JSON; with --apply a line for each step
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.controllers.client()?;
    let operation = client.optimize(&OptimizeRequest { apply: args.apply, aggressiveness: args.aggressiveness })?;
    if args.apply {
        return begun(&client, operation, Wait::of(args.detach), Output::of(args.json));
    }
    if args.json {
        print_json(&operation)?;
        return Ok(ExitCode::SUCCESS);
    }
    let message = Some(clean_line(&operation.message)).filter(|message| !message.is_empty());
    let message = message.map(|message| message + "\n").unwrap_or_default();
    let all = operation.moves.iter().filter(|of| of.to.is_some()).count();
    let end = match all {
        0 => "no move is worth making\n".to_owned() + &still_broken(&client),
        _ => format!("{} would be made: skein optimize --apply\n", count(all, "move")),
    };
    print(&(moves(&operation) + &message + &end))?;
    Ok(ExitCode::SUCCESS)
}

/// Says what stays broken though no move is made. Empty: nothing, or it is not known.
fn still_broken(client: &ControllerClient) -> String {
    let found = client.complaints().unwrap_or_default();
    let (hard, soft): (Vec<_>, Vec<_>) = found.iter().partition(|of| of.hard);
    let see = "skein rule check says which, and what to do";
    match (hard.len(), soft.len()) {
        (0, 0) => String::new(),
        (0, soft) => format!(
            "what only costs stays ({}): no move is made for a soft rule alone; {see}\n",
            count(soft, "complaint")
        ),
        (hard, _) => format!("what must not be stays ({}): no move mends that; {see}\n", count(hard, "complaint")),
    }
}
