//! `skein cluster`, and what the commands of the cluster share.
//!
//! | file | what |
//! |---|---|
//! | `access` | which controllers are asked, and what they are shown |
//! | `words`, `plan`, `output`, `screen` | words and lines for what they say |
//! | `follow` | an operation is watched until it is over |
//! | `hosts`, `vms`, `moves`, `migrations` | the cluster's side of `skein host`, `vm`, `migrate`, `migration` |
//! | `operation`, `property`, `rule`, `optimize`, `token`, `join`, `login` | these commands |
//! | `settings`, `audit` | the cluster's settings and its audit log |
//! | `update` | `skein cluster update` |
//! | `fencing` | `skein host fencing` |
//! | `names` | what a shell completes |

pub mod access;
mod audit;
pub mod fencing;
pub mod follow;
pub mod hosts;
pub mod join;
pub mod life;
pub mod login;
pub mod migrations;
pub mod moves;
pub mod names;
pub mod operation;
pub mod optimize;
pub mod output;
mod plan;
pub mod property;
pub mod rule;
mod screen;
mod settings;
pub mod token;
mod update;
pub mod vms;
mod words;

use std::process::ExitCode;

use skein_api::cluster::{ClusterStatus, ControllerView, PowerStatus, StoreKind};
use skein_units::duration;

use self::access::ControllerArgs;
use self::output::Output;
use self::screen::print_table;
use super::text::{clean_line, count, fields, print, print_json, print_to_reader};

/// Look at the cluster as a whole, as its controllers know it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controllers: ControllerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Hosts and VMs counted, the controllers, and what needs a person
    #[command(after_help = "\
Examples:
  skein cluster status
  skein cluster status --json | jq '.attention'")]
    Status {
        /// The status as JSON
        #[arg(long)]
        json: bool,
    },
    /// What changes, as it changes: a line of JSON for each event, until Ctrl-C
    #[command(after_help = "\
Examples:
  skein cluster events | jq -c 'select(.event == \"host\") | [.host.name, .host.contact]'")]
    Events,
    /// What is set of the whole cluster; with KEY=VALUE it is set
    #[command(after_help = "\
Keys are those of the JSON, such as migrations_max or optimize.automatic; yes and no stand for true and false.

Examples:
  skein cluster settings
  skein cluster settings migrations_max=16
  skein cluster settings optimize.automatic=yes optimize.aggressiveness=2")]
    Settings {
        /// What is set; what is not named stays
        #[arg(value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// What is printed all the same
        #[arg(long)]
        json: bool,
    },
    Update(update::Args),
    /// Who did what, when, from where, and what came of it: the newest last
    #[command(after_help = "\
Examples:
  skein cluster audit
  skein cluster audit --all --json > audit.jsonl")]
    Audit {
        /// The most records
        #[arg(long, value_name = "N", default_value_t = 30, conflicts_with = "all")]
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        last: u32,
        /// All that is kept
        #[arg(long)]
        all: bool,
        /// A line of JSON for each record
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.controllers.client()?;
    match args.command {
        Command::Status { json } => {
            let status = client.cluster()?;
            if json {
                print_json(&status)?;
            } else {
                show(&status)?;
            }
        }
        Command::Update(args) => return update::run(&client, args),
        Command::Settings { set, .. } => settings::run(&client, &set)?,
        Command::Audit { last, all, json } => {
            let most = if all { usize::MAX } else { usize::try_from(last)? };
            audit::run(&client, most, Output::of(json))?;
        }
        Command::Events => {
            let mut events = client.events()?;
            while print_to_reader(&(serde_json::to_string(&events.next_event()?)? + "\n"))? {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the word for what a controller does.
fn role(controller: &ControllerView) -> &'static str {
    match controller.gone_since {
        Some(_) => "GONE",
        None if controller.leads => "leads",
        None => "follows",
    }
}

/// Returns what is saved, and what was decided last; nothing where no host ever slept or is to sleep.
fn power(of: &PowerStatus) -> String {
    let mut words = Vec::new();
    if of.slept_ms > 0 {
        words.push(format!("hosts have slept for {}", duration(of.slept_ms)));
    }
    if of.saving {
        words.push("saving".to_owned());
    }
    words.extend(Some(clean_line(&of.decision)).filter(|decision| !decision.is_empty()));
    words.join("; ")
}

fn show(status: &ClusterStatus) -> anyhow::Result<()> {
    let (hosts, vms) = (&status.hosts, &status.vms);
    let some = |number: u32, what: &str| (number > 0).then(|| format!("{number} {what}"));
    let counted = |all: u32, what: &str, parts: Vec<Option<String>>| {
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        format!("{}{parts}", count(all as usize, what))
    };
    let store = match status.store {
        StoreKind::Sqlite => "SQLite".to_owned(),
        StoreKind::Etcd if status.store_members.is_empty() => "etcd".to_owned(),
        StoreKind::Etcd => {
            let well = status.store_members.iter().filter(|member| member.problem.is_none()).count();
            format!("etcd: {well} of {} members are well", status.store_members.len())
        }
        StoreKind::Memory => "memory, for tests".to_owned(),
    };
    let rows = [
        (
            "hosts",
            counted(
                hosts.all,
                "host",
                vec![
                    some(hosts.online, "online"),
                    some(hosts.lost, "LOST"),
                    some(hosts.off, "off"),
                    some(hosts.asleep, "asleep"),
                    some(hosts.in_maintenance, "in maintenance"),
                ],
            ),
        ),
        (
            "vms",
            counted(
                vms.all,
                "VM",
                vec![some(vms.running, "running"), some(vms.stopped, "stopped"), some(vms.lost, "LOST")],
            ),
        ),
        ("power", power(&status.power)),
        ("operations", format!("{} under way", status.operations_running)),
        ("store", store),
        ("term", status.term.to_string()),
    ];
    print(&format!("{} ({})\n{}\n", clean_line(&status.name), clean_line(&status.id), fields(&rows)))?;
    let controllers: Vec<_> =
        status.controllers.iter().map(|of| [of.name.clone(), role(of).to_owned(), of.url.clone()]).collect();
    print_table(["CONTROLLER", "ROLE", "URL"], &controllers)?;
    for sentence in &status.attention {
        print(&format!("attention: {}\n", clean_line(sentence)))?;
    }
    Ok(())
}
