//! Transports: one TCP connection on one path, plain or under TLS.
//!
//! A connection begins as a [`PendingConnection`] (blocking, with a deadline, for the handshake) and is then
//! [split](PendingConnection::split) into a [`Reader`] and a [`Writer`] that two threads use without sharing
//! anything. Under TLS the split hands rustls' own record protection to the halves, see [`tls_record`].
//!
//! Absent on purpose: frames, sessions, paths. This crate moves bytes.
//!
//! # Invariants
//!
//! - **Sockets are bound to address and device**, listeners too. Linux would otherwise let two NICs of one subnet
//!   share a link. Tests: `connects_from_the_loopback_address`, `two_nics_of_one_subnet_are_filled`.

#![forbid(unsafe_code)]

mod halves;
mod passage;
mod pending_connection;
mod pieces;
mod tcp;
pub mod tls_record;

pub use halves::{Reader, Shutdown, Writer};
pub use passage::{PacketProbe, probe, segment_bytes};
pub use pending_connection::{LinkError, PendingConnection};
pub use pieces::{Patience, send_pieces};
pub use tcp::{DialError, ListenError, Listener, LocalAddress, PACKET_BYTES_MIN, dial};
