//! Sets of hosts whose failure is not survived, and the proof.

use crate::problem::{GroupId, GuestId, HostId};

/// The proof that there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// No other host takes this guest, even if it is alone.
    Guest(GuestId),
    /// The guests need more of a resource than all other hosts together have free.
    Resource {
        /// Index in [`Problem::resources`](crate::problem::Problem::resources).
        resource: usize,
        /// How much the guests use of the resource.
        needs: i64,
        /// How much is free.
        free: i64,
    },
    /// All ways were tried.
    Tried,
}

/// A set of hosts whose guests find no room if these hosts fail at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The hosts that fail.
    pub hosts: Vec<HostId>,
    /// The guests without room in the best placement that was found, if room is what is missing.
    pub left: Vec<GuestId>,
    /// The groups of whose rules more is broken in that placement.
    pub rules: Vec<GroupId>,
    /// The proof that there is no way. `None`: no way was found, but there may be one.
    pub proof: Option<Proof>,
}
