//! `skein-lab demo`: a guest that agents move, a peer beside it, and an agent that is killed.

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use skein_bench::{
    bench::{self, Adjust, Options, Progress, Tick},
    case,
    mover::Mover,
    results::{CpuSeconds, Run},
};
use skein_terminal::interrupt_flag;
use skein_units::measured;

use super::bench::keep;
use crate::skein::Skein;

/// Have agents move a working guest between two hosts made on this machine, and kill one of them meanwhile.
///
/// Two hosts with two NICs of 1 Gb/s each and an agent on each, and a Linux guest that rewrites its memory and its disk
/// all the time. The agents move it over both NICs, encrypted; then QEMU alone moves the same guest over one NIC. At
/// last it is moved once more, and its agent is killed (kill -9) in the middle and started again. After each move the
/// guest checks all its memory. Needs root; takes about a minute. Fails if the guest was lost, changed, or ran twice.
#[derive(clap::Args)]
pub struct Args {
    /// Where the report goes: one page that needs nothing else.
    #[arg(long, value_name = "FILE", default_value = "skein-demo.html")]
    html: PathBuf,
    /// Write the measurements here too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// RAM of the guest, of which three are needed at once.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(200..=65536))]
    guest_mb: Option<u32>,
    #[command(flatten)]
    skein: Skein,
}

/// What to type to do the same by hand.
const BY_HAND: &str = r#"By hand, on this machine, as root, in the directory of `make demo`:

  PATH=$PWD/target/release:$PATH                     # skein and skein-lab, as you just ran them
  skein-lab up --nics 2 --rate 1000                  # two hosts, a and b; their files and processes are this machine's
  skein ca init --name try --dir ca
  for host in a b; do skein ca issue $host --dir ca --out $host; done
  printf '[[host]]\nname = "%s"\naddress = ["10.77.0.%d", "10.77.1.%d"]\n' a 1 1 b 2 2 >hosts.toml
  for host in a b; do
    skein-lab exec $host -- skein agent --identity $host --hosts hosts.toml \
      --state $PWD/$host/state --run $PWD/$host/run >$host.log 2>&1 &
  done; sleep 2
  export SKEIN_SOCKET=$PWD/a/run/agent.sock          # the agent of a; without it, that of this machine
  printf 'name = "web1"\nmemory = "1 GiB"\n' | skein vm start -
  skein migrate web1 --to b
  skein vm list --socket $PWD/b/run/agent.sock       # web1 is empty: docs/lab.md has a guest that works
  skein-lab down                                     # ends everything in the two hosts

Between real hosts: README.md, "Use it".
"#;

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let case = case::demo();
    let options = Options {
        skein: args.skein.path()?,
        runs: Some(1),
        quick: false,
        movers: None,
        keep: false,
        planetlab: None,
        adjust: Adjust { memory_mb: args.guest_mb, ..Adjust::default() },
        command: std::env::args().collect(),
        interrupt: interrupt_flag()?,
    };
    println!("{}\n", case.shows);
    let mut screen =
        Screen::new(case.stages[0].links.rates_mbit.iter().map(|r| f64::from(r.unwrap_or(0)) * 1e6).collect());
    let results = bench::run(vec![case], &options, &mut |progress, _| screen.show(progress));
    drop(screen);
    let results = results?;
    keep(args.json.as_deref(), Some(&args.html), &results)?;

    let case = &results.cases[0];
    let mut out = std::io::stdout().lock();
    if !results.runs.is_empty() {
        write!(out, "\n{}", table(&results.runs))?;
    }
    let path = std::path::absolute(&args.html).unwrap_or(args.html);
    writeln!(out, "\nThe report, with charts over time: {}", path.display())?;
    if let Some(run) = results.runs.iter().find(|run| !run.intact()) {
        let why = run.error.clone().unwrap_or("THE GUEST IS NOT INTACT".into());
        anyhow::bail!("{}: {why}", run.mover.label());
    }
    anyhow::ensure!(case.complete, "{}", case.notes.last().map_or("not all was shown", String::as_str));
    write!(out, "\n{BY_HAND}")?;
    Ok(())
}

/// Shows the progress: on a terminal a line for the migration and one for each NIC, which are updated; elsewhere a line
/// now and then.
struct Screen {
    capacity_bps: Vec<f64>,
    bars: Option<Bars>,
    mover: Mover,
    last_shown_at: Option<Instant>,
}

struct Bars {
    all: MultiProgress,
    total: ProgressBar,
    nics: Vec<ProgressBar>,
}

/// A NIC with less than this rate carries no guest.
const IDLE_BPS: f64 = 1e6;

/// The time between two lines where nothing can be updated.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Screen {
    fn new(capacity_bps: Vec<f64>) -> Self {
        let bars = std::io::stdout().is_terminal().then(|| {
            let all = MultiProgress::new();
            let style = |template| ProgressStyle::with_template(template).expect("is a template").progress_chars("=> ");
            let total =
                all.add(ProgressBar::new(1).with_style(style("  {prefix:6} [{bar:40}] {msg}")).with_prefix("guest"));
            let gauge = style("  {prefix:6} [{bar:40}] {msg}").progress_chars("# ");
            let nic = |n: usize| ProgressBar::new(1).with_style(gauge.clone()).with_prefix(format!("nic{n}"));
            let nics = (0..capacity_bps.len()).map(|n| all.add(nic(n))).collect();
            Bars { all, total, nics }
        });
        Self { capacity_bps, bars, mover: Mover::SkeinAgents, last_shown_at: None }
    }

    fn line(&self, text: &str) {
        match &self.bars {
            // This fails only if the terminal is gone.
            Some(bars) => drop(bars.all.println(text)),
            None => println!("{text}"),
        }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Stage(stage) => self.line(&format!(
                "Making two hosts with {} NICs each, starting their agents, booting a guest of {} MiB that fills {} \
                 MiB, \
                 twice ...",
                stage.links.rates_mbit.len(),
                stage.guest.memory_mb,
                stage.guest.fill_mb
            )),
            Progress::Ready(took) => self.line(&format!("Ready after {}.", measured::seconds(took.as_secs_f64()))),
            Progress::Moving(mover, ..) => {
                self.mover = *mover;
                self.last_shown_at = None;
                self.line(&match mover.is_of_agents() {
                    true => "Moving it as `skein migrate` does: both agents, both NICs, TLS".into(),
                    false => format!("Moving it without Skein: {}, one NIC, plain text", mover.label()),
                });
            }
            Progress::Tick(tick) => self.tick(tick),
            Progress::Moved(run) => {
                if let Some(bars) = &self.bars {
                    for bar in std::iter::once(&bars.total).chain(&bars.nics) {
                        bar.set_position(0);
                        bar.set_message("");
                    }
                }
                self.line(&match (&run.error, run.total_s) {
                    (None, Some(total)) => format!("  done in {}", measured::seconds(total)),
                    (error, _) => format!("  it did not arrive: {}", error.as_deref().unwrap_or("no reason known")),
                });
            }
            Progress::Skipped(skipped) => {
                self.line(&format!("{} is skipped: {}", skipped.mover.label(), skipped.why));
            }
            Progress::Note(note) => self.line(note),
            Progress::Case(..) | Progress::Yardstick(_) | Progress::Judged => {}
        }
    }

    fn tick(&mut self, tick: &Tick<'_>) {
        let rate: f64 = tick.nic_bps.iter().sum();
        let left_s = tick.left_bytes as f64 * 8.0 / rate.max(1.0);
        let all_bytes = tick.sent_bytes + tick.left_bytes;
        let moved = match (tick.sent_bytes, rate < IDLE_BPS) {
            (0, _) if self.mover.is_of_agents() => "check, start of the target's QEMU, set-up".to_string(),
            (0, _) => "QEMU sets up".to_string(),
            (sent, true) => format!("{} of {}", measured::bytes(sent as f64), measured::bytes(all_bytes as f64)),
            (sent, false) => {
                format!("{} of {}, {left_s:.0} s left", measured::bytes(sent as f64), measured::bytes(all_bytes as f64))
            }
        };
        let nic = |n: usize| {
            let capacity = measured::nominal(self.capacity_bps[n] as u64);
            match tick.nic_bps[n] {
                bps if bps < IDLE_BPS => "idle".to_string(),
                bps => format!("{} of {capacity}", measured::bps(bps)),
            }
        };
        match &self.bars {
            Some(bars) => {
                bars.total.set_length(all_bytes.max(1));
                bars.total.set_position(tick.sent_bytes);
                bars.total.set_message(moved);
                for (n, bar) in bars.nics.iter().enumerate() {
                    bar.set_length(self.capacity_bps[n] as u64);
                    bar.set_position(tick.nic_bps[n].min(self.capacity_bps[n]) as u64);
                    bar.set_message(nic(n));
                }
            }
            // Nothing is left, and the migration is about to end.
            None if tick.sent_bytes > 0 && tick.left_bytes == 0 && rate < IDLE_BPS => {}
            None if self.last_shown_at.is_none_or(|told| told.elapsed() >= TELL_EVERY) => {
                self.last_shown_at = Some(Instant::now());
                let nics: Vec<String> = (0..tick.nic_bps.len()).map(|n| format!("nic{n} {}", nic(n))).collect();
                println!("  {:4.1} s  {moved}; {}", tick.elapsed.as_secs_f64(), nics.join("; "));
            }
            None => {}
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bars) = &self.bars {
            let _ = bars.all.clear();
        }
    }
}

/// Returns a table of the runs side by side.
fn table(runs: &[Run]) -> String {
    let or = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, cell: &dyn Fn(&Run) -> String| {
        rows.push(std::iter::once(name.to_string()).chain(runs.iter().map(cell)).collect());
    };
    row("", &|run| run.mover.label().into());
    row("", &|run| {
        (if run.mover.is_skein() { "encrypted, over both NICs" } else { "plain text, over one NIC" }).into()
    });
    row("total time", &|run| match &run.error {
        Some(_) => "did not arrive".into(),
        None => or(run.total_s.map(measured::seconds)),
    });
    row("with check, target's start, handover", &|run| or(run.whole_s().map(measured::seconds)));
    row("downtime as QEMU reports it", &|run| or(run.downtime_ms.map(measured::millis)));
    row("downtime as the guest saw it", &|run| or(run.guest_switchover_ms.map(measured::millis)));
    row("downtime as a pinger saw it", &|run| or(run.ping_gap_ms.map(measured::millis)));
    for link in 0..runs.first().map_or(0, |run| run.link_bps.len()) {
        row(&format!("nic{link}, mean over the transfer"), &|run| or(nic_rate(run, link)));
    }
    row("CPU at the source, s/GB", &|run| or(cpu_per_gb(run, run.cpu_source_s)));
    row("CPU at the target, s/GB", &|run| or(cpu_per_gb(run, run.cpu_target_s)));
    row("guest's verdict on its memory", &|run| match &run.guest_verdict {
        Some(verdict) if verdict.ok => format!("intact ({} pages)", verdict.pages),
        Some(verdict) => format!("{} of {} PAGES WRONG", verdict.bad_pages, verdict.pages),
        None => "-".into(),
    });
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join("   ").trim_end();
        text += "\n";
    }
    text + "(CPU: QEMU's part in the migration + the mover's processes)\n"
}

/// Returns what a NIC of the source sent from the first to the last byte, compared with what its wire can carry.
fn nic_rate(run: &Run, link: usize) -> Option<String> {
    let seconds = run.last_byte_s? - run.first_byte_s?;
    let nic = format!("nic{link}");
    let sent = run.wire_bytes.iter().find(|n| n.host == run.source && n.nic == nic)?.tx_bytes;
    let bps = sent as f64 * 8.0 / seconds;
    if bps < IDLE_BPS {
        return Some("unused".into());
    }
    let share =
        run.link_bps[link].map_or(String::new(), |capacity| format!(" ({:.0} %)", bps / capacity as f64 * 100.0));
    Some(measured::bps(bps) + &share)
}

fn cpu_per_gb(run: &Run, cpu: CpuSeconds) -> Option<String> {
    let gb = run.guest_bytes as f64 / 1e9;
    (gb > 0.0).then(|| {
        let mover =
            if run.mover.is_skein() { format!(" + {}", measured::digits(cpu.mover / gb)) } else { String::new() };
        measured::digits(cpu.qemu / gb) + &mover
    })
}
