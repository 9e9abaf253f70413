//! A block's memory, mapped.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::unistd::{Whence, lseek};

use crate::mapping::Mapping;
use crate::touched::Touched;
use crate::words;

/// What is looked at at once to see whether it is zero: fits a core's cache.
const LOOK_BYTES: usize = 64 << 10;
/// The grain in which zeros are written: a guest's page.
const ZEROS: [u8; 4096] = [0; 4096];

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
    /// The file has become shorter than it was when it was mapped.
    #[error("the file of the guest's RAM has shrunk to {bytes} bytes")]
    Shrunk {
        /// Its size now.
        bytes: u64,
    },
    /// The file cannot be read.
    #[error("reading the file of the guest's RAM")]
    File(#[source] io::Error),
}

/// The memory of one block of a QEMU process, which that process and its guest go on using. Unmapped when dropped.
///
/// Offsets are bytes from the block's begin. Several threads may use it at once; where they write to the same bytes, each
/// word of them is one thread's or another's. Accesses are not ordered: tell whoever is to read what was written, QEMU too,
/// through a lock or a socket.
///
/// The first write to a page has the kernel find memory for it ([`Mapped::populate`]); as much as is written, no more.
#[derive(Debug)]
pub struct Mapped {
    mapping: Mapping,
    file: File,
    /// The block in the file.
    extent: Range<u64>,
    page_bytes: u64,
    /// Of the pages of the mapping, those for which there is memory, as far as this process has seen to it.
    touched: Touched,
}

impl Mapped {
    /// `extent` of `file` begins with a page of the file's; the file has the whole of its last page.
    pub(crate) fn new(file: File, extent: Range<u64>, page_bytes: u64) -> io::Result<Self> {
        let pages = (extent.end - extent.start).div_ceil(page_bytes);
        let bytes = usize::try_from(pages * page_bytes).map_err(|_| Errno::ENOMEM)?;
        let mapping = Mapping::shared(&file, extent.start, bytes)?;
        Ok(Self { mapping, file, extent, page_bytes, touched: Touched::new(pages as usize) })
    }

    /// The block's size.
    pub fn bytes(&self) -> u64 {
        self.extent.end - self.extent.start
    }

    /// The size of the pages that the file is made of: 4096, or that of huge pages of hugetlbfs. The kernel may put
    /// transparent huge pages under the former.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Whether somebody may make the file shorter, and kill this process with that: it has no seal against it. See the
    /// crate's documentation.
    pub fn can_shrink(&self) -> bool {
        !fcntl(&self.file, FcntlArg::F_GET_SEALS)
            .is_ok_and(|seals| SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK))
    }

    /// Writes `data` at `offset`.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.populate(offset, data.len() as u64)?;
        words::store(self.mapping.words(), offset as usize, data);
        Ok(())
    }

    /// Makes `bytes` at `offset` zero. What is zero already is not written to: a hole stays one.
    pub fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        self.look(offset, bytes, |at, seen| {
            for (number, page) in seen.chunks(ZEROS.len()).enumerate() {
                let zeros = &ZEROS[..page.len()];
                if page != zeros {
                    self.write(at + (number * ZEROS.len()) as u64, zeros)?;
                }
            }
            Ok(true)
        })?;
        Ok(())
    }

    /// Reads what is at `offset`. A hole stays one.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let pages = self.pages(offset, out.len() as u64)?;
        if !self.touched.all(pages) {
            // Touching a hole, if only to read it, would take memory for it.
            return self.read_by_file(offset, out);
        }
        words::load(self.mapping.words(), offset as usize, out);
        Ok(())
    }

    /// Whether `bytes` at `offset` are zero.
    pub fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        self.look(offset, bytes, |_, seen| Ok(seen.chunks(ZEROS.len()).all(|page| page == &ZEROS[..page.len()])))
    }

    /// Has the kernel find memory for the pages that have `bytes` at `offset`, unless this was done before. Writes do this
    /// for themselves; ahead of them it is for who wants to know that there is memory for all.
    pub fn populate(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        let pages = self.pages(offset, bytes)?;
        if self.touched.all(pages.clone()) {
            return Ok(());
        }
        let page_bytes = self.page_bytes as usize;
        match self.mapping.populate(pages.start * page_bytes..pages.end * page_bytes) {
            Ok(()) => {
                self.touched.set(pages);
                Ok(())
            }
            Err(errno) => {
                let end = self.extent.start + (pages.end * page_bytes) as u64;
                match self.file.metadata() {
                    Ok(file) if file.len() < end => Err(AccessError::Shrunk { bytes: file.len() }),
                    _ => {
                        // EFAULT is for what would have been SIGBUS (madvise(2)).
                        let errno = if errno == Errno::EFAULT { Errno::ENOSPC } else { errno };
                        Err(AccessError::NoMemory { offset, source: errno.into() })
                    }
                }
            }
        }
    }

    /// Lets the kernel put transparent huge pages under what is populated from now on, where it does that for shared memory
    /// on advice (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`); else this does nothing. Populating is then three
    /// times faster, but takes 2 MiB where a single page is written.
    pub fn advise_huge(&self) {
        // Refused by a kernel without them, and for what is huge already.
        let _ = self.mapping.advise_huge();
    }

    /// The parts for which there is memory, in order; all else is zero. Of huge pages of hugetlbfs, all.
    pub fn data_extents(&self) -> io::Result<Vec<Range<u64>>> {
        let seek = |from: u64, whence| match lseek(&self.file, from as i64, whence) {
            Ok(at) => Ok((at as u64).min(self.extent.end)),
            // There is no data up to the end.
            Err(Errno::ENXIO) => Ok(self.extent.end),
            Err(errno) => Err(io::Error::from(errno)),
        };
        let mut extents = Vec::new();
        let mut at = self.extent.start;
        loop {
            let begin = seek(at, Whence::SeekData)?;
            if begin >= self.extent.end {
                return Ok(extents);
            }
            at = seek(begin, Whence::SeekHole)?;
            extents.push(begin - self.extent.start..at - self.extent.start);
        }
    }

    /// Reads what is at `offset` from the file, not from the mapping: another way to the same bytes, for verification.
    pub fn read_by_file(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.pages(offset, out.len() as u64)?;
        self.file.read_exact_at(out, self.extent.start + offset).map_err(|error| {
            match (error.kind(), self.file.metadata()) {
                (io::ErrorKind::UnexpectedEof, Ok(file)) => AccessError::Shrunk { bytes: file.len() },
                _ => AccessError::File(error),
            }
        })
    }

    /// Shows `bytes` at `offset` to `see`, piece after piece, each with its offset, until it says no. Whether it never did.
    fn look(
        &self,
        offset: u64,
        bytes: u64,
        see: impl Fn(u64, &[u8]) -> Result<bool, AccessError>,
    ) -> Result<bool, AccessError> {
        self.pages(offset, bytes)?;
        let mut buffer = [0; LOOK_BYTES];
        let mut done = 0;
        while done < bytes {
            let piece = &mut buffer[..(bytes - done).min(LOOK_BYTES as u64) as usize];
            self.read(offset + done, piece)?;
            if !see(offset + done, piece)? {
                return Ok(false);
            }
            done += piece.len() as u64;
        }
        Ok(true)
    }

    /// The pages that have `bytes` at `offset`.
    fn pages(&self, offset: u64, bytes: u64) -> Result<Range<usize>, AccessError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes());
        let end = end.ok_or_else(|| AccessError::OutOfBounds { offset, bytes, block_bytes: self.bytes() })?;
        Ok((offset / self.page_bytes) as usize..end.div_ceil(self.page_bytes) as usize)
    }
}
