//! Reads small files with a bound, and writes files so that a crash leaves the old content or the new, never half.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most bytes of a file: a PEM file has 1 to 2 KB; a bundle of CAs has more.
pub(crate) const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file exists. Nothing is overwritten by accident: a lost CA key cannot be recovered.
    #[error("{0} exists already and is not overwritten: choose another directory, or move it away first")]
    Exists(PathBuf),
    /// This user may not write to this path.
    #[error("no permission to write {0}: run as root, or choose another directory")]
    Denied(PathBuf),
    /// The system reported an error.
    #[error("cannot write {path}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A file's content and its permission bits, both of the same open file.
pub(crate) struct Content {
    pub bytes: Vec<u8>,
    pub mode: u32,
}

/// Reads a file of at most [`FILE_BYTES_MAX`]. A larger file is an error of kind `FileTooLarge`.
pub(crate) fn read(path: &Path) -> io::Result<Content> {
    // Does not block on a FIFO that somebody put there.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 64 KiB"));
    }
    Ok(Content { bytes, mode: metadata.permissions().mode() & 0o7777 })
}

/// What to do if the file exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Refuse,
    Replace,
}

/// Writes `bytes` to a temporary file beside `path`, syncs it, gives it its name, and syncs the directory.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> Result<(), WriteError> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    let part = dir.join(name);

    let done = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
        // The mode above is subject to the umask.
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match existing {
            Existing::Replace => std::fs::rename(&part, path)?,
            // Unlike rename, a link fails where the name is taken.
            Existing::Refuse => {
                std::fs::hard_link(&part, path)?;
                std::fs::remove_file(&part)?;
            }
        }
        File::open(dir)?.sync_all()
    })();
    done.map_err(|error| {
        // The file is left from a writer that was killed, or from this one: nobody needs it.
        let _ = std::fs::remove_file(&part);
        if error.kind() == io::ErrorKind::AlreadyExists && path.exists() {
            WriteError::Exists(path.to_owned())
        } else {
            failed(path, error)
        }
    })
}

/// Makes the directory `path` and its parents, accessible only to this user. A directory that exists is left as it is.
pub(crate) fn create_dir(path: &Path) -> Result<(), WriteError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| failed(path, error))
}

fn failed(path: &Path, source: io::Error) -> WriteError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => WriteError::Denied(path),
        _ => WriteError::Io { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_or_replaces_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        write(&path, b"one", 0o600, Existing::Refuse).unwrap();
        assert!(matches!(write(&path, b"two", 0o600, Existing::Refuse), Err(WriteError::Exists(p)) if p == path));
        assert_eq!(read(&path).unwrap().bytes, b"one");
        write(&path, b"three", 0o644, Existing::Replace).unwrap();
        let content = read(&path).unwrap();
        assert_eq!((content.bytes.as_slice(), content.mode), (b"three".as_slice(), 0o644));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn reads_no_more_than_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        std::fs::write(&path, vec![b'x'; FILE_BYTES_MAX as usize]).unwrap();
        assert_eq!(read(&path).unwrap().bytes.len() as u64, FILE_BYTES_MAX);
        std::fs::write(&path, vec![b'x'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert_eq!(read(&path).err().unwrap().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read(dir.path()).err().unwrap().kind(), io::ErrorKind::InvalidInput);
    }
}
