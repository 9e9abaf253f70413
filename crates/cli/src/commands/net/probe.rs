//! `skein net probe`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::Serialize;
use skein_api::{MeasuredRate, Probe, ProbeFinding, ProbedPath, Reply, Request, Together, UsedCpu};
use skein_terminal::files;
use skein_units::duration;
use skein_units::measured::{bps, millis};

use super::compare::{Difference, compare};
use crate::commands::local::{AGENT_ANSWER_TIME, EXIT_BLOCKED, LocalAgent, unexpected};
use crate::commands::text::{clean, clean_line, count, fields, print, print_json};

/// Bounds a file with a result.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Measure what the paths to another host carry, and say what is wrong and what would mend it
///
/// Measured are the paths that a migration has, over connections of the same kind: the round trip, the largest packet
/// that passes, the rate each way, both ways at once, and of all paths together, and the CPU time of both ends. It
/// takes some 5 s with 4 paths, and no more than 2 % of what a link carries in a minute. While a migration or a
/// connection of a tunnel is under way at either end, rates are not measured.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein net probe --to hostb
      measure, and say what is wrong; the agent keeps the last result of each host, and its forecasts use the rates
  skein net probe --to hostb --before mtu1500.json
      measure before something is changed: an MTU, a switch's setting, a driver's option
  skein net probe --to hostb --compare mtu1500.json
      measure again, and say what has changed beyond noise: whether that change is worth rolling out
  skein net probe --last
      what was measured last of each host, and when; nothing is measured
  skein net probe --to hostb --json | jq '.verdict.findings[] | {kind, what, cure}'

Only one probe at a time is under way to or from a host. Ctrl-C ends it.

Exit codes:
    0  measured; with --last: shown
    1  an error; what it was is said
    2  wrong arguments
    3  measured, and something is wrong: there is a line that begins with warning")]
pub struct Args {
    /// The other host
    #[arg(long, value_name = "HOST", required_unless_present = "last")]
    to: Option<String>,
    /// Write what is measured to a file, to compare with later
    #[arg(long, value_name = "FILE", conflicts_with = "last")]
    before: Option<PathBuf>,
    /// Say what has changed since such a file was written
    #[arg(long, value_name = "FILE", conflicts_with = "last")]
    compare: Option<PathBuf>,
    /// Show what was measured last, of all hosts or of the one that is named
    #[arg(long)]
    last: bool,
    /// A JSON object; with --last a JSON array
    #[arg(long)]
    json: bool,
}

/// What `--compare --json` prints.
#[derive(Serialize)]
struct Compared<'a> {
    before: &'a Probe,
    after: &'a Probe,
    differences: Vec<Difference>,
}

pub(super) fn run(local: &LocalAgent, args: Args) -> anyhow::Result<ExitCode> {
    if args.last {
        return last(local, args.to.as_deref(), args.json).map(|()| ExitCode::SUCCESS);
    }
    let to = args.to.expect("clap asks for it");
    let before = args.compare.as_deref().map(read).transpose()?;
    if let Some(before) = before.as_ref().filter(|before| before.to != to) {
        anyhow::bail!("that file is of the way to {}, not to {to}", clean_line(&before.to));
    }
    if let Some(file) = &args.before {
        let inputs: Vec<&Path> = args.compare.as_deref().into_iter().collect();
        files::output(Some(file), &inputs)?;
    }
    let probe = measure(local, to)?;
    if let Some(file) = &args.before {
        files::write(file, &(serde_json::to_string_pretty(&probe)? + "\n"))?;
        if let Some(why) = without_rates(&probe) {
            eprintln!("warning: {} has {why}: there is nothing to compare rates with", file.display());
        }
    }
    let is_wrong = probe.verdict.findings.iter().any(|finding| finding.kind.is_wrong());
    match (&before, args.json) {
        (None, true) => print_json(&probe),
        (None, false) => print(&shown(&probe, now())),
        (Some(before), true) => {
            if let Some(words) = incomparable(before, &probe) {
                eprintln!("warning: {words}");
            }
            let differences = compare(before, &probe);
            print_json(&Compared { before, after: &probe, differences })
        }
        (Some(before), false) => {
            let age = now().saturating_sub(before.unix_s);
            let incomparable = incomparable(before, &probe);
            print(&(shown(&probe, now()) + &compared(&compare(before, &probe), incomparable, age)))
        }
    }?;
    Ok(if is_wrong { ExitCode::from(EXIT_BLOCKED) } else { ExitCode::SUCCESS })
}

/// Returns why the rates of a result tell nothing, if so.
fn without_rates(probe: &Probe) -> Option<String> {
    let note = if probe.note.is_empty() { String::new() } else { format!(" ({})", clean_line(&probe.note)) };
    match (probe.has_rates(), probe.busy_hosts.is_empty()) {
        (true, true) => None,
        (true, false) => Some(format!("rates of busy cores ({})", clean_line(&probe.busy_hosts.join(", ")))),
        (false, _) => Some(format!("no rates{note}")),
    }
}

/// Returns why there are no rates to compare, if so.
fn incomparable(before: &Probe, after: &Probe) -> Option<String> {
    let why = |probe: &Probe, when: &str| {
        Some(format!("there are no rates to compare: {when} has {}", without_rates(probe)?))
    };
    why(before, "the measurement before").or_else(|| why(after, "this measurement"))
}

fn read(file: &Path) -> anyhow::Result<Probe> {
    let text = files::read_small(file, FILE_BYTES_MAX)?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} was not written by skein net probe --before", file.display()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Has the agent measure, and tells on standard error how far it is.
fn measure(local: &LocalAgent, to: String) -> anyhow::Result<Probe> {
    let mut conversation = local.client().ask(&Request::NetProbe { to })?;
    loop {
        match conversation.reply(AGENT_ANSWER_TIME)? {
            Reply::ProbeStep { words } => eprintln!("{}", clean_line(&words)),
            Reply::Probe(probe) => return Ok(*probe),
            reply => return Err(unexpected(&reply).into()),
        }
    }
}

fn last(local: &LocalAgent, to: Option<&str>, json: bool) -> anyhow::Result<()> {
    let mut probes = match local.call(&Request::NetProbes)? {
        Reply::Probes { probes } => probes,
        reply => return Err(unexpected(&reply).into()),
    };
    probes.retain(|probe| to.is_none_or(|to| probe.to == to));
    if let Some(to) = to.filter(|_| probes.is_empty()) {
        anyhow::bail!("nothing was measured to {to} yet: skein net probe --to {to}");
    }
    if json {
        return print_json(&probes);
    }
    if probes.is_empty() {
        return print("nothing was measured yet: skein net probe --to HOST\n");
    }
    print(&probes.iter().map(|probe| shown(probe, now())).collect::<Vec<_>>().join("\n"))
}

/// Returns in a line each what was measured last, with its age.
pub(super) fn summaries(probes: &[Probe]) -> String {
    let line = |probe: &Probe| {
        let rate = probe
            .together
            .map_or("rates not measured".into(), |all| format!("{} out, {} back", rate(&all.out), rate(&all.back)));
        let wrong = probe.verdict.findings.iter().filter(|finding| finding.kind.is_wrong()).count();
        let wrong =
            if wrong > 0 { format!(", {} (skein net probe --last)", count(wrong, "problem")) } else { String::new() };
        let age = age(probe, now());
        format!("to {}, measured {age}: {rate}{wrong}\n", clean_line(&probe.to))
    };
    probes.iter().map(line).collect()
}

/// Returns when something was measured, in words.
fn age(probe: &Probe, now: u64) -> String {
    match now.saturating_sub(probe.unix_s) {
        0..5 => "now".into(),
        age => format!("{} ago", duration(age * 1000)),
    }
}

fn rate(rate: &MeasuredRate) -> String {
    let unsure = if rate.is_sure() { "" } else { " (unsure: too little was counted)" };
    bps(rate.bits_per_s as f64) + unsure
}

/// Returns a result as text.
fn shown(probe: &Probe, now: u64) -> String {
    let took = duration(probe.took_ms);
    let age = age(probe, now);
    let paths = count(probe.paths.len(), "path");
    let mut text =
        format!("{} to {}: {paths}, measured {age} in {took}\n", clean_line(&probe.from), clean_line(&probe.to));
    for path in &probe.paths {
        let end = |end: &skein_api::ProbedEnd| format!("{} {}", end.nic, end.address);
        let _ = writeln!(text, "  {} > {}", clean_line(&end(&path.local)), clean_line(&end(&path.remote)));
        for line in fields(&details(path)).lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    if let Some(all) = &probe.together {
        text += &fields(&of_all(probe, all));
    }
    if !probe.note.is_empty() {
        let _ = writeln!(text, "  {}", clean_line(&probe.note));
    }
    let _ = writeln!(text, "auto: {}", clean_line(&probe.verdict.auto));
    probe.verdict.findings.iter().for_each(|finding| text += &told(finding));
    text
}

fn details(path: &ProbedPath) -> Vec<(&'static str, String)> {
    let both = |out: &Option<MeasuredRate>, back: &Option<MeasuredRate>| match (out, back) {
        (None, None) => String::new(),
        _ => {
            let of = |of: &Option<MeasuredRate>, way: &str| {
                of.as_ref().map_or(format!("{way} not known"), |of| format!("{} {way}", rate(of)))
            };
            format!("{}, {}", of(out, "out"), of(back, "back"))
        }
    };
    let together = path.together_out_bits_per_s.zip(path.together_back_bits_per_s);
    let together = together.map(|(out, back)| format!("{} out, {} back", bps(out as f64), bps(back as f64)));
    let packets = match (path.passes_bytes, path.lost_bytes, path.round_trip) {
        (_, _, None) => "NONE PASS: it is down".into(),
        _ if path.is_down => "passed at first; IT IS DOWN NOW".into(),
        (Some(passes), Some(lost), _) => format!("{passes} bytes pass, {lost} ARE LOST"),
        (Some(passes), None, _) => format!("up to {passes} bytes pass"),
        (None, ..) => "sizes not known".into(),
    };
    let ms = |us: u64| millis(us as f64 / 1e3);
    let time = path.round_trip.map(|of| format!("{} at best, {} the median", ms(of.least_us), ms(of.median_us)));
    let data = match &path.no_rdma[..] {
        _ if path.over_rdma => "goes over RDMA".to_owned(),
        "" => String::new(),
        why => format!("goes over TCP; no RDMA: {why}"),
    };
    let repeated = [(path.repeated_out_ppm, "out"), (path.repeated_back_ppm, "back")];
    let repeated = repeated.into_iter().filter_map(|(ppm, way)| {
        let ppm = ppm.filter(|ppm| *ppm > 0)?;
        Some(format!("{} {way}", skein_units::measured::percent(ppm as f64 / 1e6)))
    });
    vec![
        ("carries", path.carries.clone()),
        ("round trip", time.unwrap_or_default()),
        ("packets", packets),
        ("data", data),
        ("sent again", repeated.collect::<Vec<_>>().join(", ")),
        ("alone", both(&path.out, &path.back)),
        ("both ways", both(&path.duplex_out, &path.duplex_back)),
        ("with all", together.unwrap_or_default()),
        ("rates", path.note.clone()),
    ]
}

fn of_all(probe: &Probe, all: &Together) -> Vec<(&'static str, String)> {
    let cpu = |host: &str, sends: &UsedCpu, receives: &UsedCpu| {
        format!("{host} {} to send, {} to receive", seconds(sends), seconds(receives))
    };
    let cpus = [cpu(&probe.from, &all.sends, &all.receives), cpu(&probe.to, &all.other_sends, &all.other_receives)];
    vec![("all paths", format!("{} out, {} back", rate(&all.out), rate(&all.back))), ("CPU per GB", cpus.join("; "))]
}

fn seconds(cpu: &UsedCpu) -> String {
    skein_units::measured::seconds(cpu.ms_per_gb as f64 / 1e3)
}

fn told(finding: &ProbeFinding) -> String {
    let head = if finding.kind.is_wrong() { "warning" } else { "note" };
    let mut text = format!("{head}: {}\n", clean_line(&finding.what));
    for (name, words) in [("help", &finding.cure), ("gain", &finding.gain)] {
        if !words.is_empty() {
            let _ = writeln!(text, "  {name}: {}", clean_line(words));
        }
    }
    text
}

fn compared(differences: &[Difference], incomparable: Option<String>, age: u64) -> String {
    let mut text = format!("compared with {} ago:\n", duration(age * 1000));
    for difference in differences {
        let _ = writeln!(text, "  {}", clean(&difference.words()));
    }
    if let Some(words) = incomparable {
        let _ = writeln!(text, "  {words}");
    } else if !differences.iter().any(|difference| difference.is_beyond_noise) {
        text += "  nothing has changed beyond noise\n";
    }
    text
}
