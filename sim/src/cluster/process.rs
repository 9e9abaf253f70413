//! The life and death of agents' processes.

use std::time::Duration;

use skein_handover::{MigrationId, Role};

use super::index::{HostIx, number};
use super::offer::Manager;
use super::plant::Plant;
use super::schedule::{Do, ForAgent};
use super::sim_agent::SimAgent;
use super::state::{Cluster, trace};
use crate::world::{MS, S, Time};

impl Cluster {
    /// Begins the process of a host's agent.
    pub(super) fn restart(&mut self, host: HostIx) {
        if self.hosts[host].off || self.agents[host].manager.is_some() {
            return;
        }
        let epoch = Duration::from_nanos(self.rng.below(1000 * S));
        let now = epoch + Duration::from_nanos(self.now);
        let limits = self.hosts[host].limits;
        let manager = Manager::new(now, limits, self.hosts[host].disk.open());
        trace!(self, "h{host} begins with {} migrations", manager.summaries().len());
        let incarnation = self.agents[host].incarnation + 1;
        let ids: Vec<MigrationId> = manager.summaries().iter().map(|summary| summary.id).collect();
        // A migration that was begun and never written is nobody's. One that was thought not to be written may be.
        self.hosts[host].sources.retain(|id, _| ids.contains(id));
        for summary in manager.summaries().into_iter().filter(|summary| summary.role == Role::Source) {
            let vm = number(&summary.vm);
            let runs = (0..self.qemus.len())
                .find(|ix| self.qemus[*ix].vm == vm && self.qemus[*ix].host == host && self.qemus[*ix].runs());
            if let Some(qemu) = runs {
                self.hosts[host].sources.entry(summary.id).or_insert(qemu);
            }
        }
        self.agents[host] =
            SimAgent { incarnation, manager: Some(manager), epoch, took_up: !ids.is_empty(), ..SimAgent::default() };
        self.last_kill = self.now;
        self.listen_again(host);
        for id in ids {
            let delay = MS + self.rng.below(50 * MS);
            self.for_agent(host, delay, ForAgent::Query(id));
        }
        self.for_agent(host, 0, ForAgent::Look);
        self.perform(host);
    }

    /// Kills the process of a host's agent, and begins it again after that time.
    pub(super) fn crash(&mut self, host: HostIx, restart: Option<Time>) {
        if self.agents[host].manager.is_none() {
            return;
        }
        trace!(self, "h{host} is killed");
        if let Some(records) = self.agents[host].writes.front().cloned() {
            self.hosts[host].disk.tear(&records, &mut self.rng);
        }
        if self.plant == Some(Plant::ForgottenJournal) {
            self.hosts[host].disk.forget(2);
        }
        let incarnation = self.agents[host].incarnation;
        self.agents[host] = SimAgent { incarnation, ..SimAgent::default() };
        self.last_kill = self.now;
        self.drop_sessions(host);
        if let Some(after) = restart {
            self.after(after, Do::Restart(host));
        }
    }

    /// Stops the process of a host's agent (SIGSTOP), once more if it is stopped.
    pub(super) fn pause(&mut self, host: HostIx) {
        self.agents[host].paused += 1;
        self.pause_sessions(host);
    }

    /// Takes back one stop of the process of a host's agent.
    pub(super) fn resume(&mut self, host: HostIx) {
        self.agents[host].paused -= 1;
        self.resume_sessions(host);
        if self.agents[host].paused == 0 {
            let incarnation = self.agents[host].incarnation;
            for what in std::mem::take(&mut self.agents[host].deferred) {
                self.after(0, Do::Agent(host, incarnation, what));
            }
        }
    }
}
