//! Why a guest's hypervisor did not do what it was asked.

/// What the hypervisor's own protocol says of it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a guest's hypervisor did not do what it was asked. In words it is what the protocol's error says.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// It did not answer in time. It may do it all the same: ask how things stand.
    #[error(transparent)]
    Silent(Cause),
    /// It answered, and will not.
    #[error(transparent)]
    Refused(Cause),
    /// The connection is over: what runs the guest ended, or serves somebody else. Find out which.
    #[error(transparent)]
    Gone(Cause),
    /// No hypervisor of this kind can do that: do without it.
    #[error("this hypervisor cannot {0}")]
    Unsupported(&'static str),
    /// The connection fails, or says what is not understood.
    #[error(transparent)]
    Failed(Cause),
}
