//! Is memory that NICs read and write.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size to which buffers are rounded up: that of a huge page of x86-64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory that stays where it is for as long as this lives.
///
/// # Safety
/// `bytes()` bytes from `address()` on are mapped, may be read and written, and no reference to them exists, because
/// the peer's NIC writes them at any time.
pub unsafe trait Memory: Send + Sync {
    /// Returns where the memory begins.
    fn address(&self) -> NonNull<u8>;

    /// Returns how many bytes the memory has.
    fn bytes(&self) -> usize;
}

/// Memory of this process alone, zeroed, on huge pages where the system has some.
#[derive(Debug)]
pub struct Buffer {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the buffer alone, and nothing but copies in and out goes through it.
unsafe impl Send for Buffer {}
// SAFETY: as above; two copies at once give mixed bytes, and no undefined reference.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps memory of at least so many bytes.
    ///
    /// # Errors
    /// The system has no room for as much, or `bytes` is 0.
    pub fn new(bytes: usize) -> std::io::Result<Buffer> {
        let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).and_then(NonZeroUsize::new).ok_or_else(invalid)?;
        let (rights, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let address = unsafe { mmap_anonymous(None, bytes, rights, flags) }?;
        // SAFETY: advice about the mapping that was just made. A kernel without huge pages refuses, which is no harm.
        let _ = unsafe { madvise(address, bytes.get(), MmapAdvise::MADV_HUGEPAGE) };
        Ok(Buffer { address: address.cast(), bytes: bytes.get() })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing refers to any more.
        let _ = unsafe { munmap(self.address.cast(), self.bytes) };
    }
}

// SAFETY: mapped in `new` until dropped, readable and writable; no reference to it is ever made.
unsafe impl Memory for Buffer {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
