//! Why a parser stops.

/// Why bytes were not understood: they are not QEMU's, are damaged, or are from a QEMU that is not known yet.
/// Everything that follows on the connection is opaque.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    /// The magic number or the version is not that of the channel.
    #[error("magic {magic:#010x} and version {version} are not those of this channel")]
    Format {
        /// The first word.
        magic: u32,
        /// The second word.
        version: u32,
    },
    /// No record begins with this byte, or none may begin here.
    #[error("no record of type {0:#04x} belongs here")]
    Record(u8),
    /// The `configuration` contains something unknown.
    #[error("the configuration has {0:?}, which is not known")]
    Configuration(String),
    /// A command has a payload of an unexpected length.
    #[error("command {command} has {bytes} bytes")]
    Command {
        /// The command's number.
        command: u16,
        /// The length of its payload in bytes.
        bytes: u16,
    },
    /// A second `ram`, one of another version, or one that continues without a beginning.
    #[error("section {0} of `ram` does not belong here")]
    RamSection(u32),
    /// The list of RAM blocks is not valid.
    #[error("a RAM block {what}")]
    Block {
        /// What is wrong with the block.
        what: &'static str,
    },
    /// A word of `ram` is unknown, or does not belong here.
    #[error("no entry of `ram` begins with {0:#x} here")]
    Word(u64),
    /// The page is in no block.
    #[error("a page of no RAM block")]
    Page,
    /// What follows the word of an entry is not a page.
    #[error("{0} is no page")]
    Encoding(&'static str),
    /// The flags of a packet are unknown.
    #[error("packets with the flags {0:#x} are not known")]
    Flags(u32),
    /// Numbers in the header of a packet are too large, or contradict each other.
    #[error("a packet {what}")]
    Packet {
        /// What is wrong with the packet.
        what: &'static str,
    },
}
