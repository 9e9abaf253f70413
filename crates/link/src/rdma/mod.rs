//! Is the link over RDMA: a ring of slots in the other end's memory, which this end writes.
//!
//! A connection begins as one over TCP, by which both ends know each other. [`split`] then exchanges where the rings
//! are, over that connection, and takes the connection apart as [`Pending::split`] does: what is sent from now on is
//! written into the other end's slots, sealed with keys that TLS exports. The connection over TCP stays, says how many
//! slots were written when an end is done, and tells at once when the other end's process is gone.
//!
//! | module | is |
//! |---|---|
//! | `layout` | how many slots there are, and how large |
//! | `set_up` | what the two ends tell each other before |
//! | `messages` | the small messages that slots are given back with |
//! | `sending` | slots of the other end that this end writes. Pure |
//! | `receiving` | slots of this end that the other end writes. Pure |
//! | `ring` | both, with the endpoint: what is done with what completes |
//! | `way` | the connection over TCP, and the last words that go over it |
//! | `halves` | reader, writer and end of a connection |
//!
//! # Invariants
//!
//! - **No order is assumed.** Each slot's content has a number and the position of its messages.
//! - **A slot is written again only when its reader has given it back**, and its write is done.
//! - **The peer never finds this end without a receive**: each message of its uses up a slot that it was given.

mod halves;
mod layout;
mod messages;
mod receiving;
mod ring;
mod sending;
mod set_up;
mod way;

use std::sync::Arc;

use skein_fabric::SharedEndpoint;

use self::halves::take_apart;
use self::layout::SLOT_BYTES;
use crate::link::{Caps, Connection, LinkError, Memory, Pending};

/// Returns what a connection over RDMA promises, from what the connection promises that it began as.
pub(crate) fn caps(began_as: Caps) -> Caps {
    Caps { ordered: false, one_sided: true, memory: Memory::Registered { buffer_bytes: SLOT_BYTES }, ..began_as }
}

/// Takes a connection apart as [`Pending::split`] does, after moving the connection to an endpoint that is not
/// connected yet. The other end has to do the same.
///
/// # Errors
/// One of the ends has no room for the ring, their rails are of different kinds, or the connection failed. The
/// connection is over then.
pub fn split(mut pending: Box<dyn Pending>, endpoint: SharedEndpoint) -> Result<Connection, LinkError> {
    let caps = caps(pending.caps());
    let protection = pending.message_protection()?;
    let (ring, slots) = set_up::exchange(&mut *pending, endpoint)?;
    take_apart(pending.split()?, caps, Arc::new(ring), slots, protection)
}
