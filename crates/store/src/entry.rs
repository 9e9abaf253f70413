//! Entries: what is under a key, since when, and for how long.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::key::Key;

/// How many bytes a value has at most: 1 MiB. etcd takes requests of 1.5 MiB.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Counts the changes of a whole store: each commit that changes something has a revision of its own, greater than all
/// before. Not every number is one: other users of the same etcd have theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Revision(pub u64);

/// Names a lease. It is never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

/// A lease as it was granted: keys that are put with it are deleted when it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Names it.
    pub id: LeaseId,
    /// How long it lasts from now on, unless it is kept alive: what was asked for, or more.
    pub ttl: Duration,
}

/// The bytes under a key, at most [`VALUE_BYTES_MAX`]. A copy shares them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(Arc<[u8]>);

/// Bytes are no value: there are more than [`VALUE_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a value of {bytes} bytes: {VALUE_BYTES_MAX} are allowed, split it over several keys")]
pub struct ValueTooLarge {
    /// How many there are.
    pub bytes: usize,
}

/// What is under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value.
    pub value: Value,
    /// The revision that put it where nothing was.
    pub created: Revision,
    /// The revision that put it last.
    pub modified: Revision,
    /// How often it was put since it was created: 1 at first.
    pub version: u64,
    /// The lease that it was put with last, if any.
    pub lease: Option<LeaseId>,
}

impl Revision {
    /// The revision after this one.
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl Value {
    /// Makes a value of bytes.
    ///
    /// # Errors
    /// There are more than [`VALUE_BYTES_MAX`].
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Result<Value, ValueTooLarge> {
        let bytes = bytes.into();
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(ValueTooLarge { bytes: bytes.len() });
        }
        Ok(Value(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A value that is known to be small.
    pub(crate) fn small(text: &str) -> Value {
        debug_assert!(text.len() <= VALUE_BYTES_MAX);
        Value(text.as_bytes().into())
    }
}

impl Entry {
    /// How many bytes of key and value the entry has.
    pub fn bytes(&self) -> usize {
        self.key.as_str().len() + self.value.as_bytes().len()
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for Value {
    /// Writes how long it is and how it begins: values are up to a megabyte, and may hold what no log should.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = String::from_utf8_lossy(&self.0[..self.0.len().min(32)]).into_owned();
        write!(f, "Value({} bytes: {shown:?})", self.0.len())
    }
}
