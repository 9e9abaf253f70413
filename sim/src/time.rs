//! Virtual time, and how ends, paths and connections are numbered.

/// Nanoseconds since the run began.
pub type Time = u64;
pub const US: Time = 1_000;
pub const MS: Time = 1_000_000;
pub const S: Time = 1_000_000_000;

/// One of the two ends; also the direction that it sends in.
pub type End = usize;
pub const DIALER: End = 0;
pub const ACCEPTOR: End = 1;
pub const ENDS: [End; 2] = [DIALER, ACCEPTOR];

pub type ConnIx = usize;
pub type PathIx = usize;
