//! What a guest's pages become between two agents.
//!
//! The source's agent takes QEMU's stream apart; what it sends is a stream of [records](page_record): bytes that QEMU's
//! target is to get as they are, and [batches](Batch) of pages. The target's agent writes the pages into the guest's
//! RAM, or gives them back to QEMU where they were. Both keep a [`Ledger`] of what each page holds, and compare it
//! before anything that follows the pages is handed on.
//!
//! | module | decides |
//! |---|---|
//! | [`page_record`] | the bytes between the agents |
//! | [`delta`] | what changed of a page |
//! | [`packing`] | what a batch costs on the wire: zero, packed, or as it is |
//! | [`pace`] | how much effort packing is worth just now |
//! | [`Ledger`] | which version of a page is the latest, and whether both ends hold the same |
//! | [`SentPages`] | what the target needs of a page that QEMU sends: nothing, what changed, or all |
//! | [`PageCounts`] | nothing: it says where the bytes went |
//!
//! Absent on purpose: QEMU's format, sockets, threads, guests' RAM, files, clocks, randomness.
//!
//! # Invariants
//!
//! - **A delta is committed by the mark of its result**, 128 keyed bits of the whole page, never because hashes of
//!   parts are the same. A page whose delta does not fit is owed, and goes whole before the guest runs. Tests:
//!   `a_page_that_is_owed_is_so_until_it_is_there`, `of_pages_that_are_sent_again_what_changed_goes`.
//! - **A delta waits only for older versions**, and versions ascend on a stream, so that streams never wait for each
//!   other in a circle. Test: `of_one_version_the_first_is_kept`.
//! - **Kept RAM is never taken for what it should be.** Each of its pages is marked when the page is used; a page that
//!   does not fit, or is in doubt, is thrown away. Test: `what_was_kept_of_anything_else_is_not_used`.

#![forbid(unsafe_code)]

mod batch;
mod counts;
pub mod delta;
mod held;
mod kept;
mod ledger;
mod mark;
pub mod pace;
pub mod packing;
mod page;
pub mod page_record;
mod received;
mod region;
mod sent;
mod sketch;

pub use batch::{BATCH_BYTES_MAX, BATCH_PAGES_MAX, Batch, BatchForm, BlockName, PageKind, PageRuns, Run};
pub use counts::PageCounts;
pub use ledger::{Ledger, LedgerError, RegionGuard};
pub use mark::{Digest, Key};
pub use page::{PAGE_BYTES, REGION_PAGES, VERSION_KEPT, VERSION_MAX, VERSION_WRITTEN, is_zero};
pub use received::{BatchHead, ReceivedBatch, ReceivedRun, ReceivedRuns, RunContent, StoredPages};
pub use region::{Region, RegionId};
pub use sent::{Hashing, SentPages, ToSend};
