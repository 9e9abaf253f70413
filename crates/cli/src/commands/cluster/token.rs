//! `skein token`.

use std::process::ExitCode;

use serde_json::json;
use skein_api::cluster::{NewToken, Role, Token};

use super::access::ControllerArgs;
use super::follow::unix_ms;
use super::screen::print_table;
use super::words::time;
use crate::commands::host::seconds;
use crate::commands::text::{clean_line, print, print_json};

/// Let people and programs ask the cluster's controllers: each has a token of its own, which the audit log names.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controllers: ControllerArgs,
    #[command(subcommand)]
    command: Command,
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RoleName {
    /// May look, and have a plan shown that nobody carries out (--dry-run, --check)
    Viewer,
    /// May also move guests, drain hosts, call operations off
    Operator,
    /// May do everything: hosts join and leave, rules, tokens, settings
    Admin,
}

#[derive(clap::Subcommand)]
enum Command {
    /// The tokens, without their secrets
    #[command(after_help = "\
Examples:
  skein token list
  skein token list --json | jq '.[] | select(.role == \"admin\") | .name'")]
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Make a token; its secret is printed this once, and nothing else is
    #[command(after_help = "\
Examples:
  (umask 077; skein token create backup --role viewer >backup.token)
  skein token create anna --role operator --expires 90d
  then, as anna: skein login ctl.example --token-file anna.token --ca ca.pem")]
    Create {
        /// Its name, which the audit log has
        name: String,
        /// What its holder may do
        #[arg(long)]
        role: RoleName,
        /// How long it is good for, such as 12h or 90d [default: until it is removed]
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        expires: Option<u64>,
        /// The token with its secret as JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a token away: who has it is refused from now on
    #[command(after_help = "\
Examples:
  skein token remove backup")]
    Remove {
        /// Its name
        name: String,
        /// A JSON object with the name
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.controllers.client()?;
    match args.command {
        Command::List { json } => {
            let tokens = client.tokens().collect::<Result<Vec<Token>, _>>()?;
            if json { print_json(&tokens)? } else { list(tokens)? }
        }
        Command::Create { name, role, expires, json } => {
            let role = match role {
                RoleName::Viewer => Role::Viewer,
                RoleName::Operator => Role::Operator,
                RoleName::Admin => Role::Admin,
            };
            let made = client.new_token(&NewToken { name, role, expires_s: expires })?;
            if json { print_json(&made)? } else { print(&(made.secret + "\n"))? }
        }
        Command::Remove { name, json } => {
            client.remove_token(&name)?;
            match json {
                true => print_json(&json!({ "name": name }))?,
                false => print(&format!("{} is refused from now on\n", clean_line(&name)))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(tokens: Vec<Token>) -> anyhow::Result<()> {
    let rows: Vec<_> = tokens
        .into_iter()
        .map(|of| {
            let is_over = of.expires.is_some_and(|end| end.0 < unix_ms());
            let expires = of.expires.map_or_else(|| "never".to_owned(), time);
            let expires = if is_over { expires + ", EXPIRED" } else { expires };
            [of.name, of.role.name().to_owned(), time(of.created), expires]
        })
        .collect();
    print_table(["NAME", "ROLE", "MADE (UTC)", "ENDS (UTC)"], &rows)
}
