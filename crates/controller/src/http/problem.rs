//! Refusals, in one form: RFC 9457.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use skein_api::cluster::ProblemDetails;
use skein_cluster::Refused;
use utoipa::IntoResponses;

/// The type of a problem's body.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// What is to be known of a refusal before it is noted for the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The core has noted it.
    Audited,
    /// It is the answer to a wrong token, which is noted whatever was asked.
    WrongToken,
}

/// A refusal.
#[derive(Debug)]
pub(crate) struct Problem {
    pub status: StatusCode,
    pub detail: String,
    cure: String,
    header: Option<Box<(HeaderName, HeaderValue)>>,
    mark: Option<Mark>,
}

impl Problem {
    pub fn new(status: StatusCode, detail: impl Into<String>, cure: impl Into<String>) -> Problem {
        Problem { status, detail: detail.into(), cure: cure.into(), header: None, mark: None }
    }

    pub fn not_found(what: &str, name: &str) -> Problem {
        let cure = format!("see skein {} list", what.to_ascii_lowercase());
        Problem::new(StatusCode::NOT_FOUND, format!("there is no {what} '{name}'"), cure)
    }

    pub fn bad_request(detail: impl Into<String>, cure: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail, cure)
    }

    pub fn invalid(detail: impl Into<String>, cure: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail, cure)
    }

    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Problem {
        self.header = Some(Box::new((name, value)));
        self
    }

    pub fn marked(mut self, mark: Mark) -> Problem {
        self.mark = Some(mark);
        self
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        let status = StatusCode::from_u16(refused.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Problem::new(status, refused.message, refused.cure).marked(Mark::Audited)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let reason = self.status.canonical_reason().unwrap_or("Refused");
        let body = ProblemDetails {
            kind: format!("urn:skein:{}", reason.to_ascii_lowercase().replace(' ', "-")),
            title: reason.to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
            cure: self.cure,
        };
        let mut response = (self.status, [(header::CONTENT_TYPE, PROBLEM_JSON)], Json(body)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(header) = self.header {
            response.headers_mut().insert(header.0, header.1);
        }
        if let Some(mark) = self.mark {
            response.extensions_mut().insert(mark);
        }
        response
    }
}

/// The refusals of a route that shows something.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it is only described")]
pub(crate) enum ReadProblems {
    /// The request makes no sense
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(ProblemDetails),
    /// No valid token or certificate
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemDetails),
    /// The caller's role does not suffice
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemDetails),
    /// There is no such thing
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(ProblemDetails),
    /// The request takes too long
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(ProblemDetails),
    /// Too many wrong tokens came from this address
    #[response(status = 429, content_type = "application/problem+json")]
    TooMany(ProblemDetails),
    /// The controller can do nothing at the moment
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemDetails),
}

/// The further refusal of a question about rules.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it is only described")]
pub(crate) enum RuleProblems {
    /// Rules, or settings of hosts and VMs, contradict each other
    #[response(status = 409, content_type = "application/problem+json")]
    Contradiction(ProblemDetails),
}

/// The further refusals of a route that changes something.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it is only described")]
pub(crate) enum WriteProblems {
    /// Another controller leads: ask there
    #[response(status = 307, content_type = "application/problem+json")]
    Elsewhere(ProblemDetails),
    /// Not possible in the present state
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(ProblemDetails),
    /// It has changed since the caller looked
    #[response(status = 412, content_type = "application/problem+json")]
    Changed(ProblemDetails),
    /// The body has more than 1 MiB
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(ProblemDetails),
    /// The body is no JSON by its type
    #[response(status = 415, content_type = "application/problem+json")]
    OtherType(ProblemDetails),
    /// The body makes no sense
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(ProblemDetails),
}
