//! Is a rail in a process of its own, which alone loads libfabric.
//!
//! A library of others that crashes, hangs or writes where it must not then costs one connection, and not the agent
//! with all its guests; and whatever the library does, nothing is written to this host's memory any more when the
//! process has ended, because the kernel closes its devices.
//!
//! ```text
//!  agent                                     process
//!  RailProcess ─── packets of a socket ───── serve_rail ── libfabric ── NIC
//!       └───────── memory, mapped by both ───────┘
//! ```
//!
//! | module | is |
//! |---|---|
//! | `words` | what the two say to each other, and the socket |
//! | `client` | the rail as its agent has it |
//! | `serve` | the process |

mod client;
mod serve;
mod words;

pub use client::RailProcess;
pub use serve::serve_rail;
