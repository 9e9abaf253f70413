//! A browser's session: its token in a cookie that scripts cannot read. A browser cannot give a stream of events a header.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use skein_api::cluster::{NewSession, Session};

use super::app::{Peer, Shared};
use super::body::Body;
use super::guard::{Caller, Viewer, wrong_token};
use super::problem::{Problem, ReadProblems, WriteProblems};
use super::secret::sha256_hex;
use crate::driver::wall;

/// The cookie's name: a browser takes one of this name over TLS only, and only from the very host that it goes back to.
const COOKIE: &str = "__Host-skein";

/// Returns the token that a browser's cookie has.
pub(super) fn cookie_token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// Returns the header that sets the cookie, for so many seconds.
fn cookie(token: &str, seconds: Option<u64>) -> [(header::HeaderName, String); 1] {
    let age = seconds.map_or_else(String::new, |seconds| format!("; Max-Age={seconds}"));
    [(header::SET_COOKIE, format!("{COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict{age}"))]
}

/// Begins a browser's session
///
/// The token goes into a cookie. With the cookie a request that changes something needs the header `X-Skein-Page`, which
/// no page of another origin can send.
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

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(cookies: &[&str]) -> HeaderMap {
        let pair = |text: &&str| (header::COOKIE, HeaderValue::from_str(text).unwrap());
        cookies.iter().map(pair).collect()
    }

    #[test]
    fn the_token_is_found_among_other_cookies() {
        assert_eq!(cookie_token(&headers(&["a=b; __Host-skein=skein-1_x; c=d"])), Some("skein-1_x"));
        assert_eq!(cookie_token(&headers(&["a=b", "__Host-skein=x"])), Some("x"));
        for none in [&["__Host-skein="][..], &["x__Host-skein=y"], &["__Host-skein"], &[]] {
            assert_eq!(cookie_token(&headers(none)), None, "{none:?}");
        }
    }
}
