//! A fence agent: a program that is told on its standard input what to do, as a line `KEY=VALUE` each, and answers by
//! its exit code. See the FenceAgentAPI of ClusterLabs' fence-agents.
//!
//! It runs in a process group of its own, which is killed when its time is over, or when the controller leads no more.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How much of what an agent says is kept.
const SAID_BYTES_MAX: usize = 8 << 10;
/// How much of it is told.
const TOLD_CHARS_MAX: usize = 300;
/// How many bytes an agent is told at most: a pipe takes them at once.
const INPUT_BYTES_MAX: usize = 32 << 10;
/// How often it is seen whether an agent has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How an agent says that the power is off.
const STATUS_OFF: i32 = 2;

/// Why an agent did not do or say what it was to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The program cannot be started.
    #[error("{0} cannot be run: install it on each controller, or name another")]
    Start(PathBuf, #[source] io::Error),
    /// The options are too long.
    #[error("its options have more than {INPUT_BYTES_MAX} bytes")]
    TooLong,
    /// The program cannot be talked to.
    #[error("{0} ends without being asked")]
    Io(PathBuf, #[source] io::Error),
    /// The program took too long.
    #[error("{0} took too long, and was killed")]
    TooSlow(PathBuf),
    /// The controller leads no more.
    #[error("{0} was killed, since this controller does not lead any more")]
    LeadsNoMore(PathBuf),
    /// The program failed.
    #[error("{program} failed ({status}): {said}")]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// What it said last.
        said: String,
    },
}

impl AgentError {
    /// Whether nothing was done for sure.
    pub fn is_refusal(&self) -> bool {
        matches!(self, AgentError::Start(..) | AgentError::TooLong)
    }
}

/// An agent, and what it is told beside the action.
pub struct FenceAgent<'a> {
    /// The program.
    pub program: &'a Path,
    /// The options.
    pub options: &'a BTreeMap<String, String>,
    /// The password.
    pub password: Option<String>,
}

/// Ends an agent and all that it has started, on every path.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The child is not waited for yet, so that nobody else has its number.
        if let (Ok(None), Ok(group)) = (self.0.try_wait(), i32::try_from(self.0.id())) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
            let _ = self.0.wait();
        }
    }
}

impl FenceAgent<'_> {
    /// Switches the power on or off. `leads` says whether the controller still leads.
    pub fn switch(&self, is_on: bool, until: Instant, leads: &dyn Fn() -> bool) -> Result<(), AgentError> {
        let (status, said) = self.run(if is_on { "on" } else { "off" }, until, leads)?;
        if status.success() { Ok(()) } else { Err(self.failed(status, &said)) }
    }

    /// Returns whether the power is on.
    pub fn is_on(&self, until: Instant) -> Result<bool, AgentError> {
        let (status, said) = self.run("status", until, &|| true)?;
        match status.code() {
            Some(0) => Ok(true),
            Some(STATUS_OFF) => Ok(false),
            _ => Err(self.failed(status, &said)),
        }
    }

    fn failed(&self, status: ExitStatus, said: &[u8]) -> AgentError {
        let said = String::from_utf8_lossy(said);
        let said = match self.password.as_deref() {
            Some(password) => said.replace(password, "***"),
            None => said.into_owned(),
        };
        let mut lines = said.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        let last: String = lines.next().unwrap_or("it says nothing").chars().take(TOLD_CHARS_MAX).collect();
        let said = last.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        AgentError::Failed { program: self.program.to_owned(), status, said }
    }

    fn run(&self, action: &str, until: Instant, leads: &dyn Fn() -> bool) -> Result<(ExitStatus, Vec<u8>), AgentError> {
        let options = self.options.iter().map(|(key, value)| format!("{key}={value}\n"));
        let password = self.password.iter().map(|password| format!("password={password}\n"));
        let input: String = std::iter::once(format!("action={action}\n")).chain(options).chain(password).collect();
        if input.len() > INPUT_BYTES_MAX {
            return Err(AgentError::TooLong);
        }
        let mut command = Command::new(self.program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C").current_dir("/");
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| AgentError::Start(self.program.to_owned(), error))?;
        let mut running = Running(child);
        let failed = |error: io::Error| AgentError::Io(self.program.to_owned(), error);
        let child = &mut running.0;
        if let Some(mut stdin) = child.stdin.take() {
            // An agent that does not read says by its exit code what is wrong.
            match stdin.write_all(input.as_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(failed(error)),
                _ => {}
            }
        }
        let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
        stdout.as_ref().map(never_wait).transpose().map_err(failed)?;
        stderr.as_ref().map(never_wait).transpose().map_err(failed)?;
        let mut said = Vec::new();
        loop {
            let ended = running.0.try_wait().map_err(failed)?;
            read_some(stdout.as_mut(), &mut said);
            read_some(stderr.as_mut(), &mut said);
            if let Some(status) = ended {
                return Ok((status, said));
            }
            if Instant::now() >= until {
                return Err(AgentError::TooSlow(self.program.to_owned()));
            }
            if !leads() {
                return Err(AgentError::LeadsNoMore(self.program.to_owned()));
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn never_wait(pipe: &impl AsFd) -> io::Result<()> {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop).map_err(io::Error::from)
}

/// Reads what is there. What is more than is kept is dropped.
fn read_some(pipe: Option<&mut impl Read>, said: &mut Vec<u8>) {
    let Some(pipe) = pipe else { return };
    let mut bytes = [0; 4096];
    // As much as a pipe holds, so that an agent that never stops talking is still looked after.
    for _ in 0..16 {
        match pipe.read(&mut bytes) {
            Ok(count) if count > 0 => {
                let room = SAID_BYTES_MAX.saturating_sub(said.len());
                said.extend(&bytes[..count.min(room)]);
            }
            _ => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    struct Script(tempfile::TempDir);

    impl Script {
        fn new(text: &str) -> Script {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("fence_test");
            // Written by another name, so that no descriptor of another thread's child keeps it busy.
            std::fs::write(&path, format!("#!/bin/sh\ncd '{}'\n{text}\n", dir.path().display())).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
            Script(dir)
        }

        fn with<T>(&self, call: impl Fn(&FenceAgent<'_>) -> Result<T, AgentError>) -> Result<T, AgentError> {
            let options = [("ip".to_owned(), "10.0.0.1".to_owned())].into();
            let program = self.0.path().join("fence_test");
            let agent = FenceAgent { program: &program, options: &options, password: Some("open sesame".into()) };
            let begin = Instant::now();
            loop {
                match call(&agent) {
                    // A child that another test forks has the script open for a moment.
                    Err(AgentError::Start(_, error))
                        if error.kind() == io::ErrorKind::ExecutableFileBusy && begin.elapsed() < LONG => {}
                    done => return done,
                }
            }
        }

        fn read(&self, name: &str) -> String {
            std::fs::read_to_string(self.0.path().join(name)).unwrap()
        }
    }

    fn soon() -> Instant {
        Instant::now() + LONG
    }

    #[test]
    fn an_agent_is_told_on_its_standard_input_and_answers_by_its_exit_code() {
        let script = Script::new("cat > said; env > env; grep -q '^action=off$' said");
        script.with(|agent| agent.switch(false, soon(), &|| true)).unwrap();
        assert_eq!(script.read("said"), "action=off\nip=10.0.0.1\npassword=open sesame\n");
        assert!(!script.read("env").contains("CARGO"), "{}", script.read("env"));
        for (code, is_on) in [(0, Some(true)), (2, Some(false)), (1, None), (3, None)] {
            let script = Script::new(&format!("cat > said; exit {code}"));
            assert_eq!(script.with(|agent| agent.is_on(soon())).ok(), is_on, "exit code {code}");
            assert!(script.read("said").starts_with("action=status\n"));
        }
    }

    #[test]
    fn what_an_agent_says_is_told_without_the_secret() {
        let script = Script::new("cat > /dev/null; echo first; echo 'wrong password: open sesame' >&2; exit 1");
        let error = script.with(|agent| agent.switch(false, soon(), &|| true)).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("wrong password: ***") && !told.contains("open sesame"), "{told}");
        assert!(!error.is_refusal(), "it may have been done");
        // One that reads nothing and never stops talking is looked after, too.
        let script = Script::new("head -c 1000000 /dev/zero | tr '\\0' 'x'; exit 2");
        assert!(!script.with(|agent| agent.is_on(soon())).unwrap());
    }

    #[test]
    fn an_agent_that_is_too_slow_or_of_a_deposed_leader_is_killed_with_what_it_started() {
        let slow = "cat > /dev/null; sleep 1000 & echo $! > child; wait";
        let is_gone = |script: &Script| {
            let begin = Instant::now();
            let path = format!("/proc/{}/stat", script.read("child").trim());
            // A zombie has no state but Z; whoever adopts it waits for it soon.
            while std::fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
                assert!(begin.elapsed() < LONG, "what the agent has started runs on");
                std::thread::sleep(LOOK);
            }
        };
        let script = Script::new(slow);
        let has_child = || std::fs::read_to_string(script.0.path().join("child")).is_ok_and(|pid| pid.ends_with('\n'));
        let error = script.with(|agent| agent.switch(false, soon(), &|| !has_child())).unwrap_err();
        assert!(matches!(error, AgentError::LeadsNoMore(_)), "{error}");
        is_gone(&script);
        let script = Script::new("cat > /dev/null; sleep 1000");
        let error = script.with(|agent| agent.is_on(Instant::now() + Duration::from_millis(300))).unwrap_err();
        assert!(matches!(error, AgentError::TooSlow(_)), "{error}");
        let none = Path::new("/no/such/fence_agent");
        let agent = FenceAgent { program: none, options: &BTreeMap::new(), password: None };
        assert!(agent.switch(false, soon(), &|| true).unwrap_err().is_refusal());
    }
}
