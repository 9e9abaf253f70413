//! `skein placement check`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use serde::Serialize;
use skein_placement_command::{EXIT_CODES, Unit, success_if};
use skein_placement_model::cluster::{Check, Clash, Complaint, History, Survived, check};
use skein_terminal::files;
use skein_units::duration;

use super::cluster::ClusterFile;
use crate::commands::text::{clean, moment, print, print_json};

/// Say what is broken now and since when, and which rules can never hold together
///
/// Hard rules and overload are broken; soft rules and preferences are not as they should be, and cost. Rules that
/// clash, are about nobody or compare a property that is not set are told once more each time, as they have to be
/// corrected by whoever wrote them.
#[derive(clap::Args)]
#[command(after_help = format!("\
Examples:
  skein placement check --cluster cluster.yaml
  skein placement check --cluster cluster.yaml --history since.json    for cron: since when is kept in since.json
  skein placement check --cluster cluster.yaml --json | jq '.complaints[] | select(.hard)'

{EXIT_CODES}
     (rules that clash count as broken; so do rules, soft ones too, about nobody or about a property that is not \
     set)"))]
pub struct Args {
    /// The cluster: YAML or JSON, see docs/cluster-file.md
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Since when what is broken has been: read if it is there, and written
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// An object: complaints (the worst first by gravity, see docs/placement.md; since in seconds since 1970), clashes,
    /// cost (microseconds), survived (of `survive`: failures, sets, tried, survived)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    check: &'a Check,
    clashes: &'a [Clash],
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let source = ClusterFile::read(&args.cluster)?;
    let history = files::output(args.history.as_deref(), &[&args.cluster])?;
    let known = history.map_or(Ok(History::default()), read_history)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?.as_secs();
    let compiled = &source.compiled;
    let (check, next) = check(compiled, &compiled.problem.initial, &known, now);
    if let Some(path) = history {
        files::write(path, &(serde_json::to_string_pretty(&next)? + "\n"))?;
    }
    if args.json {
        print_json(&Report { check: &check, clashes: &compiled.clashes })?;
    } else {
        print(&clean(&(check_text(&check, history.map(|_| now)) + &source.clashes())))?;
    }
    Ok(success_if(check.is_valid() && compiled.clashes.is_empty()))
}

fn read_history(path: &Path) -> anyhow::Result<History> {
    // An empty file was made by `mktemp` or `touch`.
    if !path.exists() || std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Ok(History::default());
    }
    let text = files::read(path)?;
    serde_json::from_str(&text).with_context(|| {
        format!("{} is not what --history writes: remove it to begin anew, or name another file", path.display())
    })
}

/// Returns a line for each complaint, with since when if an earlier check is known.
pub fn check_text(check: &Check, now: Option<u64>) -> String {
    let survived = check.survived.as_ref().map_or_else(String::new, survived);
    if check.complaints.is_empty() {
        return survived + "nothing is broken\n";
    }
    let line = |complaint: &Complaint| {
        let hard = if complaint.hard { "broken" } else { "not as it should be" };
        let since = now.map_or_else(String::new, |now| since(complaint.since, now));
        let rule = complaint.rule.as_ref().map_or_else(String::new, |rule| format!(" [{rule}]"));
        format!("{hard}{since}: {}{rule}\n", complaint.what)
    };
    let lines: String = check.complaints.iter().map(line).collect();
    let cost = Unit::Seconds.text(check.cost);
    // Only soft rules have a cost in the sum: a hard rule has no price.
    let sum = match check.is_valid() {
        true => format!("all of it costs {cost}"),
        false => format!("what is broken has no price; all else costs {cost}"),
    };
    format!("{survived}{lines}{sum}\n")
}

/// Returns the result of letting hosts fail, in words.
fn survived(told: &Survived) -> String {
    let Survived { failures, sets, tried, survived, impossible } = told;
    let hosts = if *failures == 1 { "any host".into() } else { format!("any {failures} hosts at once") };
    let rest = match sets - tried {
        0 => String::new(),
        rest => format!("; {rest} more were not tried, of hosts that are less full"),
    };
    let never = impossible.as_ref().map_or_else(String::new, |why| format!("; no placement survives all: {why}"));
    format!("{hosts} may fail: guests find room in {survived} of {tried} cases{rest}{never}\n")
}

fn since(since: u64, now: u64) -> String {
    let at = i64::try_from(since).ok().and_then(|second| jiff::Timestamp::from_second(second).ok());
    let at = at.map_or_else(|| since.to_string(), |at| moment(&at.to_string()));
    format!(" since {at} UTC ({})", duration(now.saturating_sub(since).saturating_mul(1000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told() {
        assert_eq!(since(1_700_000_000, 1_700_000_065), " since 2023-11-14 22:13:20 UTC (65 s)");
        assert_eq!(since(u64::MAX, 0), format!(" since {} UTC (0 ms)", u64::MAX));
    }
}
