//! `skein net qos`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use skein_agent::TrafficClass;
use skein_host::{Kernel, Nic, run_tool};
use skein_network::{
    AppliedShare, Ask, EtsError, EtsUndone, FLOW_QUEUES, NicQueue, OwnEts, SHARE_RATE_BPS_MAX, Scheduler,
    ShareSettings, Source, flow_lines, has_share_queues, make_ets, nics, queue, removal_lines, share_lines, undo_ets,
    usual_nics,
};
use skein_units::{Rate, about_bytes};

use crate::commands::text::{print, print_json, say};

/// Give migrations a share of what NICs send, while others want it, too
///
/// Migrations get at least that share of each NIC when it is full, and others the rest. Whoever is alone has all. The
/// share is one of sending: what arrives is shared out where it is sent.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein net qos apply                      # half of each NIC, until the next boot or 'remove'
  skein net qos apply --share 90 eth2 eth3
  skein net qos apply --rate 950Mbit/s eth2
      the bottleneck is behind the NIC: a switch's port of 1 Gb/s. No more than that rate leaves the NIC
  skein net qos show                       # what each NIC does, and what was sent since
  skein net qos remove                     # the kernel's own queues again

A NIC's queues that somebody else configured (tc, a distribution's network manager) are left alone, and that is said. A
share is made by the NIC itself, where it has ETS (dcb-ets(8)), its driver is known to go by priorities (i40e, ixgbe;
ice with --own-ets), and nobody else has DCB in hand: it may pause for a second or so while that is set. Else the share
is made of the kernel's ETS (tc-ets(8)), or of HTB where the kernel has no ETS or --rate is given. 'apply' says why it
was not the NIC. Within each part of the kernel's, flows take turns (fq_codel, sfq, fq or cake, as the kernel has them).
With HTB small packets of others go before their bulk, so that what acknowledges the opposite direction does not wait.
It takes tc (iproute2). The packets of migrations are known by their marks: --priority and --dscp of 'skein agent'.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Give migrations a share of what NICs send, until the next boot
    Apply(Apply),
    /// Show how each NIC shares out what it sends
    #[command(after_help = "\
Examples:
  skein net qos show
  skein net qos show --json | jq '.[] | select(.queue == \"share\")'")]
    Show {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Have NICs send as if there were no Skein
    #[command(after_help = "\
Examples:
  skein net qos remove
  skein net qos remove eth2")]
    Remove {
        /// The NICs; without any, all that have a share
        #[arg(value_name = "NIC")]
        nics: Vec<String>,
        /// A JSON array: how the NICs share out what they send now
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct Apply {
    /// The NICs; without any, all hardware that is up and carries an address, itself or below a bond, bridge or VLAN
    #[arg(value_name = "NIC")]
    nics: Vec<String>,
    /// The share of migrations in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=99))]
    share: u8,
    /// What leaves each NIC at most, such as 950Mbit/s: where the bottleneck is behind it
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<Rate>,
    /// Have the NIC make the share by its own ETS or fail, even if its interface goes down and up for that
    #[arg(long, conflicts_with_all = ["rate", "no_own_ets"])]
    own_ets: bool,
    /// Leave the NIC's own ETS alone
    #[arg(long)]
    no_own_ets: bool,
    /// The agents' --priority
    #[arg(long, value_name = "N", default_value_t = TrafficClass::BULK.priority,
          value_parser = clap::value_parser!(u8).range(0..=6))]
    priority: u8,
    /// The agents' --dscp
    #[arg(long, value_name = "N", default_value_t = TrafficClass::BULK.dscp,
          value_parser = clap::value_parser!(u8).range(0..=63))]
    dscp: u8,
    /// A JSON array: how the NICs share out what they send now
    #[arg(long)]
    json: bool,
}

/// Is held while queues are changed, so that commands side by side take turns.
const LOCK_FILE: &str = "/run/skein/net-qos.lock";
/// Bounds the lines of tc's that an error has.
const TC_LINES_MAX: usize = 3;

/// What `show --json` prints of a NIC.
#[derive(Serialize)]
struct Shown<'a> {
    nic: &'a str,
    #[serde(flatten)]
    queue: Option<NicQueue>,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let kernel = Kernel::new();
    let _lock = match args.command {
        Command::Show { .. } => None,
        _ => Some(lock(Path::new(LOCK_FILE))?),
    };
    let all = nics(&kernel)?;
    match args.command {
        Command::Apply(wanted) => apply(&kernel, &all, &wanted),
        Command::Show { json } => show(&kernel, all.iter().filter(|nic| !nic.loopback), json),
        Command::Remove { nics, json } => remove(&kernel, &all, &nics, json),
    }
}

/// Waits until no other command changes queues.
fn lock(path: &Path) -> anyhow::Result<Flock<File>> {
    let cannot = || format!("cannot write {}: changing queues takes root", path.display());
    path.parent().map_or(Ok(()), fs::create_dir_all).with_context(cannot)?;
    let file = File::options().create(true).append(true).open(path).with_context(cannot)?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| anyhow::Error::new(errno).context(format!("cannot lock {}", path.display())))
}

fn apply(kernel: &Kernel, all: &[Nic], wanted: &Apply) -> anyhow::Result<()> {
    let chosen = if wanted.nics.is_empty() { usual_nics(all) } else { named(all, &wanted.nics)? };
    ensure!(!chosen.is_empty(), "no NIC is hardware that is up and carries an address: name the NICs (skein net show)");
    ensure!(
        wanted.rate.is_none_or(|rate| rate.bits_per_s() <= SHARE_RATE_BPS_MAX),
        "nothing was changed: tc takes rates of at most {} Gbit/s (--rate)",
        SHARE_RATE_BPS_MAX / 1_000_000_000
    );
    ensure!(
        wanted.rate.is_none() || wanted.dscp > 0,
        "nothing was changed: with --rate the packets of migrations are known by a code point: --dscp 1 to 63"
    );
    let refusals: Vec<String> = chosen.iter().filter_map(|nic| refusal(kernel, nic)).collect();
    ensure!(refusals.is_empty(), "nothing was changed: {}", refusals.join("; "));
    for nic in &chosen {
        let (share, not_used) = apply_to(kernel, nic, wanted)?;
        say(wanted.json, &format!("{}: {}\n", nic.name, share_words(&share)))?;
        if let Some(why) = not_used {
            say(wanted.json, &format!("  not by the NIC's own ETS: {why}\n"))?;
        }
    }
    if wanted.json { show(kernel, chosen.into_iter(), true) } else { Ok(()) }
}

fn named<'a>(all: &'a [Nic], names: &[String]) -> anyhow::Result<Vec<&'a Nic>> {
    let find = |name: &String| {
        all.iter().find(|nic| nic.name == *name).with_context(|| format!("there is no NIC {name}: skein net show"))
    };
    names.iter().map(find).collect()
}

fn foreign_words(name: &str, kind: &str) -> String {
    format!(
        "{name} has {kind}, which somebody else configured: remove that (tc qdisc del dev {name} root), or name other \
         NICs"
    )
}

/// Returns why a NIC's queues are not Skein's to change.
fn refusal(kernel: &Kernel, nic: &Nic) -> Option<String> {
    let name = &nic.name;
    match queue(kernel, nic) {
        Some(NicQueue::Foreign { kind }) => Some(foreign_words(name, &kind)),
        Some(NicQueue::ForeignEts) => Some(format!(
            "somebody else has set the ETS (DCB) of {name} since a share was made: skein net qos remove {name} leaves \
             that as it is, and forgets the share"
        )),
        // A bond, bridge or VLAN: its packets wait in the NICs below.
        Some(NicQueue::Default { kind }) if kind == "noqueue" && nic.kind.as_deref() != Some("veth") => {
            Some(format!("{name} has no queue: name the NICs below it (skein net show)"))
        }
        _ => None,
    }
}

/// Returns the share that is made now, and why the NIC does not make it itself.
fn apply_to(kernel: &Kernel, nic: &Nic, wanted: &Apply) -> anyhow::Result<(AppliedShare, Option<String>)> {
    let settings = ShareSettings { percent: wanted.share, priority: wanted.priority, dscp: wanted.dscp };
    let stood = match queue(kernel, nic) {
        Some(NicQueue::Share(share)) => Some(share),
        _ => None,
    };
    let make = |scheduler, rate_bps| {
        remove_from(kernel, nic)?;
        let made = make_share(kernel, nic, settings, scheduler, rate_bps, wanted.own_ets);
        match (made, queue(kernel, nic)) {
            (Ok(()), Some(NicQueue::Share(share))) if share.percent == wanted.share => Ok(share),
            // The NIC is as before already, or what is in it is told.
            (Err(error), _) if scheduler == Scheduler::Nic => Err(error),
            (made, found) => {
                // What was made of it goes again.
                let error = made.err().unwrap_or_else(|| anyhow::anyhow!("tc made something else: {found:?}"));
                match remove_from(kernel, nic) {
                    Ok(_) => Err(error),
                    Err(stays) => Err(stays.context(format!("{error:#}"))),
                }
            }
        }
    };
    let made = make_best(nic, wanted, make);
    made.map_err(|error| error.context(what_is_left(kernel, nic, stood.as_ref())))
}

/// Makes a share on a NIC that has none.
fn make_share(
    kernel: &Kernel,
    nic: &Nic,
    settings: ShareSettings,
    scheduler: Scheduler,
    rate_bps: u64,
    may_go_down: bool,
) -> anyhow::Result<()> {
    if scheduler == Scheduler::Nic {
        return Ok(make_ets(kernel, nic, settings.percent, settings.priority, may_go_down)?);
    }
    batch(&share_lines(&nic.name, settings, scheduler, rate_bps))?;
    let usual = kernel.ask(&Ask::File("/proc/sys/net/core/default_qdisc".into())).text().unwrap_or_default();
    let usual = FLOW_QUEUES.into_iter().filter(|kind| *kind == usual.trim());
    for kind in usual.chain(FLOW_QUEUES) {
        match batch(&flow_lines(&nic.name, scheduler, kind)) {
            Err(error) if is_unknown(&error) => {}
            made => return made,
        }
    }
    Ok(())
}

/// Returns whether the kernel has no such queueing discipline, by its own words.
fn is_unknown(error: &anyhow::Error) -> bool {
    error.to_string().contains("qdisc kind is unknown")
}

/// Returns whether a NIC does not make a share itself, and is as before.
fn is_not_used(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EtsError::NotUsed(_)))
}

/// Puts the share back that stood. Returns what is left in words.
fn what_is_left(kernel: &Kernel, nic: &Nic, stood: Option<&AppliedShare>) -> String {
    let name = &nic.name;
    if matches!(queue(kernel, nic), Some(NicQueue::Incomplete | NicQueue::ForeignEts)) {
        return format!("{name}: the new share is INCOMPLETE: skein net qos remove {name}");
    }
    let Some(stood) = stood else { return format!("{name}: no share was made, and none is there") };
    if matches!(queue(kernel, nic), Some(NicQueue::Share(_))) {
        return format!("{name}: nothing was changed, the share of {} % stands", stood.percent);
    }
    let (priority, dscp) = (stood.priority.unwrap_or_default(), stood.dscp.unwrap_or_default());
    let settings = ShareSettings { percent: stood.percent, priority, dscp };
    let again = make_share(kernel, nic, settings, stood.scheduler, stood.rate_bps.unwrap_or_default(), true);
    match again.map(|()| queue(kernel, nic)) {
        Ok(Some(NicQueue::Share(_))) => {
            format!("{name}: the new share was not made; the one of {} % from before is there again", stood.percent)
        }
        _ => format!("{name}: the new share was not made, and NO SHARE IS LEFT: skein net qos apply {name}"),
    }
}

/// Makes a share by the NIC itself, of the kernel's ETS or, where there is neither or a rate is wanted, of HTB. Returns
/// why the NIC does not make it, too.
fn make_best(
    nic: &Nic,
    wanted: &Apply,
    make: impl Fn(Scheduler, u64) -> anyhow::Result<AppliedShare>,
) -> anyhow::Result<(AppliedShare, Option<String>)> {
    let mut not_used = None;
    if wanted.rate.is_none() && !wanted.no_own_ets {
        match make(Scheduler::Nic, 0) {
            Err(error) if is_not_used(&error) && !wanted.own_ets => not_used = Some(error.to_string()),
            made => return Ok((made?, None)),
        }
    }
    if wanted.rate.is_none() {
        match make(Scheduler::Ets, 0) {
            Err(error) if is_unknown(&error) => {}
            made => return Ok((made?, not_used)),
        }
    }
    let told = nic.speed_mbit.map(|speed| u64::from(speed) * 1_000_000);
    let rate_bps = wanted.rate.map(Rate::bits_per_s).or(told).with_context(|| {
        format!("the kernel has no ETS, and {} does not tell its speed: give it (--rate 1Gbit/s)", nic.name)
    })?;
    ensure!(wanted.dscp > 0, "with HTB the packets of migrations are known by a code point: --dscp 1 to 63");
    Ok((make(Scheduler::Htb, rate_bps)?, not_used))
}

fn remove(kernel: &Kernel, all: &[Nic], names: &[String], json: bool) -> anyhow::Result<()> {
    let chosen = if names.is_empty() { all.iter().collect() } else { named(all, names)? };
    let has_record = |nic: &Nic| !matches!(skein_network::own_ets(kernel, nic), OwnEts::None);
    let foreign = |nic: &&Nic| match queue(kernel, nic) {
        Some(NicQueue::Foreign { kind }) if !has_record(nic) => Some(foreign_words(&nic.name, &kind)),
        _ => None,
    };
    let foreign: Vec<String> = chosen.iter().filter_map(foreign).collect();
    ensure!(names.is_empty() || foreign.is_empty(), "nothing was changed: {}", foreign.join("; "));
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for nic in &chosen {
        match remove_from(kernel, nic)? {
            EtsUndone::Nothing => {}
            EtsUndone::Share => removed.push(nic.name.as_str()),
            EtsUndone::LeftAlone => left.push(nic.name.as_str()),
        }
    }
    if !left.is_empty() {
        let names = left.join(", ");
        say(
            json,
            &format!("{names}: somebody else has set the ETS (DCB) since: left alone, and the share is forgotten\n"),
        )?;
    }
    match (removed.is_empty(), left.is_empty()) {
        (true, true) => say(json, "no NIC had a share\n"),
        (true, false) => Ok(()),
        (false, _) => say(json, &format!("{}: as before the share\n", removed.join(", "))),
    }
}

/// Removes Skein's share from a NIC, in the kernel's queues and in the NIC itself.
fn remove_from(kernel: &Kernel, nic: &Nic) -> anyhow::Result<EtsUndone> {
    let undone = undo_ets(kernel, nic)?;
    if !has_share_queues(kernel, nic) {
        return Ok(undone);
    }
    batch(&removal_lines(&nic.name))?;
    Ok(if undone == EtsUndone::LeftAlone { undone } else { EtsUndone::Share })
}

fn batch(lines: &str) -> anyhow::Result<()> {
    let said = run_tool("tc", &["-batch", "-"], lines).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!(
            "the program tc is missing: apt-get install iproute2 (Debian, Ubuntu), dnf install iproute-tc (Fedora)"
        ),
        _ => anyhow::Error::new(error).context("tc cannot be run"),
    })?;
    if said.status.success() {
        return Ok(());
    }
    let words = tc_words(&said.errors);
    if words.contains("not permitted") {
        bail!("the kernel does not permit it: it takes root (CAP_NET_ADMIN)");
    }
    bail!("tc refuses: {words}")
}

/// Returns what tc says is wrong, without its usage.
fn tc_words(errors: &str) -> String {
    let says =
        |line: &&str| !line.contains("Warning") && !line.starts_with("Command failed") && !line.trim().is_empty();
    let lines = errors.lines().take_while(|line| !line.starts_with("Usage:")).filter(says).take(TC_LINES_MAX);
    lines.map(str::trim).collect::<Vec<_>>().join(", ")
}

fn show<'a>(kernel: &Kernel, nics: impl Iterator<Item = &'a Nic>, json: bool) -> anyhow::Result<()> {
    let shown: Vec<Shown<'_>> = nics.map(|nic| Shown { nic: &nic.name, queue: queue(kernel, nic) }).collect();
    if json {
        return print_json(&shown);
    }
    let mut text = String::new();
    for Shown { nic, queue } in &shown {
        let words = match queue {
            Some(NicQueue::Share(share)) => share_words(share),
            Some(NicQueue::Incomplete) => "INCOMPLETE: skein net qos apply again, or remove".to_owned(),
            Some(NicQueue::Foreign { kind }) => format!("{kind}, which somebody else configured"),
            Some(NicQueue::ForeignEts) => "ETS (DCB) that somebody else has set since a share was made".to_owned(),
            Some(NicQueue::Default { kind }) => format!("no share ({kind}, the kernel's own)"),
            None => "no share".to_owned(),
        };
        let _ = writeln!(text, "{nic}: {words}");
    }
    print(&text)
}

fn share_words(share: &AppliedShare) -> String {
    let by = match share.scheduler {
        Scheduler::Nic => "the NIC's own ets".to_owned(),
        Scheduler::Ets => "ets".to_owned(),
        Scheduler::Htb => match share.rate_bps.and_then(Rate::of_bits_per_s) {
            Some(rate) => format!("htb, {rate} in all"),
            None => "htb".to_owned(),
        },
    };
    let marks = match (share.priority, share.dscp) {
        (Some(priority), _) => format!(", by the priority {priority}"),
        (None, Some(dscp)) => format!(", by the code point {dscp} (DSCP)"),
        (None, None) => String::new(),
    };
    let turns = match (&share.flow_queue, share.scheduler) {
        (Some(kind), _) => format!(", turns by flow ({kind})"),
        (None, Scheduler::Nic) => String::new(),
        (None, _) => ", first in first out".to_owned(),
    };
    let small = if share.small_first { ", small packets of others first" } else { "" };
    let sent = match (share.migrations_bytes, share.others_bytes) {
        (Some(migrations), Some(others)) => {
            format!("; sent since: {} of migrations, {} of others", about_bytes(migrations), about_bytes(others))
        }
        _ => String::new(),
    };
    format!("at least {} % for migrations ({by}{marks}{turns}{small}){sent}", share.percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tc_says_is_told_without_its_usage() {
        let errors = "Warning: sch_htb: quantum is big.\nIllegal \"burst\"\nUsage: ... qdisc add ... htb [default N]\n \
                      default  minor id\nCommand failed -:2\n";
        assert_eq!(tc_words(errors), "Illegal \"burst\"");
        let errors = "Error: Specified qdisc kind is unknown.\nCommand failed -:1\n";
        assert_eq!(tc_words(errors), "Error: Specified qdisc kind is unknown.");
    }
}
