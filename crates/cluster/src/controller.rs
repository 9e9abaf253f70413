//! The controller: what comes in, what goes out, and what is held back until it is written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use skein_api::cluster::{AuditRecord, ChangedObject, Contact, Operation, UnixMs};
use skein_api::{Hello, HostReport, Reply, Request, Term};

use crate::ask::{Answer, Asked};
use crate::observed::{Observed, SessionId};
use crate::operations::{OperationRun, PlanPurpose};
use crate::planner::{PlanError, PlanRequest, Planned};
use crate::records::{HostRecord, Record, VmRecord};
use crate::tables::{BadRecord, Change, Tables};
use crate::time::Now;

/// The most changes of one transaction: etcd takes 128 (`--max-txn-ops`), and the guard is one more.
pub const CHANGES_MAX: usize = 100;

/// How a controller behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long an agent may be silent before its host counts as lost, in milliseconds.
    pub host_lease_ms: u64,
    /// How often a move is begun before it counts as failed.
    pub attempts_max: u32,
    /// The milliseconds before a move's second attempt; each further attempt waits twice as long.
    pub retry_ms: u64,
    /// The most migrations at once in the cluster.
    pub migrations_max: u32,
    /// How long a VM that no host reports is remembered, in milliseconds.
    pub missing_ms: u64,
    /// How many operations that are over are remembered.
    pub operations_kept: usize,
    /// How many records the audit log has.
    pub audit_kept: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            host_lease_ms: 10_000,
            attempts_max: 3,
            retry_ms: 5_000,
            migrations_max: 64,
            missing_ms: 60_000,
            operations_kept: 500,
            audit_kept: 100_000,
        }
    }
}

/// What happens to a controller.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Input {
    /// This controller leads from now on. The tables are all that the store had after the election.
    Elected { term: Term, tables: Box<Tables> },
    /// This controller does not lead. The tables are all that the store has.
    Following { tables: Box<Tables> },
    /// Another controller changed the store: a key, its value or `None`, the revision.
    Watched { changes: Vec<(String, Option<Vec<u8>>)>, revision: u64 },
    /// A write is in the store.
    Written { write: u64, revision: u64 },
    /// A write is not, or perhaps not, in the store. The controller leads no more.
    WriteFailed { write: u64, why: String },
    /// An agent has connected.
    AgentUp { session: SessionId, hello: Hello },
    /// An agent reports.
    AgentReport { session: SessionId, report: Box<HostReport> },
    /// An agent answers a command.
    AgentReply { session: SessionId, command: u64, reply: Box<Reply> },
    /// An agent knows of a later leader.
    AgentDeposed { session: SessionId, highest: Term },
    /// A connection is over.
    AgentDown { session: SessionId },
    /// Somebody asks for something.
    Asked(Box<Asked>),
    /// A plan was made, or not.
    Planned { plan: u64, result: Result<Planned, PlanError> },
    /// Time has passed.
    Tick,
}

/// What a controller wants done.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Output {
    /// Write these changes in one transaction, guarded by the leader's key of this term.
    Write { write: u64, term: Term, changes: Vec<Change> },
    /// Send a command to an agent.
    Command { session: SessionId, command: u64, term: Term, request_id: Option<String>, request: Box<Request> },
    /// Tell an agent who leads.
    Lead { session: SessionId, term: Term },
    /// End an agent's connection.
    HangUp { session: SessionId, why: String },
    /// Make a plan, and come back with [`Input::Planned`].
    Plan { plan: u64, request: Box<PlanRequest> },
    /// Answer what was asked.
    Answer { asked: u64, answer: Answer },
    /// Tell subscribers what has changed, by this revision.
    Changed { revision: u64, at: UnixMs, changed: Box<ChangedObject> },
    /// Give up the lead, if it is not lost yet, and read the store again.
    StepDown { why: String },
}

/// Whether a controller decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Another controller leads, or none.
    Follower,
    /// This controller leads.
    Leader {
        /// The election.
        term: Term,
        /// When it began, by the clock that never jumps.
        since_ms: u64,
    },
}

/// A write that is under way, and what waits for it.
#[derive(Debug)]
struct InFlight {
    write: u64,
    changes: Vec<Change>,
    effects: Vec<Output>,
}

/// The reason why a command was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandPurpose {
    /// To begin a move of an operation.
    Begin { operation: String, index: usize },
    /// To call a move off.
    CallOff { operation: String, index: usize },
}

/// A command whose reply has not come.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    pub(crate) session: SessionId,
    pub(crate) purpose: CommandPurpose,
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    pub(crate) settings: Settings,
    role: Role,
    pub(crate) tables: Tables,
    pub(crate) observed: BTreeMap<String, Observed>,
    pub(crate) sessions: BTreeMap<SessionId, String>,
    pub(crate) commands: BTreeMap<u64, Outstanding>,
    pub(crate) plans: BTreeMap<u64, PlanPurpose>,
    pub(crate) runs: BTreeMap<String, OperationRun>,
    /// VMs that no host has: since when, by the clock that never jumps.
    pub(crate) missing: BTreeMap<String, u64>,
    out: VecDeque<Output>,
    /// What waits until what is staged is written.
    held: Vec<Output>,
    in_flight: Option<InFlight>,
    numbers: u64,
    audited: u64,
    wall: UnixMs,
}

impl Controller {
    /// Makes a controller that knows nothing and does not lead.
    pub fn new(settings: Settings) -> Controller {
        Controller {
            settings,
            role: Role::Follower,
            tables: Tables::default(),
            observed: BTreeMap::new(),
            sessions: BTreeMap::new(),
            commands: BTreeMap::new(),
            plans: BTreeMap::new(),
            runs: BTreeMap::new(),
            missing: BTreeMap::new(),
            out: VecDeque::new(),
            held: Vec::new(),
            in_flight: None,
            numbers: 0,
            audited: 0,
            wall: UnixMs(0),
        }
    }

    /// Returns whether this controller leads.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the term in which this controller leads.
    pub fn term(&self) -> Option<Term> {
        match self.role {
            Role::Leader { term, .. } => Some(term),
            Role::Follower => None,
        }
    }

    /// Returns the records, as they will be when all is written.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Takes something in. What is to be done is then in [`Controller::output`].
    ///
    /// # Errors
    ///
    /// The store has a value that cannot be read. The controller must not go on with it.
    pub fn handle(&mut self, now: Now, input: Input) -> Result<(), BadRecord> {
        self.wall = now.wall;
        match input {
            Input::Elected { term, tables } => self.elected(now, term, *tables),
            Input::Following { tables } => self.follow(*tables),
            Input::Watched { changes, revision } => self.watched(changes, revision)?,
            Input::Written { write, revision } => self.written(write, revision),
            Input::WriteFailed { write, why } => self.write_failed(write, why),
            Input::AgentUp { session, hello } => self.agent_up(now, session, hello),
            Input::AgentReport { session, report } => self.agent_report(now, session, *report),
            Input::AgentReply { session, command, reply } => self.agent_reply(now, session, command, *reply),
            Input::AgentDeposed { session, highest } => self.agent_deposed(session, highest),
            Input::AgentDown { session } => self.agent_down(session),
            Input::Asked(asked) => self.asked(now, *asked),
            Input::Planned { plan, result } => self.planned(now, plan, result),
            Input::Tick => self.tick(now),
        }
        if self.term().is_some() {
            self.advance_operations(now);
            self.begin_moves(now);
            self.trim();
        }
        self.flush();
        Ok(())
    }

    /// Returns the next thing to be done.
    pub fn output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    // ---- leading ----

    fn elected(&mut self, now: Now, term: Term, tables: Tables) {
        self.forget();
        self.tables = tables;
        self.role = Role::Leader { term, since_ms: now.mono_ms };
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.out.push_back(Output::Lead { session, term });
        }
        for (id, operation) in &self.tables.operations {
            if !operation.value.state.is_over() {
                self.runs.insert(id.clone(), OperationRun::default());
            }
        }
        let names: Vec<String> = self.observed.keys().cloned().collect();
        for name in names {
            self.note_host(now, &name);
            self.note_vms(now, &name, None);
        }
    }

    fn follow(&mut self, tables: Tables) {
        self.forget();
        self.tables = tables;
        self.role = Role::Follower;
    }

    /// Forgets what belongs to a term.
    fn forget(&mut self) {
        self.refuse_waiting("the controller does not lead any more: ask again");
        self.in_flight = None;
        self.commands.clear();
        self.plans.clear();
        self.runs.clear();
        self.missing.clear();
        self.numbers = 0;
    }

    /// Drops what waits to be done, and tells those who wait for an answer.
    fn refuse_waiting(&mut self, why: &str) {
        let in_flight = self.in_flight.take().map(|of| of.effects).unwrap_or_default();
        let waiting: Vec<Output> = self.out.drain(..).chain(in_flight).chain(self.held.drain(..)).collect();
        for output in waiting {
            if let Output::Answer { asked, .. } = output {
                self.out.push_back(Output::Answer { asked, answer: Answer::unavailable(why) });
            }
        }
        for purpose in std::mem::take(&mut self.plans).into_values() {
            if let PlanPurpose::Preview { asked, .. } = purpose {
                self.out.push_back(Output::Answer { asked, answer: Answer::unavailable(why) });
            }
        }
    }

    /// Leads no more.
    pub(crate) fn step_down(&mut self, why: &str) {
        if self.term().is_none() {
            return;
        }
        self.forget();
        self.role = Role::Follower;
        self.out.push_back(Output::StepDown { why: why.to_owned() });
    }

    fn watched(&mut self, changes: Vec<(String, Option<Vec<u8>>)>, revision: u64) -> Result<(), BadRecord> {
        if self.term().is_some() {
            return Ok(());
        }
        for (key, value) in &changes {
            self.tables.apply(key, value.as_deref(), revision)?;
            self.changed(key, revision);
        }
        Ok(())
    }

    // ---- writing ----

    /// Does something once all that was decided so far is written.
    pub(crate) fn effect(&mut self, output: Output) {
        match self.in_flight.is_none() && !self.tables.is_staged() && self.held.is_empty() {
            true => self.out.push_back(output),
            false => self.held.push(output),
        }
    }

    /// Begins the next write, if there is something to write and no write under way.
    fn flush(&mut self) {
        let Role::Leader { term, .. } = self.role else { return };
        if self.in_flight.is_some() {
            return;
        }
        if !self.tables.is_staged() {
            self.out.extend(self.held.drain(..));
            return;
        }
        let changes = self.tables.take_staged(CHANGES_MAX);
        // What waits, waits for the last of what is staged.
        let effects = if self.tables.is_staged() { Vec::new() } else { std::mem::take(&mut self.held) };
        let write = self.number();
        self.out.push_back(Output::Write { write, term, changes: changes.clone() });
        self.in_flight = Some(InFlight { write, changes, effects });
    }

    fn written(&mut self, write: u64, revision: u64) {
        let Some(done) = self.in_flight.take_if(|of| of.write == write) else { return };
        self.tables.written(&done.changes, revision);
        for change in &done.changes {
            self.changed(change.key(), revision);
        }
        self.out.extend(done.effects);
    }

    fn write_failed(&mut self, write: u64, why: String) {
        if self.in_flight.as_ref().is_some_and(|of| of.write == write) {
            self.step_down(&why);
        }
    }

    /// Tells subscribers that the object of a key has changed.
    fn changed(&mut self, key: &str, revision: u64) {
        let gone = |kind: &str, name: &str| ChangedObject::Gone { kind: kind.to_owned(), name: name.to_owned() };
        let changed = if let Some(name) = key.strip_prefix(HostRecord::PREFIX) {
            self.host(name).map_or_else(|| gone("host", name), |host| ChangedObject::Host { host: Box::new(host) })
        } else if let Some(name) = key.strip_prefix(VmRecord::PREFIX) {
            self.vm(name).map_or_else(|| gone("vm", name), |vm| ChangedObject::Vm { vm: Box::new(vm) })
        } else if let Some(id) = key.strip_prefix(Operation::PREFIX) {
            let found = self.operation(id).map(Box::new);
            found.map_or_else(|| gone("operation", id), |operation| ChangedObject::Operation { operation })
        } else {
            return;
        };
        self.out.push_back(Output::Changed { revision, at: self.wall, changed: Box::new(changed) });
    }

    /// Returns a number that this controller has not used in its term.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ---- what is asked ----

    fn asked(&mut self, now: Now, asked: Asked) {
        if self.term().is_none() {
            let answer = Answer::unavailable("this controller does not lead: ask the controller that does");
            return self.out.push_back(Output::Answer { asked: asked.id, answer });
        }
        let id = asked.id;
        let (by, from, what) = (asked.by.clone(), asked.from.clone(), asked.what.clone());
        // Without an answer a plan is being made, and the answer comes with the plan.
        let Some(answer) = self.answer(now, asked) else { return };
        let (status, detail) = (answer.status(), answer.detail());
        self.audit(now, AuditRecord { id: String::new(), at: now.wall, by, from, what, status, detail });
        self.effect(Output::Answer { asked: id, answer });
    }

    /// Adds a record to the audit log.
    pub(crate) fn audit(&mut self, now: Now, mut record: AuditRecord) {
        self.audited += 1;
        let term = self.term().unwrap_or_default();
        record.id = format!("{:013}-{:08}-{:06}", now.wall.0, term.0, self.audited);
        self.tables.put(&record.id.clone(), record);
    }

    /// Takes away what is older than what is kept.
    fn trim(&mut self) {
        while self.tables.audit.len() > self.settings.audit_kept
            && let Some(oldest) = self.tables.audit.keys().next().cloned()
        {
            self.tables.delete::<AuditRecord>(&oldest);
        }
    }

    // ---- hosts that come and go ----

    fn tick(&mut self, now: Now) {
        let Role::Leader { since_ms, .. } = self.role else { return };
        let mut lost: Vec<String> = Vec::new();
        for (name, _) in self.tables.hosts.iter().filter(|(_, host)| host.value.contact == Contact::Online) {
            let heard_ms = self.observed.get(name).and_then(|observed| observed.heard_ms);
            let silent_ms = now.ms_since(heard_ms.unwrap_or(since_ms).max(since_ms));
            if silent_ms > self.settings.host_lease_ms {
                lost.push(name.clone());
            }
        }
        for name in lost {
            self.set_contact(now, &name, Contact::Lost);
        }
        self.forget_missing(now);
    }

    pub(crate) fn set_contact(&mut self, now: Now, name: &str, contact: Contact) {
        let Some(found) = self.tables.hosts.get(name).filter(|found| found.value.contact != contact) else { return };
        let mut host = found.value.clone();
        (host.contact, host.contact_since) = (contact, now.wall);
        self.tables.put(name, host);
    }

    /// Returns the connection of a host's agent.
    pub(crate) fn session_of(&self, host: &str) -> Option<SessionId> {
        self.observed.get(host).and_then(|observed| observed.session)
    }

    /// Returns the VMs of a host, by the records.
    pub(crate) fn vms_on(&self, host: &str) -> BTreeSet<String> {
        let here = self.tables.vms.iter().filter(|(_, vm)| vm.value.host.as_deref() == Some(host));
        here.map(|(name, _)| name.clone()).collect()
    }
}
