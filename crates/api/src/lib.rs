//! What skein's commands and an agent say to each other, over a unix socket of the host.
//!
//! A connection is one [`RequestLine`], a line of JSON, and then [`Reply`]s, a line each: any number of
//! [`Reply::Progress`], and at the end one that is not. Whoever hangs up is told nothing more; what was begun goes on.
//!
//! The types are this crate's own, in versions ([`v1`]): what is written stays, whatever becomes of the types that the
//! agent works with. The names of the newest version are the crate's.

#![forbid(unsafe_code)]

mod client;
mod line;
pub mod v1;

pub use client::{CallError, Client, Conversation};
pub use line::{LINE_BYTES_MAX, LineError, parse_line, read_bytes_within, read_line, write_line};
pub use v1::*;

/// Where an agent listens for commands unless said otherwise.
pub const DEFAULT_SOCKET: &str = "/run/skein/agent.sock";

/// An agent that follows a migration for somebody says something at least this often: [`Reply::Progress`] as it is, if
/// nothing changed. Who hears nothing for several of these may believe that it hangs.
pub const PROGRESS_PERIOD: std::time::Duration = std::time::Duration::from_secs(2);
