//! Watching a store in memory.

use crate::entry::Revision;
use crate::key::Prefix;
use crate::memory::MemoryStore;
use crate::watch::{WatchBatch, WatchError};

/// What changes below a prefix of a [`MemoryStore`]: where a watcher stands.
#[derive(Debug, Clone)]
pub struct MemoryWatch {
    prefix: Prefix,
    /// All changes up to this revision have been given.
    after: Revision,
}

impl MemoryStore {
    /// Watches what changes below a prefix after a revision.
    ///
    /// # Errors
    /// What changed since is forgotten, or the revision has not come yet.
    pub fn watch(&self, prefix: &Prefix, after: Revision) -> Result<MemoryWatch, WatchError> {
        if after > self.revision {
            return Err(WatchError::Store(crate::StoreError::FutureRevision { asked: after }));
        }
        let watch = MemoryWatch { prefix: prefix.clone(), after };
        watch.check(self)?;
        Ok(watch)
    }
}

impl MemoryWatch {
    /// Returns the next batch, if there is one by now.
    ///
    /// # Errors
    /// What changed since the last one is forgotten.
    pub fn next(&mut self, store: &MemoryStore) -> Result<Option<WatchBatch>, WatchError> {
        self.check(store)?;
        for (revision, keys) in store.versions.changed_after(self.after) {
            self.after = revision;
            let below = keys.iter().filter(|key| key.is_below(&self.prefix));
            let events: Vec<_> = below.filter_map(|key| store.versions.event(key, revision)).collect();
            if !events.is_empty() {
                return Ok(Some(WatchBatch { revision, events }));
            }
        }
        Ok(None)
    }

    fn check(&self, store: &MemoryStore) -> Result<(), WatchError> {
        let compacted = store.compacted();
        if self.after < compacted { Err(WatchError::Compacted { compacted }) } else { Ok(()) }
    }
}
