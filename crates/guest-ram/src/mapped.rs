//! A block's memory, mapped.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, Whence, lseek};

use crate::mapping::Mapping;
use crate::touched::Touched;
use crate::words;

/// What is looked at at once to see whether it is zero: fits a core's cache.
const LOOK_BYTES: usize = 16 << 10;
/// The grain in which zeros are written: a guest's page.
const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
/// Bytes of a page of a file in memory that is not of huge pages.
const PAGE_BYTES: u64 = 4096;

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
    /// QEMU's own memory cannot be read.
    #[error("reading the guest's RAM in the memory of process {pid}")]
    Process {
        /// QEMU.
        pid: u32,
        /// Why: it has ended, or this process may not look into it.
        source: io::Error,
    },
}

/// Where a process has a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) pid: u32,
    pub(crate) address: u64,
}

/// The memory of one block of a QEMU process, which that process and its guest go on using. Unmapped when dropped.
///
/// Offsets are bytes from the block's begin. Several threads may use it at once; where they write to the same bytes,
/// each word of them is one thread's or another's. Accesses are not ordered: tell whoever is to read what was
/// written, QEMU too, through a lock or a socket.
///
/// The first write to a page has the kernel find memory for it ([`Mapped::populate`]); as much as is written, no more.
#[derive(Debug)]
pub struct Mapped {
    mapping: Mapping,
    file: File,
    /// The block in the file.
    extent: Range<u64>,
    page_bytes: u64,
    /// Fresh pages are best written through the file.
    by_file: bool,
    /// The block in QEMU's memory.
    at: At,
    /// Of the pages of the mapping, those for which there is memory, as far as this process has seen to it.
    touched: Touched,
}

impl Mapped {
    /// `extent` of `file` begins with a page of the file's; the file has the whole of its last page.
    pub(crate) fn new(file: File, extent: Range<u64>, page_bytes: u64, at: At) -> io::Result<Self> {
        let pages = (extent.end - extent.start).div_ceil(page_bytes);
        let bytes = usize::try_from(pages * page_bytes).map_err(|_| Errno::ENOMEM)?;
        let mapping = Mapping::shared(&file, extent.start, bytes)?;
        // Huge pages come with the advice on a mapping, and are faster yet.
        let by_file = page_bytes == PAGE_BYTES && !has_huge_pages_on_advice();
        Ok(Self { mapping, file, extent, page_bytes, by_file, at, touched: Touched::new(pages as usize) })
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
    ///
    /// Whole pages that have no memory yet are written through the file: the kernel need not clear them first then, which
    /// is half of what a first write costs.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let pages = self.pages(offset, data.len() as u64)?;
        let is_whole = [offset, data.len() as u64].iter().all(|number| number.is_multiple_of(PAGE_BYTES));
        if self.by_file && is_whole && !self.touched.any(pages.clone()) {
            let written = self.file.write_all_at(data, self.extent.start + offset);
            written.map_err(|source| AccessError::NoMemory { offset, source })?;
            self.touched.set(pages);
            return Ok(());
        }
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

    /// Whether `bytes` at `offset` are zero, by the file and not by the mapping.
    pub fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        self.look(offset, bytes, |_, seen| Ok(seen.chunks(ZEROS.len()).all(|page| page == &ZEROS[..page.len()])))
    }

    /// Has the kernel find memory for the pages that have `bytes` at `offset`, unless this was done before. Writes do
    /// this for themselves; ahead of them it is for who wants to know that there is memory for all.
    pub fn populate(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        let pages = self.pages(offset, bytes)?;
        if bytes == 0 || self.touched.all(pages.clone()) {
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

    /// Lets the kernel put transparent huge pages under what is populated from now on, where it does that for shared
    /// memory on advice (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`); else this does nothing. Populating is
    /// then two to three times faster, but takes 2 MiB where a single page is written.
    pub fn advise_huge(&self) {
        // Refused by a kernel without them, and for what is huge already.
        let _ = self.mapping.advise_huge();
    }

    /// The parts for which there is memory, in order; all else is zero. Of huge pages of hugetlbfs, all.
    pub fn data_extents(&self) -> io::Result<Vec<Range<u64>>> {
        let mut extents = Vec::new();
        let mut at = self.extent.start;
        loop {
            let begin = self.seek(at, Whence::SeekData)?;
            if begin >= self.extent.end {
                return Ok(extents);
            }
            at = self.seek(begin, Whence::SeekHole)?;
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

    /// Reads what QEMU has at `offset` of the block, in its own memory: the same bytes, if the mapping is what it
    /// should be. Takes memory for a hole, as any access by QEMU.
    ///
    /// Needs what a debugger needs (ptrace(2), `PTRACE_MODE_ATTACH_REALCREDS`).
    pub fn read_in_process(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.pages(offset, out.len() as u64)?;
        let (At { pid, address }, len) = (self.at, out.len());
        let remote = RemoteIoVec { base: (address + offset) as usize, len };
        let read = process_vm_readv(Pid::from_raw(pid as i32), &mut [IoSliceMut::new(out)], &[remote]);
        match read {
            Ok(bytes) if bytes == len => Ok(()),
            Ok(_) => Err(AccessError::Process { pid, source: io::ErrorKind::UnexpectedEof.into() }),
            Err(errno) => Err(AccessError::Process { pid, source: errno.into() }),
        }
    }

    /// Where data or a hole begins in the file from `from` on: the block's end, if not before.
    fn seek(&self, from: u64, whence: Whence) -> io::Result<u64> {
        match lseek(&self.file, from as i64, whence) {
            Ok(at) => Ok((at as u64).min(self.extent.end)),
            // There is no data up to the end.
            Err(Errno::ENXIO) => Ok(self.extent.end),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Shows `bytes` at `offset` to `see`, piece after piece, each with its offset, until it says no; holes are passed
    /// over. Whether it never did.
    fn look(
        &self,
        offset: u64,
        bytes: u64,
        see: impl Fn(u64, &[u8]) -> Result<bool, AccessError>,
    ) -> Result<bool, AccessError> {
        self.pages(offset, bytes)?;
        let end = offset + bytes;
        let mut at = offset;
        loop {
            let data = self.seek(self.extent.start + at, Whence::SeekData).map_err(AccessError::File)?;
            at = at.max(data - self.extent.start);
            if at >= end {
                return Ok(true);
            }
            let mut buffer = [0; LOOK_BYTES];
            let piece = &mut buffer[..(end - at).min(LOOK_BYTES as u64) as usize];
            self.read_by_file(at, piece)?;
            if !see(at, piece)? {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
    }

    /// The pages that have `bytes` at `offset`.
    fn pages(&self, offset: u64, bytes: u64) -> Result<Range<usize>, AccessError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes());
        let end = end.ok_or_else(|| AccessError::OutOfBounds { offset, bytes, block_bytes: self.bytes() })?;
        Ok((offset / self.page_bytes) as usize..end.div_ceil(self.page_bytes) as usize)
    }
}

/// Whether [`Mapped::advise_huge`] does anything.
fn has_huge_pages_on_advice() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    ["[advise]", "[always]", "[within_size]"].iter().any(|choice| setting.contains(choice))
}

#[cfg(test)]
mod tests {
    use super::*;

    use nix::fcntl::OFlag;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    /// A block of this size, two pages into a file in memory that has a page more.
    fn mapped(bytes: u64) -> (Mapped, File) {
        // Where this process has it is known when it is mapped.
        let nowhere = At { pid: std::process::id(), address: 0 };
        let file = File::from(memfd_create("test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
        let extent = 2 * PAGE..2 * PAGE + bytes;
        file.set_len(extent.end.next_multiple_of(PAGE) + PAGE).unwrap();
        let mut mapped = Mapped::new(file.try_clone().unwrap(), extent, PAGE, nowhere).unwrap();
        mapped.at.address = mapped.mapping.words().as_ptr() as u64;
        (mapped, file)
    }

    fn taken(file: &File) -> u64 {
        use std::os::unix::fs::MetadataExt;
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn a_hole_stays_one_until_it_is_written_to() {
        let (mapped, file) = mapped(1 << 20);
        assert_eq!((mapped.bytes(), mapped.page_bytes(), mapped.data_extents().unwrap()), (1 << 20, PAGE, vec![]));
        mapped.zero(0, 1 << 20).unwrap();
        mapped.write(5, &[]).unwrap();
        assert!(mapped.is_zero(0, 1 << 20).unwrap());
        let mut out = [1; 10];
        mapped.read(77, &mut out).unwrap();
        assert_eq!((out, taken(&file)), ([0; 10], 0));

        mapped.write(3 * PAGE - 1, b"ab").unwrap();
        let both = 2 * PAGE..4 * PAGE;
        assert_eq!((mapped.data_extents().unwrap(), taken(&file)), (vec![both], 2 * PAGE));
        assert!(!mapped.is_zero(0, 1 << 20).unwrap() && mapped.is_zero(3 * PAGE + 1, PAGE).unwrap());
        mapped.zero(0, 1 << 20).unwrap();
        assert!(mapped.is_zero(0, 1 << 20).unwrap());
        assert_eq!(taken(&file), 2 * PAGE);
        mapped.populate(0, 1).unwrap();
        assert_eq!(mapped.data_extents().unwrap(), [0..PAGE, 2 * PAGE..4 * PAGE]);
        mapped.advise_huge();
    }

    #[test]
    fn what_another_wrote_is_seen() {
        let (mapped, file) = mapped(1 << 20);
        file.write_all_at(b"other", 2 * PAGE + 9000).unwrap();
        let mut out = [0; 5];
        mapped.read(9000, &mut out).unwrap();
        assert_eq!(&out, b"other");
        mapped.zero(9001, 3).unwrap();
        for read in [Mapped::read, Mapped::read_by_file, Mapped::read_in_process] {
            read(&mapped, 9000, &mut out).unwrap();
            assert_eq!(&out, b"o\0\0\0r");
        }
    }

    #[test]
    fn bounds() {
        let (mapped, _file) = mapped(PAGE + 8);
        let data = [1; 9];
        mapped.write(PAGE, &data[..8]).unwrap();
        mapped.write(PAGE + 8, &[]).unwrap();
        for (offset, bytes) in [(PAGE, 9), (PAGE + 8, 1), (PAGE + 9, 0), (u64::MAX, 2), (u64::MAX, 0)] {
            let mut out = vec![0; bytes];
            for result in [
                mapped.write(offset, &data[..bytes]),
                mapped.read(offset, &mut out),
                mapped.read_by_file(offset, &mut out),
                mapped.read_in_process(offset, &mut out),
                mapped.zero(offset, bytes as u64),
                mapped.populate(offset, bytes as u64),
                mapped.is_zero(offset, bytes as u64).map(drop),
            ] {
                assert!(matches!(result, Err(AccessError::OutOfBounds { .. })), "{bytes} bytes at {offset}");
            }
        }
        assert!(matches!(mapped.zero(0, u64::MAX), Err(AccessError::OutOfBounds { .. })));
    }

    #[test]
    fn a_file_that_shrinks() {
        let (mapped, file) = mapped(1 << 20);
        assert!(mapped.can_shrink());
        file.set_len(2 * PAGE).unwrap();
        let error = mapped.write(PAGE, b"x").unwrap_err();
        assert!(matches!(error, AccessError::Shrunk { bytes } if bytes == 2 * PAGE), "{error:?}");
        let error = mapped.read(PAGE, &mut [0]).unwrap_err();
        assert!(matches!(error, AccessError::Shrunk { bytes } if bytes == 2 * PAGE), "{error:?}");
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(!mapped.can_shrink());
    }

    #[test]
    fn a_file_that_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let fifo = nix::fcntl::open(&fifo, OFlag::O_RDWR, nix::sys::stat::Mode::empty()).unwrap();
        let error = Mapped::new(File::from(fifo), 0..PAGE, PAGE, At { pid: 1, address: 0 }).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENODEV as i32));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(Vec<u8>),
        Zero(u64),
        Populate(u64),
        ByAnother(Vec<u8>),
    }

    /// Where, and what; half of it about whole pages.
    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let len = prop_oneof![0..SPAN, (0..SPAN / PAGE).prop_map(|pages| pages * PAGE)];
        let bytes = (any::<u8>(), len.clone())
            .prop_map(|(seed, len)| (0..len).map(|n| seed.wrapping_mul(n as u8 | 1)).collect::<Vec<_>>());
        let step = prop_oneof![
            bytes.clone().prop_map(Step::Write),
            len.clone().prop_map(Step::Zero),
            len.clone().prop_map(Step::Populate),
            bytes.prop_map(Step::ByAnother),
        ];
        proptest::collection::vec((len, step), 0..12)
    }

    /// What each thread of the model test has for itself: no multiple of a page or word, so that neighbours share both.
    const SPAN: u64 = 5 * PAGE + 3;
    const THREADS: u64 = 3;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

        /// Against bytes in a `Vec`, by several threads at once.
        #[test]
        fn like_a_vec(of_threads in proptest::collection::vec(steps(), THREADS as usize)) {
            let (mapped, file) = mapped(THREADS * SPAN);
            std::thread::scope(|scope| {
                for (base, steps) in (0..).step_by(SPAN as usize).zip(of_threads) {
                    let (mapped, file) = (&mapped, &file);
                    scope.spawn(move || {
                        let mut model = vec![0; SPAN as usize];
                        for (at, step) in steps {
                            let room = SPAN - at;
                            let span = |len: u64| at as usize..(at + len.min(room)) as usize;
                            match step {
                                Step::Write(mut data) => {
                                    data.truncate(room as usize);
                                    mapped.write(base + at, &data).unwrap();
                                    model[span(data.len() as u64)].copy_from_slice(&data);
                                }
                                Step::Zero(len) => {
                                    mapped.zero(base + at, len.min(room)).unwrap();
                                    model[span(len)].fill(0);
                                }
                                Step::Populate(len) => mapped.populate(base + at, len.min(room)).unwrap(),
                                Step::ByAnother(mut data) => {
                                    data.truncate(room as usize);
                                    file.write_all_at(&data, 2 * PAGE + base + at).unwrap();
                                    model[span(data.len() as u64)].copy_from_slice(&data);
                                }
                            }
                            let mut out = vec![0xee; SPAN as usize];
                            for read in [Mapped::read, Mapped::read_by_file] {
                                read(mapped, base, &mut out).unwrap();
                                assert!(out == model);
                            }
                            assert_eq!(mapped.is_zero(base, SPAN).unwrap(), model.iter().all(|&byte| byte == 0));
                        }
                    });
                }
            });
            // What is not in an extent is zero.
            let mut end = 0;
            for extent in mapped.data_extents().unwrap() {
                prop_assert!(extent.start >= end && extent.end > extent.start && extent.end <= mapped.bytes());
                prop_assert!(mapped.is_zero(end, extent.start - end).unwrap());
                end = extent.end;
            }
            prop_assert!(mapped.is_zero(end, mapped.bytes() - end).unwrap());
        }
    }
}
