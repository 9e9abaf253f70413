//! `skein cluster update`.

use std::process::ExitCode;

use anyhow::bail;
use skein_api::UpdateHow;
use skein_api::cluster::{HostUpdateState, Operation, UpdateRequest};
use skein_client::ControllerClient;

use super::follow::exit_codes;
use super::hosts::{Wait, begun};
use super::output::Output;
use super::words::time;
use crate::commands::host::seconds;
use crate::commands::local::EXIT_BLOCKED;
use crate::commands::text::{clean_line, count, print, print_json, table};

/// Update hosts one after the other: each is emptied, updated, rebooted, and takes guests again
///
/// The commands are each host's own: its administrator gave them to its agent (skein agent --update, --reboot); whether
/// there are any is seen when the host's turn comes. Before anything is done it is seen whether each host can be
/// emptied: if one cannot, nothing is begun. The first host that fails ends it, and stays in
/// maintenance. Ctrl-C stops watching, not the update.
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein cluster update --dry-run
      which hosts, in which order, and what would be in the way
  skein cluster update
      all hosts: the update command of each, then a reboot
  skein cluster update --host hosta --host hostb --only-reboot
      only reboot these two
  skein cluster update --group rack1 --manual
      empty one after the other, and wait until a person has updated and rebooted it
  skein cluster update --no-reboot --skip-blocked --detach
      only the update commands; leave out what cannot be emptied; return at once

{}", exit_codes(Some("something is in the way of a host, or with --dry-run would be; nothing was begun"))))]
pub struct Args {
    /// A host; may be given several times [default: all hosts]
    #[arg(long, value_name = "NAME", conflicts_with = "group")]
    host: Vec<String>,
    /// The hosts of this group
    #[arg(long)]
    group: Option<String>,
    /// Run no update command, only reboot
    #[arg(long, conflicts_with_all = ["no_reboot", "manual"])]
    only_reboot: bool,
    /// Run the update command, and do not reboot
    #[arg(long, conflicts_with = "manual")]
    no_reboot: bool,
    /// Tell the hosts nothing: a person updates and reboots each when its turn comes
    #[arg(long)]
    manual: bool,
    /// Leave the guests where they went
    #[arg(long)]
    no_home: bool,
    /// Within which time a host has to be updated and back: 1m to 1d
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = seconds)]
    wait: u64,
    /// Leave out hosts that cannot be emptied or do not report, instead of beginning nothing
    #[arg(long)]
    skip_blocked: bool,
    /// Only say what would be done
    #[arg(long, conflicts_with = "detach")]
    dry_run: bool,
    /// Return as soon as it is begun
    #[arg(long)]
    detach: bool,
    /// A line of JSON for each step; with --dry-run or --detach the operation
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(client: &ControllerClient, args: Args) -> anyhow::Result<ExitCode> {
    let how = match (args.only_reboot, args.no_reboot, args.manual) {
        (true, ..) => UpdateHow::Reboot,
        (_, true, _) => UpdateHow::Update,
        (.., true) => UpdateHow::Manual,
        _ => UpdateHow::UpdateReboot,
    };
    let hosts = match &args.group {
        Some(group) => of_group(client, group)?,
        None => args.host,
    };
    let request = UpdateRequest {
        hosts,
        how,
        bring_home: !args.no_home,
        wait_s: args.wait,
        skip_blocked: args.skip_blocked,
        dry_run: args.dry_run,
    };
    let operation = client.update(&request)?;
    let output = Output::of(args.json);
    if !args.dry_run {
        return begun(client, operation, Wait::of(args.detach), output);
    }
    let all = operation.update.as_ref().map_or(0, |of| of.hosts.len());
    let goes = turns(&operation, HostUpdateState::Waiting);
    let blocked = operation.update.iter().flat_map(|of| &of.hosts).filter(|of| of.blocks).count();
    match output {
        Output::Json => print_json(&operation)?,
        Output::Text => {
            let left = turns(&operation, HostUpdateState::Skipped);
            let end = match blocked {
                0 => format!("{} would be updated, {left} would not\n", count(goes, "host")),
                _ => format!("no host would be updated: {blocked} of {all} would be in the way\n"),
            };
            print(&(hosts_table(&operation) + &end + &clean_line(&operation.message) + "\n"))?;
        }
    }
    Ok(if goes == all { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BLOCKED) })
}

fn turns(operation: &Operation, state: HostUpdateState) -> usize {
    operation.update.iter().flat_map(|of| &of.hosts).filter(|of| of.state == state).count()
}

fn of_group(client: &ControllerClient, group: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for host in client.hosts() {
        let host = host?;
        if host.settings.group.as_deref() == Some(group) {
            names.push(host.name);
        }
    }
    if names.is_empty() {
        bail!("no host is of the group '{group}': see `skein host group`");
    }
    Ok(names)
}

/// Returns the hosts of an update, each with how far it is; empty of other operations.
pub fn hosts_table(operation: &Operation) -> String {
    let Some(update) = &operation.update else { return String::new() };
    let rows: Vec<_> = update
        .hosts
        .iter()
        .map(|of| {
            let release = match (&of.release_before, &of.release_after) {
                (Some(before), Some(after)) if before != after => format!("{before} -> {after}"),
                (before, after) => after.clone().or_else(|| before.clone()).unwrap_or_default(),
            };
            let ended = of.ended.map(time).unwrap_or_default();
            let state = if of.blocks { "BLOCKED" } else { state(of.state) };
            [of.host.clone(), state.to_owned(), ended, release, of.detail.clone()]
        })
        .collect();
    table(["HOST", "STATE", "ENDED", "RELEASE", "WHAT"], &rows)
}

fn state(state: HostUpdateState) -> &'static str {
    match state {
        HostUpdateState::Unchecked | HostUpdateState::Waiting => "waiting",
        HostUpdateState::Emptying => "emptying",
        HostUpdateState::Updating => "updating",
        HostUpdateState::Returning => "guests return",
        HostUpdateState::Done => "updated",
        HostUpdateState::Failed => "FAILED",
        HostUpdateState::Skipped => "left out",
    }
}
