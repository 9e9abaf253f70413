//! `skein migration`.

mod ask;
mod shown;

use std::process::ExitCode;

use anyhow::{bail, ensure};
use skein_api::cluster::{LimitRequest, SwitchRequest, ThrottleRequest};
use skein_api::{HoldOptions, Migration, Outcome, Reply, Request};
use skein_client::{ControllerClient, Moving};
use skein_units::{Rate, RateError};

use self::ask::{Told, ask, ask_anywhere, show_anywhere};
use self::shown::{listed, shown};
use super::cluster;
use super::cluster::access::ViewArgs;
use super::cluster::output::Output;
use super::confirm;
use super::follow::{Opening, Until, end_text, follow, limit_words};
use super::hold::{HoldTimes, as_told, parse_seconds, switch_text};
use super::local::{EXIT_CODES, LocalAgent, migration_state, other_host, unexpected};
use super::migrate::allow_throttle;
use super::text::{clean_line, print, print_json};

/// Look at migrations, follow them, call them off, settle them.
///
/// A migration is named by the beginning of its id, or by its VM for that VM's last one that is known where it is asked
/// for: by this host's agent. All but `watch` and `resolve` go through the cluster's controller with --cluster, where
/// this host has no agent, and, but for `list`, where its agent knows no such migration or is not the source.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    #[command(flatten)]
    view: ViewArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Migrations under way on this host, and the last ones; with --cluster, or without an agent, the cluster's
    ///
    /// Hosts keep theirs for longer than controllers do, which have them for some minutes after the end.
    #[command(after_help = "\
Examples:
  skein migration list
  skein migration list --cluster    those that any host tells of
  skein migration list --json | jq -r '.[] | select(.outcome == null) | .vm'")]
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// One migration: where it stands, or how it ended, and why
    #[command(after_help = "\
Examples:
  skein migration show web1             the last one of web1
  skein migration show 4f1c --events    everything that happened, and when")]
    Show {
        /// The beginning of its id, or a VM's name
        id: String,
        /// Every phase and decision, oldest first
        #[arg(long)]
        events: bool,
        /// The migration as JSON
        #[arg(long)]
        json: bool,
    },
    /// Follow one until it is over, as `skein migrate` does
    #[command(after_help = format!("\
Examples:
  skein migration watch web1          Ctrl-C stops watching, not the migration
  skein migration watch 4f1c --json

{EXIT_CODES}"))]
    Watch {
        /// The beginning of its id, or a VM's name
        id: String,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Have one that is held switch now
    ///
    /// Says how long the guest is expected to stand still, and returns; said before it is held, the guest switches as
    /// soon as it may. If the guest writes too much by now, its copy converges again first, as any other.
    #[command(after_help = "\
Examples:
  skein migration switch db1            have db1 switch
  skein migration switch db1 --by 5m    call it off if it has not in five minutes")]
    Switch {
        /// The beginning of its id, or a VM's name
        id: String,
        /// Call it off if the guest is not about to move after so long, such as 5m [default: --deadline, once more]
        #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
        by: Option<u64>,
        /// The migration as JSON
        #[arg(long)]
        json: bool,
    },
    /// Call one off: the guest goes on at the source
    ///
    /// Too late once the guest is being handed over, which takes a moment at the very end: then it fails, and says so.
    #[command(after_help = "\
Examples:
  skein migration cancel web1
  skein migration cancel 4f1c")]
    Cancel {
        /// The beginning of its id, or a VM's name
        id: String,
        /// The migration as JSON
        #[arg(long)]
        json: bool,
    },
    /// Limit how fast one sends, from now on: a rate, or none for as fast as links and other limits allow
    ///
    /// The limit holds for this attempt. It counts what is sent, after compression and without the two to four per cent
    /// that TLS and TCP add. It holds while the guest stands still, too, and what may be left then is reckoned with it.
    #[command(after_help = "\
Examples:
  skein migration limit web1 500Mbit/s     also 100MB/s; 8Mbit/s is the least
  skein migration limit web1 none")]
    Limit {
        /// The beginning of its id, or a VM's name
        id: String,
        /// The rate, such as 1Gbit/s, or none
        #[arg(value_parser = limit)]
        rate: Limit,
        /// The migration as JSON
        #[arg(long)]
        json: bool,
    },
    /// Have one begin again, and hold its guest before it switches, as `skein migrate --hold` does
    ///
    /// QEMU takes a hold only when a copy begins, so what was copied is copied again. The guest runs on meanwhile, and
    /// the migration has another id then.
    #[command(after_help = "\
Examples:
  skein migration hold db1                      until `skein migration switch db1`
  skein migration hold db1 --switch-at 22:00    it switches by itself at 22:00")]
    Hold {
        // The times ask for an argument of this name.
        /// The beginning of its id, or a VM's name
        #[arg(value_name = "ID")]
        hold: String,
        #[command(flatten)]
        times: HoldTimes,
        /// The migration that was called off for that, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Have one begin again, and let its guest be throttled, as `skein migrate --allow-throttle` does
    ///
    /// The guest's CPUs are throttled only as far as that takes for the copy to converge. QEMU takes that only when a
    /// copy begins, so what was copied is copied again, and the migration has another id then.
    #[command(after_help = "\
Examples:
  skein migration throttle db1 60    by up to 60 % of its CPUs' time")]
    Throttle {
        /// The beginning of its id, or a VM's name
        id: String,
        /// The most of its CPUs' time that it may lose, in per cent
        #[arg(value_parser = allow_throttle)]
        percent: u8,
        /// The migration that was called off for that, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a guest that is in doubt here, as the other host is off
    ///
    /// A guest is in doubt when the hosts lost contact in the very moment of its handover: this one cannot know whether
    /// it runs on the other, so it stays paused. That settles by itself as soon as the two agents can talk. Only if the
    /// other host is off for good (or for now), and you have made sure of it yourself, by its power supply or its
    /// remote management and not by ping, say so here: the guest then runs on this host. If you are wrong, the guest
    /// runs on both and destroys its own disks.
    #[command(after_help = "\
Examples:
  skein migration resolve web1 --other-host-is-off          asks for the other host's name
  skein migration resolve web1 --other-host-is-off --yes    in a script that has just fenced it")]
    Resolve {
        /// The beginning of its id, or a VM's name
        id: String,
        /// You have made sure that the other host is off, and that it stays off until this is over
        #[arg(long, required = true)]
        other_host_is_off: bool,
        /// Do not ask; needed where nobody can be asked
        #[arg(long)]
        yes: bool,
        /// The migration as JSON
        #[arg(long)]
        json: bool,
    },
}

/// A limit as it is given. `None`: there is to be none.
#[derive(Clone, Copy, Debug)]
struct Limit(Option<Rate>);

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => text.parse().map(|rate| Limit(Some(rate))).map_err(|error: RateError| error.to_string()),
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { local, view, command } = args;
    let local = &local;
    if matches!(command, Command::Watch { .. } | Command::Resolve { .. }) {
        ensure!(!view.cluster, "`watch` and `resolve` are for a host's own agent: run this there, without --cluster");
    }
    match command {
        Command::List { json } if view.asks_cluster(local)? => {
            cluster::migrations::list(&view.controllers.client()?, Output::of(json))?;
        }
        Command::List { json } => list(local, json)?,
        Command::Show { id, events, json } => show(local, &view, &id, events, json)?,
        Command::Watch { id, json } => {
            return follow(&local.client(), Opening::Watch(Request::MigrationWatch { id }), Until::Over, json);
        }
        Command::Switch { id, by, json } => switch(local, &view, id, by, json)?,
        Command::Cancel { id, json } => return cancel(local, &view, id, json),
        Command::Limit { id, rate, json } => set_limit(local, &view, id, rate, json)?,
        Command::Hold { hold: id, times, json } => {
            restart(local, &view, (id, Some(times.options()?), None), json)?;
        }
        Command::Throttle { id, percent, json } => restart(local, &view, (id, None, Some(percent)), json)?,
        Command::Resolve { id, other_host_is_off, yes, json } => {
            let migration = ask(local, &Request::MigrationShow { id })?;
            let (vm, other) = (clean_line(&migration.vm), clean_line(other_host(&migration)));
            if !migration.in_doubt {
                bail!(
                    "the migration {} of {vm} is not in doubt ({}): there is nothing to resolve",
                    migration.id,
                    migration_state(&migration)
                );
            }
            if !yes {
                confirm(&vm, &other)?;
            }
            // This is the migration that was shown, even if the VM's name means another one by now.
            let id = migration.id.to_string();
            let migration = ask(local, &Request::MigrationResolve { id, other_host_is_off })?;
            if json { print_json(&migration)? } else { print(&resolved(&migration))? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the migrations of this host.
fn list(local: &LocalAgent, json: bool) -> anyhow::Result<()> {
    match local.call(&Request::MigrationList)? {
        Reply::Migrations { migrations } if json => print_json(&migrations),
        Reply::Migrations { migrations } if migrations.is_empty() => {
            print("there has been no migration on this host; `skein migrate VM --to HOST` begins one\n")
        }
        Reply::Migrations { migrations } => print(&listed(&migrations)),
        reply => Err(unexpected(&reply).into()),
    }
}

/// Shows a migration.
fn show(local: &LocalAgent, view: &ViewArgs, id: &str, events: bool, json: bool) -> anyhow::Result<()> {
    let (mut migration, teller) = show_anywhere(local, view, id)?;
    if !json {
        return print(&shown(&migration, events, teller));
    }
    if !events {
        migration.events.clear();
    }
    print_json(&migration)
}

/// Has a held guest switch.
fn switch(local: &LocalAgent, view: &ViewArgs, id: String, by: Option<u64>, json: bool) -> anyhow::Result<()> {
    let request = Request::MigrationSwitch { id: id.clone(), deadline_s: by };
    let through =
        |client: &ControllerClient, of: Moving<'_>| client.switch_migration(of, &SwitchRequest { deadline_s: by });
    match ask_anywhere(local, view, (&id, &request), through)? {
        Told::Agent(migration) if json => print_json(&migration)?,
        Told::Agent(migration) => {
            print(&switch_text(&migration, &format!("skein migration watch {}", migration.id)))?;
        }
        Told::Controller(migration) if json => print_json(&migration)?,
        Told::Controller(migration) => {
            let show = format!("skein vm show {}", clean_line(&migration.vm));
            print(&switch_text(&as_told(*migration), &show))?;
        }
    }
    Ok(())
}

/// Calls a migration off.
fn cancel(local: &LocalAgent, view: &ViewArgs, id: String, json: bool) -> anyhow::Result<ExitCode> {
    let request = Request::MigrationCancel { id: id.clone() };
    let through = |client: &ControllerClient, of: Moving<'_>| client.cancel_migration(of);
    let migration = match ask_anywhere(local, view, (&id, &request), through)? {
        Told::Agent(migration) => migration,
        Told::Controller(migration) if json => return print_json(&migration).map(|()| ExitCode::SUCCESS),
        Told::Controller(migration) => {
            let (vm, source) = (clean_line(&migration.vm), clean_line(&migration.source));
            print(&format!(
                "The migration of {vm} is being called off; {vm} goes on at {source}.\n  \
                 to see it end   skein vm show {vm}\n"
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let is_off = matches!(migration.outcome, None | Some(Outcome::CalledOff));
    if json {
        print_json(&migration)?;
    } else if migration.outcome.is_some() {
        print(&end_text(&migration))?;
    } else {
        let (vm, source) = (clean_line(&migration.vm), clean_line(&migration.source));
        print(&format!(
            "The migration of {vm} is being called off; {vm} goes on at {source}.\n  \
             to see it end   skein migration watch {}\n",
            migration.id
        ))?;
    }
    Ok(if is_off { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Limits how fast a migration sends.
fn set_limit(local: &LocalAgent, view: &ViewArgs, id: String, rate: Limit, json: bool) -> anyhow::Result<()> {
    let rate_bits_per_s = rate.0.map(Rate::bits_per_s);
    let request = Request::MigrationLimit { id: id.clone(), rate_bits_per_s };
    let through =
        |client: &ControllerClient, of: Moving<'_>| client.limit_migration(of, &LimitRequest { rate_bits_per_s });
    let migration = match ask_anywhere(local, view, (&id, &request), through)? {
        Told::Agent(migration) => migration,
        Told::Controller(migration) if json => return print_json(&migration),
        Told::Controller(migration) => Box::new(as_told(*migration)),
    };
    if json {
        print_json(&migration)?;
    } else {
        let limit = migration.rate_limit.as_ref().map_or("no limit any more".into(), limit_words);
        print(&format!("The migration of {}: {limit}.\n", clean_line(&migration.vm)))?;
    }
    Ok(())
}

/// Has a migration begin again with other options.
fn restart(
    local: &LocalAgent,
    view: &ViewArgs,
    (id, hold, allow_throttle): (String, Option<HoldOptions>, Option<u8>),
    json: bool,
) -> anyhow::Result<()> {
    let request = Request::MigrationRestart { id: id.clone(), hold: hold.clone(), allow_throttle };
    let through = |client: &ControllerClient, of: Moving<'_>| match (&hold, allow_throttle) {
        (Some(hold), _) => client.hold_migration(of, hold),
        (None, percent) => client.throttle_migration(of, &ThrottleRequest { percent: percent.unwrap_or_default() }),
    };
    let (vm, watch) = match ask_anywhere(local, view, (&id, &request), through)? {
        Told::Agent(migration) if json => return print_json(&migration),
        Told::Controller(migration) if json => return print_json(&migration),
        Told::Agent(migration) => (migration.vm, "skein migration watch"),
        Told::Controller(migration) => (migration.vm, "skein vm show"),
    };
    let vm = clean_line(&vm);
    let then = match (hold, allow_throttle) {
        (Some(_), _) => "is held before it switches".to_owned(),
        (None, percent) => format!("may be throttled by {} %", percent.unwrap_or_default()),
    };
    print(&format!(
        "The migration of {vm} begins again, and {vm} {then}. It runs on meanwhile.\n  to see it go on   {watch} {vm}\n"
    ))
}

/// Asks the user whether the other host is off.
fn confirm(vm: &str, other: &str) -> anyhow::Result<()> {
    let words = format!(
        "{vm} is paused on this host, and may be running on {other}.\n\
         If {other} is off, {vm} can run here. If it is not, {vm} will run on both hosts and destroy its own disks."
    );
    confirm::is_off(&words, other)
}

fn resolved(migration: &Migration) -> String {
    match migration.outcome {
        Some(_) => end_text(migration),
        None => format!(
            "{} is being settled on your word that {} is off\n  to see it end   skein migration watch {}\n",
            clean_line(&migration.vm),
            clean_line(other_host(migration)),
            migration.id
        ),
    }
}
