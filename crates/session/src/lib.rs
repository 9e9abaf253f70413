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
//! | [`frame`] | the bytes on a connection |
//! | [`handshake`] | what two ends tell each other first |
//! | [`reassembly`] | in-order bytes out of chunks in any order |
//! | [`pairs`] | which addresses make a path |
//! | [`path`] | how fast a path is and how much may be on the way on it |
//! | [`stream`] | one stream's two halves: unsent, lost, acknowledged; received, delivered |
//! | [`session`] | who sends what next, what is lost, what is dead |

#![forbid(unsafe_code)]

pub mod frame;
pub mod handshake;
mod ids;
pub mod limits;
pub mod pairs;
pub mod path;
mod ranges;
pub mod reassembly;
pub mod session;
pub mod stream;

pub use ids::{ConnectionId, PathId, SessionId, StreamId};
pub use session::{ConnectionKind, Event, Received, Role, Session, Settings, Transmit};
pub use stream::Width;
