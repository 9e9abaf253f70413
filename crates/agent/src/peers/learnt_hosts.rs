//! Keeps what controllers said of where hosts are, so that migrations begin without a controller.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use skein_inventory::HostAddress;
use tracing::warn;

use crate::dirs::replace;

/// Bounds the file, in bytes: four thousand hosts with a few addresses each.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Holds the version of the format; a file of another version is passed over.
const FORMAT: u32 = 1;

/// The hosts of the last word of a controller. Whose word it was does not matter: who answers at an address has to
/// show that host's certificate.
pub(super) struct LearntHosts {
    cache: Option<PathBuf>,
    hosts: Mutex<Hosts>,
}

type Hosts = BTreeMap<String, Vec<HostAddress>>;

#[derive(Serialize, Deserialize)]
struct Saved {
    format: u32,
    hosts: Hosts,
}

impl LearntHosts {
    /// Takes up what was kept. A file that cannot be read is logged, and written anew with the next word.
    pub(super) fn load(cache: Option<&Path>) -> LearntHosts {
        let hosts = cache.map_or_else(Hosts::default, |path| match read(path) {
            Ok(hosts) => hosts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Hosts::default(),
            Err(error) => {
                warn!("{} is passed over: {error}", path.display());
                Hosts::default()
            }
        });
        LearntHosts { cache: cache.map(Path::to_owned), hosts: Mutex::new(hosts) }
    }

    /// Returns all hosts.
    pub(super) fn all(&self) -> Hosts {
        self.hosts.lock().clone()
    }

    /// Returns the addresses of a host.
    pub(super) fn get(&self, name: &str) -> Option<Vec<HostAddress>> {
        self.hosts.lock().get(name).cloned()
    }

    /// Takes a controller's word, in place of what was said before. An address that makes no sense is left out, and a
    /// host without an address.
    pub(super) fn replace(&self, said: &BTreeMap<String, Vec<String>>) {
        let read = |(name, addresses): (&String, &Vec<String>)| {
            let addresses: Vec<HostAddress> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
            (!addresses.is_empty()).then(|| (name.clone(), addresses))
        };
        let new: Hosts = said.iter().filter_map(read).collect();
        let mut hosts = self.hosts.lock();
        if *hosts == new {
            return;
        }
        *hosts = new;
        // The lock is held, so that the newest stays on the disk.
        if let Some(cache) = &self.cache
            && let Err(error) = write(cache, &hosts)
        {
            warn!("where hosts are is not kept: {error}");
        }
    }
}

fn read(path: &Path) -> io::Result<Hosts> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let saved: Saved = serde_json::from_slice(&bytes)?;
    if saved.format != FORMAT {
        return Err(io::Error::other(format!("it has format {}, of another version of skein", saved.format)));
    }
    Ok(saved.hosts)
}

fn write(path: &Path, hosts: &Hosts) -> io::Result<()> {
    let saved = Saved { format: FORMAT, hosts: hosts.clone() };
    replace(path, &serde_json::to_vec(&saved).expect("plain data always serialises"))
}
