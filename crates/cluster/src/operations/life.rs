//! A VM's life: VMs are created, started, stopped and deleted by the cluster.
//!
//! A VM that no host has is a record with a definition. Stopping and forgetting are commands that may be carried out
//! twice: an operation asks for them again until the host says that they are done, or that they cannot be.

use skein_api::cluster::{
    Contact, CreateVmRequest, HostMode, Move, Operation, OperationKind, OperationState, StartVmRequest, StopVmRequest,
    UnixMs, VmRunState,
};
use skein_api::{Reply, Request, STOP_TIMEOUT_RANGE_S, VmState, VmView};
use skein_inventory::definition::Definition;

use super::record::is_owner;
use crate::answer::{Answer, RefusedKind};
use crate::ask::{no_host, no_vm};
use crate::planner::{Excluded, Want};
use crate::records::VmRecord;
use crate::state::{CommandPurpose, Controller, PlanBasis, PlanPurpose};
use crate::time::Now;
use crate::view::is_guest;
use crate::words::{not_active_words, refusal_words};

/// How much longer than it may take a stop waits for a host that does not report, in seconds.
const SILENT_S: u64 = 60;

impl Controller {
    // ---- what is asked ----

    /// Creates a VM, or starts one that is off from another definition. `None`: the answer takes a plan.
    pub(crate) fn create_vm(&mut self, now: Now, request: &CreateVmRequest, asked: u64, by: &str) -> Option<Answer> {
        let definition = match Definition::parse(&request.definition, "definition") {
            Ok(definition) => definition,
            Err(error) => return Some(Answer::refused(RefusedKind::Invalid, error.to_string(), "mend it")),
        };
        let name = definition.name.clone();
        let before = self.tables.vms.get(&name).map(|found| found.value.clone());
        let record = VmRecord {
            ram_bytes: definition.memory_bytes,
            cpus: definition.cpus,
            adopted: false,
            definition: Some(definition.to_toml()),
            ..before.clone().unwrap_or(VmRecord { since: now.wall, ..VmRecord::default() })
        };
        if before.is_some()
            && let Some(refusal) = self.not_off(&name)
        {
            return Some(refusal);
        }
        let is_new = record.host.is_none();
        if !request.start && !is_new {
            let host = record.host.unwrap_or_default();
            let cure = format!("start it from the new file, or delete it first: skein vm delete {name}");
            return Some(Answer::conflict(format!("'{name}' is a VM already, which is off on '{host}'"), cure));
        }
        if let Some(refusal) = request.on.as_deref().and_then(|on| self.takes_none(&name, &record, on)) {
            return Some(refusal);
        }
        let kind = OperationKind::Start {
            vm: name.clone(),
            on: request.on.clone(),
            definition: record.definition.clone().filter(|_| !is_new),
        };
        if request.dry_run {
            return self.preview_start(now, kind, &name, &record, asked, by);
        }
        self.take_out_waiting_off(now, &name);
        if is_new {
            self.tables.put(&name, record);
        }
        Some(if request.start { self.begin_start(now, kind, &name, by) } else { Answer::Done })
    }

    /// Starts a VM that is off. `None`: the answer takes a plan.
    pub(crate) fn start_vm(
        &mut self,
        now: Now,
        vm: &str,
        request: &StartVmRequest,
        asked: u64,
        by: &str,
    ) -> Option<Answer> {
        let Some(record) = self.tables.vms.get(vm).map(|found| found.value.clone()) else { return Some(no_vm(vm)) };
        if let Some(refusal) = self.not_off(vm) {
            return Some(refusal);
        }
        let home = record.host.clone();
        // Another program had started it: only the host that had it knows how.
        let on = request.on.clone().or_else(|| home.filter(|_| record.definition.is_none()));
        if let Some(refusal) = on.as_deref().and_then(|on| self.takes_none(vm, &record, on)) {
            return Some(refusal);
        }
        let kind = OperationKind::Start { vm: vm.to_owned(), on, definition: None };
        if request.dry_run {
            return self.preview_start(now, kind, vm, &record, asked, by);
        }
        self.take_out_waiting_off(now, vm);
        Some(self.begin_start(now, kind, vm, by))
    }

    /// Refuses what is for a VM that is off, if it is not, or if it is not known whether it is.
    fn not_off(&self, vm: &str) -> Option<Answer> {
        if let Some(operation) = self.operation_of(vm).filter(|_| !self.only_waits_off(vm)) {
            let message = format!("'{vm}' is in an operation already: {operation}");
            return Some(Answer::conflict(message, format!("follow it: skein operation watch {operation}")));
        }
        let record = self.tables.vms.get(vm).map(|found| &found.value)?;
        let host = record.host.as_deref().unwrap_or_default();
        let contact = self.tables.hosts.get(host).map(|found| found.value.contact);
        if let Some(silent) = self.unheard(host, vm).first().filter(|_| self.missing.contains_key(vm)) {
            if !self.tables.hosts.contains_key(silent) {
                let message = format!("somebody moved '{vm}' to '{silent}', which is no host of this cluster");
                return Some(Answer::conflict(
                    message,
                    format!("have the cluster forget it first: skein vm delete {vm}"),
                ));
            }
            let message = format!("'{host}' has '{vm}' no more: it may be on '{silent}', which does not report");
            return Some(Answer::conflict(message, self.silent_cure(silent)));
        }
        if contact.is_some_and(is_silent) {
            let message = match is_guest(record.state) {
                true => format!("'{vm}' is on '{host}', which does not report"),
                false => format!("'{vm}' is of '{host}', which does not report: it may have been started there"),
            };
            return Some(Answer::conflict(message, self.silent_cure(host)));
        }
        if is_guest(record.state) && !contact.is_some_and(Contact::is_off) {
            let cure = format!("stop it first: skein vm stop {vm} --cluster");
            return Some(Answer::conflict(format!("'{vm}' is not off: it is on '{host}'"), cure));
        }
        let why = self.unstartable(vm)?;
        Some(Answer::conflict(format!("'{vm}' is not known to be off: {why}"), "see skein vm list on the hosts"))
    }

    /// Refuses a host that somebody chose for a VM, if it takes none, or not this VM.
    pub(crate) fn takes_no_guest(&self, vm: &str, record: &VmRecord, on: &str) -> Option<Answer> {
        let Some(host) = self.tables.hosts.get(on).map(|found| &found.value) else { return Some(no_host(on)) };
        if host.contact == Contact::Asleep {
            return Some(Answer::conflict(format!("'{on}' sleeps"), format!("skein host wake {on}")));
        }
        if host.mode != HostMode::Active {
            let (message, cure) = not_active_words(on);
            return Some(Answer::conflict(message, cure));
        }
        if host.contact != Contact::Online {
            let cure = "choose another host, or see that its agent runs";
            return Some(Answer::conflict(format!("'{on}' does not report"), cure));
        }
        if let Some(refusal) = self.closed_refusal(on) {
            return Some(refusal);
        }
        if !is_owner(Some(record), Some(on)) {
            let message = format!("'{on}' is none of the possible owners of '{vm}'");
            return Some(Answer::conflict(message, "change its settings first, or choose another host"));
        }
        None
    }

    /// Refuses a host that somebody chose for a start, if it takes none, or cannot start this VM.
    fn takes_none(&self, vm: &str, record: &VmRecord, on: &str) -> Option<Answer> {
        if let Some(refusal) = self.takes_no_guest(vm, record, on) {
            return Some(refusal);
        }
        if record.definition.is_none() && record.host.as_deref() != Some(on) {
            let message = format!("nobody knows the definition of '{vm}': another program had started it");
            return Some(Answer::conflict(message, "start it from a file: skein vm start FILE --cluster"));
        }
        let why = self.unsuited(record.definition.as_deref(), record.host.as_deref()).remove(on)?;
        Some(Answer::conflict(format!("'{on}' cannot run '{vm}': {why}"), "mend that, or choose another host"))
    }

    fn begin_start(&mut self, now: Now, kind: OperationKind, vm: &str, by: &str) -> Answer {
        let operation = match self.asked_move(&kind, vm) {
            None => self.begin_operation(now, kind, OperationState::Planning, by),
            Some(of) => {
                let mut operation = self.unsaved_operation(now, kind, OperationState::Running, by);
                operation.moves.push(of);
                self.keep_operation(now, operation)
            }
        };
        Answer::Operation(Box::new(operation))
    }

    /// Returns the start on the host that somebody chose.
    fn asked_move(&self, kind: &OperationKind, vm: &str) -> Option<Move> {
        let OperationKind::Start { on: Some(on), definition, .. } = kind else { return None };
        let record = self.tables.vms.get(vm).map(|found| &found.value);
        let from = record.and_then(|record| record.host.clone()).unwrap_or_default();
        let definition = definition.as_deref().or(record.and_then(|record| record.definition.as_deref()));
        let baseline = self.cpu_baseline_of(definition, on).map(|baseline| format!("; {baseline}"));
        Some(Move::new(vm, &from, Some(on), &format!("asked for{}", baseline.unwrap_or_default())))
    }

    fn preview_start(
        &mut self,
        now: Now,
        kind: OperationKind,
        vm: &str,
        record: &VmRecord,
        asked: u64,
        by: &str,
    ) -> Option<Answer> {
        let mut kind = kind;
        if let OperationKind::Start { definition, .. } = &mut kind {
            // The cluster may not know it yet.
            definition.clone_from(&record.definition);
        }
        let mut operation = self.unsaved_operation(now, kind.clone(), OperationState::Planning, by);
        if let Some(of) = self.asked_move(&kind, vm) {
            operation.moves.push(of);
            return Some(self.begin_or_show(now, operation, true));
        }
        let unsuited = self.unsuited(record.definition.as_deref(), record.host.as_deref()).into_keys().collect();
        let excluded = Excluded::from([(vm.to_owned(), unsuited)]);
        let purpose = PlanPurpose::Preview { asked, operation: Box::new(operation) };
        let (want, unknown) =
            (Want::Start { vms: vec![vm.to_owned()] }, Some(Box::new((vm.to_owned(), record.clone()))));
        self.ask_plan_for(purpose, PlanBasis::Guests { want, excluded, unknown });
        None
    }

    /// Stops a VM.
    pub(crate) fn stop_vm(&mut self, now: Now, vm: &str, request: &StopVmRequest, by: &str) -> Answer {
        let Some(record) = self.tables.vms.get(vm).map(|found| found.value.clone()) else { return no_vm(vm) };
        if !STOP_TIMEOUT_RANGE_S.contains(&request.timeout_s) {
            let most = STOP_TIMEOUT_RANGE_S.end();
            return Answer::refused(
                RefusedKind::Invalid,
                format!("timeout_s is at most {most}"),
                "choose a shorter time",
            );
        }
        if let Some(operation) = self.operation_of(vm) {
            let message = format!("'{vm}' is in an operation already: {operation}");
            let cure = format!("follow it, or call it off: skein operation cancel {operation}");
            return Answer::conflict(message, cure);
        }
        if !is_guest(record.state) {
            let cure = format!("start it: skein vm start {vm} --cluster; or have it forgotten: skein vm delete {vm}");
            return Answer::conflict(format!("'{vm}' is off already"), cure);
        }
        let host = record.host.as_deref().unwrap_or_default();
        if self.tables.hosts.get(host).is_some_and(|found| is_silent(found.value.contact)) {
            let message = format!("'{vm}' cannot be stopped: its host '{host}' does not report");
            return Answer::conflict(message, self.silent_cure(host));
        }
        let StopVmRequest { timeout_s, force } = *request;
        let kind = OperationKind::Stop { vm: vm.to_owned(), timeout_s, force };
        let operation = self.begin_operation(now, kind, OperationState::Running, by);
        self.tables.put(vm, VmRecord { stop_asked: true, ..record });
        Answer::Operation(Box::new(operation))
    }

    /// Returns whether a VM is on a host that is none of the cluster, or a person may have moved it to one and its host
    /// has it no more.
    fn has_left_cluster(&self, vm: &str, record: &VmRecord) -> bool {
        if record.host.as_ref().is_some_and(|host| !self.tables.hosts.contains_key(host)) {
            return true;
        }
        let is_off = record.host.as_deref().is_some_and(|host| self.is_off(host));
        self.goes_outside(record) && (is_off || self.is_long_missing(vm))
    }

    /// Forgets a VM that is off, or that has left the cluster.
    pub(crate) fn delete_vm(&mut self, now: Now, vm: &str, by: &str) -> Answer {
        let Some(record) = self.tables.vms.get(vm).map(|found| found.value.clone()) else { return no_vm(vm) };
        if self.has_left_cluster(vm, &record) && self.operation_of(vm).is_none() {
            self.missing.remove(vm);
            self.tables.delete::<VmRecord>(vm);
            self.epoch += 1;
            return Answer::Done;
        }
        if let Some(refusal) = self.not_off(vm) {
            return refusal;
        }
        let host = record.host.unwrap_or_default();
        if self.tables.hosts.get(&host).is_some_and(|found| found.value.contact.is_off()) {
            let remove = format!("remove that host with all its VMs: skein host remove {host} --force");
            let cure = format!("delete it when '{host}' is back, or {remove}");
            return Answer::conflict(format!("'{host}' is off, and would still know '{vm}'"), cure);
        }
        self.take_out_waiting_off(now, vm);
        let operation =
            self.begin_operation(now, OperationKind::Delete { vm: vm.to_owned() }, OperationState::Running, by);
        Answer::Operation(Box::new(operation))
    }

    // ---- what becomes of it ----

    /// Sees how far a stop or a deletion is.
    pub(crate) fn advance_command(&mut self, now: Now, mut operation: Operation) {
        if operation.state == OperationState::Cancelling {
            operation.state = OperationState::Cancelled;
            operation.message = "what its host was asked for is not taken back".into();
            self.save_operation(now, operation.clone());
            let OperationKind::Stop { vm, .. } = &operation.kind else { return };
            if let Some(found) = self.tables.vms.get(vm).map(|found| found.value.clone()) {
                let home = found.host.clone().unwrap_or_default();
                self.tables.put(vm, VmRecord { stop_asked: false, ..found });
                self.fail_over_late(now, &home);
            }
            return;
        }
        let (OperationKind::Stop { vm, .. } | OperationKind::Delete { vm }) = operation.kind.clone() else { return };
        let is_stop = matches!(operation.kind, OperationKind::Stop { .. });
        let Some(record) = self.tables.vms.get(&vm).map(|found| found.value.clone()) else {
            let state = if is_stop { OperationState::Failed } else { OperationState::Done };
            return self.end_command(now, operation, state, "the cluster does not know it any more");
        };
        let host = record.host.clone().unwrap_or_default();
        let contact = self.tables.hosts.get(&host).map(|found| found.value.contact);
        if contact.is_some_and(Contact::is_off) {
            if !is_stop {
                let why = format!("{host} is off, and would still know it: delete it when {host} is back");
                return self.end_command(now, operation, OperationState::Failed, &why);
            }
            if let Some(silent) = self.awaited(&host, &vm).pop_first() {
                return self.wait_for_host(now, operation, &silent);
            }
            self.tables.put(&vm, VmRecord { state: VmRunState::Stopped, since: now.wall, ..record });
            let words = format!("{host} is off, and it ended with it");
            return self.end_command(now, operation, OperationState::Done, &words);
        }
        if is_stop && contact.is_none() && !host.is_empty() {
            let why = format!("{host} is no host of this cluster any more: stop it there, or skein vm delete {vm}");
            return self.end_command(now, operation, OperationState::Failed, &why);
        }
        if !is_stop && contact.is_none() {
            self.tables.delete::<VmRecord>(&vm);
            return self.end_command(now, operation, OperationState::Done, "");
        }
        if contact.is_some_and(is_silent) {
            return self.wait_for_host(now, operation, &host);
        }
        let Some(observed) = self.reporting(&host) else { return };
        let session = observed.session;
        if is_stop && !record.is_claimed && !observed.vms.contains_key(&vm) {
            // It has gone elsewhere, which another host says in a moment.
            return self.wait_for_vm(now, operation, &host);
        }
        let is_there = record.is_claimed
            || match observed.vms.get(&vm).map(|view| view.state) {
                None => false,
                Some(VmState::Stopped) => !is_stop,
                Some(_) => true,
            };
        if !is_there {
            if !is_stop {
                self.missing.remove(&vm);
                self.tables.delete::<VmRecord>(&vm);
            }
            return self.end_command(now, operation, OperationState::Done, "");
        }
        let purpose = CommandPurpose::Operate { operation: operation.id.clone() };
        let request = match operation.kind {
            OperationKind::Stop { timeout_s, force, .. } => Request::VmStop { name: vm, timeout_s, force },
            _ => Request::VmForget { name: vm },
        };
        if let Some(session) = session.filter(|_| !self.is_asked(&purpose)) {
            self.send(session, purpose, None, request);
        }
    }

    /// Says that a stop or a deletion waits for a host that does not report, and gives up after a while: others may
    /// want something of the VM.
    fn wait_for_host(&mut self, now: Now, operation: Operation, host: &str) {
        let cure = match self.tables.hosts.contains_key(host) {
            true => self.silent_cure(host),
            false => format!("{host} is no host of this cluster: see there"),
        };
        let why = format!("{host} does not report any more, and whether that was done is not known: {cure}");
        self.wait_or_fail(now, operation, &format!("waits for {host}, which does not report: {cure}"), &why);
    }

    /// Says that a stop waits for a VM that its host has no more, and gives up after a while.
    fn wait_for_vm(&mut self, now: Now, operation: Operation, host: &str) {
        let cure = "see that all hosts report: skein host list";
        let why = format!("{host} has it no more, and no host that reports has it: {cure}");
        self.wait_or_fail(now, operation, &format!("waits for the host that has it by now: {cure}"), &why);
    }

    fn wait_or_fail(&mut self, now: Now, mut operation: Operation, message: &str, why: &str) {
        let timeout_s = if let OperationKind::Stop { timeout_s, .. } = operation.kind { timeout_s } else { 0 };
        let patience_ms = (timeout_s + SILENT_S) * 1000 + self.host_lease_ms();
        let until = UnixMs(operation.created.0.saturating_add(patience_ms));
        if now.is_over(until, patience_ms) {
            return self.end_command(now, operation, OperationState::Failed, why);
        }
        if operation.message != message {
            operation.message = message.to_owned();
            self.save_operation(now, operation);
        }
    }

    /// Takes the answer to a stop or to a deletion.
    pub(crate) fn commanded(&mut self, now: Now, host: &str, id: &str, reply: Reply) {
        let Some(operation) = self.operation(id).filter(|found| !found.state.is_over()) else { return };
        match (&operation.kind, reply) {
            (OperationKind::Update { .. }, reply) => self.update_answered(now, operation, reply),
            (OperationKind::Sleep { .. }, reply) => self.told_to_stop(now, operation, reply),
            (OperationKind::Stop { vm, .. }, Reply::Vm(view)) => {
                let record = self.tables.vms.get(vm).map(|found| found.value.clone());
                if view.state != VmState::Stopped || record.as_ref().is_some_and(|of| of.host.as_deref() != Some(host))
                {
                    // The guest has left before it ended: it is stopped where it is by now.
                    return;
                }
                self.saw(&view);
                if let Some(record) = record {
                    self.tables.put(vm, VmRecord { state: VmRunState::Stopped, since: now.wall, ..record });
                }
                self.end_command(now, operation, OperationState::Done, "");
            }
            (OperationKind::Delete { vm }, Reply::Done) => {
                let host = self.tables.vms.get(vm).and_then(|found| found.value.host.clone()).unwrap_or_default();
                self.observed.get_mut(&host).map(|observed| observed.vms.remove(vm));
                self.missing.remove(vm);
                self.tables.delete::<VmRecord>(vm);
                self.end_command(now, operation, OperationState::Done, "");
            }
            (_, Reply::Error(refusal)) => {
                let words = refusal_words(refusal);
                self.end_command(now, operation, OperationState::Failed, &words);
            }
            (_, _) => {
                let words = "its agent answered something else than was asked";
                self.end_command(now, operation, OperationState::Failed, words);
            }
        }
    }

    /// Takes over what the host of a VM has just answered: the host's next report may be a while off.
    pub(crate) fn saw(&mut self, view: &VmView) {
        let host = self.tables.vms.get(&view.name).and_then(|found| found.value.host.clone()).unwrap_or_default();
        if let Some(observed) = self.observed.get_mut(&host) {
            observed.vms.insert(view.name.clone(), view.clone());
        }
    }

    fn end_command(&mut self, now: Now, mut operation: Operation, state: OperationState, why: &str) {
        if let (OperationKind::Stop { vm, .. }, OperationState::Failed) = (&operation.kind, state) {
            self.stops_no_more(vm);
        }
        (operation.state, operation.message) = (state, why.to_owned());
        self.save_operation(now, operation);
    }

    /// Returns whether the cluster stops a VM now.
    pub(crate) fn is_being_stopped(&self, vm: &str) -> bool {
        let of_vm = |kind: &OperationKind| matches!(kind, OperationKind::Stop { vm: of, .. } if of == vm);
        self.open_operations().any(|found| of_vm(&found.kind))
    }

    /// Notes that nobody stops a VM any more: should its host die, the VM is started elsewhere. A VM whose host is off
    /// already is what somebody wanted to be off.
    pub(crate) fn stops_no_more(&mut self, vm: &str) {
        let Some(found) = self.tables.vms.get(vm).map(|found| found.value.clone()) else { return };
        if found.stop_asked && !found.host.as_deref().is_some_and(|host| self.is_off(host)) {
            self.tables.put(vm, VmRecord { stop_asked: false, ..found });
        }
    }
}

/// Returns whether nothing is heard of a host.
fn is_silent(contact: Contact) -> bool {
    matches!(contact, Contact::Lost | Contact::Joined)
}

/// Returns whether an operation is one command to a host, and has no moves.
pub(super) fn is_command(kind: &OperationKind) -> bool {
    matches!(kind, OperationKind::Stop { .. } | OperationKind::Delete { .. })
}
