//! What is seen of a copy at one moment.

use std::time::Duration;

/// What was seen of a copy at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySample {
    /// The time since any fixed moment.
    pub at: Duration,
    /// The number of this pass over the RAM, from 1.
    pub round: u64,
    /// Bytes of pages sent so far over all rounds, as they are in the guest.
    pub sent: u64,
    /// Bytes left to send in this round.
    pub remaining: u64,
    /// Bytes that may be left at the switchover.
    pub fits: u64,
    /// Per cent that the guest is throttled by.
    pub throttle: u8,
    /// Bytes of different pages that the guest was seen to write within a second, throttled as it is. `None`: not
    /// known.
    pub sampled: Option<u64>,
    /// The number of NICs that carry the guest. 0: another NIC would not carry more.
    pub nics: u32,
    /// The limit in bytes a second, if a limit alone is what holds the copy up.
    pub limit: Option<u64>,
}

impl CopySample {
    /// Returns all that there is to send so far. It grows only when a round ends, by what the guest dirtied.
    pub(super) fn total(&self) -> u64 {
        self.sent.saturating_add(self.remaining)
    }
}
