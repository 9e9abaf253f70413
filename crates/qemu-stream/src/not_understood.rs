//! Why a parser stops.

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
