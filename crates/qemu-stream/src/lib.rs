//! QEMU's migration stream, connection by connection: parses its bytes, and makes the same bytes again.
//!
//! | module | reads |
//! |---|---|
//! | [`main_channel`] | the main channel, up to the first section that is not `ram` |
//! | [`multifd`] | a multifd channel |
//! | [`barrier`] | which of two records of one page is the newer, by what both modules read |
//!
//! The format is that of QEMU 7.2 to 10.2 for targets with pages of 4 KiB (x86-64). It says nowhere how long the state
//! of a device is, so a parser stops there for good, as it does at anything else that it does not know: what follows is
//! [`main_channel::MainItem::Opaque`] or [`NotUnderstood`], and goes on as it is. Nothing is ever searched for, since a
//! guest decides what its pages contain.
//!
//! What is understood can be made again exactly: [`main_channel::entry`], [`multifd::Canonical`].
//!
//! Absent on purpose: sockets, buffers, the contents of pages, and the return path. Memory is bounded: a parser keeps
//! the list of RAM blocks ([`BLOCKS_MAX`]) or one header.

#![forbid(unsafe_code)]

pub mod barrier;
mod block;
pub mod main_channel;
pub mod multifd;
mod not_understood;
mod take;

pub use block::{BLOCK_NAME_BYTES_MAX, BLOCKS_MAX, OFFSET_END, PAGE_BYTES};
pub use not_understood::NotUnderstood;

/// The kind of a connection of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelKind {
    /// The main channel.
    Main,
    /// A multifd channel.
    Multifd,
    /// Something else: the main channel after postcopy's recovery, postcopy's preempt channel, TLS.
    Other,
}

/// Returns the kind of a connection, from its first four bytes.
pub fn kind(first: [u8; 4]) -> ChannelKind {
    match u32::from_be_bytes(first) {
        main_channel::MAGIC => ChannelKind::Main,
        multifd::MAGIC => ChannelKind::Multifd,
        _ => ChannelKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_told_apart_by_their_first_bytes() {
        assert_eq!(kind(*b"QEVM"), ChannelKind::Main);
        assert_eq!(kind([0x11, 0x22, 0x33, 0x44]), ChannelKind::Multifd);
        assert_eq!(kind([0x16, 3, 1, 2]), ChannelKind::Other);
        assert_eq!(kind([8, 0, 10, 0]), ChannelKind::Other);
    }
}
