//! The process of an agent.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time in which an agent ends after it is asked to.
const STOP_TIME: Duration = Duration::from_secs(20);

/// How an agent is started, besides what all agents have.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Another `skein` program than the cluster's.
    pub program: Option<PathBuf>,
    /// More arguments.
    pub args: Vec<String>,
    /// More environment variables.
    pub env: Vec<(String, String)>,
}

impl Start {
    /// Starts the agent with the variables by which a script around a running QEMU lets it find its libraries: an agent
    /// starts the program of an adopted guest itself.
    pub fn with_libraries_of(pid: u32) -> Start {
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
        let variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let env = variables.filter_map(|variable| {
            let (name, value) = variable.split_once('=')?;
            ["LD_LIBRARY_PATH", "QEMU_MODULE_DIR"].contains(&name).then(|| (name.to_owned(), value.to_owned()))
        });
        Start { env: env.collect(), ..Start::default() }
    }
}

/// A running agent, which is killed when dropped.
pub(crate) struct AgentProcess(Child);

impl AgentProcess {
    /// Starts an agent. Its output is appended to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> AgentProcess {
        let mut log = OpenOptions::new().create(true).append(true).open(log).expect("a log can be written");
        let _ = writeln!(log, "-- started");
        let errors = log.try_clone().expect("a descriptor can be had twice");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        AgentProcess(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // The process number stays this child's until it is waited for.
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("an own child can be signalled");
    }

    /// Returns how the agent ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("an own child can be waited for")
    }

    pub(crate) fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let end = Instant::now() + STOP_TIME;
        while self.ended().is_none() {
            assert!(Instant::now() < end, "an agent does not end within {} s", STOP_TIME.as_secs());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(self) {}
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
