//! The hosts of a process, with what happens to them: words of others, faults, time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use skein_api::MigrationId;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::host::{Host, Wish};
use crate::loads::Loads;
use crate::words::{Fault, FromAgents, Peer, ToAgents, number_of};

/// A host with its agent's connection.
pub(crate) struct Agent {
    pub(crate) host: Mutex<Host>,
    /// Something has changed that is to be reported at once.
    pub(crate) changed: Notify,
    /// Whether the agent reaches the controller. A change breaks the connection.
    pub(crate) reaches: watch::Sender<bool>,
}

/// The hosts of this process.
pub(crate) struct World {
    pub(crate) agents: Vec<Agent>,
    pub(crate) first: u32,
    pub(crate) loads: Loads,
    pub(crate) begun: Instant,
    pub(crate) out: SyncSender<FromAgents>,
    pub(crate) reports: AtomicU64,
    pub(crate) ids: AtomicU64,
}

impl World {
    pub(crate) fn agent(&self, index: usize) -> &Agent {
        &self.agents[index]
    }

    /// Returns the milliseconds since the process began.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn fresh_id(&self) -> MigrationId {
        MigrationId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn say(&self, line: FromAgents) {
        // Without a reader this process ends.
        let _ = self.out.send(line);
    }

    fn index_of(&self, host: &str) -> Option<usize> {
        let index = number_of(host).checked_sub(self.first)? as usize;
        (index < self.agents.len()).then_some(index)
    }

    pub(crate) fn take(self: &Arc<World>, line: ToAgents) {
        match line {
            ToAgents::Begin(_) => {}
            ToAgents::Peer(peer) => self.hear(peer),
            ToAgents::Mark { number } => self.mark(number),
            ToAgents::Fault { host, kind, for_ms } => {
                if let Some(index) = self.index_of(&host) {
                    self.suffer(index, kind, for_ms);
                }
            }
            ToAgents::Look { number } => {
                let hosts = self.agents.iter().map(|agent| agent.host.lock().known(*agent.reaches.borrow()));
                let reports = self.reports.load(Ordering::Relaxed);
                self.say(FromAgents::Known { number, reports, hosts: hosts.collect() });
            }
        }
    }

    fn hear(self: &Arc<World>, peer: Peer) {
        if let Some(index) = self.index_of(&peer.to) {
            let now_ms = self.now_ms();
            self.agents[index].host.lock().hear(now_ms, peer);
            self.act(index);
        }
    }

    /// Has a guest say the time, on one host after the other.
    fn mark(&self, number: u64) {
        let count = self.agents.len();
        let hosts = (0..count).map(|n| (number as usize * 17 + n) % count);
        for agent in hosts.map(|index| &self.agents[index]).filter(|agent| *agent.reaches.borrow()) {
            let us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |of| of.as_micros());
            if agent.host.lock().mark(format!("mark {number} {us}")) {
                return agent.changed.notify_one();
            }
        }
    }

    fn suffer(self: &Arc<World>, index: usize, fault: Fault, for_ms: u64) {
        let agent = &self.agents[index];
        if !*agent.reaches.borrow() {
            return;
        }
        agent.host.lock().suffer(fault);
        agent.reaches.send_replace(false);
        self.act(index);
        let world = self.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(for_ms)).await;
            let agent = &world.agents[index];
            if fault == Fault::Off {
                agent.host.lock().boot();
            }
            agent.reaches.send_replace(true);
        });
    }

    /// Does what a host wants done, and has its agent report.
    pub(crate) fn act(self: &Arc<World>, index: usize) {
        let wishes = self.agents[index].host.lock().wishes();
        for wish in wishes {
            match wish {
                Wish::Tell(peer) if self.index_of(&peer.to).is_some() => self.hear(peer),
                Wish::Tell(peer) => self.say(FromAgents::Peer(peer)),
                Wish::Copies { migration, after_ms } => {
                    let world = self.clone();
                    tokio::spawn(async move {
                        sleep(Duration::from_millis(after_ms)).await;
                        world.agents[index].host.lock().copied(migration);
                        world.act(index);
                    });
                }
            }
        }
        self.agents[index].changed.notify_one();
    }
}
