//! A controller's state, what goes out, and what is held back until it is written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use skein_api::cluster::{ChangedObject, Contact, FencingDevice, Operation, PowerState, UnixMs};
use skein_api::{MigrationId, Refusal, Request, Term};
use skein_units::Rate;

use crate::answer::{Answer, Asked};
use crate::handshakes::Handshakes;
use crate::later_terms::LaterTerms;
use crate::looks::Looks;
use crate::observed::{Observed, SessionId};
use crate::optimizer::Optimizer;
use crate::pace::Pace;
use crate::planner::{Excluded, Want};
use crate::power_policy::PowerPolicy;
use crate::records::{HostRecord, VmRecord};
use crate::refusals::Refusals;
use crate::sound::LeftOut;
use crate::tables::{Change, Tables};
use crate::time::Now;

/// How a controller behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a move is begun before it counts as failed.
    pub attempts_max: u32,
    /// The milliseconds before a move's second attempt; each further attempt waits twice as long.
    pub retry_ms: u64,
    /// How long a VM that no host reports is remembered, in milliseconds.
    pub missing_ms: u64,
    /// How many operations that are over are remembered.
    pub operations_kept: usize,
    /// How many records the audit log has; of what was refused, a tenth of them at most.
    pub audit_kept: usize,
    /// How often it is decided which hosts sleep and wake, in milliseconds.
    pub power_round_ms: u64,
    /// How long a host may take to be off that is shut down to sleep, in milliseconds.
    pub stop_within_ms: u64,
    /// How long a controller runs until agents that are there have found it, in milliseconds: those that are refused
    /// dial again after 10 s or a little more (`controllers/link.rs` of the agent). Before, nobody is believed who says
    /// that a host is off.
    pub dialled_ms: u64,
    /// A mistake that the simulation has to find. For tests only.
    pub planted: Option<Planted>,
}

/// A mistake that is made on purpose, so that it is seen that the simulation would find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Commands and answers go out before the decision is written.
    WordBeforeStore,
    /// A request that is repeated has another name.
    NameChanged,
    /// A new leader counts hosts as lost of which it has not heard yet.
    LeaseForgotten,
    /// A move begins, though its target takes no guests any more.
    ModeForgotten,
    /// The moves of other operations take no slots.
    SlotsForgotten,
    /// An operation that is called off does not wait for its migrations.
    OverTooEarly,
    /// A move that was begun in an earlier term is not asked for again.
    BegunForgotten,
    /// A plan chooses hosts again that have refused.
    RefusalForgotten,
    /// A VM that no host has at the moment is forgotten at once.
    MissingForgotten,
    /// A VM is started elsewhere without proof that its host is off.
    ProofForgotten,
    /// A power-off is ordered before the decision is written.
    IntentForgotten,
    /// A power-off that was accepted counts as proof.
    OffAssumed,
    /// A power state that was read before this leader's power-off counts as proof.
    EarlyReadingTrusted,
    /// A host that reports again is switched off all the same.
    ReturnForgotten,
    /// A start that an agent has not said to be refused for good counts as refused.
    AnyErrorTrusted,
    /// A plan is kept, though rules have changed since it was made.
    PlanKept,
    /// A host's certificate is refused as soon as another is signed, which the host may never get.
    ReplacedAtOnce,
    /// A host is shut down without its agent's word that it has no guest and takes none.
    ClosingForgotten,
    /// A host is shut down before the decision is written.
    SleepIntentForgotten,
    /// A host goes to sleep though no fewer may be awake.
    AwakeMinForgotten,
    /// A host sleeps as soon as its device says so, though its agent reports.
    SleeperTrusted,
    /// A host is told to be updated before its guests have left.
    UpdateDrainForgotten,
    /// A later leader has a host updated once more.
    UpdateRepeated,
    /// A VM that is off is its new host's before its old host has forgotten the VM.
    KeptTooEarly,
    /// A VM that is off is to be forgotten by its host before another host keeps the VM.
    LeftTooEarly,
    /// A host counts as reset by its watchdog, though its agent may have fed it as more than half had no leader.
    WatchdogVotersForgotten,
    /// A host counts as reset by its watchdog, though its agent may have fed it late, and once more by its end.
    WatchdogCloseForgotten,
    /// An agent goes on feeding its watchdog, though no leader acknowledges its reports.
    FedOn,
    /// An agent counts another among those that have no leader, though that one has.
    LeaderOfOthersIgnored,
    /// What a backup says of hosts counts after it was restored.
    RestoreForgotten,
    /// A person may start any VM on any host.
    AnyStartByHand,
    /// A person may move any guest, and where it may be is not written down.
    AnyMoveByHand,
    /// An agent starts a VM for a person though no controller has answered.
    StartByHandUnanswered,
    /// An agent moves a guest for a person though no controller has answered.
    MoveByHandUnanswered,
    /// A host's last report counts as its word of a dead host's guests, though the report is of before the proof.
    StaleReportTrusted,
    /// An agent obeys a leader though it has heard of a later one.
    DeposedObeyed,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            attempts_max: 3,
            retry_ms: 5_000,
            missing_ms: 60_000,
            operations_kept: 500,
            audit_kept: 100_000,
            power_round_ms: 60_000,
            stop_within_ms: 300_000,
            dialled_ms: 20_000,
            planted: None,
        }
    }
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
    /// Acknowledge an agent's report, as [`ToAgent::Heard`](skein_api::ToAgent::Heard).
    Heard { session: SessionId, term: Term, number: u64, sequence: u64, voters: u64, hosts: BTreeSet<String> },
    /// End an agent's connection.
    HangUp { session: SessionId, why: String },
    /// Tell an agent that its host is not taken, and end the connection.
    Refuse { session: SessionId, refusal: Refusal },
    /// Make a plan of [`Controller::plan_request`], and come back with [`Input::Planned`](crate::Input::Planned).
    Plan { plan: u64 },
    /// Tell a fencing device something, or ask it, and come back with [`Input::Power`](crate::Input::Power) within
    /// `within_ms`. A power-off is told only while this controller leads in this term.
    Power { job: u64, term: Term, host: String, device: Box<FencingDevice>, action: PowerAction, within_ms: u64 },
    /// Answer what was asked.
    Answer { asked: u64, answer: Answer },
    /// Tell subscribers what has changed, by this revision.
    Changed { revision: u64, at: UnixMs, changed: Box<ChangedObject> },
    /// Give up the lead, if it is not lost yet, and read the store again.
    StepDown { why: String },
}

/// What a fencing device is told or asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerAction {
    /// Switch the host off, at once.
    Off,
    /// Have the host shut itself down, in order.
    Shutdown,
    /// Switch the host on.
    On,
    /// Say whether the host has power, and refuse if the device cannot switch it on, or cannot do what `shutdown` says.
    Check {
        /// Whether the device has to be able to have the host shut itself down.
        shutdown: bool,
    },
    /// Say whether the host has power.
    Read,
}

/// What became of what a fencing device was told or asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerResult {
    /// What it was told was accepted, which proves nothing.
    Accepted,
    /// The device says so, and what it says of the machine.
    State(PowerState, String),
    /// Nothing was done, and why.
    Refused(String),
    /// It may have been done, and why that is not known.
    Unknown(String),
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
pub(crate) struct InFlight {
    pub(crate) write: u64,
    pub(crate) changes: Vec<Change>,
    pub(crate) effects: Vec<Output>,
}

/// The reason why a command was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandPurpose {
    /// To begin a move of an operation.
    Begin { operation: String, index: usize },
    /// To hear what a host keeps of a VM that is off, for a move of an operation.
    Offer { operation: String, index: usize },
    /// To call a move off.
    CallOff { operation: String, index: usize },
    /// To call off what was asked for, for a move of which no migration is known, and to hear which was begun.
    Withdraw { operation: String, index: usize },
    /// To settle a migration in doubt whose other host is off.
    Settle { host: String, migration: MigrationId },
    /// To do what an operation is for that has no moves.
    Operate { operation: String },
    /// To have a host forget a VM that runs elsewhere.
    Forget { host: String, vm: String },
    /// To limit how fast a host's migrations send.
    Limit,
    /// To answer what somebody asked of a migration.
    Relay { asked: u64 },
    /// To end a hold that an evacuation does not wait for.
    Hurry { migration: MigrationId },
    /// To have a host take guests again that did not go to sleep.
    Reopen,
    /// To hear what a host has, now that another is off: asked when, by the clock that never jumps, and after how many
    /// proofs that hosts are off.
    Look { host: String, asked_ms: u64, proofs: u64 },
}

/// Something that somebody asked of a migration, and that its source's agent answers.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) asked: Box<Asked>,
    pub(crate) source: String,
    /// Until when the agent may take, by the clock that never jumps.
    pub(crate) until_ms: u64,
}

/// A command whose reply has not come.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    pub(crate) session: SessionId,
    pub(crate) purpose: CommandPurpose,
}

/// How far a fencing is in this term.
#[derive(Debug, Default)]
pub(crate) enum FenceRun {
    /// Nothing was ordered.
    #[default]
    Idle,
    /// A power-off was ordered, and the device has not answered.
    Ordering { job: u64, until_ms: u64 },
    /// A power-off was ordered, and it is read whether the host is off.
    Reading { job: Option<u64>, read_ms: u64, until_ms: u64, last: String },
}

/// How far a host is on its way to sleep, or awake, in this term.
#[derive(Debug, Default)]
pub(crate) enum PowerRun {
    /// Nothing was asked or told.
    #[default]
    Idle,
    /// The device was asked whether it can do what is needed.
    Checking { job: u64, until_ms: u64 },
    /// The device is as it has to be.
    Checked,
    /// The agent was asked to take no guest any more.
    Closing,
    /// The host or its device was told, and has not answered.
    Ordering { job: Option<u64>, until_ms: u64 },
    /// It is read whether the host has power.
    Reading { job: Option<u64>, read_ms: u64, ordered_ms: Option<u64>, last: String },
}

/// How far a host's update is in this term.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UpdateRun {
    /// When its agent was last asked, by the clock that never jumps.
    pub(crate) asked_ms: Option<u64>,
    /// Whether it is done, and the agent is told to take guests again.
    pub(crate) opens: bool,
}

/// How fast a host was told that its migrations may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToldLimit {
    pub(crate) rate: Rate,
    /// When, by the clock that never jumps.
    pub(crate) at_ms: u64,
}

/// Why a fencing device was told or asked something.
#[derive(Debug)]
pub(crate) enum PowerPurpose {
    /// For a fencing.
    Fence { operation: String },
    /// For a host that goes to sleep or wakes.
    Change { operation: String },
    /// Only to be shown.
    Show { host: String, asked: Box<Asked> },
}

/// What is kept of an operation that is under way, and nobody else needs.
#[derive(Debug, Default)]
pub(crate) struct OperationRun {
    /// The plan that is being made.
    pub(crate) plan: Option<u64>,
    /// The epoch that its plan goes by.
    pub(crate) epoch: Option<u64>,
    /// When a plan last failed, by the clock that never jumps.
    pub(crate) plan_failed_ms: Option<u64>,
    /// How far a fencing is in this term.
    pub(crate) fence: FenceRun,
    /// How far a host is on its way to sleep, or awake, in this term.
    pub(crate) power: PowerRun,
    /// How far the host is in this term whose update is under way.
    pub(crate) update: UpdateRun,
    /// The operations that wake hosts, for which its plan waits.
    pub(crate) wakes: BTreeSet<String>,
    /// The memory of the guests whose moves were begun, by the move's index.
    pub(crate) memory: BTreeMap<usize, u64>,
}

/// Why a plan is made.
#[derive(Debug)]
pub(crate) enum PlanPurpose {
    /// For an operation. `epoch` is that of the rules and guests that the plan goes by.
    Operation { id: String, epoch: u64 },
    /// To decide which hosts sleep and wake.
    Power,
    /// To see whether a host can be emptied that is to be updated. With `asked` only to be shown, to this request.
    UpdateCheck { asked: Option<u64>, operation: Box<Operation>, index: usize },
    /// Only to be shown, to this request.
    Preview { asked: u64, operation: Box<Operation> },
}

/// What a plan is about.
#[derive(Debug)]
pub(crate) enum PlanBasis {
    /// Where guests are. `excluded`: hosts where guests cannot be. `unknown`: a VM that the cluster may not know.
    Guests { want: Want, excluded: Excluded, unknown: Option<Box<(String, VmRecord)>> },
    /// Which hosts sleep and wake.
    Power { now_ms: u64 },
}

/// A plan that was asked for.
#[derive(Debug)]
pub(crate) struct AskedPlan {
    pub purpose: PlanPurpose,
    pub basis: PlanBasis,
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    pub(crate) settings: Settings,
    pub(crate) role: Role,
    pub(crate) tables: Tables,
    pub(crate) observed: BTreeMap<String, Observed>,
    pub(crate) sessions: BTreeMap<SessionId, String>,
    pub(crate) commands: BTreeMap<u64, Outstanding>,
    pub(crate) plans: BTreeMap<u64, AskedPlan>,
    /// What fencing devices were told or asked, and have not answered.
    pub(crate) powers: BTreeMap<u64, PowerPurpose>,
    pub(crate) runs: BTreeMap<String, OperationRun>,
    /// Counts the changes that make plans obsolete.
    pub(crate) epoch: u64,
    /// What the last plan left out, as placement cannot use it.
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) optimizer: Optimizer,
    pub(crate) power: PowerPolicy,
    /// Where controllers and members of the store are, by their addresses; `None`: that is not known.
    pub(crate) needed_at: Option<BTreeSet<IpAddr>>,
    /// How fast guests leave each host that any has left.
    pub(crate) paces: BTreeMap<String, Pace>,
    /// The limits of rates that hosts were told, by connection.
    pub(crate) limits_told: BTreeMap<SessionId, ToldLimit>,
    /// What agents are to answer, by its number.
    pub(crate) relays: BTreeMap<u64, Relay>,
    /// When an agent was last asked to end a hold, by the clock that never jumps.
    pub(crate) hurried: BTreeMap<MigrationId, u64>,
    /// VMs that no host has: since when, by the clock that never jumps.
    pub(crate) missing: BTreeMap<String, u64>,
    /// Guests that run on a host by its word, while the host whose they are says that they run there, too: the host,
    /// and the guest.
    pub(crate) untold: BTreeSet<(String, String)>,
    /// What agents answered that were asked what their hosts have.
    pub(crate) looks: Looks,
    /// Handshakes of agents that came to nothing.
    pub(crate) handshakes: Handshakes,
    /// The highest terms that agents have heard of.
    pub(crate) later: LaterTerms,
    /// The last acknowledgements: their numbers, and when they were made, by the clock that never jumps.
    pub(crate) rounds: VecDeque<(u64, u64)>,
    /// How many acknowledgements were made in this term.
    pub(crate) rounds_count: u64,
    pub(crate) out: VecDeque<Output>,
    /// What waits until what is staged is written.
    pub(crate) held: Vec<Output>,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) numbers: u64,
    pub(crate) audited: u64,
    pub(crate) refusals: Refusals,
    pub(crate) wall: UnixMs,
    /// The time of what is handled, by the clock that never jumps.
    pub(crate) mono_ms: u64,
    /// When this controller began, by the clock that never jumps.
    pub(crate) begun_ms: Option<u64>,
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
            powers: BTreeMap::new(),
            runs: BTreeMap::new(),
            epoch: 0,
            left_out: Vec::new(),
            optimizer: Optimizer::default(),
            power: PowerPolicy::default(),
            needed_at: None,
            paces: BTreeMap::new(),
            limits_told: BTreeMap::new(),
            relays: BTreeMap::new(),
            hurried: BTreeMap::new(),
            missing: BTreeMap::new(),
            untold: BTreeSet::new(),
            looks: Looks::default(),
            handshakes: Handshakes::default(),
            later: LaterTerms::default(),
            rounds: VecDeque::new(),
            rounds_count: 0,
            out: VecDeque::new(),
            held: Vec::new(),
            in_flight: None,
            numbers: 0,
            audited: 0,
            refusals: Refusals::default(),
            wall: UnixMs(0),
            mono_ms: 0,
            begun_ms: None,
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

    /// Returns where controllers and members of the store are; `None`: that is not known.
    pub fn needed_at(&self) -> Option<&BTreeSet<IpAddr>> {
        self.needed_at.as_ref()
    }

    /// Returns the records, as they will be when all is written.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Returns the next thing to be done.
    pub fn output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Does something once all that was decided so far is written.
    pub(crate) fn effect(&mut self, output: Output) {
        let is_written = self.in_flight.is_none() && !self.tables.is_staged() && self.held.is_empty();
        match is_written || self.has(Planted::WordBeforeStore) {
            true => self.out.push_back(output),
            false => self.held.push(output),
        }
    }

    /// Returns for how long an agent may be silent before its host counts as lost, in milliseconds.
    pub(crate) fn host_lease_ms(&self) -> u64 {
        u64::from(self.tables.settings.value.host_lease_s) * 1000
    }

    /// Returns whether a mistake is planted.
    pub(crate) fn has(&self, planted: Planted) -> bool {
        self.settings.planted == Some(planted)
    }

    /// Returns a number that this controller has not used in its term.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn set_contact(&mut self, now: Now, name: &str, contact: Contact) {
        let Some(found) = self.tables.hosts.get(name).filter(|found| found.value.contact != contact) else { return };
        let mut host = found.value.clone();
        (host.contact, host.contact_since) = (contact, now.wall);
        self.epoch += 1;
        self.tables.put(name, host);
    }

    /// Keeps a host whose mode has changed. Plans that go by the mode of before are made again.
    pub(crate) fn set_mode(&mut self, name: &str, host: HostRecord) {
        self.epoch += 1;
        self.tables.put(name, host);
    }

    /// Returns for how long an agent has said nothing, in milliseconds. Before this controller began to lead, nobody
    /// listened.
    pub(crate) fn silent_ms(&self, now: Now, host: &str) -> u64 {
        let Role::Leader { since_ms, .. } = self.role else { return 0 };
        let begin_ms = if self.has(Planted::LeaseForgotten) { 0 } else { since_ms };
        let heard_ms = self.observed.get(host).and_then(|observed| observed.heard_ms);
        now.ms_since(heard_ms.unwrap_or(begin_ms).max(begin_ms))
    }

    /// Returns whether a command was sent for a purpose, and its reply has not come.
    pub(crate) fn is_asked(&self, purpose: &CommandPurpose) -> bool {
        self.commands.values().any(|command| command.purpose == *purpose)
    }

    /// Returns what a host says, if its agent is connected and has said everything.
    pub(crate) fn reporting(&self, host: &str) -> Option<&Observed> {
        self.observed.get(host).filter(|observed| observed.session.is_some() && observed.is_whole)
    }

    /// Returns the connection of a host's agent.
    pub(crate) fn session_of(&self, host: &str) -> Option<SessionId> {
        self.observed.get(host).and_then(|observed| observed.session)
    }

    /// Returns the VMs of a host, by the records.
    pub(crate) fn vms_on(&self, host: &str) -> BTreeSet<String> {
        self.tables.vms_of(host).map(|(name, _)| name.to_owned()).collect()
    }
}
