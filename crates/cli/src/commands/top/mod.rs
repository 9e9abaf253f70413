//! `skein top`: this host and its migrations as they go on.

mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use skein_api::{Reply, Request, SAMPLE_PERIOD_MS, SampledHost};

use super::local::{LocalAgent, unexpected};
use super::text::{print, print_to_reader};
use view::View;

/// How long the agent may take to say how busy the host is.
const PATIENCE: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_millis(SAMPLE_PERIOD_MS);

/// This host and its migrations, live: each NIC and core, what is left and for how long, where the bytes go.
///
/// Needs this host's agent, and no controller. In a pipe it prints one picture, in which rates are means over the last
/// fifth of a second.
#[derive(clap::Args)]
#[command(after_help = "\
Keys:
  up, down   another migration
  q          quit

Examples:
  skein top
  skein top --once                                   one picture, for a log
  skein top --json | jq -c '[.nics[].send_bits_per_s]'  five times a second")]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    /// Print one picture, and end
    #[arg(long)]
    once: bool,
    /// A line of JSON for each sample, until it is stopped; with --once only one
    #[arg(long)]
    json: bool,
}

/// # Errors
///
/// The agent cannot be reached, or the terminal cannot be drawn to.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let local = &args.local;
    if args.json {
        loop {
            let is_read = print_to_reader(&format!("{}\n", serde_json::to_string(&measured(local)?)?))?;
            if args.once || !is_read {
                return Ok(ExitCode::SUCCESS);
            }
            thread::sleep(PERIOD);
        }
    }
    if args.once || !io::stdout().is_terminal() {
        print(&View::new(measured(local)?).text(TEXT_COLUMNS))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before the screen is taken: an error is read better without.
    let first = sample(local)?;
    let mut terminal = ratatui::try_init().context("the terminal cannot be drawn to")?;
    let ended = show(&mut terminal, local, View::new(first));
    ratatui::restore();
    ended.map(|()| ExitCode::SUCCESS)
}

/// How wide a picture is that is not drawn to a terminal.
const TEXT_COLUMNS: u16 = 100;

/// Draws until somebody quits.
fn show(terminal: &mut DefaultTerminal, local: &LocalAgent, mut view: View) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| view.draw(frame)).context("the terminal cannot be drawn to")?;
        let until = Instant::now() + PERIOD;
        while event::poll(until.saturating_duration_since(Instant::now())).context("no keys can be read")? {
            let Event::Key(key) = event::read().context("no keys can be read")? else { continue };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Up | KeyCode::Char('k') => view.select(-1),
                KeyCode::Down | KeyCode::Char('j') => view.select(1),
                _ => {}
            }
        }
        view.update(sample(local)?);
    }
}

/// Returns the host as it is now. The first time, nothing is measured yet.
fn sample(local: &LocalAgent) -> anyhow::Result<SampledHost> {
    match local.client().call(&Request::HostSample, PATIENCE)? {
        Reply::HostSample(sample) => Ok(*sample),
        reply => Err(unexpected(&reply).into()),
    }
}

/// Returns the host once it was measured.
fn measured(local: &LocalAgent) -> anyhow::Result<SampledHost> {
    let end = Instant::now() + PATIENCE;
    loop {
        let sample = sample(local)?;
        // The first look at the host has nothing to compare with.
        if !sample.host.cores_permille.is_empty() || Instant::now() >= end {
            return Ok(sample);
        }
        thread::sleep(PERIOD);
    }
}
