//! VMs that are off are moved: what their host keeps of them goes to another host.
//!
//! At no time can two hosts start such a VM, and at each time a host or its successor has it. The stage is written
//! before anything is asked that belongs to the stage.
//!
//! | stage | the VM is | what is asked |
//! |---|---|---|
//! | `Reserve` | the source's | the source, what it keeps; the target, to keep that, and to start nothing |
//! | `Leave` | the source's, until it forgets the VM | the source, to forget the VM, once or never |
//! | `Keep` | the target's | the target, to take the VM as its own |
//!
//! Until `Leave` nothing is lost by giving up: a reservation of a move that is over is released. From `Leave` on only
//! the source's word that it has not forgotten the VM, and never will by this move, ends the move otherwise.

use std::collections::BTreeSet;

use skein_api::cluster::VmRunState;
use skein_api::cluster::{Contact, HostMode, Move, MoveState, OffStage, Operation, OperationKind, OperationState};
use skein_api::{Reply, Request, VmState, VmView};

use super::moves::request_name;
use super::record::{is_owner, refusals};
use crate::records::{HostRecord, VmRecord};
use crate::state::{CommandPurpose, Controller, Planted};
use crate::tables::Stored;
use crate::time::Now;
use crate::words::{refusal_words, vms_words};

/// The moves of VMs that are off that are under way from a host or to it at a time: its agent takes 16 commands.
const AT_ONCE_MAX: usize = 4;
/// Hosts that are named when none can take a VM.
const HOSTS_TOLD_MAX: usize = 5;

/// A host that may take a VM that is off, in the order in which it is taken: the least first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    not_preferred: usize,
    taken_bytes: std::cmp::Reverse<i128>,
    host: String,
}

impl Controller {
    // ---- which ----

    /// Returns the VMs of a host that are off there, by its agent's word.
    pub(crate) fn off_on(&self, host: &str) -> Vec<String> {
        let Some(observed) = self.reporting(host) else { return Vec::new() };
        let is_off = |vm: &String| observed.vms.get(vm).is_some_and(is_off_view);
        self.vms_on(host).into_iter().filter(|vm| !self.has_guest(vm) && is_off(vm)).collect()
    }

    /// Returns the VMs that are off and that a drain has not settled.
    pub(super) fn off_left(&self, operation: &Operation, host: &str) -> Vec<String> {
        let settled = |vm: &String| {
            let last = operation.moves.iter().rfind(|of| of.vm == *vm && of.from == *host);
            last.is_some_and(|of| of.off.is_some() && of.state == MoveState::Left && of.to.is_none())
        };
        self.off_on(host).into_iter().filter(|vm| !settled(vm)).collect()
    }

    /// Adds the moves of VMs that are off to an operation that was planned.
    pub(super) fn add_off_moves(&self, operation: &mut Operation) {
        let wanted: Vec<(String, Option<String>)> = match &operation.kind {
            OperationKind::Drain { host, .. } => {
                let is_free = |vm: &String| self.operation_of(vm).is_none_or(|other| other == operation.id);
                let left = self.off_left(operation, host).into_iter().filter(is_free);
                left.map(|vm| (vm, None)).collect()
            }
            OperationKind::Resume { host, drain } => {
                let drains = self.drains(drain).filter_map(|id| self.tables.operations.get(id));
                let left = drains.flat_map(|drain| &drain.value.moves).filter(|of| of.from == *host);
                let names: BTreeSet<&String> = left.map(|of| &of.vm).collect();
                let is_off = |vm: &&&String| !self.has_guest(vm) && self.off_host(vm).is_some_and(|at| at != host);
                let is_free = |vm: &&&String| self.operation_of(vm).is_none();
                let off = names.iter().filter(is_off).filter(is_free);
                off.map(|vm| ((*vm).clone(), Some(host.clone()))).collect()
            }
            OperationKind::Migrate { vm, to, .. } if self.off_host(vm).is_some() => vec![(vm.clone(), to.clone())],
            _ => return,
        };
        for (vm, to) in wanted {
            let is_open = |of: &Move| of.vm == vm && !of.state.is_over();
            if !operation.moves.iter().any(is_open)
                && let Some(of) = self.off_move(operation, &vm, to.as_deref())
            {
                operation.moves.push(of);
            }
        }
    }

    /// Returns the host that has a VM that is off, by its agent's word.
    pub(crate) fn off_host(&self, vm: &str) -> Option<&str> {
        let record = self.tables.vms.get(vm).map(|found| &found.value)?;
        let host = record.host.as_deref().filter(|_| !self.has_guest(vm))?;
        self.reporting(host)?.vms.get(vm).is_some_and(is_off_view).then_some(host)
    }

    /// Returns the move of a VM that is off to a host, or to the best one.
    pub(crate) fn off_move(&self, operation: &Operation, vm: &str, to: Option<&str>) -> Option<Move> {
        let from = self.off_host(vm)?;
        let is_asked = matches!(operation.kind, OperationKind::Migrate { .. });
        Some(match self.off_place(operation, vm, from, to, is_asked) {
            Ok((to, why)) => Move::of_off(vm, from, Some(&to), &format!("it is off; {why}")),
            Err(why) => Move::of_off(vm, from, None, &format!("it is off, and cannot be moved so: {why}")),
        })
    }

    /// Finds the host to which a VM goes that is off, and says why there, or why nowhere.
    fn off_place(
        &self,
        operation: &Operation,
        vm: &str,
        from: &str,
        only: Option<&str>,
        is_asked: bool,
    ) -> Result<(String, String), String> {
        let Some(record) = self.tables.vms.get(vm).map(|found| &found.value) else {
            return Err("it was deleted".into());
        };
        if record.settings.pinned && !is_asked {
            return Err("it is pinned".into());
        }
        if record.definition.is_none() || record.adopted {
            return Err("another program had started it, and only its host knows how".into());
        }
        if !self.knows_off(from) {
            return Err(format!("the agent of {from} is older: skein there has to be upgraded first"));
        }
        let unsuited = self.unsuited(record.definition.as_deref(), Some(from));
        let refused = refusals(operation);
        let refused = refused.get(vm);
        let (mut places, mut against): (Vec<Place>, Vec<String>) = Default::default();
        for (name, host) in &self.tables.hosts {
            if name == from || only.is_some_and(|only| only != name) {
                continue;
            }
            let why = if host.value.mode != HostMode::Active {
                Some("it takes no guests".to_owned())
            } else if host.value.contact != Contact::Online || self.reporting(name).is_none() {
                Some("it does not report".to_owned())
            } else if !is_owner(Some(record), Some(name)) {
                Some("it is none of the possible owners".to_owned())
            } else if !self.knows_off(name) {
                Some("its agent is older: skein there has to be upgraded first".to_owned())
            } else if refused.is_some_and(|hosts| hosts.contains(name)) {
                let tried = operation.moves.iter().rfind(|of| of.vm == vm && of.to.as_ref() == Some(name));
                Some(format!("it was tried: {}", tried.map_or("", |of| &of.detail)))
            } else {
                unsuited.get(name).cloned()
            };
            match why {
                Some(why) => against.push(format!("{name}: {why}")),
                None => places.push(self.place_of(record, name, &operation.moves)),
            }
        }
        let number = places.len();
        match places.into_iter().min() {
            Some(place) if only.is_some() => Ok((place.host, "that host was asked for".into())),
            Some(place) if number == 1 => Ok((place.host, "the only host that can take it".into())),
            Some(place) => Ok((place.host, format!("the one of {number} hosts that can take it with the most room"))),
            None => {
                let more = against.len().saturating_sub(HOSTS_TOLD_MAX);
                against.truncate(HOSTS_TOLD_MAX);
                against.extend((more > 0).then(|| format!("and {more} more hosts")));
                Err(if against.is_empty() { "there is no other host".into() } else { against.join("; ") })
            }
        }
    }

    /// Returns how good a host is for a VM: how much memory would stay free if all that are off there ran.
    fn place_of(&self, record: &VmRecord, host: &str, planned: &[Move]) -> Place {
        let facts = self.observed.get(host).and_then(|observed| observed.facts.as_ref());
        let free = facts.map_or(0, |facts| facts.ram_available_bytes);
        let off = self.tables.vms_of(host).filter(|(name, _)| !self.has_guest(name));
        let off: u64 = off.map(|(_, of)| of.ram_bytes).sum();
        let comes = |of: &&Move| of.off.is_some() && of.to.as_deref() == Some(host) && !of.state.is_over();
        let ram = |of: &Move| self.tables.vms.get(&of.vm).map_or(0, |vm| vm.value.ram_bytes);
        let coming: u64 = self.open_moves().chain(planned).filter(comes).map(ram).sum();
        let preferred = &record.settings.preferred;
        Place {
            not_preferred: preferred.iter().position(|of| of == host).unwrap_or(preferred.len()),
            taken_bytes: std::cmp::Reverse(i128::from(free) - i128::from(off) - i128::from(coming)),
            host: host.to_owned(),
        }
    }

    /// Returns whether a host's agent knows how a VM that is off is moved.
    fn knows_off(&self, host: &str) -> bool {
        self.observed.get(host).and_then(|observed| observed.hello.as_ref()).is_some_and(|hello| hello.moves_off)
    }

    /// Says in a plan how many VMs that are off move, too. `None`: none does.
    pub(super) fn off_plan_words(operation: &Operation) -> Option<String> {
        let goes = operation.moves.iter().filter(|of| of.off.is_some() && of.to.is_some()).count();
        (goes > 0).then(|| vms_words(goes, "that is off moves, too", "that are off move, too"))
    }

    /// Says which VMs that are off stay on a host, and why. `None`: there are none.
    pub(super) fn off_stay_words(&self, operation: &Operation, host: &str) -> Option<String> {
        let why = |vm: &String| {
            let last = operation.moves.iter().rfind(|of| of.vm == *vm && of.from == host && of.off.is_some());
            last.filter(|of| of.to.is_none()).map_or_else(
                || vm.clone(),
                |of| format!("{vm} ({})", if of.detail.is_empty() { &of.reason } else { &of.detail }),
            )
        };
        let goes = |vm: &String| operation.moves.iter().any(|of| of.vm == *vm && !of.state.is_over());
        let off = self.vms_on(host).into_iter().filter(|vm| !self.has_guest(vm) && !goes(vm));
        let off: Vec<String> = off.map(|vm| why(&vm)).collect();
        let vms = vms_words(off.len(), "that is off stays", "that are off stay");
        (!off.is_empty()).then(|| format!("{vms} defined on {host}: {}", off.join(", ")))
    }

    // ---- how ----

    /// Returns the moves of VMs that are off that are under way.
    pub(crate) fn begun_off_moves(&self) -> impl Iterator<Item = &Move> {
        self.open_moves().filter(|of| of.off.is_some() && of.state == MoveState::Begun)
    }

    /// Returns whether a move of a VM that is off may begin: its hosts are there, and are not at too many.
    pub(super) fn is_free_off(&self, of: &Move, to: &str) -> bool {
        let is_free = |host: &str| {
            let here = self.begun_off_moves().filter(|of| of.from == host || of.to.as_deref() == Some(host));
            self.reporting(host).is_some() && here.count() < AT_ONCE_MAX
        };
        is_free(&of.from) && is_free(to)
    }

    /// Sees whether the move of a VM that is off still makes sense.
    pub(super) fn look_at_waiting_off(&self, now: Now, of: &mut Move) {
        let record = self.tables.vms.get(&of.vm).map(|found| &found.value);
        if let Some(why) = self.off_no_more(of) {
            end(now, of, MoveState::Left, why);
        } else if let Some(why) = self.refusal(record, of.to.as_deref()) {
            end(now, of, MoveState::Failed, why);
        }
    }

    /// Returns whether a VM is in an operation only to be moved while it is off, and nothing was asked for that yet.
    pub(super) fn only_waits_off(&self, vm: &str) -> bool {
        let is_of_others = |operation: &Operation| {
            matches!(operation.kind, OperationKind::Drain { .. } | OperationKind::Resume { .. })
        };
        let waits = |of: &Move| of.off.is_some() && of.state == MoveState::Waiting;
        let is_in = |operation: &&Operation| operation.moves.iter().any(|of| of.vm == vm && !of.state.is_over());
        self.operation_of(vm).is_some_and(|id| {
            let found = self.tables.operations.get(id).map(|found| &found.value);
            found.is_some_and(|found| is_of_others(found) && is_in(&found))
        }) && self.open_moves().filter(|of| of.vm == vm).all(waits)
    }

    /// Takes a VM that is to be started or deleted out of the drain that would have moved it. The drain looks at it
    /// again once that is over.
    pub(super) fn take_out_waiting_off(&mut self, now: Now, vm: &str) {
        if !self.only_waits_off(vm) {
            return;
        }
        let Some(mut operation) = self.operation_of(vm).map(str::to_owned).and_then(|id| self.operation(&id)) else {
            return;
        };
        for of in operation.moves.iter_mut().filter(|of| of.vm == vm && !of.state.is_over()) {
            end(now, of, MoveState::Left, "something else was asked for it meanwhile".into());
        }
        self.save_operation(now, operation);
    }

    /// Says why a VM is not to be moved any more as one that is off on its host. `None`: it is, as far as is known.
    fn off_no_more(&self, of: &Move) -> Option<String> {
        let Some(record) = self.tables.vms.get(&of.vm).map(|found| &found.value) else {
            return Some("it was deleted".into());
        };
        match record.host.as_deref() {
            Some(host) if host == of.from => {}
            Some(host) => return Some(format!("it is on {host} by now")),
            None => return Some(format!("{} does not have it any more", of.from)),
        }
        if self.tables.hosts.get(&of.from).is_none_or(|host| host.value.contact.is_off()) {
            return Some(format!("{} is off", of.from));
        }
        match self.reporting(&of.from)?.vms.get(&of.vm) {
            None => Some(format!("{} does not have it any more", of.from)),
            Some(view) if is_off_view(view) => None,
            Some(_) => Some(format!("it was started on {} meanwhile", of.from)),
        }
    }

    /// Takes the next step of a move of a VM that is off.
    pub(super) fn look_at_begun_off(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = &operation.moves[index];
        match (of.off, of.to.clone()) {
            (Some(OffStage::Reserve), Some(to)) => self.reserve_off(now, operation, index, &to),
            (Some(OffStage::Leave), Some(_)) => self.leave_off(now, operation, index),
            (Some(OffStage::Keep), Some(to)) => self.keep_off(now, operation, index, &to),
            _ => {}
        }
    }

    fn reserve_off(&mut self, now: Now, operation: &mut Operation, index: usize, to: &str) {
        let of = operation.moves[index].clone();
        let record = self.tables.vms.get(&of.vm).map(|found| &found.value);
        let failed = self.refusal(record, Some(to));
        let own = &mut operation.moves[index];
        if operation.state == OperationState::Cancelling {
            return end(now, own, MoveState::Left, "it was called off".into());
        }
        if let Some(why) = self.off_no_more(&of) {
            return end(now, own, MoveState::Left, why);
        }
        if let Some(why) = failed {
            return end(now, own, MoveState::Failed, why);
        }
        let (Some(_), Some(target)) = (self.reporting(&of.from), self.reporting(to)) else { return };
        let reservation = request_name(&operation.id, index, of.attempts);
        let is_reserved = target.vms.get(&of.vm).is_some_and(|view| view.reserved.as_ref() == Some(&reservation));
        if self.has(Planted::LeftTooEarly) || is_reserved && !self.has(Planted::KeptTooEarly) {
            (own.off, own.not_before) = (Some(OffStage::Leave), None);
            self.save_operation(now, operation.clone());
            return self.leave_off(now, operation, index);
        }
        if is_reserved {
            return self.is_targets(now, operation, index);
        }
        let purpose = CommandPurpose::Offer { operation: operation.id.clone(), index };
        let begin = CommandPurpose::Begin { operation: operation.id.clone(), index };
        if self.is_asked(&begin) || !self.is_due(now, operation, index, &purpose) {
            return;
        }
        if let Some(session) = self.session_of(&of.from) {
            self.send(session, purpose, None, Request::VmOffer { name: of.vm });
        }
    }

    /// Returns whether something may be asked for again, and notes until when not.
    fn is_due(&mut self, now: Now, operation: &mut Operation, index: usize, purpose: &CommandPurpose) -> bool {
        let is_early = operation.moves[index].not_before.is_some_and(|time| now.is_before(time));
        if is_early || self.is_asked(purpose) {
            return false;
        }
        operation.moves[index].not_before = Some(now.in_ms(self.settings.retry_ms));
        self.save_operation(now, operation.clone());
        true
    }

    fn leave_off(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = operation.moves[index].clone();
        let contact = self.tables.hosts.get(&of.from).map(|host| host.value.contact);
        if contact.is_none_or(Contact::is_off) {
            // Somebody had started it there: whatever starts the guests of that host again starts it, too.
            if self.has_guest(&of.vm) {
                let why = format!("it was started on {} meanwhile", of.from);
                return end(now, &mut operation.moves[index], MoveState::Left, why);
            }
            // The source can say nothing any more, and forgets the VM when it is back.
            return self.is_targets(now, operation, index);
        }
        let Some(session) = self.reporting(&of.from).and_then(|source| source.session) else { return };
        let purpose = CommandPurpose::Begin { operation: operation.id.clone(), index };
        if self.is_due(now, operation, index, &purpose) {
            let name = request_name(&operation.id, index, of.attempts);
            self.send(session, purpose, Some(name), Request::VmForget { name: of.vm });
        }
    }

    /// Notes that a VM that is off is the target's.
    fn is_targets(&mut self, now: Now, operation: &mut Operation, index: usize) {
        let of = operation.moves[index].clone();
        let found = self.tables.vms.get(&of.vm).map(|found| found.value.clone());
        // Somebody had started it on the source and moved it, before that was off.
        let Some(found) = found.filter(|found| found.host.as_ref() == Some(&of.from)) else {
            return end(now, &mut operation.moves[index], MoveState::Left, "it is on another host by now".into());
        };
        self.missing.remove(&of.vm);
        let (host, state) = (of.to.clone(), VmRunState::Stopped);
        self.tables.put(&of.vm, VmRecord { host, state, since: now.wall, is_claimed: false, ..found });
        let own = &mut operation.moves[index];
        (own.off, own.not_before) = (Some(OffStage::Keep), None);
        self.save_operation(now, operation.clone());
        if let Some(to) = &of.to {
            self.keep_off(now, operation, index, to);
        }
    }

    fn keep_off(&mut self, now: Now, operation: &mut Operation, index: usize, to: &str) {
        let of = operation.moves[index].clone();
        let contact = self.tables.hosts.get(to).map(|host| host.value.contact);
        if contact.is_some_and(Contact::is_off) {
            // It has the VM on its disk, and hears that the VM is its own when it is back.
            return done(now, &mut operation.moves[index]);
        }
        let reservation = request_name(&operation.id, index, of.attempts);
        let view = match self.reporting(to) {
            Some(target) => target.vms.get(&of.vm),
            None if contact.is_some() => return,
            None => None,
        };
        match view {
            Some(view) if view.reserved.as_ref() != Some(&reservation) => done(now, &mut operation.moves[index]),
            // It was off when it was to forget the VM, and is back.
            Some(_) if self.is_still_there(&operation.kind, &of) && !self.has(Planted::KeptTooEarly) => {}
            Some(_) => {
                let purpose = CommandPurpose::Begin { operation: operation.id.clone(), index };
                let Some(session) = self.session_of(to) else { return };
                if self.is_due(now, operation, index, &purpose) {
                    let request = Request::VmRelease { name: of.vm, reservation, keep: true };
                    self.send(session, purpose, None, request);
                }
            }
            None => {
                let vm = of.vm.clone();
                let why =
                    format!("{to} has lost it: only the cluster knows it; skein vm start {vm} --cluster starts it");
                end(now, &mut operation.moves[index], MoveState::Left, why);
                if let Some(found) = self.tables.vms.get(&vm).map(|found| found.value.clone()) {
                    self.missing.remove(&vm);
                    self.tables.put(&vm, VmRecord { host: None, since: now.wall, is_claimed: true, ..found });
                }
            }
        }
    }

    // ---- what is answered ----

    /// Takes the source's word of what it keeps of a VM, and has the target keep that.
    pub(crate) fn offered(&mut self, now: Now, id: &str, index: usize, reply: Reply) {
        let Some(mut operation) = self.operation(id) else { return };
        let Some(of) = operation.moves.get_mut(index) else { return };
        if (of.state, of.off) != (MoveState::Begun, Some(OffStage::Reserve)) {
            return;
        }
        match reply {
            Reply::Offer { offer } => {
                let session = of.to.as_deref().and_then(|to| self.session_of(to));
                let reservation = request_name(id, index, of.attempts);
                let purpose = CommandPurpose::Begin { operation: id.to_owned(), index };
                if let Some(session) = session.filter(|_| !self.is_asked(&purpose)) {
                    self.send(session, purpose, None, Request::VmReserve { reservation, offer });
                }
            }
            Reply::Error(refusal) => {
                // No host can take it.
                of.to = None;
                end(now, of, MoveState::Left, refusal_words(refusal));
                self.save_operation(now, operation);
            }
            _ => {
                end(now, of, MoveState::Failed, "its agent answered something else than was asked".into());
                self.save_operation(now, operation);
            }
        }
    }

    /// Takes the answer to a step of a move of a VM that is off.
    pub(super) fn begun_off(&mut self, now: Now, operation: &mut Operation, index: usize, reply: Reply) {
        let of = &mut operation.moves[index];
        match (of.off, reply) {
            (Some(OffStage::Reserve | OffStage::Keep), Reply::Vm(view)) => {
                let host = of.to.clone().unwrap_or_default();
                if let Some(observed) = self.observed.get_mut(&host) {
                    observed.vms.insert(view.name.clone(), *view);
                }
                self.look_at_begun_off(now, operation, index);
            }
            // The target's report of this came before.
            (Some(OffStage::Leave), Reply::Vm(_)) => self.look_at_begun_off(now, operation, index),
            (Some(OffStage::Reserve), Reply::Error(refusal)) => {
                end(now, of, MoveState::Failed, refusal_words(refusal));
            }
            (Some(OffStage::Leave), Reply::Done) => {
                let from = of.from.clone();
                self.observed.get_mut(&from).map(|observed| observed.vms.remove(&of.vm));
                self.is_targets(now, operation, index);
            }
            (Some(OffStage::Leave), Reply::NotForgotten(refusal)) => {
                end(now, of, MoveState::Left, refusal_words(refusal));
            }
            // This says nothing: it is asked for again.
            (_, Reply::Error(refusal)) => of.detail = refusal.message,
            _ => of.detail = "its agent answered something else than was asked".into(),
        }
    }

    /// Releases the reservations of a host whose moves are over: the VM is the host's by the records, or if no other
    /// host has it. What is not known is waited for: the reservation may be all that is left of the VM.
    pub(crate) fn settle_reservations(&mut self, host: &str) {
        let Some(observed) = self.reporting(host) else { return };
        let Some(session) = observed.session else { return };
        let mut stale = Vec::new();
        for view in observed.vms.values() {
            let Some(reservation) = view.reserved.clone().filter(|of| !self.is_reservation(of)) else { continue };
            let record = self.tables.vms.get(&view.name).map(|found| &found.value);
            let is_own = record.is_some_and(|record| record.host.as_deref() == Some(host));
            let keep = if is_own { Some(true) } else { self.is_nowhere_else(host, &view.name) };
            stale.extend(keep.map(|keep| (view.name.clone(), reservation, keep)));
        }
        for (name, reservation, keep) in stale {
            let purpose = CommandPurpose::Forget { host: host.to_owned(), vm: name.clone() };
            if !self.is_asked(&purpose) {
                self.send(session, purpose, None, Request::VmRelease { name, reservation, keep });
            }
        }
    }

    /// Returns whether no host but this has a VM. `None`: a host may have it that does not report.
    fn is_nowhere_else(&self, host: &str, vm: &str) -> Option<bool> {
        let mut others = self.tables.hosts.iter().filter(|(name, _)| name.as_str() != host);
        let views = others.clone().filter_map(|(name, _)| self.reporting(name)?.vms.get(vm));
        if views.into_iter().any(|view| view.reserved.is_none()) {
            return Some(false);
        }
        let is_known = |(name, of): (&String, &Stored<HostRecord>)| {
            self.reporting(name).is_some() || of.value.contact == Contact::Joined
        };
        others.all(is_known).then_some(true)
    }

    /// Returns whether a reservation is of a move that is under way.
    fn is_reservation(&self, reservation: &str) -> bool {
        let of_operation = |operation: &Operation| {
            let begun = operation.moves.iter().enumerate().filter(|(_, of)| of.state == MoveState::Begun);
            begun.into_iter().any(|(index, of)| request_name(&operation.id, index, of.attempts) == reservation)
        };
        self.open_operations().any(of_operation)
    }
}

/// Returns whether a host says that a VM is off there, and nothing else is done with the VM.
fn is_off_view(view: &VmView) -> bool {
    view.state == VmState::Stopped && view.migration.is_none() && view.reserved.is_none()
}

fn end(now: Now, of: &mut Move, state: MoveState, why: String) {
    (of.state, of.detail, of.ended) = (state, why, Some(now.wall));
}

fn done(now: Now, of: &mut Move) {
    (of.state, of.ended) = (MoveState::Done, Some(now.wall));
    of.detail.clear();
}
