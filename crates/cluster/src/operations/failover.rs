//! A host that died: its guests start elsewhere, at most once, and only with proof that the host is off.
//!
//! A start has no name by which an agent knows that it was asked before. So a VM is first written down as its new
//! host's, and is from then on started there and nowhere else, until that agent has refused a start that was asked for
//! once, and does not have the VM.

use skein_api::cluster::{Contact, Move, MoveState, Operation, OperationKind, OperationState, VmRunState};
use skein_api::{Migration, Reply, Request, Role, StartOptions, VmOrigin, VmState};

use super::record::starts;
use crate::planner::Want;
use crate::records::VmRecord;
use crate::state::{CommandPurpose, Controller};
use crate::time::Now;
use crate::view::is_guest;

impl Controller {
    /// Notes that a host is off, as somebody has made sure of. Its guests are started elsewhere, if that is set.
    pub(crate) fn proven_off(&mut self, now: Now, host: &str, by: &str) -> Option<Operation> {
        self.set_contact(now, host, Contact::Off);
        self.forget_said(host, "the host is proven to be off");
        if !self.tables.settings.value.failover.restart || self.lost_guests(host).is_empty() {
            return None;
        }
        let kind = OperationKind::Failover { host: host.to_owned() };
        Some(self.begin_operation(now, kind, OperationState::Planning, by))
    }

    /// Returns whether the guests of a host are being started elsewhere.
    pub(crate) fn fails_over(&self, host: &str) -> bool {
        let of_host = |kind: &OperationKind| matches!(kind, OperationKind::Failover { host: of } if of == host);
        self.open_operations().any(|found| of_host(&found.kind))
    }

    /// Returns the VMs whose guests ended with a host: those that it had, and that no other host has, or is to get.
    pub(crate) fn lost_guests(&self, host: &str) -> Vec<String> {
        let here = self.guests_on(host).into_iter();
        here.filter(|vm| !self.is_elsewhere(host, vm)).collect()
    }

    /// Returns whether a host that is not the dead one has a VM, in whatever state, or may have: a migration to it was
    /// begun, and it has not reported since that it does not.
    fn is_elsewhere(&self, dead: &str, vm: &str) -> bool {
        let other = |(name, observed): (&String, &crate::observed::Observed)| {
            name != dead && observed.vms.get(vm).is_some_and(|vm| vm.state != VmState::Stopped)
        };
        let to = self.begun_moves().filter(|of| of.vm == vm && of.from == dead);
        let may_have = |of: &Move| of.to.as_deref().is_some_and(|to| self.session_of(to).is_none());
        // Where it is being started it will be, or be given back.
        let is_claimed = self.claimed_by(vm).is_some_and(|claimed| claimed != dead);
        is_claimed || self.observed.iter().any(other) || to.into_iter().any(may_have)
    }

    /// Returns what a failover wants planned: places for the VMs that have none yet.
    pub(crate) fn want_starts(&self, host: &str) -> Want {
        Want::Start { vms: self.lost_guests(host) }
    }

    /// Returns whether another host has a migration in doubt that only this host, or its end, can settle.
    pub(crate) fn is_doubted(&self, host: &str) -> bool {
        let others = self.observed.iter().filter(|(name, _)| name.as_str() != host);
        let doubts = others.flat_map(|(_, observed)| observed.migrations.values());
        let is_with = |of: &Migration| of.source == host || of.target == host;
        doubts.into_iter().any(|of| of.in_doubt && of.outcome.is_none() && is_with(of))
    }

    /// Settles migrations in doubt whose other host is off: that host can say nothing any more.
    pub(crate) fn settle_doubts(&mut self, host: &str) {
        let mut doubts = Vec::new();
        for (name, observed) in self.observed.iter().filter(|(name, _)| name.as_str() != host) {
            for migration in observed.migrations.values().filter(|of| of.in_doubt && of.outcome.is_none()) {
                let other = if migration.role == Role::Source { &migration.target } else { &migration.source };
                if let Some(session) = observed.session.filter(|_| other == host) {
                    doubts.push((name.clone(), session, migration.id));
                }
            }
        }
        for (name, session, id) in doubts {
            let purpose = CommandPurpose::Settle { host: name, migration: id };
            if !self.is_asked(&purpose) {
                let request = Request::MigrationResolve { id: id.to_string(), other_host_is_off: true };
                self.send(session, purpose, None, request);
            }
        }
    }

    /// Returns the host where a VM is being started.
    pub(crate) fn claimed_by(&self, vm: &str) -> Option<&str> {
        let mut moves = self.open_operations().filter(|found| starts(&found.kind)).flat_map(|found| &found.moves);
        moves.find(|of| of.vm == vm && of.state == MoveState::Begun)?.to.as_deref()
    }

    /// Begins the start of a VM: it is its new host's from now on.
    pub(crate) fn claim(&mut self, now: Now, of: &Move) {
        let Some(found) = self.tables.vms.get(&of.vm).map(|found| found.value.clone()) else { return };
        let claimed = VmRecord { host: of.to.clone(), state: VmRunState::Starting, since: now.wall, ..found };
        self.tables.put(&of.vm, claimed);
        self.epoch += 1;
    }

    /// Asks a host's agent to start a VM.
    pub(crate) fn send_start(&mut self, operation: &Operation, index: usize) {
        let of = &operation.moves[index];
        let Some(session) = of.to.as_deref().and_then(|to| self.session_of(to)) else { return };
        let Some(text) = self.tables.vms.get(&of.vm).and_then(|vm| vm.value.definition.clone()) else { return };
        let from = VmOrigin::Definition { file: format!("{}.toml", of.vm), text };
        let purpose = CommandPurpose::Begin { operation: operation.id.clone(), index };
        self.send(session, purpose, None, Request::VmStart { from, options: StartOptions::default() });
    }

    /// Sees whether a VM that waits for its start still has none, and may be started there.
    pub(crate) fn look_at_waiting_start(&self, now: Now, of: &mut Move) {
        let vm = self.tables.vms.get(&of.vm).map(|found| &found.value);
        let is_lost = vm.is_some_and(|vm| vm.host.as_deref() == Some(&of.from) && is_guest(vm.state));
        let is_off = self.tables.hosts.get(&of.from).is_some_and(|host| host.value.contact == Contact::Off);
        let why = if !is_lost || self.is_elsewhere(&of.from, &of.vm) {
            "it is not lost any more".to_owned()
        } else if !is_off {
            format!("{} is not off any more", of.from)
        } else if let Some(why) = self.refusal(vm, of.to.as_deref()) {
            why
        } else {
            return;
        };
        (of.state, of.detail, of.ended) = (MoveState::Left, why, Some(now.wall));
    }

    /// Sees whether a VM runs that was started.
    pub(crate) fn look_at_begun_start(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = operation.moves[index].clone();
        let Some(to) = of.to.clone() else { return };
        if self.tables.hosts.get(&to).is_some_and(|host| host.value.contact == Contact::Off) {
            // The VM is that host's, and is lost with it.
            let own = &mut operation.moves[index];
            (own.state, own.ended, own.detail) = (MoveState::Failed, Some(now.wall), format!("{to} is off"));
            return;
        }
        let Some(observed) = self.reporting(&to) else { return };
        let state = observed.vms.get(&of.vm).map(|vm| vm.state);
        let own = &mut operation.moves[index];
        match state {
            Some(VmState::Running | VmState::Paused) => {
                (own.state, own.ended) = (MoveState::Done, Some(now.wall));
                own.detail.clear();
            }
            Some(VmState::Starting | VmState::Unresponsive) => {}
            _ => {
                let purpose = CommandPurpose::Begin { operation: operation.id.clone(), index };
                let is_asked = self.is_asked(&purpose);
                if !is_asked && own.not_before.is_none_or(|time| now.wall >= time) {
                    own.attempts += 1;
                    own.not_before = Some(now.in_ms(self.settings.retry_ms));
                    // The attempt is counted before the start is asked for.
                    self.save_operation(now, operation.clone());
                    self.send_start(operation, index);
                }
            }
        }
    }

    /// Takes the answer to a start. A start that was asked for once and refused did not happen.
    pub(crate) fn started(&mut self, now: Now, operation: &mut Operation, index: usize, reply: Reply) {
        let of = &mut operation.moves[index];
        match reply {
            Reply::Vm(_) => (of.state, of.ended) = (MoveState::Done, Some(now.wall)),
            Reply::Error(refusal) => {
                let has = of
                    .to
                    .as_deref()
                    .and_then(|to| self.observed.get(to))
                    .is_some_and(|observed| observed.vms.contains_key(&of.vm));
                of.detail = refusal.message;
                if of.attempts == 1 && !has {
                    (of.state, of.ended) = (MoveState::Failed, Some(now.wall));
                    self.release(now, &of.vm.clone(), &of.from.clone());
                }
            }
            _ => of.detail = "its agent answered something else than was asked".into(),
        }
    }

    /// Gives a VM back to the host that died, so that another place is looked for.
    fn release(&mut self, now: Now, vm: &str, from: &str) {
        let Some(found) = self.tables.vms.get(vm).map(|found| found.value.clone()) else { return };
        let host = Some(from.to_owned());
        self.tables.put(vm, VmRecord { host, state: VmRunState::Running, since: now.wall, ..found });
    }

    /// Has a host that is back forget the VMs that run elsewhere by now.
    pub(crate) fn forget_elsewhere(&mut self, host: &str) {
        let Some(observed) = self.reporting(host) else { return };
        let Some(session) = observed.session else { return };
        let stopped = observed.vms.values().filter(|vm| vm.state == VmState::Stopped);
        let elsewhere = stopped.filter(|vm| {
            let record = self.tables.vms.get(&vm.name).map(|found| &found.value);
            let other = record.and_then(|record| record.host.as_deref()).filter(|other| *other != host);
            other.is_some_and(|other| {
                let there = self.observed.get(other).filter(|of| of.session.is_some());
                there.is_some_and(|there| there.vms.contains_key(&vm.name))
            })
        });
        let names: Vec<String> = elsewhere.map(|vm| vm.name.clone()).collect();
        for name in names {
            let purpose = CommandPurpose::Forget { host: host.to_owned(), vm: name.clone() };
            if !self.is_asked(&purpose) {
                self.send(session, purpose, None, Request::VmForget { name });
            }
        }
    }
}
