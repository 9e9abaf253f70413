//! Says why a request was refused.

use serde::{Deserialize, Serialize};

/// Why a request was refused: RFC 9457, as `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProblemDetails {
    /// What kind of problem it is, as `urn:skein:not-found`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words, which are the same for each problem of the kind.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong in this case.
    pub detail: String,
    /// What to do about it. May be empty.
    #[serde(default)]
    pub cure: String,
}
