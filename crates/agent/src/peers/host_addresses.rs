//! Finds where other hosts' agents listen.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use parking_lot::{Mutex, MutexGuard};
use skein_inventory::{HostAddress, HostsFile, ParseError, TEXT_BYTES_MAX};
use thiserror::Error;
use tracing::warn;

/// Holds the port at which agents listen by default.
pub const DEFAULT_PORT: u16 = 7070;

/// The reason why a name or address leads nowhere.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ResolveError {
    #[error("'{text}' is no address: {reason}")]
    Syntax { text: String, reason: String },
    #[error("cannot find the address of '{0}'")]
    Unknown(String, #[source] io::Error),
}

/// The reason why the hosts file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum HostsFileError {
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

/// The reason why the address of a host's agent is not known.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum FindError {
    #[error(transparent)]
    Address(ResolveError),
    /// The host is looked up by its name, because the file does not have it.
    #[error("{} ({})", crate::error_chain(&**by_name), unlisted_words(file, hosts_file.as_ref()))]
    Unlisted {
        file: PathBuf,
        /// The reason why the file cannot be used; `None`: it can be used.
        hosts_file: Option<HostsFileError>,
        // The field is no source of the chain, because its words are in the middle.
        by_name: Box<ResolveError>,
    },
}

fn unlisted_words(file: &Path, hosts_file: Option<&HostsFileError>) -> String {
    match hosts_file {
        Some(error) => format!("and {}", crate::error_chain(error)),
        None => format!("it is not in {}", file.display()),
    }
}

/// Resolves names and addresses to socket addresses, with the default port if none is given. The call asks DNS, so it
/// may take long.
pub fn resolve(text: &str) -> Result<Vec<SocketAddr>, ResolveError> {
    // People write an address without a port so, too.
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address: HostAddress =
        bare.parse().or_else(|_| text.parse()).map_err(|reason| ResolveError::Syntax { text: text.into(), reason })?;
    look_up(&address)
}

fn look_up(address: &HostAddress) -> Result<Vec<SocketAddr>, ResolveError> {
    let found = (address.host.as_str(), address.port.unwrap_or(DEFAULT_PORT)).to_socket_addrs();
    Ok(found.map_err(|source| ResolveError::Unknown(address.to_string(), source))?.collect())
}

/// The hosts file, read again whenever it changed.
pub(crate) struct WatchedHostsFile {
    path: PathBuf,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    /// The inode, size and time of change by which the file is known to be the same.
    stamp: Option<(u64, u64, i64, i64)>,
    /// The latest content that could be read.
    hosts: HostsFile,
    error: Option<HostsFileError>,
}

impl WatchedHostsFile {
    pub(crate) fn new(path: &Path) -> WatchedHostsFile {
        WatchedHostsFile { path: path.to_owned(), read: Mutex::default() }
    }

    /// Returns the hosts in the file. Without a file there are no hosts.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or makes no sense.
    pub(crate) fn hosts(&self) -> Result<HostsFile, HostsFileError> {
        let read = self.refreshed();
        read.error.clone().map_or_else(|| Ok(read.hosts.clone()), Err)
    }

    /// Returns where a host's agent listens, best first: by the file, else by the host's name. A host that an earlier
    /// version of the file had is found by that version as long as the new version cannot be read.
    ///
    /// # Errors
    ///
    /// No address is known.
    pub(crate) fn find(&self, name: &str) -> Result<Vec<SocketAddr>, FindError> {
        let (listed, error) = {
            let read = self.refreshed();
            let host = read.hosts.hosts.iter().find(|host| host.name == name);
            (host.map(|host| host.addresses.clone()), read.error.clone())
        };
        let Some(addresses) = listed else {
            return resolve(name).map_err(|by_name| FindError::Unlisted {
                file: self.path.clone(),
                hosts_file: error,
                by_name: Box::new(by_name),
            });
        };
        let mut found = Vec::new();
        let mut last = None;
        for address in &addresses {
            match look_up(address) {
                Ok(some) => {
                    found.extend(some.into_iter().filter(|address| !found.contains(address)).collect::<Vec<_>>())
                }
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if found.is_empty() => Err(FindError::Address(error)),
            _ => Ok(found),
        }
    }

    fn refreshed(&self) -> MutexGuard<'_, Read> {
        let mut read = self.read.lock();
        let stamp =
            fs::metadata(&self.path).ok().map(|file| (file.ino(), file.size(), file.mtime(), file.mtime_nsec()));
        if stamp.is_none() {
            *read = Read::default();
        } else if stamp != read.stamp {
            let name = self.path.display().to_string();
            let parsed = read_text(&self.path, TEXT_BYTES_MAX)
                .map_err(|source| HostsFileError::Unreadable { file: name.clone(), source })
                .and_then(|text| HostsFile::parse(&text, &name).map_err(HostsFileError::Invalid));
            read.stamp = stamp;
            match parsed {
                Ok(hosts) => (read.hosts, read.error) = (hosts, None),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_port() {
        for (text, expected) in [
            ("10.0.0.2", "10.0.0.2:7070"),
            ("10.0.0.2:80", "10.0.0.2:80"),
            ("fd00::2", "[fd00::2]:7070"),
            ("[fd00::2]", "[fd00::2]:7070"),
            ("[fd00::2]:80", "[fd00::2]:80"),
        ] {
            assert_eq!(resolve(text).unwrap(), [expected.parse().unwrap()], "{text}");
        }
        for bad in ["", "10.0.0.2:0", "10.0.0.256", "a b", "[a"] {
            assert!(matches!(resolve(bad), Err(ResolveError::Syntax { .. })), "{bad}");
        }
    }

    #[test]
    fn the_file_is_read_again_when_it_changed_and_a_broken_one_harms_no_host_that_was_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts.toml");
        let file = WatchedHostsFile::new(&path);
        assert_eq!(file.hosts(), Ok(HostsFile::default()));
        fs::write(&path, "[[host]]\nname = 'b'\naddress = ['10.0.0.2', '10.0.1.2:80', '10.0.0.2:7070']\n").unwrap();
        let expected: Vec<SocketAddr> = vec!["10.0.0.2:7070".parse().unwrap(), "10.0.1.2:80".parse().unwrap()];
        assert_eq!(file.find("b").unwrap(), expected);
        assert!(file.find("c d").unwrap_err().to_string().contains("is not in"));
        fs::write(&path, "[[host]]\nname = 'b'\nadres = []\n").unwrap();
        assert_eq!(file.find("b").unwrap(), expected);
        assert!(file.hosts().unwrap_err().to_string().contains("adres"), "{:?}", file.hosts());
        assert!(file.find("c d").unwrap_err().to_string().contains("adres"));
        fs::write(&path, "[[host]]\nname = 'b'\naddress = ['10.0.0.3']\n").unwrap();
        assert_eq!(file.find("b").unwrap(), ["10.0.0.3:7070".parse().unwrap()]);
        fs::remove_file(&path).unwrap();
        assert_eq!(file.hosts(), Ok(HostsFile::default()));
    }

    #[test]
    fn what_is_no_file_is_told_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts.toml");
        let file = WatchedHostsFile::new(&path);
        let fault = |says: &str| {
            let fault = crate::error_chain(&file.hosts().unwrap_err());
            assert!(fault.contains("hosts.toml cannot be read") && fault.contains(says), "{fault}");
        };
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        fault("a pipe (FIFO)");
        assert!(file.find("c d").unwrap_err().to_string().contains("FIFO"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fault("a directory");
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        fault("a device");
        fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        fault("hosts.toml cannot be read");
        fs::remove_file(&path).unwrap();
        fs::write(&path, [0xff, 0xfe]).unwrap();
        fault("not UTF-8");
        // The file is sparse, so it fills no disk.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        fault("larger than 4 MiB");
        fs::write(&path, "[[host]]\nname = 'b'\naddress = ['10.0.0.3']\n").unwrap();
        assert_eq!(file.find("b").unwrap(), ["10.0.0.3:7070".parse().unwrap()]);
    }
}
