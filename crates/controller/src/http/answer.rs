//! The core's answers as HTTP has them.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use skein_cluster::Answer;

use super::origin::etag;
use super::problem::Problem;

/// Returns the response to what may have begun an operation. An operation that is only shown has no place.
pub(crate) fn response(answer: Answer) -> Result<Response, Problem> {
    match answer {
        Answer::Done => Ok(StatusCode::NO_CONTENT.into_response()),
        Answer::Preview(operation) => Ok(Json(*operation).into_response()),
        Answer::Operation(operation) => {
            let location = [(header::LOCATION, format!("/api/v1/operations/{}", operation.id))];
            let etag = etag(operation.version);
            Ok((StatusCode::ACCEPTED, location, etag, Json(*operation)).into_response())
        }
        answer => Err(unexpected(&answer)),
    }
}

/// Has nobody on the way keep what is answered, unless the answer says otherwise, and no browser guess what that is.
pub(crate) async fn private(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    response
}

/// Returns the refusal where the core answered something else than was asked.
pub(crate) fn unexpected(answer: &Answer) -> Problem {
    let detail = format!("an unexpected answer, {}", answer.status());
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail, "report this as a mistake in Skein")
}
