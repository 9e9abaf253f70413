//! The per-host daemon ([`Agent`]), and the [`Tunnel`] that ends at one.
//!
//! An agent owns its host's VMs: it starts their QEMUs, which outlive it, and moves them to other hosts. Who may run a
//! guest is decided by `skein_handover`; here its decisions are carried out.
//!
//! A tunnel listens on unix sockets and connects each connection made to them to a unix socket of the
//! agent's host, in the order they were made. It carries opaque bytes: whose migration it is, and whether
//! it succeeds, is its manager's business.

#![forbid(unsafe_code)]

mod allow;
mod channel_keeper;
mod composition;
mod control_stream;
mod daemon;
mod dirs;
#[cfg(feature = "fault-points")]
mod fault_points;
mod firmware;
mod guest_ram;
mod host_addresses;
mod incoming_channels;
mod kept_ram;
mod launch;
mod migrations;
mod outgoing_channels;
mod own_socket;
mod own_state;
mod packer_process;
mod pass_descriptor;
mod path_meter;
mod peers;
mod permit;
mod read_facts;
mod room;
mod serve;
mod start_vm;
mod stream_destination;
mod transport;
mod tunnel;
mod vms;

pub use allow::{Allow, AllowError};
pub use channel_keeper::keep_channels;
pub use control_stream::{Answer, CONTROL_VERSION, ControlMessage, Question, TooLong};
pub use daemon::{Agent, AgentError, AgentSettings, VmSettings};
pub use dirs::Dirs;
pub use host_addresses::{ResolveError, resolve};
pub use incoming_channels::IncomingChannels;
pub use outgoing_channels::OutgoingChannels;
pub use own_socket::SocketError;
pub use packer_process::pack_pages;
pub use peers::{Answerer, AskError, PeerEvent, Peers, PeersSettings, SessionHold};
pub use skein_dataplane::{AcceptorSettings, Addresses, DialerSettings, NetworkProblem, SessionSnapshot, StartError};
pub use tunnel::{Forward, ForwardError, Tunnel, TunnelError, TunnelSettings};

/// Where agents listen unless said otherwise.
pub const DEFAULT_PORT: u16 = 7070;

/// An error with its causes, in a line.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
