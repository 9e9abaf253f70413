//! Moves: which begin, and what becomes of them.

use std::collections::BTreeMap;

use skein_api::cluster::{Contact, HostMode, Move, MoveState, Operation, OperationKind, OperationState, VmRunState};
use skein_api::{
    FailureReason, HoldOptions, MigrateOptions, Migration, MigrationId, Outcome, Reply, Request, Severity, VmState,
};

use super::by_hand::MOVED_BY_HAND;
use super::record::{Pending, is_failover, is_held, is_owner, starts};
use crate::observed::SessionId;
use crate::records::VmRecord;
use crate::seen::RATE_UNKNOWN;
use crate::state::{CommandPurpose, Controller, Output, Outstanding, Planted};
use crate::time::Now;
use crate::view::{is_guest, is_live, run_state};
use crate::words::refusal_words;

/// What is said of a migration that somebody called off.
const CALLED_OFF: &str = "somebody called it off";
/// What is said of a drain whose deadline is over, and of the moves that are called off for that.
pub(super) const DEADLINE_OVER: &str = "its deadline ran out";
/// What is said of a move that waits for others.
const WAITS: &str = "it waits until ";
/// How many of these are told.
const WAITS_TOLD_MAX: usize = 3;
/// How often an agent is asked which migration it begins next by itself, in milliseconds.
const ASK_AGAIN_MS: u64 = 500;
/// How often an agent is asked to call off what it was asked for, in milliseconds.
const WITHDRAW_MS: u64 = 1000;
/// The migrations at once that an agent allows whose facts are not known.
const SLOTS_UNKNOWN: u32 = 2;
/// What a core moves of guests' memory in a second at least, QEMU, TLS and compression together.
const CORE_BYTES_PER_S: f64 = 500e6;

impl Controller {
    // ---- which begin ----

    /// Returns how many migrations to and from a host may be under way: as many as the host's settings and its agent
    /// allow. Where the links carry more than the idle cores can move, each migration takes a core, and there are no
    /// more than idle cores; one at least.
    pub(crate) fn slots(&self, host: &str) -> (u32, u32) {
        let observed = self.observed.get(host);
        let settings = self.tables.hosts.get(host).map(|found| &found.value.settings);
        let facts = observed.and_then(|observed| observed.facts.as_ref());
        let idle = facts.zip(observed.and_then(|observed| observed.load)).map(|(facts, load)| {
            let busy = load.cpu_millicores.div_ceil(1000).min(u64::from(facts.cpus)) as u32;
            let idle = (facts.cpus - busy).max(1);
            let is_links = self.rate(host).unwrap_or(RATE_UNKNOWN) <= f64::from(idle) * CORE_BYTES_PER_S;
            if is_links { u32::MAX } else { idle }
        });
        let most = |set: Option<u32>, of_agent: Option<u32>| {
            let most = set.unwrap_or(u32::MAX).min(of_agent.unwrap_or(SLOTS_UNKNOWN));
            most.min(idle.unwrap_or(SLOTS_UNKNOWN)).max(1)
        };
        (
            most(settings.and_then(|set| set.incoming_max), facts.map(|facts| facts.incoming.limit)),
            most(settings.and_then(|set| set.outgoing_max), facts.map(|facts| facts.outgoing.limit)),
        )
    }

    /// Begins the moves that may begin, the most important first.
    ///
    /// What a failover starts goes first, and waits for no migration.
    pub(crate) fn begin_moves(&mut self, now: Now) {
        let mut waiting: Vec<(bool, u8, String, usize)> = Vec::new();
        for id in self.runs.keys() {
            let Some(found) = self.tables.operations.get(id) else { continue };
            if found.value.state != OperationState::Running {
                continue;
            }
            for (index, of) in found.value.moves.iter().enumerate() {
                if of.state == MoveState::Waiting && self.is_ready(now, &found.value, of) {
                    let settings = self.tables.vms.get(&of.vm).map(|vm| &vm.value.settings);
                    let priority = settings.and_then(|set| set.priority).unwrap_or(0);
                    waiting.push((!is_failover(&found.value.kind), u8::MAX - priority, id.clone(), index));
                }
            }
        }
        waiting.sort();
        let mut is_full = false;
        for (can_wait, _, id, index) in waiting {
            let is_off = self.tables.operations.get(&id).is_some_and(|found| found.value.moves[index].off.is_some());
            // Moves only begin here, so once there are enough they are not counted again.
            is_full = is_full || self.begun_moves().count() >= self.tables.settings.value.migrations_max as usize;
            if is_full && !is_off && can_wait {
                continue;
            }
            self.begin_if_free(now, &id, index);
        }
    }

    /// Returns whether nothing but slots keeps a move from beginning.
    fn is_ready(&self, now: Now, operation: &Operation, of: &Move) -> bool {
        let mut before = of.waits.iter().filter_map(|before| operation.moves.get(*before as usize));
        let is_free = before.all(|before| before.state.is_over()) && self.stay_before(of).next().is_none();
        let host = self.tables.vms.get(&of.vm).map(|vm| vm.value.host.as_deref().unwrap_or_default());
        let is_here = host == Some(&of.from) && (!starts(&operation.kind) || self.may_start(now, operation, of));
        let is_moved = self.by_hand(&of.vm).is_some();
        is_free && is_here && !is_moved && !of.not_before.is_some_and(|time| now.is_before(time))
    }

    /// Returns the moves of guests that have to have left a move's target before. One that is held is not waited for.
    fn stay_before<'a>(&'a self, of: &'a Move) -> impl Iterator<Item = &'a Move> {
        // Most moves wait for none, and hundreds may be open.
        let open = (!of.after.is_empty()).then(|| self.pending(Pending::All)).into_iter().flatten();
        let open = open.filter(|(operation, other)| !is_held(operation, other)).map(|(_, other)| other);
        open.filter(|other| of.to.as_ref() == Some(&other.from) && of.after.contains(&other.vm))
    }

    /// Says for what a move waits.
    pub(super) fn tell_wait(&self, operation: &mut Operation, index: usize) {
        let of = &operation.moves[index];
        let is_own = of.detail.is_empty() || of.detail.starts_with(WAITS);
        if of.state != MoveState::Waiting || !is_own {
            return;
        }
        let before = of.waits.iter().filter_map(|before| operation.moves.get(*before as usize));
        let before = before.filter(|before| !before.state.is_over()).chain(self.stay_before(of));
        let names: Vec<String> = before.map(|before| format!("{} has left {}", before.vm, before.from)).collect();
        let mut told = names.iter().take(WAITS_TOLD_MAX).cloned().collect::<Vec<String>>();
        if names.len() > told.len() {
            told.push(format!("{} more have", names.len() - told.len()));
        }
        let words = if told.is_empty() { String::new() } else { format!("{WAITS}{}", told.join(" and ")) };
        operation.moves[index].detail = words;
    }

    /// Counts what comes to a host while a guest waits to be started there: a failover only waits for other starts, and
    /// nothing for what is held.
    fn comes_before_start(&self, operation: &Operation, host: &str) -> u32 {
        if self.has(Planted::SlotsForgotten) {
            return 0;
        }
        let begun = self.pending(Pending::All).filter(|(_, of)| of.off.is_none() && of.state == MoveState::Begun);
        let counts =
            |other: &Operation, of: &Move| starts(&other.kind) || !is_failover(&operation.kind) && !is_held(other, of);
        begun.filter(|(other, of)| of.to.as_deref() == Some(host) && counts(other, of)).count() as u32
    }

    /// Returns whether slots are free for a move, and its hosts are there.
    fn is_free(&self, operation: &Operation, index: usize) -> bool {
        let of = &operation.moves[index];
        let Some(to) = &of.to else { return false };
        if of.off.is_some() {
            return self.is_free_off(of, to);
        }
        let is_online = |host: &str| {
            self.session_of(host).is_some()
                && self.tables.hosts.get(host).is_some_and(|found| found.value.contact == Contact::Online)
        };
        if starts(&operation.kind) {
            let may_begin = self.claimed_by(&of.vm).is_none() && is_online(to);
            return may_begin && self.comes_before_start(operation, to) < self.slots(to).0;
        }
        let leaves = is_online(&of.from) && self.slots_used(&of.from).1 < self.slots(&of.from).1;
        leaves && is_online(to) && self.slots_used(to).0 < self.slots(to).0
    }

    fn begin_if_free(&mut self, now: Now, id: &str, index: usize) {
        // Most that wait go on waiting: nothing is copied for them.
        if !self.tables.operations.get(id).is_some_and(|found| self.is_free(&found.value, index)) {
            return;
        }
        let Some(mut operation) = self.operation(id) else { return };
        let starts = starts(&operation.kind);
        let of = &mut operation.moves[index];
        of.state = MoveState::Begun;
        of.attempts += 1;
        of.begun = of.begun.or(Some(now.wall));
        (of.migration, of.not_before) = (None, None);
        of.detail.clear();
        let begun = of.clone();
        let memory = self.memory_of(&begun.vm);
        if let Some(run) = self.runs.get_mut(id) {
            run.memory.insert(index, memory);
        }
        self.save_operation(now, operation.clone());
        if begun.off.is_some() {
            // Only its agents are asked, whose answers come later.
            let before = operation.clone();
            self.look_at_begun_off(now, &mut operation, index);
            if operation != before {
                self.save_operation(now, operation);
            }
        } else if starts {
            let before = self.epoch;
            self.claim(now, &begun);
            // This is what the operation's own plan is for: it need not be made again.
            if let Some(run) = self.runs.get_mut(id).filter(|run| run.epoch == Some(before)) {
                run.epoch = Some(self.epoch);
            }
            // The agent is asked when it is seen that no other host has the VM.
            self.look_at_begun_start(now, &mut operation, index);
        } else {
            self.send_begin(&operation, index);
        }
    }

    /// Asks the source's agent for the migration of a move.
    fn send_begin(&mut self, operation: &Operation, index: usize) {
        let of = &operation.moves[index];
        let (Some(to), Some(session)) = (of.to.clone(), self.session_of(&of.from)) else { return };
        let settings = self.tables.vms.get(&of.vm).map(|vm| &vm.value.settings);
        let (rate_bits_per_s, hold) = terms(&operation.kind, &of.vm);
        let priority = settings.and_then(|set| set.priority);
        let options = MigrateOptions { priority, rate_bits_per_s, ..MigrateOptions::default() };
        let (vm, detach) = (of.vm.clone(), true);
        let request = match hold.cloned() {
            None => Request::Migrate { vm, to, options, detach },
            Some(hold) => Request::MigrateHeld { vm, to, options, hold, detach },
        };
        let request_id = Some(request_name(&operation.id, index, of.attempts));
        let purpose = CommandPurpose::Begin { operation: operation.id.clone(), index };
        self.send(session, purpose, request_id, request);
    }

    pub(crate) fn send(
        &mut self,
        session: SessionId,
        purpose: CommandPurpose,
        request_id: Option<String>,
        request: Request,
    ) {
        let Some(term) = self.term() else { return };
        let command = self.number();
        self.commands.insert(command, Outstanding { session, purpose });
        self.effect(Output::Command { session, command, term, request_id, request: Box::new(request) });
    }

    /// Asks the source's agent to call a move's migration off, unless it was asked already.
    pub(crate) fn call_off(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = &mut operation.moves[index];
        let (Some(id), Some(session)) = (of.migration, self.session_of(&of.from)) else { return };
        let purpose = CommandPurpose::CallOff { operation: operation.id.clone(), index };
        let is_under_way = self.observed.get(&of.from).and_then(|observed| observed.migrations.get(&id));
        let is_under_way = is_under_way.is_none_or(|migration| migration.outcome.is_none());
        // An agent that refuses is not asked at once again.
        if is_under_way && !self.is_asked(&purpose) && !of.not_before.is_some_and(|time| now.is_before(time)) {
            of.not_before = Some(now.in_ms(WITHDRAW_MS));
            self.send(session, purpose, None, Request::MigrationCancel { id: id.to_string() });
        }
    }

    /// Asks the source's agent to call off what it was asked for, and which migration came of that: it may be checking
    /// yet, or about to begin again. What it says of the guest meanwhile settles nothing.
    fn withdraw(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = &mut operation.moves[index];
        let Some(session) = self.reporting(&of.from).and_then(|source| source.session) else { return };
        let purpose = CommandPurpose::Withdraw { operation: operation.id.clone(), index };
        if !self.is_asked(&purpose) && !of.not_before.is_some_and(|time| now.is_before(time)) {
            of.not_before = Some(now.in_ms(WITHDRAW_MS));
            let id = request_name(&operation.id, index, of.attempts);
            self.send(session, purpose, None, Request::MigrationWithdraw { id });
        }
    }

    /// Takes the answer to that.
    pub(crate) fn withdrawn(&mut self, now: Now, id: &str, index: usize, reply: Reply) {
        let Some(mut operation) = self.operation(id) else { return };
        let Some(of) = operation.moves.get_mut(index) else { return };
        if of.state != MoveState::Begun || of.migration.is_some() {
            return;
        }
        match reply {
            Reply::Migration(migration) => self.note_begun(of, *migration),
            Reply::Done => {
                self.settle_unknown(now, of);
                let is_here = self.reporting(&of.from).is_some_and(|source| source.vms.contains_key(&of.vm));
                let off = of.to.clone().filter(|to| is_here && self.is_off(to));
                if let Some(to) = off.filter(|_| of.state == MoveState::Left) {
                    fail(now, of, format!("{to} is off"));
                }
                self.epoch += u64::from(of.state.is_over());
            }
            // This says nothing.
            _ => return,
        }
        self.save_operation(now, operation);
    }

    fn note_begun(&mut self, of: &mut Move, migration: Migration) {
        of.migration = Some(migration.id);
        if let Some(observed) = self.observed.get_mut(&of.from) {
            observed.migrations.insert(migration.id, migration);
        }
    }

    // ---- what becomes of them ----

    /// Takes the answer to the request for a migration.
    pub(crate) fn begun(&mut self, now: Now, id: &str, index: usize, reply: Reply) {
        let Some(mut operation) = self.operation(id) else { return };
        let Some(of) = operation.moves.get_mut(index).filter(|of| of.state == MoveState::Begun) else { return };
        if of.off.is_some() {
            self.begun_off(now, &mut operation, index, reply);
            return self.save_operation(now, operation);
        }
        if starts(&operation.kind) {
            self.started(now, &mut operation, index, reply);
            return self.save_operation(now, operation);
        }
        match reply {
            Reply::Migration(migration) => self.note_begun(of, *migration),
            Reply::Check(check) => {
                let blocks = check.problems.iter().filter(|problem| problem.severity == Severity::Blocks);
                let words: Vec<String> = blocks.map(|problem| problem.what.clone()).collect();
                fail(now, of, words.join("; "));
            }
            Reply::Error(refusal) => {
                let words = refusal_words(refusal);
                self.attempt_failed(now, of, words);
            }
            _ => self.attempt_failed(now, of, "its agent answered something else than was asked".into()),
        }
        if !matches!(of.state, MoveState::Begun | MoveState::Waiting) {
            self.epoch += 1;
        }
        self.save_operation(now, operation);
    }

    /// Sees whether a move that waits still makes sense.
    pub(crate) fn look_at_waiting(&self, now: Now, operation: &mut Operation, index: usize) {
        let is_alone = matches!(operation.kind, OperationKind::Migrate { .. });
        let (before, rest) = operation.moves.split_at_mut(index);
        let of = &mut rest[0];
        // Nobody is to wait for a host that may never be back: a drain has its own ways.
        let lost = self.lost(&of.from).filter(|_| is_alone);
        let lost_target = of.to.as_deref().and_then(|to| self.lost(to)).filter(|_| is_alone);
        let vm = self.tables.vms.get(&of.vm).map(|found| &found.value);
        let host = vm.and_then(|vm| vm.host.as_deref());
        // A guest that steps aside is elsewhere before its second move, as is a guest that another operation moves.
        let comes = |other: &Move| other.vm == of.vm && other.to.as_ref() == Some(&of.from) && !other.state.is_over();
        let comes = before.iter().chain(self.begun_moves()).any(comes);
        // One that is still on its way here may come from where it is to go.
        if host.is_some() && host == of.to.as_deref() && !comes {
            made(now, of);
        } else if !vm.is_some_and(|vm| is_guest(vm.state)) {
            end(now, of, MoveState::Left, "it does not run any more".into());
        } else if host != Some(&of.from) && !comes {
            let why = format!("it is on {} by now", host.unwrap_or("no host"));
            end(now, of, MoveState::Left, why);
        } else if let Some(why) = lost {
            end(now, of, MoveState::Left, why);
        } else if let Some(why) = self.refusal(vm, of.to.as_deref()).or(lost_target) {
            end(now, of, MoveState::Failed, why);
        } else if self.by_hand(&of.vm).is_some() {
            of.detail = MOVED_BY_HAND.into();
        } else if of.detail == MOVED_BY_HAND {
            of.detail.clear();
        }
    }

    /// Says that a host does not report. `None`: it does.
    fn lost(&self, host: &str) -> Option<String> {
        let is_lost = self.tables.hosts.get(host).is_some_and(|found| found.value.contact == Contact::Lost);
        is_lost.then(|| format!("{host} does not report"))
    }

    /// Returns why a VM may not go to a host any more that was right when the move was planned.
    pub(super) fn refusal(&self, vm: Option<&VmRecord>, to: Option<&str>) -> Option<String> {
        let name = to.unwrap_or("its target");
        let target = to.and_then(|to| self.tables.hosts.get(to)).map(|found| &found.value);
        let is_open = target.is_some_and(|target| target.mode == HostMode::Active && !target.contact.is_off());
        if !is_open && !self.has(Planted::ModeForgotten) {
            return Some(format!("{name} takes no guests any more"));
        }
        (!is_owner(vm, to)).then(|| format!("{name} is none of its possible owners"))
    }

    /// Sees what has become of a move that was begun.
    pub(crate) fn look_at_begun(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = operation.moves[index].clone();
        let Some(to) = of.to.clone() else { return };
        if !self.is_not_off(&of.from) {
            return self.settle_source_off(now, &mut operation.moves[index], &to);
        }
        if operation.state == OperationState::Cancelling && self.session_of(&of.from).is_none() {
            operation.moves[index].detail = format!("{} does not report: it is called off there once it does", of.from);
        }
        let is_target_off = self.is_off(&to);
        if is_target_off {
            // Its source need not find that out by itself. A guest that may run there is settled by its handover.
            self.call_off(now, operation, index);
        }
        let Some(id) = of.migration else {
            let purpose = CommandPurpose::Begin { operation: operation.id.clone(), index };
            let is_asked = self.is_asked(&purpose);
            let is_early = of.not_before.is_some_and(|time| now.is_before(time));
            if operation.state == OperationState::Cancelling || is_target_off {
                if !is_asked {
                    self.withdraw(now, operation, index);
                }
            } else if !is_asked && !is_early && !self.has(Planted::BegunForgotten) {
                // An agent that was asked before answers with the same migration.
                if self.has(Planted::NameChanged) {
                    operation.moves[index].attempts += 1;
                }
                self.send_begin(operation, index);
            }
            return;
        };
        let at = |host: &str| self.observed.get(host).and_then(|observed| observed.migrations.get(&id)).cloned();
        let (source, target) = (at(&of.from), at(&to));
        let outcome = |migration: &Option<Migration>| migration.as_ref().and_then(|migration| migration.outcome);
        let is_too_late = operation.state == OperationState::Cancelling && operation.message == DEADLINE_OVER;
        let own = &mut operation.moves[index];
        match (outcome(&source), outcome(&target)) {
            (Some(Outcome::Moved), _) | (_, Some(Outcome::Moved)) => {
                made(now, own);
                own.downtime_ms = source.and_then(|migration| migration.downtime_ms);
                self.note_pace(operation, index);
                self.arrived(now, &of, &to, id);
            }
            (Some(Outcome::CalledOff), _) => {
                let Some(migration) = source else { return };
                if migration.attempt.is_some_and(|attempt| attempt.next_in_ms.is_some()) {
                    // The agent itself begins again, as another migration: ask under the same name which.
                    (own.migration, own.not_before) = (None, Some(now.in_ms(ASK_AGAIN_MS)));
                } else if is_target_off {
                    fail(now, own, format!("{to} is off"));
                } else if migration.why == Some(FailureReason::Cancelled) {
                    fail(now, own, if is_too_late { DEADLINE_OVER } else { CALLED_OFF }.into());
                } else if let Some(why) = migration.why.filter(|why| *why == FailureReason::HoldOver) {
                    fail(now, own, why.words().to_owned());
                } else {
                    let why = migration.why.map_or("", FailureReason::words);
                    let words = if migration.detail.is_empty() { why.to_owned() } else { migration.detail };
                    self.attempt_failed(now, own, words);
                }
            }
            (Some(Outcome::Ended), _) | (_, Some(Outcome::Ended)) => {
                end(now, own, MoveState::Left, "its guest ended on the way".into());
            }
            (None, _) => self.look_for_guest(now, own, &to),
        }
        if !matches!(operation.moves[index].state, MoveState::Begun | MoveState::Done | MoveState::Waiting) {
            // Others were planned as if the guest had gone. A guest that waits for another attempt still goes.
            self.epoch += 1;
        }
    }

    /// Tells how long guests stood still whose source says so after its target has said that they came.
    pub(crate) fn note_downtimes(&mut self, stood_still: &BTreeMap<MigrationId, u64>) {
        if stood_still.is_empty() {
            return;
        }
        let told = |of: &Move| {
            let is_new = of.state == MoveState::Done && of.downtime_ms.is_none();
            stood_still.get(&of.migration.filter(|_| is_new)?).copied()
        };
        let found = self.tables.operations.values().map(|found| &found.value);
        let found: Vec<Operation> = found.filter(|of| of.moves.iter().any(|of| told(of).is_some())).cloned().collect();
        for mut operation in found {
            operation.moves.iter_mut().for_each(|of| of.downtime_ms = told(of).or(of.downtime_ms));
            self.tables.put(&operation.id.clone(), operation);
        }
    }

    /// Notes where a guest runs that was moved: both hosts will say so, one of them later. Another move may have taken
    /// it on since, or it has ended there.
    fn arrived(&mut self, now: Now, of: &Move, to: &str, migration: MigrationId) {
        let vm = of.vm.as_str();
        let Some(found) = self.tables.vms.get(vm).filter(|found| found.value.host.as_deref() == Some(&of.from)) else {
            return;
        };
        let moved = found.value.clone().put_on(to, VmRunState::Running, now.wall, migration);
        self.missing.remove(vm);
        self.tables.put(vm, moved);
        self.fail_over_late(now, to);
        // What the host has said of the guest did not count before.
        if let Some(there) = self.reporting(to).and_then(|observed| observed.vms.get(vm)).cloned() {
            self.note_vm(now, to, &there);
        }
    }

    /// Settles a move that is called off and whose migration is not known: the agent says that it has begun none, or
    /// remembers none, and will begin none. What is reported now is all there is.
    fn settle_unknown(&self, now: Now, of: &mut Move) {
        let Some(source) = self.reporting(&of.from) else { return };
        if let Some(vm) = source.vms.get(&of.vm).filter(|vm| vm.state != VmState::Moved) {
            match vm.migration.map(|id| (id, source.migrations.get(&id))) {
                None => end(now, of, MoveState::Left, format!("it has not left {}", of.from)),
                Some((id, Some(migration))) if Some(&migration.target) == of.to.as_ref() => of.migration = Some(id),
                // It is not this move's, and not to be called off.
                Some((_, Some(migration))) => {
                    let why = format!("somebody moves it to {}", migration.target);
                    end(now, of, MoveState::Left, why);
                }
                // The next report tells of it.
                Some((_, None)) => {}
            }
            return;
        }
        // It was begun, and has left.
        let to = of.to.clone().unwrap_or_default();
        let target = self.reporting(&to);
        let there = target.and_then(|target| target.vms.get(&of.vm));
        let is_this = |migration: &&Migration| {
            let is_over = matches!(migration.outcome, Some(Outcome::Moved | Outcome::Ended));
            is_over && migration.vm == of.vm && migration.source == of.from && migration.target == to
        };
        let all = source.migrations.values().chain(target.iter().flat_map(|target| target.migrations.values()));
        let last = all.filter(is_this).max_by(|one, other| one.begun.cmp(&other.begun)).map(|migration| migration.id);
        if let Some(id) = last.or(there.and_then(|vm| vm.migration)) {
            of.migration = Some(id);
        } else if there.is_some_and(|vm| run_state(vm.state).is_some_and(is_live)) {
            made(now, of);
        } else if target.is_some() || !self.is_not_off(&to) || self.lost(&to).is_some() {
            let there = match target.is_some() {
                true => format!("{to} does not have it"),
                false if !self.is_not_off(&to) => format!("{to} is off"),
                false => format!("{to} does not report"),
            };
            end(now, of, MoveState::Left, format!("{} has it no more, and {there}", of.from));
        }
    }

    /// Settles a move whose source is off: the guest has arrived, or ended with its host. A target that still has a
    /// part in the migration, or does not report, is waited for.
    fn settle_source_off(&self, now: Now, of: &mut Move, to: &str) {
        match self.reporting(to).and_then(|target| target.vms.get(&of.vm)) {
            Some(vm) if vm.migration.is_some() => {}
            Some(vm) if run_state(vm.state).is_some_and(is_live) => made(now, of),
            _ if self.is_not_off(to) && !self.has_not_since(to, &of.from, &of.vm) => {}
            _ => end(now, of, MoveState::Left, format!("{} is off", of.from)),
        }
    }

    /// Settles a move of whose migration neither host knows an outcome, by where the guest is.
    fn look_for_guest(&mut self, now: Now, of: &mut Move, to: &str) {
        let (source, target) = (self.reporting(&of.from), self.reporting(to));
        let (Some(source), Some(id)) = (source, of.migration) else { return };
        if source.migrations.contains_key(&id) {
            return;
        }
        if self.is_off(to) {
            return match source.vms.get(&of.vm).filter(|vm| vm.state != VmState::Moved) {
                Some(vm) if vm.migration.is_none() => fail(now, of, format!("{to} is off")),
                Some(_) => {}
                // Wherever it ended, it may be started elsewhere once no other host can have it.
                None => {
                    let gone = of.clone();
                    let why = format!("{} has it no more, and {to}, to which it was on its way, is off", of.from);
                    end(now, of, MoveState::Left, why);
                    self.arrived(now, &gone, to, id);
                }
            };
        }
        let Some(target) = target.filter(|target| !target.migrations.contains_key(&id)) else { return };
        match (source.vms.get(&of.vm), target.vms.get(&of.vm)) {
            (None, Some(vm)) if vm.migration.is_none() => {
                made(now, of);
            }
            // The target may have an old definition of that name.
            (Some(vm), _) if vm.migration.is_none() => {
                self.attempt_failed(now, of, "its hosts do not remember the migration".into());
            }
            (None, None) => {
                let why = format!("neither {} nor {to} has it, and neither remembers the migration", of.from);
                end(now, of, MoveState::Left, why);
            }
            _ => {}
        }
    }

    /// Notes that an attempt failed: the move waits for the next, or has failed.
    fn attempt_failed(&self, now: Now, of: &mut Move, why: String) {
        if of.attempts >= self.settings.attempts_max {
            return fail(now, of, why);
        }
        let wait = self.settings.retry_ms << of.attempts.saturating_sub(1).min(8);
        (of.state, of.detail, of.not_before) = (MoveState::Waiting, why, Some(now.in_ms(wait)));
        of.migration = None;
    }
}

/// Returns whether somebody called a move's migration off.
pub(super) fn is_called_off(of: &Move) -> bool {
    of.detail == CALLED_OFF
}

/// Returns whether a move ended as a person wanted, and no other host is to be tried for it.
pub(super) fn is_wanted_end(of: &Move) -> bool {
    [CALLED_OFF, DEADLINE_OVER, FailureReason::HoldOver.words()].contains(&&*of.detail)
}

/// Returns how a VM's migration was asked for: the most bits a second, and how it is held. Others that make room for
/// it go as they go.
fn terms<'a>(kind: &'a OperationKind, moved: &str) -> (Option<u64>, Option<&'a HoldOptions>) {
    match kind {
        OperationKind::Migrate { vm, rate_bits_per_s, hold, .. } if vm == moved => (*rate_bits_per_s, hold.as_ref()),
        _ => (None, None),
    }
}

/// Ends a move that was made.
fn made(now: Now, of: &mut Move) {
    end(now, of, MoveState::Done, String::new());
}

/// Ends a move.
fn end(now: Now, of: &mut Move, state: MoveState, why: String) {
    (of.state, of.detail, of.ended) = (state, why, Some(now.wall));
}

fn fail(now: Now, of: &mut Move, why: String) {
    end(now, of, MoveState::Failed, why);
}

/// Returns the name of the request for a move's migration or start. The same name is the same migration or start.
pub(super) fn request_name(operation: &str, index: usize, attempt: u32) -> String {
    format!("{operation}.{index}.{attempt}")
}
