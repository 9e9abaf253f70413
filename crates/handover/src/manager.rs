//! All migrations of one agent: routes what happens to their machines, and says what to do.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::last_records_in_order;
use crate::{
    FailureReason, Intent, JournalledMigration, LastRecord, MigrationId, Outcome, Record, Report, Role, SourceGuest,
    SourceHandover, SourceInput, SourceOrder, SourcePhase, SourceRecord, TargetGuest, TargetHandover, TargetInput,
    TargetOrder, TargetPhase, TargetRecord, Wait,
};

/// What is wanted and did not happen is asked for again after this.
const REPEAT_PERIOD: Duration = Duration::from_millis(500);
/// Migrations of one agent, queued ones too: a host has some hundreds of guests.
const MIGRATIONS_MAX: usize = 4096;

/// How much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationLimits {
    /// Migrations away from this host at once.
    pub outgoing: usize,
    /// Migrations to this host at once.
    pub incoming: usize,
    /// How long each wait is.
    pub waits: WaitTimes,
}

impl Default for MigrationLimits {
    fn default() -> MigrationLimits {
        MigrationLimits { outgoing: 4, incoming: 4, waits: WaitTimes::default() }
    }
}

/// How long each [`Wait`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // they are those of `Wait`
pub struct WaitTimes {
    pub prepare: Duration,
    pub precopy: Duration,
    pub switchover: Duration,
    pub abort: Duration,
    pub doubt: Duration,
    pub abandoned: Duration,
}

impl Default for WaitTimes {
    fn default() -> WaitTimes {
        WaitTimes {
            // Preallocating a terabyte of huge pages takes a minute.
            prepare: Duration::from_secs(120),
            precopy: Duration::from_secs(12 * 3600),
            // The guest is stopped: better it goes on here.
            switchover: Duration::from_secs(20),
            abort: Duration::from_secs(1),
            doubt: Duration::from_secs(1),
            abandoned: Duration::from_secs(60),
        }
    }
}

impl WaitTimes {
    fn of(&self, wait: Wait) -> Duration {
        match wait {
            Wait::Prepare => self.prepare,
            Wait::Precopy => self.precopy,
            Wait::Switchover => self.switchover,
            Wait::Abort => self.abort,
            Wait::Doubt => self.doubt,
            Wait::Abandoned => self.abandoned,
        }
    }
}

/// What agents tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// From the source.
    Intent {
        /// Of which migration.
        id: MigrationId,
        /// What is wanted.
        intent: Intent,
        /// The VM.
        vm: String,
        /// Greater goes first.
        priority: u8,
        /// What the target's QEMU is started from, with [`Intent::Prepare`]; the edges' matter.
        offer: String,
        /// Why it is called off, with [`Intent::Abort`], in words.
        #[serde(default)]
        detail: String,
    },
    /// From the target.
    Report {
        /// Of which migration.
        id: MigrationId,
        /// Where it stands.
        report: Report,
        /// Why it was called off, if it was.
        why: Option<FailureReason>,
        /// The same in words.
        detail: String,
        /// What its QEMU said as it ended, where nobody knows more.
        #[serde(rename = "said")]
        last_words: String,
    },
}

/// A migration that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMigration {
    /// Its name, new.
    pub id: MigrationId,
    /// The VM, which runs here.
    pub vm: String,
    /// The host to move it to.
    pub peer: String,
    /// Greater goes first.
    pub priority: u8,
    /// See [`Message::Intent`].
    pub offer: String,
    /// How long it may take until the guest is stopped, if not as long as others.
    pub deadline: Option<Duration>,
}

/// A migration that was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedStart {
    /// This one moves the VM already.
    UnderWay(MigrationId),
    /// There are too many.
    TooMany,
}

/// An order to the QEMU of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Order {
    Source(SourceOrder),
    Target(TargetOrder),
}

/// What happens to an agent's migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A host says something.
    Message(String, Message),
    /// A host can be reached, or not any more. Each new connection is told, as whatever was said before may be lost.
    Contact(String, bool),
    /// To one source's machine.
    Source(MigrationId, SourceInput),
    /// To one target's machine.
    Target(MigrationId, TargetInput),
    /// Why what will be reported next happened, in words.
    Detail(MigrationId, String),
    /// What a QEMU said as it failed or ended: told where nobody gives a better reason.
    LastWords(MigrationId, String),
    /// A host's agent and this one cannot read each other's messages; in words.
    NotUnderstood(String, String),
}

impl Input {
    /// What became of [`Action::Write`]: the records are on disk, or may or may not be.
    pub fn written(records: &[Record], on_disk: bool) -> Option<Input> {
        let input = match records.last()? {
            Record::Begin { id, role: Role::Source, .. } => (*id, LastRecord::Source(SourceRecord::Begin)),
            Record::Begin { id, role: Role::Target, .. } => (*id, LastRecord::Target(TargetRecord::Begin)),
            Record::Source(id, record) => (*id, LastRecord::Source(*record)),
            Record::Target(id, record) => (*id, LastRecord::Target(*record)),
        };
        Some(match (input, on_disk) {
            ((id, LastRecord::Source(record)), true) => Input::Source(id, SourceInput::Written(record)),
            ((id, LastRecord::Source(record)), false) => Input::Source(id, SourceInput::WriteFailed(record)),
            ((id, LastRecord::Target(record)), true) => Input::Target(id, TargetInput::Written(record)),
            ((id, LastRecord::Target(record)), false) => Input::Target(id, TargetInput::WriteFailed(record)),
        })
    }
}

/// What an agent is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put this into the journal, in this order, and say [`Input::written`].
    Write(Vec<Record>),
    /// Tell a host. If it cannot be told, nothing is lost.
    Send(String, Message),
    /// Have the migration's QEMU do this, and tell how it is after that, whatever came of it. An order that is under
    /// way already is not begun again; others of the same migration come after it.
    Order(MigrationId, Order),
    /// Reach a host and say when that is done; or do not mind it any more.
    Reach(String, bool),
    /// Something worth telling.
    Event(MigrationId, MigrationEvent),
    /// The machine is gone: what the edge holds for it may go.
    Forget(MigrationId),
}

/// Something worth telling of a migration, for its event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum MigrationEvent {
    /// It waits for a place.
    Queued,
    /// It is in another phase.
    Phase {
        /// The phase in which it is.
        stage: MigrationPhase,
    },
    /// The other end said where it stands.
    Reported {
        /// Where the other end stands.
        report: Report,
        /// And why, if it was called off.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// It is called off.
    CalledOff {
        /// The reason, by its kind.
        why: FailureReason,
        /// In words.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// The guest is paused, and this end can do nothing about it.
    InDoubt,
    /// It was taken up after the agent was started again.
    Recovered,
    /// The journal could not be written.
    WriteFailed,
    /// How it ended.
    Over {
        /// How it ended.
        outcome: Outcome,
    },
}

/// The phase of either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// It waits for a place here.
    Queued,
    /// Of a source.
    Source(SourcePhase),
    /// Of a target.
    Target(TargetPhase),
}

impl MigrationPhase {
    /// In a word, and as it is told to people while it lasts.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            MigrationPhase::Queued => ("queued", "waiting for a place"),
            MigrationPhase::Source(SourcePhase::Begin) => ("begin", "beginning"),
            MigrationPhase::Source(SourcePhase::Prepare) => ("prepare", "preparing the target"),
            MigrationPhase::Source(SourcePhase::Precopy) => ("precopy", "copying while it runs"),
            MigrationPhase::Source(SourcePhase::Switchover) => ("switchover", "stopped, copying the rest"),
            MigrationPhase::Source(SourcePhase::Grant) => ("grant", "handing over"),
            MigrationPhase::Source(SourcePhase::Release) => ("release", "runs on the target, clearing up"),
            MigrationPhase::Source(SourcePhase::Keep) => ("keep", "called off, clearing up"),
            MigrationPhase::Source(SourcePhase::Done) => ("done", "done"),
            MigrationPhase::Target(TargetPhase::Begin) => ("begin", "beginning"),
            MigrationPhase::Target(TargetPhase::Prepare) => ("prepare", "starting QEMU here"),
            MigrationPhase::Target(TargetPhase::Ready) => ("ready", "receiving"),
            MigrationPhase::Target(TargetPhase::Completed) => ("completed", "received, waiting for the word to run"),
            MigrationPhase::Target(TargetPhase::Run) => ("run", "taking over"),
            MigrationPhase::Target(TargetPhase::Running) => ("running", "runs here"),
            MigrationPhase::Target(TargetPhase::Refuse) => ("refuse", "called off, clearing up"),
            MigrationPhase::Target(TargetPhase::Done) => ("done", "done"),
        }
    }
}

/// A migration at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationSummary {
    /// The migration's number.
    pub id: MigrationId,
    /// As what this host takes part.
    pub role: Role,
    /// The VM.
    pub vm: String,
    /// The other host.
    pub peer: String,
    /// Its phase.
    pub stage: MigrationPhase,
    /// Greater goes first.
    pub priority: u8,
    /// Why it was called off, if it was.
    pub why: Option<FailureReason>,
    /// The same in words.
    pub detail: String,
    /// The guest is paused, and this end can do nothing about it.
    pub in_doubt: bool,
    /// How it ended, from the moment that this is certain.
    pub outcome: Option<Outcome>,
}

#[derive(Clone, Debug)]
enum MigrationHalf {
    Queued,
    Source(SourceHandover),
    Target(TargetHandover),
}

#[derive(Clone, Debug)]
struct ManagedMigration {
    role: Role,
    vm: String,
    peer: String,
    priority: u8,
    /// Who came first.
    number: u64,
    offer: String,
    detail: String,
    last_words: String,
    deadline: Option<Duration>,
    half: MigrationHalf,
    /// What was asked for, and when that is asked for again.
    write: RepeatedWant<Vec<Record>>,
    order: RepeatedWant<Order>,
    send: RepeatedWant<Message>,
    wait: Option<(Wait, Duration)>,
    /// What was told of it.
    announced: Announced,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Announced {
    stage: Option<MigrationPhase>,
    in_doubt: bool,
    why: Option<FailureReason>,
    report: Option<Report>,
    outcome: Option<Outcome>,
}

/// Something that is asked for until it is not wanted any more.
#[derive(Clone, Debug)]
struct RepeatedWant<T> {
    what: Option<T>,
    again_at: Duration,
}

impl<T> Default for RepeatedWant<T> {
    fn default() -> Self {
        RepeatedWant { what: None, again_at: Duration::MAX }
    }
}

impl<T: PartialEq + Clone> RepeatedWant<T> {
    /// Whether to ask now.
    fn want(&mut self, now: Duration, what: Option<T>) -> Option<T> {
        if what.is_none() {
            *self = RepeatedWant::default();
            return None;
        }
        if self.what == what && now < self.again_at {
            return None;
        }
        self.what = what.clone();
        self.again_at = now + REPEAT_PERIOD;
        what
    }
}

/// All migrations of one agent. Time is the agent's own and only goes forward.
#[derive(Clone, Debug)]
pub struct Manager {
    now: Duration,
    limits: MigrationLimits,
    entries: BTreeMap<MigrationId, ManagedMigration>,
    contact: BTreeMap<String, bool>,
    reaching: BTreeMap<String, bool>,
    actions: VecDeque<Action>,
    next_number: u64,
    /// Targets that were settled, the latest first: what was said of them may still be under way on a session that was
    /// cut off meanwhile. A session ends with this process, so they need not be kept on disk.
    settled: VecDeque<MigrationId>,
}

impl Manager {
    /// An agent's migrations as its journal has them. Each of those that are not settled is taken up where it was: the
    /// agent is to say how its QEMU is.
    pub fn new(now: Duration, limits: MigrationLimits, records: &[Record]) -> Manager {
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
            let (id, JournalledMigration { peer, vm, last_record: standing }) = (*id, begun.clone());
            let is_followed = all[number + 1..]
                .iter()
                .any(|(_, later)| later.vm == vm && matches!(later.last_record, LastRecord::Source(_)));
            let (role, machine) = match standing {
                LastRecord::Source(last) if is_followed => {
                    (Role::Source, MigrationHalf::Source(SourceHandover::recover_followed(last)))
                }
                LastRecord::Source(last) => (Role::Source, MigrationHalf::Source(SourceHandover::recover(last))),
                LastRecord::Target(last) => (Role::Target, MigrationHalf::Target(TargetHandover::recover(last))),
            };
            manager.enter(id, role, &vm, &peer, 0, String::new(), machine);
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
    pub fn start(&mut self, now: Duration, new: NewMigration) -> Result<(), RefusedStart> {
        self.now = now;
        let NewMigration { id, vm, peer, priority, offer, deadline } = new;
        let of_this = |entry: &ManagedMigration| entry.vm == vm && entry.outcome().is_none();
        if let Some((id, _)) = self.entries.iter().find(|(_, entry)| of_this(entry)) {
            return Err(RefusedStart::UnderWay(*id));
        }
        if self.entries.len() >= MIGRATIONS_MAX || self.entries.contains_key(&id) {
            return Err(RefusedStart::TooMany);
        }
        self.enter(id, Role::Source, &vm, &peer, priority, offer, MigrationHalf::Queued).deadline = deadline;
        self.admit();
        self.settle(id);
        Ok(())
    }

    /// Calls a migration off, as far as that is this end's to say. False: there is none.
    pub fn cancel(&mut self, now: Duration, id: MigrationId) -> bool {
        let Some(entry) = self.entries.get(&id) else { return false };
        match (&entry.half, entry.role) {
            // It was never begun: nobody else knows of it.
            (MigrationHalf::Queued, Role::Source) => {
                self.entries.remove(&id);
                let over = MigrationEvent::CalledOff { why: FailureReason::Cancelled, detail: String::new() };
                self.actions.push_back(Action::Event(id, over));
                self.actions.push_back(Action::Event(id, MigrationEvent::Over { outcome: Outcome::CalledOff }));
                self.actions.push_back(Action::Forget(id));
            }
            (_, Role::Source) => self.handle(now, Input::Source(id, SourceInput::Cancel)),
            (_, Role::Target) => self.handle(now, Input::Target(id, TargetInput::Cancel)),
        }
        true
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Duration, input: Input) {
        self.now = now;
        match input {
            Input::Message(peer, Message::Intent { id, intent, vm, priority, offer, detail }) => {
                if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.peer == peer) {
                    entry.take_reason(intent, detail);
                }
                self.intent(id, &peer, intent, &vm, priority, offer);
            }
            Input::Message(peer, Message::Report { id, report, why, detail, last_words: said }) => {
                let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.peer == peer) else { return };
                let has_own_reason = entry.has_own_reason();
                let MigrationHalf::Source(source) = &mut entry.half else { return };
                // A target that was told to give up has nothing to say about why.
                if why.is_some() && !detail.is_empty() && !has_own_reason {
                    entry.detail.clone_from(&detail);
                }
                if !said.is_empty() {
                    entry.last_words = said;
                }
                if entry.announced.report < Some(report) {
                    entry.announced.report = Some(report);
                    self.actions.push_back(Action::Event(id, MigrationEvent::Reported { report, detail }));
                }
                source.handle(SourceInput::Report(report));
                self.settle(id);
            }
            Input::Contact(peer, contact) => {
                self.contact.insert(peer.clone(), contact);
                let ids: Vec<MigrationId> =
                    self.entries.iter().filter(|(_, entry)| entry.peer == peer).map(|(id, _)| *id).collect();
                for id in ids {
                    let entry = self.entries.get_mut(&id).expect("just found");
                    match &mut entry.half {
                        MigrationHalf::Source(source) => source.handle(SourceInput::Contact(contact)),
                        MigrationHalf::Target(target) => target.handle(TargetInput::Contact(contact)),
                        MigrationHalf::Queued => {}
                    }
                    // What was said may be lost.
                    entry.send = RepeatedWant::default();
                    self.settle(id);
                }
            }
            Input::Source(id, input) => {
                let Some(ManagedMigration { half: MigrationHalf::Source(source), write, .. }) =
                    self.entries.get_mut(&id)
                else {
                    return;
                };
                source.handle(input);
                if let SourceInput::WriteFailed(_) = input {
                    write.again_at = self.now + REPEAT_PERIOD;
                    self.actions.push_back(Action::Event(id, MigrationEvent::WriteFailed));
                }
                self.settle(id);
            }
            Input::Target(id, input) => {
                let Some(ManagedMigration { half: MigrationHalf::Target(target), write, .. }) =
                    self.entries.get_mut(&id)
                else {
                    return;
                };
                target.handle(input);
                if let TargetInput::WriteFailed(_) = input {
                    write.again_at = self.now + REPEAT_PERIOD;
                    self.actions.push_back(Action::Event(id, MigrationEvent::WriteFailed));
                }
                self.settle(id);
            }
            Input::LastWords(id, said) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.last_words = said;
                }
            }
            Input::Detail(id, detail) => {
                // What follows from the source's or somebody's word is no reason.
                if let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.is_ended_by_word()) {
                    entry.detail = detail;
                }
            }
            Input::NotUnderstood(peer, detail) => {
                let of_peer = |(id, entry): (&MigrationId, &ManagedMigration)| (entry.peer == peer).then_some(*id);
                for id in self.entries.iter().filter_map(of_peer).collect::<Vec<_>>() {
                    let entry = self.entries.get_mut(&id).expect("just found");
                    let before = entry.why();
                    match &mut entry.half {
                        MigrationHalf::Source(source) => source.handle(SourceInput::NotUnderstood),
                        MigrationHalf::Target(target) => target.handle(TargetInput::NotUnderstood),
                        MigrationHalf::Queued => {}
                    }
                    if before.is_none() && entry.why() == Some(FailureReason::NotUnderstood) {
                        entry.detail.clone_from(&detail);
                    }
                    self.settle(id);
                }
            }
        }
        self.admit();
    }

    /// Takes in that it is `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        let ids: Vec<MigrationId> = self.entries.keys().copied().collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if let Some((wait, _)) = entry.wait.filter(|(_, end)| *end <= now) {
                entry.wait = None;
                match &mut entry.half {
                    MigrationHalf::Source(source) => source.handle(SourceInput::Elapsed(wait)),
                    MigrationHalf::Target(target) => target.handle(TargetInput::Elapsed(wait)),
                    MigrationHalf::Queued => {}
                }
            }
            self.settle(id);
        }
        self.admit();
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        let times = self.entries.values().flat_map(|entry| {
            let asked = [entry.write.again_at, entry.order.again_at, entry.send.again_at];
            asked.into_iter().chain(entry.wait.map(|(_, end)| end))
        });
        times.min().filter(|time| *time != Duration::MAX)
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Each migration at this moment, in the order of their ids.
    pub fn summaries(&self) -> Vec<MigrationSummary> {
        self.entries.iter().map(|(id, entry)| entry.summary(*id)).collect()
    }

    /// One migration at this moment.
    pub fn summary(&self, id: MigrationId) -> Option<MigrationSummary> {
        self.entries.get(&id).map(|entry| entry.summary(id))
    }

    /// What the target's QEMU is to be started from.
    pub fn offer(&self, id: MigrationId) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.offer.as_str())
    }

    #[allow(clippy::too_many_arguments)]
    fn enter(
        &mut self,
        id: MigrationId,
        role: Role,
        vm: &str,
        peer: &str,
        priority: u8,
        offer: String,
        machine: MigrationHalf,
    ) -> &mut ManagedMigration {
        let number = self.next_number;
        self.next_number += 1;
        let entry = ManagedMigration {
            role,
            vm: vm.to_owned(),
            peer: peer.to_owned(),
            priority,
            number,
            offer,
            detail: String::new(),
            last_words: String::new(),
            deadline: None,
            half: machine,
            write: RepeatedWant::default(),
            order: RepeatedWant::default(),
            send: RepeatedWant::default(),
            wait: None,
            announced: Announced::default(),
        };
        self.entries.entry(id).or_insert(entry)
    }

    /// The source of a migration wants something.
    fn intent(&mut self, id: MigrationId, peer: &str, intent: Intent, vm: &str, priority: u8, offer: String) {
        if !self.entries.contains_key(&id) {
            if intent == Intent::Settle || self.settled.contains(&id) {
                // It was settled before, and forgotten. Whoever took up a belated `Prepare` would start a QEMU that
                // nobody minds, or take the one that runs the guest for it.
                let report = Report::Settled;
                let message =
                    Message::Report { id, report, why: None, detail: String::new(), last_words: String::new() };
                self.actions.push_back(Action::Send(peer.to_owned(), message));
                return;
            }
            if self.entries.len() >= MIGRATIONS_MAX {
                // Not a word about it: the source asks again, or gives up.
                return;
            }
            self.enter(id, Role::Target, vm, peer, priority, offer.clone(), MigrationHalf::Queued);
            if intent == Intent::Prepare {
                self.admit();
            }
        }
        let entry = self.entries.get_mut(&id).expect("just entered");
        // Another host's migration is nothing that a stranger may speak for, nor its source the target of it.
        if entry.peer != peer || entry.role != Role::Target {
            return;
        }
        if entry.offer.is_empty() {
            entry.offer = offer;
        }
        if matches!(entry.half, MigrationHalf::Queued) && intent != Intent::Prepare {
            entry.half = MigrationHalf::Target(TargetHandover::new());
        }
        if let MigrationHalf::Target(target) = &mut entry.half {
            target.handle(TargetInput::Intent(intent));
        }
        // Whoever asks is answered.
        entry.send = RepeatedWant::default();
        self.settle(id);
    }

    /// Begins what is queued and has a place.
    fn admit(&mut self) {
        for (role, places) in [(Role::Source, self.limits.outgoing), (Role::Target, self.limits.incoming)] {
            loop {
                let of_role = || self.entries.iter().filter(|(_, entry)| entry.role == role);
                let busy = of_role().filter(|(_, entry)| entry.takes_slot()).count();
                let queued = of_role().filter(|(_, entry)| matches!(entry.half, MigrationHalf::Queued));
                let next = queued.min_by_key(|(_, entry)| (u8::MAX - entry.priority, entry.number)).map(|(id, _)| *id);
                let Some(id) = next.filter(|_| busy < places) else { break };
                let entry = self.entries.get_mut(&id).expect("just found");
                entry.half = match role {
                    Role::Source => {
                        let mut source = SourceHandover::new();
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

    /// Turns what a machine wants, and what is new of it, into actions.
    fn settle(&mut self, id: MigrationId) {
        let now = self.now;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let actions = &mut self.actions;
        entry.announce(id, actions);
        let (write, order, message, wait) = entry.wants(id);
        if let Some(records) = entry.write.want(now, write) {
            // It is asked for again when it is known to have failed.
            entry.write.again_at = Duration::MAX;
            actions.push_back(Action::Write(records));
        }
        let wait = wait.map(|wait| match entry.wait {
            Some((same, end)) if same == wait => (wait, end),
            _ => {
                let usual = self.limits.waits.of(wait);
                let time = if wait == Wait::Precopy { entry.deadline.unwrap_or(usual) } else { usual };
                (wait, now + time)
            }
        });
        entry.wait = wait;
        if let Some(order) = entry.order.want(now, order) {
            actions.push_back(Action::Order(id, order));
            // Until the edge has answered, what was known of QEMU is old: one that is called off now may start to
            // migrate, or be started, all the same.
            match (&mut entry.half, order) {
                (MigrationHalf::Source(source), Order::Source(SourceOrder::Migrate)) => {
                    source.handle(SourceInput::Guest(SourceGuest::Unknown));
                }
                (MigrationHalf::Target(target), Order::Target(TargetOrder::Start)) => {
                    target.handle(TargetInput::Guest(TargetGuest::Unknown));
                }
                _ => {}
            }
        }
        let contact = self.contact.get(&entry.peer).copied().unwrap_or(false);
        if let Some(message) = entry.send.want(now, message.filter(|_| contact)) {
            // Reports are asked for; intents are repeated until they are answered.
            if matches!(message, Message::Report { .. }) {
                entry.send.again_at = Duration::MAX;
            }
            actions.push_back(Action::Send(entry.peer.clone(), message));
        }
        if entry.is_done() {
            if entry.role == Role::Target {
                self.settled.truncate(MIGRATIONS_MAX - 1);
                self.settled.push_front(id);
            }
            self.entries.remove(&id);
            actions.push_back(Action::Forget(id));
        }
        self.reach();
    }

    /// Asks for the hosts that sources have something to say to.
    fn reach(&mut self) {
        let mut wanted: BTreeMap<String, bool> = self.reaching.keys().map(|peer| (peer.clone(), false)).collect();
        for entry in self.entries.values() {
            if matches!(&entry.half, MigrationHalf::Source(source) if source.phase() != SourcePhase::Begin) {
                wanted.insert(entry.peer.clone(), true);
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

type MigrationWants = (Option<Vec<Record>>, Option<Order>, Option<Message>, Option<Wait>);

impl ManagedMigration {
    fn wants(&self, id: MigrationId) -> MigrationWants {
        let begin = || Record::Begin { id, role: self.role, peer: self.peer.clone(), vm: self.vm.clone() };
        match &self.half {
            MigrationHalf::Queued => {
                let message = (self.role == Role::Target).then(|| self.report(id, Report::Queued, None));
                (None, None, message, None)
            }
            MigrationHalf::Source(source) => {
                let wants = source.wants();
                let write = wants.write.map(|record| match record {
                    SourceRecord::Begin => vec![begin()],
                    record => vec![Record::Source(id, record)],
                });
                let message = wants.intent.map(|intent| Message::Intent {
                    id,
                    intent,
                    vm: self.vm.clone(),
                    priority: self.priority,
                    offer: if intent == Intent::Prepare { self.offer.clone() } else { String::new() },
                    detail: if intent == Intent::Abort { self.reason() } else { String::new() },
                });
                (write, wants.order.map(Order::Source), message, wants.wait)
            }
            MigrationHalf::Target(target) => {
                let wants = target.wants();
                let write = wants.write.map(|record| match record {
                    TargetRecord::Begin => vec![begin()],
                    // Of one that is refused unseen the beginning is not there.
                    TargetRecord::Refused => vec![begin(), Record::Target(id, record)],
                    record => vec![Record::Target(id, record)],
                });
                let message = wants.report.map(|report| self.report(id, report, target.why()));
                (write, wants.order.map(Order::Target), message, wants.wait)
            }
        }
    }

    /// Whether this end called it off for a reason of its own: what the other end says after that follows from it.
    fn has_own_reason(&self) -> bool {
        let is_source = matches!(self.half, MigrationHalf::Source(_));
        let knows = match self.why() {
            Some(
                FailureReason::Cancelled
                | FailureReason::Deadline
                | FailureReason::GuestChanged
                | FailureReason::NotUnderstood,
            ) => true,
            Some(FailureReason::QemuEnded) => !self.detail.is_empty(),
            _ => false,
        };
        is_source && knows
    }

    /// Whether it is a target that its source, or somebody, called off.
    fn is_ended_by_word(&self) -> bool {
        let is_target = matches!(self.half, MigrationHalf::Target(_));
        is_target && matches!(self.why(), Some(FailureReason::Cancelled | FailureReason::Aborted))
    }

    fn why(&self) -> Option<FailureReason> {
        match &self.half {
            MigrationHalf::Source(source) => source.why(),
            MigrationHalf::Target(target) => target.why(),
            MigrationHalf::Queued => None,
        }
    }

    /// Why a source called it off, for its target: nothing where that was the target's doing.
    fn reason(&self) -> String {
        match (self.why(), self.detail.as_str()) {
            (None | Some(FailureReason::TargetRefused), _) => String::new(),
            (Some(why), "") => why.words().to_owned(),
            (Some(why), detail) => format!("{}: {detail}", why.words()),
        }
    }

    /// The source says why it calls off what this target has not called off itself.
    fn take_reason(&mut self, intent: Intent, detail: String) {
        let is_new = matches!(self.half, MigrationHalf::Target(_)) && self.why().is_none();
        if intent == Intent::Abort && is_new && !detail.is_empty() {
            self.detail = detail;
        }
    }

    fn report(&self, id: MigrationId, report: Report, why: Option<FailureReason>) -> Message {
        let (detail, said) = match why {
            None => Default::default(),
            // The reason is the source's own word.
            Some(FailureReason::Aborted) => (String::new(), self.last_words.clone()),
            Some(FailureReason::Cancelled) if self.detail.is_empty() => {
                ("somebody called it off there".into(), self.last_words.clone())
            }
            Some(_) => (self.detail.clone(), self.last_words.clone()),
        };
        Message::Report { id, report, why, detail, last_words: said }
    }

    fn announce(&mut self, id: MigrationId, actions: &mut VecDeque<Action>) {
        let summary = self.summary(id);
        let mut event = |event| actions.push_back(Action::Event(id, event));
        if self.announced.stage != Some(summary.stage) {
            event(match summary.stage {
                MigrationPhase::Queued => MigrationEvent::Queued,
                stage => MigrationEvent::Phase { stage },
            });
        }
        if let Some(why) = summary.why.filter(|why| self.announced.why != Some(*why)) {
            event(MigrationEvent::CalledOff { why, detail: summary.detail });
        }
        if summary.in_doubt && !self.announced.in_doubt {
            event(MigrationEvent::InDoubt);
        }
        // Once: that the guest ended later is nothing of this migration's.
        if let Some(outcome) = summary.outcome.filter(|_| self.announced.outcome.is_none()) {
            event(MigrationEvent::Over { outcome });
        }
        self.announced = Announced {
            stage: Some(summary.stage),
            in_doubt: summary.in_doubt,
            why: summary.why,
            report: self.announced.report,
            outcome: self.announced.outcome.or(summary.outcome),
        };
    }

    fn summary(&self, id: MigrationId) -> MigrationSummary {
        let (stage, why, in_doubt) = match &self.half {
            MigrationHalf::Queued => (MigrationPhase::Queued, None, false),
            MigrationHalf::Source(source) => {
                (MigrationPhase::Source(source.phase()), source.why(), source.is_in_doubt())
            }
            MigrationHalf::Target(target) => {
                (MigrationPhase::Target(target.phase()), target.why(), target.is_in_doubt())
            }
        };
        MigrationSummary {
            id,
            role: self.role,
            vm: self.vm.clone(),
            peer: self.peer.clone(),
            stage,
            priority: self.priority,
            why,
            detail: if self.detail.is_empty() { self.last_words.clone() } else { self.detail.clone() },
            in_doubt,
            outcome: self.outcome(),
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        match &self.half {
            MigrationHalf::Queued => None,
            MigrationHalf::Source(source) => source.outcome(),
            MigrationHalf::Target(target) => target.outcome(),
        }
    }

    /// Whether it counts against the limit of migrations at once.
    fn takes_slot(&self) -> bool {
        !matches!(self.half, MigrationHalf::Queued) && self.outcome().is_none()
    }

    fn is_done(&self) -> bool {
        match &self.half {
            MigrationHalf::Queued => false,
            MigrationHalf::Source(source) => source.phase() == SourcePhase::Done,
            MigrationHalf::Target(target) => target.phase() == TargetPhase::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MigrationId = MigrationId(1);

    fn intent(intent: Intent) -> Input {
        let message =
            Message::Intent { id: ID, intent, vm: "v".into(), priority: 0, offer: String::new(), detail: "x".into() };
        Input::Message("a".into(), message)
    }

    /// What it wants done, but for events.
    fn actions(manager: &mut Manager) -> Vec<Action> {
        let all = std::iter::from_fn(|| manager.poll_action());
        all.filter(|action| !matches!(action, Action::Event(..))).collect()
    }

    fn fed(manager: &mut Manager, inputs: impl IntoIterator<Item = Input>) -> Vec<Action> {
        inputs.into_iter().for_each(|input| manager.handle(Duration::ZERO, input));
        actions(manager)
    }

    fn target(input: TargetInput) -> Input {
        Input::Target(ID, input)
    }

    /// An agent that was told to start a QEMU and has not said that it did.
    fn starting() -> Manager {
        let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
        let begin = [
            Input::Contact("a".into(), true),
            intent(Intent::Prepare),
            target(TargetInput::Written(TargetRecord::Begin)),
        ];
        let wanted = fed(&mut manager, begin);
        assert!(wanted.contains(&Action::Order(ID, Order::Target(TargetOrder::Start))), "{wanted:?}");
        manager
    }

    #[test]
    fn a_qemu_that_is_being_started_is_killed_when_it_is_called_off() {
        let mut manager = starting();
        let wanted = fed(&mut manager, [intent(Intent::Abort)]);
        assert!(wanted.contains(&Action::Order(ID, Order::Target(TargetOrder::Kill))), "{wanted:?}");
    }

    #[test]
    fn the_target_learns_why_it_was_called_off() {
        let mut manager = starting();
        fed(&mut manager, [intent(Intent::Prepare)]);
        assert_eq!(manager.summary(ID).unwrap().detail, "");
        fed(&mut manager, [intent(Intent::Abort), Input::Detail(ID, "its QEMU was killed".into())]);
        let summary = manager.summary(ID).unwrap();
        assert_eq!(
            (summary.why, summary.detail.as_str()),
            (Some(FailureReason::Aborted), "x"),
            "what follows is no reason"
        );
        let entry = &manager.entries[&ID];
        let Message::Report { detail, .. } = entry.report(ID, Report::Refusing, entry.why()) else { panic!() };
        assert_eq!(detail, "", "the source knows its own reason better");

        let mut manager = sending();
        manager.handle(Duration::ZERO, Input::Detail(ID, "somebody paused it".into()));
        let wanted = fed(&mut manager, [Input::Source(ID, SourceInput::GuestChanged)]);
        let told = "the guest changed while it was copied: somebody paused it";
        let is_told =
            |action: &Action| matches!(action, Action::Send(_, Message::Intent { detail, .. }) if detail == told);
        assert!(wanted.iter().any(is_told), "{wanted:?}");
    }

    #[test]
    fn agents_that_do_not_understand_each_other_call_it_off() {
        let words = || Input::NotUnderstood("b".into(), "are both of one release?".into());
        let mut manager = sending();
        fed(&mut manager, [Input::NotUnderstood("c".into(), String::new())]);
        assert_eq!(manager.summary(ID).unwrap().why, None, "another host's");
        fed(&mut manager, [words(), words()]);
        let summary = manager.summary(ID).unwrap();
        assert_eq!((summary.why, summary.outcome), (Some(FailureReason::NotUnderstood), Some(Outcome::CalledOff)));
        assert_eq!(summary.detail, "are both of one release?");

        let mut manager = starting();
        fed(&mut manager, [Input::NotUnderstood("a".into(), "are both of one release?".into())]);
        let summary = manager.summary(ID).unwrap();
        assert_eq!(
            (summary.why, summary.stage),
            (Some(FailureReason::NotUnderstood), MigrationPhase::Target(TargetPhase::Refuse))
        );
    }

    /// An agent whose migration to b waits for b.
    fn sending() -> Manager {
        let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
        let (vm, peer, offer) = ("v".into(), "b".into(), String::new());
        manager.start(Duration::ZERO, NewMigration { id: ID, vm, peer, priority: 0, offer, deadline: None }).unwrap();
        let written = Input::Source(ID, SourceInput::Written(SourceRecord::Begin));
        fed(&mut manager, [written, Input::Contact("b".into(), true)]);
        manager
    }

    #[test]
    fn what_comes_late_begins_nothing_anew() {
        let mut manager = starting();
        let end = [
            intent(Intent::Abort),
            target(TargetInput::Guest(TargetGuest::GoneUnrun)),
            target(TargetInput::Written(TargetRecord::Refused)),
            intent(Intent::Settle),
            target(TargetInput::Written(TargetRecord::Settled)),
        ];
        assert!(fed(&mut manager, end).contains(&Action::Forget(ID)));
        for late in [Intent::Prepare, Intent::Abort, Intent::Grant] {
            let wanted = fed(&mut manager, [intent(late)]);
            let settled = matches!(&wanted[..], [Action::Send(_, Message::Report { report: Report::Settled, .. })]);
            assert!(settled && manager.summaries().is_empty(), "{late:?}: {wanted:?}");
        }
    }

    #[test]
    fn a_wait_ends_though_things_go_on_happening() {
        let mut manager = starting();
        let prepare = MigrationLimits::default().waits.prepare;
        for second in 1.. {
            let now = Duration::from_secs(second);
            manager.handle(now, intent(Intent::Prepare));
            manager.handle_timeout(now);
            let why = manager.summary(ID).unwrap().why;
            assert_eq!(why, (now >= prepare).then_some(FailureReason::Deadline), "after {now:?}");
            if why.is_some() {
                return;
            }
        }
    }

    #[test]
    fn of_a_migration_only_its_own_hosts_may_speak() {
        let mut manager = starting();
        let Input::Message(_, abort) = intent(Intent::Abort) else { unreachable!() };
        manager.handle(Duration::ZERO, Input::Message("c".into(), abort));
        assert_eq!(manager.summary(ID).unwrap().why, None);

        let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &[]);
        let (vm, peer, offer) = ("v".into(), "b".into(), String::new());
        manager.start(Duration::ZERO, NewMigration { id: ID, vm, peer, priority: 0, offer, deadline: None }).unwrap();
        manager.handle(Duration::ZERO, Input::Source(ID, SourceInput::Written(SourceRecord::Begin)));
        for (from, phase) in [("c", SourcePhase::Prepare), ("b", SourcePhase::Precopy)] {
            let ready = Message::Report {
                id: ID,
                report: Report::Ready,
                why: None,
                detail: String::new(),
                last_words: String::new(),
            };
            manager.handle(Duration::ZERO, Input::Message(from.into(), ready));
            assert_eq!(manager.summary(ID).unwrap().stage, MigrationPhase::Source(phase), "{from}");
        }
    }

    #[test]
    fn after_a_crash_only_the_latest_migration_of_a_vm_gives_orders() {
        let begin = |id, peer: &str| Record::Begin { id, role: Role::Source, peer: peer.into(), vm: "v".into() };
        // By its number the first comes last.
        let (first, second) = (MigrationId(9), MigrationId(2));
        let records = [
            begin(first, "a"),
            Record::Source(first, SourceRecord::Keep),
            begin(second, "b"),
            Record::Source(second, SourceRecord::Grant),
        ];
        for records in [records.to_vec(), crate::needed(&records)] {
            let mut manager = Manager::new(Duration::ZERO, MigrationLimits::default(), &records);
            let guest = SourceInput::Guest(SourceGuest::Completed);
            let wanted = fed(&mut manager, [Input::Source(first, guest), Input::Source(second, guest)]);
            let orders = wanted.iter().filter(|action| matches!(action, Action::Order(..)));
            assert_eq!(orders.count(), 0, "{wanted:?}");
            manager.handle_timeout(Duration::from_secs(5));
            assert!(!actions(&mut manager).iter().any(|action| matches!(action, Action::Order(..))));
        }
    }
}
