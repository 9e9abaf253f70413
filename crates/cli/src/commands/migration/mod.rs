//! `skein migration`.

use std::process::ExitCode;

use anyhow::{Context, bail};
use skein_api::cluster::{LimitRequest, SwitchRequest, ThrottleRequest, VmMigration};
use skein_api::{
    CopyProgress, HoldOptions, LogEntry, LoggedEvent, Migration, MigrationEvent, Outcome, PATHS_CARRIED, PageFigures,
    Reply, Report, Request, rdma_words,
};
use skein_client::{CallError, ControllerClient, ControllerError};
use skein_units::measured::bps;
use skein_units::{Rate, RateError, about_bytes, duration};

use super::cluster::access::ControllerArgs;
use super::confirm;
use super::follow::{
    Opening, Until, attempt_words, copied_words, copy_words, dirties, end_text, follow, limit_words, role,
};
use super::hold::{HoldTimes, as_told, hold_words, parse_seconds, switch_text};
use super::local::{EXIT_CODES, LocalAgent, migration_state, other_host, reason, unexpected};
use super::migrate::allow_throttle;
use super::text::{clean_line, count, fields, moment, print, print_json, table};

/// Look at migrations, follow them, call them off, settle them.
///
/// A migration is named by the beginning of its id, or by its VM for that VM's last one. `switch`, `cancel`, `limit`,
/// `hold` and `throttle` go through the cluster's controller where this host has no agent, or is not the source.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    #[command(flatten)]
    controllers: ControllerArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Migrations under way on this host, and the last ones
    #[command(after_help = "\
Examples:
  skein migration list
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
    let Args { local, controllers, command } = args;
    let local = &local;
    match command {
        Command::List { json } => match local.call(&Request::MigrationList)? {
            Reply::Migrations { migrations } if json => print_json(&migrations)?,
            Reply::Migrations { migrations } if migrations.is_empty() => {
                print("there has been no migration on this host; `skein migrate VM --to HOST` begins one\n")?;
            }
            Reply::Migrations { migrations } => print(&listed(&migrations))?,
            reply => return Err(unexpected(&reply).into()),
        },
        Command::Show { id, events, json } => {
            let mut migration = ask(local, &Request::MigrationShow { id })?;
            if json {
                if !events {
                    migration.events.clear();
                }
                print_json(&migration)?;
            } else {
                print(&shown(&migration, events))?;
            }
        }
        Command::Watch { id, json } => {
            return follow(&local.client(), Opening::Watch(Request::MigrationWatch { id }), Until::Over, json);
        }
        Command::Switch { id, by, json } => switch(local, &controllers, id, by, json)?,
        Command::Cancel { id, json } => return cancel(local, &controllers, id, json),
        Command::Limit { id, rate, json } => set_limit(local, &controllers, id, rate, json)?,
        Command::Hold { hold: id, times, json } => {
            restart(local, &controllers, (id, Some(times.options()?), None), json)?;
        }
        Command::Throttle { id, percent, json } => restart(local, &controllers, (id, None, Some(percent)), json)?,
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

/// Has a held guest switch.
fn switch(
    local: &LocalAgent,
    controllers: &ControllerArgs,
    id: String,
    by: Option<u64>,
    json: bool,
) -> anyhow::Result<()> {
    let request = Request::MigrationSwitch { id: id.clone(), deadline_s: by };
    let through = |client: &ControllerClient, vm: &str| client.switch_migration(vm, &SwitchRequest { deadline_s: by });
    match ask_anywhere(local, controllers, (&id, &request), through)? {
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
fn cancel(local: &LocalAgent, controllers: &ControllerArgs, id: String, json: bool) -> anyhow::Result<ExitCode> {
    let request = Request::MigrationCancel { id: id.clone() };
    let through = |client: &ControllerClient, vm: &str| client.cancel_migration(vm);
    let migration = match ask_anywhere(local, controllers, (&id, &request), through)? {
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
fn set_limit(
    local: &LocalAgent,
    controllers: &ControllerArgs,
    id: String,
    rate: Limit,
    json: bool,
) -> anyhow::Result<()> {
    let rate_bits_per_s = rate.0.map(Rate::bits_per_s);
    let request = Request::MigrationLimit { id: id.clone(), rate_bits_per_s };
    let through = |client: &ControllerClient, vm: &str| client.limit_migration(vm, &LimitRequest { rate_bits_per_s });
    let migration = match ask_anywhere(local, controllers, (&id, &request), through)? {
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
    controllers: &ControllerArgs,
    (id, hold, allow_throttle): (String, Option<HoldOptions>, Option<u8>),
    json: bool,
) -> anyhow::Result<()> {
    let request = Request::MigrationRestart { id: id.clone(), hold: hold.clone(), allow_throttle };
    let through = |client: &ControllerClient, vm: &str| match (&hold, allow_throttle) {
        (Some(hold), _) => client.hold_migration(vm, hold),
        (None, percent) => client.throttle_migration(vm, &ThrottleRequest { percent: percent.unwrap_or_default() }),
    };
    let (vm, watch) = match ask_anywhere(local, controllers, (&id, &request), through)? {
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

/// A migration, by who told of it.
enum Told {
    Agent(Box<Migration>),
    Controller(Box<VmMigration>),
}

/// Asks this host's agent about a migration; a controller, if one is named, if there is no agent, or if the agent
/// refuses and a controller knows the migration by its VM's name or its id.
fn ask_anywhere(
    local: &LocalAgent,
    controllers: &ControllerArgs,
    (id, request): (&str, &Request),
    through: impl FnOnce(&ControllerClient, &str) -> Result<VmMigration, ControllerError>,
) -> anyhow::Result<Told> {
    let is_named = controllers.controller.is_some();
    let has_agent = local.socket.exists();
    if !is_named && (has_agent || controllers.access()?.is_none()) {
        let refusal = match local.call(request) {
            Ok(Reply::Migration(migration)) => return Ok(Told::Agent(migration)),
            Ok(reply) => return Err(unexpected(&reply).into()),
            Err(error) => error,
        };
        // The agent of another host may know it.
        if !matches!(refusal, CallError::Refused(_)) || controllers.access()?.is_none() {
            return Err(refusal.into());
        }
        let client = controllers.client()?;
        let moving = moving_vm(&client, id);
        let moving = moving.with_context(|| format!("{refusal}; and nothing is known of migrations of other hosts"))?;
        let Some(vm) = moving else { return Err(refusal.into()) };
        return Ok(Told::Controller(Box::new(through(&client, &vm)?)));
    }
    let client = controllers.client()?;
    match moving_vm(&client, id)? {
        Some(vm) => Ok(Told::Controller(Box::new(through(&client, &vm)?))),
        None => bail!("the controller knows no migration '{id}' that is under way: see `skein vm list`"),
    }
}

/// Returns the VM of that name, if it is in a migration; else the VM whose migration's id begins so.
fn moving_vm(client: &ControllerClient, id: &str) -> anyhow::Result<Option<String>> {
    match client.vm(id) {
        Ok(vm) => return Ok(vm.migration.map(|migration| migration.vm)),
        Err(ControllerError::Refused(problem)) if problem.status == 404 => {}
        Err(error) => return Err(error.into()),
    }
    for vm in client.vms(None) {
        if let Some(migration) = vm?.migration.filter(|migration| migration.id.to_string().starts_with(id)) {
            return Ok(Some(migration.vm));
        }
    }
    Ok(None)
}

fn ask(local: &LocalAgent, request: &Request) -> anyhow::Result<Box<Migration>> {
    match local.call(request)? {
        Reply::Migration(migration) => Ok(migration),
        reply => Err(unexpected(&reply).into()),
    }
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

fn downtime(migration: &Migration) -> String {
    migration.downtime_ms.map(duration).unwrap_or_default()
}

/// Returns `copy`, or `copy, attempt 2 of 4`.
fn state(migration: &Migration) -> String {
    let words = attempt_words(migration).map(|words| format!(", {words}")).unwrap_or_default();
    migration_state(migration).to_owned() + &words
}

/// Returns `2 of 4, the next one in 1.5 s`, or an empty text if there is only one attempt.
fn attempt(migration: &Migration) -> String {
    let Some(attempt) = migration.attempt.filter(|attempt| attempt.of > 1) else { return String::new() };
    let not_begun = attempt.not_begun.map(|number| format!("; attempt {number} was not begun: see --events"));
    let next = match attempt.next_in_ms {
        None => String::new(),
        Some(0) => ", the next one is being checked".into(),
        Some(ms) => format!(", the next one in {}", duration(ms)),
    };
    format!("{} of {}{}{next}", attempt.number, attempt.of, not_begun.unwrap_or_default())
}

fn listed(migrations: &[Migration]) -> String {
    let rows: Vec<_> = migrations
        .iter()
        .map(|migration| {
            [
                migration.id.to_string(),
                migration.vm.clone(),
                migration.source.clone(),
                migration.target.clone(),
                state(migration),
                moment(&migration.begun),
                duration(migration.elapsed_ms),
                downtime(migration),
                reason(migration),
            ]
        })
        .collect();
    table(["ID", "VM", "FROM", "TO", "STATE", "BEGUN (UTC)", "TOOK", "DOWNTIME", "WHY"], &rows)
}

fn shown(migration: &Migration, events: bool) -> String {
    let state = match migration.stage {
        Some(stage) if migration.outcome.is_none() && !migration.in_doubt => stage.words().1,
        _ => migration_state(migration),
    };
    let mut rows = vec![
        ("vm", migration.vm.clone()),
        ("from", migration.source.clone()),
        ("to", migration.target.clone()),
        ("this host", format!("is the {}", role(migration.role))),
        ("state", state.to_owned()),
        ("hold", migration.hold.as_ref().map(|hold| hold_words(hold).join(", ")).unwrap_or_default()),
        ("attempt", attempt(migration)),
        ("why", reason(migration)),
        ("begun", moment(&migration.begun) + " UTC"),
        ("took", duration(migration.elapsed_ms)),
        ("downtime", downtime(migration)),
    ];
    if let Some(copy) = &migration.copy {
        rows.extend([
            ("memory", memory(copy)),
            (
                "copied",
                format!(
                    "{} in {}",
                    about_bytes(copy.transferred_bytes),
                    count(copy.round.try_into().unwrap_or(usize::MAX), "round")
                ),
            ),
        ]);
        if migration.outcome.is_none() {
            let rate = bps(copy.bits_per_s as f64);
            rows.push(("rate", std::iter::once(rate).chain(dirties(copy)).collect::<Vec<_>>().join(", ")));
            rows.extend(migration.rate_limit.as_ref().map(|limit| ("limit", limit.to_string())));
            rows.push(("forecast", copy_words(copy).join(", ")));
        }
        rows.extend(copy.pages.iter().flat_map(page_rows));
    }
    rows.extend(migration.paths.iter().flat_map(|path| {
        let state = if path.usable { bps(path.bits_per_s as f64) } else { "DOWN".into() };
        let note = match &path.note[..] {
            "" if path.rdma_connections > 0 => ", RDMA",
            "" => "",
            note => &format!(", {}", clean_line(note)),
        };
        let path_words =
            format!("{} → {}  {state}, {} sent{note}", path.nic, path.remote, about_bytes(path.sent_bytes));
        let connections = Some(&path.connections).filter(|words| !words.is_empty());
        std::iter::once(("path", path_words))
            .chain(connections.map(|words| ("connections", clean_line(words))))
            .chain(path.rdma.as_ref().map(|counters| ("RDMA", clean_line(&rdma_words(counters)))))
    }));
    let carried = migration.events.iter().rev().find_map(|event| match &event.event {
        LogEntry::Note { text } => text.strip_prefix(PATHS_CARRIED),
        _ => None,
    });
    rows.extend(carried.map(|paths| ("carried", clean_line(paths))));
    let mut text = format!("migration {}\n", migration.id) + &fields(&rows);
    if migration.in_doubt {
        text += &end_text(&Migration { outcome: None, ..migration.clone() });
    }
    if events {
        text += "events (UTC):\n";
        text.extend(migration.events.iter().map(|event| format!("  {}\n", event_line(event))));
        if migration.events.is_empty() {
            text += "  none are kept\n";
        }
    }
    text
}

/// Returns how much memory is left: `4 GiB, 1 GiB left, about 256 MiB of that on the wire`.
fn memory(copy: &CopyProgress) -> String {
    let on_wire = copy.remaining_wire_bytes.map(|bytes| format!(", about {} of that on the wire", about_bytes(bytes)));
    let (total, left) = (about_bytes(copy.total_bytes), about_bytes(copy.remaining_bytes));
    format!("{total}, {left} left{}", on_wire.unwrap_or_default())
}

/// Returns rows that say what became of the bytes.
fn page_rows(pages: &PageFigures) -> Vec<(&'static str, String)> {
    let counts = &pages.counts;
    let mut rows = vec![("transport", pages.transport.to_string()), ("placement", placement(pages))];
    if let Some(share) = counts.wire_per_guest_byte() {
        rows.push((
            "sent",
            format!(
                "{} for {} of pages: {share:.2} of them",
                about_bytes(counts.wire_bytes()),
                about_bytes(counts.guest_bytes())
            ),
        ));
        rows.push(("zero", about_bytes(counts.zero_bytes())));
    }
    if counts.unchanged_pages + counts.delta_pages > 0 {
        rows.push(("unchanged", about_bytes(counts.unchanged_bytes())));
        let changes = about_bytes(counts.delta_bytes.saturating_add(counts.packed_delta_bytes));
        rows.push(("changed", format!("{changes} of {}", about_bytes(counts.changed_bytes()))));
    }
    if let Some(ratio) = counts.ratio() {
        let level = counts.zstd_level.map_or("lz4".into(), |level| format!("zstd {level}"));
        rows.push((
            "compressed",
            format!(
                "{} to {} ({ratio:.1}:1, mostly {level}, {:.1} s of CPU)",
                about_bytes(counts.unpacked_bytes()),
                about_bytes(counts.packed_bytes),
                counts.packing_us as f64 / 1e6
            ),
        ));
    } else if counts.packing_us >= 50_000 {
        rows.push(("compressed", format!("nothing, after {:.1} s of CPU", counts.packing_us as f64 / 1e6)));
    }
    if counts.pages > 0 {
        let late = match counts.late_bytes() {
            0 => String::new(),
            late => format!(", {} of it as no CPU was idle to compress it in time", about_bytes(late)),
        };
        rows.push(("as it is", about_bytes(counts.stored_bytes()) + &late));
        if counts.written_pages > 0 {
            rows.push((
                "by NICs",
                format!("{} straight into the guest's RAM (RDMA), not encrypted", about_bytes(counts.written_bytes())),
            ));
        }
        if counts.other_bytes > 0 {
            rows.push(("else", format!("{} of headers and devices' state", about_bytes(counts.other_bytes))));
        }
    }
    let again = [
        (pages.again_bytes, "as the guest wrote to it"),
        (counts.repaired_bytes(), "as the target's copy differed"),
        (counts.missed_bytes(), "as QEMU had missed it"),
    ];
    let again = again.iter().filter(|(bytes, _)| *bytes > 0);
    let again: Vec<String> = again.map(|(bytes, why)| format!("{} {why}", about_bytes(*bytes))).collect();
    rows.push(("sent again", again.join(", ")));
    rows
}

/// Describes how the pages came into the target's RAM, and how long comparing them took.
fn placement(pages: &PageFigures) -> String {
    let why = &pages.why_not_direct;
    let mut words = match (pages.direct, &why[..]) {
        (None, _) => String::new(),
        (Some(true), "") => "by the target's agent, past QEMU".into(),
        (Some(true), why) => format!("of smaller blocks by the target's agent, else through QEMU: {why}"),
        (Some(false), "") => "through QEMU".into(),
        (Some(false), why) => format!("through QEMU: {why}"),
    };
    if let Some(us) = pages.counts.compared_us {
        words += &format!("; compared in {} while it stood still", duration(us.div_ceil(1000)));
    }
    // A reason of both is told once.
    if !pages.not_compared.is_empty() && pages.not_compared != *why {
        words += &format!("; {}", pages.not_compared);
    }
    words
}

/// Returns a line for an event: `2026-11-22 03:41:07.120  copying while it runs`.
fn event_line(logged: &LoggedEvent) -> String {
    let words = match &logged.event {
        LogEntry::Begun { vm, source, target, .. } => format!("asked for: {vm} from {source} to {target}"),
        LogEntry::Note { text } => text.clone(),
        LogEntry::Copied { copy } => copied_words(copy),
        LogEntry::Downtime { ms } => format!("the guest stood still for {}", duration(*ms)),
        LogEntry::Handover { event } => match event {
            MigrationEvent::Queued => "waits for a place".into(),
            MigrationEvent::Phase { stage } => stage.words().1.into(),
            MigrationEvent::Reported { report, detail } if detail.is_empty() => {
                format!("the target says: {}", report_words(*report))
            }
            MigrationEvent::Reported { report, detail } => {
                format!("the target says: {}: {detail}", report_words(*report))
            }
            MigrationEvent::CalledOff { why: reason, detail } if detail.is_empty() => {
                format!("called off: {}", reason.words())
            }
            MigrationEvent::CalledOff { why: reason, detail } => format!("called off: {}: {detail}", reason.words()),
            MigrationEvent::InDoubt => "IN DOUBT: paused, until it is known where it runs".into(),
            MigrationEvent::Recovered => "taken up again after the agent was started again".into(),
            MigrationEvent::WriteFailed => "the journal could not be written".into(),
            MigrationEvent::Over { outcome } => match outcome {
                Outcome::Moved => "moved".into(),
                Outcome::CalledOff => "kept at the source".into(),
                Outcome::Ended => "the guest ended".into(),
            },
        },
    };
    let time = logged.time.trim_end_matches('Z').replacen('T', " ", 1);
    clean_line(&format!("{time:23}  {words}"))
}

fn report_words(report: Report) -> &'static str {
    match report {
        Report::Queued => "it has no free place yet",
        Report::Preparing => "its QEMU starts",
        Report::Ready => "its QEMU waits for the guest",
        Report::Completed => "it has all of the guest",
        Report::Run => "it has decided to run the guest",
        Report::Refusing => "it will not run the guest",
        Report::Running => "the guest runs there",
        Report::Refused => "its QEMU is gone, the guest never ran there",
        Report::Settled => "it has forgotten the migration",
    }
}
