//! Reads a file that a person writes again whenever it changed.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use parking_lot::{Mutex, MutexGuard};
use skein_inventory::{ParseError, TEXT_BYTES_MAX};
use thiserror::Error;
use tracing::warn;

/// The reason why a watched file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum WatchedFileError {
    #[error("{file} cannot be read")]
    Unreadable {
        file: String,
        #[source]
        source: TextFileError,
    },
    #[error(transparent)]
    Invalid(ParseError),
}

/// The reason why a text file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum TextFileError {
    /// The system's error, in words.
    #[error("{0}")]
    Io(String),
    #[error("it is {0}: put a text file there")]
    NoFile(&'static str),
    #[error("it is larger than {} MiB: is it the file that was meant?", .0 >> 20)]
    TooLarge(usize),
    #[error("it is not UTF-8: write it as a text file")]
    NotText,
}

impl From<io::Error> for TextFileError {
    fn from(error: io::Error) -> TextFileError {
        TextFileError::Io(error.to_string())
    }
}

/// Reads a text, whose file's name is for messages.
type Parse<T> = fn(&str, &str) -> Result<T, ParseError>;

/// A file, read again whenever it changed.
pub(crate) struct WatchedFile<T> {
    path: PathBuf,
    parse: Parse<T>,
    read: Mutex<Content<T>>,
}

/// What was read of a file.
#[derive(Default)]
pub(crate) struct Content<T> {
    /// The inode, size and time of change by which the file is known to be the same.
    stamp: Option<(u64, u64, i64, i64)>,
    /// The latest content that could be read.
    pub(crate) latest: T,
    /// The reason why the file as it is now cannot be used.
    pub(crate) error: Option<WatchedFileError>,
}

impl<T: Clone + Default> WatchedFile<T> {
    pub(crate) fn new(path: &Path, parse: Parse<T>) -> WatchedFile<T> {
        WatchedFile { path: path.to_owned(), parse, read: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content. Without a file it is the default.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or makes no sense.
    pub(crate) fn content(&self) -> Result<T, WatchedFileError> {
        let read = self.refreshed();
        read.error.clone().map_or_else(|| Ok(read.latest.clone()), Err)
    }

    pub(crate) fn refreshed(&self) -> MutexGuard<'_, Content<T>> {
        let mut read = self.read.lock();
        let stamp =
            fs::metadata(&self.path).ok().map(|file| (file.ino(), file.size(), file.mtime(), file.mtime_nsec()));
        if stamp.is_none() {
            *read = Content::default();
        } else if stamp != read.stamp {
            let name = self.path.display().to_string();
            let parsed = read_text(&self.path, TEXT_BYTES_MAX)
                .map_err(|source| WatchedFileError::Unreadable { file: name.clone(), source })
                .and_then(|text| (self.parse)(&text, &name).map_err(WatchedFileError::Invalid));
            read.stamp = stamp;
            match parsed {
                Ok(content) => (read.latest, read.error) = (content, None),
                Err(error) => {
                    warn!("{}", crate::error_chain(&error));
                    read.error = Some(error);
                }
            }
        }
        read
    }
}

/// Reads a text file that a person named. Never waits for what is no file: a FIFO that nobody writes to, a terminal.
fn read_text(path: &Path, bytes_max: usize) -> Result<String, TextFileError> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        return Err(TextFileError::NoFile(match kind {
            _ if kind.is_dir() => "a directory",
            _ if kind.is_fifo() => "a pipe (FIFO)",
            _ => "a device",
        }));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(TextFileError::TooLarge(bytes_max));
    }
    String::from_utf8(bytes).map_err(|_| TextFileError::NotText)
}
