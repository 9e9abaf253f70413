//! The thread that writes into the store, one transaction after the other, each guarded by the leader's key.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use skein_cluster::{Change, Input, error_chain};
use skein_store::election::{Term, TermBase, guarded, is_deposed};
use skein_store::{
    KeyError, Operation, Outcome, Revision, Store, StoreError, TRANSACTION_BYTES_MAX, Transaction, Value, ValueTooLarge,
};

use super::core::{Shared, WriteJob};

/// How many writes wait at most: the core has one under way, and one of a term before may be there, too.
pub(crate) const WRITES_MAX: usize = 4;
/// How long a write may take. The leader's lease is over by then, so that others take over.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// How many bytes go into one transaction, before the last change: half of what is allowed, but for large values.
const BYTES_MAX: usize = TRANSACTION_BYTES_MAX / 8;
/// How often the thread sees whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

/// Why a write is not, or perhaps not, in the store.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the store is written by another leader")]
    Deposed,
    #[error("the store has changed unexpectedly")]
    Conflict,
    #[error("a name cannot be stored")]
    Key(#[from] KeyError),
    #[error("a value cannot be stored")]
    Value(#[from] ValueTooLarge),
    #[error("the store failed")]
    Store(#[from] StoreError),
}

/// Writes until the controller ends.
pub(crate) fn run(shared: &Arc<Shared>, store: &dyn Store, base: TermBase, jobs: &Receiver<WriteJob>) {
    loop {
        match jobs.recv_timeout(LOOK) {
            Ok(job) => {
                let (write, begun) = (job.write, Instant::now());
                let written = commit(store, base, job);
                shared.meter.wrote(begun.elapsed(), written.is_ok());
                let input = match written {
                    Ok(revision) => Input::Written { write, revision: revision.0 },
                    Err(error) => Input::WriteFailed { write, why: error_chain(&error) },
                };
                shared.input(input);
            }
            Err(RecvTimeoutError::Timeout) if !shared.is_stopping() => {}
            Err(_) => return,
        }
    }
}

fn commit(store: &dyn Store, base: TermBase, job: WriteJob) -> Result<Revision, WriteError> {
    let term = Term { base, created: Revision(job.term.0.saturating_sub(base.0)) };
    let mut last = Revision(0);
    let mut rest = job.changes.into_iter().peekable();
    // A record means something by itself, so what is too large for one transaction goes into several.
    while rest.peek().is_some() {
        let mut transaction = Transaction::new();
        let mut bytes = 0;
        while bytes < BYTES_MAX
            && let Some(change) = rest.next()
        {
            let key = skein_store::Key::new(change.key())?;
            transaction.operations.push(match change {
                Change::Put { value, .. } => {
                    bytes += value.len();
                    Operation::put(key, Value::new(value)?)
                }
                Change::Delete { .. } => Operation::Delete(key),
            });
        }
        last = match store.commit(&guarded(transaction, term), WRITE_WITHIN)? {
            Outcome::Committed { revision } => revision,
            Outcome::Conflict { failed } if is_deposed(&failed) => return Err(WriteError::Deposed),
            Outcome::Conflict { .. } => return Err(WriteError::Conflict),
        };
    }
    Ok(last)
}
