//! Is a QEMU that ends with its starter.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::process::child::{Killed, collect, text};
use crate::process::error::Error;
use crate::process::start::first_connection;
use crate::qmp::client::Qmp;

/// Bounds the wait for the last words of a QEMU that has ended. The words come at once, unless this host is busy
/// or a descendant keeps the pipe open.
const LAST_WORDS_TIME: Duration = Duration::from_secs(10);

/// A running QEMU. Killed when dropped.
#[derive(Debug)]
pub struct Qemu {
    child: Killed,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// The QEMU's control socket.
    pub qmp: Qmp,
    command_line: Vec<OsString>,
}

impl Qemu {
    /// Starts QEMU and waits up to `deadline` until it answers.
    ///
    /// `command` makes the command that runs a program: [`Command::new`], or a command that runs it elsewhere, such as
    /// in a network namespace. The command must end in an `exec` of the program, so that its process is QEMU's.
    pub fn start(config: &Config, command: impl FnOnce(&Path) -> Command, deadline: Duration) -> Result<Self, Error> {
        let end = Instant::now() + deadline;
        let program = config.program();
        let mut command = command(&program);
        command.args(config.arguments()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let command_line =
            std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_owned).collect();
        // A socket left over by an earlier QEMU would be connected to in place of the new one's.
        let _ = std::fs::remove_file(&config.qmp);
        let mut child = Killed(command.spawn().map_err(|source| Error::Start { program, source })?);
        let stderr = Arc::default();
        let reader = collect(child.0.stderr.take().expect("is piped"), Arc::clone(&stderr));

        let ended = || match child.0.try_wait().map_err(Error::Process)? {
            None => Ok(()),
            Some(status) => {
                // The reader gets time to see the last words.
                let end = Instant::now() + LAST_WORDS_TIME;
                while !reader.is_finished() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Error::Ended { status: status.to_string(), stderr: text(&stderr) })
            }
        };
        let qmp = first_connection(|wait| Qmp::connect(&config.qmp, wait), ended, || text(&stderr), end)?;
        Ok(Self { child, stderr, qmp, command_line })
    }

    /// Returns QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns the whole command line as it was run, with its wrapper.
    pub fn command_line(&self) -> &[OsString] {
        &self.command_line
    }

    /// Returns the end of what QEMU wrote to standard error.
    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Returns the CPU time that QEMU has used so far, of all threads.
    pub fn cpu_time(&self) -> Result<Duration, Error> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).map_err(Error::Process)?;
        // proc(5): fields 14 and 15 are in ticks. The name before them is in parentheses and may hold anything.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 =
            after_name.split_ascii_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        // SAFETY: sysconf takes no pointers.
        let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
        Ok(Duration::from_millis(ticks * 1000 / hz))
    }

    /// Returns how QEMU ended, if it did.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.0.try_wait().map_err(Error::Process)
    }

    /// Waits up to `deadline` for QEMU to end.
    pub fn wait(&mut self, deadline: Duration) -> Result<Option<ExitStatus>, Error> {
        let end = Instant::now() + deadline;
        loop {
            let status = self.try_wait()?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills QEMU now, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::qmp::error::QmpError;

    fn scratch() -> PathBuf {
        std::env::temp_dir().join(format!("skein-qemu-test-{}", std::process::id()))
    }

    #[test]
    fn a_program_that_is_not_there() {
        let mut config = Config::new("vm", 65_536, scratch());
        config.binary = Some("/nonexistent/qemu".into());
        let error = Qemu::start(&config, |p| Command::new(p), Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, Error::Start { .. }));
    }

    #[test]
    fn a_program_that_ends_says_why() {
        let config = Config::new("vm", 65_536, scratch());
        let shell = |_: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no such machine >&2; exit 3"]);
            command
        };
        let error = Qemu::start(&config, shell, Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.to_string(), "QEMU ended with exit status: 3: no such machine");
    }

    #[test]
    fn a_program_that_never_answers_is_killed() {
        let config = Config::new("vm", 65_536, scratch());
        // This number names the process, while the process is a shell and when `sleep` has taken its place.
        let seconds = format!("60.{:09}", std::process::id());
        let script = format!("exec sleep {seconds}");
        let shell = move |_: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            command
        };
        let error = Qemu::start(&config, shell, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, Error::Qmp { source: QmpError::Connect { .. }, .. }), "{error:?}");
        let is_named = |process: std::fs::DirEntry| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&seconds)
        };
        assert!(!std::fs::read_dir("/proc").unwrap().flatten().any(is_named));
    }
}
