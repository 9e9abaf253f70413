//! Does what people do: they start migrations, cancel them, and vouch for hosts that are off.

use skein_handover::{HoldLimits, MigrationId, MigrationPhase, NewMigration, SourceInput, TargetInput};

use super::index::{HostIx, host_name, number, vm_name};
use super::offer::Input;
use super::qemu::State;
use super::schedule::Do;
use super::state::{Cluster, trace};
use super::wish::Wish;
use crate::world::MS;

impl Cluster {
    /// Starts the migration that a person wants, once that is possible. Cancels it when this is called again.
    pub(super) fn wish(&mut self, ix: usize) {
        let Wish { vm, to, priority, cancel_after, switch_after, done, tries, .. } = self.wishes[ix].clone();
        if done {
            if let (Some(id), Some(host)) = (self.wishes[ix].id, self.wishes[ix].from) {
                self.cancel(host, id);
            }
            return;
        }
        let holder = self.vms[vm].holder;
        let from = self.qemus[holder].host;
        let possible = self.qemus[holder].alive
            && self.qemus[holder].state == State::Running
            && self.agents[from].manager.is_some()
            && self.agents[from].paused == 0
            && from != to;
        let id = MigrationId(self.rng.next());
        let new = NewMigration {
            id,
            vm: vm_name(vm),
            peer: host_name(to),
            priority,
            offer: "a definition".into(),
            deadline: None,
            hold: switch_after.is_some().then(HoldLimits::default),
        };
        let agent = &mut self.agents[from];
        let now = agent.clock(self.now);
        if possible && agent.manager.as_mut().is_some_and(|manager| manager.start(now, new).is_ok()) {
            trace!(self, "somebody wants vm{vm} moved from h{from} to h{to}: {id}");
            self.hosts[from].sources.insert(id, holder);
            let wish = &mut self.wishes[ix];
            (wish.done, wish.id, wish.from) = (true, Some(id), Some(from));
            self.perform(from);
            if let Some(after) = cancel_after {
                self.after(after, Do::Wish(ix));
            }
            switch_after.into_iter().flatten().for_each(|after| self.after(after, Do::Switch(ix)));
        } else if tries == 0 || self.vms[vm].lost || from == to {
            self.wishes[ix].done = true;
        } else {
            self.wishes[ix].tries -= 1;
            self.after(200 * MS, Do::Wish(ix));
        }
    }

    /// Cancels a migration, as a person does at that host.
    pub(super) fn cancel(&mut self, host: HostIx, id: MigrationId) {
        let agent = &mut self.agents[host];
        if agent.paused > 0 {
            return;
        }
        let now = agent.clock(self.now);
        if agent.manager.as_mut().is_some_and(|manager| manager.cancel(now, id)) {
            trace!(self, "somebody cancels {id} at h{host}");
            self.perform(host);
        }
    }

    /// Has the guest of a wish switch, as a person does at its source.
    pub(super) fn switch(&mut self, ix: usize) {
        let (Some(id), Some(host)) = (self.wishes[ix].id, self.wishes[ix].from) else { return };
        let agent = &mut self.agents[host];
        if agent.paused > 0 {
            return;
        }
        let now = agent.clock(self.now);
        let switched = agent.manager.as_mut().is_some_and(|manager| manager.switch(now, id, None).is_ok());
        if switched {
            trace!(self, "somebody has {id} switch at h{host}");
            *self.stats.faults.entry("switch").or_default() += 1;
            self.wishes[ix].switched = true;
            self.perform(host);
        }
    }

    /// Lets a person look at alarms, and vouch for hosts that are off.
    pub(super) fn operator(&mut self) {
        self.after(200 * MS, Do::Operator);
        for host in 0..self.agents.len() {
            let Some(manager) = &self.agents[host].manager else { continue };
            if self.agents[host].paused > 0 {
                continue;
            }
            for summary in manager.summaries() {
                if summary.in_doubt && self.hosts[number(&summary.peer)].off && self.rng.percent(40) {
                    trace!(self, "somebody vouches at h{host} that {} is off", summary.peer);
                    *self.stats.faults.entry("proof").or_default() += 1;
                    self.vms[number(&summary.vm)].vouched = true;
                    if let MigrationPhase::Source(_) = summary.stage {
                        self.input(host, Input::Source(summary.id, SourceInput::Proof));
                    } else {
                        self.input(host, Input::Target(summary.id, TargetInput::Proof));
                    }
                }
            }
        }
    }
}
