//! Connects a worker to a guest in virtual time, and to an agent that notes what it is told.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use skein_api::CopyProgress;
use skein_fake_guest::{FakeGuest, GuestParameters, Told, VirtualClock};
use skein_handover::{
    MigrationId, MigrationPhase, MigrationSummary, Order, Role, SourceInput, SourceOrder, SourcePhase,
};
use skein_hypervisor::{Guest, Migrate, MigrationStatus};
use skein_inventory::Composition;
use skein_pages::PageCounts;

use crate::migrations::input::{Input, WorkerInput};
use crate::migrations::offer::Offer;
use crate::migrations::source::environment::{CopiedPages, OpenChannelsError, SourceEnvironment};
use crate::migrations::source::hold::Freshness;
use crate::migrations::source::links::PathSample;
use crate::migrations::source::worker::{PROGRESS_PERIOD, SourceWorker, Work};
use crate::migrations::test_parts::{TestClock, offer};

pub(super) const ID: MigrationId = MigrationId(7);
/// The step in which time passes.
const STEP: Duration = Duration::from_millis(1);
const QUEUE: usize = 64;

/// Returns a guest whose copy takes 0.2 s at 1 GB/s, and its switchover 10 ms.
pub(super) fn small() -> GuestParameters {
    GuestParameters { ram_bytes: 200_000_000, hot_bytes: 200_000_000, ..GuestParameters::default() }
}

/// Returns a guest whose copy takes 2 s.
pub(super) fn large() -> GuestParameters {
    GuestParameters { ram_bytes: 2_000_000_000, ..small() }
}

/// Returns a guest that always writes faster than it is copied: 150 MB/s over a link of 100 MB/s.
pub(super) fn busy() -> GuestParameters {
    GuestParameters { link_bytes_per_s: 100_000_000, writes_bytes_per_s: 150_000_000, ..small() }
}

/// The pages of a guest. A test sets what becomes of them.
#[derive(Clone, Default)]
pub(super) struct FakePages(pub(super) Arc<Mutex<PagesState>>);

#[derive(Default)]
pub(super) struct PagesState {
    pub(super) counts: PageCounts,
    pub(super) direct: Option<bool>,
    pub(super) failed: Option<String>,
    pub(super) failed_here: Option<String>,
    pub(super) direct_placement_failure: Option<String>,
    pub(super) rate_limit: Option<f64>,
    pub(super) held_bytes: u64,
    /// What the worker last allowed to be held back.
    pub(super) held_bytes_max: Option<u64>,
}

impl CopiedPages for FakePages {
    fn counts(&self) -> PageCounts {
        self.0.lock().counts
    }
    fn is_direct(&self) -> Option<bool> {
        self.0.lock().direct
    }
    fn why_not_direct(&self) -> String {
        String::new()
    }
    fn not_compared(&self) -> String {
        String::new()
    }
    fn take_rail_words(&self) -> Vec<String> {
        Vec::new()
    }
    fn builds_on_kept(&self) -> bool {
        false
    }
    fn direct_placement_failure(&self) -> Option<String> {
        self.0.lock().direct_placement_failure.clone()
    }
    fn rate_limit(&self) -> Option<f64> {
        self.0.lock().rate_limit
    }
    fn remaining_wire_bytes(&self, _remaining_bytes: u64) -> Option<u64> {
        None
    }
    fn set_held_bytes_max(&self, bytes: u64) {
        self.0.lock().held_bytes_max = Some(bytes);
    }
    fn held_bytes(&self) -> u64 {
        self.0.lock().held_bytes
    }
    fn held_back_bytes(&self) -> u64 {
        0
    }
    fn failed(&self) -> Option<String> {
        self.0.lock().failed.clone()
    }
    fn failed_here(&self) -> Option<String> {
        self.0.lock().failed_here.clone()
    }
}

/// What the agent answers, and what it was told.
#[derive(Default)]
pub(super) struct AgentState {
    pub(super) no_room: Option<String>,
    pub(super) is_vm_gone: bool,
    pub(super) promised: Option<Composition>,
    pub(super) last_words: Option<String>,
    pub(super) channels_failure: Option<String>,
    pub(super) pages: FakePages,
    pub(super) paths: Vec<PathSample>,
    pub(super) carried_bits_per_s: u64,
    pub(super) copies: u32,
    pub(super) nics_bits_per_s: Option<f64>,

    inputs: Vec<Input>,
    pub(super) notes: Vec<String>,
    /// What the worker had the agent do, in words.
    pub(super) done: BTreeSet<String>,
    pub(super) progress: Vec<CopyProgress>,
    pub(super) logged: usize,
    pub(super) freshness: Option<Freshness>,
}

/// An agent that has one guest.
#[derive(Clone)]
struct FakeEnvironment {
    guest: FakeGuest,
    agent: Arc<Mutex<AgentState>>,
    /// Whether the channels were opened.
    are_open: bool,
}

impl FakeEnvironment {
    fn note_done(&self, what: &str) {
        self.agent.lock().done.insert(what.to_owned());
    }
}

impl SourceEnvironment for FakeEnvironment {
    fn guest(&self) -> Option<Arc<dyn Guest>> {
        (!self.guest.is_closed()).then(|| Arc::new(self.guest.clone()) as Arc<dyn Guest>)
    }
    fn has_process(&self) -> bool {
        self.guest.is_alive()
    }
    fn promised_composition(&self) -> Option<Composition> {
        self.agent.lock().promised.clone()
    }
    fn last_words(&self) -> Option<String> {
        self.agent.lock().last_words.clone()
    }
    fn explain_end(&self, why: &str) {
        self.note_done(&format!("explained: {why}"));
    }
    fn set_indirect(&self, why: String) {
        self.note_done(&format!("indirect: {why}"));
    }
    fn reserve(&mut self) -> Result<(), String> {
        self.agent.lock().no_room.clone().map_or(Ok(()), Err)
    }
    fn open_channels(&mut self, _: &dyn Guest) -> Result<PathBuf, OpenChannelsError> {
        if self.agent.lock().is_vm_gone {
            return Err(OpenChannelsError::NoVm);
        }
        self.are_open = true;
        Ok("/run/out".into())
    }
    /// Closing the main channel has a hypervisor give up.
    fn give_up_channels(&self) {
        self.note_done("gave up");
        if self.are_open {
            self.guest.lose_target("Broken pipe");
        }
    }
    fn leave_channels(&mut self) {
        self.note_done("left");
    }
    fn channels_failure(&self) -> Option<String> {
        self.agent.lock().channels_failure.clone()
    }
    fn pages(&self) -> Option<Arc<dyn CopiedPages>> {
        self.are_open.then(|| Arc::new(self.agent.lock().pages.clone()) as Arc<dyn CopiedPages>)
    }
    fn release(&mut self) -> Option<String> {
        self.note_done("released");
        Some("keeps its RAM".into())
    }
    fn raise_priority(&self) {
        self.note_done("hurried");
    }
    fn give_word(&self, word: &[u8]) -> io::Result<()> {
        assert_eq!(Some(word), self.guest.switchover_word());
        self.guest.let_switch();
        self.note_done("gave the word");
        Ok(())
    }
    fn paths(&self) -> Vec<PathSample> {
        self.agent.lock().paths.clone()
    }
    fn carried_bits_per_s(&self) -> u64 {
        self.agent.lock().carried_bits_per_s
    }
    fn copies_to_target(&self) -> u32 {
        self.agent.lock().copies
    }
    fn nics_bits_per_s(&self, _: &BTreeSet<String>) -> Option<f64> {
        self.agent.lock().nics_bits_per_s
    }
    fn tell(&self, inputs: Vec<Input>) {
        self.agent.lock().inputs.extend(inputs);
    }
    fn note(&self, text: String) {
        self.agent.lock().notes.push(text);
    }
    fn note_standstill(&self) {
        self.note_done("stands still");
    }
    fn show_progress(&self, copy: CopyProgress) {
        self.agent.lock().progress.push(copy);
    }
    fn show_freshness(&self, freshness: Option<Freshness>) {
        self.agent.lock().freshness = freshness;
    }
    fn log_progress(&self, copy: CopyProgress) {
        let mut agent = self.agent.lock();
        agent.progress.push(copy);
        agent.logged += 1;
    }
}

/// A source's worker, and all that is around it.
pub(super) struct World {
    pub(super) clock: VirtualClock,
    pub(super) guest: FakeGuest,
    pub(super) agent: Arc<Mutex<AgentState>>,
    pub(super) worker: SourceWorker,
    pub(super) jobs: SyncSender<WorkerInput>,
    pub(super) queue: Receiver<WorkerInput>,
    looked_at: Duration,
    told_guest: usize,
}

impl World {
    /// Returns a migration that is prepared, of a guest that runs.
    pub(super) fn new(parameters: GuestParameters) -> World {
        World::with(parameters, Some(offer()), SourcePhase::Prepare)
    }

    /// Returns a migration in this phase, of a guest that runs.
    pub(super) fn with(parameters: GuestParameters, offer: Option<Offer>, phase: SourcePhase) -> World {
        let clock = VirtualClock::new();
        let promised = Some(parameters.composition.clone());
        let guest = FakeGuest::running(&clock, parameters);
        World::of(clock, guest, promised, offer, phase, false)
    }

    /// Returns a migration that is prepared and is to be held.
    pub(super) fn to_hold(parameters: GuestParameters, offer: Offer) -> World {
        let clock = VirtualClock::new();
        let promised = Some(parameters.composition.clone());
        let guest = FakeGuest::running(&clock, parameters);
        World::of(clock, guest, promised, Some(offer), SourcePhase::Prepare, true)
    }

    fn of(
        clock: VirtualClock,
        guest: FakeGuest,
        promised: Option<Composition>,
        offer: Option<Offer>,
        phase: SourcePhase,
        is_hold: bool,
    ) -> World {
        let agent = Arc::new(Mutex::new(AgentState { promised, copies: 1, ..AgentState::default() }));
        let environment = FakeEnvironment { guest: guest.clone(), agent: agent.clone(), are_open: false };
        let summary = MigrationSummary {
            id: ID,
            role: Role::Source,
            vm: "web".into(),
            peer: "b".into(),
            stage: MigrationPhase::Source(phase),
            priority: 50,
            is_hold,
            is_to_be_held: is_hold,
            why: None,
            detail: String::new(),
            in_doubt: false,
            outcome: None,
        };
        let (jobs, queue) = sync_channel(QUEUE);
        let own_clock = Arc::new(TestClock(clock.clone()));
        let worker = SourceWorker::new(summary, offer, Box::new(environment), own_clock, jobs.clone());
        let (looked_at, told_guest) = (clock.now(), 0);
        World { clock, guest, agent, worker, jobs, queue, looked_at, told_guest }
    }

    /// Starts the agent again. Its new worker knows only the phase of the migration.
    pub(super) fn restarted(self, phase: SourcePhase) -> World {
        let told_guest = self.guest.told().len();
        World { told_guest, ..World::of(self.clock, self.guest, None, None, phase, false) }
    }

    /// Returns a migration whose copy has come this far. What the owner was told up to there is taken.
    pub(super) fn at(status: MigrationStatus, parameters: GuestParameters) -> World {
        let mut world = World::new(parameters);
        world.order(SourceOrder::Migrate);
        world.pass_until(&|world| world.status() == MigrationStatus::Active);
        if status != MigrationStatus::Active {
            world.pass_until(&|world| world.status() == MigrationStatus::PreSwitchover);
        }
        if status == MigrationStatus::Device || status == MigrationStatus::Completed {
            world.order(SourceOrder::Continue);
        }
        if status == MigrationStatus::Completed {
            world.pass_until(&|world| world.status() == MigrationStatus::Completed);
        }
        world.take_told();
        world
    }

    pub(super) fn status(&self) -> MigrationStatus {
        self.guest.seen().1.status
    }

    /// Lets time pass, with the worker at work.
    ///
    /// # Panics
    /// The worker does not go on.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.clock.now() + time;
        while self.clock.now() < end {
            self.step();
        }
    }

    /// Lets time pass until `is` is true.
    ///
    /// # Panics
    /// `is` is not true within a minute, or the worker does not go on.
    pub(super) fn pass_until(&mut self, is: &dyn Fn(&World) -> bool) {
        let end = self.clock.now() + Duration::from_secs(60);
        while !is(self) {
            assert!(self.clock.now() < end, "it never is: {:?}", self.guest.seen());
            self.step();
        }
        self.drain();
    }

    fn step(&mut self) {
        self.clock.advance(STEP);
        self.drain();
        if self.clock.now() - self.looked_at >= PROGRESS_PERIOD {
            self.worker.look();
            self.looked_at = self.clock.now();
        }
    }

    fn drain(&mut self) {
        while let Ok(job) = self.queue.try_recv() {
            assert_eq!(self.worker.work(job, &self.queue), Work::GoesOn);
            self.looked_at = self.clock.now();
        }
    }

    /// Has the worker do what waits for it, and obey.
    pub(super) fn order(&mut self, order: SourceOrder) {
        self.jobs.try_send(WorkerInput::Order(Order::Source(order))).unwrap();
        self.drain();
    }

    /// Puts an order into the queue, as the owner does while the worker is busy.
    pub(super) fn queue_order(&mut self, order: SourceOrder) {
        self.jobs.try_send(WorkerInput::Order(Order::Source(order))).unwrap();
    }

    /// Returns, in short, what the owner was told since the last call.
    pub(super) fn take_told(&mut self) -> Vec<String> {
        self.told_guest = self.guest.told().len();
        std::mem::take(&mut self.agent.lock().inputs).iter().map(brief).collect()
    }

    /// Returns, in short, what the guest was told and did since the last call of [`World::take_told`].
    pub(super) fn told_guest(&self) -> Vec<String> {
        let told = self.guest.told();
        told[self.told_guest..].iter().map(told_briefly).collect()
    }

    pub(super) fn has_done(&self, what: &str) -> bool {
        self.agent.lock().done.contains(what)
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.agent.lock().notes.clone()
    }
}

/// Returns what the owner is told in short: `Running`, `failed`, `changed`, `detail "…"`, `words "…"`.
///
/// # Panics
/// A source's worker has nothing to do with the input.
fn brief(input: &Input) -> String {
    match input {
        Input::Source(ID, SourceInput::Guest(guest)) => format!("{guest:?}"),
        Input::Source(ID, SourceInput::MigrationFailed) => "failed".into(),
        Input::Source(ID, SourceInput::GuestChanged) => "changed".into(),
        Input::Source(ID, SourceInput::Converged) => "converged".into(),
        Input::Detail(ID, why) => format!("detail {why:?}"),
        Input::LastWords(ID, words) => format!("words {words:?}"),
        other => panic!("the worker has nothing to say of this: {other:?}"),
    }
}

fn told_briefly(told: &Told) -> String {
    match told {
        Told::BeginOutgoing { .. } => "begin".into(),
        Told::ContinueMigration => "continue".into(),
        Told::ContinueCancelling => "wake".into(),
        Told::CancelMigration => "cancel".into(),
        Told::ForgetMigrationSettings => "forget settings".into(),
        Told::Resume => "resume".into(),
        Told::SetThrottle(percent) => format!("throttle {percent}"),
        Told::SetSwitchover { .. } => "switchover".into(),
        Told::LimitRate(rate) => format!("rate {rate:?}"),
        Told::MeasureDirtyRate(_) => "measure".into(),
        other => format!("{other:?}"),
    }
}
