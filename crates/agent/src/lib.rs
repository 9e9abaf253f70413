//! The per-host daemon ([`Agent`]), and the [`Tunnel`] that ends at one.
//!
//! A tunnel listens on unix sockets and connects each connection made to them to a unix socket of the
//! agent's host, in the order they were made. It carries opaque bytes: whose migration it is, and whether
//! it succeeds, is its manager's business.

#![forbid(unsafe_code)]

mod agent;
mod allow;
mod target;
mod tunnel;

pub use agent::{Agent, AgentSettings};
pub use allow::{Allow, AllowError};
pub use skein_transfer::{AcceptorSettings, Addresses, DialerSettings, Snapshot, StartError};
pub use tunnel::{Forward, ForwardError, Tunnel, TunnelError, TunnelSettings};

/// Where agents listen unless said otherwise.
pub const DEFAULT_PORT: u16 = 7070;
