//! The `skein` program. It has one module per subcommand, and only arguments and output are here.

mod commands;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Moves running virtual machines between KVM/QEMU hosts over every NIC at once.
#[derive(Parser)]
#[command(name = "skein", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Vm(commands::vm::Args),
    Host(commands::host::Args),
    Migrate(commands::migrate::Args),
    Migration(commands::migration::Args),
    Top(commands::top::Args),
    Cluster(commands::cluster::Args),
    Operation(commands::cluster::operation::Args),
    Property(commands::cluster::property::Args),
    Rule(commands::cluster::rule::Args),
    Optimize(commands::cluster::optimize::Args),
    Token(commands::cluster::token::Args),
    Join(commands::cluster::join::Args),
    Login(commands::cluster::login::Args),
    Net(commands::net::Args),
    Placement(commands::placement::Args),
    Doctor(commands::doctor::Args),
    Agent(Box<commands::agent::Args>),
    Tunnel(commands::tunnel::Args),
    Ca(commands::ca::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
    /// Started by a shell that completes a name
    #[command(hide = true)]
    Names {
        named: commands::cluster::names::Named,
    },
    /// Started by an agent, for each migration away from its host
    #[command(name = commands::agent::KEEP_CHANNELS, hide = true)]
    KeepChannels {
        /// What QEMU connects to
        socket: std::path::PathBuf,
    },
    /// Started by an agent or a tunnel that has pages to compress
    #[command(name = commands::agent::PACK_PAGES, hide = true)]
    PackPages,
    /// Started by an agent or a tunnel, for each NIC that does RDMA
    #[command(name = commands::session_options::SERVE_RAIL, hide = true)]
    ServeRail,
}

fn main() -> ExitCode {
    skein_terminal::log_to_stderr();
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    if let Some(moved) = moved_to_lab(&args) {
        eprintln!("skein: {moved}");
        return ExitCode::from(2);
    }
    let success = |()| ExitCode::SUCCESS;
    let done = match Cli::parse().command {
        Command::Vm(args) => commands::vm::run(args),
        Command::Host(args) => commands::host::run(args),
        Command::Migrate(args) => commands::migrate::run(args),
        Command::Migration(args) => commands::migration::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Cluster(args) => commands::cluster::run(args),
        Command::Operation(args) => commands::cluster::operation::run(args),
        Command::Property(args) => commands::cluster::property::run(args),
        Command::Rule(args) => commands::cluster::rule::run(args),
        Command::Optimize(args) => commands::cluster::optimize::run(args),
        Command::Token(args) => commands::cluster::token::run(args),
        Command::Join(args) => commands::cluster::join::run(args),
        Command::Login(args) => commands::cluster::login::run(args),
        Command::Net(args) => commands::net::run(args),
        Command::Placement(args) => commands::placement::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Agent(args) => end_service(commands::agent::run(*args)),
        Command::Tunnel(args) => end_service(commands::tunnel::run(args)),
        Command::Ca(args) => commands::ca::run(args).map(success),
        Command::Completions(args) => commands::completions::run(args, &Cli::command()).map(success),
        Command::Man(args) => commands::man::run(args, Cli::command()),
        Command::Names { named } => commands::cluster::names::run(named).map(success),
        Command::PackPages => skein_agent::pack_pages().map(success).map_err(Into::into),
        Command::ServeRail => skein_agent::serve_rail().map(success).map_err(Into::into),
        Command::KeepChannels { .. } => skein_agent::keep_channels().map(success).map_err(Into::into),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            skein_terminal::print_error("skein", &error);
            ExitCode::FAILURE
        }
    }
}

/// Ends the process of a service at once. Threads may still be connecting somewhere: the exit of a C program takes down
/// what libraries have while threads use that, and aws-lc then aborts without a word.
fn end_service(done: anyhow::Result<()>) -> ! {
    let failed = done.inspect_err(|error| skein_terminal::print_error("skein", error)).is_err();
    let _ = std::io::Write::flush(&mut std::io::stdout());
    signal_hook::low_level::exit(failed.into())
}

/// Returns a sentence that names the `skein-lab` command, if what is asked for has moved from this program to
/// `skein-lab`.
fn moved_to_lab(args: &[String]) -> Option<String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let has_format = |options: &[&str]| options.iter().any(|word| *word == "--format" || word.starts_with("--format="));
    let (before, now) = match words[..] {
        ["lab", ..] => ("lab", "skein-lab"),
        ["bench", ..] => ("bench", "skein-lab bench"),
        ["demo", ..] => ("demo", "skein-lab demo"),
        ["placement", "bench", ..] => ("placement bench", "skein-lab placement bench"),
        ["placement", "replay", ..] => ("placement replay", "skein-lab placement replay"),
        ["placement", "solve", ref options @ ..] if has_format(options) => {
            ("placement solve --format", "skein-lab placement solve --format")
        }
        ["placement", "schedule", ref options @ ..] if has_format(options) => {
            ("placement schedule --format", "skein-lab placement schedule --format")
        }
        _ => return None,
    };
    Some(format!("`skein {before}` is `{now}` now, a program of its own: `make lab` builds it beside skein"))
}
