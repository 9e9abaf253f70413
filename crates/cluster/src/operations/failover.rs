//! A host that died: its guests start elsewhere, at most once, and only with proof that the host is off.

use skein_api::cluster::{Contact, Move, Operation, OperationKind, OperationState};
use skein_api::{Migration, Request, Role, VmState};

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
        let is_wanted = |vm: &String| self.tables.vms.get(vm).is_some_and(|vm| !vm.value.stop_asked);
        let here = self.guests_on(host).into_iter().filter(is_wanted);
        here.filter(|vm| !self.is_elsewhere(host, vm)).collect()
    }

    /// Returns whether a host that is not the dead one has a VM, in whatever state, or may have: a migration to it was
    /// begun, and it has not reported since that it does not.
    pub(super) fn is_elsewhere(&self, dead: &str, vm: &str) -> bool {
        let other = |(name, observed): (&String, &crate::observed::Observed)| {
            name != dead && observed.vms.get(vm).is_some_and(|vm| vm.state != VmState::Stopped)
        };
        let to = self.begun_moves().filter(|of| of.vm == vm && of.from == dead);
        let may_have = |of: &Move| of.to.as_deref().is_some_and(|to| self.session_of(to).is_none());
        // Where it is being started it will be, or be given back.
        let is_claimed = self.claimed_by(vm).is_some_and(|claimed| claimed != dead);
        is_claimed || self.observed.iter().any(other) || to.into_iter().any(may_have)
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

    /// Says why a VM that waits for its start is not to be started any more.
    pub(super) fn is_not_lost(&self, of: &Move) -> Option<String> {
        if !self.is_lost(of) || self.is_elsewhere(&of.from, &of.vm) {
            return Some("it is not lost any more".to_owned());
        }
        (!self.is_off(&of.from)).then(|| format!("{} is not off any more", of.from))
    }

    /// Returns whether a host is proven to be off.
    pub(super) fn is_off(&self, host: &str) -> bool {
        self.tables.hosts.get(host).is_some_and(|host| host.value.contact.is_off())
    }

    /// Returns whether a VM's guest ended with its host, and the VM is still that host's.
    pub(super) fn is_lost(&self, of: &Move) -> bool {
        let vm = self.tables.vms.get(&of.vm).map(|found| &found.value);
        vm.is_some_and(|vm| vm.host.as_deref() == Some(&of.from) && is_guest(vm.state))
    }

    /// Has a host forget VMs that are off there: those that another host has by now, and those that are started
    /// elsewhere once this host has not got them any more.
    pub(crate) fn forget_elsewhere(&mut self, host: &str) {
        let Some(observed) = self.reporting(host) else { return };
        let Some(session) = observed.session else { return };
        let stopped = observed.vms.values().filter(|vm| vm.state == VmState::Stopped && vm.reserved.is_none());
        let elsewhere = stopped.filter(|vm| {
            let record = self.tables.vms.get(&vm.name).map(|found| &found.value);
            let other = record.and_then(|record| record.host.as_deref()).filter(|other| *other != host);
            let is_there = other.is_some_and(|other| {
                let there = self.observed.get(other).filter(|of| of.session.is_some());
                there.is_some_and(|there| there.vms.contains_key(&vm.name))
            });
            is_there || self.leaves(host, &vm.name)
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
