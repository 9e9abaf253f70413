//! Says how many slots a connection has, and how large they are.

use skein_fabric::Slot;

/// How many slots a connection has in each direction.
pub(super) const SLOTS: u16 = 64;
/// The size of a slot, in bytes. A chunk of a session fits, with what sealing adds.
pub(super) const SLOT_BYTES: usize = 272 << 10;

/// The memory of a connection's two rings.
pub(super) struct RingSlots {
    /// Where what is sent is put together: one for each slot of the other end.
    pub(super) outgoing: Vec<Slot>,
    /// What the other end writes.
    pub(super) incoming: Vec<Slot>,
}
