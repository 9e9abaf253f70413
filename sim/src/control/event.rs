//! What happens, and connections.

use std::time::Duration;

use skein_api::{ToAgent, ToController};
use skein_cluster::{PlanRequest, PowerAction, PowerResult};
use skein_store::{Entry, Outcome, Revision, StoreError};

use super::host::Ms;

/// Something that happens at its time.
#[derive(Debug)]
pub enum Event {
    /// A controller's clock ticks.
    Tick { node: usize, life: u64 },
    /// The store has an answer for a controller.
    Stored { node: usize, life: u64, done: Stored },
    /// A plan is begun.
    Planning { node: usize, life: u64, plan: u64 },
    /// A plan is made.
    Plan { node: usize, life: u64, plan: u64, request: Box<PlanRequest> },
    /// A line comes to an agent.
    ToAgent { host: usize, session: u64, line: Box<ToAgent> },
    /// A line comes to a controller.
    ToController { node: usize, session: u64, line: Box<ToController> },
    /// An agent dials a controller.
    Dial { host: usize, life: u64, node: usize },
    /// An agent reports.
    Report { host: usize, life: u64, session: u64 },
    /// A guest runs that was being started, as a command of this session asked.
    Started { host: usize, life: u64, session: u64, command: u64, name: String, vm: String },
    /// A migration comes to its end.
    Migrated { id: u64 },
    /// One end of a session notices that it is over.
    Broken { session: u64, at_node: bool },
    /// A controller's word comes to a fencing device.
    Power { node: usize, life: u64, job: u64, host: usize, action: PowerAction },
    /// A fencing device's answer comes to a controller.
    Powered { node: usize, life: u64, job: u64, result: PowerResult },
    /// A host is off that was to be switched off.
    PowerOff { host: usize },
    /// A host shuts itself down, as its device was told.
    ShutDown { host: usize },
    /// A host is on again, as its device was told.
    PowerOn { host: usize },
    /// The command ends that updates a host.
    Updated { host: usize, id: String },
    /// A host is booted that is updated: it goes down, and comes back later or not at all by itself.
    Boot { host: usize },
    /// Somebody starts a guest by hand.
    ByHand { host: usize },
    /// Somebody starts a VM by hand on a host.
    StartHere { host: usize, vm: String },
    /// Somebody moves a guest by hand to a host.
    MoveHere { to: usize, vm: String },
    /// The source of a migration that waits there loses the controllers.
    LosesSource { id: u64 },
    /// So does the target, at about the time when the source counts as lost. The guest goes, and the source dies.
    LosesTarget { id: u64 },
    /// A host dies.
    Dies { host: usize },
    /// Somebody says that a host is off.
    SaysOff { host: usize },
    /// An agent asks a controller once more whether a person may do something.
    AskAgain { host: usize, life: u64, ask: u64 },
    /// What a person may do is done.
    BeginByHand { host: usize, life: u64, ask: u64 },
    /// An agent feeds its watchdog, if it may.
    Feed { host: usize, life: u64 },
    /// An agent that found that it may feed, and was halted, feeds.
    FeedLate { host: usize, life: u64 },
    /// A watchdog resets its host, if it was not fed since.
    Bite { host: usize, boot: u64, fed: Ms },
    /// An agent that may feed its watchdog no more ends.
    AgentEnds { host: usize, life: u64 },
    /// An agent is asked by another whether it has a leader.
    PeerAsks { from: usize, to: usize, life: u64, round: u64 },
    /// An agent answers that.
    PeerSays { from: usize, to: usize, life: u64, round: u64, has_leader: bool },
    /// A backup of the store is made.
    Backup,
    /// The backup is restored, and controllers begin with it.
    Restore,
    /// Hosts are cut off from controllers for long.
    Partition,
    /// Hosts get their fencing devices.
    Outfit,
    /// A host that was cut off is reached again.
    Rejoin { host: usize },
    /// A controller is paused for so long.
    Pause { node: usize, ms: Ms },
    /// Something goes wrong, or is mended.
    Fault,
    /// Somebody asks for something.
    People,
    /// A host's or controller's process starts again.
    Restart { node: Option<usize>, host: Option<usize> },
}

/// The answer of the store.
#[derive(Debug)]
pub enum Stored {
    /// A lease was granted, asked for at this time.
    Granted { asked: Ms, lease: skein_store::Lease },
    /// The candidacy, and what the store has if it was won.
    Campaigned { won: Option<(Revision, Vec<Entry>)> },
    /// The lease was kept alive, or is over.
    KeptAlive { asked: Ms, ttl: Option<Duration> },
    /// A write of the controller; `None`: nobody knows.
    Written { write: u64, outcome: Option<Result<Outcome, StoreError>> },
    /// The store did not answer.
    Silent,
}

/// A connection between an agent and a controller.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    pub host: usize,
    pub node: usize,
    pub open: bool,
    /// The number of the certificate that the agent showed.
    pub certificate: u64,
    /// When the last line in each direction arrives, so that lines keep their order: to the agent, to the controller.
    pub last_ms: [Ms; 2],
}
