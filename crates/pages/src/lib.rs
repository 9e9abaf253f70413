//! What a guest's pages become between two agents.
//!
//! The source's agent takes QEMU's stream apart; what it sends is a stream of [records](page_record): bytes that QEMU's target is
//! to get as they are, and [batches](Batch) of pages. The target's agent writes the pages into the guest's RAM, or gives
//! them back to QEMU where they were. Both keep a [`Ledger`] of what each page holds, and compare it before anything that
//! follows the pages is handed on.
//!
//! | module | decides |
//! |---|---|
//! | [`page_record`] | the bytes between the agents |
//! | [`delta`] | what changed of a page |
//! | [`packing`] | what a batch costs on the wire: zero, packed, or as it is |
//! | [`pace`] | how much effort packing is worth just now |
//! | [`ledger`] | which version of a page is the latest, and whether both ends hold the same |
//! | [`PageCounts`] | nothing: it says where the bytes went |
//!
//! Absent on purpose: QEMU's format, sockets, threads, guests' RAM, files, clocks, randomness.

#![forbid(unsafe_code)]

mod batch;
mod counts;
pub mod delta;
pub mod ledger;
pub mod pace;
pub mod packing;
pub mod page_record;

pub use batch::{BATCH_BYTES_MAX, BATCH_PAGES_MAX, Batch, BatchForm, PAGE_BYTES, PageKind, PageRuns, Run, is_zero};
pub use counts::PageCounts;
pub use ledger::Ledger;
