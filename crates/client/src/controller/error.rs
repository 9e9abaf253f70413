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
    #[error("{}", refused_words(.0))]
    Refused(Box<ProblemDetails>),
    #[error("the answer of {at} is not understood: is it a controller of another version?")]
    Malformed {
        at: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{at} answers with status {status}, and does not say why: {}", cure_of(*status))]
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

/// Says what to do where a controller does not know who asks.
const LOG_IN: &str = "log in with a token that is valid: skein login URL --token-file FILE";

/// A controller's cure for somebody whom it does not know is for those who write requests themselves.
fn refused_words(problem: &ProblemDetails) -> String {
    let cure = if problem.status == 401 { LOG_IN } else { problem.cure.as_str() };
    let colon = if cure.is_empty() { "" } else { ": " };
    format!("{}{colon}{cure}", problem.detail)
}

fn cure_of(status: u16) -> &'static str {
    if status == 401 { LOG_IN } else { "is it a controller?" }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_not_known_is_told_to_log_in() {
        let problem = |status, cure: &str| {
            let (kind, title, detail) = (String::new(), String::new(), "the token is not valid".to_owned());
            ControllerError::Refused(Box::new(ProblemDetails { kind, title, status, detail, cure: cure.into() }))
        };
        for error in [problem(401, "a header"), ControllerError::NoReason { at: "https://a".into(), status: 401 }] {
            let words = error.to_string();
            assert!(words.ends_with("skein login URL --token-file FILE") && !words.contains("header"), "{words}");
        }
        assert_eq!(problem(409, "wait").to_string(), "the token is not valid: wait");
        assert_eq!(problem(409, "").to_string(), "the token is not valid");
        let other = ControllerError::NoReason { at: "https://a".into(), status: 404 };
        assert!(other.to_string().ends_with("is it a controller?"), "{other}");
    }
}
