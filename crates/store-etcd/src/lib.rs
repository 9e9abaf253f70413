//! A controller's store in a cluster of etcd: for a cluster with several controllers, which share it.
//!
//! ```text
//! callers ─▶ EtcdStore ─ a call, with a deadline ─▶ one of the endpoints ─▶ etcd's leader
//!                        (its own threads of tokio)   a call that certainly did nothing goes to the next one
//! watches ◀─ bounded queues ◀─ streams that are begun anew, after the last batch, wherever one ends
//! ```
//!
//! Keys are below a namespace (`/skein/`), so that etcd may have other users. etcd's defaults are needed of
//! `--max-txn-ops` and `--max-request-bytes`; `--auto-compaction-retention` may be set or left to the controllers.
//!
//! Not here: what a store is, and what values mean.
//!
//! # Invariants
//!
//! - **A write is sent once.** It is repeated only if it was certainly not done; a caller is told
//!   [`StoreError::Unknown`](skein_store::StoreError::Unknown) of all others. Tests: `tests/lab_store`.
//! - **Every call ends**, also if etcd's does not: etcd is known to let calls hang when a leader dies.

#![forbid(unsafe_code)]

mod calls;
mod failure;
mod options;
mod past;
mod queue;
mod store;
mod translate;
mod watch;

pub use failure::EtcdError;
pub use options::{EtcdOptions, EtcdTls, OpenError};
pub use store::EtcdStore;
