//! One process has a store: a lock beside its file, which the kernel lets go when the process ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// A store that this process has. The file stays: a lock on a file that is removed meets nobody.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _lock: Flock<File>,
}

/// Why a process does not get a store.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Another process has it, by its own words.
    Held(String),
    /// The lock's file cannot be opened or locked.
    Failed(std::io::Error),
}

/// Where the lock of a store is: not the file itself, whose locks SQLite loses if anybody else in the process closes it
/// (<https://sqlite.org/howtocorrupt.html>, section 2.2).
pub(crate) fn lock_path(store: &Path) -> PathBuf {
    let mut path = store.as_os_str().to_os_string();
    path.push(".lock");
    path.into()
}

impl StoreLock {
    pub fn take(store: &Path) -> Result<StoreLock, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(lock_path(store)).map_err(LockError::Failed)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let program = std::env::current_exe().ok();
                let program = program.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
                let holder = format!("{program} with process id {}", std::process::id());
                write_holder(&mut lock, &holder).map_err(LockError::Failed)?;
                Ok(StoreLock { _lock: lock })
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                // Who it is only helps; the lock itself says that it is held.
                let _ = Read::by_ref(&mut file).take(300).read_to_string(&mut holder);
                Err(LockError::Held(if holder.is_empty() { "another process".into() } else { holder }))
            }
            Err((_, errno)) => Err(LockError::Failed(errno.into())),
        }
    }
}

fn write_holder(file: &mut File, holder: &str) -> std::io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(holder.as_bytes())
}
