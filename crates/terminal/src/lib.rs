//! What the programs share at their edge: files, output, progress, interrupts, the log, manual pages, completions.

pub mod files;
mod generated;
mod screen;
mod text;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use generated::{completions, write_manual_pages};
pub use screen::Screen;
pub use text::{clean, clean_line, count, print, print_json, print_to_reader, table};

/// Sends the log to standard error: what `SKEIN_LOG` asks for; without it, `info` and above. Call this once, before
/// anything else.
pub fn log_to_stderr() {
    let filter = log_filter(&std::env::var("SKEIN_LOG").unwrap_or_default());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}

/// Parses a level, or levels of modules: `debug`, `info,skein_agent=trace`. An empty or invalid text means `info`.
fn log_filter(wanted: &str) -> Targets {
    // Not an EnvFilter: its matching of spans and fields, which nobody asks for, needs a regular expression engine of
    // 0.5 MB.
    let all = || Targets::new().with_default(LevelFilter::INFO);
    if wanted.is_empty() { all() } else { wanted.parse().unwrap_or_else(|_| all()) }
}

/// Prints an error and all its causes to standard error, in one line that begins with the program's name.
pub fn print_error(program: &str, error: &anyhow::Error) {
    // The chain is printed only here: no Display repeats its source. The chain may quote a file's content.
    let chain = error.chain().map(|e| e.to_string()).collect::<Vec<_>>().join(": ");
    eprintln!("{program}: {}", clean(&chain));
}

/// Returns a flag that SIGINT or SIGTERM sets. The second of these signals ends the program at once, with exit code
/// 130.
///
/// # Errors
/// The signals cannot be handled.
pub fn interrupt_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal must find the flag unset.
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .context("cannot handle signals")?;
    }
    Ok(flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_what_is_asked_for() {
        let of = |wanted, module| {
            let filter = log_filter(wanted);
            [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE]
                .map(|level| filter.would_enable(module, &level.into_level().unwrap()))
        };
        for unclear in ["", "debug=loud", "a=b=c"] {
            assert_eq!(of(unclear, "skein_agent"), [true, false, false], "{unclear:?}");
        }
        assert_eq!(of("debug", "skein_agent::peers"), [true, true, false]);
        assert_eq!(of("warn", "skein_agent"), [false; 3]);
        assert_eq!(of("info,skein_agent=trace", "skein_agent::peers"), [true; 3]);
        assert_eq!(of("info,skein_agent=trace", "skein_link"), [true, false, false]);
    }
}
