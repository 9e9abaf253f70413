//! QEMU's migration stream, connection by connection: what its bytes are, and the same bytes made again.
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
#![allow(special_module_name, reason = "`main` is QEMU's name of the channel, and main/mod.rs is no program")]

pub mod barrier;
pub mod main_channel;
pub mod multifd;
mod take;

/// Bytes of a page. Streams with pages of other sizes are not understood.
pub const PAGE_BYTES: usize = 4096;
/// The longest name of a RAM block: its length is one byte on the main channel, and a NUL follows it in the 256 of a
/// multifd packet.
pub const BLOCK_NAME_BYTES_MAX: usize = 255;
/// The most RAM blocks. A machine has some twenty, and one for each memory device, of which QEMU takes 256.
pub const BLOCKS_MAX: usize = 4096;
/// Where offsets in a RAM block end: no guest has more than the 52 bits of x86-64's physical addresses.
pub const OFFSET_END: u64 = 1 << 52;

/// What a connection of a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelKind {
    /// The main channel.
    Main,
    /// A multifd channel.
    Multifd,
    /// Something else: the main channel after postcopy's recovery, postcopy's preempt channel, TLS.
    Other,
}

/// What a connection is, by its first four bytes.
pub fn kind(first: [u8; 4]) -> ChannelKind {
    match u32::from_be_bytes(first) {
        main_channel::MAGIC => ChannelKind::Main,
        multifd::MAGIC => ChannelKind::Multifd,
        _ => ChannelKind::Other,
    }
}

/// Why bytes were not understood: not QEMU's, damaged, or of a QEMU that is not known yet. All that follows on the
/// connection is opaque.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    /// Another magic number or version than that of the channel.
    #[error("magic {magic:#010x} and version {version} are not those of this channel")]
    Format {
        /// The first word.
        magic: u32,
        /// The second.
        version: u32,
    },
    /// A byte that begins no record, or not here.
    #[error("no record of type {0:#04x} belongs here")]
    Record(u8),
    /// A `configuration` that says what is not known.
    #[error("the configuration has {0:?}, which is not known")]
    Configuration(String),
    /// A command with a payload of another length than it has.
    #[error("command {command} has {bytes} bytes")]
    Command {
        /// Its number.
        command: u16,
        /// Of its payload.
        bytes: u16,
    },
    /// A second `ram`, one of another version, or one that goes on without having begun.
    #[error("section {0} of `ram` does not belong here")]
    RamSection(u32),
    /// The list of RAM blocks is none.
    #[error("a RAM block {what}")]
    Block {
        /// What about it.
        what: &'static str,
    },
    /// A word of `ram` that is none, or does not belong here.
    #[error("no entry of `ram` begins with {0:#x} here")]
    Word(u64),
    /// A page that no block has.
    #[error("a page of no RAM block")]
    Page,
    /// What follows the word of an entry is no page.
    #[error("{0} is no page")]
    Encoding(&'static str),
    /// Flags of a packet that are not known.
    #[error("packets with the flags {0:#x} are not known")]
    Flags(u32),
    /// Numbers in the header of a packet that are too large, or do not go together.
    #[error("a packet {what}")]
    Packet {
        /// What about it.
        what: &'static str,
    },
}

/// A name of a RAM block, if it is one.
fn block_name(bytes: &[u8]) -> Option<&str> {
    let is_name = !bytes.is_empty() && bytes.len() <= BLOCK_NAME_BYTES_MAX && !bytes.contains(&0);
    is_name.then_some(bytes).and_then(|bytes| std::str::from_utf8(bytes).ok())
}

/// Whether a page of some block may begin there.
fn is_page(offset: u64) -> bool {
    offset.is_multiple_of(PAGE_BYTES as u64) && offset < OFFSET_END
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
