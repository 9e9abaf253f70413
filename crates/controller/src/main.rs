//! The `skein-controller` program: arguments and output.

mod commands;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Keeps a cluster of hosts that run `skein agent`: shows and moves its guests, empties hosts, lets hosts join.
#[derive(Parser)]
#[command(name = "skein-controller", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(Box<commands::init::Args>),
    Run(commands::run::Args),
    Ticket(commands::ticket::Args),
    Backup(commands::backup::BackupArgs),
    Restore(commands::backup::RestoreArgs),
    RaiseTerms(commands::backup::RaiseTermsArgs),
    Completions(commands::generated::CompletionsArgs),
    Man(commands::generated::ManArgs),
}

fn main() -> ExitCode {
    skein_terminal::log_to_stderr();
    let done = match Cli::parse().command {
        Command::Init(args) => commands::init::run(*args),
        Command::Run(args) => commands::run::run(args),
        Command::Ticket(args) => commands::ticket::run(args),
        Command::Backup(args) => commands::backup::backup(args),
        Command::Restore(args) => commands::backup::restore(args),
        Command::RaiseTerms(args) => commands::backup::raise_terms(args),
        Command::Completions(args) => commands::generated::completions(args, &Cli::command()),
        Command::Man(args) => commands::generated::man(args, Cli::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            skein_terminal::print_error("skein-controller", &error);
            ExitCode::FAILURE
        }
    }
}
