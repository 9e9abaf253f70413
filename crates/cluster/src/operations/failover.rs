//! A host that died: its guests start elsewhere, at most once, and only with proof that the host is off.

use std::collections::BTreeSet;
use std::path::PathBuf;

use skein_api::cluster::{Contact, Move, Operation, OperationKind, OperationState};
use skein_api::{Migration, Request, Role, VmState, VmView};
use skein_inventory::definition::Definition;

use crate::records::HostRecord;
use crate::state::{CommandPurpose, Controller};
use crate::time::Now;
use crate::view::{is_guest, is_on_its_way};
use crate::words::NOBODY;

impl Controller {
    /// Notes that a host is off, as somebody has made sure of. Its guests are started elsewhere, if that is set.
    pub(crate) fn proven_off(&mut self, now: Now, host: &str, by: &str) -> Option<Operation> {
        self.set_contact(now, host, Contact::Off);
        self.looks.note_off(host);
        self.heard_since_restore(host);
        self.forget_said(host, "the host is proven to be off");
        self.look_at_untold(now);
        self.begin_failover(now, host, by)
    }

    /// Starts the guests of a host elsewhere that is proven to be off, if that is set and there are any.
    fn begin_failover(&mut self, now: Now, host: &str, by: &str) -> Option<Operation> {
        if !self.tables.settings.value.failover.restart || self.lost_guests(host).is_empty() {
            return None;
        }
        let kind = OperationKind::Failover { host: host.to_owned() };
        let failover = self.begin_operation(now, kind, OperationState::Planning, by);
        self.look_where_needed(now);
        Some(failover)
    }

    /// Starts a guest elsewhere of which is told late that it went to a host, which is proven to be off.
    pub(crate) fn fail_over_late(&mut self, now: Now, host: &str) {
        let is_dead = self.tables.hosts.get(host).is_some_and(|found| found.value.contact == Contact::Off);
        if is_dead && !self.fails_over(host) {
            self.begin_failover(now, host, NOBODY);
        }
    }

    /// Returns whether the guests of a host are being started elsewhere.
    pub(crate) fn fails_over(&self, host: &str) -> bool {
        let of_host = |kind: &OperationKind| matches!(kind, OperationKind::Failover { host: of } if of == host);
        self.open_operations().any(|found| of_host(&found.kind))
    }

    /// Returns the VMs whose guests ended with a host, or may have: those that it had, and that no other host has.
    /// Where a migration to another host was under way, it is not known yet.
    pub(crate) fn lost_guests(&self, host: &str) -> Vec<String> {
        let is_wanted = |vm: &String| self.tables.vms.get(vm).is_some_and(|vm| !vm.value.stop_asked);
        let here = self.guests_on(host).into_iter().filter(is_wanted);
        here.filter(|vm| !self.has_come_elsewhere(host, vm)).collect()
    }

    /// Returns whether a host that is not the dead one has a VM, in whatever state, or may get it.
    pub(super) fn is_elsewhere(&self, dead: &str, vm: &str) -> bool {
        self.has_come_elsewhere(dead, vm) || self.may_get(dead, vm).next().is_some()
    }

    /// Returns whether a host that is not the dead one has a VM for sure.
    pub(super) fn has_come_elsewhere(&self, dead: &str, vm: &str) -> bool {
        // Where it is being started it will be, or be given back.
        let is_claimed = self.claimed_by(vm).is_some_and(|claimed| claimed != dead);
        is_claimed || self.said_elsewhere(dead, vm).any(|(host, state)| self.is_there(host, state))
    }

    /// Returns the hosts that may have a VM of a dead host or get it yet: they say that it is on its way to them, they
    /// had it when they last said anything, or a migration to them was begun, and they have not said since that they do
    /// not have it.
    pub(super) fn may_get<'a>(&'a self, dead: &'a str, vm: &'a str) -> impl Iterator<Item = &'a str> {
        let said = self.said_elsewhere(dead, vm);
        let saying = said.filter(|(host, state)| !self.is_there(host, *state)).map(|(host, _)| host);
        let begun = self.begun_moves().filter(move |of| of.vm == vm && of.from == dead);
        let targets = begun.filter_map(|of| of.to.as_deref());
        let targets = targets.filter(move |to| self.is_not_off(to) && !self.has_not_since(to, dead, vm));
        saying.chain(targets)
    }

    /// Returns the hosts but the dead one that say that they have a VM that is not off there, and its state there.
    fn said_elsewhere<'a>(&'a self, dead: &'a str, vm: &'a str) -> impl Iterator<Item = (&'a str, VmState)> {
        let others = self.observed.iter().filter(move |(name, _)| name.as_str() != dead);
        let said = others.filter_map(move |(name, observed)| Some((name.as_str(), observed.vms.get(vm)?.state)));
        said.filter(|(_, state)| *state != VmState::Stopped)
    }

    /// Returns whether a host that says so has a VM for sure. The VM may have left a silent host since.
    fn is_there(&self, host: &str, state: VmState) -> bool {
        !is_on_its_way(state) && self.reporting(host).is_some()
    }

    /// Returns whether a host of the cluster is not known to be off. One that was removed had nothing on its way there.
    pub(crate) fn is_not_off(&self, host: &str) -> bool {
        self.tables.hosts.get(host).is_some_and(|host| !host.value.contact.is_off())
    }

    /// Returns the hosts that may have a VM which is a dead host's by the records: they may be on, and nobody knows
    /// what they run.
    ///
    /// A host that reported while it lived had its VMs then. Of a dead host that has not, nobody knows where its VMs
    /// went while no controller looked: each other host is asked once the dead one is off. A VM that its host said to
    /// have no more may be on any host that was not, and one that a person was allowed to move, on that migration's
    /// target.
    pub(super) fn unheard(&self, dead: &str, vm: &str) -> Vec<String> {
        let has_reported = |host: &str| self.observed.get(host).is_some_and(|observed| observed.has_reported);
        let is_missing = self.missing.contains_key(vm);
        let move_by_hand = self.tables.vms.get(vm).and_then(|found| found.value.move_by_hand.as_ref());
        let target = move_by_hand.map(|of| of.to.as_str());
        let is_asked = |host: &str| is_missing || target == Some(host) || !has_reported(dead);
        let is_known = |host: &str| !is_asked(host) || self.has_not_since(host, dead, vm);
        let may_be_on = |name: &str, host: &HostRecord| match host.contact {
            Contact::Online | Contact::Lost => true,
            // The target may have joined anew since.
            contact => target == Some(name) && !contact.is_off(),
        };
        let hosts = self.tables.hosts.iter().filter(|(name, _)| name.as_str() != dead);
        let others = hosts.filter(|(name, host)| {
            // A host of which nothing was heard since a restore may have been given anything since the backup.
            host.value.is_unheard_since_restore || may_be_on(name, &host.value) && !is_known(name)
        });
        let outside = target.filter(|target| !self.tables.hosts.contains_key(*target));
        others.map(|(name, _)| name.clone()).chain(outside.map(str::to_owned)).collect()
    }

    /// Returns the hosts that may have a dead host's VM or get it yet: their word is waited for.
    pub(crate) fn awaited(&self, dead: &str, vm: &str) -> BTreeSet<String> {
        self.unheard(dead, vm).into_iter().chain(self.may_get(dead, vm).map(str::to_owned)).collect()
    }

    /// Returns whether a VM ended with its dead host: it can be nowhere else.
    pub(super) fn ended_with(&self, now: Now, dead: &str, vm: &str) -> bool {
        !self.is_fresh_missing(now, vm) && self.awaited(dead, vm).is_empty()
    }

    /// Returns whether a VM's host has just said that it has the VM no more: the host that has got it may be about to
    /// say so.
    pub(super) fn is_fresh_missing(&self, now: Now, vm: &str) -> bool {
        self.missing.get(vm).is_some_and(|since| now.ms_since(*since) <= self.settings.missing_ms)
    }

    /// Returns whether a VM's host has said for long that it has the VM no more, and no host that reports has it.
    pub(crate) fn is_long_missing(&self, vm: &str) -> bool {
        self.missing.get(vm).is_some_and(|since| self.mono_ms.saturating_sub(*since) > self.settings.missing_ms)
    }

    /// Says for what guests of a dead host wait. `None`: for nothing that anybody can mend.
    pub(super) fn unheard_words(&self, dead: &str, vms: &[String]) -> Option<String> {
        let unheard = vms.iter().flat_map(|vm| self.unheard(dead, vm));
        let (asked, unheard): (BTreeSet<String>, BTreeSet<String>) =
            unheard.partition(|host| self.reporting(host).is_some());
        let Some(first) = unheard.first() else {
            let asked = asked.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return self.on_their_way_words(dead, vms).or_else(|| {
                (!asked.is_empty()).then(|| {
                    format!(
                        "{asked} is asked whether it has them; if it does not answer in some seconds: its agent's log \
                         says why (there: journalctl -u skein-agent), and its agent may be started again"
                    )
                })
            });
        };
        let names = unheard.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let proof = match self.tables.hosts.contains_key(first) {
            true => format!("say that it is off (skein host fence {first} --is-off)"),
            false => format!("delete the VM if {first}, which is no host of this cluster, has it or had it last"),
        };
        let cure = self.unless_answering(first, format!("see that it reports, or {proof}"));
        Some(format!(
            "while no controller looked somebody may have moved them to {names}, which has not reported since: {cure}"
        ))
    }

    /// Says of guests of a dead host to which hosts they were on their way.
    fn on_their_way_words(&self, dead: &str, vms: &[String]) -> Option<String> {
        let mut on_their_way = vms.iter().filter_map(|vm| Some((vm, self.may_get(dead, vm).next()?)));
        let (vm, to) = on_their_way.next()?;
        Some(match self.reporting(to) {
            Some(_) if self.is_off(dead) => {
                format!(
                    "{vm} was on its way to {to} when {dead} died: it is not settled there yet (skein vm list, on {to})"
                )
            }
            Some(_) => format!("{vm} is on its way to {to}"),
            None => {
                let cure = self.silent_cure(to);
                format!("{vm} may be on {to}, to which it was on its way, or which had it: {cure}")
            }
        })
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
        if !self.is_lost(of) || self.has_come_elsewhere(&of.from, &of.vm) {
            return Some("it is not lost any more".to_owned());
        }
        (!self.is_off(&of.from)).then(|| format!("{} is not off any more", of.from))
    }

    /// Returns whether a host is proven to be off.
    pub(crate) fn is_off(&self, host: &str) -> bool {
        self.tables.hosts.get(host).is_some_and(|host| host.value.contact.is_off())
    }

    /// Returns whether a VM's guest ended with its host, and the VM is still that host's.
    pub(super) fn is_lost(&self, of: &Move) -> bool {
        let vm = self.tables.vms.get(&of.vm).map(|found| &found.value);
        vm.is_some_and(|vm| vm.host.as_deref() == Some(&of.from) && is_guest(vm.state))
    }

    /// Returns the host that a VM is by the records, if that is another than this and reports that it has the VM, and
    /// what it says of it.
    fn at_its_host(&self, host: &str, vm: &str) -> Option<(&str, &VmView)> {
        let record = self.tables.vms.get(vm).map(|found| &found.value)?;
        let other = record.host.as_deref().filter(|other| *other != host)?;
        let there = self.observed.get(other).filter(|of| of.session.is_some())?;
        Some((other, there.vms.get(vm)?))
    }

    /// Returns VMs that are off on a host and have the name of another VM on another: the VM, its host, the other's.
    pub(crate) fn namesakes(&self) -> Vec<(&str, &str, &str)> {
        let reporting = self.observed.iter().filter(|(_, observed)| observed.session.is_some());
        let off = reporting.flat_map(|(host, observed)| observed.vms.values().map(move |vm| (host.as_str(), vm)));
        let off = off.filter(|(_, vm)| vm.state == VmState::Stopped && vm.reserved.is_none());
        let namesakes = off.filter_map(|(host, vm)| {
            let (other, there) = self.at_its_host(host, &vm.name)?;
            (!is_same_vm(vm, there)).then_some((vm.name.as_str(), host, other))
        });
        namesakes.collect()
    }

    /// Has a host forget VMs that are off there: those that another host has by now, and those that are started
    /// elsewhere once this host has not got them any more.
    pub(crate) fn forget_elsewhere(&mut self, host: &str) {
        let Some(observed) = self.reporting(host) else { return };
        let Some(session) = observed.session else { return };
        let stopped = observed.vms.values().filter(|vm| vm.state == VmState::Stopped && vm.reserved.is_none());
        let elsewhere = stopped.filter(|vm| {
            let is_same = |(_, there): (&str, &VmView)| is_same_vm(vm, there);
            self.at_its_host(host, &vm.name).is_some_and(is_same) || self.leaves(host, &vm.name)
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

/// Returns whether what two hosts say of a name is of the same VM, which one of them had before: it has the same disks.
fn is_same_vm(one: &VmView, other: &VmView) -> bool {
    let disks = |view: &VmView| -> Option<BTreeSet<PathBuf>> {
        let definition = Definition::parse(view.definition.as_deref()?, "definition").ok()?;
        Some(definition.disks.into_iter().map(|disk| disk.path).collect())
    };
    disks(one) == disks(other)
}
