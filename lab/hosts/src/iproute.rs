//! Runs `ip` and `tc` on a batch of lines.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};

/// The time for a batch. It is far more than any takes: hundreds of interfaces are made in a second.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why iproute2 did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum IprouteError {
    /// The tool is not installed, or not in `PATH`.
    #[error("cannot run `{tool}`: install it (Debian: `apt install iproute2`)")]
    Start {
        /// The tool: `ip` or `tc`.
        tool: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The tool's input could not be written, or its answer not be read.
    #[error("cannot talk to `{tool}`")]
    Talk {
        /// The tool: `ip` or `tc`.
        tool: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The tool refused a line.
    #[error("`{tool} {line}` failed{within}: {message}")]
    Failed {
        /// The tool: `ip` or `tc`.
        tool: &'static str,
        /// The first line that failed.
        line: String,
        /// ` in namespace NAME`, or an empty text.
        within: String,
        /// What the tool printed.
        message: String,
    },
    /// The tool did not end in time and was killed.
    #[error("`{tool}` did not end within {} s", DEADLINE.as_secs())]
    Late {
        /// The tool: `ip` or `tc`.
        tool: &'static str,
    },
}

/// Runs `tool -batch` on `lines`, within the namespace `netns` if there is one. Stops at the first line that fails.
///
/// # Errors
///
/// [`IprouteError::Failed`] with the line, or why the tool did not run.
pub fn batch(tool: &'static str, netns: Option<&str>, lines: &[String]) -> Result<(), IprouteError> {
    if lines.is_empty() {
        return Ok(());
    }
    tracing::debug!(tool, netns, ?lines, "batch");
    let talk = |source| IprouteError::Talk { tool, source };
    // These are files in memory and not pipes, so neither side can wait for the other.
    let mut input = memory().map_err(talk)?;
    writeln!(input, "{}", lines.join("\n")).and_then(|()| input.seek(SeekFrom::Start(0))).map_err(talk)?;
    let mut output = memory().map_err(talk)?;
    let mut command = Command::new(tool);
    if let Some(netns) = netns {
        command.args(["-n", netns]);
    }
    command.args(["-batch", "-"]).stdin(input).stdout(Stdio::null()).stderr(output.try_clone().map_err(talk)?);
    let mut child = command.spawn().map_err(|source| IprouteError::Start { tool, source })?;
    let started = Instant::now();
    let status = loop {
        match child.try_wait().map_err(talk)? {
            Some(status) => break status,
            None if started.elapsed() > DEADLINE => {
                child.kill().and_then(|()| child.wait()).map_err(talk)?;
                return Err(IprouteError::Late { tool });
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    output.seek(SeekFrom::Start(0)).and_then(|_| output.read_to_string(&mut said)).map_err(talk)?;
    let (line, message) = failure(&said, lines);
    let within = netns.map(|name| format!(" in namespace {name}")).unwrap_or_default();
    Err(IprouteError::Failed { tool, line, within, message })
}

fn memory() -> io::Result<File> {
    Ok(memfd_create("iproute", MFdFlags::MFD_CLOEXEC)?.into())
}

/// Returns the line that failed (iproute2 ends with `Command failed -:NUMBER`), and what the tool printed about it.
fn failure(said: &str, lines: &[String]) -> (String, String) {
    let number = said.lines().rev().find_map(|l| l.strip_prefix("Command failed -:")?.trim().parse::<usize>().ok());
    let line = number.and_then(|n| lines.get(n.checked_sub(1)?)).unwrap_or(&lines[0]);
    let message: Vec<_> = said.lines().filter(|l| !l.starts_with("Command failed")).map(str::trim).collect();
    (line.clone(), message.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_failed_is_named() {
        let lines = ["link set lo up".to_owned(), "link set nope up".to_owned()];
        let (line, message) = failure("Cannot find device \"nope\"\nCommand failed -:2\n", &lines);
        assert_eq!((line.as_str(), message.as_str()), ("link set nope up", "Cannot find device \"nope\""));
        assert_eq!(failure("Command failed -:9\n", &lines).0, "link set lo up");
    }

    #[test]
    fn a_line_that_is_refused() {
        let error = batch("ip", None, &["link set no-such-nic up".to_owned()]).unwrap_err();
        let IprouteError::Failed { line, .. } = &error else { panic!("{error}") };
        assert_eq!(line, "link set no-such-nic up");
        assert!(matches!(batch("no-such-tool", None, &lines()), Err(IprouteError::Start { .. })));
        assert!(batch("no-such-tool", None, &[]).is_ok());
    }

    fn lines() -> Vec<String> {
        vec!["link show lo".to_owned()]
    }
}
