//! Watching: what changed, revision by revision.

use std::time::Duration;

use crate::entry::{Entry, Revision};
use crate::error::StoreError;
use crate::key::Key;

/// What one revision changed of what is watched: all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    /// The revision.
    pub revision: Revision,
    /// The changes, by their keys. There is at least one.
    pub events: Vec<WatchEvent>,
}

/// What became of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// The key.
    pub key: Key,
    /// What became of it.
    pub change: Change,
}

/// What became of a key's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It was put.
    Put(Entry),
    /// It was deleted, by a transaction or with its lease.
    Deleted,
}

/// Why a watch ended. It gives nothing any more.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WatchError {
    /// What changed since is no longer all there.
    #[error("what changed before revision {compacted} is forgotten: read anew, and watch from there")]
    Compacted {
        /// The first revision that can be read and watched after.
        compacted: Revision,
    },
    /// The store cannot go on.
    #[error("the watch ended: read anew, and watch from there")]
    Store(#[from] StoreError),
}

/// What changes below a prefix, from a revision on. Nothing is left out, and revisions rise. A watch of a store that is
/// out of reach for a while goes on by itself.
///
/// A compaction of what is after the last batch that was taken may end a watch, also if nothing of that was watched.
pub trait Watch: Send {
    /// Waits for the next batch, and not longer than `wait`. `None`: nothing has come in that time.
    ///
    /// # Errors
    /// The watch ended.
    fn next(&mut self, wait: Duration) -> Result<Option<WatchBatch>, WatchError>;
}
