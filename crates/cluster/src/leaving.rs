//! Guests that are to leave a host.

/// A guest that is to leave a host. The cluster has the guest where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The guest.
    pub vm: String,
    /// The host where it still is.
    pub from: String,
    /// Whether it is held, or is to be.
    pub is_held: bool,
}
