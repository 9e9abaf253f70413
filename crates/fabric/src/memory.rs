//! Is memory that NICs read and write, and that processes share.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use parking_lot::Mutex;

/// The size to which buffers are rounded up: that of a huge page of x86-64.
const HUGE_PAGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;

/// A part of a file in memory (memfd, tmpfs, hugetlbfs), which a rail's process maps to register it.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    file: Arc<File>,
    range: Range<u64>,
}

impl SharedMemory {
    /// Returns the part of the file. `None`: the range is empty, or too long for this machine.
    pub fn new(file: Arc<File>, range: Range<u64>) -> Option<SharedMemory> {
        let fits = range.start < range.end && usize::try_from(range.end).is_ok() && i64::try_from(range.end).is_ok();
        fits.then_some(SharedMemory { file, range })
    }

    /// Returns how many bytes these are.
    pub fn bytes(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Returns where in the file the part begins.
    pub(crate) fn offset(&self) -> u64 {
        self.range.start
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Has the system find memory for all of the part, on huge pages where it gives shared memory some
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`). What is there stays as it is.
    ///
    /// # Errors
    /// The system has none, or the file is none in memory.
    pub fn populate(&self) -> io::Result<()> {
        if let Ok(mapping) = Mapping::new(self) {
            mapping.populate_huge();
        }
        let (offset, bytes) = (self.range.start as i64, self.bytes() as i64);
        Ok(fallocate(self.file(), FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, bytes)?)
    }
}

/// Memory that is mapped until this is dropped. Others write to it at any time, so that no reference to it exists.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: the mapping belongs to this alone, and nothing but copies in and out, and NICs, go through it.
unsafe impl Send for Mapping {}
// SAFETY: as above; two copies at once give mixed bytes, and no undefined reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory for reading and writing.
    ///
    /// # Errors
    /// The system does not map it: the range does not begin with a page of the file, or there is no room.
    pub(crate) fn new(memory: &SharedMemory) -> io::Result<Mapping> {
        let bytes = NonZeroUsize::new(memory.bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        let (rights, offset) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, memory.range.start as i64);
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let address = unsafe { mmap(None, bytes, rights, MapFlags::MAP_SHARED, &*memory.file, offset) }?;
        Ok(Mapping { address: address.cast(), bytes })
    }

    /// Returns where the memory begins.
    pub(crate) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Asks for huge pages. A kernel that gives none refuses, which is no harm.
    fn ask_for_huge(&self) {
        // SAFETY: advice about the mapping, which changes no content.
        let _ = unsafe { madvise(self.address.cast(), self.bytes.get(), MmapAdvise::MADV_HUGEPAGE) };
    }

    /// Has the system find memory for a page of each huge one: for all of that if it gives huge ones.
    fn populate_huge(&self) {
        self.ask_for_huge();
        for at in (0..self.bytes.get()).step_by(HUGE_PAGE_BYTES) {
            let bytes = PAGE_BYTES.min(self.bytes.get() - at);
            // SAFETY: `at` lies in the mapping, whose content the advice does not change.
            if unsafe { madvise(self.address.add(at).cast(), bytes, MmapAdvise::MADV_POPULATE_WRITE) }.is_err() {
                return;
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing refers to any more.
        let _ = unsafe { munmap(self.address.cast(), self.bytes.get()) };
    }
}

/// Fresh memory of this process, zeroed, which a rail's process may map as well.
#[derive(Debug)]
pub struct Buffer {
    mapping: Mapping,
    memory: SharedMemory,
}

impl Buffer {
    /// Makes memory of at least so many bytes, on huge pages where the system gives some.
    ///
    /// # Errors
    /// The system has no room for as much, or `bytes` is 0.
    pub fn new(bytes: usize) -> io::Result<Buffer> {
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let file = File::from(memfd_create(c"skein-rail", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(bytes as u64)?;
        let memory = SharedMemory::new(Arc::new(file), 0..bytes as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::new(&memory)?;
        mapping.ask_for_huge();
        Ok(Buffer { mapping, memory })
    }

    /// Returns the memory, to be registered.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.mapping.address()
    }
}

/// Memory in parts of one size, all of which an endpoint registers at once.
#[derive(Debug)]
pub struct Arena {
    buffer: Buffer,
    part_bytes: usize,
    /// Where the parts that nobody has begin, the first of all last.
    free: Mutex<Vec<usize>>,
}

/// A part of an arena, to which nothing else at this end refers. What was begun with the part is to be done, or to be
/// of no account, when this is dropped.
#[derive(Debug)]
pub struct ArenaPart {
    arena: Arc<Arena>,
    begin: usize,
}

impl Arena {
    /// Makes so many parts.
    ///
    /// # Errors
    /// The system has no room for as much, or there would be nothing.
    pub fn new(parts: usize, part_bytes: usize) -> io::Result<Arc<Arena>> {
        let buffer = Buffer::new(parts.saturating_mul(part_bytes))?;
        let free = Mutex::new((0..parts).rev().map(|part| part * part_bytes).collect());
        Ok(Arc::new(Arena { buffer, part_bytes, free }))
    }

    /// Returns the memory, to be registered.
    pub fn memory(&self) -> &SharedMemory {
        self.buffer.memory()
    }

    /// Returns a part with any content: of a new arena one after the other. `None`: all are in use.
    pub fn take(self: &Arc<Self>) -> Option<ArenaPart> {
        let begin = self.free.lock().pop()?;
        Some(ArenaPart { arena: self.clone(), begin })
    }

    /// Returns which bytes of the arena these are. `None`: they are elsewhere.
    pub fn range_of(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let begin = bytes.as_ptr().addr().checked_sub(self.buffer.address().addr())?;
        let end = begin.checked_add(bytes.len())?;
        (end <= self.memory().bytes()).then_some(begin..end)
    }
}

impl ArenaPart {
    /// Returns which bytes of the arena these are.
    pub fn range(&self) -> Range<usize> {
        self.begin..self.begin + self.arena.part_bytes
    }

    /// Returns the bytes. From a peer that breaks the protocol, bytes may come that change meanwhile.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the part lies within the buffer, which is mapped for as long as this lives, and no other part has
        // these bytes. A peer that breaks the protocol can change them; they are only copied, or opened under a tag.
        unsafe { std::slice::from_raw_parts(self.arena.buffer.address().add(self.begin), self.arena.part_bytes) }
    }

    /// Returns the bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.arena.buffer.address().add(self.begin), self.arena.part_bytes) }
    }
}

impl Drop for ArenaPart {
    fn drop(&mut self) {
        self.arena.free.lock().push(self.begin);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn the_parts_of_an_arena_are_each_somebodys_alone_and_come_back() {
        let arena = Arena::new(3, 5000).unwrap();
        let mut parts: Vec<ArenaPart> = std::iter::from_fn(|| arena.take()).collect();
        assert_eq!(parts.len(), 3);
        parts.iter_mut().enumerate().for_each(|(nth, part)| part.bytes_mut().fill(nth as u8));
        for (nth, part) in parts.iter().enumerate() {
            assert!(part.bytes().iter().all(|byte| *byte == nth as u8));
            let range = arena.range_of(&part.bytes()[10..20]).unwrap();
            assert_eq!((range.start % 5000, range.len()), (10, 10));
        }
        assert_eq!(arena.range_of(&[0; 10]), None);
        drop(parts.pop());
        assert!(arena.take().is_some());
    }

    #[test]
    fn populated_memory_has_what_it_had_and_all_of_it_is_there() {
        let file = File::from(memfd_create(c"populated", MFdFlags::MFD_CLOEXEC).unwrap());
        let bytes = (2 * HUGE_PAGE_BYTES + PAGE_BYTES) as u64;
        file.set_len(bytes).unwrap();
        file.write_all_at(b"there", 100).unwrap();
        let memory = SharedMemory::new(Arc::new(file.try_clone().unwrap()), 0..bytes).unwrap();
        memory.populate().unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 >= bytes);
        let mut found = [0; 7];
        file.read_exact_at(&mut found, 99).unwrap();
        assert_eq!(&found, b"\0there\0");
        let null = Arc::new(File::open("/dev/null").unwrap());
        assert!(SharedMemory::new(null, 0..4096).unwrap().populate().is_err());
    }
}
