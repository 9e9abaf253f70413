//! What a policy sees of the world, and what it decides.

use crate::policy::dynamic::BadRound;
use crate::problem::{GuestId, HostId, Problem};

/// Index of CPU among the resources, in hundredths of MIPS.
pub(super) const CPU: usize = 0;
/// Index of memory, in MB.
pub(super) const MEMORY: usize = 1;
/// What part of a host's CPU is used at most before it is short: CloudSim's threshold.
pub(super) const SAFE: f64 = 0.8;

/// What a policy gets to see before a step.
pub(super) struct Seen<'a> {
    /// The hosts and guests, with where each is as [`Problem::initial`].
    pub(super) problem: &'a Problem,
    pub(super) now_s: u64,
    /// What each guest used of CPU in the step before.
    pub(super) used: &'a [i64],
    /// How long each takes to move.
    pub(super) sends_s: &'a [f64],
}

/// Decides which guests move.
pub(super) trait Policy {
    /// Guests and where they go, in this order.
    fn decide(&mut self, seen: &Seen) -> Result<Vec<(GuestId, HostId)>, BadRound>;
}
