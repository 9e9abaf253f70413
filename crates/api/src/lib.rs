//! What skein's commands and an agent say to each other, over a unix socket of the host.
//!
//! A connection is one [`Request`], a line of JSON, and then [`Reply`]s, a line each: any number of
//! [`Reply::Progress`], and at the end one that is not. Whoever hangs up is told nothing more; what was begun goes on.

#![forbid(unsafe_code)]

mod bounds;
mod client;
mod line;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skein_handover::{FailureReason, MigrationEvent, MigrationId, MigrationPhase, Outcome, Role};
use skein_inventory::check::{Problem, Severity};
use skein_inventory::{Convergence, Route};
pub use skein_pages::PageCounts;

pub use bounds::{
    ALLOW_THROTTLE_PERCENT_RANGE, DEADLINE_RANGE_S, DELTA_MEMORY_PERCENT_RANGE, MULTIFD_CHANNELS_RANGE, RETRIES_RANGE,
    STOP_TIMEOUT_RANGE_S,
};
pub use client::{CallError, Client, Conversation};
pub use line::{LINE_BYTES_MAX, LineError, parse_line, read_bytes_within, read_line, write_line};

/// Where an agent listens for commands unless said otherwise.
pub const DEFAULT_SOCKET: &str = "/run/skein/agent.sock";

/// An agent that follows a migration for somebody says something at least this often: [`Reply::Progress`] as it is, if
/// nothing changed. Who hears nothing for several of these may believe that it hangs.
pub const PROGRESS_PERIOD: std::time::Duration = std::time::Duration::from_secs(2);

/// What somebody wants of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "request")]
pub enum Request {
    /// Start a VM from its definition, or a stopped one that is known by its name. → [`Reply::Vm`]
    VmStart {
        /// A definition, as TOML, and the file that it is from; or a name.
        from: VmOrigin,
        /// What is wanted all the same.
        #[serde(default)]
        options: StartOptions,
    },
    /// Take over a QEMU that somebody else started. → [`Reply::Vm`]
    VmAdopt {
        /// Its QMP socket, which nobody else may have open.
        qmp: PathBuf,
        /// The VM's name; else QEMU's own (`-name`).
        name: Option<String>,
    },
    /// All VMs of this host. → [`Reply::Vms`]
    VmList,
    /// One. → [`Reply::Vm`]
    VmShow {
        /// Its name.
        name: String,
    },
    /// Stop a VM: press its power button, wait, and pull the plug if told to. → [`Reply::Vm`]
    VmStop {
        /// Its name.
        name: String,
        /// Seconds until it has to be off.
        timeout_s: u64,
        /// Kill its QEMU after that, instead of giving up.
        force: bool,
    },
    /// Run a guest that somebody paused, or QEMU for a failing disk. → [`Reply::Vm`]
    VmResume {
        /// Its name.
        name: String,
    },
    /// Forget a stopped VM's definition. → [`Reply::Done`]
    VmForget {
        /// Its name.
        name: String,
    },
    /// All hosts of the cluster, as far as this one knows them. → [`Reply::Hosts`]
    HostList,
    /// One; none: this one. → [`Reply::Host`]
    HostShow {
        /// Its name.
        name: Option<String>,
    },
    /// Say all that speaks against moving a VM, and how long it would take. → [`Reply::Check`]
    Check {
        /// The VM.
        vm: String,
        /// The target host.
        to: String,
        /// What was asked for with the migration.
        options: MigrateOptions,
    },
    /// Move a VM. → [`Reply::Check`], which is the end if something blocks it, and may be left out if nothing is to be
    /// said; [`Reply::Progress`] each time that something changes and every [`PROGRESS_PERIOD`]; at its end, or at
    /// once with `detach`, [`Reply::Migration`].
    Migrate {
        /// The VM.
        vm: String,
        /// The target host.
        to: String,
        /// What was asked for with the migration.
        options: MigrateOptions,
        /// Answer as soon as it is begun or queued.
        detach: bool,
    },
    /// Migrations under way on this host, and the last ones. → [`Reply::Migrations`]
    MigrationList,
    /// One, with its events. → [`Reply::Migration`]
    MigrationShow {
        /// The beginning of its id, or its VM's name for the last one.
        id: String,
    },
    /// Follow one until it is over. → as `Migrate`
    MigrationWatch {
        /// As in `MigrationShow`.
        id: String,
    },
    /// Call one off. → [`Reply::Migration`]
    MigrationCancel {
        /// As in `MigrationShow`.
        id: String,
    },
    /// Run a guest that is in doubt here, as the other host is off. → [`Reply::Migration`]
    MigrationResolve {
        /// As in `MigrationShow`.
        id: String,
        /// Somebody has made sure that the other host is off, and that it stays so until this is over.
        other_host_is_off: bool,
    },
}

/// What a VM is started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmOrigin {
    /// A definition.
    Definition {
        /// Where it is from, for error messages.
        file: String,
        /// TOML.
        text: String,
    },
    /// The name of a VM that this host knows and that is not running.
    Name(String),
}

/// What a start is refused for unless somebody wants it all the same. An agent that does not know a word ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartOptions {
    /// More than the host has room for: the kernel may kill this guest for it, or another.
    pub overcommit: bool,
    /// With the images that its definition or command line names, though its guest last had others open.
    pub as_defined: bool,
    /// With new UEFI variables and a new TPM, though another host keeps those of a VM of that name.
    pub new_state: bool,
}

/// How to migrate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigrateOptions {
    /// Greater goes first. None: the definition's.
    pub priority: Option<u8>,
    /// Milliseconds that the guest may be stopped; QEMU's `downtime-limit`.
    pub downtime_limit_ms: Option<u64>,
    /// Seconds until the guest has to be about to move; called off after that.
    pub deadline_s: Option<u64>,
    /// multifd channels; 0: one stream.
    pub channels: Option<u8>,
    /// How the guest's memory travels. None: as its host has it.
    pub transport: Option<Route>,
    /// Per cent by which the guest may be slowed down if it writes faster than it is moved. None: not at all.
    pub allow_throttle: Option<u8>,
    /// Memory that the source may use to know what the target holds, in per cent of the guest's RAM; 0: no deltas.
    /// None: the agent's choice.
    pub delta_memory: Option<f64>,
    /// How often a migration that failed for a reason that may pass is begun again.
    pub retries: u32,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reply")]
pub enum Reply {
    /// It goes on.
    Progress(Box<Migration>),
    /// Nothing more to say.
    Done,
    /// It cannot be done.
    Error(Refusal),
    /// A VM.
    Vm(Box<VmView>),
    /// VMs, by name.
    Vms {
        /// The VMs of this host.
        vms: Vec<VmView>,
    },
    /// A host.
    Host(Box<HostView>),
    /// Hosts, by name.
    Hosts {
        /// The hosts that this one knows.
        hosts: Vec<HostView>,
    },
    /// What a check found.
    Check(CheckResult),
    /// A migration.
    Migration(Box<Migration>),
    /// Migrations, the newest first.
    Migrations {
        /// The migrations that this host remembers.
        migrations: Vec<Migration>,
    },
}

/// Why something cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong.
    pub message: String,
    /// What to do about it; may be empty.
    pub cure: String,
}

/// A VM of this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmView {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub state: VmState,
    /// RAM in bytes.
    pub memory_bytes: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// The process that runs it.
    pub pid: Option<u32>,
    /// The version of its QEMU.
    pub qemu: Option<String>,
    /// The machine type, resolved: `pc-q35-10.0`.
    pub machine: Option<String>,
    /// Its QMP socket.
    pub qmp: Option<PathBuf>,
    /// The unix socket of its serial console.
    pub console: Option<PathBuf>,
    /// Started by somebody else.
    pub adopted: bool,
    /// The migration that it is in.
    pub migration: Option<MigrationId>,
    /// What is in its drives, or was when somebody last looked: its definition may name other images by now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<Drive>,
    /// Its definition, as TOML; none of one that was adopted.
    pub definition: Option<String>,
    /// Something to know of it: why it stopped, for instance. May be empty.
    pub note: String,
}

/// A drive of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// The drive's name, else its device's id or QOM path.
    pub name: String,
    /// The image that is in it, as QEMU calls it; none: it is empty.
    pub image: Option<String>,
    /// What that image is an overlay of, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backing: Vec<String>,
}

/// Whether a VM runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// It runs.
    Running,
    /// It is stopped and can go on: by somebody's word, or by QEMU for an error of a disk.
    Paused,
    /// Its QEMU is being started.
    Starting,
    /// It waits for its guest to arrive.
    Incoming,
    /// It was moved and waits for the word that it runs there.
    Handover,
    /// It runs on another host, and what it left here is being removed.
    Moved,
    /// Its guest is paused, and this host alone cannot decide where it runs: see `skein migration resolve`.
    InDoubt,
    /// It is off.
    Stopped,
    /// It does not answer.
    Unresponsive,
}

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Its name, as its identity has it.
    pub name: String,
    /// Where its agent is dialled; of this host, where it listens.
    pub addresses: Vec<String>,
    /// It is the one that answers.
    pub is_local: bool,
    /// Whether there is contact just now; none: it was not tried.
    pub reachable: Option<bool>,
    /// Why not, or since when.
    pub note: String,
    /// What is not as it should be on the way to it; known while there is a session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What it has and can do, if it said so.
    pub facts: Option<skein_inventory::facts::HostFacts>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// The VM.
    pub vm: String,
    /// The target host.
    pub to: String,
    /// All at once; none that blocks: it can go.
    pub problems: Vec<Problem>,
    /// How long it would take, in words; none if that cannot be said.
    pub forecast: Option<skein_inventory::forecast::Forecast>,
}

impl CheckResult {
    /// Whether something speaks against it for good.
    pub fn blocks(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Blocks)
    }
}

/// A migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Migration {
    /// Its name.
    pub id: MigrationId,
    /// The VM.
    pub vm: String,
    /// As what this host takes part.
    pub role: Role,
    /// Source host.
    pub source: String,
    /// Target host.
    pub target: String,
    /// Its phase; none once it is over.
    pub stage: Option<MigrationPhase>,
    /// How it ended, from the moment that this is certain.
    pub outcome: Option<Outcome>,
    /// Why it was called off.
    pub why: Option<FailureReason>,
    /// The same in words.
    pub detail: String,
    /// The guest is paused, and this end can do nothing about it.
    pub in_doubt: bool,
    /// When it was asked for: RFC 3339.
    pub begun: String,
    /// Milliseconds from then until its outcome, or now.
    pub elapsed_ms: u64,
    /// Milliseconds that the guest was stopped, as the source's QEMU and agent saw it.
    pub downtime_ms: Option<u64>,
    /// How far the copy is, while it is under way, or was at its end.
    pub copy: Option<CopyProgress>,
    /// Paths that carry it.
    pub paths: Vec<PathView>,
    /// What happened, oldest first; with [`Request::MigrationShow`] only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<LoggedEvent>,
}

/// How far the copy of a guest is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyProgress {
    /// The guest's RAM, in bytes.
    pub total_bytes: u64,
    /// Left to send.
    pub remaining_bytes: u64,
    /// Sent so far, over all rounds.
    pub transferred_bytes: u64,
    /// Pass over the RAM, from 1.
    pub round: u64,
    /// Bytes dirtied a second, in the last round, as QEMU counts: a page once in a round.
    pub dirty_bytes_per_s: u64,
    /// Bits sent a second, of late.
    pub bits_per_s: u64,
    /// Whether it ends, and when; none: not known.
    #[serde(default)]
    pub converges: Option<Convergence>,
    /// Per cent by which the guest is throttled for it.
    #[serde(default)]
    pub throttle_percent: u8,
    /// Where the bytes went; at the source only.
    #[serde(default)]
    pub pages: Option<PageFigures>,
}

/// What became of a guest's pages on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageFigures {
    /// How they travel.
    pub transport: Route,
    /// Whether the target's agent writes them into the guest's RAM itself, and both ends compare it; none: not decided.
    pub direct: Option<bool>,
    /// Why it does not, in words; empty: it does. If `direct` is true all the same, it writes smaller blocks than the
    /// guest's RAM itself.
    #[serde(default)]
    pub why_not_direct: String,
    /// Bytes of pages that were sent again since the guest wrote to them: QEMU sends each page once at first, so it is
    /// what is more than the guest's RAM.
    #[serde(default)]
    pub again_bytes: u64,
    /// How many they were, and of what kind. In JSON its fields are beside the others.
    #[serde(flatten)]
    pub counts: PageCounts,
}

/// A path between the hosts of a migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathView {
    /// The NIC at this end.
    pub nic: String,
    /// The address at the other end.
    pub remote: String,
    /// Whether data goes over it now.
    pub usable: bool,
    /// Bytes sent since the session began.
    pub sent_bytes: u64,
    /// Bits a second, of late.
    pub bits_per_s: u64,
}

/// An entry of a migration's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// When: RFC 3339, milliseconds, UTC.
    pub time: String,
    /// The event itself.
    #[serde(flatten)]
    pub event: LogEntry,
}

/// How a [`LogEntry::Note`] begins that tells of a guest which the kernel killed meanwhile, whichever that is.
pub const KERNEL_KILLED: &str = "the kernel killed guest ";

/// What is kept in a migration's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "entry")]
pub enum LogEntry {
    /// It was asked for.
    Begun {
        /// The VM.
        vm: String,
        /// As what this host takes part.
        role: Role,
        /// Source host.
        source: String,
        /// Target host.
        target: String,
    },
    /// The protocol went on.
    Handover {
        /// What happened.
        event: MigrationEvent,
    },
    /// Something else worth telling, in words: a decision, a QEMU's error, a path lost.
    Note {
        /// The words.
        text: String,
    },
    /// The figures of the copy, now and then and at its end.
    Copied {
        /// The figures.
        copy: CopyProgress,
    },
    /// The guest was stopped for so long.
    Downtime {
        /// Milliseconds, from QEMU's STOP until the target said that it runs.
        ms: u64,
    },
}
