//! Finds where other hosts' agents listen.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use skein_inventory::{HostAddress, HostEntry, HostsFile};
use thiserror::Error;

use super::learnt_hosts::LearntHosts;
use crate::watched_file::{WatchedFile, WatchedFileError};

/// Holds the port at which agents listen by default.
pub const DEFAULT_PORT: u16 = 7070;

/// The most hosts that are named where another was meant.
const KNOWN_TOLD_MAX: usize = 16;

/// The reason why a name or address leads nowhere.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ResolveError {
    #[error("'{text}' is no address: {reason}")]
    Syntax { text: String, reason: String },
    #[error("cannot find the address of '{0}'")]
    Unknown(String, #[source] io::Error),
}

/// The reason why the address of a host's agent is not known.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum FindError {
    #[error(transparent)]
    Address(ResolveError),
    /// The host is looked up by its name, because the file does not have it.
    #[error(
        "unknown host{}: {} ({})",
        known_words(known), crate::error_chain(&**by_name), unlisted_words(file, hosts_file.as_ref())
    )]
    Unlisted {
        /// The names of all hosts that are known.
        known: Vec<String>,
        file: PathBuf,
        /// The reason why the file cannot be used; `None`: it can be used.
        hosts_file: Option<WatchedFileError>,
        // The field is no source of the chain, because its words are in the middle.
        by_name: Box<ResolveError>,
    },
}

fn unlisted_words(file: &Path, hosts_file: Option<&WatchedFileError>) -> String {
    match hosts_file {
        Some(error) => format!("and {}", crate::error_chain(error)),
        None => format!("it is not in {}", file.display()),
    }
}

/// Names the hosts that there are, of many the first.
fn known_words(known: &[String]) -> String {
    let more = known.len().saturating_sub(KNOWN_TOLD_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let told = &known[..known.len().min(KNOWN_TOLD_MAX)];
    match told {
        [] => String::new(),
        [one] => format!(", where {one} is known"),
        _ => format!(", where {}{more} are known", told.join(", ")),
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

/// The hosts file, read again whenever it changed, and what controllers said of hosts that are not in it.
pub(crate) struct HostAddresses {
    file: WatchedFile<HostsFile>,
    learnt: LearntHosts,
}

impl HostAddresses {
    /// `cache` is the file that keeps what controllers said; `None`: it is not kept.
    pub(crate) fn new(path: &Path, cache: Option<&Path>) -> HostAddresses {
        HostAddresses { file: WatchedFile::new(path, HostsFile::parse), learnt: LearntHosts::load(cache) }
    }

    /// Returns the hosts in the file, and those that a controller named. Without a file there are only the latter.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or makes no sense.
    pub(crate) fn hosts(&self) -> Result<HostsFile, WatchedFileError> {
        let mut hosts = self.file.content()?;
        for (name, addresses) in self.learnt.all() {
            if hosts.get(&name).is_none() {
                hosts.hosts.push(HostEntry {
                    name,
                    addresses,
                    transport: None,
                    rate: None,
                    keep_ram: None,
                    keep_time: None,
                });
            }
        }
        Ok(hosts)
    }

    /// Returns the names of the hosts in the latest file that could be read, and of those that a controller named.
    fn names(&self) -> Vec<String> {
        let listed: Vec<String> = self.file.refreshed().latest.hosts.iter().map(|host| host.name.clone()).collect();
        let all: BTreeSet<String> = listed.into_iter().chain(self.learnt.all().into_keys()).collect();
        all.into_iter().collect()
    }

    /// Takes what a controller says of all hosts, in place of what was said before.
    pub(crate) fn learn(&self, said: &BTreeMap<String, Vec<String>>) {
        self.learnt.replace(said);
    }

    /// Returns where a host's agent listens, best first: by the file, else by a controller's word, else by the host's
    /// name. A host that an earlier version of the file had is found by that version as long as the new version cannot
    /// be read.
    ///
    /// # Errors
    ///
    /// No address is known.
    pub(crate) fn find(&self, name: &str) -> Result<Vec<SocketAddr>, FindError> {
        let (listed, error) = {
            let read = self.file.refreshed();
            (read.latest.get(name).map(|host| host.addresses.clone()), read.error.clone())
        };
        let Some(addresses) = listed.or_else(|| self.learnt.get(name)) else {
            return resolve(name).map_err(|by_name| FindError::Unlisted {
                known: self.names(),
                file: self.file.path().to_owned(),
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
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

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
        let file = HostAddresses::new(&path, None);
        assert_eq!(file.hosts(), Ok(HostsFile::default()));
        fs::write(&path, "[[host]]\nname = 'b'\naddress = ['10.0.0.2', '10.0.1.2:80', '10.0.0.2:7070']\n").unwrap();
        let expected: Vec<SocketAddr> = vec!["10.0.0.2:7070".parse().unwrap(), "10.0.1.2:80".parse().unwrap()];
        assert_eq!(file.find("b").unwrap(), expected);
        let unknown = file.find("c d").unwrap_err().to_string();
        assert!(
            unknown.contains("unknown host, where b is known: 'c d'") && unknown.contains("is not in"),
            "{unknown}"
        );
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
    fn a_controllers_word_counts_where_the_file_has_none_and_outlives_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let (path, cache) = (dir.path().join("hosts.toml"), dir.path().join("hosts.json"));
        let hosts = HostAddresses::new(&path, Some(&cache));
        let said = |host: &str, address: &str| BTreeMap::from([(host.to_owned(), vec![address.to_owned()])]);
        let found = |hosts: &HostAddresses, name| hosts.find(name).unwrap()[0].to_string();
        hosts.learn(&said("b", "10.0.0.2:71"));
        assert_eq!(found(&hosts, "b"), "10.0.0.2:71");
        assert_eq!(hosts.hosts().unwrap().get("b").unwrap().addresses[0].to_string(), "10.0.0.2:71");
        assert_eq!(found(&HostAddresses::new(&path, Some(&cache)), "b"), "10.0.0.2:71", "started again");
        fs::write(&path, "[[host]]\nname = 'b'\naddress = ['10.0.0.9']\n").unwrap();
        assert_eq!(found(&hosts, "b"), "10.0.0.9:7070", "the file wins");
        assert_eq!(hosts.hosts().unwrap().hosts.len(), 1);
        fs::remove_file(&path).unwrap();
        hosts.learn(&said("c", "10.0.0.3:72"));
        assert!(hosts.find("b").is_err(), "the last word counts");
        assert_eq!(found(&hosts, "c"), "10.0.0.3:72");
        fs::write(&cache, "{").unwrap();
        let again = HostAddresses::new(&path, Some(&cache));
        assert!(again.find("c d").is_err());
        again.learn(&said("c", "10.0.0.3:72"));
        assert_eq!(found(&again, "c"), "10.0.0.3:72");
    }

    #[test]
    fn what_is_no_file_is_told_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts.toml");
        let file = HostAddresses::new(&path, None);
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
