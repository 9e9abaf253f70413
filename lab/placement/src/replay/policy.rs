//! What a policy of the replay sees of the world, and what it decides.

use skein_placement::policy::dynamic::BadRound;
use skein_placement::problem::{GuestId, HostId, Problem};

/// The index of CPU among the resources, in hundredths of MIPS.
pub(super) const CPU: usize = 0;
/// The index of memory, in MB.
pub(super) const MEMORY: usize = 1;
/// The part of a host's CPU above which it is short: CloudSim's threshold.
pub(super) const SAFE: f64 = 0.8;

/// What a policy sees before a step.
pub(super) struct Seen<'a> {
    /// The hosts and guests, with where each guest is as [`Problem::initial`].
    pub(super) problem: &'a Problem,
    pub(super) now_s: u64,
    /// The CPU that each guest used in the step before.
    pub(super) used: &'a [i64],
    /// How many seconds each guest takes to move.
    pub(super) sends_s: &'a [f64],
}

/// Decides which guests move.
pub(super) trait Policy {
    /// Returns the guests that move and where they go, in this order.
    fn decide(&mut self, seen: &Seen) -> Result<Vec<(GuestId, HostId)>, BadRound>;
}
