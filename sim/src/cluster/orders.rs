//! Gives orders to QEMUs, and tells managers what QEMUs report.

use skein_handover::{
    MigrationId, Order, Role, SourceGuest, SourceInput, SourceOrder, TargetGuest, TargetInput, TargetOrder,
};

use super::index::{HostIx, QemuIx, number, qemu_name};
use super::offer::Input;
use super::qemu::{Qemu, State};
use super::schedule::ForAgent;
use super::state::{Cluster, trace};
use crate::world::{MS, Time};

impl Cluster {
    pub(super) fn monitor_time(&mut self) -> Time {
        100_000 + self.rng.below(3 * MS)
    }

    pub(super) fn target_qemu(&self, host: HostIx, id: MigrationId) -> Option<QemuIx> {
        (0..self.qemus.len()).rev().find(|ix| self.qemus[*ix].host == host && self.qemus[*ix].incoming == Some(id))
    }

    pub(super) fn order(&mut self, host: HostIx, id: MigrationId, order: Order) {
        self.agents[host].busy.remove(&(id, order));
        trace!(self, "h{host} performs {id}: {order:?}");
        match order {
            Order::Source(order) => {
                let qemu = self.hosts[host].sources.get(&id).copied().filter(|ix| self.qemus[*ix].alive);
                if let Some(qemu) = qemu {
                    self.order_source(host, id, qemu, order);
                }
            }
            Order::Target(TargetOrder::Start) => {
                if self.target_qemu(host, id).is_none() {
                    let vm = self.agents[host].manager.as_ref().and_then(|m| m.summary(id)).map(|s| number(&s.vm));
                    let Some(vm) = vm else { return };
                    let pages = self.vms[vm].image.len();
                    let qemu = self.qemus.len();
                    self.qemus.push(Qemu::new(host, vm, Some(id), vec![0; pages]));
                    self.agents[host].started.insert(qemu);
                    trace!(self, "h{host} starts {} for {id}", qemu_name(qemu));
                    let delay = 10 * MS + self.rng.below(100 * MS);
                    self.schedule_step(qemu, delay);
                    return; // the QEMU reports when it is ready
                }
            }
            Order::Target(TargetOrder::Continue) => {
                // A monitor that is gone takes no orders.
                if let Some(qemu) = self.target_qemu(host, id).filter(|qemu| self.qemus[*qemu].alive) {
                    self.input(host, Input::Target(id, TargetInput::Continuing));
                    // The agent may have been killed by what the manager wanted then.
                    if self.agents[host].manager.is_some() {
                        self.agents[host].continued.insert(qemu);
                        if self.qemus[qemu].state == State::Loaded {
                            self.guest_runs(qemu);
                        }
                    }
                }
            }
            Order::Target(TargetOrder::Kill) => {
                if let Some(qemu) = self.target_qemu(host, id).filter(|ix| self.qemus[*ix].alive) {
                    if self.qemus[qemu].ran {
                        return self.fail(format!("h{host} kills {}, which ran the guest", qemu_name(qemu)));
                    }
                    self.qemu_dies(qemu);
                }
            }
        }
        if self.agents[host].manager.is_some() {
            self.query(host, id);
        }
    }

    /// Returns whether a person wanted the guest of this migration held.
    fn is_hold(&self, id: MigrationId) -> bool {
        self.wishes.iter().any(|wish| wish.id == Some(id) && wish.switch_after.is_some())
    }

    fn order_source(&mut self, host: HostIx, id: MigrationId, ix: QemuIx, order: SourceOrder) {
        let state = self.qemus[ix].state;
        match order {
            SourceOrder::Migrate if state == State::Running => {
                let peer = self.agents[host].manager.as_ref().and_then(|m| m.summary(id)).map(|s| number(&s.peer));
                let Some(peer) = peer else { return };
                let channels = *self.rng.pick(&[1, 3, 5]);
                // The streams that the guest came over.
                self.close_streams(ix);
                self.qemus[ix].begin(channels);
                self.qemus[ix].holds = self.is_hold(id);
                self.qemus[ix].outgoing = Some(id);
                if self.open_streams(host, peer, id, ix) {
                    self.schedule_step(ix, MS);
                } else {
                    self.qemu_broke(ix);
                }
            }
            SourceOrder::Switch => self.qemus[ix].holds = false,
            SourceOrder::Continue if state == State::PreSwitchover => {
                self.qemus[ix].state = State::Device;
                self.schedule_step(ix, 200_000);
            }
            SourceOrder::CancelMigration => {
                let epoch = self.qemus[ix].epoch;
                self.qemu_fails(ix, epoch);
            }
            SourceOrder::Resume if state == State::Completed => self.guest_runs(ix),
            SourceOrder::Quit => {
                if self.qemus[ix].runs() {
                    return self.fail(format!("h{host} ends {}, which runs the guest", qemu_name(ix)));
                }
                self.qemu_dies(ix);
            }
            _ => {}
        }
    }

    /// Notes that a connection of a source's QEMU broke.
    pub(super) fn qemu_broke(&mut self, ix: QemuIx) {
        if self.qemus[ix].outgoing.is_some() && !std::mem::replace(&mut self.qemus[ix].broken, true) {
            self.schedule_step(ix, 100_000);
        }
    }

    /// Returns how long a monitor's word of now takes to the agent.
    fn monitor_delay(&mut self, ix: QemuIx) -> Time {
        let at = (self.now + 50_000 + self.rng.below(2 * MS)).max(self.qemus[ix].monitor_at + 1);
        self.qemus[ix].monitor_at = at;
        at - self.now
    }

    /// Reports a QEMU's state to its agent, if there is one: an event of QEMU.
    pub(super) fn qemu_says(&mut self, ix: QemuIx) {
        let host = self.qemus[ix].host;
        trace!(self, "{} on h{host}: {:?}, alive {}", qemu_name(ix), self.qemus[ix].state, self.qemus[ix].alive);
        let mut ids: Vec<MigrationId> = self.qemus[ix].outgoing.into_iter().collect();
        ids.extend(self.hosts[host].sources.iter().filter(|(_, qemu)| **qemu == ix).map(|(id, _)| *id));
        ids.extend(self.qemus[ix].incoming);
        ids.dedup();
        for id in ids {
            if let Some(input) = self.reported_state(host, id, ix) {
                let delay = self.monitor_delay(ix);
                let orders = self.agents[host].order_count(id);
                self.for_agent(host, delay, ForAgent::Tell(input, id, orders));
            }
        }
    }

    /// Reports that a guest which is held would switch.
    pub(super) fn copy_converged(&mut self, ix: QemuIx) {
        if let Some(id) = self.qemus[ix].outgoing {
            let host = self.qemus[ix].host;
            let delay = self.monitor_delay(ix);
            let orders = self.agents[host].order_count(id);
            self.for_agent(host, delay, ForAgent::Tell(Input::Source(id, SourceInput::Converged), id, orders));
        }
    }

    pub(super) fn migration_failed(&mut self, ix: QemuIx) {
        if let Some(id) = self.qemus[ix].outgoing {
            let host = self.qemus[ix].host;
            let delay = self.monitor_delay(ix);
            let orders = self.agents[host].order_count(id);
            let input = Input::Source(id, SourceInput::MigrationFailed);
            self.for_agent(host, delay, ForAgent::Tell(input, id, orders));
        }
        self.qemu_says(ix);
    }

    fn reported_state(&self, host: HostIx, id: MigrationId, ix: QemuIx) -> Option<Input> {
        let qemu = &self.qemus[ix];
        if qemu.incoming != Some(id) {
            return Some(Input::Source(id, SourceInput::Guest(as_source(qemu))));
        }
        let agent = &self.agents[host];
        let guest = match qemu.state {
            _ if !qemu.alive && agent.started.contains(&ix) && !agent.continued.contains(&ix) => TargetGuest::GoneUnrun,
            _ if !qemu.alive => TargetGuest::Gone,
            State::Starting => return None,
            State::Incoming => TargetGuest::Waiting,
            State::Loaded => TargetGuest::Loaded,
            // The QEMU may be the source of the next migration already.
            _ => TargetGuest::Running,
        };
        Some(Input::Target(id, TargetInput::Guest(guest)))
    }

    pub(super) fn query(&mut self, host: HostIx, id: MigrationId) {
        let Some(summary) = self.agents[host].manager.as_ref().and_then(|manager| manager.summary(id)) else { return };
        let qemu = match summary.role {
            Role::Source => self.hosts[host].sources.get(&id).copied(),
            Role::Target => self.target_qemu(host, id),
        };
        let input = match (qemu, summary.role) {
            (Some(qemu), _) => match self.reported_state(host, id, qemu) {
                Some(input) => {
                    let delay = self.monitor_delay(qemu);
                    let orders = self.agents[host].order_count(id);
                    return self.for_agent(host, delay, ForAgent::Tell(input, id, orders));
                }
                None => return self.for_agent(host, 20 * MS, ForAgent::Query(id)),
            },
            (None, Role::Source) => Input::Source(id, SourceInput::Guest(SourceGuest::Gone)),
            (None, Role::Target) => Input::Target(id, TargetInput::Guest(TargetGuest::Gone)),
        };
        self.input(host, input);
    }

    pub(super) fn forget(&mut self, host: HostIx, id: MigrationId) {
        self.agents[host].orders.remove(&id);
        if let Some(qemu) = self.hosts[host].sources.remove(&id)
            && self.qemus[qemu].outgoing == Some(id)
        {
            self.close_streams(qemu);
            self.qemus[qemu].outgoing = None;
            self.qemus[qemu].channels.clear();
        }
        if let Some(qemu) = self.target_qemu(host, id).filter(|ix| self.qemus[*ix].outgoing.is_none()) {
            self.close_streams(qemu);
        }
    }
}

/// Returns what a source's manager is told of a QEMU.
fn as_source(qemu: &Qemu) -> SourceGuest {
    match qemu.state {
        _ if !qemu.alive => SourceGuest::Gone,
        State::Starting | State::Incoming | State::Loaded => SourceGuest::Stopped,
        State::Running => SourceGuest::Running,
        State::Migrating => SourceGuest::Migrating,
        State::PreSwitchover => SourceGuest::PreSwitchover,
        State::Device => SourceGuest::Device,
        State::Completed => SourceGuest::Completed,
    }
}
