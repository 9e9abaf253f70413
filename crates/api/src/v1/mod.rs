//! Is version 1: requests, replies, and the values in them.
//!
//! What programs read stays: a field or a value is added, never changed or taken away, as long as the version is 1. The
//! schema is in the tree (`schema/v1.json`), with an example of each value (`schema/v1-examples.jsonl`); tests compare.
//! Types and variants may be renamed, as long as what is written stays the same.
//!
//! | module | what it has |
//! |---|---|
//! | `request` | what may be asked, and the id by which a repeated request is known |
//! | `bounds` | what may be asked for: the one place that says so, for commands and for the agent |
//! | `reply` | what the agent answers |
//! | `vm`, `host`, `host_facts`, `check` | VMs, hosts, what a host is and has, what a check finds |
//! | `load`, `controller_link` | how busy hosts and guests are; what an agent and a controller say to each other |
//! | `controller_bounds` | what an agent and a controller may say to each other |
//! | `migration`, `phase`, `copy`, `event` | a migration: its phase, how far it is, what happened |
//! | `sample` | a migration as it runs, several times a second, and what its host is busy with |
//! | `probe` | what the paths between two hosts were measured to carry |
//! | `console` | a VM's serial console that somebody has open from afar |
//! | `hold` | how a migration is held, and how a held migration is |

mod bounds;
mod check;
mod console;
mod controller_bounds;
mod controller_link;
mod copy;
mod event;
#[cfg(test)]
mod examples;
mod hold;
mod host;
mod host_facts;
mod load;
mod migration;
mod phase;
mod probe;
mod reply;
mod request;
mod sample;
#[cfg(test)]
mod schema;
mod vm;

pub use bounds::{
    ALLOW_THROTTLE_PERCENT_RANGE, DEADLINE_RANGE_S, DELTA_MEMORY_PERCENT_RANGE, DOWNTIME_LIMIT_RANGE_MS, HOLD_RANGE_S,
    MULTIFD_CHANNELS_RANGE, NAME_BYTES_MAX, PRIORITY_RANGE, REQUEST_ID_CHARS_MAX, RETRIES_RANGE, STOP_TIMEOUT_RANGE_S,
    check_version, is_vm_name,
};
pub use check::{CheckResult, Forecast, ForecastConvergence, Problem, ProblemKind, Severity};
pub use console::{
    CONSOLE_INPUT_BYTES_MAX, CONSOLE_OUTPUT_BYTES_MAX, CONSOLE_WAIT_MS_MAX, ConsoleBytes, ConsoleRequest, ConsoleState,
    ConsoleStep, ConsoleView,
};
pub use controller_bounds::{REPORT_PERIOD_RANGE_MS, WATCHED_MAX};
pub use controller_link::{
    ArmedWatchdog, HeardEcho, Hello, HostReport, Term, ToAgent, ToController, WatchdogState, Welcome,
};
pub use copy::{Convergence, CopyProgress, CopyRates, EXCLUDED_PATH, PageCounts, PageFigures, PathView, rdma_words};
pub use event::{KERNEL_KILLED, LogEntry, LoggedEvent, MigrationEvent, PATHS_CARRIED};
pub use hold::{HoldOptions, HoldRequest, HoldView, SwitchWindow, WindowRequest};
pub use host::HostView;
pub use host_facts::{
    Accel, AccelFacts, CpuModel, FileFacts, FileSystem, HostFacts, Hugepages, MachineType, MigrationSlots, NicFacts,
    Presence, QemuFacts, QemuVersion, Resource, Room, RoomLimit, VmFacts,
};
pub use load::{HostLoad, VmLoad};
pub use migration::{Attempt, Migration, MigrationId, RateLimit, RateLimitedBy};
pub use phase::{FailureReason, MigrationPhase, Outcome, Report, Role, SourcePhase, TargetPhase};
pub use probe::{
    FindingKind, MeasuredRate, Probe, ProbeFinding, ProbedEnd, ProbedPath, RoundTrip, Together, UnusedPair, UsedCpu,
    Verdict,
};
pub use reply::{HostUpdateView, Refusal, Reply, UpdateRunState, VersionView};
pub use request::{API_VERSION, MigrateOptions, Request, RequestLine, StartOptions, Transport, UpdateHow, VmOrigin};
pub use sample::{
    HostSample, MigrationRecord, MigrationSample, NicRates, SAMPLE_PERIOD_MS, SAMPLES_MAX, SampledHost, TimeLeft,
};
pub use vm::{Drive, VmState, VmView};
