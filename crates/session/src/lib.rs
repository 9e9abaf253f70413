//! The session core: everything about moving ordered streams over many connections that can be
//! decided without touching one.
//!
//! A [`Session`] joins two ends. Either end opens [streams](StreamId) (ordered, two-way, half-closable);
//! their bytes are cut into chunks and travel over any number of connections on any number of paths.
//! The caller owns sockets and threads: it hands in what happened (`handle_*`, with the time as an
//! argument) and pulls what to send ([`Session::poll_transmit`]) and what to do ([`Session::poll_event`]).
//!
//! Absent on purpose: sockets, threads, clocks, randomness, interface names, file names, TLS.
//!
//! | module | decides |
//! |---|---|
//! | [`address`] | where an end can be reached |
//! | [`frame`] | the bytes on a connection |
//! | [`handshake`] | what two ends tell each other first |
//! | [`reassembly`] | in-order bytes out of chunks in any order |
//! | [`pairs`] | which addresses make a path |
//! | [`path`] | how fast a path is and how much may be on the way on it |
//! | [`rate`] | how fast the senders of a host may hand over bytes |
//! | [`stream`] | one stream's two halves: unsent, lost, acknowledged; received, delivered |
//! | [`Session`] | who sends what next, what is lost, what is dead |
//!
//! # Invariants
//!
//! - **Nothing is freed on a promise.** A connection keeps every frame but pings and acknowledgements until the peer
//!   has acknowledged the connection's bytes up to the frame's end. A connection that ends or stalls gives back what
//!   it holds. Test: `an_acknowledgement_frees_what_it_says`.
//! - **Chunks are cut once.** A chunk that goes again goes as it was; the receiver drops what it has. Test:
//!   `what_goes_again_gives_no_credit`.
//! - **Each stream has its own window.** With a common window multifd's barrier deadlocks: the main channel waits
//!   behind channels that the target does not read until the main channel advances. Test:
//!   `every_stream_comes_out_whole_whatever_happens`.
//! - **What the paths hold bounds what is on the way**, not memory. QEMU decides when to switch over from how fast its
//!   socket takes bytes, so parked bytes would become downtime. Test:
//!   `a_confined_stream_leaves_the_other_paths_alone`.
//! - **A path lives and dies with its control connection**, which never carries bulk. Small frames go over two paths
//!   at once. Test: `a_path_without_a_control_connection_is_closed`.

#![forbid(unsafe_code)]

pub mod address;
pub mod frame;
pub mod handshake;
mod ids;
pub mod limits;
pub mod pairs;
pub mod path;
pub mod path_use;
mod ranges;
pub mod rate;
pub mod reassembly;
mod session;
pub mod stream;

pub use ids::{ConnectionId, ConnectionKind, PathId, Role, SessionId, StreamId};
pub use session::{
    ConnectionEnd, Ended, Event, Footprint, OpenError, PathStatus, ProtocolError, Received, Session, Settings, Status,
    Transmit,
};
pub use stream::Width;
