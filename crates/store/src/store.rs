//! The trait of all stores.

use std::time::Duration;

use crate::entry::{Entry, Lease, LeaseId, Revision};
use crate::error::StoreError;
use crate::key::{Key, Prefix};
use crate::range::{Range, Snapshot};
use crate::transaction::{Outcome, Transaction};
use crate::watch::{Watch, WatchError};

/// A store with the semantics of etcd. All calls wait, at most `within`; a call that is not done by then fails as
/// [`StoreError::Unavailable`] or, where something may have been written, as [`StoreError::Unknown`].
///
/// What a call has returned is durable, and every later call of every controller sees it (linearizable).
pub trait Store: Send + Sync {
    /// Reads a page of entries, as they are at one revision.
    ///
    /// # Errors
    /// The store is not available, or does not know the revision that was asked for.
    fn read(&self, range: &Range, within: Duration) -> Result<Snapshot, StoreError>;

    /// Does a transaction, or nothing. A transaction of which all compares hold, and with a lease that is over, fails
    /// as [`StoreError::LeaseOver`].
    ///
    /// # Errors
    /// The outcome is not known, or nothing was written.
    fn commit(&self, transaction: &Transaction, within: Duration) -> Result<Outcome, StoreError>;

    /// Watches what changes below a prefix after a revision: that of the [`Snapshot`] that was read before.
    ///
    /// # Errors
    /// What changed since is no longer known, or the store is not available.
    fn watch(&self, prefix: &Prefix, after: Revision, within: Duration) -> Result<Box<dyn Watch>, WatchError>;

    /// Grants a lease of at least this time; etcd has whole seconds, and a minimum of its own (2 s with its defaults).
    /// A lease does not end before its time; it may end later, if the store was out of reach or started again.
    ///
    /// # Errors
    /// The store is not available. A lease whose grant is not known ends by itself.
    fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError>;

    /// Keeps a lease alive: it lasts for its whole time again, which is returned.
    ///
    /// # Errors
    /// The lease is over, or the store is not available.
    fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<Duration, StoreError>;

    /// Ends a lease, and deletes what was put with it, at one revision.
    ///
    /// # Errors
    /// The lease is over, the outcome is not known, or nothing was done.
    fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError>;

    /// Forgets history: before this revision nothing can be read and after an earlier one nothing watched. What is
    /// there now stays. A revision before which all is forgotten already changes nothing.
    ///
    /// # Errors
    /// The store has not come to this revision, or is not available.
    fn compact(&self, through: Revision, within: Duration) -> Result<(), StoreError>;

    /// Returns how each part of the store is that may fail by itself, as a member of etcd's cluster. A store that is
    /// one whole has none.
    fn members(&self, within: Duration) -> Vec<StoreMember> {
        let _ = within;
        Vec::new()
    }
}

/// A part of a store that may fail by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMember {
    /// Where it is.
    pub address: String,
    /// What is wrong with it. `None`: nothing.
    pub problem: Option<String>,
}

/// Reads what is under a key now, and at which revision that is.
///
/// # Errors
/// As [`Store::read`].
pub fn read_one(store: &dyn Store, key: &Key, within: Duration) -> Result<(Revision, Option<Entry>), StoreError> {
    let mut page = store.read(&Range::one(key.clone()), within)?;
    Ok((page.revision, page.entries.pop()))
}

/// Pages of one state of a store. After an error there are no more.
pub struct Pages<'a> {
    store: &'a dyn Store,
    next: Option<Range>,
    within: Duration,
}

impl<'a> Pages<'a> {
    /// Reads a range from its first page to its last, each within a time.
    pub fn new(store: &'a dyn Store, range: Range, within: Duration) -> Pages<'a> {
        Pages { store, next: Some(range), within }
    }
}

impl Iterator for Pages<'_> {
    type Item = Result<Snapshot, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let range = self.next.take()?;
        let page = self.store.read(&range, self.within);
        if let Ok(page) = &page {
            self.next = range.next(page);
        }
        Some(page)
    }
}
