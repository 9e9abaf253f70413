//! Transports: one TCP connection on one path, plain or under TLS.
//!
//! A connection begins as a [`Channel`] (blocking, with a deadline, for the handshake) and is then
//! [split](Channel::split) into a [`Reader`] and a [`Writer`] that two threads use without sharing
//! anything. Under TLS the split hands rustls' own record protection to the halves, see [`record`].
//!
//! Absent on purpose: frames, sessions, paths. This crate moves bytes.

#![forbid(unsafe_code)]

mod channel;
mod halves;
mod passage;
mod pieces;
pub mod record;
mod tcp;

pub use channel::{Channel, LinkError};
pub use halves::{Reader, Shutdown, Writer};
pub use passage::{Passage, probe, segment_bytes};
pub use pieces::send_pieces;
pub use tcp::{DialError, From, ListenError, Listener, PACKET_BYTES_MIN, dial};
