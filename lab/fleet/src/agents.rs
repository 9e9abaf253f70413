//! The process of some hundred agents. It is told what happens to its hosts by lines on its standard input, and ends
//! with that.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use skein_identity::{ClusterCa, Validity};
use tokio::sync::{Notify, mpsc, watch};

use crate::error::FleetError;
use crate::host::Host;
use crate::link;
use crate::loads::Loads;
use crate::words::{Begin, FromAgents, ToAgents};
use crate::world::{Agent, World};

/// How many lines wait at most, each way.
const LINES_MAX: usize = 1 << 16;
/// How long certificates are valid.
const VALIDITY_DAYS: u32 = 2;

/// Runs agents until standard input ends.
///
/// # Errors
///
/// What is to be read cannot be, or is none of a fleet's.
pub fn run() -> Result<(), FleetError> {
    let (lines, mut told) = mpsc::channel(LINES_MAX);
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line.map_err(drop).and_then(|line| serde_json::from_str(&line).map_err(drop)) else { break };
            if lines.blocking_send(line).is_err() {
                break;
            }
        }
    });
    let (out, says) = std::sync::mpsc::sync_channel::<FromAgents>(LINES_MAX);
    thread::spawn(move || {
        let mut stdout = std::io::stdout().lock();
        for line in says {
            let text = serde_json::to_string(&line).unwrap_or_default();
            if writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_err() {
                break;
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(FleetError::io("cannot start an event loop"))?.block_on(async move {
        let Some(ToAgents::Begin(begin)) = told.recv().await else { return Err(FleetError::AgentsGone) };
        let world = begun(&begin, out)?;
        while let Some(line) = told.recv().await {
            world.take(line);
        }
        Ok(())
    })
}

/// Makes the hosts, and has their agents dial the controller.
fn begun(begin: &Begin, out: SyncSender<FromAgents>) -> Result<Arc<World>, FleetError> {
    let ca = ClusterCa::load(&begin.ca)?;
    let agents = (begin.first..begin.end).map(|number| Agent {
        host: Mutex::new(Host::new(number, begin.guests_per_host, begin.copy_bytes_per_s, begin.seed)),
        changed: Notify::new(),
        reaches: watch::Sender::new(true),
    });
    let world = Arc::new(World {
        agents: agents.collect(),
        first: begin.first,
        loads: Loads::new(begin.planetlab.as_deref(), begin.seed)?,
        begun: Instant::now(),
        out,
        reports: AtomicU64::new(0),
        ids: AtomicU64::new(u64::from(begin.first) << 40),
    });
    for (index, agent) in world.agents.iter().enumerate() {
        let identity = ca.issue(&agent.host.lock().name, Validity::days(VALIDITY_DAYS))?;
        let name = agent.host.lock().name.clone();
        let tls = skein_identity::controller_client_config(&identity)
            .map_err(|error| FleetError::Late(format!("{name}'s certificate: {error}")))?;
        tokio::spawn(link::keep(world.clone(), index, tls, begin.controller, begin.seed));
    }
    world.say(FromAgents::Ready);
    Ok(world)
}
