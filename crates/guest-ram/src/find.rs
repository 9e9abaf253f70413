//! Finds the memory of a block that QEMU reports.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, major, minor};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};

use crate::maps::{Backing, Unsuitable, all_private, backing};
use crate::process_address::ProcessAddress;
use crate::process_memory::ProcessMemory;
use crate::ram::{AccessError, Ram};
use crate::{Memory, RamBlock};

/// Most bytes of a process's list of mappings. A process has 65,530 mappings at most, unless its host allows more
/// (`vm.max_map_count`), and few have long paths.
const MAPS_BYTES_MAX: u64 = 32 << 20;

/// The least size of a private block that [`find`] takes for RAM: ROMs and tables are smaller.
const PRIVATE_BYTES_MIN: u64 = 32 << 20;
/// How the canonical path of a memory backend begins, which names its block up to machine type 3.1.
const BACKEND_PATH: &str = "/objects/";

/// Why a block's memory cannot be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// There is no such process.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// The kernel does not say what the process has mapped.
    #[error("reading what process {pid} has mapped")]
    Maps {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
    /// QEMU does not tell where the block is.
    #[error("QEMU does not tell where block '{0}' is in its memory")]
    NoAddress(String),
    /// The block has no bytes.
    #[error("block '{0}' is empty")]
    Empty(String),
    /// Nothing, or too little, is mapped at the block's address.
    #[error("QEMU has not all of block '{block}' mapped at {address:#x}, where it should be")]
    NotMapped {
        /// The block.
        block: String,
        /// The address at which the block should begin.
        address: u64,
    },
    /// The block's memory is private to QEMU, so that no file has it.
    #[error("the RAM of block '{0}' is private to QEMU")]
    Private(String),
    /// This process may not reach the memory of QEMU's process.
    #[error(
        "the memory of process {pid} is out of reach; the agent needs CAP_SYS_PTRACE, and \
         /proc/sys/kernel/yama/ptrace_scope below 3"
    )]
    OutOfReach {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
    /// QEMU cannot write to the block's memory.
    #[error("the RAM of block '{0}' is read-only in QEMU")]
    ReadOnly(String),
    /// The block's memory is not one piece of one file.
    #[error("the RAM of block '{0}' is not one piece of one file")]
    Scattered(String),
    /// The block's memory does not begin with a page of the file.
    #[error("the RAM of block '{block}' begins within a page of {page_bytes} bytes of {path}")]
    Misaligned {
        /// The block.
        block: String,
        /// The file.
        path: String,
        /// The size of the file's pages.
        page_bytes: u64,
    },
    /// The block's memory is in a device or something else that is not a file.
    #[error("the RAM of block '{block}' is in {path}, which is not a regular file")]
    NotAFile {
        /// The block.
        block: String,
        /// The path of what has the memory.
        path: String,
    },
    /// The block's memory is in a file of a filesystem on a disk.
    #[error(
        "the RAM of block '{block}' is in {path}, a file that is not in memory (filesystem type {filesystem:#x}): \
         only memfd, tmpfs and hugetlbfs are"
    )]
    NotInMemory {
        /// The block.
        block: String,
        /// The file.
        path: String,
        /// The magic number of the file's filesystem: see statfs(2).
        filesystem: u64,
    },
    /// The file cannot be opened.
    #[error("opening the RAM of block '{block}' ({path})")]
    Open {
        /// The block.
        block: String,
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another file took the place of the file that QEMU had at the address.
    #[error("the RAM of block '{block}' is no longer in {path}")]
    Replaced {
        /// The block.
        block: String,
        /// The file.
        path: String,
    },
    /// The file ends before the block does.
    #[error("the RAM of block '{block}' ends at {end} in {path}, which has {bytes} bytes only")]
    Short {
        /// The block.
        block: String,
        /// The file.
        path: String,
        /// The file's size.
        bytes: u64,
        /// The offset in the file at which the block should end.
        end: u64,
    },
    /// The kernel does not map it.
    #[error("mapping the RAM of block '{block}'")]
    Map {
        /// The block.
        block: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Finds the `used_bytes` of a block of process `pid` that holds a guest's RAM: as [`find_shared`] where QEMU shares
/// the block, else as [`find_private`]. Small private blocks are left out: these are devices' memory and ROMs.
///
/// # Errors
/// As of [`find_shared`].
pub fn find(pid: u32, block: &RamBlock) -> Result<Box<dyn Ram>, FindError> {
    let seen = look(pid, block)?;
    match shared(pid, block, &seen) {
        Err(FindError::Private(_)) if is_guest_ram(&block.name, block.used_bytes) => {
            Ok(Box::new(private(pid, block, &seen)?))
        }
        found => Ok(Box::new(found?)),
    }
}

/// Returns whether a block is a guest's RAM, by its name and size. The names of devices' blocks are paths
/// (`0000:00:01.0/vga.vram`; `qemu_ram_set_idstr` of QEMU's system/physmem.c).
pub fn is_guest_ram(name: &str, used_bytes: u64) -> bool {
    let is_device = name.contains('/') && !name.starts_with(BACKEND_PATH);
    !is_device && used_bytes >= PRIVATE_BYTES_MIN
}

/// Maps the `used_bytes` of a block of process `pid` into this process. The whole block has to be shared, and in one
/// piece of one file in memory (memfd, tmpfs, hugetlbfs) that QEMU can write to. The mapping takes nothing from the
/// host's memory yet.
///
/// The caller has to make sure that `pid` is the QEMU that reported the block. A caller that has the block from QEMU's
/// socket checks, after this call, that the process still runs.
///
/// # Errors
/// A [`FindError`] for each reason why the block cannot be mapped.
pub fn find_shared(pid: u32, block: &RamBlock) -> Result<Memory, FindError> {
    shared(pid, block, &look(pid, block)?)
}

fn shared(pid: u32, block: &RamBlock, Seen { process, maps, range }: &Seen) -> Result<Memory, FindError> {
    let backing = backing(maps, range.clone()).map_err(|why| unsuitable(why, pid, block, range.start))?;
    map_backing(process, block, &backing, ProcessAddress { pid, address: range.start })
}

/// Finds a block of process `pid` that is private to the process, all of it. The caller has to make sure of the same as
/// for [`find_shared`].
///
/// # Errors
/// A [`FindError`] for each reason why the block cannot be reached.
pub fn find_private(pid: u32, block: &RamBlock) -> Result<ProcessMemory, FindError> {
    private(pid, block, &look(pid, block)?)
}

fn private(pid: u32, block: &RamBlock, Seen { process, maps, range }: &Seen) -> Result<ProcessMemory, FindError> {
    let Range { start, end } = *range;
    all_private(maps, range.clone()).map_err(|why| unsuitable(why, pid, block, start))?;
    let page_table = openat(process, "pagemap", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
    let page_table = page_table.map_err(|errno| FindError::Maps { pid, source: errno.into() })?;
    let at = ProcessAddress { pid, address: start };
    let reach = || {
        let memory = ProcessMemory::new(at, end - start, File::from(page_table))?;
        // Reading tables of a process needs fewer rights than reaching its memory (ptrace(2)).
        memory.read(0, &mut [0])?;
        Ok(memory)
    };
    reach().map_err(|error| match error {
        AccessError::Process { source, .. } => FindError::OutOfReach { pid, source },
        _ => FindError::NotMapped { block: block.name.clone(), address: start },
    })
}

/// A process that should have a block.
struct Seen {
    process: OwnedFd,
    /// The process's list of mappings.
    maps: String,
    /// The addresses where the block should be.
    range: Range<u64>,
}

fn look(pid: u32, block: &RamBlock) -> Result<Seen, FindError> {
    let name = || block.name.clone();
    // All that follows concerns the process that is opened here, even if another process gets its number meanwhile.
    let process = open(&*format!("/proc/{pid}"), OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| match errno {
            Errno::ENOENT => FindError::NoProcess(pid),
            _ => FindError::Maps { pid, source: errno.into() },
        })?;
    let start = block.host_address.ok_or_else(|| FindError::NoAddress(name()))?;
    let not_mapped = || FindError::NotMapped { block: name(), address: start };
    let range = start..start.checked_add(block.used_bytes).ok_or_else(not_mapped)?;
    if range.is_empty() {
        return Err(FindError::Empty(name()));
    }
    let maps = read_maps(&process).map_err(|source| match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ESRCH) => FindError::NoProcess(pid),
        _ => FindError::Maps { pid, source },
    })?;
    Ok(Seen { process, maps, range })
}

/// Returns why the block at `address` is not reached.
fn unsuitable(why: Unsuitable, pid: u32, block: &RamBlock, address: u64) -> FindError {
    let name = || block.name.clone();
    match why {
        Unsuitable::NotMapped => FindError::NotMapped { block: name(), address },
        Unsuitable::Private => FindError::Private(name()),
        Unsuitable::ReadOnly => FindError::ReadOnly(name()),
        Unsuitable::Scattered => FindError::Scattered(name()),
        Unsuitable::Malformed(line) => {
            FindError::Maps { pid, source: io::Error::new(io::ErrorKind::InvalidData, line) }
        }
    }
}

fn map_backing(
    process: &OwnedFd,
    block: &RamBlock,
    backing: &Backing,
    at: ProcessAddress,
) -> Result<Memory, FindError> {
    let (name, path) = (|| block.name.clone(), || backing.path.clone());
    let open_error = |errno: Errno| FindError::Open { block: name(), path: path(), source: errno.into() };

    let handle = handle(process, backing).map_err(open_error)?;
    let stat = fstat(&handle).map_err(open_error)?;
    if !is_same_file(&stat, backing) {
        return Err(FindError::Replaced { block: name(), path: path() });
    }
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Err(FindError::NotAFile { block: name(), path: path() });
    }
    let filesystem = fstatfs(&handle).map_err(open_error)?;
    let FsType(kind) = filesystem.filesystem_type();
    if ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&FsType(kind)) {
        return Err(FindError::NotInMemory { block: name(), path: path(), filesystem: kind as u64 });
    }
    // On hugetlbfs the block size is the size of the huge pages.
    let page_bytes = filesystem.block_size() as u64;
    if !backing.offset.is_multiple_of(page_bytes) {
        return Err(FindError::Misaligned { block: name(), path: path(), page_bytes });
    }

    // Opens the handle's own file, whatever file has its name by now.
    let access = OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let file = open(&*format!("/proc/self/fd/{}", handle.as_raw_fd()), access, Mode::empty()).map_err(open_error)?;
    let file = File::from(file);
    let bytes = fstat(&file).map_err(open_error)?.st_size as u64;
    let end = block.used_bytes.checked_next_multiple_of(page_bytes).and_then(|size| backing.offset.checked_add(size));
    let end = end.unwrap_or(u64::MAX);
    if bytes < end {
        return Err(FindError::Short { block: name(), path: path(), bytes, end });
    }
    let extent = backing.offset..backing.offset + block.used_bytes;
    Memory::new(file, extent, page_bytes, at).map_err(|source| FindError::Map { block: name(), source })
}

fn read_maps(process: &OwnedFd) -> io::Result<String> {
    let file = File::from(openat(process, "maps", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(MAPS_BYTES_MAX).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == MAPS_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more mappings than a process can have"));
    }
    // A path may contain any bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns a handle of the file without opening it: the file might be a device that does something when it is opened.
fn handle(process: &OwnedFd, backing: &Backing) -> Result<OwnedFd, Errno> {
    let access = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let Range { start, end } = backing.mapping;
    let refused = match openat(process, &*format!("map_files/{start:x}-{end:x}"), access, Mode::empty()) {
        Ok(handle) => return Ok(handle),
        Err(errno) => errno,
    };
    // QEMU has the file open, too, and more users may see which files a process has open.
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut descriptors = Dir::openat(process, "fd", directory, Mode::empty())?;
    let names: Vec<_> = descriptors.iter().collect::<Result<_, _>>()?;
    let open = names.iter().filter_map(|entry| openat(&descriptors, entry.file_name(), access, Mode::empty()).ok());
    open.into_iter().find(|handle| fstat(handle).is_ok_and(|stat| is_same_file(&stat, backing))).ok_or(refused)
}

/// Returns whether `stat` is that of the backing file.
fn is_same_file(stat: &FileStat, backing: &Backing) -> bool {
    (major(stat.st_dev), minor(stat.st_dev)) == backing.device && stat.st_ino == backing.inode
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ram;

    const NOWHERE: ProcessAddress = ProcessAddress { pid: 0, address: 0 };
    use crate::mapping::Mapping;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    const PAGE: u64 = 4096;

    fn block(address: u64, bytes: u64) -> RamBlock {
        RamBlock {
            name: "pc.ram".into(),
            page_bytes: PAGE,
            used_bytes: bytes,
            max_bytes: bytes,
            host_address: Some(address),
        }
    }

    fn memory(bytes: u64) -> File {
        let file = File::from(memfd_create("ram", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        file
    }

    fn address_of(mapping: &Mapping) -> u64 {
        mapping.words().as_ptr().addr() as u64
    }

    /// This process plays QEMU. As root it finds the file by `map_files`; then it does everything again as nobody, who
    /// has to find the file by `fd`.
    #[test]
    fn memory_of_a_process() {
        let pid = std::process::id();
        let file = memory(8 * PAGE);
        // Other descriptors. One of them is of another file in memory.
        let _other = memory(8 * PAGE);
        let theirs = Mapping::shared(&file, 2 * PAGE, 6 * PAGE as usize).unwrap();
        let address = address_of(&theirs);
        for (begin, bytes) in [(0, 6 * PAGE), (PAGE, 2 * PAGE), (PAGE, PAGE + 24)] {
            let ours = find_shared(pid, &block(address + begin, bytes)).unwrap();
            assert_eq!((ours.bytes(), ours.page_bytes()), (bytes, PAGE));
            ours.write(bytes - 8, &bytes.to_ne_bytes()).unwrap();
            let mut seen = [0; 8];
            crate::words::load(theirs.words(), (begin + bytes - 8) as usize, &mut seen);
            assert_eq!(u64::from_ne_bytes(seen), bytes);
        }
        if nix::unistd::geteuid().is_root() {
            let mut again = Command::new("/proc/self/exe");
            again.args(["find::tests::memory_of_a_process", "--exact"]).uid(65534).gid(65534).current_dir("/");
            let output = again.output().unwrap();
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && told.contains("1 passed"), "{told}");
        }
    }

    #[test]
    fn why_it_cannot_be() {
        let pid = std::process::id();
        let refused = |block: &RamBlock| find_shared(pid, block).unwrap_err();
        let own = vec![0u8; 2 * PAGE as usize];
        let error = refused(&block(own.as_ptr().addr() as u64, PAGE));
        assert!(matches!(&error, FindError::Private(name) if name == "pc.ram"));
        // That is what another way is for.
        let private = find_private(pid, &block(own.as_ptr().addr() as u64, PAGE)).unwrap();
        assert!(!private.outlives_qemu() && private.bytes() == PAGE);
        assert!(matches!(refused(&block(PAGE, PAGE)), FindError::NotMapped { address: PAGE, .. }));
        assert!(matches!(refused(&block(u64::MAX, PAGE)), FindError::NotMapped { .. }));
        assert!(matches!(refused(&block(PAGE, 0)), FindError::Empty(_)));
        assert!(matches!(refused(&RamBlock { host_address: None, ..block(0, PAGE) }), FindError::NoAddress(_)));
        for nobody in [u32::MAX, 0] {
            assert!(matches!(find_shared(nobody, &block(PAGE, PAGE)), Err(FindError::NoProcess(pid)) if pid == nobody));
        }

        let file = memory(4 * PAGE);
        let theirs = Mapping::shared(&file, 0, 4 * PAGE as usize).unwrap();
        let address = address_of(&theirs);
        assert!(matches!(refused(&block(address + 8, PAGE)), FindError::Misaligned { page_bytes: PAGE, .. }));
        file.set_len(2 * PAGE).unwrap();
        find_shared(pid, &block(address, 2 * PAGE)).unwrap();
        let error = refused(&block(address, 2 * PAGE + 1));
        assert!(matches!(error, FindError::Short { bytes: 8192, end: 12288, .. }), "{error}");
    }

    #[test]
    fn a_file_on_a_disk() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(PAGE).unwrap();
        if fstatfs(&file).unwrap().filesystem_type() == TMPFS_MAGIC {
            println!("skipped: the sources are on a tmpfs");
            return;
        }
        let theirs = Mapping::shared(&file, 0, PAGE as usize).unwrap();
        let error = find_shared(std::process::id(), &block(address_of(&theirs), PAGE)).unwrap_err();
        // On some filesystems the map shows another device number than the file has.
        assert!(matches!(error, FindError::NotInMemory { .. } | FindError::Replaced { .. }), "{error}");
    }

    #[test]
    fn a_file_that_took_its_place() {
        let (file, other) = (memory(PAGE), memory(PAGE));
        let theirs = Mapping::shared(&file, 0, PAGE as usize).unwrap();
        let address = address_of(&theirs);
        let process = open("/proc/self", OFlag::O_PATH, Mode::empty()).unwrap();
        let maps = read_maps(&process).unwrap();
        let found = backing(&maps, address..address + PAGE).unwrap();
        let inode = fstat(&other).unwrap().st_ino;
        assert_ne!(found.inode, inode);
        let stale = Backing { inode: u64::MAX, ..found.clone() };
        let error = map_backing(&process, &block(address, PAGE), &stale, NOWHERE).unwrap_err();
        assert!(matches!(error, FindError::Replaced { .. } | FindError::Open { .. }), "{error}");
        assert!(map_backing(&process, &block(address, PAGE), &found, NOWHERE).is_ok());
    }

    #[test]
    fn a_device() {
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let stat = fstat(&zero).unwrap();
        // As if it were still a device: Linux makes a file in memory of a shared mapping of /dev/zero.
        let process = open("/proc/self", OFlag::O_PATH, Mode::empty()).unwrap();
        let device = (major(stat.st_dev), minor(stat.st_dev));
        let backing = Backing { mapping: 0..1, offset: 0, device, inode: stat.st_ino, path: "/dev/zero".into() };
        let error = map_backing(&process, &block(0, PAGE), &backing, NOWHERE).unwrap_err();
        assert!(matches!(error, FindError::NotAFile { .. }), "{error}");
    }
}
