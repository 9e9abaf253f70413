//! Runs a small program of the host's, such as `nft` or `tc`.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Says how long a program may take. In tests a busy machine may be slow to start the program.
const TIME: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 20 });
const PAUSE: Duration = Duration::from_millis(5);

/// A running program, which says its errors in English. It is killed with its owner.
#[derive(Debug)]
pub struct Tool(pub Child);

impl Tool {
    /// Starts a program that hears what its owner writes.
    ///
    /// # Errors
    /// The program cannot be started; `NotFound`: it is not installed.
    pub fn start(command: &mut Command) -> io::Result<Tool> {
        command.env("LC_ALL", "C").stdin(Stdio::piped()).spawn().map(Tool)
    }

    /// Returns whether the program runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + TIME;
        loop {
            match self.0.try_wait()? {
                Some(status) => return Ok(status),
                None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                None => thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program left.
#[derive(Debug)]
pub struct ToolOutput {
    /// How it ended.
    pub status: ExitStatus,
    /// Its output.
    pub out: Vec<u8>,
    /// Its errors.
    pub errors: String,
}

/// Runs a program to its end, of at most 20 s. Input, output and errors are each far less than a pipe holds (64 KiB).
///
/// # Errors
/// The program cannot be run, or does not end; `NotFound`: it is not installed.
pub fn run_tool(program: &str, arguments: &[&str], input: &str) -> io::Result<ToolOutput> {
    let mut command = Command::new(program);
    let mut tool = Tool::start(command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    if let Some(mut stdin) = tool.0.stdin.take() {
        match stdin.write_all(input.as_bytes()) {
            // It has ended before it read all. Its errors say why.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    let status = tool.wait()?;
    let (mut out, mut errors) = (Vec::new(), String::new());
    if let (Some(stdout), Some(stderr)) = (&mut tool.0.stdout, &mut tool.0.stderr) {
        stdout.read_to_end(&mut out)?;
        stderr.read_to_string(&mut errors)?;
    }
    Ok(ToolOutput { status, out, errors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_hears_and_is_heard() {
        let said = run_tool("sh", &["-c", "cat; echo no >&2; exit 3"], "words").unwrap();
        assert_eq!((said.status.code(), said.out.as_slice(), said.errors.as_str()), (Some(3), &b"words"[..], "no\n"));
        assert!(run_tool("true", &[], &"x".repeat(1 << 20)).is_ok(), "one that does not listen");
        assert_eq!(run_tool("no-such-program", &[], "").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
