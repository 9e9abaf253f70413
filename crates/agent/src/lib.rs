//! The per-host daemon ([`Agent`]), and the [`Tunnel`] that ends at one.
//!
//! An agent owns its host's VMs: it starts their QEMUs, which outlive it, and moves them to other hosts. Who may run a
//! guest is decided by `skein_handover`; here its decisions are carried out.
//!
//! A tunnel listens on unix sockets and connects each connection made to them to a unix socket of the
//! agent's host, in the order they were made. It carries opaque bytes: whose migration it is, and whether
//! it succeeds, is its manager's business.

#![forbid(unsafe_code)]

mod agent;
mod allow;
mod composition;
mod control;
mod dirs;
mod facts;
#[cfg(feature = "fault-points")]
mod fault;
mod firmware;
mod hosts;
mod keeper;
mod kept;
mod landing;
mod launch;
mod meter;
mod migrations;
mod own_state;
mod packer;
mod pass;
mod peers;
mod place;
mod ram;
mod room;
mod serve;
mod socket;
mod start;
mod tap;
mod target;
mod transport;
mod tunnel;
mod vms;

pub use agent::{Agent, AgentError, AgentSettings, VmSettings};
pub use allow::{Allow, AllowError};
pub use control::{Answer, CONTROL_VERSION, Question, TooLong, Wire};
pub use dirs::Dirs;
pub use hosts::{ResolveError, resolve};
pub use keeper::keep_channels;
pub use landing::Landings;
pub use packer::pack_pages;
pub use peers::{Answerer, AskError, Hold, PeerEvent, Peers, PeersSettings};
pub use skein_transfer::{AcceptorSettings, Addresses, DialerSettings, NetworkFault, Snapshot, StartError};
pub use socket::SocketError;
pub use tap::Tap;
pub use tunnel::{Forward, ForwardError, Tunnel, TunnelError, TunnelSettings};

/// Where agents listen unless said otherwise.
pub const DEFAULT_PORT: u16 = 7070;

/// An error with its causes, in a line.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
