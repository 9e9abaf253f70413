//! Tells why a connection to a controller ended, or did not come about.

use std::io;
use std::time::Duration;

use skein_api::{LineError, Refusal};
use skein_identity::{PeerError, explain_controller, explain_io};
use thiserror::Error;

/// The reason why there is no connection to a controller any more.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("its address cannot be found")]
    Unknown(#[source] io::Error),
    #[error("its name has no address")]
    NoAddress,
    #[error("it cannot be dialled")]
    Dial(#[source] io::Error),
    #[error("{}", explain_controller(.0))]
    Tls(rustls::Error),
    #[error(transparent)]
    Peer(PeerError),
    #[error("{}", explain_io(.0))]
    Io(io::Error),
    #[error("it hung up")]
    Closed,
    #[error("it said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("it does not read what it is told: nothing for {} s", .0.as_secs())]
    Stalled(Duration),
    #[error("it sent what is no line of a controller")]
    Line(#[source] LineError),
    #[error("it sent what no controller may: {0}: {1}")]
    NotAllowed(String, String),
    #[error("its first line is not a greeting")]
    NoGreeting,
    #[error("it does not take this host: {0}: {1}")]
    Refused(String, String),
    #[error("the host's certificate was renewed, and is shown to it now")]
    Renewed,
    #[error("the agent stops, or the controller is not in the file any more")]
    Over,
}

impl LinkError {
    /// Returns the error of a line that is not allowed.
    pub(crate) fn not_allowed(refusal: Refusal) -> LinkError {
        LinkError::NotAllowed(refusal.message, refusal.cure)
    }
}
