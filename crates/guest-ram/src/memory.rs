//! The memory of a RAM block.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::unistd::{Whence, lseek};

use crate::mapping::Mapping;
use crate::process_address::ProcessAddress;
use crate::ram::{AccessError, Ram, check_bounds};
use crate::touched::Touched;
use crate::words;
use crate::zeros::{self, Sparse};

/// Bytes of a page of a file in memory that does not have huge pages.
const PAGE_BYTES: u64 = 4096;

/// The memory of one block of a QEMU process, which that process and its guest go on using; see [`Ram`].
///
/// The first write to a page makes the kernel find memory for that page.
#[derive(Debug)]
pub struct Memory {
    way: AccessMethod,
    file: File,
    /// The range of the file that is the block.
    extent: Range<u64>,
    page_bytes: u64,
    /// The address of the block in QEMU's memory.
    at: ProcessAddress,
    can_shrink: bool,
}

/// How the bytes are reached.
#[derive(Debug)]
enum AccessMethod {
    /// As a file. The kernel need not clear a page that is written as a whole, and nothing has to be mapped page by
    /// page: a first write takes half the time that it takes through a mapping, and nothing has to be unmapped.
    File,
    /// By a mapping, for huge pages. hugetlbfs cannot be written otherwise, and transparent huge pages need the advice
    /// on a mapping.
    Mapping { mapping: Mapping, populated: Touched },
}

impl Memory {
    /// Opens the block at `extent` of `file`. The extent begins with a page of the file, and the file has the whole of
    /// the extent's last page.
    pub(crate) fn new(file: File, extent: Range<u64>, page_bytes: u64, at: ProcessAddress) -> io::Result<Self> {
        let way = if page_bytes == PAGE_BYTES && !has_huge_pages_on_advice() {
            AccessMethod::File
        } else {
            AccessMethod::mapping(&file, &extent, page_bytes)?
        };
        Ok(Self { can_shrink: can_shrink(&file), way, file, extent, page_bytes, at })
    }

    /// Returns the size in bytes of the file's pages: 4096, or that of huge pages of hugetlbfs. Under pages of 4096 the
    /// kernel may use transparent huge pages.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Returns whether somebody may shorten the file, and so kill this process: the file has no seal against that. See
    /// the crate's documentation.
    pub fn can_shrink(&self) -> bool {
        self.can_shrink
    }

    /// Makes the kernel find memory for pages of the mapping, unless that was done before. `offset`: the access that
    /// needs it, for the error.
    fn populate(
        &self,
        mapping: &Mapping,
        populated: &Touched,
        pages: Range<usize>,
        offset: u64,
    ) -> Result<(), AccessError> {
        if populated.all(pages.clone()) {
            return Ok(());
        }
        let page_bytes = self.page_bytes as usize;
        let Err(errno) = mapping.populate(pages.start * page_bytes..pages.end * page_bytes) else {
            populated.set(pages);
            return Ok(());
        };
        self.check_length(self.extent.start + (pages.end * page_bytes) as u64)?;
        // EFAULT stands for what would have been SIGBUS (madvise(2)).
        let errno = if errno == Errno::EFAULT { Errno::ENOSPC } else { errno };
        Err(AccessError::NoMemory { offset, source: errno.into() })
    }

    /// Checks that the file still reaches to `end`.
    fn check_length(&self, end: u64) -> Result<(), AccessError> {
        match self.file.metadata() {
            Ok(file) if file.len() < end => Err(AccessError::Shrunk { bytes: file.len() }),
            _ => Ok(()),
        }
    }

    /// Returns the ranges for which there is memory, in order; everything else is zero. For huge pages of hugetlbfs,
    /// all.
    ///
    /// # Errors
    /// The file cannot be searched.
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

    /// Reads the bytes at `offset` from the file, not from the mapping: another way to the same bytes, for
    /// verification.
    ///
    /// # Errors
    /// As [`Ram::read`].
    pub fn read_by_file(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.pages(offset, out.len() as u64)?;
        self.file.read_exact_at(out, self.extent.start + offset).map_err(|error| {
            match (error.kind(), self.file.metadata()) {
                (io::ErrorKind::UnexpectedEof, Ok(file)) => AccessError::Shrunk { bytes: file.len() },
                _ => AccessError::File(error),
            }
        })
    }

    /// Reads the bytes that QEMU has at `offset` of the block, in its own memory. They are the same bytes, if the
    /// mapping is right. Takes memory for a hole, as any access by QEMU does.
    ///
    /// Needs the rights of a debugger (ptrace(2), `PTRACE_MODE_ATTACH_REALCREDS`).
    ///
    /// # Errors
    /// As [`Ram::read_in_qemu`].
    pub fn read_in_process(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.pages(offset, out.len() as u64)?;
        match self.at.read(offset, out) {
            Ok(bytes) if bytes == out.len() => Ok(()),
            Ok(_) => Err(self.at.failed(io::ErrorKind::UnexpectedEof)),
            Err(errno) => Err(self.at.failed(errno)),
        }
    }

    /// Returns where data or a hole begins in the file from `from` on; at most the block's end.
    fn seek(&self, from: u64, whence: Whence) -> io::Result<u64> {
        match lseek(&self.file, from as i64, whence) {
            Ok(at) => Ok((at as u64).min(self.extent.end)),
            // There is no data up to the end of the file.
            Err(Errno::ENXIO) => Ok(self.extent.end),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the pages that contain `bytes` bytes at `offset`.
    fn pages(&self, offset: u64, bytes: u64) -> Result<Range<usize>, AccessError> {
        let end = check_bounds(offset, bytes, self.bytes())?;
        Ok((offset / self.page_bytes) as usize..end.div_ceil(self.page_bytes) as usize)
    }
}

impl Ram for Memory {
    fn file(&self) -> Option<(&File, Range<u64>)> {
        Some((&self.file, self.extent.clone()))
    }

    fn bytes(&self) -> u64 {
        self.extent.end - self.extent.start
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let pages = self.pages(offset, data.len() as u64)?;
        match &self.way {
            AccessMethod::File => {
                // Otherwise the write would lengthen the file again, and nobody would notice.
                if self.can_shrink {
                    self.check_length(self.extent.start + offset + data.len() as u64)?;
                }
                let written = self.file.write_all_at(data, self.extent.start + offset);
                written.map_err(|source| AccessError::NoMemory { offset, source })
            }
            AccessMethod::Mapping { .. } if data.is_empty() => Ok(()),
            AccessMethod::Mapping { mapping, populated } => {
                self.populate(mapping, populated, pages, offset)?;
                words::store(mapping.words(), offset as usize, data);
                Ok(())
            }
        }
    }

    /// A hole remains a hole.
    fn zero(&self, offset: u64, bytes: u64) -> Result<(), AccessError> {
        zeros::zero(self, offset, bytes)
    }

    /// Reads the file, not the mapping.
    fn is_zero(&self, offset: u64, bytes: u64) -> Result<bool, AccessError> {
        zeros::is_zero(self, offset, bytes)
    }

    /// A hole remains a hole.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let pages = self.pages(offset, out.len() as u64)?;
        match &self.way {
            // Touching a hole, even to read it, would take memory for the hole.
            AccessMethod::Mapping { mapping, populated } if populated.all(pages) => {
                words::load(mapping.words(), offset as usize, out);
                Ok(())
            }
            _ => self.read_by_file(offset, out),
        }
    }

    /// If this process may not read QEMU's memory, this reads the file instead.
    fn read_in_qemu(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        match self.read_in_process(offset, out) {
            // Access to the file needs fewer rights than access to another process's memory.
            Err(AccessError::Process { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                self.read(offset, out)
            }
            read => read,
        }
    }
}

impl Sparse for Memory {
    fn hole(&self, at: u64, bytes: u64) -> Result<u64, AccessError> {
        let data = self.seek(self.extent.start + at, Whence::SeekData).map_err(AccessError::File)?;
        Ok((data - self.extent.start).saturating_sub(at).min(bytes))
    }

    fn read_data(&self, at: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.read_by_file(at, out)
    }
}

impl AccessMethod {
    fn mapping(file: &File, extent: &Range<u64>, page_bytes: u64) -> io::Result<AccessMethod> {
        let pages = (extent.end - extent.start).div_ceil(page_bytes);
        let bytes = usize::try_from(pages * page_bytes).map_err(|_| Errno::ENOMEM)?;
        let mapping = Mapping::shared(file, extent.start, bytes)?;
        // A kernel without transparent huge pages refuses this, and so does memory of huge pages.
        let _ = mapping.advise_huge();
        Ok(AccessMethod::Mapping { mapping, populated: Touched::new(pages as usize) })
    }
}

fn can_shrink(file: &File) -> bool {
    !fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK))
}

/// Returns whether the kernel uses transparent huge pages for shared memory on advice.
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

    /// Returns a block of this size, two pages into a file in memory that has a page more, in each way to reach it, and
    /// a mapping as QEMU would have it.
    fn both_ways(bytes: u64) -> [(Memory, File, Mapping); 2] {
        [false, true].map(|is_mapped| {
            let file = File::from(memfd_create("test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
            let extent = 2 * PAGE..2 * PAGE + bytes;
            file.set_len(extent.end.next_multiple_of(PAGE) + PAGE).unwrap();
            let way = if is_mapped { AccessMethod::mapping(&file, &extent, PAGE).unwrap() } else { AccessMethod::File };
            let seen = Mapping::shared(&file, extent.start, bytes.next_multiple_of(PAGE) as usize).unwrap();
            let at = ProcessAddress { pid: std::process::id(), address: seen.words().as_ptr() as u64 };
            let can_shrink = can_shrink(&file);
            (Memory { way, file: file.try_clone().unwrap(), extent, page_bytes: PAGE, at, can_shrink }, file, seen)
        })
    }

    fn taken(file: &File) -> u64 {
        use std::os::unix::fs::MetadataExt;
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn a_hole_stays_one_until_it_is_written_to() {
        for (memory, file, _seen) in both_ways(1 << 20) {
            assert_eq!((memory.bytes(), memory.page_bytes(), memory.data_extents().unwrap()), (1 << 20, PAGE, vec![]));
            memory.zero(0, 1 << 20).unwrap();
            memory.write(5, &[]).unwrap();
            assert!(memory.is_zero(0, 1 << 20).unwrap());
            let mut out = [1; 10];
            memory.read(77, &mut out).unwrap();
            assert_eq!((out, taken(&file)), ([0; 10], 0));

            memory.write(3 * PAGE - 1, b"ab").unwrap();
            let both = 2 * PAGE..4 * PAGE;
            assert_eq!((memory.data_extents().unwrap(), taken(&file)), (vec![both], 2 * PAGE));
            assert!(!memory.is_zero(0, 1 << 20).unwrap() && memory.is_zero(3 * PAGE + 1, PAGE).unwrap());
            memory.zero(0, 1 << 20).unwrap();
            assert!(memory.is_zero(0, 1 << 20).unwrap());
            assert_eq!(taken(&file), 2 * PAGE);
        }
    }

    #[test]
    fn what_another_wrote_is_seen() {
        for (memory, file, _seen) in both_ways(1 << 20) {
            file.write_all_at(b"other", 2 * PAGE + 9000).unwrap();
            let mut out = [0; 5];
            memory.read(9000, &mut out).unwrap();
            assert_eq!(&out, b"other");
            memory.zero(9001, 3).unwrap();
            for read in [Memory::read, Memory::read_by_file, Memory::read_in_process] {
                read(&memory, 9000, &mut out).unwrap();
                assert_eq!(&out, b"o\0\0\0r");
            }
        }
    }

    #[test]
    fn bounds() {
        for (memory, _file, _seen) in both_ways(PAGE + 8) {
            let data = [1; 9];
            memory.write(PAGE, &data[..8]).unwrap();
            memory.write(PAGE + 8, &[]).unwrap();
            for (offset, bytes) in [(PAGE, 9), (PAGE + 8, 1), (PAGE + 9, 0), (u64::MAX, 2), (u64::MAX, 0)] {
                let mut out = vec![0; bytes];
                for result in [
                    memory.write(offset, &data[..bytes]),
                    memory.read(offset, &mut out),
                    memory.read_by_file(offset, &mut out),
                    memory.read_in_process(offset, &mut out),
                    memory.zero(offset, bytes as u64),
                    memory.is_zero(offset, bytes as u64).map(drop),
                ] {
                    assert!(matches!(result, Err(AccessError::OutOfBounds { .. })), "{bytes} bytes at {offset}");
                }
            }
            assert!(matches!(memory.zero(0, u64::MAX), Err(AccessError::OutOfBounds { .. })));
        }
    }

    #[test]
    fn a_file_that_shrinks() {
        for (memory, file, _seen) in both_ways(1 << 20) {
            assert!(memory.can_shrink());
            file.set_len(2 * PAGE).unwrap();
            let error = memory.write(PAGE, b"x").unwrap_err();
            assert!(matches!(error, AccessError::Shrunk { bytes } if bytes == 2 * PAGE), "{error:?}");
            let error = memory.read(PAGE, &mut [0]).unwrap_err();
            assert!(matches!(error, AccessError::Shrunk { bytes } if bytes == 2 * PAGE), "{error:?}");
            fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
            assert!(!can_shrink(&file));
        }
    }

    #[test]
    fn a_file_that_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let fifo = nix::fcntl::open(&fifo, OFlag::O_RDWR, nix::sys::stat::Mode::empty()).unwrap();
        let error = AccessMethod::mapping(&File::from(fifo), &(0..PAGE), PAGE).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENODEV as i32));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(Vec<u8>),
        Zero(u64),
        ByAnother(Vec<u8>),
    }

    /// Returns steps: where, and what. Half of them are about whole pages.
    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let len = prop_oneof![0..SPAN, (0..SPAN / PAGE).prop_map(|pages| pages * PAGE)];
        let bytes = (any::<u8>(), len.clone())
            .prop_map(|(seed, len)| (0..len).map(|n| seed.wrapping_mul(n as u8 | 1)).collect::<Vec<_>>());
        let step = prop_oneof![
            bytes.clone().prop_map(Step::Write),
            len.clone().prop_map(Step::Zero),
            bytes.prop_map(Step::ByAnother),
        ];
        proptest::collection::vec((len, step), 0..12)
    }

    /// Bytes that each thread of the model test has for itself: no multiple of a page or a word, so that neighbours
    /// share both.
    const SPAN: u64 = 5 * PAGE + 3;
    const THREADS: u64 = 3;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

        /// Behaves as bytes in a `Vec`, with several threads at once.
        #[test]
        fn like_a_vec(of_threads in proptest::collection::vec(steps(), THREADS as usize)) {
            for (memory, file, _seen) in both_ways(THREADS * SPAN) {
                std::thread::scope(|scope| {
                    for (base, steps) in (0..).step_by(SPAN as usize).zip(of_threads.clone()) {
                        let (memory, file) = (&memory, &file);
                        scope.spawn(move || {
                            let mut model = vec![0; SPAN as usize];
                            for (at, step) in steps {
                                let room = SPAN - at;
                                let span = |len: u64| at as usize..(at + len.min(room)) as usize;
                                match step {
                                    Step::Write(mut data) => {
                                        data.truncate(room as usize);
                                        memory.write(base + at, &data).unwrap();
                                        model[span(data.len() as u64)].copy_from_slice(&data);
                                    }
                                    Step::Zero(len) => {
                                        memory.zero(base + at, len.min(room)).unwrap();
                                        model[span(len)].fill(0);
                                    }
                                    Step::ByAnother(mut data) => {
                                        data.truncate(room as usize);
                                        file.write_all_at(&data, 2 * PAGE + base + at).unwrap();
                                        model[span(data.len() as u64)].copy_from_slice(&data);
                                    }
                                }
                                let mut out = vec![0xee; SPAN as usize];
                                for read in [Memory::read, Memory::read_by_file] {
                                    read(memory, base, &mut out).unwrap();
                                    assert!(out == model);
                                }
                                assert_eq!(memory.is_zero(base, SPAN).unwrap(), model.iter().all(|&byte| byte == 0));
                            }
                        });
                    }
                });
                // Bytes outside the extents are zero.
                let mut end = 0;
                for extent in memory.data_extents().unwrap() {
                    prop_assert!(extent.start >= end && extent.end > extent.start && extent.end <= memory.bytes());
                    prop_assert!(memory.is_zero(end, extent.start - end).unwrap());
                    end = extent.end;
                }
                prop_assert!(memory.is_zero(end, memory.bytes() - end).unwrap());
            }
        }
    }
}
