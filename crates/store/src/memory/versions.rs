//! All versions of all keys since the last compaction, and which keys each revision changed.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::entry::{Entry, Revision};
use crate::error::{Cause, StoreError};
use crate::key::Key;
use crate::range::Keys;
use crate::watch::{Change, WatchEvent};

/// How many bytes a store in memory takes unless something else is said: 256 MiB of keys, values and 128 bytes beside
/// each version. 20,000 guests with 4 KiB each are 80 MB; the rest is history, and bounds a controller's memory.
pub const STORE_BYTES_MAX: usize = 256 << 20;

/// A store in memory has as much as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} of {bytes_max} bytes are used")]
pub struct StoreFull {
    /// How many bytes it has.
    pub bytes: usize,
    /// How many it may have.
    pub bytes_max: usize,
}

/// What a version costs beside its key and value.
const VERSION_BYTES: usize = 128;

/// What one revision made of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredVersion {
    /// The key.
    pub key: Key,
    /// The revision.
    pub modified: Revision,
    /// What was put. `None`: it was deleted.
    pub entry: Option<Entry>,
}

#[derive(Debug, Clone)]
pub(super) struct Versions {
    /// The first revision that can be read.
    pub compacted: Revision,
    /// Of each key its versions in the order of their revisions, at least one.
    by_key: BTreeMap<Key, Vec<StoredVersion>>,
    /// The keys that each revision changed, in their order; of revisions after `compacted`.
    changed: BTreeMap<Revision, Vec<Key>>,
    /// How many bytes all versions have.
    pub bytes: usize,
    /// How many they may have.
    pub bytes_max: usize,
}

impl StoredVersion {
    /// A version that was put.
    pub fn put(entry: Entry) -> StoredVersion {
        StoredVersion { key: entry.key.clone(), modified: entry.modified, entry: Some(entry) }
    }

    /// A deletion.
    pub fn deleted(key: &Key, modified: Revision) -> StoredVersion {
        StoredVersion { key: key.clone(), modified, entry: None }
    }

    fn bytes(&self) -> usize {
        VERSION_BYTES + self.entry.as_ref().map_or(self.key.as_str().len(), Entry::bytes)
    }
}

impl Versions {
    pub fn new(compacted: Revision) -> Versions {
        Versions { compacted, by_key: BTreeMap::new(), changed: BTreeMap::new(), bytes: 0, bytes_max: STORE_BYTES_MAX }
    }

    /// What is under a key now.
    pub fn last(&self, key: &Key) -> Option<&Entry> {
        self.by_key.get(key)?.last()?.entry.as_ref()
    }

    /// The entries of a range as they were at a revision, by their keys.
    pub fn entries<'a>(
        &'a self,
        keys: &Keys,
        start_after: Option<&Key>,
        at: Revision,
    ) -> impl Iterator<Item = &'a Entry> + use<'a> {
        let (path, one) = match keys {
            Keys::One(key) => (key.as_str().to_string(), true),
            Keys::Below(prefix) => (prefix.as_str().to_string(), false),
        };
        let start = match start_after {
            Some(key) if key.as_str() >= path.as_str() => Bound::Excluded(key.as_str()),
            _ => Bound::Included(path.as_str()),
        };
        let found = self.by_key.range::<str, _>((start, Bound::Unbounded));
        found
            .take_while(move |(key, _)| if one { key.as_str() == path } else { key.as_str().starts_with(&path) })
            .filter_map(move |(_, versions)| {
                let later = versions.partition_point(|version| version.modified <= at);
                versions[..later].last()?.entry.as_ref()
            })
    }

    /// Whether versions find room.
    pub fn check_room(&self, versions: &[StoredVersion]) -> Result<(), StoreError> {
        let more: usize = versions.iter().map(StoredVersion::bytes).sum();
        if self.bytes + more > self.bytes_max {
            let full = StoreFull { bytes: self.bytes, bytes_max: self.bytes_max };
            return Err(StoreError::Full(Cause::new(full)));
        }
        Ok(())
    }

    /// Adds a version that is newer than all others of its key.
    pub fn add(&mut self, version: StoredVersion) {
        self.bytes += version.bytes();
        if version.modified > self.compacted {
            self.changed.entry(version.modified).or_default().push(version.key.clone());
        }
        self.by_key.entry(version.key.clone()).or_default().push(version);
    }

    /// The keys that were changed after a revision, revision by revision.
    pub fn changed_after(&self, after: Revision) -> impl Iterator<Item = (Revision, &Vec<Key>)> {
        let revisions = self.changed.range((Bound::Excluded(after), Bound::Unbounded));
        revisions.map(|(revision, keys)| (*revision, keys))
    }

    /// What a revision made of a key.
    pub fn event(&self, key: &Key, revision: Revision) -> Option<WatchEvent> {
        let versions = self.by_key.get(key)?;
        let at = versions.binary_search_by_key(&revision, |version| version.modified).ok()?;
        let change = versions[at].entry.clone().map_or(Change::Deleted, Change::Put);
        Some(WatchEvent { key: key.clone(), change })
    }

    /// The versions that nobody can read once all before a revision is forgotten: those before the last until then, and
    /// this, too, if it is a deletion.
    pub fn droppable(&self, through: Revision) -> Vec<(Key, Revision)> {
        // Keys that were not changed since the last compaction have nothing more to drop.
        let changed = self.changed.range(..=through).flat_map(|(_, keys)| keys);
        let keys: std::collections::BTreeSet<&Key> = changed.collect();
        let mut dropped = Vec::new();
        for (key, versions) in keys.into_iter().filter_map(|key| self.by_key.get_key_value(key)) {
            let until = versions.partition_point(|version| version.modified <= through);
            let kept = usize::from(versions[..until].last().is_some_and(|version| version.entry.is_some()));
            dropped.extend(versions[..until - kept].iter().map(|version| (key.clone(), version.modified)));
        }
        dropped
    }

    /// Drops versions, and forgets what was before a revision.
    pub fn compact(&mut self, through: Revision, dropped: &[(Key, Revision)]) {
        for (key, revision) in dropped {
            let Some(versions) = self.by_key.get_mut(key) else { continue };
            // Versions are dropped from the first on.
            debug_assert_eq!(versions[0].modified, *revision);
            self.bytes -= versions.remove(0).bytes();
            if versions.is_empty() {
                self.by_key.remove(key);
            }
        }
        self.changed = self.changed.split_off(&through.next());
        self.compacted = self.compacted.max(through);
    }
}
