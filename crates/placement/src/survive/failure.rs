//! Hosts whose failure is not survived, and why that is certain.

use crate::problem::{GroupId, GuestId, HostId};

/// Why there is no room for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// No other host takes this guest, even alone.
    Guest(GuestId),
    /// Of a resource more is needed than is free on all others together.
    Resource {
        /// Index in [`Problem::resources`](crate::problem::Problem::resources).
        resource: usize,
        /// What the guests use of it.
        needs: i64,
        /// What is free.
        free: i64,
    },
    /// All ways were tried.
    Tried,
}

/// Hosts whose guests find no room, if they fail at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The hosts that fail.
    pub hosts: Vec<HostId>,
    /// Who finds none in the best placement that was found, if room is what is missing.
    pub left: Vec<GuestId>,
    /// Groups whose rules are broken more in that placement.
    pub rules: Vec<GroupId>,
    /// None: no way was found, and there may be one.
    pub proof: Option<Proof>,
}
