//! All migrations of one agent: passes inputs to their machines, and returns actions.

mod action;
mod limits;
mod migration;
mod repeated;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub use action::{Action, HoldLimits, Input, NewMigration, Order, RefusedStart, RefusedSwitch, WriteResult};
pub use limits::{MigrationLimits, WaitTimes};
use migration::{Begin, ManagedMigration, MigrationHalf, MigrationWants};
use repeated::{REPEAT_PERIOD, RepeatedWant};

use crate::event::{MigrationEvent, MigrationSummary};
use crate::message::Message;
use crate::record::{JournalledMigration, LastRecord, MigrationId, Record, Role, last_records_in_order};
use crate::source::{Outcome, SourceGuest, SourceHandover, SourceInput, SourcePhase};
use crate::target::{TargetHandover, TargetInput};
use crate::words::{FailureReason, Intent, Report, Wait};

/// Most migrations of one agent, queued ones included: a host has some hundreds of guests.
const MIGRATIONS_MAX: usize = 4096;

/// All migrations of one agent. Time is the agent's own and only goes forward.
#[derive(Clone, Debug)]
pub struct Manager<O> {
    now: Duration,
    limits: MigrationLimits,
    entries: BTreeMap<MigrationId, ManagedMigration<O>>,
    contact: BTreeMap<String, bool>,
    reaching: BTreeMap<String, bool>,
    actions: VecDeque<Action<O>>,
    next_number: u64,
    /// Targets that were settled, the latest first. Messages about them may still be under way on a session that was
    /// cut off meanwhile. A session ends with this process, so this list need not be on disk.
    settled: VecDeque<MigrationId>,
}

impl<O: Clone + PartialEq> Manager<O> {
    /// Resumes an agent's migrations from its journal. Each migration that is not settled continues where it was; the
    /// agent then has to report the state of its QEMU.
    pub fn new(now: Duration, limits: MigrationLimits, records: &[Record]) -> Manager<O> {
        let mut manager = Manager {
            now,
            limits,
            entries: BTreeMap::new(),
            contact: BTreeMap::new(),
            reaching: BTreeMap::new(),
            actions: VecDeque::new(),
            next_number: 0,
            settled: VecDeque::new(),
        };
        let mut all = last_records_in_order(records);
        all.retain(|(_, begun)| !begun.is_settled());
        for (number, (id, begun)) in all.iter().enumerate() {
            let (id, JournalledMigration { peer, vm, last_record }) = (*id, begun.clone());
            let is_followed = all[number + 1..]
                .iter()
                .any(|(_, later)| later.vm == vm && matches!(later.last_record, LastRecord::Source(_)));
            let (role, half) = match last_record {
                LastRecord::Source(last) if is_followed => {
                    (Role::Source, MigrationHalf::Source(SourceHandover::recover_followed(last)))
                }
                LastRecord::Source(last) => (Role::Source, MigrationHalf::Source(SourceHandover::recover(last))),
                LastRecord::Target(last) => (Role::Target, MigrationHalf::Target(TargetHandover::recover(last))),
            };
            manager.enter(id, Begin::new(role, vm, peer), half);
            manager.actions.push_back(Action::Event(id, MigrationEvent::Recovered));
            let contact = false;
            match role {
                Role::Source => manager.handle(now, Input::Source(id, SourceInput::Contact(contact))),
                Role::Target => manager.handle(now, Input::Target(id, TargetInput::Contact(contact))),
            }
        }
        manager
    }

    /// Begins a migration, or queues it.
    ///
    /// # Errors
    ///
    /// [`RefusedStart::UnderWay`] if the VM is being moved already; [`RefusedStart::TooMany`] if there are too many
    /// migrations.
    pub fn start(&mut self, now: Duration, new: NewMigration<O>) -> Result<(), RefusedStart> {
        self.now = now;
        let NewMigration { id, vm, peer, priority, offer, deadline, hold } = new;
        let of_this = |entry: &ManagedMigration<O>| entry.begin.vm == vm && entry.outcome().is_none();
        if let Some((id, _)) = self.entries.iter().find(|(_, entry)| of_this(entry)) {
            return Err(RefusedStart::UnderWay(*id));
        }
        if self.entries.len() >= MIGRATIONS_MAX || self.entries.contains_key(&id) {
            return Err(RefusedStart::TooMany);
        }
        let (offer, is_hold) = (Some(offer), hold.is_some());
        let begin = Begin { priority, offer, deadline, is_hold, hold, ..Begin::new(Role::Source, vm, peer) };
        self.enter(id, begin, MigrationHalf::Queued);
        self.admit();
        self.settle(id);
        Ok(())
    }

    /// Calls a migration off, as far as this end may decide that. Returns false if there is no such migration.
    pub fn cancel(&mut self, now: Duration, id: MigrationId) -> bool {
        let Some(entry) = self.entries.get(&id) else { return false };
        match (&entry.half, entry.begin.role) {
            (MigrationHalf::Queued, Role::Source) => self.drop_queued(id, FailureReason::Cancelled),
            (_, Role::Source) => self.handle(now, Input::Source(id, SourceInput::Cancel)),
            (_, Role::Target) => self.handle(now, Input::Target(id, TargetInput::Cancel)),
        }
        true
    }

    /// Ends a hold whose time is over: calls the migration off, unless the guest is stopped for its switchover, or
    /// somebody has said that the guest may switch.
    pub fn end_hold(&mut self, now: Duration, id: MigrationId) {
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.begin.is_hold) else { return };
        match entry.half {
            MigrationHalf::Queued => self.drop_queued(id, FailureReason::HoldOver),
            _ => self.handle(now, Input::Source(id, SourceInput::HoldOver)),
        }
    }

    /// Calls off a migration that was never begun: no other host knows the migration.
    fn drop_queued(&mut self, id: MigrationId, why: FailureReason) {
        self.entries.remove(&id);
        let over = MigrationEvent::CalledOff { why, detail: String::new() };
        self.actions.push_back(Action::Event(id, over));
        self.actions.push_back(Action::Event(id, MigrationEvent::Over { outcome: Outcome::CalledOff }));
        self.actions.push_back(Action::Forget(id));
    }

    /// Has a guest that is held, or is to be, switch. From now on it may take as long as `deadline` says until it is
    /// stopped; `None`: as long as the copy before. Saying so twice does no harm.
    ///
    /// # Errors
    ///
    /// The migration is not held here, or is called off or over.
    pub fn switch(&mut self, now: Duration, id: MigrationId, deadline: Option<Duration>) -> Result<(), RefusedSwitch> {
        let entry = self.entries.get_mut(&id).ok_or(RefusedSwitch::Unknown)?;
        match &entry.half {
            _ if entry.begin.role == Role::Target => return Err(RefusedSwitch::IsTarget),
            _ if !entry.begin.is_hold => return Err(RefusedSwitch::IsNotHeld),
            MigrationHalf::Source(source) if source.phase() > SourcePhase::Switchover => {
                return Err(RefusedSwitch::IsOver);
            }
            _ => {}
        }
        if deadline.is_some() {
            entry.begin.deadline = deadline;
            // The copy before has waited for its own deadline.
            entry.wait = entry.wait.filter(|(wait, _)| *wait != Wait::Precopy);
        }
        entry.begin.hold = None;
        self.handle(now, Input::Source(id, SourceInput::Switch));
        Ok(())
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Duration, input: Input<O>) {
        self.now = now;
        match input {
            Input::Message(peer, message) => self.take_message(&peer, message),
            Input::Contact(peer, contact) => self.set_contact(peer, contact),
            Input::Source(id, input) => self.take_of_source(id, input),
            Input::Target(id, input) => self.take_of_target(id, input),
            Input::LastWords(id, last_words) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.last_words = last_words;
                }
            }
            Input::Detail(id, detail) => {
                // If the migration ended by the other end's or a person's word, what follows from that is not the
                // reason.
                if let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.is_ended_by_word()) {
                    entry.detail = detail;
                }
            }
            Input::NotUnderstood(peer, detail) => {
                self.of_peer(&peer).into_iter().for_each(|id| self.not_understood(id, &detail));
            }
            Input::UnreadableOffer { peer, id, vm, reason } => self.refuse_unreadable(id, peer, vm, &reason),
        }
        self.admit();
    }

    fn take_message(&mut self, peer: &str, message: Message<O>) {
        match message {
            Message::Intent { id, intent, vm, priority, offer, detail } => {
                if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.begin.peer == peer) {
                    entry.take_reason(intent, detail);
                }
                let begin = Begin { priority, offer, ..Begin::new(Role::Target, vm, peer.to_owned()) };
                self.take_intent(id, intent, begin);
            }
            Message::Report { id, report, why, detail, last_words } => {
                let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.begin.peer == peer) else { return };
                let has_own_reason = entry.has_own_reason();
                let MigrationHalf::Source(source) = &mut entry.half else { return };
                // If the source told the target to give up, the target's reason adds nothing.
                if why.is_some() && !detail.is_empty() && !has_own_reason {
                    entry.detail.clone_from(&detail);
                    entry.has_targets_reason = true;
                }
                if !last_words.is_empty() {
                    entry.last_words = last_words;
                }
                if entry.announced.report < Some(report) {
                    entry.announced.report = Some(report);
                    self.actions.push_back(Action::Event(id, MigrationEvent::Reported { report, detail }));
                }
                source.handle(SourceInput::Report(report));
                if why == Some(FailureReason::Cancelled) {
                    source.note_cancelled_there();
                }
                self.settle(id);
            }
        }
    }

    fn of_peer(&self, peer: &str) -> Vec<MigrationId> {
        self.entries.iter().filter(|(_, entry)| entry.begin.peer == peer).map(|(id, _)| *id).collect()
    }

    fn set_contact(&mut self, peer: String, contact: bool) {
        let ids = self.of_peer(&peer);
        self.contact.insert(peer, contact);
        for id in ids {
            let entry = self.entries.get_mut(&id).expect("just found");
            entry.half.set_contact(contact);
            // Messages that were sent before may be lost.
            entry.send = RepeatedWant::default();
            self.settle(id);
        }
    }

    fn take_of_source(&mut self, id: MigrationId, input: SourceInput) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let MigrationHalf::Source(source) = &mut entry.half else { return };
        source.handle(input);
        if let SourceInput::WriteFailed(_) = input {
            entry.write.again_at = self.now + REPEAT_PERIOD;
            self.actions.push_back(Action::Event(id, MigrationEvent::WriteFailed));
        }
        self.settle(id);
    }

    fn take_of_target(&mut self, id: MigrationId, input: TargetInput) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let MigrationHalf::Target(target) = &mut entry.half else { return };
        target.handle(input);
        if let TargetInput::WriteFailed(_) = input {
            entry.write.again_at = self.now + REPEAT_PERIOD;
            self.actions.push_back(Action::Event(id, MigrationEvent::WriteFailed));
        }
        self.settle(id);
    }

    fn not_understood(&mut self, id: MigrationId, detail: &str) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let before = entry.why();
        entry.half.not_understood();
        if before.is_none() && entry.why() == Some(FailureReason::NotUnderstood) {
            detail.clone_into(&mut entry.detail);
        }
        self.settle(id);
    }

    /// Refuses a migration whose offer cannot be read. Nothing of its guest is here, and nothing will be.
    fn refuse_unreadable(&mut self, id: MigrationId, peer: String, vm: String, reason: &str) {
        let begin = Begin::new(Role::Target, vm, peer.clone());
        if !self.enter_target(id, begin) {
            return;
        }
        let entry = self.entries.get_mut(&id).expect("just entered");
        if entry.begin.peer != peer || entry.begin.role != Role::Target {
            return;
        }
        if matches!(entry.half, MigrationHalf::Queued) {
            entry.half = MigrationHalf::Target(TargetHandover::new());
        }
        // The source asks again, and gets an answer.
        entry.send = RepeatedWant::default();
        self.not_understood(id, reason);
    }

    /// Takes in the time: ends waits that are over, and repeats what is due.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        let ids: Vec<MigrationId> = self.entries.keys().copied().collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if let Some((wait, _)) = entry.wait.filter(|(_, end)| *end <= now) {
                entry.wait = None;
                entry.half.elapsed(wait);
            }
            self.settle(id);
        }
        self.admit();
    }

    /// Returns when [`Self::handle_timeout`] is due. `None`: nothing waits.
    pub fn next_timeout(&self) -> Option<Duration> {
        let times = self.entries.values().flat_map(|entry| {
            let asked = [entry.write.again_at, entry.order.again_at, entry.send.again_at];
            asked.into_iter().chain(entry.wait.map(|(_, end)| end))
        });
        times.min().filter(|time| *time != Duration::MAX)
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action<O>> {
        self.actions.pop_front()
    }

    /// Returns a summary of each migration, in the order of their ids.
    pub fn summaries(&self) -> Vec<MigrationSummary> {
        self.entries.iter().map(|(id, entry)| entry.summary(*id)).collect()
    }

    /// Returns a summary of one migration.
    pub fn summary(&self, id: MigrationId) -> Option<MigrationSummary> {
        self.entries.get(&id).map(|entry| entry.summary(id))
    }

    /// Returns what the target's QEMU is to be started from. `None`: that was not said, or was said to an earlier
    /// agent.
    pub fn offer(&self, id: MigrationId) -> Option<&O> {
        self.entries.get(&id)?.begin.offer.as_ref()
    }

    fn enter(&mut self, id: MigrationId, begin: Begin<O>, half: MigrationHalf) {
        let number = self.next_number;
        self.next_number += 1;
        self.entries.entry(id).or_insert_with(|| ManagedMigration::new(begin, number, half));
    }

    /// Enters a migration to this host that its source asks for: queued, unless it is known. Returns false if the
    /// migration is not known and must not be entered.
    fn enter_target(&mut self, id: MigrationId, begin: Begin<O>) -> bool {
        if self.entries.contains_key(&id) {
            return true;
        }
        if self.settled.contains(&id) {
            // To act on a belated `Prepare` would start a QEMU that nobody watches, or mistake the QEMU that runs the
            // guest for the migration's.
            self.report_settled(id, begin.peer);
            return false;
        }
        // If there are too many migrations, no answer is sent: the source asks again, or gives up.
        let has_room = self.entries.len() < MIGRATIONS_MAX;
        if has_room {
            self.enter(id, begin, MigrationHalf::Queued);
        }
        has_room
    }

    /// Tells a source that its migration was settled and forgotten.
    fn report_settled(&mut self, id: MigrationId, peer: String) {
        let (detail, last_words) = (String::new(), String::new());
        let message = Message::Report { id, report: Report::Settled, why: None, detail, last_words };
        self.actions.push_back(Action::Send(peer, message));
    }

    /// Takes in what the source of a migration wants. `begin`: the facts to begin the migration with, if it is not
    /// known.
    fn take_intent(&mut self, id: MigrationId, intent: Intent, begin: Begin<O>) {
        let Begin { peer, offer, .. } = begin.clone();
        if !self.entries.contains_key(&id) {
            if intent == Intent::Settle {
                return self.report_settled(id, peer);
            }
            if !self.enter_target(id, begin) {
                return;
            }
            if intent == Intent::Prepare {
                self.admit();
            }
        }
        let entry = self.entries.get_mut(&id).expect("just entered");
        // Only the migration's own source may speak for it, and only if this end is the target.
        if entry.begin.peer != peer || entry.begin.role != Role::Target {
            return;
        }
        if entry.begin.offer.is_none() {
            entry.begin.offer = offer;
        }
        if matches!(entry.half, MigrationHalf::Queued) && intent != Intent::Prepare {
            entry.half = MigrationHalf::Target(TargetHandover::new());
        }
        if let MigrationHalf::Target(target) = &mut entry.half {
            target.handle(TargetInput::Intent(intent));
        }
        // Every message of the source is answered.
        entry.send = RepeatedWant::default();
        self.settle(id);
    }

    /// Begins queued migrations for which there is a free slot.
    fn admit(&mut self) {
        for (role, places) in [(Role::Source, self.limits.outgoing), (Role::Target, self.limits.incoming)] {
            loop {
                let of_role = || self.entries.iter().filter(|(_, entry)| entry.begin.role == role);
                let busy = of_role().filter(|(_, entry)| entry.takes_slot()).count();
                let queued = of_role().filter(|(_, entry)| matches!(entry.half, MigrationHalf::Queued));
                let next =
                    queued.min_by_key(|(_, entry)| (u8::MAX - entry.begin.priority, entry.number)).map(|(id, _)| *id);
                let Some(id) = next.filter(|_| busy < places) else { break };
                let entry = self.entries.get_mut(&id).expect("just found");
                entry.half = match role {
                    Role::Source => {
                        let Begin { is_hold, hold, .. } = &entry.begin;
                        let mut source = if *is_hold { SourceHandover::held() } else { SourceHandover::new() };
                        if *is_hold && hold.is_none() {
                            source.handle(SourceInput::Switch);
                        }
                        source.handle(SourceInput::Guest(SourceGuest::Running));
                        MigrationHalf::Source(source)
                    }
                    Role::Target => MigrationHalf::Target(TargetHandover::new()),
                };
                entry.send = RepeatedWant::default();
                self.settle(id);
            }
        }
    }

    /// Turns what a machine wants, and what changed, into actions.
    fn settle(&mut self, id: MigrationId) {
        let now = self.now;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let actions = &mut self.actions;
        entry.announce(id, actions);
        let MigrationWants { write, order, message, wait } = entry.wants(id);
        if let Some(records) = entry.write.want(now, write) {
            // The write is asked for again when it is known to have failed.
            entry.write.again_at = Duration::MAX;
            actions.push_back(Action::Write(records));
        }
        let wait = wait.map(|wait| match entry.wait {
            Some((same, end)) if same == wait => (wait, end),
            _ => {
                let asked = match wait {
                    Wait::Precopy => entry.begin.deadline,
                    Wait::Hold => entry.begin.hold.and_then(|hold| hold.longest),
                    _ => None,
                };
                (wait, now + asked.unwrap_or(self.limits.waits.of(wait)))
            }
        });
        entry.wait = wait;
        if let Some(order) = entry.order.want(now, order) {
            actions.push_back(Action::Order(id, order));
            entry.half.ordered(order);
        }
        let contact = self.contact.get(&entry.begin.peer).copied().unwrap_or(false);
        if let Some(message) = entry.send.want(now, message.filter(|_| contact)) {
            // Reports are sent when the source asks; intents are repeated until they are answered.
            if matches!(message, Message::Report { .. }) {
                entry.send.again_at = Duration::MAX;
            }
            actions.push_back(Action::Send(entry.begin.peer.clone(), message));
        }
        if entry.is_done() {
            if entry.begin.role == Role::Target {
                self.settled.truncate(MIGRATIONS_MAX - 1);
                self.settled.push_front(id);
            }
            self.entries.remove(&id);
            actions.push_back(Action::Forget(id));
        }
        self.reach();
    }

    /// Asks for connections to the hosts to which sources have something to say.
    fn reach(&mut self) {
        let mut wanted: BTreeMap<String, bool> = self.reaching.keys().map(|peer| (peer.clone(), false)).collect();
        for entry in self.entries.values() {
            if matches!(&entry.half, MigrationHalf::Source(source) if source.phase() != SourcePhase::Begin) {
                wanted.insert(entry.begin.peer.clone(), true);
            }
        }
        for (peer, wanted) in wanted {
            if self.reaching.get(&peer).copied().unwrap_or(false) != wanted {
                self.actions.push_back(Action::Reach(peer.clone(), wanted));
            }
            if wanted {
                self.reaching.insert(peer, true);
            } else {
                self.reaching.remove(&peer);
            }
        }
    }
}
