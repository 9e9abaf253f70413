//! Streams whose bytes are a guest's migration: taken apart at the source, put together at the target.
//!
//! ```text
//!  QEMU ─▶ intake ─▶ queue ─▶ feeder ─▶ session ═══▶ session ─▶ placer ─▶ the guest's RAM
//!          (reads,    ▲ │     (room on               (records    └──────▶ QEMU: what is no page
//!           marks)    │ ▼      the paths)             in order)
//!                    packers                   ◀═══ answers
//! ```
//!
//! One [`SourcePages`] and one [`TargetPages`] stand for all streams of a migration at either end. `skein_pages` says what travels;
//! here is who does it: an intake thread and a feeder thread for each stream at the source, the session's receivers at the
//! target, and [`PackerPool`], for whom others compress, with CPU that nobody else wants.

mod answers;
mod counts;
#[cfg(feature = "fault-points")]
pub mod fault;
mod feeder;
mod intake;
mod kept;
mod packers;
mod placer;
mod queue;
mod source;
mod tap;
mod target;
#[cfg(test)]
mod target_tests;

pub use kept::{KeptMarks, KeptRam};
pub use packers::{Compress, PackResult, PackerPool, StartCompressor};
pub use source::{DirtyTracking, SourcePages, SourcePagesSettings};
pub use target::{FindRam, Ram, RamError, TargetPages};

pub(crate) use answers::TargetMessages;
pub(crate) use intake::ingest;
pub(crate) use placer::{PageWriter, Step};
