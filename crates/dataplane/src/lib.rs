//! The data plane: plain threads that join unix sockets, the session core and the links.
//!
//! A [`RunningSession`] session is one `skein_session::Session` behind a lock, and the threads around it:
//!
//! | thread | does |
//! |---|---|
//! | ingest, one a stream | reads the unix socket, hands buffers to the session |
//! | sender, one a connection | pulls what to send from the session, writes it |
//! | receiver, one a connection | reads frames, hands them to the session |
//! | egress, one a stream | takes bytes in order from the session, writes the unix socket |
//! | keeper, one a session | tells the session the time |
//!
//! The lock is held for decisions only: never while a socket is read or written or a byte is copied.
//! [`Dialer`] makes and remakes the connections of a session from one end, [`Acceptor`] takes them at the
//! other.

#![forbid(unsafe_code)]

mod acceptor;
mod addresses;
mod connection;
mod dialer;
#[cfg(feature = "fault-points")]
pub mod fault_points;
mod handshake;
mod kept_ram;
mod network_problem;
mod path_mtu;
mod pool;
mod running_session;
pub mod source;
mod stream;
pub mod target;

pub use acceptor::{Acceptor, AcceptorSettings};
pub use addresses::{Addresses, keep_arp_apart};
pub use dialer::{Dialer, DialerSettings, StartError};
pub use kept_ram::{KeptMarks, KeptRam};
pub use network_problem::{NetworkProblem, UnusedNic};
pub use running_session::{
    IncomingStream, JoinError, PathInfo, PathSnapshot, RunningSession, SessionSnapshot, StreamContent,
};
pub use skein_session::session::OpenError;
pub use skein_session::{StreamId, Width};

/// Why a stream was torn down, as a number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ResetCode {
    /// The local socket broke: its program closed it or died.
    SocketClosed = 1,
    /// The target cannot be connected to.
    NoDestination = 2,
    /// The target is not allowed.
    NotAllowed = 3,
    /// Too much at once.
    Busy = 4,
    /// What the stream carries makes no sense, or cannot be dealt with.
    Unsound = 5,
}
