//! A RAM block as its users know it: memory that others write to as well, or a fake of it in tests.

use std::io;

/// A RAM block of a guest, of which bytes are copied in and out.
///
/// Offsets are bytes from the block's begin. Several threads may use a block at once; where they write to the same
/// bytes, each word of them is one thread's or another's. Accesses are not ordered: the reader of what was written,
/// QEMU too, has to learn through a lock or a socket that it is there.
pub trait Ram: Send + Sync {
    /// Returns the block's size.
    fn bytes(&self) -> u64;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// The bytes are not in the block, or there is no memory for them.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError>;

    /// Makes `bytes` at `offset` zero. What is zero already is not written to, so that it takes no memory.
    ///
    /// # Errors
    /// As of [`Self::write`], and of [`Self::read`].
    fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError>;

    /// Returns whether `bytes` at `offset` are zero. Takes no memory for them.
    ///
    /// # Errors
    /// As of [`Self::read`].
    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError>;

    /// Reads what is at `offset`. Takes no memory for it.
    ///
    /// # Errors
    /// The bytes are not in the block, or cannot be read.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError>;

    /// Reads what QEMU has at `offset` of the block in its own memory: the same bytes, if the block is found where QEMU
    /// has it. Takes memory for bytes that have none, as any access by QEMU.
    ///
    /// # Errors
    /// The bytes are not in the block, or QEMU's memory cannot be read.
    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError>;
}

/// Why bytes cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// They are not all in the block.
    #[error("{bytes} bytes at {offset} are not within a block of {block_bytes} bytes")]
    OutOfBounds {
        /// The first byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The block's size.
        block_bytes: u64,
    },
    /// There is no memory for them: the tmpfs is full, or no huge page is left, or the cgroup may not have more.
    #[error("no memory for the guest's RAM at {offset}")]
    NoMemory {
        /// The first byte of the range.
        offset: u64,
        /// What the kernel says.
        source: io::Error,
    },
    /// The file has become shorter than it was when it was opened.
    #[error("the file of the guest's RAM has shrunk to {bytes} bytes")]
    Shrunk {
        /// Its size now.
        bytes: u64,
    },
    /// The file cannot be read.
    #[error("reading the file of the guest's RAM")]
    File(#[source] io::Error),
    /// QEMU's own memory cannot be read.
    #[error("reading the guest's RAM in the memory of process {pid}")]
    Process {
        /// QEMU.
        pid: u32,
        /// Why: it has ended, or this process may not look into it.
        source: io::Error,
    },
}
