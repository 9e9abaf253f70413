//! A cluster: all that there is in a run, and all that is still to happen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use skein_handover::{MigrationId, Outcome};

use super::fault::Fault;
use super::index::LinkIx;
use super::plant::Plant;
use super::qemu::Qemu;
use super::schedule::{Do, Schedule};
use super::session::{AgentSession, Wire};
use super::sim_agent::{SimAgent, SimHost};
use super::stats::Stats;
use super::vm::Vm;
use super::wish::Wish;
use crate::rng::Rng;
use crate::world::Time;

/// A cluster in a run.
pub struct Cluster {
    pub now: Time,
    pub rng: Rng,
    pub failure: Option<String>,
    pub stats: Stats,
    pub plant: Option<Plant>,
    pub hosts: Vec<SimHost>,
    pub agents: Vec<SimAgent>,
    pub qemus: Vec<Qemu>,
    pub vms: Vec<Vm>,
    pub wire: Wire,
    pub links: BTreeMap<LinkIx, AgentSession>,
    /// What goes wrong, and when.
    pub faults: Vec<(Time, Fault)>,
    pub wishes: Vec<Wish>,
    /// How each migration ended, as its source says.
    pub outcomes: BTreeMap<MigrationId, Outcome>,
    /// A guest's memory when the guest was stopped, by migration.
    pub stopped: BTreeMap<MigrationId, Vec<u32>>,
    /// Nothing goes wrong in this run.
    pub calm: bool,
    /// Only processes are killed: no guest may be stopped for longer than 5 s after the last kill.
    pub kills_only: bool,
    pub last_kill: Time,
    /// There are no faults any more: guests stop changing without end.
    pub healed: bool,
    /// How many buffers with a guest's pages anybody holds.
    pub live: Arc<AtomicI64>,
    /// What is kept in memory of sessions that are no more; for [`Plant::LeakedBuffer`].
    pub leaked: Vec<bytes::Bytes>,
    /// How many sessions there have been.
    pub next_link: LinkIx,
    pub schedule: Schedule,
    /// What is shown: nothing, each event (`1`), or each frame as well (`2`).
    pub trace: Option<String>,
}

/// Shows a line for an event, if the run is traced.
macro_rules! trace {
    ($cluster:expr, $($arg:tt)*) => {
        if $cluster.trace.is_some() {
            eprintln!("{:>12.6} {}", $cluster.now as f64 / 1e9, format_args!($($arg)*));
        }
    };
}
pub(super) use trace;

impl Cluster {
    /// Makes a cluster of hosts without VMs, in which nothing goes wrong.
    pub fn new(rng: Rng, hosts: Vec<SimHost>, wire: Wire) -> Cluster {
        Cluster {
            now: 0,
            rng,
            failure: None,
            stats: Stats::default(),
            plant: None,
            agents: hosts.iter().map(|_| SimAgent::default()).collect(),
            hosts,
            qemus: Vec::new(),
            vms: Vec::new(),
            wire,
            links: BTreeMap::new(),
            faults: Vec::new(),
            wishes: Vec::new(),
            outcomes: BTreeMap::new(),
            stopped: BTreeMap::new(),
            calm: true,
            kills_only: false,
            last_kill: 0,
            healed: false,
            live: Arc::default(),
            leaked: Vec::new(),
            next_link: 0,
            schedule: Schedule::default(),
            trace: None,
        }
    }

    /// Schedules an action for a time, or for now if that time is past.
    pub fn at(&mut self, at: Time, action: Do) {
        self.schedule.add(at.max(self.now), action);
    }

    pub fn after(&mut self, delay: Time, action: Do) {
        self.at(self.now + delay, action);
    }

    /// Ends the run with what is wrong, unless something was wrong before.
    pub fn fail(&mut self, why: impl Into<String>) {
        if self.failure.is_none() {
            let why = why.into();
            trace!(self, "FAILURE {why}");
            self.failure = Some(format!("at {:.6} s: {why}", self.now as f64 / 1e9));
        }
    }
}
