//! Keeps what a QEMU writes that outlives its starter.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::process::child::{STDERR_BYTES_MAX, plain, words};

/// The file to which a process appends its output. The process's own words are those after `begin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    path: PathBuf,
    begin: u64,
}

impl Log {
    pub(super) fn open(path: &Path) -> io::Result<(Self, File)> {
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let begin = file.seek(SeekFrom::End(0))?;
        Ok((Self { path: path.into(), begin }, file))
    }

    /// Returns the last words of this process, 16 KiB at most; `None`: it wrote nothing, or its log is gone.
    pub fn last_words(&self) -> Option<String> {
        let bytes = tail(&self.path, self.begin).ok()?;
        let said = plain(&bytes);
        (!said.is_empty()).then_some(said)
    }

    /// Returns the end of what this process wrote: 16 KiB at most.
    pub fn tail(&self) -> String {
        tail(&self.path, self.begin)
            .map_or_else(|error| format!("its log cannot be read: {error}"), |bytes| words(&bytes))
    }
}

fn tail(path: &Path, begin: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(begin.max(end.saturating_sub(STDERR_BYTES_MAX as u64))))?;
    let mut bytes = Vec::new();
    file.take(STDERR_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gives_its_own_end() {
        let path = std::env::temp_dir().join(format!("skein-log-test-{}", std::process::id()));
        std::fs::write(&path, "an earlier QEMU\n").unwrap();
        let (log, mut file) = Log::open(&path).unwrap();
        assert_eq!((log.tail().as_str(), log.last_words()), ("it wrote nothing", None));
        io::Write::write_all(&mut file, b"boom\n").unwrap();
        assert_eq!((log.tail().as_str(), log.last_words().as_deref()), ("boom", Some("boom")));
        io::Write::write_all(&mut file, &[b'x'; 2 * STDERR_BYTES_MAX]).unwrap();
        assert_eq!(log.tail().len(), STDERR_BYTES_MAX);
        std::fs::remove_file(&path).unwrap();
        assert!(log.tail().contains("cannot be read"));
    }
}
