//! A host, and its agent's process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use skein_handover::{MigrationId, MigrationLimits, Order, Record};

use super::disk::Disk;
use super::fault::Fault;
use super::index::{HostIx, QemuIx};
use super::offer::Manager;
use super::schedule::ForAgent;
use crate::world::Time;

/// What outlives an agent.
pub struct SimHost {
    pub disk: Disk,
    pub off: bool,
    /// Which QEMU is the source of a migration: a file in the directory for what runs.
    pub sources: BTreeMap<MigrationId, QemuIx>,
    pub limits: MigrationLimits,
}

impl SimHost {
    pub fn new(limits: MigrationLimits) -> SimHost {
        SimHost { disk: Disk::default(), off: false, sources: BTreeMap::new(), limits }
    }
}

/// An agent's process.
#[derive(Default)]
pub struct SimAgent {
    /// Counts the processes that the host's agent has had.
    pub incarnation: u32,
    /// None: the agent does not run.
    pub manager: Option<Manager>,
    /// How much more the agent's clock shows than the run's.
    pub epoch: Duration,
    /// How many faults stop the process now.
    pub paused: u32,
    /// The numbers of these faults.
    pub paused_by: BTreeSet<usize>,
    /// What waits until the process runs again.
    pub deferred: VecDeque<ForAgent>,
    /// The fault that happens when the manager has wanted so many actions more.
    pub trap: Option<(u32, Fault)>,
    /// The process took up migrations when it began: all at once, whatever the limits are.
    pub took_up: bool,
    /// The writes to the journal, of which the first is under way.
    pub writes: VecDeque<Vec<Record>>,
    /// The orders that are not performed yet.
    pub busy: BTreeSet<(MigrationId, Order)>,
    /// When the last order of a migration is performed, and how many were given.
    pub orders: BTreeMap<MigrationId, (Time, u32)>,
    /// The hosts that the manager wants contact to.
    pub wanted: BTreeSet<HostIx>,
    /// Whether the manager was told that there is contact.
    pub contact: BTreeMap<HostIx, bool>,
    /// The QEMUs that this process started.
    pub started: BTreeSet<QemuIx>,
    /// The QEMUs that this process told to run.
    pub continued: BTreeSet<QemuIx>,
    /// When the manager's next timeout is scheduled, by the agent's clock.
    pub timeout_at: Option<Duration>,
}

impl SimAgent {
    /// Returns the agent's time when the run's is `now`.
    pub fn clock(&self, now: Time) -> Duration {
        self.epoch + Duration::from_nanos(now)
    }

    pub fn is_idle(&self) -> bool {
        self.manager.is_some() && self.paused == 0 && self.writes.is_empty() && self.busy.is_empty()
    }

    /// Returns how many orders of a migration were given.
    pub fn order_count(&self, id: MigrationId) -> u32 {
        self.orders.get(&id).map_or(0, |(_, count)| *count)
    }

    pub fn is_writing(&self, record: &Record) -> bool {
        self.writes.iter().flatten().any(|other| other == record)
    }

    /// Returns what the agent has that an agent without migrations should not have.
    pub fn leftover(&self) -> Option<String> {
        (!self.wanted.is_empty()).then(|| format!("reaching for {:?}", self.wanted))
    }

    /// Returns the agent's state, for a report of what does not come to rest.
    pub fn shown(&self) -> String {
        format!(
            "paused {}, writes {:?}, busy {:?}, reaches for {:?}, contact {:?}",
            self.paused, self.writes, self.busy, self.wanted, self.contact
        )
    }
}
