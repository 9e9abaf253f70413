//! The processes of agents, as this process has them: begun, told, asked what their hosts know.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::FleetError;
use crate::settings::FleetSettings;
use crate::words::{Begin, Fault, FromAgents, Known, ToAgents, number_of};

/// How long a process may take to make its hosts, and to say what they know.
const READY_WITHIN: Duration = Duration::from_secs(120);
const KNOWN_WITHIN: Duration = Duration::from_secs(30);
/// How many answers wait at most.
const ANSWERS_MAX: usize = 1024;

type Pipes = Arc<Vec<Mutex<ChildStdin>>>;

/// The processes of agents. They end with this.
pub(crate) struct Processes {
    children: Vec<Child>,
    pipes: Pipes,
    hosts_each: u32,
    answers: Mutex<Receiver<FromAgents>>,
    looks: AtomicU64,
}

/// What all hosts know at about a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// How many reports agents have sent so far.
    pub(crate) reports: u64,
    pub(crate) hosts: BTreeMap<String, Known>,
}

impl Processes {
    /// Begins the processes, whose agents dial a controller.
    pub(crate) fn begin(
        settings: &FleetSettings,
        ca: &Path,
        controller: std::net::SocketAddr,
    ) -> Result<Processes, FleetError> {
        let hosts_each = settings.hosts.div_ceil(settings.processes);
        let (program, arguments) = settings.agents.split_first().ok_or(FleetError::AgentsGone)?;
        let mut children = Vec::new();
        for _ in 0..settings.processes {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
            children.push(command.spawn().map_err(FleetError::io(format!("cannot run {program}")))?);
        }
        let pipes = children.iter_mut().filter_map(|child| child.stdin.take()).map(Mutex::new);
        let pipes: Pipes = Arc::new(pipes.collect());
        let (sender, answers) = sync_channel(ANSWERS_MAX);
        for child in &mut children {
            let Some(stdout) = child.stdout.take() else { return Err(FleetError::AgentsGone) };
            let (pipes, sender) = (pipes.clone(), sender.clone());
            thread::spawn(move || read(BufReader::new(stdout), &pipes, hosts_each, &sender));
        }
        let processes =
            Processes { children, pipes, hosts_each, answers: Mutex::new(answers), looks: AtomicU64::new(0) };
        for number in 0..settings.processes {
            let first = number * hosts_each + 1;
            let begin = Begin {
                ca: ca.to_owned(),
                controller,
                seed: settings.seed,
                first,
                end: (first + hosts_each).min(settings.hosts + 1),
                guests_per_host: settings.guests_per_host,
                copy_bytes_per_s: settings.copy_bytes_per_s,
                planetlab: settings.planetlab.clone(),
            };
            processes.tell(number as usize, &ToAgents::Begin(begin))?;
        }
        let end = Instant::now() + READY_WITHIN;
        for _ in 0..settings.processes {
            let left = end.saturating_duration_since(Instant::now());
            let answer = processes.answers.lock().recv_timeout(left);
            answer.map_err(|_| FleetError::Late("the agents were not made in time".into()))?;
        }
        Ok(processes)
    }

    /// Has a guest of one of the processes say the time.
    pub(crate) fn mark(&self, number: u64) -> Result<(), FleetError> {
        self.tell(number as usize % self.pipes.len(), &ToAgents::Mark { number })
    }

    pub(crate) fn fault(&self, host: &str, kind: Fault, lasts: Duration) -> Result<(), FleetError> {
        let for_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        let fault = ToAgents::Fault { host: host.to_owned(), kind, for_ms };
        self.tell(owner(host, self.hosts_each), &fault)
    }

    /// Asks what all hosts know.
    pub(crate) fn look(&self) -> Result<Look, FleetError> {
        let answers = self.answers.lock();
        let number = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        (0..self.pipes.len()).try_for_each(|to| self.tell(to, &ToAgents::Look { number }))?;
        let (mut look, mut left) = (Look::default(), self.pipes.len());
        let end = Instant::now() + KNOWN_WITHIN;
        while left > 0 {
            let wait = end.saturating_duration_since(Instant::now());
            let answer = answers.recv_timeout(wait);
            let answer = answer.map_err(|_| FleetError::Late("agents do not say what they know".into()))?;
            if let FromAgents::Known { number: of, reports, hosts } = answer
                && of == number
            {
                left -= 1;
                look.reports += reports;
                look.hosts.extend(hosts.into_iter().map(|known| (known.host.clone(), known)));
            }
        }
        Ok(look)
    }

    fn tell(&self, to: usize, line: &ToAgents) -> Result<(), FleetError> {
        tell(&self.pipes, to, line)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // They may have ended by themselves.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the process that has a host.
fn owner(host: &str, hosts_each: u32) -> usize {
    (number_of(host).saturating_sub(1) / hosts_each) as usize
}

fn tell(pipes: &Pipes, to: usize, line: &ToAgents) -> Result<(), FleetError> {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    let pipe = pipes.get(to).ok_or(FleetError::AgentsGone)?;
    let mut pipe = pipe.lock();
    pipe.write_all(&text).and_then(|()| pipe.flush()).map_err(|_| FleetError::AgentsGone)
}

/// Hands on what a process says: to other hosts, or to whoever has asked.
fn read(lines: impl BufRead, pipes: &Pipes, hosts_each: u32, answers: &SyncSender<FromAgents>) {
    for line in lines.lines() {
        let Ok(line) = line else { return };
        let done = match serde_json::from_str(&line) {
            Ok(FromAgents::Peer(peer)) => {
                let to = owner(&peer.to, hosts_each);
                tell(pipes, to, &ToAgents::Peer(peer)).is_ok()
            }
            Ok(answer) => answers.send(answer).is_ok(),
            Err(_) => false,
        };
        if !done {
            return;
        }
    }
}
