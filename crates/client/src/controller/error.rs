//! Why a request to a controller failed, in words.

use std::io;

use skein_api::cluster::ProblemDetails;
use skein_identity::{IdentityError, explain_controller};

/// Why a request to a controller failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ControllerError {
    #[error("no controller is named to be asked")]
    NoUrl,
    #[error("no controller answers at {at} (is skein-controller running there, and does a network lead there?)")]
    Unreachable {
        at: String,
        #[source]
        source: Box<ureq::Error>,
    },
    #[error("{at} is not taken for a controller: {why}")]
    NotTrusted { at: String, why: String },
    #[error("the controller at {at} did not answer in time")]
    Silent { at: String },
    #[error("{}{}{}", .0.detail, if .0.cure.is_empty() { "" } else { ": " }, .0.cure)]
    Refused(Box<ProblemDetails>),
    #[error("the answer of {at} is not understood: is it a controller of another version?")]
    Malformed {
        at: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{at} answers with status {status}, and does not say why: is it a controller?")]
    NoReason { at: String, status: u16 },
    #[error("{at} names {next:?} as the controller that leads, which is no controller's URL")]
    BadRedirect { at: String, next: String },
    #[error("the controllers refer to each other: ask again in a moment")]
    Circle,
    #[error("{at} sends an event of more than {most} bytes")]
    LongEvent { at: String, most: usize },
    #[error("the identity cannot be used to ask a controller")]
    Identity(#[from] IdentityError),
}

impl ControllerError {
    /// Returns whether the same request may succeed soon, as when another controller takes the lead.
    pub fn may_pass(&self) -> bool {
        match self {
            ControllerError::Unreachable { .. } | ControllerError::Silent { .. } | ControllerError::Circle => true,
            ControllerError::Refused(problem) => matches!(problem.status, 408 | 502..=504),
            _ => false,
        }
    }

    /// Returns the status by which a controller refused.
    pub fn status(&self) -> Option<u16> {
        match self {
            ControllerError::Refused(problem) => Some(problem.status),
            ControllerError::NoReason { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Returns why there is no answer of the controller at a URL.
pub(super) fn failed(at: &str, error: ureq::Error) -> ControllerError {
    let at = at.to_owned();
    match error {
        ureq::Error::Io(io) if tls(&io).is_some() => {
            ControllerError::NotTrusted { at, why: tls(&io).map(why).unwrap_or_default() }
        }
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            ControllerError::Unreachable { at, source: Box::new(error) }
        }
        ureq::Error::Timeout(_) => ControllerError::Silent { at },
        error => ControllerError::Unreachable { at, source: Box::new(error) },
    }
}

fn tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The reason of a certificate's check is its own error.
fn why(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(own)) => own.0.to_string(),
        error => explain_controller(error),
    }
}
