//! The seam between the journal and the file system.
//!
//! A killed process loses nothing that it wrote, so a test that kills one cannot tell a journal that syncs from a
//! journal that does not. Behind this seam the tests put a disk that forgets what was not flushed (`forgetful.rs`).

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::libc::{O_DIRECT, O_DSYNC, O_NONBLOCK, c_int, c_long};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use nix::sys::statvfs::{FsFlags, fstatvfs};

/// The way in which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Opens a file that is there, for reading.
    Read,
    /// Opens a new or emptied file for writing. Only the file's owner may read it.
    Create,
    /// Opens a file that is there, for writing. Writes are on the disk after [`OpenFile::sync_all`].
    Write,
    /// Opens a file that is there, for writing. A write is on the disk when it returns.
    Durable,
}

/// The facts of a file that are known without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Whether the file is a regular file: no directory, FIFO or device.
    pub is_file: bool,
    /// How many bytes of the disk the file takes: fewer than its length if it has holes.
    pub allocated_bytes: u64,
}

/// The names of files, and what can be done with them.
pub(crate) trait FileSystem: Debug + Send + Sync {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>>;

    /// Gives the file at `from` the name `to`, in place of the file that had the name. The disk has either file until
    /// [`Self::sync_directory`] returns.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Waits until the names in `directory` are on the disk.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// An open file.
pub(crate) trait OpenFile: Debug + Send + Sync {
    fn shape(&self) -> io::Result<Shape>;

    /// Returns the bytes from the file's beginning, at most `most`.
    fn read(&self, most: usize) -> io::Result<Vec<u8>>;

    /// Writes all of `bytes` from `offset` on.
    fn write_in_place(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reserves the space of an empty file that will have `bytes` bytes, for writes in place.
    fn reserve(&self, bytes: usize) -> io::Result<()>;

    /// Waits until all that was written to the file is on the disk, its length, too.
    fn sync_all(&self) -> io::Result<()>;

    /// Makes the next read come from the disk.
    fn forget_cache(&self) -> io::Result<()>;

    /// Returns whether the file system is mounted read-only.
    fn is_read_only(&self) -> io::Result<bool>;
}

/// This host's file systems.
#[derive(Debug)]
pub(crate) struct Kernel;

impl FileSystem for Kernel {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        let file = match access {
            // The open does not block on a FIFO that somebody put there.
            Access::Read => options.read(true).custom_flags(O_NONBLOCK).open(path),
            Access::Create => options.write(true).create(true).truncate(true).mode(0o600).open(path),
            Access::Write => options.write(true).open(path),
            Access::Durable => durable(|flags| options.write(true).custom_flags(flags).open(path)),
        };
        Ok(Box::new(file?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

/// Opens a file for durable writes in place, by `open` with flags of open(2). With `O_DIRECT` such a write is a single
/// command to a disk that knows FUA. Without, the write is followed by a flush of all that others have in the disk's
/// cache.
fn durable(mut open: impl FnMut(c_int) -> io::Result<File>) -> io::Result<File> {
    match open(O_DSYNC | O_DIRECT) {
        // This file system has no direct I/O (open(2)).
        Err(error) if error.kind() == ErrorKind::InvalidInput => open(O_DSYNC),
        other => other,
    }
}

impl OpenFile for File {
    fn shape(&self) -> io::Result<Shape> {
        let metadata = self.metadata()?;
        Ok(Shape { is_file: metadata.is_file(), allocated_bytes: metadata.blocks() * 512 })
    }

    fn read(&self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write_in_place(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn reserve(&self, bytes: usize) -> io::Result<()> {
        in_place(self)?;
        match fallocate(self, FallocateFlags::empty(), 0, bytes as i64) {
            // The zeros that are written allocate space as well, but perhaps not in one piece.
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn forget_cache(&self) -> io::Result<()> {
        Ok(posix_fadvise(self, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
    }

    fn is_read_only(&self) -> io::Result<bool> {
        Ok(fstatvfs(self)?.flags().contains(FsFlags::ST_RDONLY))
    }
}

/// Makes btrfs write a file that is still empty in place, too. Otherwise every write there needs new space.
fn in_place(file: &File) -> io::Result<()> {
    if fstatfs(file)?.filesystem_type() != BTRFS_SUPER_MAGIC {
        return Ok(());
    }
    let mut flags = 0;
    // SAFETY: the descriptor is open, and both calls take a pointer to an int that lives until they return; the kernel
    // reads and writes an int, though the request's number says long (ioctl_iflags(2)).
    unsafe {
        get_flags(file.as_raw_fd(), &mut flags)?;
        set_flags(file.as_raw_fd(), &(flags | FS_NOCOW_FL))?;
    }
    Ok(())
}

/// Holds a flag of `include/uapi/linux/fs.h`.
const FS_NOCOW_FL: c_int = 0x0080_0000;

nix::ioctl_read_bad!(get_flags, nix::request_code_read!(b'f', 1, size_of::<c_long>()), c_int);
nix::ioctl_write_ptr_bad!(set_flags, nix::request_code_write!(b'f', 2, size_of::<c_long>()), c_int);

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;

    /// Returns the flags that the kernel has for an open file (fcntl(2), F_GETFL).
    fn flags(file: &File) -> c_int {
        fcntl(file, FcntlArg::F_GETFL).unwrap()
    }

    #[test]
    fn every_write_of_a_durable_file_is_synchronous() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = |flags| OpenOptions::new().write(true).custom_flags(flags).open(&path);
        // One file system has direct I/O, the other has not.
        let direct =
            |flags| if flags & O_DIRECT == 0 { panic!("direct I/O is tried first") } else { open(flags & !O_DIRECT) };
        let indirect = |flags| if flags & O_DIRECT == 0 { open(flags) } else { Err(Errno::EINVAL.into()) };
        assert_eq!(flags(&durable(direct).unwrap()) & O_DSYNC, O_DSYNC);
        assert_eq!(flags(&durable(indirect).unwrap()) & (O_DSYNC | O_DIRECT), O_DSYNC);
        // Another error is no reason to try again.
        let refused = durable(|_| Err(Errno::EROFS.into())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    }
}
