//! A browser's session: its token in a cookie that scripts cannot read, as a browser cannot give a stream of events a
//! header.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use skein_api::cluster::{NewSession, Session};

use super::app::{Peer, Shared};
use super::body::Body;
use super::cookie::cookie;
use super::guard::{Caller, Viewer, wrong_token};
use super::problem::{Problem, ReadProblems, WriteProblems};
use super::secret::sha256_hex;
use crate::driver::wall;

/// Begins a browser's session
///
/// The token goes into a cookie. With the cookie a request that changes something needs the header `X-Skein-Page`,
/// which no page of another origin can send.
#[utoipa::path(post, path = "/api/v1/session", tag = "access", security(()), request_body = NewSession,
    responses((status = 200, description = "Who the session stands for", body = Session), ReadProblems,
        WriteProblems))]
pub(crate) async fn begin_session(
    State(app): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    Body(NewSession { token }): Body<NewSession>,
) -> Result<Response, Problem> {
    let token = token.trim();
    let digest = sha256_hex(token.as_bytes());
    let found = app.driver.read(|core| core.token(wall(), &digest).cloned());
    // What is no token may not be a cookie either.
    let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let found = found.filter(|_| is_plain).ok_or_else(|| wrong_token(app.wrong.note(peer.address, Instant::now())))?;
    let left = found.expires.map(|expires| expires.0.saturating_sub(wall().0) / 1000);
    let session = Session { name: found.name, role: found.role, expires: found.expires };
    Ok((cookie(token, left), Json(session)).into_response())
}

/// Who the session stands for
#[utoipa::path(get, path = "/api/v1/session", tag = "access",
    responses((status = 200, description = "Who asks", body = Session), ReadProblems))]
pub(crate) async fn get_session(_: Viewer, Extension(caller): Extension<Caller>) -> Json<Session> {
    Json(Session { name: caller.name, role: caller.role, expires: caller.expires })
}

/// Ends a browser's session
#[utoipa::path(delete, path = "/api/v1/session", tag = "access", security(()),
    responses((status = 204, description = "The cookie is gone"), ReadProblems, WriteProblems))]
pub(crate) async fn end_session() -> Response {
    (StatusCode::NO_CONTENT, cookie("", Some(0))).into_response()
}
