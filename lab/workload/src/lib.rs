//! What the guest workload writes, as pure functions. They are shared by the program inside the guest and by programs
//! outside that boot it and judge its reports.
//!
//! There is no table of what was written. The content of every page follows from the seed and from one counter for each
//! slice ([`Sweep`]). So a migration cannot lose both a page and the record that it was written without the two
//! disagreeing.

pub mod gaps;
pub mod pacer;
pub mod params;
pub mod pattern;

pub use gaps::Gaps;
pub use pacer::Pacer;
pub use params::{ParamError, Params, PortAddress, Rewrite};
pub use pattern::{PAGE_BYTES, PAGE_WORDS, Page, Pattern, Sweep};

/// The name of the virtio-serial port that takes commands and gives answers.
pub const CONTROL_PORT: &str = "skein.control";
/// The name of the virtio-serial port on which heartbeats leave.
pub const BEAT_PORT: &str = "skein.beat";
