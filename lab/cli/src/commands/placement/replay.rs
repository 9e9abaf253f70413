//! `skein-lab placement replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use skein_lab_placement::planetlab::{SAMPLES, Trace, read_trace};
use skein_lab_placement::replay::{Kind, Replay, ReplayReport, Setup, World};
use skein_terminal::{Screen, files, print, print_json, table};

/// The most files of a day: each has four bytes a line.
const TRACES_MAX: usize = 100_000;

/// Play a recorded day to policies of dynamic optimisation, and measure what comes of it
///
/// The hosts and guests are made up by the seed, as docs/placement.md says; what guests use is what was recorded. A
/// policy sees only what was used so far.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-lab placement replay --planetlab planetlab/20110303
  skein-lab placement replay --planetlab planetlab --policy ours --policy greedy --seed 2
  skein-lab placement replay --planetlab planetlab --json | jq '.[] | select(.policy == \"ours\")'")]
pub struct Args {
    /// A day of PlanetLab's traces (a file of 288 lines for each machine), or a directory of such days
    #[arg(long, value_name = "DIR")]
    planetlab: PathBuf,
    /// Who decides; all of them if none is named
    #[arg(long, value_enum, value_name = "POLICY")]
    policy: Vec<Policy>,
    /// How many hosts there are
    #[arg(long, value_name = "N", default_value_t = Setup::default().hosts)]
    hosts: usize,
    /// What part of all hosts' CPU is used, on the average of the day; sizes the hosts
    #[arg(long, value_name = "PART", default_value_t = Setup::default().cpu_used)]
    cpu_used: f64,
    /// What part of their memory is
    #[arg(long, value_name = "PART", default_value_t = Setup::default().memory_used)]
    memory_used: f64,
    /// Draws the sizes of guests
    #[arg(long, value_name = "S", default_value_t = Setup::default().seed)]
    seed: u64,
    /// An array with an object for each day and policy: overload_min, longest_min, left_alone_min, moves,
    /// guest_moves_max, lost
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Policy {
    /// Nobody moves
    Still,
    /// Whoever is above 80 % of its CPU gives guests away until it is not (CloudSim's THR with MMT)
    Thresholds,
    /// One guest a round from the most to the least loaded host, a round every five minutes (Proxmox's way)
    Greedy,
    /// The same with ten rounds every five minutes
    GreedyOften,
    /// Skein's: by a forecast, where it pays
    Ours,
}

impl Policy {
    fn kind(self) -> Kind {
        match self {
            Policy::Still => Kind::Still,
            Policy::Thresholds => Kind::Thresholds,
            Policy::Greedy => Kind::Greedy,
            Policy::GreedyOften => Kind::GreedyOften,
            Policy::Ours => Kind::Ours,
        }
    }
}

/// The result of a policy for a day.
#[derive(Serialize)]
struct Row {
    day: String,
    #[serde(flatten)]
    report: ReplayReport,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let setup = Setup { hosts: args.hosts, cpu_used: args.cpu_used, memory_used: args.memory_used, seed: args.seed };
    let kinds: Vec<Kind> = match &args.policy[..] {
        [] => Kind::ALL.to_vec(),
        named => named.iter().map(|policy| policy.kind()).collect(),
    };
    let interrupt = skein_terminal::interrupt_flag()?;
    let mut rows = Vec::new();
    for day in days(&args.planetlab)? {
        let reports = play(&day, &setup, &kinds, &interrupt)?;
        rows.extend(reports.into_iter().map(|report| Row { day: name(&day), report }));
    }
    match args.json {
        true => print_json(&rows)?,
        false => print(&replay_table(&rows))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Plays a day to some policies.
pub fn play(day: &Path, setup: &Setup, kinds: &[Kind], interrupt: &AtomicBool) -> anyhow::Result<Vec<ReplayReport>> {
    let world = World::new(&read_day(day)?, setup).with_context(|| day.display().to_string())?;
    let mut screen = Screen::new();
    let mut played = |kind: &Kind| -> anyhow::Result<ReplayReport> {
        let mut replay = Replay::new(&world, *kind);
        while replay.step()? {
            ensure!(!interrupt.load(Ordering::Relaxed), "interrupted");
            let (step, moves) = (replay.report().steps, replay.report().moves);
            screen.show(&format!("{}, {}: step {step} of {SAMPLES}, {moves} moves", name(day), kind_name(*kind)));
        }
        Ok(replay.report().clone())
    };
    kinds.iter().map(&mut played).collect()
}

/// Returns the directories in a directory, or the directory itself if there are none.
pub fn days(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let paths = entries(dir)?;
    let days: Vec<PathBuf> = paths.iter().filter(|path| path.is_dir()).cloned().collect();
    match (days.len(), paths.len()) {
        (0, 0) => {
            bail!("{} is empty: it has to have a file for each machine, or a directory for each day", dir.display())
        }
        (0, _) => Ok(vec![dir.to_owned()]),
        _ => Ok(days),
    }
}

fn read_day(dir: &Path) -> anyhow::Result<Vec<Trace>> {
    let paths = entries(dir)?;
    ensure!(paths.len() <= TRACES_MAX, "{} has more than {TRACES_MAX} files", dir.display());
    let read = |path: &PathBuf| {
        // A pipe may never get a writer, and Ctrl-C is only noticed between steps.
        ensure!(
            path.is_file(),
            "{} is no regular file: a day has one for each machine, and nothing else",
            path.display()
        );
        read_trace(&files::read(path)?).with_context(|| path.display().to_string())
    };
    paths.iter().map(read).collect()
}

/// Returns the entries of a directory, in an order that is always the same.
fn entries(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> { std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect() };
    let mut paths = read().with_context(|| format!("cannot read the directory {}", dir.display()))?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the policy's name as it is in JSON.
fn kind_name(kind: Kind) -> String {
    serde_json::to_value(kind).ok().and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or_default()
}

fn replay_table(rows: &[Row]) -> String {
    let row = |Row { day, report }: &Row| {
        [
            day.clone(),
            kind_name(report.policy),
            format!("{:.0} min", report.overload_min),
            format!("{} min", report.longest_min),
            report.moves.to_string(),
            report.guest_moves_max.to_string(),
            format!("{:.3} %", report.lost * 100.0),
        ]
    };
    let heads = ["DAY", "POLICY", "OVERLOADED", "LONGEST", "MOVES", "OF ONE GUEST", "CPU LOST"];
    let rows: Vec<_> = rows.iter().map(row).collect();
    table(heads, &rows)
        + "overloaded: minutes, of all hosts; longest: in which one move could have ended it, in hindsight\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_waited_for_at_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("machine"), "5\n".repeat(SAMPLES)).unwrap();
        assert_eq!(read_day(dir.path()).unwrap().len(), 1);
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = read_day(dir.path()).unwrap_err().to_string();
        assert!(error.contains("pipe is no regular file: a day has one for each machine"), "{error}");
    }
}
