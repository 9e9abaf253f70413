//! Before and behind every route: who calls, within which time, in which form refusals are, and what of them is noted.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, StreamExt};
use http_body_util::{BodyExt, Limited};
use skein_api::Refusal;
use skein_api::cluster::{Role, Token, UnixMs};
use skein_cluster::{Ask, Asked};
use skein_identity::ClusterPeer;

use super::app::{App, Peer, Shared};
use super::cookie::cookie_token;
use super::problem::{Mark, PROBLEM_JSON, Problem};
use super::secret::sha256_hex;
use super::unread::Unread;
use crate::driver::wall;

/// How long a request may take, its body among it. A stream of events begins within that time.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// How much of a plain refusal's text is kept.
const TEXT_BYTES_MAX: usize = 2048;
/// How often is looked whether the token of a stream's subscriber is valid still.
const TOKEN_PERIOD: Duration = Duration::from_secs(2);
/// What the page sends with each change.
const PAGE_HEADER: &str = "x-skein-page";

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The name of a token; a certificate's is `host:NAME` or `controller:NAME`, which no token's can be.
    pub name: String,
    pub role: Role,
    /// When the token ends. `None`: never.
    pub expires: Option<UnixMs>,
    /// The SHA-256 of the token's secret. `None`: a certificate was shown.
    secret_sha256: Option<String>,
}

/// Why it is not known who calls.
#[derive(Clone, Debug)]
enum Unknown {
    /// Nothing was shown.
    Nothing,
    /// The token is not valid.
    WrongToken,
    /// Too many wrong tokens came from the address.
    TooMany,
    /// A browser's cookie came with a change that may be another page's.
    OtherPage,
    /// The host of the certificate was removed.
    Removed(Refusal),
}

/// How long an answer waited for something that was to happen: no part of the time that the controller took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited(pub Duration);

/// Somebody who may look.
pub(crate) struct Viewer;
/// Somebody who may move guests.
pub(crate) struct Operator;
/// Somebody who may do everything.
pub(crate) struct Admin;

/// Sees to all that every request has in common.
pub(crate) async fn guard(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let peer = request.extensions().get::<std::sync::Arc<Peer>>().cloned();
    let Some(peer) = peer else {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Problem::new(status, "the connection is not known", "connect anew").into_response();
    };
    let caller = caller(&app, &peer, request.method(), request.headers());
    let by = caller.as_ref().map_or_else(|_| "-".to_owned(), |caller| caller.name.clone());
    let is_known = caller.is_ok();
    let (is_change, what) = (is_change(request.method()), format!("{} {}", request.method(), request.uri().path()));
    request.extensions_mut().insert(caller);
    let (request, unread) = Unread::of(request);
    let response = match tokio::time::timeout(REQUEST_WITHIN, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(StatusCode::REQUEST_TIMEOUT, "the request takes too long", "send all of it at once")
            .into_response(),
    };
    let status = response.status();
    let waited = response.extensions().get::<Waited>().map_or(Duration::ZERO, |waited| waited.0);
    app.driver.shared().meter.answered(status.as_u16(), begun.elapsed().saturating_sub(waited));
    if !status.is_client_error() && !status.is_server_error() {
        return unread.answered(response).await;
    }
    let is_noted = match response.extensions().get::<Mark>() {
        Some(Mark::Audited) => false,
        Some(Mark::WrongToken) => true,
        None => is_change && status != StatusCode::TOO_MANY_REQUESTS,
    };
    let (response, detail) = as_problem(response).await;
    if is_noted && (is_known || app.wrong.is_noted(Instant::now())) {
        let ask = Ask::Refused { status: status.as_u16(), detail };
        let (from, what) = (peer.address.to_string(), shortened(&what));
        app.driver.note(Asked { id: 0, by, from, what, repeat: None, ask });
    }
    unread.answered(response).await
}

/// Returns the refusal of a path that is none.
pub(crate) async fn no_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path", "see /openapi.json")
}

/// Returns the refusal of a method that a path does not have.
pub(crate) async fn no_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not have this method", "see /openapi.json")
}

pub(crate) fn is_change(method: &Method) -> bool {
    ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

fn shortened(what: &str) -> String {
    what.chars().filter(|c| !c.is_control()).take(256).collect()
}

fn caller(app: &App, peer: &Peer, method: &Method, headers: &HeaderMap) -> Result<Caller, Unknown> {
    if let Some(authorization) = headers.get(header::AUTHORIZATION) {
        let text = authorization.to_str().unwrap_or_default();
        let secret = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        return by_token(app, peer, secret.map(|(_, secret)| secret.trim()).unwrap_or_default());
    }
    if let Some(secret) = cookie_token(headers) {
        // Another page can have a browser send its cookie, but no header of ours.
        if is_change(method) && !headers.contains_key(PAGE_HEADER) {
            return Err(Unknown::OtherPage);
        }
        return by_token(app, peer, secret);
    }
    if let ClusterPeer::Host(name) = &peer.certificate
        && let Some(refusal) = app.driver.read(|of| of.host_refusal(name, &peer.certificate_sha256.clone().into()))
    {
        return Err(Unknown::Removed(refusal));
    }
    match &peer.certificate {
        ClusterPeer::Controller(name) => Ok(certified(format!("controller:{name}"), Role::Admin)),
        ClusterPeer::Host(name) if app.driver.read(|of| of.tables().hosts.contains_key(name)) => {
            Ok(certified(format!("host:{name}"), Role::Viewer))
        }
        ClusterPeer::Host(_) | ClusterPeer::Nobody => Err(Unknown::Nothing),
    }
}

fn certified(name: String, role: Role) -> Caller {
    Caller { name, role, expires: None, secret_sha256: None }
}

fn by_token(app: &App, peer: &Peer, secret: &str) -> Result<Caller, Unknown> {
    let digest = sha256_hex(secret.as_bytes());
    match app.driver.read(|of| of.token(wall(), &digest).cloned()) {
        Some(Token { name, role, expires, .. }) => Ok(Caller { name, role, expires, secret_sha256: Some(digest) }),
        None if app.wrong.note(peer.address, Instant::now()) => Err(Unknown::WrongToken),
        None => Err(Unknown::TooMany),
    }
}

/// Returns the refusal of a wrong token; too many of them came from the address, if it `may_try` no more.
pub(crate) fn wrong_token(may_try: bool) -> Problem {
    if may_try {
        return unauthorized("the token is not valid, or not any more").marked(Mark::WrongToken);
    }
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens", "wait a minute");
    problem.with(header::RETRY_AFTER, HeaderValue::from_static("60"))
}

fn unauthorized(detail: &str) -> Problem {
    let cure = "skein login URL --token-file FILE; a request of your own has the header 'Authorization: Bearer TOKEN', \
                or a certificate of the cluster's CA";
    let challenge = HeaderValue::from_static("Bearer realm=\"skein\"");
    Problem::new(StatusCode::UNAUTHORIZED, detail, cure).with(header::WWW_AUTHENTICATE, challenge)
}

/// A caller whose stream goes on for as long as the caller's token is valid.
pub(crate) struct Valid(Option<String>);

impl FromRequestParts<Shared> for Valid {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Valid, Problem> {
        Ok(Valid(parts.extensions.get::<Caller>().and_then(|caller| caller.secret_sha256.clone())))
    }
}

impl Valid {
    /// Ends a stream when the token is valid no more.
    pub(crate) fn until_invalid<T>(self, app: Shared, stream: impl Stream<Item = T>) -> impl Stream<Item = T> {
        let is_invalid = async move {
            let Valid(Some(digest)) = self else { return std::future::pending().await };
            while app.driver.read(|of| of.token(wall(), &digest).is_some()) {
                tokio::time::sleep(TOKEN_PERIOD).await;
            }
        };
        stream.take_until(is_invalid)
    }
}

/// Returns who calls, if the caller may do what the role may.
fn allowed(parts: &Parts, role: Role) -> Result<Caller, Problem> {
    match parts.extensions.get::<Result<Caller, Unknown>>() {
        Some(Ok(caller)) if caller.role >= role => Ok(caller.clone()),
        Some(Ok(caller)) => {
            let words = format!("'{}' is {}, and this takes {}", caller.name, a(caller.role), a(role));
            let cure = format!(
                "log in with a token of {}: skein login URL --token-file FILE; where a controller runs, the admin's is \
                 /etc/skein/controller/admin.token",
                a(role)
            );
            Err(Problem::new(StatusCode::FORBIDDEN, words, cure))
        }
        Some(Err(Unknown::WrongToken)) => Err(wrong_token(true)),
        Some(Err(Unknown::TooMany)) => Err(wrong_token(false)),
        Some(Err(Unknown::OtherPage)) => {
            let detail = "a browser's session changes nothing without the header 'X-Skein-Page'";
            Err(Problem::new(StatusCode::FORBIDDEN, detail, "use the controller's own page, or send a token"))
        }
        Some(Err(Unknown::Removed(refusal))) => {
            Err(Problem::new(StatusCode::FORBIDDEN, refusal.message.clone(), refusal.cure.clone()))
        }
        Some(Err(Unknown::Nothing)) | None => Err(unauthorized("it is not known who asks")),
    }
}

fn a(role: Role) -> &'static str {
    match role {
        Role::Viewer => "a viewer",
        Role::Operator => "an operator",
        Role::Admin => "an admin",
    }
}

/// Makes the extractor of a role: a route that has it refuses whoever may do less.
macro_rules! role {
    ($role:ident) => {
        impl FromRequestParts<Shared> for $role {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<$role, Problem> {
                let caller = allowed(parts, Role::$role)?;
                parts.extensions.insert(caller);
                Ok($role)
            }
        }
    };
}

role!(Viewer);
role!(Operator);
role!(Admin);

/// Gives a refusal the one form. Returns what is wrong, too.
async fn as_problem(response: Response) -> (Response, String) {
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_JSON);
    let (parts, body) = response.into_parts();
    let bytes = Limited::new(body, 64 << 10).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if is_problem {
        let read = serde_json::from_slice::<skein_api::cluster::ProblemDetails>(&bytes);
        let detail = read.map(|problem| problem.detail).unwrap_or_default();
        return (Response::from_parts(parts, Body::from(bytes)), detail);
    }
    // axum's own refusals are plain text.
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]);
    let text: String = text.trim().chars().filter(|c| !c.is_control()).collect();
    let detail = match text.is_empty() {
        true => parts.status.canonical_reason().unwrap_or("refused").to_owned(),
        false => text,
    };
    let mut problem =
        Problem::new(parts.status, detail.clone(), "see /openapi.json for what may be asked").into_response();
    for (name, value) in &parts.headers {
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            problem.headers_mut().insert(name, value.clone());
        }
    }
    (problem, detail)
}
