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

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading what is there.
    Read,
    /// Writing a new file, or one that is emptied; only its owner may read it.
    Create,
    /// Writing to a file that is there. What is written is on the disk after [`OpenFile::sync_all`].
    Write,
    /// Writing to a file that is there. What is written is on the disk when the write returns.
    Durable,
}

/// What is known of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Not a directory, FIFO or device.
    pub is_file: bool,
    /// Bytes of the disk that it takes: fewer than its length where it has holes.
    pub allocated_bytes: u64,
}

/// The names of files.
pub(crate) trait FileSystem: Debug + Send + Sync {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>>;

    /// Gives the file at `from` the name `to`, in place of the file that had it. The disk has either until
    /// [`Self::sync_directory`] returns.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns when the names in `directory` are on the disk.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// A file that is open.
pub(crate) trait OpenFile: Debug + Send + Sync {
    fn shape(&self) -> io::Result<Shape>;

    /// The bytes from the file's beginning, at most `most`.
    fn read(&self, most: usize) -> io::Result<Vec<u8>>;

    /// Writes all of `bytes` from `offset` on.
    fn write_in_place(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reserves the space of an empty file that will have so many bytes, for writes in place.
    fn reserve(&self, bytes: usize) -> io::Result<()>;

    /// Returns when all that was written to the file is on the disk, its length too.
    fn sync_all(&self) -> io::Result<()>;

    /// Has the next read come from the disk.
    fn forget_cache(&self) -> io::Result<()>;

    /// Whether the file system is mounted read-only.
    fn is_read_only(&self) -> io::Result<bool>;
}

/// The file systems of this host.
#[derive(Debug)]
pub(crate) struct Kernel;

impl FileSystem for Kernel {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        let file = match access {
            // Not blocking on a FIFO that somebody put there.
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
/// command to a disk that knows FUA, instead of a write and the flush of all that others have in the disk's cache.
fn durable(mut open: impl FnMut(c_int) -> io::Result<File>) -> io::Result<File> {
    match open(O_DSYNC | O_DIRECT) {
        // open(2): this file system has no direct I/O.
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
            // The zeros that are written allocate as well, only perhaps not in one piece.
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

/// Has a file that is still empty written in place on btrfs too, where every write would else need new space.
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

/// `include/uapi/linux/fs.h`
const FS_NOCOW_FL: c_int = 0x0080_0000;

nix::ioctl_read_bad!(get_flags, nix::request_code_read!(b'f', 1, size_of::<c_long>()), c_int);
nix::ioctl_write_ptr_bad!(set_flags, nix::request_code_write!(b'f', 2, size_of::<c_long>()), c_int);

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;

    /// The flags that the kernel has for an open file (fcntl(2), F_GETFL).
    fn flags(file: &File) -> c_int {
        fcntl(file, FcntlArg::F_GETFL).unwrap()
    }

    #[test]
    fn every_write_of_a_durable_file_is_synchronous() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = |flags| OpenOptions::new().write(true).custom_flags(flags).open(&path);
        // On a file system that has direct I/O, and on one that has not.
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
