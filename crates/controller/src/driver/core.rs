//! The one owner of a controller's state: takes inputs in their order, and hands on what is to be done. Nothing here
//! waits: whatever takes a while is done by threads and tasks behind bounded queues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use skein_api::cluster::{ChangedObject, FencingDevice, UnixMs};
use skein_api::{Hello, Term, ToAgent};
use skein_cluster::{
    Answer, Asked, Change, Controller, Input, Output, PlanError, PowerAction, PowerResult, Refused, RefusedKind,
    SessionId, ShownCertificate, error_chain,
};
use skein_store::StoreMember;
use skein_store::election::HeldLease;
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::agents::{AgentLink, Agents};
use super::clock::{self, BootClock};
use super::events::{Events, kind};
use super::load_history::LoadHistory;
use super::members::Members;
use super::patient_lock::PatientLock;
use super::watched::WatchedMigrations;
use crate::meter::Meter;

/// A transaction that is to be written.
pub(crate) struct WriteJob {
    pub write: u64,
    pub term: Term,
    pub changes: Vec<Change>,
}

/// What a device is to be told or asked.
pub(crate) struct PowerJob {
    pub job: u64,
    pub term: Term,
    pub host: String,
    pub device: Box<FencingDevice>,
    pub action: PowerAction,
    pub until: Instant,
}

/// What the threads and tasks of a controller share.
pub(crate) struct Shared {
    state: PatientLock<State>,
    pub boot: BootClock,
    pub events: Events,
    pub watched: Arc<WatchedMigrations>,
    pub load_history: Mutex<LoadHistory>,
    pub members: Mutex<Members>,
    /// What is counted for metrics.
    pub meter: Meter,
    /// How the store's parts are that may fail by themselves.
    pub store_members: Mutex<Vec<StoreMember>>,
    /// The leader's lease, while this controller leads.
    pub lease: Mutex<Option<HeldLease>>,
    /// Whether the core has stepped down, and the store is to be read again.
    pub stepped_down: AtomicBool,
    /// Says why the controller cannot go on.
    pub failed: watch::Sender<Option<String>>,
    /// Tells the threads that they are to end.
    stop: Mutex<bool>,
    stopped: Condvar,
}

struct State {
    controller: Controller,
    agents: Agents,
    answers: BTreeMap<u64, oneshot::Sender<Answer>>,
    queues: Queues,
    asked: u64,
}

/// Where what takes a while waits to be done.
pub(crate) struct Queues {
    pub writes: SyncSender<WriteJob>,
    pub plans: SyncSender<u64>,
    pub powers: SyncSender<PowerJob>,
}

impl Shared {
    pub fn new(controller: Controller, boot: BootClock, queues: Queues) -> Shared {
        let state = State { controller, agents: Agents::default(), answers: BTreeMap::new(), queues, asked: 0 };
        Shared {
            state: PatientLock::new(state),
            boot,
            events: Events::default(),
            watched: Arc::default(),
            load_history: Mutex::default(),
            members: Mutex::default(),
            meter: Meter::default(),
            store_members: Mutex::default(),
            lease: Mutex::new(None),
            stepped_down: AtomicBool::new(false),
            failed: watch::Sender::new(None),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        }
    }

    /// Waits for a moment at which something can be taken in. A thousand reports that each hold a thread as they wait
    /// for a planner would leave none to answer requests.
    pub async fn free(&self) {
        self.state.free().await;
    }

    /// Takes something in, and hands on what is to be done.
    pub fn input(&self, input: Input) {
        self.input_to(&mut self.state.write(), input);
    }

    fn input_to(&self, state: &mut State, input: Input) {
        let mut inputs = VecDeque::from([input]);
        if state.controller.term().is_some() && self.lease_is_over() {
            inputs.push_front(Input::LeadLost { why: "the leader's lease is over".into() });
        }
        while let Some(input) = inputs.pop_front() {
            if let Err(bad) = state.controller.handle(clock::now(&self.boot), input) {
                return self.fail(&bad);
            }
            while let Some(output) = state.controller.output() {
                inputs.extend(self.perform(state, output));
            }
        }
    }

    /// Says why the controller cannot go on. The first reason stays.
    pub fn fail(&self, why: &dyn std::error::Error) {
        let why = error_chain(why);
        self.failed.send_if_modified(|failed| failed.is_none() && failed.replace(why).is_none());
    }

    /// Whether the leader's lease is over by the own clock: earlier than the store says so.
    pub fn lease_is_over(&self) -> bool {
        self.lease.lock().is_none_or(|lease| lease.left((self.boot)()).is_zero())
    }

    /// Returns how much of its lease this controller has left by its own clock, if it leads in that term.
    pub fn lease_left(&self, term: Term) -> Option<Duration> {
        let leads = self.read(|controller| controller.term() == Some(term));
        let left = self.lease.lock().map(|lease| lease.left((self.boot)()));
        left.filter(|left| leads && !left.is_zero())
    }

    /// Looks at the controller. Nothing changes meanwhile, so this must be short.
    pub fn read<T>(&self, look: impl FnOnce(&Controller) -> T) -> T {
        look(&self.state.read().controller)
    }

    /// Hands a request in. The receiver gets the answer.
    pub fn ask(&self, asked: impl FnOnce(u64) -> Asked) -> (u64, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.write();
        state.asked += 1;
        let id = state.asked;
        state.answers.insert(id, sender);
        self.input_to(&mut state, Input::Asked(Box::new(asked(id))));
        (id, receiver)
    }

    /// Hands a request in whose answer nobody waits for.
    pub fn note(&self, asked: Asked) {
        self.input(Input::Asked(Box::new(asked)));
    }

    /// Waits no more for an answer.
    pub fn forget_answer(&self, id: u64) {
        self.state.write().answers.remove(&id);
    }

    /// Begins a connection with an agent.
    pub fn agent_up(&self, hello: Hello, certificate: ShownCertificate) -> AgentLink {
        let mut state = self.state.write();
        let link = state.agents.add();
        self.input_to(&mut state, Input::AgentUp { session: link.session, hello, certificate });
        link
    }

    /// Ends a connection with an agent.
    pub fn agent_down(&self, session: SessionId) {
        let mut state = self.state.write();
        state.agents.remove(session);
        self.input_to(&mut state, Input::AgentDown { session });
    }

    /// Sends a line to an agent.
    pub fn tell_agent(&self, session: SessionId, line: &ToAgent) {
        self.state.write().agents.send(session, line);
    }

    /// Returns how many agents are connected.
    pub fn connected_agents(&self) -> usize {
        self.state.read().agents.count()
    }

    /// Lets time go on.
    pub fn tick(&self) {
        let mut state = self.state.write();
        self.input_to(&mut state, Input::Tick);
        let controllers = self.members.lock().addresses();
        let State { controller, agents, .. } = &mut *state;
        agents.send_controllers(controllers);
        if controller.term().is_some() {
            agents.send_hosts(Instant::now());
        }
    }

    /// Notes how busy hosts and VMs are, if that is due.
    pub fn note_loads(&self, now: UnixMs) {
        let (hosts, vms) = self.load_history.lock().are_due(now);
        if hosts {
            let loads = self.read(|core| core.host_loads());
            self.load_history.lock().note_hosts(now, loads);
        }
        if vms {
            let loads = self.read(|core| core.vm_loads());
            self.load_history.lock().note_vms(now, loads);
        }
    }

    /// Keeps how the store's parts are, and logs what has changed.
    pub fn see_store_members(&self, now: Vec<StoreMember>) {
        let mut known = self.store_members.lock();
        for member in now.iter().filter(|member| !known.contains(member)) {
            match &member.problem {
                Some(problem) => warn!("the store's member at {}: {problem}", member.address),
                None => info!("the store's member at {} is well", member.address),
            }
        }
        *known = now;
    }

    /// Tells the core where controllers and the store's members are, if that has changed.
    pub fn tell_needed(&self, now: Input) {
        let Input::NeededAt { addresses } = &now else { return };
        if self.read(|controller| controller.needed_at() != addresses.as_ref()) {
            self.input(now);
        }
    }

    /// Waits for a time, or until the controller is to end. Returns whether it is to end.
    pub fn wait_for_stop(&self, time: Duration) -> bool {
        let mut stop = self.stop.lock();
        if !*stop {
            self.stopped.wait_for(&mut stop, time);
        }
        *stop
    }

    /// Whether the controller is to end.
    pub fn is_stopping(&self) -> bool {
        *self.stop.lock()
    }

    /// Ends the threads.
    pub fn stop(&self) {
        *self.stop.lock() = true;
        self.stopped.notify_all();
    }

    /// Does what is to be done. Returns what follows from that at once.
    fn perform(&self, state: &mut State, output: Output) -> Option<Input> {
        match output {
            Output::Write { write, term, changes } => {
                let full = state.queues.writes.try_send(WriteJob { write, term, changes }).is_err();
                full.then(|| Input::WriteFailed { write, why: "earlier writes take too long".into() })
            }
            Output::Plan { plan } => {
                let full = state.queues.plans.try_send(plan).is_err();
                full.then_some(Input::Planned { plan, result: Err(PlanError::Busy) })
            }
            Output::Power { job, term, host, device, action, within_ms } => {
                let until = Instant::now() + Duration::from_millis(within_ms);
                let full = state.queues.powers.try_send(PowerJob { job, term, host, device, action, until }).is_err();
                let why = "too many devices are asked at once".to_owned();
                full.then_some(Input::Power { job, result: PowerResult::Refused(why) })
            }
            Output::Command { session, command, term, request_id, request } => {
                let line = ToAgent::Command { command, term, request_id, request };
                state.agents.send(session, &line);
                None
            }
            Output::Lead { session, term } => {
                state.agents.lead(session, term, &state.controller);
                None
            }
            Output::Heard { session, term, number, sequence, voters, hosts } => {
                state.agents.send(session, &ToAgent::Heard { term, number, sequence, voters, hosts });
                None
            }
            Output::HangUp { session, why } => {
                state.agents.hang_up(session, why);
                None
            }
            Output::Refuse { session, refusal } => {
                state.agents.refuse(session, refusal);
                None
            }
            Output::Answer { asked, answer } => {
                if let Some(waits) = state.answers.remove(&asked) {
                    // Whoever asked may have hung up.
                    let _ = waits.send(answer);
                }
                None
            }
            Output::Changed { revision, at, changed } => {
                state.agents.note(&changed);
                self.log(&changed);
                self.events.publish(revision, at, *changed);
                None
            }
            Output::StepDown { why } => {
                warn!("this controller leads no more: {why}");
                *self.lease.lock() = None;
                self.stepped_down.store(true, Ordering::SeqCst);
                None
            }
        }
    }

    /// Brings a change to the log and to metrics.
    fn log(&self, changed: &ChangedObject) {
        self.meter.event(kind(changed));
        if let ChangedObject::Operation { operation } = changed
            && operation.state.is_over()
            && self.meter.ended(operation)
        {
            info!("operation {} is over: {:?} {}", operation.id, operation.state, operation.message);
        }
    }
}

/// Ends a wait for an answer, also if whoever waits is gone.
pub(crate) struct Waiting {
    pub shared: Arc<Shared>,
    pub id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.forget_answer(self.id);
    }
}

/// Returns the answer of a controller that does not come to an answer.
pub(crate) fn too_slow() -> Answer {
    let message = "the controller has not come to an answer in time: what was asked for may still be done".into();
    let cure = "look whether it was done before you ask again; with an Idempotency-Key it is done once".into();
    Answer::Refused(Refused { kind: RefusedKind::Unavailable, message, cure })
}
