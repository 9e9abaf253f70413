//! The source's end of a migration's streams: QEMU's bytes are taken apart, and pages are packed where that pays.
//!
//! ```text
//!  QEMU ─▶ intake ─▶ outbox ─▶ session
//!          (reads)    ▲ │
//!                     │ ▼
//!                    packers          target_messages ◀═══ session
//! ```
//!
//! One [`SourcePages`] stands for all streams of a migration. Each stream has an intake thread and a feeder thread. The
//! threads of a [`PackerPool`] have batches compressed by others, with CPU that nobody else wants. A
//! [`RateLimiter`] holds back what a limit does not allow yet.

mod error;
mod intake;
mod outbox;
mod pacer;
mod packer_pool;
mod page_counters;
mod pages;
mod rail_writes;
mod ram_survey;
mod rate_limiter;
mod socket_reader;
mod target_messages;

pub use packer_pool::{Compress, PackResult, PackerFigures, PackerPool, StartCompressor};
pub use pages::{DirtyTracking, SourcePages, SourcePagesSettings};
pub use rate_limiter::{RateLimiter, RateShare};

pub(crate) use intake::ingest;
pub(crate) use target_messages::TargetMessages;
