//! Connects a worker to a guest that is to arrive, in virtual time, and to an agent that notes what it is told.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use skein_fake_guest::{FakeGuest, GuestParameters, Told, VirtualClock};
use skein_handover::{MigrationId, Order, TargetInput, TargetOrder};
use skein_hypervisor::{DeviceSnapshot, Guest, RunState};

use crate::migrations::input::{Input, WorkerInput};
use crate::migrations::offer::Offer;
use crate::migrations::target::environment::TargetEnvironment;
use crate::migrations::target::worker::{PROGRESS_PERIOD, TargetWorker, Work};
use crate::migrations::test_parts::{TestClock, offer};

const ID: MigrationId = MigrationId(7);
/// The step in which time passes.
const STEP: Duration = Duration::from_millis(1);
const QUEUE: usize = 64;

/// What the agent answers, and what it was told.
#[derive(Default)]
pub(super) struct AgentState {
    pub(super) has_vm: bool,
    /// Why the agent cannot start a hypervisor.
    pub(super) cannot_start: Option<String>,
    /// Why the hypervisor may not take the guest.
    pub(super) differs: Option<String>,
    /// Why the agent cannot write what is to be remembered of the guest.
    pub(super) cannot_set_aside: Option<String>,
    pub(super) lost_tpm_state: Option<String>,
    pub(super) cannot_fence: Option<String>,
    pub(super) last_words: Option<String>,
    inputs: Vec<Input>,
    /// What the worker had the agent do, in words.
    pub(super) done: BTreeSet<String>,
    pub(super) notes: Vec<String>,
}

struct FakeEnvironment {
    guest: FakeGuest,
    agent: Arc<Mutex<AgentState>>,
}

impl FakeEnvironment {
    fn note_done(&self, what: &str) {
        self.agent.lock().done.insert(what.to_owned());
    }
}

fn unless(why: &Option<String>) -> Result<(), String> {
    why.clone().map_or(Ok(()), Err)
}

impl TargetEnvironment for FakeEnvironment {
    fn has_vm(&self) -> bool {
        self.agent.lock().has_vm
    }
    fn guest(&self) -> Option<Arc<dyn Guest>> {
        let is_there = self.has_vm() && !self.guest.is_closed();
        is_there.then(|| Arc::new(self.guest.clone()) as Arc<dyn Guest>)
    }
    fn process(&self) -> Option<u32> {
        (self.has_vm() && self.guest.is_alive()).then_some(42)
    }
    fn last_words(&self) -> Option<String> {
        self.agent.lock().last_words.clone()
    }
    fn start(&mut self, _: &Offer) -> Result<Arc<dyn Guest>, String> {
        unless(&self.agent.lock().cannot_start)?;
        self.agent.lock().has_vm = true;
        Ok(Arc::new(self.guest.clone()))
    }
    fn compare(&mut self, guest: &dyn Guest) -> Result<DeviceSnapshot, String> {
        unless(&self.agent.lock().differs)?;
        guest.devices().map_err(|error| error.to_string())
    }
    fn set_aside(&mut self) -> Result<(), String> {
        unless(&self.agent.lock().cannot_set_aside)
    }
    fn incoming_socket(&self) -> PathBuf {
        "/run/in".into()
    }
    fn open_channels(&mut self, _: &dyn Guest, _: &Offer) {
        self.note_done("opened");
    }
    fn close_channels(&self) {
        self.note_done("closed");
    }
    fn lost_tpm_state(&self) -> Option<String> {
        self.agent.lock().lost_tpm_state.clone()
    }
    fn fence_rails(&self) -> Result<(), String> {
        self.note_done("fenced");
        unless(&self.agent.lock().cannot_fence)
    }
    fn let_go_of_ram(&mut self) {
        self.note_done("let go of RAM");
    }
    fn drop_received(&mut self) {
        self.note_done("dropped");
    }
    fn release_room(&mut self) {
        self.note_done("room given back");
    }
    fn keep_marks(&mut self) {
        self.note_done("kept marks");
    }
    fn raise_priority(&self) {
        self.note_done("hurried");
    }
    fn tell(&self, inputs: Vec<Input>) {
        self.agent.lock().inputs.extend(inputs);
    }
    fn host(&self) -> &str {
        "b"
    }
    fn note_at_both_ends(&self, text: String) {
        self.agent.lock().notes.push(text);
    }
}

/// A target's worker, and all that is around it.
pub(super) struct World {
    pub(super) clock: VirtualClock,
    pub(super) guest: FakeGuest,
    pub(super) agent: Arc<Mutex<AgentState>>,
    pub(super) worker: TargetWorker,
    jobs: SyncSender<WorkerInput>,
    queue: Receiver<WorkerInput>,
    looked_at: Duration,
    told_guest: usize,
}

impl World {
    /// Returns a migration of which nothing is here yet.
    pub(super) fn new(parameters: GuestParameters) -> World {
        let clock = VirtualClock::new();
        let guest = FakeGuest::incoming(&clock, parameters);
        World::of(clock, guest, AgentState::default(), Some(offer()))
    }

    fn of(clock: VirtualClock, guest: FakeGuest, agent: AgentState, offer: Option<Offer>) -> World {
        let agent = Arc::new(Mutex::new(agent));
        let environment = Box::new(FakeEnvironment { guest: guest.clone(), agent: agent.clone() });
        let (jobs, queue) = sync_channel(QUEUE);
        let own_clock = Arc::new(TestClock(clock.clone()));
        let worker = TargetWorker::new(ID, offer, environment, own_clock, jobs.clone());
        let (looked_at, told_guest) = (clock.now(), guest.told().len());
        World { clock, guest, agent, worker, jobs, queue, looked_at, told_guest }
    }

    /// Starts the agent again. Its new worker knows only what is here.
    pub(super) fn restarted(self) -> World {
        let agent = AgentState { has_vm: self.agent.lock().has_vm, ..AgentState::default() };
        World::of(self.clock, self.guest, agent, None)
    }

    /// Returns a migration whose hypervisor waits for the guest.
    pub(super) fn waiting() -> World {
        let mut world = World::new(GuestParameters::default());
        world.order(TargetOrder::Start);
        world.take_told();
        world
    }

    /// Returns a migration whose guest has come whole, and stands still.
    pub(super) fn loaded() -> World {
        let mut world = World::waiting();
        world.guest.arrive(RunState::Paused);
        world.pass(Duration::from_millis(10));
        assert_eq!(world.take_told(), ["Loaded"]);
        world
    }

    /// Lets time pass, with the worker at work.
    ///
    /// # Panics
    /// The worker does not go on.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.clock.now() + time;
        while self.clock.now() < end {
            self.clock.advance(STEP);
            self.drain();
            if self.clock.now() - self.looked_at >= PROGRESS_PERIOD {
                self.worker.look();
                self.looked_at = self.clock.now();
            }
        }
    }

    fn drain(&mut self) {
        while let Ok(job) = self.queue.try_recv() {
            assert_eq!(self.worker.work(job), Work::GoesOn);
            self.looked_at = self.clock.now();
        }
    }

    /// Puts an order into the queue.
    pub(super) fn queue_order(&mut self, order: TargetOrder) {
        self.jobs.try_send(WorkerInput::Order(Order::Target(order))).unwrap();
    }

    /// Has the worker do what waits for it, and then obey.
    pub(super) fn order(&mut self, order: TargetOrder) {
        self.queue_order(order);
        self.drain();
    }

    /// Returns, in short, what the owner was told since the last call.
    pub(super) fn take_told(&mut self) -> Vec<String> {
        self.told_guest = self.guest.told().len();
        std::mem::take(&mut self.agent.lock().inputs).iter().map(brief).collect()
    }

    /// Returns, in short, what the guest was told and did since the last call of [`World::take_told`].
    pub(super) fn told_guest(&self) -> Vec<String> {
        let briefly = |told: &Told| match told {
            Told::BeginIncoming { .. } => "begin".into(),
            Told::Resume => "resume".into(),
            Told::Announce => "announce".into(),
            other => format!("{other:?}"),
        };
        self.guest.told()[self.told_guest..].iter().map(briefly).collect()
    }

    /// Returns what the agent did, in words, sorted.
    pub(super) fn done(&self) -> String {
        self.agent.lock().done.iter().cloned().collect::<Vec<_>>().join(", ")
    }
}

/// Returns what the owner is told in short: `Loaded`, `continuing`, `cannot run`, `detail "…"`, `words "…"`.
///
/// # Panics
/// A target's worker has nothing to do with the input.
fn brief(input: &Input) -> String {
    match input {
        Input::Target(ID, TargetInput::Guest(guest)) => format!("{guest:?}"),
        Input::Target(ID, TargetInput::Continuing) => "continuing".into(),
        Input::Target(ID, TargetInput::CannotRun) => "cannot run".into(),
        Input::Detail(ID, why) => format!("detail {why:?}"),
        Input::LastWords(ID, words) => format!("words {words:?}"),
        other => panic!("the worker has nothing to say of this: {other:?}"),
    }
}
