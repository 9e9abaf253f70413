//! Tells why another host's agent cannot be reached, or does not answer.

use std::io;
use std::sync::Arc;

use skein_dataplane::StartError;
use thiserror::Error;

use super::control_stream::ControlStreamError;
use super::host_addresses::FindError;

/// The reason why there is no contact with another host's agent.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum DialError {
    #[error("it is this host")]
    Itself,
    #[error("no thread to dial it")]
    Threads(#[source] io::Error),
    #[error(transparent)]
    Address(FindError),
    #[error(transparent)]
    Session(StartError),
    #[error("no control stream")]
    NoControlStream(#[source] io::Error),
    #[error("it does not take a control stream: is it another version of skein?")]
    ControlStreamRefused,
    #[error(transparent)]
    Protocol(ControlStreamError),
    #[error("it does not answer")]
    Silent,
}

impl DialError {
    /// Returns whether the host is there and no program listens on it.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, DialError::Session(error) if error.is_refused())
    }
}

/// The reason why a question was not answered.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum AskError {
    #[error("{0} is this host")]
    Myself(String),
    #[error("the agent of {host} cannot be reached")]
    Unreachable {
        host: String,
        #[source]
        source: Arc<DialError>,
    },
    #[error("the agent of {0} did not answer in time")]
    NoAnswer(String),
    #[error("the agent of {host} answers: {reason}")]
    Refused { host: String, reason: String },
    #[error("{us} cannot read what the agent of {host} (skein {release}) answers: upgrade skein on {us}")]
    Unreadable {
        us: String,
        host: String,
        release: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("the agent of {0} answers something else than it was asked")]
    Unasked(String),
    #[error("too many questions are under way: try again in a moment")]
    Busy,
    #[error("this agent stops")]
    Stopping,
}
