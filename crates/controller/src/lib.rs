//! Runs a cluster's controller: the pure core of `skein-cluster`, joined to agents, people, a store and a clock.
//!
//! ```text
//!  agents ──lines──▶ agent_link ─▶ ┌────────┐ ─▶ writer ─▶ store ◀─ candidate (election, watch)
//!  people ──HTTPS──▶ http ───────▶ │ driver │ ─▶ planners
//!                    events ◀───── └────────┘ ─▶ lines for agents, answers
//! ```
//!
//! | module | what |
//! |---|---|
//! | `driver` | the core with its threads: store, election, plans |
//! | `fencing` | what switches hosts off, and says whether they have power |
//! | `server` | the port: TLS, agents and HTTP told apart |
//! | `handshakes` | TLS on that port, and why a handshake came to nothing |
//! | `agent_link` | a connection with an agent |
//! | `http` | the REST API and its OpenAPI document |
//! | `meter`, `metrics` | what is counted; a port for scrapers |
//! | `attention` | what needs a person |
//! | `config`, `found` | the configuration; how a cluster begins |
//! | `client` | a client of the API, for this program and tests |
//! | `limits`, `timed_io` | how many connections, wrong tokens, and how slow readers may be |
//!
//! Not here: any decision about hosts, VMs and operations.
//!
//! # Invariants
//!
//! - **Whoever is slow harms nobody else.** Every queue has a bound and every wait an end; an agent or a client that
//!   does not read is cut (`tests/abuse.rs`).
//! - **A leader stops by its own clock before the store says so** (`Shared::input`, `tests/failover.rs`).

#![forbid(unsafe_code)]

mod agent_link;
mod attention;
pub mod client;
pub mod config;
pub mod driver;
pub mod fencing;
pub mod found;
pub mod handshakes;
pub mod http;
mod limits;
mod meter;
pub mod metrics;
pub mod server;
pub mod signer;
mod timed_io;

pub use limits::ConnectionLimits;
