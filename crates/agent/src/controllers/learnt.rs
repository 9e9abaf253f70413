//! Keeps where controllers are that the file does not name, by the word of those that it names: a cluster may get more
//! controllers after a host has joined.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use skein_inventory::{CONTROLLERS_MAX, HostAddress};
use tracing::{info, warn};

use crate::dirs::replace;

/// Bounds the file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The controllers that were named, by name. Whose word it was does not matter: who answers at an address has to show
/// a controller's certificate.
pub(crate) struct LearntControllers {
    cache: PathBuf,
    known: Mutex<BTreeMap<String, HostAddress>>,
}

impl LearntControllers {
    /// Takes up what was kept. A file that cannot be read is logged, and written anew with the next word.
    pub(crate) fn load(cache: &Path) -> LearntControllers {
        let known = match read(cache) {
            Ok(known) => known,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                warn!("{} is passed over: {error}", cache.display());
                BTreeMap::new()
            }
        };
        LearntControllers { cache: cache.to_owned(), known: Mutex::new(known) }
    }

    /// Returns the controllers.
    pub(crate) fn all(&self) -> BTreeMap<String, HostAddress> {
        self.known.lock().clone()
    }

    /// Adds controllers. Those that were named before stay, as a controller is not named while it is down; only if
    /// there are too many, what was named last counts.
    pub(crate) fn learn(&self, said: &BTreeMap<String, String>) {
        let new: BTreeMap<String, HostAddress> =
            said.iter().filter_map(|(name, address)| Some((name.clone(), address.parse().ok()?))).collect();
        let mut known = self.known.lock();
        if new.iter().all(|(name, address)| known.get(name) == Some(address)) {
            return;
        }
        known.extend(new.clone());
        if known.len() > CONTROLLERS_MAX {
            *known = new;
        }
        info!("the cluster has the controllers {}", known.keys().cloned().collect::<Vec<_>>().join(", "));
        // The lock is held, so that the newest stays on the disk.
        if let Err(error) = write(&self.cache, &known) {
            warn!("where controllers are is not kept: {error}");
        }
    }
}

fn read(path: &Path) -> io::Result<BTreeMap<String, HostAddress>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn write(path: &Path, known: &BTreeMap<String, HostAddress>) -> io::Result<()> {
    replace(path, &serde_json::to_vec(known)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(names: &[&str]) -> BTreeMap<String, String> {
        names.iter().map(|name| ((*name).to_owned(), format!("{name}.example:7443"))).collect()
    }

    #[test]
    fn what_was_named_is_kept_over_a_restart_and_a_silence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("controllers.json");
        let learnt = LearntControllers::load(&path);
        learnt.learn(&said(&["c1", "c2", "c3"]));
        // A controller is down.
        learnt.learn(&said(&["c2", "c3"]));
        let again = LearntControllers::load(&path);
        assert_eq!(again.all().keys().collect::<Vec<_>>(), ["c1", "c2", "c3"]);
        // A controller has moved, and an address makes no sense.
        again.learn(&BTreeMap::from([("c2".to_owned(), "10.0.0.2:1".to_owned()), ("c4".to_owned(), ":x".to_owned())]));
        assert_eq!((again.all()["c2"].to_string(), again.all().len()), ("10.0.0.2:1".to_owned(), 3));
        let many: Vec<String> = (0..CONTROLLERS_MAX).map(|n| format!("n{n}")).collect();
        again.learn(&said(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(again.all().len(), CONTROLLERS_MAX);
        fs::write(&path, "{").unwrap();
        assert!(LearntControllers::load(&path).all().is_empty());
    }
}
