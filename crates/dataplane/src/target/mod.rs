//! Is the target's end of a migration's streams: pages go into the guest's RAM, the rest to QEMU.
//!
//! ```text
//!  session ─▶ page_writer ─▶ the guest's RAM
//!  (records    │   └──────▶ QEMU: what is no page
//!   in order)  ▼
//!             source: what was written, whether both ends hold the same
//! ```
//!
//! One [`TargetPages`] stands for all streams of a migration. A session's receiver threads do the work.

mod blocks;
mod error;
mod page_writer;
mod pages;
#[cfg(test)]
mod pages_tests;
mod rail_regions;

pub use pages::TargetPages;

pub(crate) use page_writer::PageWriter;
