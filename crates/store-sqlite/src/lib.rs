//! A controller's store in a file of SQLite: for a cluster with one controller, which needs nothing else.
//!
//! ```text
//! callers ─▶ jobs (bounded) ─▶ the writer's thread ─▶ MemoryStore::prepare: what would change
//!                                                  ─▶ SQLite: COMMIT, with fsync
//!                                                  ─▶ MemoryStore::apply ─▶ readers and watches see it
//! ```
//!
//! All that is stored is in memory, too ([`skein_store::MemoryStore`] decides what a transaction does), so that reads
//! touch no disk and wait for no write. `STORE_BYTES_MAX` bounds it.
//!
//! Leases count in the process's time. After a start all leases last for their whole time again, since nobody knows
//! how long the process was away: whoever held one and is still there keeps it.
//!
//! Not here: what a store is, and what values mean.
//!
//! # Invariants
//!
//! - **Nobody sees what is not on the disk.** Memory changes after the commit. Tests: `tests/killed.rs`.
//! - **A failure that leaves open whether a commit is on the disk ends the store** until it is opened again: what was
//!   read in between might be refuted by the next start. Tests: `a_commit_that_fails_on_the_disk_ends_the_store`.
//! - **One process has a store.** Tests: `a_second_process_is_refused`.

#![forbid(unsafe_code)]

mod disk;
mod lock;
mod shared;
mod store;
mod writer;

pub use disk::{DiskError, OpenError};
pub use shared::Clock;
pub use store::SqliteStore;
