//! Is what Skein's commands and an agent say to each other, over a unix socket of the host.
//!
//! A connection has one [`RequestLine`], a line of JSON, and then [`Reply`]s, a line each: any number of
//! [`Reply::Progress`], and at the end another reply. A command that hangs up gets nothing more; what was begun goes
//! on.
//!
//! The types are this crate's own, in versions ([`v1`]). What is written stays, whatever becomes of the types that the
//! agent works with. The names of the newest version are the crate's.

#![forbid(unsafe_code)]

pub mod cluster;
mod line;
pub mod v1;

pub use line::{LINE_BYTES_MAX, LineError, parse_line, read_bytes_within, read_line, write_line};
pub use v1::*;

/// Holds the path at which an agent listens for commands unless another is named.
pub const DEFAULT_SOCKET: &str = "/run/skein/agent.sock";

/// Says how long an agent that follows a migration may be silent: after this comes [`Reply::Progress`], even if nothing
/// changed. A command that reads nothing for several periods may believe that the agent hangs.
pub const PROGRESS_PERIOD: std::time::Duration = std::time::Duration::from_secs(2);
