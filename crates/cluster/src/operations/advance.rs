//! Where an operation goes from where it is.

use std::collections::{BTreeMap, BTreeSet};

use skein_api::cluster::{Contact, HostMode, Move, MoveState, Operation, OperationKind, OperationState};

use super::life::is_command;
use super::moves::{DEADLINE_OVER, is_called_off, is_wanted_end};
use super::record::{is_failover, starts};
use super::start::START_WAITS;
use crate::records::HostRecord;
use crate::state::{Controller, PlanPurpose, Planted};
use crate::time::Now;
use crate::view::is_guest;
use crate::words::{double_words, vms_words};

/// How long after a plan that failed another is asked for, in milliseconds.
const REPLAN_MS: u64 = 10_000;
/// What is said of a move that gave way to a later plan.
const PLANNED_AGAIN: &str = "it was planned again";

impl Controller {
    /// Advances all operations that are under way.
    pub(crate) fn advance_operations(&mut self, now: Now) {
        let mut open: Vec<String> = self.runs.keys().cloned().collect();
        // One plan is made at a time, and that of a failover first.
        let can_wait = |id: &String| !self.tables.operations.get(id).is_some_and(|of| is_failover(&of.value.kind));
        open.sort_by_key(can_wait);
        for id in open {
            let Some(operation) = self.operation(&id) else {
                self.runs.remove(&id);
                continue;
            };
            if self.waits_for_host(now, &operation) {
                continue;
            }
            match operation.state {
                _ if matches!(operation.kind, OperationKind::Fence { .. }) && !operation.state.is_over() => {
                    self.advance_fence(now, operation);
                }
                _ if matches!(operation.kind, OperationKind::Sleep { .. }) && !operation.state.is_over() => {
                    self.advance_sleep(now, operation);
                }
                _ if matches!(operation.kind, OperationKind::Wake { .. }) && !operation.state.is_over() => {
                    self.advance_wake(now, operation);
                }
                _ if operation.update.is_some() && !operation.state.is_over() => self.advance_update(now, operation),
                _ if is_command(&operation.kind) && !operation.state.is_over() => self.advance_command(now, operation),
                OperationState::Planning => self.plan_operation(now, operation),
                OperationState::Running => self.advance_running(now, operation),
                OperationState::Cancelling => self.advance_cancelling(now, operation),
                OperationState::Done | OperationState::Failed | OperationState::Cancelled => {
                    self.runs.remove(&id);
                }
            }
        }
        self.forget_operations();
    }

    /// Returns whether a drain cannot go on, as its host does not report. It waits for a host that is lost, and ends
    /// with a host that is off.
    fn waits_for_host(&mut self, now: Now, operation: &Operation) -> bool {
        let OperationKind::Drain { host, .. } = &operation.kind else { return false };
        let Some(contact) = self.tables.hosts.get(host).map(|found| found.value.contact) else { return false };
        let is_under_way = matches!(operation.state, OperationState::Planning | OperationState::Running);
        match contact {
            Contact::Off | Contact::Asleep if is_under_way => {
                let mut operation = operation.clone();
                operation.message = format!("{host} is off: its guests are started elsewhere, or were lost with it");
                operation.state = OperationState::Cancelling;
                self.save_operation(now, operation);
                true
            }
            Contact::Lost if operation.state == OperationState::Planning => {
                let cure = self.unless_answering(host, format!("if it is off: skein host fence {host} --is-off"));
                let message = format!("{host} does not report: the drain waits; {cure}");
                // What is written again and again is read again and again.
                if message != operation.message {
                    self.save_operation(now, Operation { message, ..operation.clone() });
                }
                true
            }
            _ => false,
        }
    }

    fn plan_operation(&mut self, now: Now, mut operation: Operation) {
        if starts(&operation.kind) {
            // What was begun is seen to also while the rest is planned.
            let before = operation.clone();
            for index in 0..operation.moves.len() {
                if operation.moves[index].state == MoveState::Begun {
                    self.look_at_begun_start(now, &mut operation, index);
                }
            }
            if operation != before {
                self.save_operation(now, operation.clone());
            }
        }
        let Some(run) = self.runs.get(&operation.id) else { return };
        // A host that is woken for it may have a place.
        if run.wakes.iter().any(|id| self.is_open(id)) {
            return;
        }
        let is_soon = run.plan_failed_ms.is_some_and(|failed| now.ms_since(failed) < REPLAN_MS);
        // One plan at a time: each goes by what those before it are going to do.
        let is_other = self.plans.values().any(|asked| matches!(asked.purpose, PlanPurpose::Operation { .. }));
        if run.plan.is_some() || is_other || is_soon || !self.may_plan(now, &operation) {
            return;
        }
        if starts(&operation.kind) {
            let (words, waits) = self.start_waits(now, &operation);
            if words != operation.message && (!words.is_empty() || operation.message.starts_with(START_WAITS)) {
                operation.message.clone_from(&words);
                self.save_operation(now, operation.clone());
            }
            if waits {
                return;
            }
            if self.left_to_start(&operation).is_empty() {
                if operation.moves.iter().all(|of| of.state.is_over()) {
                    return self.end_starts(now, operation);
                }
                operation.state = OperationState::Running;
                return self.save_operation(now, operation);
            }
        }
        if let OperationKind::Migrate { vm, .. } = &operation.kind
            && self.off_host(vm).is_some()
        {
            self.add_off_moves(&mut operation);
            operation.state = OperationState::Running;
            return self.save_operation(now, operation);
        }
        let (want, excluded) = self.want(now, &operation);
        let plan =
            self.ask_plan(PlanPurpose::Operation { id: operation.id.clone(), epoch: self.epoch }, want, excluded);
        if let Some(run) = self.runs.get_mut(&operation.id) {
            run.plan = Some(plan);
        }
    }

    /// Returns whether enough is known for a plan: the agents of hosts that should be online have reported, or have had
    /// the time to.
    pub(super) fn may_plan(&self, now: Now, operation: &Operation) -> bool {
        let is_waited = now.wall.0.saturating_sub(operation.created.0) > self.host_lease_ms();
        let has_reported = |name: &String| self.observed.get(name).is_some_and(|observed| observed.facts.is_some());
        let mut online = self.tables.hosts.iter().filter(|(_, host)| host.value.contact == Contact::Online);
        is_waited || online.all(|(name, _)| has_reported(name))
    }

    fn advance_running(&mut self, now: Now, mut operation: Operation) {
        let before = operation.clone();
        if let OperationKind::Drain { deadline: Some(deadline), .. } = operation.kind
            && now.wall >= deadline
            && (operation.moves.iter().any(|of| !of.state.is_over()) || self.waits_words(&operation).is_some())
        {
            operation.message = DEADLINE_OVER.into();
            operation.state = OperationState::Cancelling;
            return self.save_operation(now, operation);
        }
        if self.is_obsolete(&operation) {
            for of in operation.moves.iter_mut().filter(|of| of.state == MoveState::Waiting) {
                (of.state, of.detail, of.ended) = (MoveState::Left, PLANNED_AGAIN.into(), Some(now.wall));
            }
            operation.state = OperationState::Planning;
            return self.save_operation(now, operation);
        }
        let starts = starts(&operation.kind);
        for index in 0..operation.moves.len() {
            let is_off = operation.moves[index].off.is_some();
            match operation.moves[index].state {
                MoveState::Waiting if is_off => self.look_at_waiting_off(now, &mut operation.moves[index]),
                MoveState::Begun if is_off => self.look_at_begun_off(now, &mut operation, index),
                MoveState::Waiting if starts => {
                    self.look_at_waiting_start(now, &operation.kind, &mut operation.moves[index]);
                }
                MoveState::Begun if starts => self.look_at_begun_start(now, &mut operation, index),
                MoveState::Waiting => self.look_at_waiting(now, &mut operation, index),
                MoveState::Begun => self.look_at_begun(now, &mut operation, index),
                MoveState::Left => self.look_at_by_hand(now, &mut operation.moves[index]),
                MoveState::Done | MoveState::Failed => {}
            }
            self.tell_wait(&mut operation, index);
        }
        self.hurry(now, &operation);
        if operation.moves.iter().all(|of| of.state.is_over()) {
            self.all_moves_over(&mut operation);
        }
        if operation.state == OperationState::Running && matches!(operation.kind, OperationKind::Drain { .. }) {
            operation.message = self.waits_words(&operation).unwrap_or_default();
        }
        if operation != before {
            self.save_operation(now, operation);
        }
    }

    /// Ends an operation of which nothing is left to be started.
    fn end_starts(&mut self, now: Now, mut operation: Operation) {
        self.all_starts_over(&mut operation);
        if let (OperationKind::Start { vm, .. }, true) = (&operation.kind, operation.moves.is_empty()) {
            operation.message = self.unstartable(vm).unwrap_or_default();
            operation.state = OperationState::Failed;
        }
        self.save_operation(now, operation);
    }

    /// Returns whether rules or guests have changed since an operation was planned, and some of its moves wait. What is
    /// under way goes on. A new leader does not know, and plans again.
    fn is_obsolete(&self, operation: &Operation) -> bool {
        let is_chosen = matches!(
            operation.kind,
            OperationKind::Migrate { to: Some(_), .. } | OperationKind::Start { on: Some(_), .. }
        );
        let waits = operation.moves.iter().any(|of| of.state == MoveState::Waiting);
        let epoch = self.runs.get(&operation.id).and_then(|run| run.epoch);
        waits && !is_chosen && epoch != Some(self.epoch) && !self.has(Planted::PlanKept)
    }

    /// Ends an operation, or has it planned again.
    fn all_moves_over(&mut self, operation: &mut Operation) {
        match &operation.kind {
            OperationKind::Migrate { vm, to, .. } => {
                let last = operation.moves.iter().rfind(|of| of.vm == *vm);
                let (state, why) = last.map_or((MoveState::Left, String::new()), |of| (of.state, words_of(of)));
                let is_wanted = last.is_some_and(is_wanted_end);
                match state {
                    MoveState::Done => operation.state = OperationState::Done,
                    MoveState::Failed if to.is_none() && !is_wanted => operation.state = OperationState::Planning,
                    // It is as if the operation had been called off.
                    MoveState::Failed if last.is_some_and(is_called_off) => {
                        (operation.cancelled, operation.state) = (true, OperationState::Cancelled);
                        operation.message = why;
                    }
                    _ => (operation.state, operation.message) = (OperationState::Failed, why),
                }
            }
            OperationKind::Failover { .. } | OperationKind::Start { .. } | OperationKind::Autostart { .. } => {
                self.all_starts_over(operation);
            }
            // They have no moves, and end by themselves.
            OperationKind::Fence { .. }
            | OperationKind::Sleep { .. }
            | OperationKind::Wake { .. }
            | OperationKind::Update { .. }
            | OperationKind::Stop { .. }
            | OperationKind::Delete { .. } => {}
            OperationKind::Drain { host, .. } => {
                let host = host.clone();
                self.drained(operation, &host);
            }
            OperationKind::Resume { .. } | OperationKind::Optimize { .. } => {
                // A move that gave way to a later plan says nothing: the later plan does.
                let counts = |of: &&Move| of.detail != PLANNED_AGAIN;
                let last: BTreeMap<&str, MoveState> =
                    operation.moves.iter().filter(counts).map(|of| (of.vm.as_str(), of.state)).collect();
                let (all, failed) = (last.len(), last.values().filter(|state| **state != MoveState::Done).count());
                operation.state = if failed == 0 { OperationState::Done } else { OperationState::Failed };
                if failed > 0 {
                    let were = if failed == 1 { "was" } else { "were" };
                    operation.message = format!("{failed} of {} {were} not moved", vms_words(all, "", "").trim_end());
                    self.remember_drain(operation);
                }
            }
        }
    }

    /// Remembers whose guests a homecoming did not bring home, so that they may be asked for again.
    pub(crate) fn remember_drain(&mut self, operation: &Operation) {
        let OperationKind::Resume { host, drain } = &operation.kind else { return };
        let of = self.tables.hosts.get(host).map(|found| found.value.clone());
        if let Some(of) = of.filter(|of| of.drain.is_none()) {
            self.tables.put(host, HostRecord { drain: Some(drain.clone()), ..of });
        }
    }

    fn drained(&mut self, operation: &mut Operation, host: &str) {
        // Where these are is not known, and nothing of them is left that could leave.
        let (gone, here): (Vec<String>, Vec<String>) =
            self.guests_on(host).into_iter().partition(|vm| self.is_long_missing(vm) && self.by_hand(vm).is_none());
        let settled = |vm: &String| {
            let last = operation.moves.iter().rfind(|of| of.vm == *vm && of.from == *host);
            // What is said of a VM that is off does not count once its guest runs.
            last.is_some_and(|of| of.state == MoveState::Left && of.to.is_none() && of.off.is_none())
        };
        let (stay, new): (Vec<String>, Vec<String>) = here.into_iter().partition(settled);
        if !new.is_empty() {
            // What others are moving is waited for.
            let is_other = |vm: &String| {
                self.operation_of(vm).is_some_and(|other| other != operation.id) || self.by_hand(vm).is_some()
                    // It has left, and its new host has not told of it yet.
                    || self.missing.contains_key(vm)
            };
            if !new.iter().all(is_other) {
                operation.state = OperationState::Planning;
            }
            return;
        }
        let off = self.off_left(operation, host);
        if !off.is_empty() {
            let is_other = |vm: &String| self.operation_of(vm).is_some_and(|other| other != operation.id);
            if !off.iter().all(is_other) {
                operation.state = OperationState::Planning;
            }
            return;
        }
        // A move to this host that was begun before the drain is waited for, and its guest moved on.
        if self.begun_off_moves().any(|of| of.to.as_deref() == Some(host)) {
            return;
        }
        if self.begun_moves().any(|of| of.to.as_deref() == Some(host)) || !self.by_hand_to(host).is_empty() {
            return;
        }
        if !self.untold_on(host).is_empty() {
            return;
        }
        let doubles = self.doubles(host);
        let of = self.tables.hosts.get(host).map(|found| found.value.clone());
        if let Some(of) = of.filter(|of| of.drain.as_deref() == Some(&operation.id)) {
            self.set_mode(host, HostRecord { mode: HostMode::Maintenance, ..of });
        }
        let mut words: Vec<String> = doubles.iter().map(|(vm, others)| double_words(vm, host, others)).collect();
        let stay: Vec<String> = stay.into_iter().filter(|vm| !doubles.iter().any(|(double, _)| double == vm)).collect();
        if !stay.is_empty() {
            let how_many = vms_words(stay.len(), "cannot be moved and stays", "cannot be moved and stay");
            words.push(format!("{how_many}: {}", stay.join(", ")));
        }
        operation.state = if words.is_empty() { OperationState::Done } else { OperationState::Failed };
        words.extend(self.off_stay_words(operation, host));
        if !gone.is_empty() {
            words.push(format!("no longer on {host}, and not seen elsewhere: {}", gone.join(", ")));
        }
        operation.message = words.join("; ");
    }

    /// Returns the guests that run on a host and on others, too, with these.
    pub(crate) fn doubles(&self, host: &str) -> Vec<(String, Vec<String>)> {
        let runs_twice = self.run_twice().into_iter().filter(|(_, hosts)| hosts.contains(&host));
        let others = |hosts: Vec<&str>| hosts.into_iter().filter(|of| *of != host).map(str::to_owned).collect();
        runs_twice.map(|(vm, hosts)| (vm.to_owned(), others(hosts))).collect()
    }

    /// Returns the guests that have come to a host, and whose host of before has not told yet that they have left.
    /// Those that run on both are [`Controller::doubles`].
    pub(crate) fn untold_on(&self, host: &str) -> BTreeSet<&str> {
        let here = self.untold.iter().filter(|(of, _)| of == host).map(|(_, vm)| vm.as_str());
        let here: BTreeSet<&str> = here.collect();
        if here.is_empty() {
            return here;
        }
        let doubles = self.doubles(host);
        here.into_iter().filter(|vm| !doubles.iter().any(|(double, _)| double == vm)).collect()
    }

    /// Returns whether a VM has a guest, running or not.
    pub(crate) fn has_guest(&self, vm: &str) -> bool {
        self.tables.vms.get(vm).is_some_and(|vm| is_guest(vm.value.state))
    }

    /// Returns the VMs with a guest on a host.
    pub(crate) fn guests_on(&self, host: &str) -> Vec<String> {
        let guests = self.tables.vms_of(host).filter(|(_, vm)| is_guest(vm.state));
        guests.map(|(name, _)| name.to_owned()).collect()
    }

    fn advance_cancelling(&mut self, now: Now, mut operation: Operation) {
        let before = operation.clone();
        for index in 0..operation.moves.len() {
            match operation.moves[index].state {
                MoveState::Waiting => {
                    operation.moves[index].state = MoveState::Left;
                    operation.moves[index].detail = "it was not begun any more".into();
                }
                MoveState::Begun if operation.moves[index].off.is_some() => {
                    self.look_at_begun_off(now, &mut operation, index);
                }
                // A start cannot be called off: the VM runs, or it does not.
                MoveState::Begun if starts(&operation.kind) => {
                    self.look_at_begun_start(now, &mut operation, index);
                }
                MoveState::Begun if self.has(Planted::OverTooEarly) => operation.moves[index].state = MoveState::Left,
                MoveState::Begun => {
                    self.call_off(now, &mut operation, index);
                    self.look_at_begun(now, &mut operation, index);
                    // It is not tried again, and nothing of it is under way.
                    if operation.moves[index].state == MoveState::Waiting {
                        operation.moves[index].state = MoveState::Left;
                    }
                }
                MoveState::Done | MoveState::Failed | MoveState::Left => {}
            }
        }
        if operation.moves.iter().all(|of| of.state.is_over()) {
            self.cancelled(&mut operation);
        }
        if operation != before {
            self.save_operation(now, operation);
        }
    }

    fn cancelled(&mut self, operation: &mut Operation) {
        operation.state = if operation.cancelled { OperationState::Cancelled } else { OperationState::Failed };
        self.remember_drain(operation);
        let OperationKind::Drain { host, .. } = &operation.kind else { return };
        let of = self.tables.hosts.get(host).map(|found| found.value.clone());
        let Some(of) = of.filter(|of| of.drain.as_deref() == Some(&operation.id)) else { return };
        // After a call-off all is as before. A host whose deadline ran out is wanted empty all the same.
        let mode = if operation.cancelled { HostMode::Active } else { HostMode::Maintenance };
        let host = host.clone();
        let stay = self.guests_on(&host).into_iter().filter(|vm| !self.is_long_missing(vm)).count();
        if !operation.cancelled && stay > 0 {
            operation.message = format!("{}: {}", operation.message, vms_words(stay, "stays", "stay"));
        }
        self.set_mode(&host, HostRecord { mode, ..of });
    }
}

/// Returns why a move was not made.
fn words_of(of: &skein_api::cluster::Move) -> String {
    if of.detail.is_empty() { of.reason.clone() } else { of.detail.clone() }
}
