//! Programs that run beside a migration: they are started in a host, and ended with all their descendants.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::usage;

/// The time from SIGTERM to SIGKILL.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// The time between two checks of something that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Why a program cannot be run, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program does not start.
    #[error("cannot run {program}: is it installed?")]
    Start {
        /// The program's name.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The program cannot be killed.
    #[error("cannot kill {program}")]
    Kill {
        /// The program's name.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The program's log cannot be written or read.
    #[error("the log {path}")]
    Log {
        /// The path of the log.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The program ended early.
    #[error("{program} ended with {status}: {said}")]
    Ended {
        /// The program's name.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its output.
        said: String,
    },
    /// Something that was waited for did not come.
    #[error("{program}: no {what} within {} s: {said}", after.as_secs())]
    Late {
        /// The program's name.
        program: String,
        /// What was waited for.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// The end of its output.
        said: String,
    },
}

/// A program that runs. When dropped, it is ended with everything that it started.
#[derive(Debug)]
pub struct Process {
    child: Child,
    program: String,
    command_line: Vec<String>,
    log: PathBuf,
}

impl Process {
    /// Starts `command`. Its output goes to `log`.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Start`] or [`ProcessError::Log`].
    pub fn start(mut command: Command, log: &Path) -> Result<Self, ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let command_line = words(&command);
        let wrong = |source| ProcessError::Log { path: log.into(), source };
        let out = File::create(log).map_err(wrong)?;
        let errors = out.try_clone().map_err(wrong)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .spawn()
            .map_err(|source| ProcessError::Start { program: program.clone(), source })?;
        Ok(Self { child, program, command_line, log: log.into() })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the program and its arguments.
    pub fn command_line(&self) -> &[String] {
        &self.command_line
    }

    /// Returns what the program wrote so far.
    pub fn output(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until `done` returns `true`.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Ended`] if the program ends before, [`ProcessError::Late`] if the time is over.
    pub fn wait_until(
        &mut self,
        what: &str,
        deadline: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), ProcessError> {
        let start = Instant::now();
        while !done(self) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(ProcessError::Ended { program: self.program.clone(), status, said: self.last_words() });
            }
            if start.elapsed() > deadline {
                let (program, what, said) = (self.program.clone(), what.into(), self.last_words());
                return Err(ProcessError::Late { program, what, after: deadline, said });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits until one of Skein's programs has said that it is ready.
    ///
    /// # Errors
    ///
    /// Those of [`Process::wait_until`].
    pub fn wait_ready(&mut self, deadline: Duration) -> Result<(), ProcessError> {
        let is_ready = |process: &Self| process.output().lines().any(|line| line.starts_with("ready"));
        self.wait_until("word that it is ready", deadline, is_ready)
    }

    /// Kills the program (SIGKILL), but nothing that it started.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Kill`].
    pub fn kill(&mut self) -> Result<(), ProcessError> {
        let wrong = |source| ProcessError::Kill { program: self.program.clone(), source };
        self.child.kill().map_err(wrong)?;
        self.child.wait().map(drop).map_err(wrong)
    }

    /// Ends the program (SIGTERM, and SIGKILL if it does not end), but nothing that it started.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Kill`].
    pub fn end(&mut self) -> Result<(), ProcessError> {
        let start = Instant::now();
        let _ = kill(Pid::from_raw(self.pid() as i32), Signal::SIGTERM);
        while start.elapsed() < END_DEADLINE {
            if let Ok(Some(_)) = self.child.try_wait() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.kill()
    }

    /// Waits until the program ends with success. Returns what it wrote.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Ended`] if it fails, [`ProcessError::Late`] if the time is over.
    pub fn wait(mut self, deadline: Duration) -> Result<String, ProcessError> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(self.output()),
                Ok(Some(status)) => {
                    return Err(ProcessError::Ended { program: self.program.clone(), status, said: self.last_words() });
                }
                _ if start.elapsed() > deadline => {
                    let (program, said) = (self.program.clone(), self.last_words());
                    return Err(ProcessError::Late { program, what: "end".into(), after: deadline, said });
                }
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn last_words(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.trim().lines().collect();
        match lines.len() {
            0 => "it wrote nothing".into(),
            n => lines[n.saturating_sub(6)..].join(" | "),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This process was waited for, so its process id may be another's now.
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        let all = usage::tree(&[self.pid()]);
        let signal = |signal| {
            for pid in all.iter().filter(|pid| alive(**pid)) {
                // A process that has ended meanwhile cannot be signalled.
                let _ = kill(Pid::from_raw(*pid as i32), signal);
            }
        };
        for last in [Signal::SIGTERM, Signal::SIGKILL] {
            signal(last);
            let start = Instant::now();
            while start.elapsed() < END_DEADLINE && all.iter().any(|pid| alive(*pid)) {
                let _ = self.child.try_wait();
                std::thread::sleep(LOOK_EVERY);
            }
        }
        let _ = self.child.wait();
    }
}

fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie that another process has to wait for counts as gone.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X') | None))
}

/// Returns the words of a command.
pub fn words(command: &Command) -> Vec<String> {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Runs `command` to its end, in at most 10 s. Returns what it wrote.
///
/// # Errors
///
/// [`ProcessError`] if it does not start, fails, or takes longer.
pub fn run(mut command: Command) -> Result<String, ProcessError> {
    let log = tempfile::NamedTempFile::new()
        .map_err(|source| ProcessError::Log { path: std::env::temp_dir(), source })?
        .into_temp_path();
    command.env("LC_ALL", "C");
    Process::start(command, &log)?.wait(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_status_and_last_words() {
        assert_eq!(run(shell("echo so")).unwrap(), "so\n");
        let error = run(shell("echo why >&2; exit 3")).unwrap_err();
        assert_eq!(error.to_string(), "sh ended with exit status: 3: why");
        let error = run(Command::new("/nonexistent/program")).unwrap_err();
        assert!(matches!(error, ProcessError::Start { .. }));
    }

    #[test]
    fn dropping_ends_the_whole_tree() {
        let directory = tempfile::tempdir().unwrap();
        // The grandchild ignores SIGTERM.
        let mut process = Process::start(
            shell("sh -c 'trap \"\" TERM; sleep 60; sleep 60' & echo $!; wait"),
            &directory.path().join("log"),
        )
        .unwrap();
        process.wait_until("child", Duration::from_secs(50), |p| p.output().ends_with('\n')).unwrap();
        let pids = usage::tree(&[process.pid()]);
        assert!(pids.len() >= 2, "{pids:?}");
        drop(process);
        // Waits on: a busy machine may take longer to end the processes than `drop` waits.
        let end = Instant::now() + Duration::from_secs(60);
        while pids.iter().any(|pid| alive(*pid)) && Instant::now() < end {
            std::thread::sleep(LOOK_EVERY);
        }
        assert!(pids.iter().all(|pid| !alive(*pid)));
    }

    #[test]
    fn ending_one_leaves_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Process::start(shell("sleep 60 & echo $!; wait"), &directory.path().join("log")).unwrap();
        process.wait_until("child", Duration::from_secs(50), |p| p.output().ends_with('\n')).unwrap();
        let child: u32 = process.output().trim().parse().unwrap();
        process.end().unwrap();
        let (own, child_lives) = (alive(process.pid()), alive(child));
        let _ = kill(Pid::from_raw(child as i32), Signal::SIGKILL);
        assert!(!own && child_lives);
    }

    #[test]
    fn what_does_not_come_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Process::start(shell("echo starting; sleep 60"), &directory.path().join("log")).unwrap();
        // Waits for the shell's start, for which the wait below is too short.
        process.wait_until("word", Duration::from_secs(50), |p| p.output().contains("starting")).unwrap();
        let error = process.wait_until("socket", Duration::from_millis(100), |_| false).unwrap_err();
        assert_eq!(error.to_string(), "sh: no socket within 0 s: starting");
    }
}
