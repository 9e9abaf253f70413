//! Tells why a guest's hypervisor did not do what it was asked.

/// The error of the hypervisor's own protocol.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a guest's hypervisor did not do what it was asked. In words this is what the protocol's error says.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The hypervisor did not answer in time. It may do what was asked all the same: ask for the state.
    #[error(transparent)]
    Silent(Cause),
    /// The hypervisor answered, and refuses.
    #[error(transparent)]
    Refused(Cause),
    /// The connection is over: what runs the guest ended, or serves another client. The caller has to find out which.
    #[error(transparent)]
    Gone(Cause),
    /// No hypervisor of this kind can do that: the caller does without.
    #[error("this hypervisor cannot {0}")]
    Unsupported(&'static str),
    /// The connection fails, or brings what is not understood.
    #[error(transparent)]
    Failed(Cause),
}
