//! What a controller keeps, and how: keys with values, with the semantics of etcd.
//!
//! ```text
//! host/alpha  ─┐ commit: all compares hold, then all operations are done, at one revision; or nothing is
//! host/beta    ├─ read:  pages of one revision, however many commits come between
//! leader       │ watch:  each revision's changes as one batch, none left out
//! schema      ─┘ lease:  keys that end with whoever no longer says that it is there
//! ```
//!
//! [`Store`] is the trait; SQLite and etcd are behind it in crates of their own. [`MemoryStore`] has the semantics in
//! plain code, with time as an argument: simulations run it, SQLite's store decides by it, and etcd is held against it.
//! On top, for all stores: the [`election`] of a leader whose guarded writes are refused once it is deposed, the
//! [`schema`] with its migrations, and [`backup`]s.
//!
//! Not here: clocks, threads, files, networks; and what the values mean.
//!
//! # Invariants
//!
//! - **A transaction is one revision, whole.** No reader and no watcher sees a part of it. Tests:
//!   `a_batch_is_a_whole_transaction`, `a_page_is_of_one_revision_whatever_comes_between`.
//! - **An error says whether something may have been written.** Only [`StoreError::Unknown`] leaves that open.
//! - **A deposed leader writes nothing.** Its guard is compared with the write, in the store, and not before. Tests:
//!   `a_deposed_leader_is_refused`.
//! - **A restored store's terms are greater than all terms before**, so that agents obey its leader
//!   ([`election::Term`]). Tests: `a_restored_stores_terms_are_greater`.

#![forbid(unsafe_code)]

pub mod backup;
pub mod election;
mod entry;
mod error;
mod key;
mod memory;
mod range;
pub mod schema;
mod store;
mod transaction;
mod watch;

pub use entry::{Entry, Lease, LeaseId, Revision, VALUE_BYTES_MAX, Value, ValueTooLarge};
pub use error::{Cause, StoreError};
pub use key::{KEY_BYTES_MAX, Key, KeyError, Prefix};
pub use memory::{Changes, Loaded, MemoryStore, MemoryWatch, Prepared, STORE_BYTES_MAX, StoreFull, StoredVersion};
pub use range::{Keys, PAGE_BYTES_MAX, PAGE_ENTRIES_MAX, Range, Snapshot};
pub use store::{Pages, Store, StoreMember, read_one};
pub use transaction::{
    Compare, OPERATIONS_MAX, Operation, Outcome, TRANSACTION_BYTES_MAX, Transaction, TransactionError,
};
pub use watch::{Change, Watch, WatchBatch, WatchError, WatchEvent};
