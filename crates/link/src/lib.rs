//! Joins two hosts: links, and what a connection between hosts promises.
//!
//! A [`Link`] dials, [`Listeners`] accept. Both give a [`Pending`] (blocking, with a deadline, for the handshake). A
//! pending connection is then [split](Pending::split) into a [`Reader`] and a [`Writer`] that two threads use without
//! sharing anything. [`Caps`] say what a link promises.
//!
//! | module | is |
//! |---|---|
//! | [`tcp`] | TCP on one NIC at each end, under TLS and without. Under TLS the split hands rustls' own record protection to the halves, see [`tls_record`] |
//! | `fake` | a network in memory, for tests (feature `fake`) |
//!
//! Absent on purpose: frames, sessions, paths. This crate moves messages.
//!
//! # Invariants
//!
//! - **Sockets are bound to address and device**, listeners too. Linux would otherwise let two NICs of one subnet share
//!   a network link. Tests: `connects_from_the_loopback_address`, `two_nics_of_one_subnet_are_filled`.
//! - **All links keep one contract**, which one set of tests asks of each of them (`contract_tests.rs`).

#![forbid(unsafe_code)]

#[cfg(test)]
mod contract_tests;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod link;
mod listen;
mod pieces;
pub mod rdma;
pub mod tcp;
pub mod tls_record;

pub use link::{
    BufferSource, Caps, Connection, Dial, DialError, Link, LinkEnd, LinkError, LocalAddress, Memory, Message,
    PacketProbe, Pending, Position, Reader, Shutdown, TrafficClass, Writer,
};
pub use listen::{Incoming, ListenError, Listeners, ListeningNic, Security};
pub use pieces::{Patience, send_pieces};
pub use tcp::{PACKET_BYTES_MIN, TcpLink, TcpListeners, TlsLink};
