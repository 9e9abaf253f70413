//! `skein-lab bench`.

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use skein_bench::{
    bench::{self, Adjust, Options, Progress},
    case,
    measured_page::Figures,
    mover::Mover,
    report,
    results::{CaseResult, Results, Run},
};
use skein_terminal::interrupt_flag;
use skein_units::measured;

use crate::skein::Skein;

/// Measure migrations: Skein and its peers, side by side in one run.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// The cases: name, figure, what it shows.
    List,
    /// Run cases: n rounds back and forth, movers taking turns, highest and lowest dropped.
    ///
    /// Makes two hosts on this machine for each stage of a case, boots a guest, and moves it. Needs root. Results are
    /// written after every migration, so that a bench that is ended early leaves what it has.
    Run(Box<RunArgs>),
    /// Draw the report of an earlier run again.
    Report {
        /// What `--json` wrote.
        json: PathBuf,
        /// The page to write.
        #[arg(long, value_name = "FILE")]
        html: PathBuf,
    },
    /// Take runs' figures into docs/measured.json, and make docs/measured.md from it.
    ///
    /// A case that did not run to its end is left as it was. Exits with 1 if a case then has no figure, or an outdated
    /// one.
    Figures {
        /// What `--json` wrote; without any, only the page is made again.
        #[arg(value_name = "JSON")]
        runs: Vec<PathBuf>,
        /// Where measured.json and measured.md are.
        #[arg(long, value_name = "DIRECTORY", default_value = "docs")]
        docs: PathBuf,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// Cases; all of them if none is named.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only the strongest peer, three rounds, at most four minutes a case.
    #[arg(long)]
    quick: bool,
    /// Rounds; 10, or 3 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Only these movers, in this order; each case's own if not given.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    movers: Option<Vec<Mover>>,
    /// Write every run and every case here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report here: one page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Leave the last stage's hosts standing, for a look with `skein-lab`.
    #[arg(long)]
    keep: bool,
    /// The QEMU to use; $SKEIN_QEMU or qemu-system-x86_64 if not given.
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// That QEMU's firmware directory, if it is not installed.
    #[arg(long, value_name = "DIRECTORY")]
    firmware: Option<PathBuf>,
    /// Machine type of guests, such as pc-q35-7.2.
    #[arg(long, value_name = "TYPE")]
    machine: Option<String>,
    /// MTU of all links, in bytes.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// RAM of guests in MiB; what they fill of it changes in proportion.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(128..))]
    guest_mb: Option<u32>,
    /// Virtual CPUs of guests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    vcpus: Option<u32>,
    /// Give guests anonymous memory instead of a shared memfd; all movers get the same.
    #[arg(long)]
    anonymous: bool,
    /// A day of PlanetLab's traces (a file of 288 lines for each machine), or a directory of such days: the loads of
    /// fleet-1000's guests; drawn from a seed if not given.
    #[arg(long, value_name = "DIR")]
    planetlab: Option<PathBuf>,
    /// QEMU's downtime-limit for all movers, in milliseconds; the case's if not given, mostly 300.
    #[arg(long, value_name = "MS")]
    downtime_limit_ms: Option<u64>,
    #[command(flatten)]
    skein: Skein,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::List => list(),
        Command::Run(args) => measure(*args),
        Command::Report { json, html } => write_whole(&html, &report::page(&read(&json)?)),
        Command::Figures { runs, docs } => figures(&runs, &docs),
    }
}

/// Reads what `--json` of this version wrote.
fn read<T: serde::de::DeserializeOwned>(json: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(json).with_context(|| format!("reading {}", json.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not what this version writes", json.display()))
}

fn figures(runs: &[PathBuf], docs: &Path) -> anyhow::Result<()> {
    let (json, all) = (docs.join("measured.json"), case::all());
    let mut figures: Figures = read(&json)?;
    for run in runs {
        for case in figures.take(&read(run)?, &all) {
            eprintln!("{}: {case} did not run to its end, or is no case any more: left as it was", run.display());
        }
    }
    write_whole(&json, &(serde_json::to_string_pretty(&figures)? + "\n"))?;
    write_whole(&docs.join("measured.md"), &figures.page())?;
    let lacking = figures.lacking(&all);
    anyhow::ensure!(lacking.is_empty(), "{}", lacking.join("\n"));
    Ok(())
}

fn list() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for case in case::all() {
        writeln!(out, "{}\n    {}", case.name, case.shows)?;
        for part in case.figure().split("; ") {
            writeln!(out, "    - {part}")?;
        }
    }
    Ok(())
}

fn measure(args: RunArgs) -> anyhow::Result<()> {
    let cases = if args.names.is_empty() { case::all() } else { bench::select(&args.names)? };
    let options = Options {
        skein: args.skein.path()?,
        runs: args.runs,
        quick: args.quick,
        movers: args.movers,
        keep: args.keep,
        planetlab: args.planetlab.map(std::path::absolute).transpose().context("cannot find the traces")?,
        adjust: Adjust {
            qemu: args.qemu,
            firmware: args.firmware,
            machine: args.machine,
            mtu: args.mtu,
            memory_mb: args.guest_mb,
            vcpus: args.vcpus,
            memory: if args.anonymous { bench::MemoryBackend::Anonymous } else { bench::MemoryBackend::Memfd },
            downtime_limit_ms: args.downtime_limit_ms,
        },
        command: std::env::args().collect(),
        interrupt: interrupt_flag()?,
    };
    let mut screen = Screen::new();
    let mut kept = Ok(());
    let results = bench::run(cases, &options, &mut |progress, results| {
        screen.show(progress, results);
        if kept.is_ok() && matches!(progress, Progress::Moved(_) | Progress::Judged) {
            kept = keep(args.json.as_deref(), None, results);
        }
    });
    drop(screen);
    kept?;
    let results = results?;
    keep(args.json.as_deref(), args.html.as_deref(), &results)?;
    let mut out = std::io::stdout().lock();
    write!(out, "\n{}", verdicts(&results.cases))?;
    for file in [&args.json, &args.html].into_iter().flatten() {
        writeln!(out, "wrote {}", file.display())?;
    }
    let incomplete: Vec<&str> = results.cases.iter().filter(|c| !c.complete).map(|c| c.case.as_str()).collect();
    anyhow::ensure!(incomplete.is_empty(), "not all could be run, see above: {}", incomplete.join(", "));
    Ok(())
}

/// Writes results, whole or not at all.
pub fn keep(json: Option<&Path>, html: Option<&Path>, results: &Results) -> anyhow::Result<()> {
    if let Some(path) = json {
        write_whole(path, &(serde_json::to_string(results)? + "\n"))?;
    }
    if let Some(path) = html {
        write_whole(path, &report::page(results))?;
    }
    Ok(())
}

fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// Returns a table of cases: figure, measured, met.
fn verdicts(cases: &[CaseResult]) -> String {
    let mut text = String::new();
    for case in cases {
        for (n, part) in case.parts.iter().enumerate() {
            let name = if n == 0 { case.case.as_str() } else { "" };
            let met = match part.met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "not judged",
            };
            text += &format!("{name:17} {met:10} {}: {}\n", part.figure, part.measured);
        }
    }
    text
}

/// Shows the progress of a bench: a line for each event, and on a terminal a line that is updated.
struct Screen {
    bar: Option<ProgressBar>,
}

impl Screen {
    fn new() -> Self {
        Self { bar: std::io::stdout().is_terminal().then(ProgressBar::no_length) }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => println!("{text}"),
        }
    }

    fn moving(&self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
            bar.tick();
        }
    }

    fn show(&mut self, progress: &Progress<'_>, results: &Results) {
        match progress {
            Progress::Case(case, n, of) => {
                if let Some(bar) = &self.bar {
                    bar.set_style(ProgressStyle::with_template("  {spinner} {msg}").expect("is a template"));
                    bar.enable_steady_tick(Duration::from_millis(120));
                }
                self.line(&format!("[{n}/{of}] {}: {}", case.name, case.shows));
            }
            Progress::Stage(stage) => {
                if !stage.name.is_empty() {
                    self.line(&format!("  stage '{}'", stage.name));
                }
                self.moving("hosts, links, guests".into());
            }
            Progress::Ready(took) => {
                self.line(&format!("  guests are ready after {}", measured::seconds(took.as_secs_f64())))
            }
            Progress::Yardstick(y) => {
                let each: Vec<String> = y.iperf3_bps.iter().map(|&bps| measured::bps(bps)).collect();
                let sum = measured::bps(y.iperf3_bps.iter().sum());
                self.line(&format!("  iperf3 on all links together: {sum} ({})", each.join(" + ")));
            }
            Progress::Skipped(skipped) => self.line(&format!("  {} is skipped: {}", skipped.mover, skipped.why)),
            Progress::Moving(mover, round, of) => self.moving(format!("{mover}, round {round} of {of}")),
            Progress::Tick(tick) => {
                let nics: Vec<String> =
                    tick.nic_bps.iter().enumerate().map(|(n, &bps)| format!("nic{n} {}", measured::bps(bps))).collect();
                self.moving(format!(
                    "{:5.1} s  {} sent, {} left  {}",
                    tick.elapsed.as_secs_f64(),
                    measured::bytes(tick.sent_bytes as f64),
                    measured::bytes(tick.left_bytes as f64),
                    nics.join("  ")
                ));
            }
            Progress::Moved(run) => self.line(&format!("  {}", moved(run))),
            Progress::Judged => {
                if let Some(case) = results.cases.last() {
                    for line in verdicts(std::slice::from_ref(case)).lines() {
                        self.line(&format!("  {line}"));
                    }
                }
            }
            Progress::Note(note) => self.line(&format!("  {note}")),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns one run in one line.
fn moved(run: &Run) -> String {
    let mut text = format!("{:18} round {:<2} {} to {}", run.mover, run.round, run.source, run.target);
    if run.guest > 0 {
        text += &format!(", guest {}", run.guest);
    }
    if let Some(error) = &run.error {
        return format!("{text}: {error}");
    }
    let or = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    text += &format!(
        "  {:>7}  {:>10}  downtime {} (guest {})",
        or(run.total_s.map(measured::seconds)),
        or(run.goodput_bps().map(measured::bps)),
        or(run.downtime_ms.map(measured::millis)),
        or(run.guest_switchover_ms.map(measured::millis)),
    );
    text += &format!(
        "  {} on the wire, {} CPU a GB",
        measured::bytes(run.all_wire_bytes() as f64),
        or(run.cpu_s_per_gb().map(measured::seconds)),
    );
    if let Some(whole_s) = run.whole_s() {
        text += &format!("  {} from the order on", measured::seconds(whole_s));
    }
    if !run.intact() {
        text += "  THE GUEST IS NOT INTACT";
    }
    text
}
