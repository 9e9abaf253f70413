//! Starts: a VM that runs nowhere is started on one host, at most once.
//!
//! A VM is first written down as its new host's. Then that host's agent is asked for the start under a name, made of
//! operation, move and attempt, which the agent remembers. It may be asked any number of times, and the start is done
//! once or never. The VM is started there and nowhere else until the agent says that this start was not done and will
//! not be, or the host is proven to be off.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{Contact, Move, MoveState, Operation, OperationKind, OperationState, VmRunState};
use skein_api::{Migration, Reply, Request, StartOptions, VmOrigin, VmState, VmView};
use skein_inventory::Attachment;
use skein_inventory::definition::{Accel, Definition, Firmware, FirmwareKind};

use super::moves::request_name;
use super::record::{refusals, starts};
use crate::observed::Observed;
use crate::planner::{Excluded, Want};
use crate::records::{HostRecord, VmRecord};
use crate::state::{CommandPurpose, Controller, Planted};
use crate::time::Now;
use crate::view::is_guest;
use crate::words::NOBODY;

/// How long before its host went down a guest may have ended, in milliseconds, so that it ended with the host: a host
/// that is shut down in order ends its guests first.
const SHUTDOWN_MS: u64 = 60_000;
/// How the message of an operation begins whose starts wait for something that a person can mend.
pub(super) const START_WAITS: &str = "starts wait";

/// Whether a VM may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Startable {
    Yes,
    /// What is not known yet has to be waited for.
    NotYet,
    /// It is not to be started any more, and why.
    No(String),
}

impl Controller {
    // ---- which ----

    /// Begins to start the guests again that ended when a host was booted. The host's agent has just said so; `before`
    /// is what was known of the host until then.
    pub(crate) fn host_booted(&mut self, now: Now, host: &str, before: &HostRecord) {
        // A backup knows the boot of its own time. What the host ran since, and where that is now, it does not know.
        if before.is_unheard_since_restore && !self.has(Planted::RestoreForgotten) {
            return;
        }
        let is_off = before.contact.is_off();
        let ended = match before.contact {
            Contact::Lost => before.contact_since.0.saturating_sub(self.host_lease_ms()),
            _ => now.wall.0,
        };
        let restart = self.tables.settings.value.failover.restart;
        let starts_again = |vm: &VmRecord| match vm.state {
            // Those of a host that was proven to be off were to be started elsewhere, and found no place in time.
            state if is_guest(state) => vm.settings.autostart || (is_off || vm.is_ended) && restart,
            VmRunState::Stopped => !is_off && vm.settings.autostart && vm.since.0.saturating_add(SHUTDOWN_MS) >= ended,
            _ => false,
        };
        let here = self.tables.vms.iter().filter(|(_, vm)| vm.value.host.as_deref() == Some(host));
        let ended =
            here.filter(|(_, vm)| starts_again(&vm.value) && !vm.value.stop_asked && vm.value.definition.is_some());
        let vms: Vec<String> = ended.map(|(name, _)| name.clone()).collect();
        // The host may have lost what it knew, too.
        // One that a person may have moved away is where that leads.
        let may_be_here = |vm: &VmRecord| is_guest(vm.state) && vm.definition.is_some() && vm.move_by_hand.is_none();
        let guests = self.tables.vms_of(host).filter(|(_, vm)| may_be_here(vm));
        let guests: Vec<String> = guests.map(|(name, _)| name.to_owned()).collect();
        self.note_ended(&guests);
        if !vms.is_empty() {
            let kind = OperationKind::Autostart { host: host.to_owned(), vms };
            self.begin_operation(now, kind, OperationState::Planning, NOBODY);
        }
    }

    /// Notes that guests ended with their host, which has not said since that it has the VMs.
    pub(super) fn note_ended(&mut self, vms: &[String]) {
        for vm in vms {
            if let Some(found) = self.tables.vms.get(vm).map(|found| found.value.clone()) {
                self.tables.put(vm, VmRecord { is_ended: true, ..found });
            }
        }
    }

    /// Returns the VMs of an operation that are still to be started.
    pub(crate) fn left_to_start(&self, operation: &Operation) -> Vec<String> {
        let last = |vm: &str| operation.moves.iter().rfind(|of| of.vm == vm);
        // What is under way is not to be planned.
        let is_settled = |vm: &String| {
            last(vm).is_some_and(|of| match of.state {
                MoveState::Waiting | MoveState::Begun | MoveState::Done => true,
                MoveState::Left => of.to.is_none(),
                MoveState::Failed => false,
            })
        };
        let left = |vm: &&String| !is_settled(vm) && !matches!(self.startable(vm), Startable::No(_));
        match &operation.kind {
            OperationKind::Start { vm, .. } => [vm].into_iter().filter(left).cloned().collect(),
            OperationKind::Autostart { host, vms } => {
                // One that is another host's by now is not this host's to start.
                let is_its = |vm: &&String| self.home_of(vm).is_none_or(|home| home == host);
                vms.iter().filter(left).filter(is_its).cloned().collect()
            }
            // Once the host is back, it is not of the dead any more.
            OperationKind::Failover { host } if self.is_off(host) => {
                self.lost_guests(host).iter().filter(|vm| !is_settled(vm)).cloned().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether VMs of an operation wait for what is not known yet, and for what if a person can do something.
    pub(crate) fn start_waits(&self, now: Now, operation: &Operation) -> (String, bool) {
        let left = self.left_to_start(operation);
        let (words, waits) = match &operation.kind {
            OperationKind::Failover { host } => {
                let waits = |vm: &String| !self.ended_with(now, host, vm);
                (self.unheard_words(host, &left), !left.is_empty() && left.iter().all(waits))
            }
            _ => {
                let waits = !left.is_empty() && left.iter().all(|vm| !self.starts_now(now, vm));
                let words =
                    || left.iter().find_map(|vm| self.unheard_words(self.home_of(vm)?, std::slice::from_ref(vm)));
                (self.restore_words().filter(|_| waits).or_else(|| words().filter(|_| waits)), waits)
            }
        };
        (words.map(|words| format!("{START_WAITS}: {words}")).unwrap_or_default(), waits)
    }

    /// Returns what an operation wants planned: places for the VMs that have none yet.
    pub(crate) fn want_starts(&self, now: Now, operation: &Operation) -> Want {
        let mut vms = self.left_to_start(operation);
        vms.retain(|vm| match &operation.kind {
            OperationKind::Failover { host } => self.ended_with(now, host, vm),
            _ => self.starts_now(now, vm),
        });
        Want::Start { vms }
    }

    /// Returns whether it is known that a VM runs nowhere.
    fn starts_now(&self, now: Now, vm: &str) -> bool {
        self.startable(vm) == Startable::Yes && !self.is_fresh_missing(now, vm)
    }

    /// Returns whether a VM runs nowhere and may be started.
    fn startable(&self, vm: &str) -> Startable {
        let Some(record) = self.tables.vms.get(vm).map(|found| &found.value) else {
            return Startable::No("it was deleted".into());
        };
        if self.claimed_by(vm).is_some() {
            return Startable::NotYet;
        }
        let home = record.host.as_deref().unwrap_or_default();
        let has_starting = |view: Option<&VmView>| view.is_some_and(|view| view.state == VmState::Starting);
        if self.observed.values().any(|observed| has_starting(observed.vms.get(vm))) {
            return Startable::NotYet;
        }
        if self.has_come_elsewhere(home, vm) {
            return Startable::No("another host has it".into());
        }
        if self.may_get(home, vm).next().is_some() {
            return Startable::NotYet;
        }
        let others = self.observed.values().flat_map(|observed| observed.migrations.values());
        if others.into_iter().any(|of: &Migration| of.vm == vm && of.outcome.is_none()) {
            return Startable::NotYet;
        }
        // Wherever it was as of a backup: a host that is silent since may have been given it.
        if !self.unheard_beside(home).is_empty() {
            return Startable::NotYet;
        }
        match self.tables.hosts.get(home).map(|host| host.value.contact) {
            None => return Startable::Yes,
            Some(contact) if contact.is_off() && self.unheard(home, vm).is_empty() => return Startable::Yes,
            Some(contact) if contact.is_off() => return Startable::NotYet,
            Some(_) => {}
        }
        let Some(observed) = self.reporting(home) else { return Startable::NotYet };
        match observed.vms.get(vm) {
            // Another host may say in a moment that it has it.
            None if record.is_ended => Startable::NotYet,
            None => Startable::No(format!("{home} does not have it any more")),
            Some(view) if view.migration.is_some() || view.state == VmState::Starting => Startable::NotYet,
            Some(view) if view.reserved.is_some() => Startable::NotYet,
            Some(view) if view.state == VmState::Stopped => Startable::Yes,
            Some(_) => Startable::No(format!("it runs on {home}")),
        }
    }

    /// Says why a VM is not to be started that somebody wants to start.
    pub(crate) fn unstartable(&self, vm: &str) -> Option<String> {
        match self.startable(vm) {
            Startable::No(why) => Some(why),
            Startable::Yes | Startable::NotYet => None,
        }
    }

    // ---- where ----

    /// Returns the hosts that cannot run a VM, by what their agents say of them, and why.
    pub(crate) fn unsuited(&self, definition: Option<&str>, home: Option<&str>) -> BTreeMap<String, String> {
        let Some(definition) = definition.and_then(|text| Definition::parse(text, "definition").ok()) else {
            return BTreeMap::new();
        };
        let bridges = definition.nics.iter().filter_map(|nic| match &nic.attachment {
            Attachment::Bridge(bridge) => Some(bridge),
            _ => None,
        });
        let bridges: BTreeSet<&String> = bridges.collect();
        let has_own = keeps_state(&definition);
        // What a host that is off keeps is out of reach, as in a failover.
        let keeper = home.filter(|home| has_own && self.tables.hosts.contains_key(*home) && !self.is_off(home));
        let mut found = BTreeMap::new();
        for (name, observed) in &self.observed {
            let Some(facts) = &observed.facts else { continue };
            let mut lacks: Vec<String> = Vec::new();
            let without = bridges.iter().filter(|bridge| !facts.bridges.contains(**bridge));
            lacks.extend(without.map(|bridge| format!("it has no bridge {bridge}")));
            if let (Accel::Kvm, Err(why)) = (definition.accel, &facts.kvm) {
                lacks.push(format!("KVM does not work there: {why}"));
            }
            if let Some(keeper) = keeper.filter(|keeper| keeper != name) {
                lacks.push(format!("its UEFI variables or its TPM are on {keeper}"));
            }
            lacks.extend(self.cpu_baseline(&definition, name).and_then(Result::err));
            if !lacks.is_empty() {
                found.insert(name.clone(), lacks.join(", "));
            }
        }
        found
    }

    /// Returns where the VMs of an operation cannot be started: their agents refused, or say that they lack something.
    pub(crate) fn excluded_of(&self, operation: &Operation) -> Excluded {
        let mut excluded = if self.has(Planted::RefusalForgotten) { Excluded::new() } else { refusals(operation) };
        for vm in self.left_to_start(operation) {
            let unsuited = self.unsuited(self.definition_of(operation, &vm), self.home_of(&vm));
            excluded.entry(vm).or_default().extend(unsuited.into_keys());
        }
        excluded.retain(|_, hosts| !hosts.is_empty());
        excluded
    }

    /// Returns the host that has a VM, or had it last.
    fn home_of(&self, vm: &str) -> Option<&str> {
        self.tables.vms.get(vm)?.value.host.as_deref()
    }

    /// Returns the definition that a VM is started from.
    fn definition_of<'a>(&'a self, operation: &'a Operation, vm: &str) -> Option<&'a str> {
        let new = match &operation.kind {
            OperationKind::Start { definition, .. } => definition.as_deref(),
            _ => None,
        };
        new.or_else(|| self.tables.vms.get(vm)?.value.definition.as_deref())
    }

    /// Says of moves that were planned why hosts could not be chosen that were tried before, and of starts which hosts
    /// lack something, and where the VMs are now.
    pub(crate) fn tell_exclusions(&self, operation: &mut Operation, first: usize) {
        let refused: Vec<(String, String, String)> = operation
            .moves
            .iter()
            .filter(|of| of.state == MoveState::Failed)
            .filter_map(|of| Some((of.vm.clone(), of.to.clone()?, of.detail.clone())))
            .collect();
        for of in operation.moves.iter_mut().skip(first) {
            for (vm, host, why) in refused.iter().filter(|(vm, ..)| *vm == of.vm) {
                // The plan only knows that these hosts are excluded.
                let excluded = format!("'{host}' is not among the possible owners of '{vm}'");
                of.reason = of.reason.replace(&excluded, &format!("it was tried: {why}"));
            }
        }
        if !starts(&operation.kind) {
            return;
        }
        for index in first..operation.moves.len() {
            let vm = operation.moves[index].vm.clone();
            let unsuited = self.unsuited(self.definition_of(operation, &vm), self.home_of(&vm));
            let mut against: Vec<(String, String)> =
                unsuited.into_iter().map(|(host, why)| (host.clone(), format!("{host}: {why}"))).collect();
            let of_vm = refused.iter().filter(|(of, ..)| *of == vm);
            against.extend(of_vm.map(|(_, host, why)| (host.clone(), format!("{host} refused: {why}"))));
            let record = self.tables.vms.get(&vm).map(|found| &found.value);
            if let Some(home) = record.and_then(|record| record.host.as_deref()) {
                let asked = record.and_then(|record| record.settings.preferred.first());
                let of = &mut operation.moves[index];
                of.reason = home_words(&of.reason, &vm, home, asked.map(String::as_str));
            }
            let to = operation.moves[index].to.as_deref();
            let baseline = to.and_then(|to| self.cpu_baseline_of(self.definition_of(operation, &vm), to));
            let of = &mut operation.moves[index];
            of.from = record.and_then(|record| record.host.clone()).unwrap_or_default();
            if !against.is_empty() {
                let is_said = |part: &&str| !against.iter().any(|(host, _)| part.starts_with(&format!("{host}: ")));
                let planned = of.reason.split("; ").filter(is_said).map(str::to_owned);
                let mut words: Vec<String> = planned.collect();
                words.extend(against.iter().map(|(_, why)| why.clone()));
                of.reason = words.join("; ");
            }
            of.reason.extend(baseline.map(|baseline| format!("; {baseline}")));
            let is_known =
                record.is_none_or(|record| record.definition.is_some() || of.to.as_deref() == Some(&of.from));
            if !is_known {
                (of.to, of.state) = (None, MoveState::Left);
                of.reason = "nobody knows its definition: another program had started it".into();
            }
        }
    }

    // ---- how ----

    /// Returns the host where a VM is being started.
    pub(crate) fn claimed_by(&self, vm: &str) -> Option<&str> {
        let mut moves = self.open_operations().filter(|found| starts(&found.kind)).flat_map(|found| &found.moves);
        moves.find(|of| of.vm == vm && of.state == MoveState::Begun)?.to.as_deref()
    }

    /// Begins the start of a VM: it is its new host's from now on.
    pub(crate) fn claim(&mut self, now: Now, of: &Move) {
        let Some(found) = self.tables.vms.get(&of.vm).map(|found| found.value.clone()) else { return };
        let claimed = VmRecord {
            host: of.to.clone(),
            state: VmRunState::Starting,
            since: now.wall,
            is_claimed: true,
            is_ended: false,
            stop_asked: false,
            move_by_hand: None,
            ..found
        };
        self.missing.remove(&of.vm);
        self.tables.put(&of.vm, claimed);
        self.epoch += 1;
    }

    /// Asks a host's agent to start a VM.
    fn send_start(&mut self, operation: &Operation, index: usize) {
        let of = &operation.moves[index];
        let Some(session) = of.to.as_deref().and_then(|to| self.session_of(to)) else { return };
        let definition = self.definition_of(operation, &of.vm);
        let baseline = of.to.as_deref().and_then(|to| self.cpu_baseline_of(definition, to));
        let options = StartOptions { cpu_model: baseline.map(|found| found.model), ..StartOptions::default() };
        let is_new = matches!(&operation.kind, OperationKind::Start { definition: Some(_), .. });
        let is_there = of.to.as_deref().and_then(|to| self.reporting(to)).is_some_and(|to| to.vms.contains_key(&of.vm));
        let from = match definition {
            // A host that has it knows what its guest last had open.
            _ if is_there && !is_new => VmOrigin::Name(of.vm.clone()),
            Some(text) => VmOrigin::Definition { file: format!("{}.toml", of.vm), text: text.to_owned() },
            None => return,
        };
        let purpose = CommandPurpose::Begin { operation: operation.id.clone(), index };
        let name = request_name(&operation.id, index, of.attempts);
        self.send(session, purpose, Some(name), Request::VmStart { from, options });
    }

    /// Sees whether a VM that waits for its start still has none, and may be started there.
    pub(crate) fn look_at_waiting_start(&self, now: Now, kind: &OperationKind, of: &mut Move) {
        let vm = self.tables.vms.get(&of.vm).map(|found| &found.value);
        let home = vm.and_then(|vm| vm.host.as_deref()).unwrap_or_default();
        let why = match kind {
            OperationKind::Failover { .. } => self.is_not_lost(of),
            _ if self.claimed_by(&of.vm).is_some() => return,
            _ if vm.is_some() && home != of.from => Some("it is being started by somebody else".to_owned()),
            _ => self.unstartable(&of.vm),
        };
        if let Some(why) = why {
            (of.state, of.detail, of.ended) = (MoveState::Left, why, Some(now.wall));
        } else if let Some(why) = self.refusal(vm, of.to.as_deref()) {
            (of.state, of.detail, of.ended) = (MoveState::Failed, why, Some(now.wall));
        } else if !self.unheard_beside(home).is_empty() {
            of.detail = self.restore_words().unwrap_or_default();
        }
    }

    /// Returns whether a start may begin now: nobody else starts the VM, and what is known of it suffices.
    pub(crate) fn may_start(&self, now: Now, operation: &Operation, of: &Move) -> bool {
        match operation.kind {
            OperationKind::Failover { .. } => {
                self.claimed_by(&of.vm).is_none() && self.ended_with(now, &of.from, &of.vm)
            }
            _ => self.startable(&of.vm) == Startable::Yes && !self.is_fresh_missing(now, &of.vm),
        }
    }

    /// Sees whether a VM runs that is being started.
    pub(crate) fn look_at_begun_start(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = operation.moves[index].clone();
        let Some(to) = of.to.clone() else { return };
        if self.tables.hosts.get(&to).is_some_and(|host| host.value.contact.is_off()) {
            // The VM is that host's, and is lost with it.
            let own = &mut operation.moves[index];
            (own.state, own.ended, own.detail) = (MoveState::Failed, Some(now.wall), format!("{to} is off"));
            return;
        }
        if self.is_started_at_home(&operation.kind, &of) {
            let own = &mut operation.moves[index];
            own.detail = format!("somebody has started it on {}", of.from);
            (own.state, own.ended) = (MoveState::Left, Some(now.wall));
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
                let is_due = !own.not_before.is_some_and(|time| now.is_before(time));
                if self.is_asked(&purpose) || !is_due || self.is_still_there(&operation.kind, &of) {
                    return;
                }
                operation.moves[index].not_before = Some(now.in_ms(self.settings.retry_ms));
                self.save_operation(now, operation.clone());
                self.send_start(operation, index);
            }
        }
    }

    /// Returns whether somebody has started a VM on the host that it was to leave for its start, which was not asked
    /// for yet.
    fn is_started_at_home(&self, kind: &OperationKind, of: &Move) -> bool {
        let runs = |observed: &Observed| observed.vms.get(&of.vm).is_some_and(|vm| vm.state == VmState::Running);
        of.not_before.is_none() && self.is_still_there(kind, of) && self.reporting(&of.from).is_some_and(runs)
    }

    /// Returns whether the host that a VM leaves by its start may still have the VM: it could be started there, too.
    pub(super) fn is_still_there(&self, kind: &OperationKind, of: &Move) -> bool {
        if of.from.is_empty() || of.to.as_ref() == Some(&of.from) {
            return false;
        }
        if matches!(kind, OperationKind::Failover { .. }) {
            // It was proven to be off. If it is back, it is to forget the guest, unless somebody was faster there.
            let runs = |observed: &Observed| observed.vms.get(&of.vm).is_some_and(|vm| vm.state == VmState::Running);
            return self.reporting(&of.from).is_some_and(runs);
        }
        match self.tables.hosts.get(&of.from).map(|host| host.value.contact) {
            None => false,
            Some(contact) if contact.is_off() => false,
            Some(_) => self.reporting(&of.from).is_none_or(|observed| observed.vms.contains_key(&of.vm)),
        }
    }

    /// Takes the answer to a start.
    pub(crate) fn started(&mut self, now: Now, operation: &mut Operation, index: usize, reply: Reply) {
        let is_trusted = self.has(Planted::AnyErrorTrusted);
        let of = &mut operation.moves[index];
        match reply {
            Reply::Vm(view) => {
                (of.state, of.ended) = (MoveState::Done, Some(now.wall));
                let host = of.to.clone().unwrap_or_default();
                // What the host has reported since the start began may be newer: the guest may have ended again.
                if self.claimed(&view.name).is_some() {
                    self.saw(&view);
                    self.note_vm(now, &host, &view);
                }
            }
            // It has ended since, and was forgotten.
            Reply::Done => {
                (of.state, of.ended) = (MoveState::Done, Some(now.wall));
                let (vm, host) = (of.vm.clone(), of.to.clone());
                self.ended_at_once(now, &vm, host);
            }
            Reply::NotStarted(why) => self.not_started(now, operation, index, why.message),
            Reply::Error(why) if is_trusted => self.not_started(now, operation, index, why.message),
            // This says nothing of the start: it is asked for again under the same name.
            Reply::Error(refusal) => of.detail = refusal.message,
            _ => of.detail = "its agent answered something else than was asked".into(),
        }
    }

    /// Notes that a guest has ended since its start, and that its host forgot the VM: only the cluster knows it.
    fn ended_at_once(&mut self, now: Now, vm: &str, host: Option<String>) {
        let Some(found) = self.claimed(vm).filter(|found| found.host == host) else { return };
        let record = VmRecord { host: None, state: VmRunState::Stopped, since: now.wall, ..found };
        self.tables.put(vm, record);
        self.epoch += 1;
    }

    /// Notes that a start was not done and will not be. The VM is given back, so that another place is looked for.
    fn not_started(&mut self, now: Now, operation: &mut Operation, index: usize, why: String) {
        let of = &mut operation.moves[index];
        (of.state, of.ended, of.detail) = (MoveState::Failed, Some(now.wall), why);
        let Some(found) = self.tables.vms.get(&of.vm).map(|found| found.value.clone()) else { return };
        let (vm, home) = (of.vm.clone(), of.from.clone());
        let from = Some(home.clone()).filter(|from| !from.is_empty());
        // A start that was cut short may have left the VM there, off. What a host that had not had it said of its start
        // is over.
        let to = of.to.clone();
        let came = to.as_ref().filter(|to| **to != home);
        if let Some(observed) = came.and_then(|to| self.observed.get_mut(to)) {
            observed.vms.retain(|name, view| *name != vm || view.state == VmState::Stopped);
        }
        let there = to.filter(|to| self.reporting(to).is_some_and(|at| at.vms.contains_key(&vm)));
        let is_failover = matches!(operation.kind, OperationKind::Failover { .. });
        let (host, state) = match is_failover {
            // It is lost with its host, as before.
            true if self.is_off(&home) => (from, VmRunState::Running),
            // It is back, and may have forgotten the VM meanwhile, as it was started elsewhere.
            true => (from.filter(|from| !self.has_not(from, &vm)).or(there), VmRunState::Stopped),
            // The host that it left for this has forgotten it.
            false => (there.or(from.filter(|from| !self.has_not(from, &vm))), VmRunState::Stopped),
        };
        // Only the cluster knows a VM that no host has, also if a report that is still on its way says otherwise. So it
        // does if the dead host never had the VM, as is seen once that host is back.
        let is_claimed = host.is_none() || state == VmRunState::Running;
        self.tables.put(&vm, VmRecord { host, state, since: now.wall, is_claimed, ..found });
        self.epoch += 1;
        if is_failover && !self.is_off(&home) {
            // Its host is back meanwhile.
            let kind = OperationKind::Autostart { host: home, vms: vec![vm] };
            self.begin_operation(now, kind, OperationState::Planning, NOBODY);
        }
    }

    /// Ends an operation that starts VMs, or has it planned again.
    pub(crate) fn all_starts_over(&self, operation: &mut Operation) {
        let left = self.left_to_start(operation);
        let asked = matches!(operation.kind, OperationKind::Start { on: Some(_), .. });
        if !left.is_empty() && !asked {
            operation.state = OperationState::Planning;
            return;
        }
        let last: BTreeMap<&str, &Move> = operation.moves.iter().map(|of| (of.vm.as_str(), of)).collect();
        let is_missed = |of: &&&Move| match &operation.kind {
            // It runs, or was deleted, or somebody else saw to it.
            OperationKind::Autostart { .. } => of.state != MoveState::Done && of.to.is_none(),
            OperationKind::Failover { host } => self.is_lost(of) && self.is_off(host),
            _ => of.state != MoveState::Done,
        };
        let missed: Vec<&&Move> = last.values().filter(is_missed).collect();
        let why = |of: &Move| if of.detail.is_empty() { of.reason.clone() } else { of.detail.clone() };
        operation.message = match (&operation.kind, &missed[..]) {
            (_, []) => String::new(),
            (OperationKind::Start { .. }, [of, ..]) => why(of),
            (_, missed) => {
                let names: Vec<String> = missed.iter().map(|of| format!("{} ({})", of.vm, why(of))).collect();
                format!("{} cannot be started: {}", missed.len(), names.join(", "))
            }
        };
        operation.state = if missed.is_empty() { OperationState::Done } else { OperationState::Failed };
    }

    /// Returns whether a host forgets a VM that is off there, since it is started elsewhere.
    pub(crate) fn leaves(&self, host: &str, vm: &str) -> bool {
        let by_start =
            |found: &&Operation| matches!(found.kind, OperationKind::Start { .. } | OperationKind::Autostart { .. });
        let mut moves = self.open_operations().filter(by_start).flat_map(|found| &found.moves);
        let leaves = |of: &Move| of.vm == vm && of.from == host && of.to.as_deref().is_some_and(|to| to != host);
        moves.any(|of| of.state == MoveState::Begun && leaves(of))
    }
}

/// Says of the host that has a VM that it has the VM: a plan prefers the host, as if somebody had set that.
fn home_words(reason: &str, vm: &str, home: &str, first: Option<&str>) -> String {
    let rest = format!("' is not the first of the preferred owners of '{vm}'");
    let mut words = String::new();
    let mut left = reason;
    while let Some((before, after)) = left.split_once(&rest) {
        let (said, host) = before.rsplit_once('\'').unwrap_or(("", before));
        // Nobody has set it, or somebody has set it for this very host.
        let told = if first == Some(host) || first.is_none() { "" } else { &*format!(", and '{host}{rest}") };
        words += &format!("{said}'{home}' has it{told}");
        left = after;
    }
    words + left
}

/// Returns whether a VM has UEFI variables or a TPM, which are on the host that has it.
pub(crate) fn keeps_state(definition: &Definition) -> bool {
    let is_uefi = |firmware: &Firmware| firmware.kind == FirmwareKind::Uefi;
    definition.tpm.is_some() || definition.firmware.as_ref().is_some_and(is_uefi)
}
