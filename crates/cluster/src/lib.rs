//! What a cluster's controller decides. Pure.
//!
//! One [`Controller`] stands for one process. What happens comes in as [`Input`]s; what is to be done comes out as
//! [`Output`]s, in their order. One controller of a cluster leads: it alone decides, writes and commands. The others
//! follow what the leader wrote, and answer questions.
//!
//! | module | what |
//! |---|---|
//! | `controller` | what comes in, and what is written |
//! | `state` | the state, what goes out, and what is held back until it is written |
//! | `answer`, `ask` | what people and programs ask, and how it is answered |
//! | `audit`, `refusals` | what of that is written to the audit log, and for how long |
//! | `fencing_device` | whether what is set of a fencing device can be right |
//! | `agents`, `observed` | what agents say, and what of it is kept |
//! | `handshakes`, `answering` | hosts that answer, though no connection with their agents comes about |
//! | `certificates`, `releases` | which certificates of hosts are taken; agents of different releases |
//! | `operations` | migrations, drains, power-offs, failovers, which take a while |
//! | `planner`, `live`, `skeleton` | which guest goes where, and in which order: placement on the live cluster |
//! | `waits`, `leaving` | for which guests that are to leave its target a move waits |
//! | `sound`, `unusable` | rules and settings that placement cannot use |
//! | `cpu_models`, `cpu_baseline` | CPU models of hosts, and the one that all hosts of a group have |
//! | `pace` | how fast guests leave a host |
//! | `power`, `power_planner`, `power_policy` | which hosts sleep and which wake, by which guards |
//! | `seen` | what policies see of the cluster |
//! | `rules`, `questions` | rules, and what is asked of them |
//! | `optimize`, `optimizer` | rounds of optimisation, and what they go by |
//! | `records`, `tables` | what the store holds |
//! | `looks` | what hosts have, as their agents answered that were asked |
//! | `watchdog` | hosts that are proven to be off as their watchdog has reset them |
//! | `view` | hosts and VMs as the API shows them |
//!
//! # Invariants
//!
//! - **First the store, then the word.** A command, an answer or an event that follows from a decision goes out when
//!   the decision is in the store (`Controller::effect`).
//! - **Who may run a guest is not decided here.** Agents decide, by their handover. A command that comes twice, late or
//!   from a deposed leader does no harm.
//! - **A record means something by itself.** Records that change together mostly go into one transaction, but a large
//!   change may be cut.

#![forbid(unsafe_code)]

mod access;
mod agents;
mod answer;
mod answering;
mod ask;
mod audit;
mod certificates;
mod controller;
mod cpu_baseline;
mod cpu_models;
mod drain;
mod fencing_device;
mod handshakes;
mod later_terms;
mod leaving;
mod live;
mod looks;
mod observed;
mod operations;
mod optimize;
mod optimizer;
mod pace;
mod planner;
mod power;
mod power_planner;
mod power_policy;
mod questions;
mod rate_limits;
mod records;
mod refusals;
mod releases;
mod restored;
mod resume;
mod rules;
mod seen;
mod skeleton;
mod sound;
mod state;
mod tables;
mod time;
mod unusable;
mod view;
mod waits;
mod watchdog;
mod words;

pub use answer::{Answer, Ask, Asked, MigrationAsk, Refused, RefusedKind};
pub use controller::{CHANGES_MAX, Input};
pub use handshakes::HandshakeFailure;
pub use leaving::Leaving;
pub use observed::{SessionId, ShownCertificate};
pub use planner::{Better, PastRound, PlanError, PlanRequest, Planned, PlannedMove, Want};
pub use power_planner::{PowerPlan, PowerPlanError, PowerWant};
pub use questions::{broken_by, complaints, explained, left_out_complaint, warnings};
pub use records::{
    AsleepRecord, CLUSTER_KEY, CertificateValidity, ClusterRecord, HostRecord, PowerRecord, PowerRoundRecord,
    RemovedRecord, RestoredRecord, TicketRecord, TokenRecord, VmRecord, VotersRecord, WatchdogRecord,
};
pub use sound::LeftOut;
pub use state::{Controller, Output, Planted, PowerAction, PowerResult, Role, Settings};
pub use tables::{BadRecord, Change, Stored, Tables};
pub use time::Now;
pub use waits::plan;
pub use words::error_chain;
