//! Shows progress on standard error: one line on a terminal, which is rewritten, or else a line now and
//! then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The time between two lines if there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// Where progress is shown.
pub struct Screen {
    bar: Option<ProgressBar>,
    line: Instant,
}

impl Screen {
    /// Returns a screen that shows nothing yet.
    pub fn new() -> Screen {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}").expect("is a template");
            ProgressBar::new_spinner().with_style(style)
        });
        Screen { bar, line: Instant::now() }
    }

    /// Shows the progress.
    pub fn show(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(text.to_owned());
                bar.tick();
            }
            None if self.line.elapsed() >= LINE_PERIOD => {
                self.line = Instant::now();
                eprintln!("{text}");
            }
            None => {}
        }
    }
}

impl Default for Screen {
    fn default() -> Screen {
        Screen::new()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
