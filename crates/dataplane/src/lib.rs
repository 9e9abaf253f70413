//! Is the data plane: plain threads that join unix sockets, the session core and the links.
//!
//! A [`RunningSession`] is one `skein_session::Session` behind a lock, and the threads around it:
//!
//! | thread | does |
//! |---|---|
//! | ingest, one a stream | reads the unix socket, hands buffers to the session |
//! | sender, one a connection | pulls what to send from the session, writes it |
//! | receiver, one a connection | reads frames, hands them to the session |
//! | egress, one a stream | takes bytes in order from the session, writes the unix socket |
//! | clock, one a session | tells the session the time |
//!
//! The lock is held for decisions only: never while a socket is read or written or a byte is copied. [`Dialer`] makes
//! and remakes the connections of a session from one end, [`Acceptor`] takes them at the other.
//!
//! # Invariants
//!
//! - **The lock is for decisions**: no thread holds it while it reads or writes a socket or copies a byte.
//! - **An agent that writes a block's pages leaves none of that block to QEMU**, zeros neither. From machine type 9.0
//!   on QEMU would skip the first zero record of a page that it did not receive itself. Test:
//!   `pages_are_written_into_the_ram_and_qemu_gets_the_rest`.
//! - **What is not understood is never guessed.** Before the first page is written a stream becomes an opaque pipe for
//!   good; after that the migration goes back to its source. Tests:
//!   `a_block_whose_pages_have_no_numbers_is_left_alone`,
//!   `what_is_understood_too_late_for_direct_placement_goes_through_qemu_the_next_time`.
//! - **Streams wait at each barrier** until the target has written what was before the barrier before, where the paths
//!   hold many pages as deltas. Test: `all_streams_have_passed_all_barriers_or_it_is_waited_for_them`.
//! - **The target is never probed**, and is connected in the order of the source's connections. Test:
//!   `connections_reach_the_target_in_their_order`.

#![forbid(unsafe_code)]

mod acceptor;
mod addresses;
mod clock;
mod connection;
mod decode;
mod dialer;
mod egress;
mod error_chain;
mod excluded;
#[cfg(feature = "fault-points")]
pub mod fault_points;
mod find_ram;
mod flow;
mod handshake;
mod host_nics;
mod ingest;
mod kept_ram;
mod local_end;
mod network_problem;
#[cfg(test)]
mod over_fake;
mod packet_survey;
mod path_connections;
mod path_mtu;
mod path_state;
mod pool;
mod rail_paths;
mod rail_pause;
mod rail_use;
#[cfg(test)]
mod rails_tests;
mod running_session;
pub mod source;
mod stream;
pub mod target;

pub use acceptor::{Acceptor, AcceptorSettings};
pub use addresses::Addresses;
pub use dialer::{DialedPath, Dialer, DialerSettings, StartError};
pub use error_chain::error_chain;
pub use excluded::ExcludedBy;
pub use find_ram::{FindRam, RamNotFound};
pub use flow::{Flow, FlowInput};
pub use kept_ram::{KeptMarks, KeptRam, RamIsPrivate};
pub use local_end::{LocalEnd, OnReset};
pub use network_problem::{NetworkProblem, UnusedNic};
pub use packet_survey::PathSurvey;
pub use rail_use::RailsHeldOff;
pub use running_session::{IncomingStream, PathInfo, PathSnapshot, RunningSession, SessionSnapshot};
pub use skein_fabric::{HostRails, Rails, rail_of, serve_rail};
pub use skein_link::TrafficClass;
pub use skein_session::address::{Network, NicAddress};
pub use skein_session::pairs::{is_routable, is_same_network};
pub use skein_session::path_use::PathUse;
pub use skein_session::{Ended, OpenError, PathId, PathStatus, StreamId, Width};
pub use stream::{JoinError, StreamContent};

/// The reason why a stream was torn down, as a number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ResetCode {
    /// The local socket broke: its program closed the socket or died.
    SocketClosed = 1,
    /// The destination cannot be connected to.
    NoDestination = 2,
    /// The destination is not allowed.
    NotAllowed = 3,
    /// There is too much at once.
    Busy = 4,
    /// What the stream carries makes no sense, or cannot be dealt with.
    Unsound = 5,
    /// The end that opened the stream needs no more of it.
    Done = 6,
}
