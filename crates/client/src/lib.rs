//! How programs reach an agent: [`Client`] sends requests of [`skein_api`] to its unix socket.

#![forbid(unsafe_code)]

mod agent;

pub use agent::{CallError, Client, Conversation};
