//! A store in memory, with exactly the semantics of [`Store`](crate::Store), and with time as an argument.
//!
//! What changes the store is split in two: [`MemoryStore::prepare`] says what a transaction would change, and
//! [`MemoryStore::apply`] changes it. A store on a disk writes in between, so that nobody sees what is not durable.

mod leases;
mod versions;
mod watch;

use std::time::Duration;

use leases::Leases;
use versions::Versions;

use crate::entry::{Entry, Lease, LeaseId, Revision};
use crate::error::StoreError;
use crate::key::Key;
use crate::range::{PAGE_BYTES_MAX, Range, Snapshot};
use crate::transaction::{Compare, Operation, Outcome, Transaction};

pub use versions::{STORE_BYTES_MAX, StoreFull, StoredVersion};
pub use watch::MemoryWatch;

/// A store in memory. Time is since whenever the caller says, and must not go back.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    /// The revision of the last change.
    revision: Revision,
    versions: Versions,
    leases: Leases,
}

/// What a transaction would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prepared {
    /// Nothing: these compares do not hold.
    Conflict {
        /// Their positions in the transaction.
        failed: Vec<usize>,
    },
    /// This, which may be nothing, too.
    Changes(Changes),
}

/// What one revision changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The revision: the next one or, where nothing changes, the store's.
    pub revision: Revision,
    /// What becomes of keys, in their order.
    pub versions: Vec<StoredVersion>,
    /// The lease that ends with it.
    pub ended: Option<LeaseId>,
}

/// What a store on a disk has of the life before.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// The revision of the last change.
    pub revision: Revision,
    /// The first revision that can be read.
    pub compacted: Revision,
    /// Versions of keys, in any order.
    pub versions: Vec<StoredVersion>,
    /// Leases that were granted and had not ended.
    pub leases: Vec<Lease>,
    /// The last lease that was ever granted.
    pub last_lease: u64,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl MemoryStore {
    /// An empty store. Its revision is 1, as etcd's.
    pub fn new() -> MemoryStore {
        let first = Revision(1);
        MemoryStore { revision: first, versions: Versions::new(first), leases: Leases::default() }
    }

    /// The store of a life before. All its leases last for their whole time from now on: nobody knows how much of it
    /// is over, and a lease never ends too early.
    pub fn load(loaded: Loaded, now: Duration) -> MemoryStore {
        let mut store = MemoryStore {
            revision: loaded.revision,
            versions: Versions::new(loaded.compacted),
            leases: Leases::load(loaded.leases, loaded.last_lease, now),
        };
        let mut versions = loaded.versions;
        versions.sort_by(|a, b| (a.modified, &a.key).cmp(&(b.modified, &b.key)));
        versions.into_iter().for_each(|version| store.add(version));
        store
    }

    /// Sets how many bytes the store takes, instead of [`STORE_BYTES_MAX`].
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: usize) -> MemoryStore {
        self.versions.bytes_max = bytes_max;
        self
    }

    /// The revision of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The first revision that can be read.
    pub fn compacted(&self) -> Revision {
        self.versions.compacted
    }

    /// How many bytes of keys and values are stored, with those of the history.
    pub fn bytes(&self) -> usize {
        self.versions.bytes
    }

    /// Reads a page of entries.
    ///
    /// # Errors
    /// The revision that was asked for is forgotten, or has not come yet.
    pub fn read(&self, range: &Range) -> Result<Snapshot, StoreError> {
        let at = range.at.unwrap_or(self.revision);
        if at > self.revision {
            return Err(StoreError::FutureRevision { asked: at });
        }
        if at < self.compacted() {
            return Err(StoreError::Compacted { compacted: self.compacted() });
        }
        let mut page = Snapshot { revision: at, entries: Vec::new(), more: false };
        let mut bytes = 0;
        for entry in self.versions.entries(&range.keys, range.start_after.as_ref(), at) {
            if page.entries.len() == range.entries_max() || bytes >= PAGE_BYTES_MAX {
                page.more = true;
                break;
            }
            bytes += entry.bytes();
            page.entries.push(entry.clone());
        }
        Ok(page)
    }

    /// Says what a transaction would do, without doing it.
    ///
    /// # Errors
    /// The transaction is none, the store is full, or one of its leases is over.
    pub fn prepare(&self, transaction: &Transaction) -> Result<Prepared, StoreError> {
        transaction.check()?;
        let compares = transaction.compares.iter().enumerate();
        let failed: Vec<usize> = compares.filter(|(_, compare)| !self.holds(compare)).map(|(at, _)| at).collect();
        if !failed.is_empty() {
            return Ok(Prepared::Conflict { failed });
        }
        let revision = self.revision.next();
        let mut versions = Vec::new();
        for operation in &transaction.operations {
            match operation {
                Operation::Put { key, value, lease } => {
                    if let Some(lease) = lease {
                        self.leases.check(*lease)?;
                    }
                    let before = self.entry(key);
                    let entry = Entry {
                        key: key.clone(),
                        value: value.clone(),
                        created: before.map_or(revision, |entry| entry.created),
                        modified: revision,
                        version: before.map_or(0, |entry| entry.version) + 1,
                        lease: *lease,
                    };
                    versions.push(StoredVersion::put(entry));
                }
                Operation::Delete(key) => {
                    versions.extend(self.entry(key).map(|entry| StoredVersion::deleted(&entry.key, revision)));
                }
                Operation::DeletePrefix(prefix) => {
                    let keys = crate::range::Keys::Below(prefix.clone());
                    let entries = self.versions.entries(&keys, None, self.revision);
                    versions.extend(entries.map(|entry| StoredVersion::deleted(&entry.key, revision)));
                }
            }
        }
        // Deletes may overlap.
        versions.sort_by(|a, b| a.key.cmp(&b.key));
        versions.dedup_by(|a, b| a.key == b.key);
        if versions.iter().any(|version| version.entry.is_some()) {
            self.versions.check_room(&versions)?;
        }
        let revision = if versions.is_empty() { self.revision } else { revision };
        Ok(Prepared::Changes(Changes { revision, versions, ended: None }))
    }

    /// Does what was prepared. Nothing may have been done since it was.
    pub fn apply(&mut self, changes: Changes) {
        debug_assert!(changes.revision <= self.revision.next());
        self.revision = changes.revision;
        changes.versions.into_iter().for_each(|version| self.add(version));
        if let Some(lease) = changes.ended {
            self.leases.remove(lease);
        }
    }

    /// Does a transaction, or nothing.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn commit(&mut self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        match self.prepare(transaction)? {
            Prepared::Conflict { failed } => Ok(Outcome::Conflict { failed }),
            Prepared::Changes(changes) => {
                let revision = changes.revision;
                self.apply(changes);
                Ok(Outcome::Committed { revision })
            }
        }
    }

    /// Grants a lease of exactly this time.
    pub fn grant(&mut self, now: Duration, ttl: Duration) -> Lease {
        let lease = self.next_lease(ttl);
        self.add_lease(now, lease);
        lease
    }

    /// The lease that would be granted next. [`add_lease`](Self::add_lease) grants it.
    pub fn next_lease(&self, ttl: Duration) -> Lease {
        Lease { id: self.leases.next(), ttl }
    }

    /// Grants the next lease.
    pub fn add_lease(&mut self, now: Duration, lease: Lease) {
        self.leases.add(lease, now);
    }

    /// Keeps a lease alive: it lasts for its whole time again, which is returned.
    ///
    /// # Errors
    /// The lease is over.
    pub fn keep_alive(&mut self, now: Duration, lease: LeaseId) -> Result<Duration, StoreError> {
        self.advance(now);
        self.leases.keep_alive(lease, now)
    }

    /// Ends a lease, and deletes what was put with it.
    ///
    /// # Errors
    /// The lease is over.
    pub fn revoke(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let changes = self.prepare_end(lease)?;
        self.apply(changes);
        Ok(())
    }

    /// Says what changes when a lease ends.
    ///
    /// # Errors
    /// The lease is over.
    pub fn prepare_end(&self, lease: LeaseId) -> Result<Changes, StoreError> {
        let keys = self.leases.keys(lease)?;
        let revision = if keys.is_empty() { self.revision } else { self.revision.next() };
        let versions = keys.iter().map(|key| StoredVersion::deleted(key, revision)).collect();
        Ok(Changes { revision, versions, ended: Some(lease) })
    }

    /// Lets time go on: ends the leases that are due, and returns them. Each is a revision of its own, if it had keys.
    pub fn advance(&mut self, now: Duration) -> Vec<LeaseId> {
        let due = self.due(now);
        for lease in &due {
            if let Ok(changes) = self.prepare_end(*lease) {
                self.apply(changes);
            }
        }
        due
    }

    /// The leases that are due, the first to end first.
    pub fn due(&self, now: Duration) -> Vec<LeaseId> {
        self.leases.due(now)
    }

    /// When the next lease ends, unless it is kept alive.
    pub fn next_end(&self) -> Option<Duration> {
        self.leases.next_end()
    }

    /// Forgets history, and returns the versions that are gone, each by its key and revision.
    ///
    /// # Errors
    /// The store has not come to this revision.
    pub fn compact(&mut self, through: Revision) -> Result<Vec<(Key, Revision)>, StoreError> {
        let dropped = self.prepare_compaction(through)?;
        self.versions.compact(through, &dropped);
        Ok(dropped)
    }

    /// Says which versions a compaction drops.
    ///
    /// # Errors
    /// The store has not come to this revision.
    pub fn prepare_compaction(&self, through: Revision) -> Result<Vec<(Key, Revision)>, StoreError> {
        if through > self.revision {
            return Err(StoreError::FutureRevision { asked: through });
        }
        Ok(self.versions.droppable(through))
    }

    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.versions.last(key)
    }

    /// Adds a version that is newer than all others of its key.
    fn add(&mut self, version: StoredVersion) {
        let before = self.versions.last(&version.key).and_then(|entry| entry.lease);
        let after = version.entry.as_ref().and_then(|entry| entry.lease);
        self.leases.move_key(&version.key, before, after);
        self.versions.add(version);
    }

    fn holds(&self, compare: &Compare) -> bool {
        let is = |key: &Key, test: &dyn Fn(&Entry) -> bool| self.entry(key).is_some_and(test);
        match compare {
            Compare::Absent(key) => self.entry(key).is_none(),
            Compare::Present(key) => self.entry(key).is_some(),
            Compare::Empty(prefix) => {
                let keys = crate::range::Keys::Below(prefix.clone());
                self.versions.entries(&keys, None, self.revision).next().is_none()
            }
            Compare::Modified(key, revision) => is(key, &|entry| entry.modified == *revision),
            Compare::Created(key, revision) => is(key, &|entry| entry.created == *revision),
            Compare::Value(key, value) => is(key, &|entry| entry.value == *value),
            Compare::Leased(key, lease) => is(key, &|entry| entry.lease == Some(*lease)),
        }
    }
}

#[cfg(test)]
mod tests;
