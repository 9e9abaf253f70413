//! Reading: which entries, and a page of them.

use crate::entry::{Entry, Revision};
use crate::key::{Key, Prefix};

/// How many entries a page has at most.
pub const PAGE_ENTRIES_MAX: usize = 1000;

/// How many bytes of keys and values a page has at most before its last entry: 2 MiB. So a page is never above 3 MiB
/// and some, whatever was asked for.
pub const PAGE_BYTES_MAX: usize = 2 << 20;

/// Which keys are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// This key alone.
    One(Key),
    /// All below a prefix.
    Below(Prefix),
}

/// Which entries are read: a page of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Which keys.
    pub keys: Keys,
    /// Of these only what comes after this key: the last of the page before.
    pub start_after: Option<Key>,
    /// How many entries at most. More than [`PAGE_ENTRIES_MAX`] are never given.
    pub limit: usize,
    /// The revision that is read: that of the first page, so that all pages are of one state. `None`: now's.
    pub at: Option<Revision>,
}

/// A page of entries, as they were at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision. A watch after it misses nothing.
    pub revision: Revision,
    /// The entries, by their keys.
    pub entries: Vec<Entry>,
    /// Whether there are more in the range after the last.
    pub more: bool,
}

impl Range {
    /// What is under a key, now.
    pub fn one(key: Key) -> Range {
        Range { keys: Keys::One(key), start_after: None, limit: 1, at: None }
    }

    /// The first page of what is below a prefix, now.
    pub fn below(prefix: Prefix) -> Range {
        Range { keys: Keys::Below(prefix), start_after: None, limit: PAGE_ENTRIES_MAX, at: None }
    }

    /// Gives at most so many entries.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Range {
        self.limit = limit;
        self
    }

    /// Reads only what comes after a key.
    #[must_use]
    pub fn after(mut self, key: Key) -> Range {
        self.start_after = Some(key);
        self
    }

    /// Reads what was there at a revision.
    #[must_use]
    pub fn at(mut self, revision: Revision) -> Range {
        self.at = Some(revision);
        self
    }

    /// The range of the page after `page`, at the same revision. `None`: it was the last.
    pub fn next(&self, page: &Snapshot) -> Option<Range> {
        let last = page.entries.last().filter(|_| page.more)?;
        Some(self.clone().after(last.key.clone()).at(page.revision))
    }

    /// How many entries a page has at most: the limit within its bounds.
    pub fn entries_max(&self) -> usize {
        self.limit.clamp(1, PAGE_ENTRIES_MAX)
    }
}
