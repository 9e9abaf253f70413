//! Is a rail in a process of its own, which alone loads libfabric. A process has all endpoints of a rail: to load the
//! library takes a tenth of a second, and a migration has an endpoint for its connection and another for its writes.
//!
//! A library of others that crashes, hangs or writes where it must not then costs one rail, and not the agent with all
//! its guests; and whatever the library does, nothing is written to this host's memory any more when the process has
//! ended, because the kernel closes its devices.
//!
//! ```text
//!  agent                                         process
//!  RailProcess ────── packets of a socket ────── serve_rail
//!  ProcessEndpoint ── packets of a socket ────── a thread ── libfabric ── NIC
//!       └─────────── memory, mapped by both ────────┘
//! ```
//!
//! | module | is |
//! |---|---|
//! | `words` | what the two say to each other, and the sockets |
//! | `rail_process` | the process as its agent has it |
//! | `endpoint` | an endpoint as its agent has it |
//! | `serve` | the process |

mod endpoint;
mod rail_process;
mod serve;
mod words;

pub(crate) use endpoint::ProcessEndpoint;
pub use rail_process::RailProcess;
pub use serve::serve_rail;
