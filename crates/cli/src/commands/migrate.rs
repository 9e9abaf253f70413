//! `skein migrate`.

use std::process::ExitCode;

use anyhow::{Context, bail};
use skein_api::cluster::MigrateRequest;
use skein_api::{
    ALLOW_THROTTLE_PERCENT_RANGE, DEADLINE_RANGE_S, DELTA_MEMORY_PERCENT_RANGE, DOWNTIME_LIMIT_RANGE_MS, HoldOptions,
    MULTIFD_CHANNELS_RANGE, MigrateOptions, PRIORITY_RANGE, RETRIES_RANGE, Reply, Request, Transport,
};
use skein_units::{Rate, parse_millis};

use super::cluster::access::ControllerArgs;
use super::cluster::moves::{self, Then};
use super::cluster::output::Output;
use super::follow::{Opening, Until, follow};
use super::hold::HoldArgs;
use super::local::{EXIT_BLOCKED, EXIT_CODES, LocalAgent, check_text, unexpected};
use super::session_options::transport;
use super::text::{clean_line, print, print_json};
use super::vm::is_missing;

/// Move a VM to another host while it runs; by a controller also one that is off.
///
/// Everything that could stand in the way is checked first; if something does, all of it is told at once, each with its
/// cure, and nothing is begun. Until the guest is handed over at the very end, whatever fails leaves it running here;
/// it never runs at both ends. The migration belongs to the agents: it goes on when this command is interrupted.
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein migrate web1 --to hostb --check
      only say whether it could be moved, and how long it would take
  skein migrate web1 --to hostb
      move it, and watch; Ctrl-C stops watching, not the migration
  skein migrate web1
      let the cluster's controller pick the host; with --check it only says which, and why
  skein migrate web1 --hold --rate 500Mbit/s
      the controller picks the host, and web1 is held; --rate and --hold are what a controller takes
  skein migrate web1 --to hostb --detach
      begin, or queue, and return at once
  skein migrate db1 --to hostb --downtime-limit 100ms --deadline 10m --retries 3
      stop it for 100 ms at most; call it off if that cannot be had in ten minutes; then try again, three times
  skein migrate db1 --to hostb --allow-throttle 60
      slow it down, by 60 % at most and no more than needed, if it writes faster than the links carry
  skein migrate db1 --to hostb --hold
      copy it, and keep hostb fresh until `skein migration switch db1`
  skein migrate db1 --to hostb --hold --switch-between 22:00-23:00 --detach
      the same, and have it switch by itself tonight
  skein migrate web1 --to hostb --transport multichannel
      use all NICs, and leave this host's CPU alone
  skein migrate web1 --to hostb --rate 500Mbit/s
      leave the rest of the links to others; `skein migration limit` changes that while it runs
  skein migrate web1 --to hostb --json | jq -c '.copy.remaining_bytes'
      a line of JSON each time that something changes

{EXIT_CODES}"))]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    /// The VM's name
    vm: String,
    #[command(flatten)]
    controllers: ControllerArgs,
    /// The host that it is to run on [default: the controller picks it, and says why]
    #[arg(long, value_name = "HOST")]
    to: Option<String>,
    /// Only check: say all that stands in the way, and how long it would take
    #[arg(long, conflicts_with = "detach")]
    check: bool,
    /// Of several that wait for a place, the highest goes first [default: its definition's]
    #[arg(long, value_name = "N", value_parser = priority())]
    priority: Option<u8>,
    /// How long the guest may stand still, such as 300ms [default: its definition's, or 300ms]
    #[arg(long, value_name = "TIME", value_parser = downtime_limit)]
    downtime_limit: Option<u64>,
    /// Call it off if the guest is not about to move after so long, such as 10m; until then one that does not converge
    /// is tried, too
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<u64>,
    /// multifd channels; 0 is one plain stream [default: its definition's, or as many as fit]
    #[arg(long, value_name = "N", value_parser = channels())]
    channels: Option<u8>,
    /// How the guest's memory travels: auto (all NICs, compressed as far as it pays), tcp (one connection, as it is),
    /// compression (one NIC), multichannel (all NICs, as it is) [default: the host's, see hosts.toml]
    #[arg(long, value_name = "HOW", value_parser = transport::<Transport>())]
    transport: Option<Transport>,
    /// Slow the guest's CPUs down, by so many per cent at most (1 to 99), if it writes faster than it is moved; without
    /// it, the migration of such a guest is called off after some rounds, or at --deadline if there is one
    #[arg(long, value_name = "PERCENT", value_parser = allow_throttle, allow_negative_numbers = true)]
    allow_throttle: Option<u8>,
    /// Memory that this host may use to send only what changed of pages, in per cent of the guest's RAM; 0 for none,
    /// more than the default is of no use [default: 4]
    #[arg(long, value_name = "PERCENT", value_parser = delta_memory, allow_negative_numbers = true)]
    delta_memory: Option<f64>,
    /// The most that it sends, such as 500Mbit/s or 100MB/s [default: as fast as links and the host's limit allow]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<Rate>,
    /// Keep it off RDMA, and meanwhile all else that its host sends to the other
    #[arg(long)]
    no_rdma: bool,
    /// How often to begin again after a failure, whether this command watches or not
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = retries())]
    retries: u32,
    /// On a host of a cluster, with --to: move it though no controller answers. Make sure yourself that neither host is
    /// switched off, or said to be off, before controllers are back. What a controller refuses stays refused
    #[arg(long)]
    without_controller: bool,
    #[command(flatten)]
    hold: HoldArgs,
    /// Return as soon as it is begun or queued
    #[arg(long)]
    detach: bool,
    /// A line of JSON for each step, the last one for how it ended
    #[arg(long)]
    json: bool,
}

fn priority() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(i64::from(*PRIORITY_RANGE.start())..=i64::from(*PRIORITY_RANGE.end()))
}

fn channels() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(i64::from(*MULTIFD_CHANNELS_RANGE.start())..=i64::from(*MULTIFD_CHANNELS_RANGE.end()))
}

fn retries() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(*RETRIES_RANGE.start())..=i64::from(*RETRIES_RANGE.end()))
}

/// Parses the per cent by which a guest may be throttled.
pub(super) fn allow_throttle(text: &str) -> Result<u8, String> {
    let percent = text.parse().ok().filter(|percent| ALLOW_THROTTLE_PERCENT_RANGE.contains(percent));
    let (least, most) = (ALLOW_THROTTLE_PERCENT_RANGE.start(), ALLOW_THROTTLE_PERCENT_RANGE.end());
    percent.ok_or_else(|| format!("write a whole number of per cent, {least} to {most}, such as 60"))
}

fn delta_memory(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| DELTA_MEMORY_PERCENT_RANGE.contains(percent));
    let (least, most) = (DELTA_MEMORY_PERCENT_RANGE.start(), DELTA_MEMORY_PERCENT_RANGE.end());
    percent.ok_or_else(|| format!("write a number of per cent, {least} to {most}, such as 4"))
}

fn downtime_limit(text: &str) -> Result<u64, String> {
    let ms = parse_millis(text).map_err(|error| error.to_string())?;
    let (least, most) = (DOWNTIME_LIMIT_RANGE_MS.start(), DOWNTIME_LIMIT_RANGE_MS.end());
    DOWNTIME_LIMIT_RANGE_MS.contains(&ms).then_some(ms).ok_or_else(|| format!("it may be {least}ms to {most}ms"))
}

/// Parses a time into whole seconds, rounded up.
fn deadline(text: &str) -> Result<u64, String> {
    let seconds = parse_millis(text).map_err(|error| error.to_string())?.div_ceil(1000);
    let most = DEADLINE_RANGE_S.end() / 86_400;
    DEADLINE_RANGE_S
        .contains(&seconds)
        .then_some(seconds)
        .ok_or_else(|| format!("it may be 1ms to {most} days ({}h)", most * 24))
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = MigrateOptions {
        priority: args.priority,
        downtime_limit_ms: args.downtime_limit,
        deadline_s: args.deadline,
        channels: args.channels,
        transport: args.transport,
        allow_throttle: args.allow_throttle,
        delta_memory: args.delta_memory,
        rate_bits_per_s: args.rate.map(Rate::bits_per_s),
        without_rdma: args.no_rdma,
        retries: args.retries,
        without_controller: args.without_controller,
    };
    let hold = args.hold.options()?;
    // Where there is no agent, as on a desk, the controller does what it can.
    let has_agent =
        args.controllers.controller.is_none() && (args.local.socket.exists() || args.controllers.access()?.is_none());
    let Some(to) = args.to.clone().filter(|_| has_agent) else { return by_controller(&args, &options, hold) };
    match by_agent(&args, to, &options, hold.clone()) {
        Err(error) if is_missing(&error) => match elsewhere(&args) {
            Some(host) => {
                let (vm, host) = (clean_line(&args.vm), clean_line(&host));
                eprintln!("{vm} is on {host}: the controller is asked");
                by_controller(&args, &options, hold)
            }
            None => Err(error),
        },
        done => done,
    }
}

/// Has this host's agent move a VM, or only check.
fn by_agent(args: &Args, to: String, options: &MigrateOptions, hold: Option<HoldOptions>) -> anyhow::Result<ExitCode> {
    let (vm, options, detach) = (args.vm.clone(), options.clone(), args.detach);
    if !args.check {
        let (request, until) = match hold {
            None => (Request::Migrate { vm, to, options, detach }, Until::Over),
            Some(hold) => (Request::MigrateHeld { vm, to, options, hold, detach }, Until::Held),
        };
        return follow(&args.local.client(), Opening::begin(request), until, args.json);
    }
    let check = match args.local.call(&Request::Check { vm, to, options })? {
        Reply::Check(check) => check,
        reply => return Err(unexpected(&reply).into()),
    };
    if args.json {
        print_json(&check)?
    } else {
        print(&check_text(&check))?
    }
    Ok(if check.blocks() { ExitCode::from(EXIT_BLOCKED) } else { ExitCode::SUCCESS })
}

/// Has a controller move a VM, or only say what it would do.
fn by_controller(args: &Args, options: &MigrateOptions, hold: Option<HoldOptions>) -> anyhow::Result<ExitCode> {
    let rate_bits_per_s = options.rate_bits_per_s;
    if *options != (MigrateOptions { rate_bits_per_s, ..MigrateOptions::default() }) {
        bail!(
            "of the options of a migration, a controller takes --rate and those of --hold: leave the others out, or \
             give --to on the VM's host"
        );
    }
    let client = args.controllers.client();
    let client = client.with_context(|| format!("nobody picks a host for {}: give --to HOST", clean_line(&args.vm)))?;
    let request = MigrateRequest { to: args.to.clone(), dry_run: args.check, rate_bits_per_s, hold };
    moves::migrate(&client, &args.vm, &request, Then::of(args.check, args.detach), Output::of(args.json))
}

/// Returns the host that has the VM, where a controller knows.
fn elsewhere(args: &Args) -> Option<String> {
    args.controllers.client().ok()?.vm(&args.vm).ok()?.host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_bounds() {
        assert_eq!(downtime_limit("300ms"), Ok(300));
        assert_eq!(deadline("10m"), Ok(600));
        assert_eq!(deadline("300ms"), Ok(1));
        assert_eq!((delta_memory("0"), delta_memory("12.5")), (Ok(0.0), Ok(12.5)));
        assert!(delta_memory("101").is_err() && delta_memory("NaN").is_err() && delta_memory("").is_err());
        assert!(downtime_limit("0ms").is_err() && downtime_limit("1h").is_err() && deadline("0s").is_err());
        assert_eq!(deadline("720h"), Ok(2_592_000));
        assert_eq!(deadline("721h"), Err("it may be 1ms to 30 days (720h)".into()));
    }
}
