//! What goes wrong with a store, by what a caller has to do.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::entry::{LeaseId, Revision};
use crate::transaction::TransactionError;

/// What an error came from, of whatever store. A copy shares it.
#[derive(Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

/// Why a call of a store failed. Only [`Unknown`](StoreError::Unknown) leaves open whether something was written; all
/// others say that nothing was.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store is out of reach, too slow, or cannot write.
    #[error("the store is not available; nothing was written, try again")]
    Unavailable(#[source] Cause),
    /// The call was under way when the store was lost. It may even be done after what is read now: so whoever repeats
    /// it compares, in the same transaction, that what was read is still there.
    #[error("whether the store did it is not known: read what is there, and repeat it only if that has not changed")]
    Unknown(#[source] Cause),
    /// What is stored is not what was written.
    #[error("the store is damaged: stop its controllers and restore a backup into an empty store")]
    Corrupt(#[source] Cause),
    /// The store refuses this user or these credentials, or has lower limits than it needs.
    #[error("the store refuses this: check the controller's certificate and rights, and the store's limits")]
    Refused(#[source] Cause),
    /// The store has as much as it may.
    #[error("the store is full: compact it, or delete what is not needed")]
    Full(#[source] Cause),
    /// The transaction is none.
    #[error("the store does not take this transaction")]
    Invalid(#[from] TransactionError),
    /// A lease is over, or never was.
    #[error("lease {lease} is over: its keys are gone, ask for a new one")]
    LeaseOver {
        /// The lease.
        lease: LeaseId,
    },
    /// What was there at a revision is no longer known.
    #[error("what was there before revision {compacted} is forgotten: read anew, without a revision")]
    Compacted {
        /// The first revision that can be read.
        compacted: Revision,
    },
    /// There has been no such revision.
    #[error("the store has not come to revision {asked} yet: is it another store, or restored from a backup?")]
    FutureRevision {
        /// What was asked for.
        asked: Revision,
    },
}

impl Cause {
    /// Makes a cause of an error.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Cause {
        Cause(Arc::new(error))
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
