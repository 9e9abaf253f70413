//! What comes in, and what is written.

use std::collections::BTreeSet;
use std::net::IpAddr;

use skein_api::cluster::{ChangedObject, Contact, Operation};
use skein_api::{Hello, HostReport, Reply, Term};

use crate::answer::{Answer, Ask, Asked};
use crate::handshakes::HandshakeFailure;
use crate::looks::Looks;
use crate::observed::{SessionId, ShownCertificate};
use crate::optimizer::Optimizer;
use crate::planner::{PlanError, Planned};
use crate::power_policy::PowerPolicy;
use crate::records::{HostRecord, Record, VmRecord};
use crate::state::{
    AskedPlan, Controller, InFlight, OperationRun, Output, PlanPurpose, Planted, PowerPurpose, PowerResult, Role,
};
use crate::tables::{BadRecord, Tables};
use crate::time::Now;

/// The most changes of one transaction: etcd takes 128 (`--max-txn-ops`), and the guard is one more.
pub const CHANGES_MAX: usize = 100;

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
    /// The store says that this controller leads in this term. It was asked at this time of the clock that never jumps,
    /// and said so after that.
    LeadConfirmed { term: Term, begun_ms: u64 },
    /// This controller's lease is over by its own clock, or it gives up the lead: it leads no more.
    LeadLost { why: String },
    /// An agent has connected, and shown this certificate.
    AgentUp { session: SessionId, hello: Hello, certificate: ShownCertificate },
    /// An agent reports.
    AgentReport { session: SessionId, report: Box<HostReport> },
    /// An agent answers a command.
    AgentReply { session: SessionId, command: u64, reply: Box<Reply> },
    /// An agent knows of a later leader.
    AgentDeposed { session: SessionId, highest: Term },
    /// A TLS handshake came to nothing that began at this address. `host`: whom a certificate of the cluster's CA
    /// names. Nobody has proven to be that host.
    HandshakeFailed { address: IpAddr, host: Option<String>, failure: HandshakeFailure },
    /// A connection is over.
    AgentDown { session: SessionId },
    /// Somebody asks for something.
    Asked(Box<Asked>),
    /// A fencing device has answered, or not in time.
    Power { job: u64, result: PowerResult },
    /// Where controllers and members of the store are, by their addresses; `None`: that is not known. Hosts with these
    /// addresses never sleep.
    NeededAt { addresses: Option<BTreeSet<IpAddr>> },
    /// A plan was made, or not.
    Planned { plan: u64, result: Result<Planned, PlanError> },
    /// Time has passed.
    Tick,
}

impl Controller {
    /// Takes something in. What is to be done is then in [`Controller::output`].
    ///
    /// # Errors
    ///
    /// The store has a value that cannot be read. The controller must not go on with it.
    pub fn handle(&mut self, now: Now, input: Input) -> Result<(), BadRecord> {
        (self.wall, self.mono_ms) = (now.wall, now.mono_ms);
        self.begun_ms.get_or_insert(now.mono_ms);
        let mut is_news = true;
        match input {
            Input::Elected { term, tables } => self.elected(now, term, *tables),
            Input::Following { tables } => self.follow(*tables),
            Input::Watched { changes, revision } => self.watched(changes, revision)?,
            Input::Written { write, revision } => self.written(write, revision),
            Input::WriteFailed { write, why } => self.write_failed(write, why),
            Input::LeadConfirmed { term, begun_ms } => {
                self.lead_confirmed(now, term, begun_ms);
                is_news = false;
            }
            Input::LeadLost { why } => self.step_down(&why),
            Input::AgentUp { session, hello, certificate } => self.agent_up(now, session, hello, certificate),
            Input::AgentReport { session, report } => is_news = self.agent_report(now, session, *report),
            Input::AgentReply { session, command, reply } => self.agent_reply(now, session, command, *reply),
            Input::AgentDeposed { session, highest } => self.agent_deposed(now, session, highest),
            Input::HandshakeFailed { address, host, failure } => {
                self.handshake_failed(now, address, host, failure);
                is_news = false;
            }
            Input::AgentDown { session } => self.agent_down(session),
            Input::Asked(asked) => self.asked(now, *asked),
            Input::Power { job, result } => self.powered(now, job, result),
            Input::NeededAt { addresses } => self.needed_at = addresses,
            Input::Planned { plan, result } => self.planned(now, plan, result),
            Input::Tick => self.tick(now),
        }
        // A thousand hosts tell their loads each second: what follows from those is seen with the next tick.
        if self.term().is_some() && is_news {
            self.look_at_untold(now);
            self.advance_operations(now);
            self.begin_moves(now);
            self.trim_audit();
        }
        self.flush();
        Ok(())
    }

    // ---- leading ----

    fn elected(&mut self, now: Now, term: Term, tables: Tables) {
        self.forget();
        self.tables = tables;
        self.role = Role::Leader { term, since_ms: now.mono_ms };
        self.later.elected(term);
        self.note_restore(now);
        let sessions: Vec<(SessionId, String)> =
            self.sessions.iter().map(|(session, host)| (*session, host.clone())).collect();
        for (session, host) in sessions {
            match self.refusal_of_agent(&host) {
                Some(refusal) => self.refuse_agent(now, session, refusal),
                None => self.out.push_back(Output::Lead { session, term }),
            }
        }
        self.find_open();
        let off = self.tables.hosts.iter().filter(|(_, host)| host.value.contact.is_off());
        let off: Vec<String> = off.map(|(name, _)| name.clone()).collect();
        off.iter().for_each(|name| self.forget_said(name, "the host was off"));
        let names: Vec<String> = self.observed.keys().cloned().collect();
        for name in names {
            self.note_host(now, &name);
            self.note_watchdog(&name);
            self.note_vms(now, &name, None);
        }
    }

    /// Finds the operations that are under way.
    fn find_open(&mut self) {
        let open = self.tables.operations.iter().filter(|(_, found)| !found.value.state.is_over());
        self.runs = open.map(|(id, _)| (id.clone(), OperationRun::default())).collect();
    }

    fn follow(&mut self, tables: Tables) {
        self.forget();
        self.tables = tables;
        self.role = Role::Follower;
        self.find_open();
    }

    /// Forgets what belongs to a term.
    fn forget(&mut self) {
        self.refuse_waiting("the controller does not lead any more: ask again");
        self.in_flight = None;
        self.commands.clear();
        self.plans.clear();
        self.runs.clear();
        self.missing.clear();
        self.untold.clear();
        self.looks = Looks::default();
        self.observed.values_mut().for_each(|observed| observed.has_reported = false);
        self.forget_attested();
        self.optimizer = Optimizer::default();
        self.power = PowerPolicy::default();
        self.limits_told.clear();
        self.hurried.clear();
        // Numbers go on: an answer to what was asked in this term is no answer to what is asked in a later one.
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
        for purpose in std::mem::take(&mut self.powers).into_values() {
            if let PowerPurpose::Show { asked, .. } = purpose {
                self.out.push_back(Output::Answer { asked: asked.id, answer: Answer::unavailable(why) });
            }
        }
        for relay in std::mem::take(&mut self.relays).into_values() {
            self.out.push_back(Output::Answer { asked: relay.asked.id, answer: Answer::unavailable(why) });
        }
        for AskedPlan { purpose, .. } in std::mem::take(&mut self.plans).into_values() {
            if let PlanPurpose::Preview { asked, .. } | PlanPurpose::UpdateCheck { asked: Some(asked), .. } = purpose {
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
            if let Some(id) = key.strip_prefix(Operation::PREFIX) {
                match self.is_open(id) {
                    true => drop(self.runs.entry(id.to_owned()).or_default()),
                    false => drop(self.runs.remove(id)),
                }
            }
            self.changed(key, revision);
        }
        Ok(())
    }

    // ---- writing ----

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

    // ---- what is asked ----

    fn asked(&mut self, now: Now, asked: Asked) {
        if self.term().is_none() {
            let answer = Answer::unavailable("this controller does not lead: ask the controller that does");
            return self.out.push_back(Output::Answer { asked: asked.id, answer });
        }
        let id = asked.id;
        let (by, from, what) = (asked.by.clone(), asked.from.clone(), asked.what.clone());
        let only_looks = matches!(asked.ask, Ask::MoveByHand { migration: None, .. });
        // Without an answer a plan is being made, or a device is asked, and the answer comes later.
        let Some(answer) = self.answer(now, asked) else { return };
        // What would be done, or may be done, changes nothing.
        if matches!(answer, Answer::Preview(_)) || only_looks && answer == Answer::Done {
            return self.effect(Output::Answer { asked: id, answer });
        }
        self.answer_audited(now, id, (by, from, what), answer);
    }

    // ---- hosts that come and go ----

    fn tick(&mut self, now: Now) {
        if self.term().is_none() {
            return;
        }
        let online = self.tables.hosts.iter().filter(|(_, host)| host.value.contact == Contact::Online);
        // A host that shuts itself down says nothing any more.
        let lost =
            online.filter(|(name, _)| self.silent_ms(now, name) > self.host_lease_ms() && !self.may_be_silent(name));
        let lost: Vec<String> = lost.map(|(name, _)| name.clone()).collect();
        for name in lost {
            self.set_contact(now, &name, Contact::Lost);
            if self.has(Planted::ProofForgotten) {
                self.proven_off(now, &name, "nobody");
            }
        }
        let off = self.tables.hosts.iter().filter(|(_, host)| host.value.contact.is_off());
        let off: Vec<String> = off.map(|(name, _)| name.clone()).collect();
        off.iter().for_each(|host| self.settle_doubts(host));
        self.look_at_missing(now);
        self.forget_missing(now);
        self.look_where_needed(now);
        self.tick_watchdogs(now);
        self.tick_fencing(now);
        self.tick_optimizer(now);
        self.tick_rate_limits(now);
        self.tick_relays(now);
        self.tick_power(now);
    }
}
