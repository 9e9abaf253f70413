//! A RAM block as its users know it: memory that others write to as well, or a fake of it in tests.

use std::fs::File;
use std::io;
use std::ops::Range;

/// A RAM block of a guest, whose bytes are copied in and out.
///
/// Offsets are bytes from the block's beginning. Several threads may use a block at once; if they write to the same
/// bytes, each word comes from one of the threads. Accesses are not ordered: a reader, QEMU included, has to learn
/// through a lock or a socket that the bytes are there.
pub trait Ram: Send + Sync {
    /// Returns the block's size in bytes.
    fn bytes(&self) -> u64;

    /// Returns whether the bytes stay when QEMU ends.
    fn outlives_qemu(&self) -> bool {
        true
    }

    /// Returns the file in memory that the block is, and its range of that. `None`: the memory is the process's own.
    fn file(&self) -> Option<(&File, Range<u64>)> {
        None
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// The bytes are not in the block, or there is no memory for them.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError>;

    /// Makes `bytes` bytes at `offset` zero. Bytes that are zero already are not written to, so that they take no
    /// memory.
    ///
    /// # Errors
    /// As of [`Self::write`], and of [`Self::read`].
    fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError>;

    /// Returns whether `bytes` bytes at `offset` are zero. Takes no memory for them.
    ///
    /// # Errors
    /// As of [`Self::read`].
    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError>;

    /// Reads the bytes at `offset`. Takes no memory for them.
    ///
    /// # Errors
    /// The bytes are not in the block, or cannot be read.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError>;

    /// Reads the bytes that QEMU has at `offset` of the block in its own memory. They are the same bytes, if the block
    /// was found where QEMU has it. Takes memory for bytes that have none, as any access by QEMU does.
    ///
    /// # Errors
    /// The bytes are not in the block, or QEMU's memory cannot be read.
    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError>;
}

/// Returns the end of `bytes` bytes at `offset`, if all of them are in a block of `block_bytes` bytes.
pub(crate) fn check_bounds(offset: u64, bytes: u64, block_bytes: u64) -> Result<u64, AccessError> {
    let end = offset.checked_add(bytes).filter(|&end| end <= block_bytes);
    end.ok_or(AccessError::OutOfBounds { offset, bytes, block_bytes })
}

/// Why bytes cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The bytes are not all in the block.
    #[error("{bytes} bytes at {offset} are not within a block of {block_bytes} bytes")]
    OutOfBounds {
        /// The first byte.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// The block's size in bytes.
        block_bytes: u64,
    },
    /// There is no memory for the bytes: the tmpfs is full, no huge page is left, or the cgroup's limit is reached.
    #[error("no memory for the guest's RAM at {offset}")]
    NoMemory {
        /// The first byte of the range.
        offset: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file has become shorter than it was when it was opened.
    #[error("the file of the guest's RAM has shrunk to {bytes} bytes")]
    Shrunk {
        /// The file's size now.
        bytes: u64,
    },
    /// The file cannot be read.
    #[error("reading the file of the guest's RAM")]
    File(#[source] io::Error),
    /// The kernel does not reach a page of QEMU's own memory.
    #[error(
        "the guest's RAM at {address:#x} of process {pid} is not reached: QEMU has unmapped or protected it, or the \
         kernel has no memory for it"
    )]
    NotReached {
        /// QEMU's process.
        pid: u32,
        /// The address in its memory.
        address: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// QEMU's own memory cannot be read or written.
    #[error("reaching the guest's RAM in the memory of process {pid}")]
    Process {
        /// QEMU's process.
        pid: u32,
        /// The reason: the process has ended, or this process may not read its memory.
        source: io::Error,
    },
}
