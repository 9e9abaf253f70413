//! Where a request comes from, and how the core gets it.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use skein_cluster::{Answer, Ask, Asked};

use super::app::{App, Peer, Shared};
use super::guard::Caller;
use super::problem::Problem;

/// How long an idempotency key is at most.
const REPEAT_CHARS_MAX: usize = 64;
/// How much of a body is in the audit log.
const BODY_CHARS_MAX: usize = 512;

/// A request, without its body.
pub(crate) struct Origin {
    by: String,
    from: String,
    what: String,
    repeat: Option<String>,
    path: String,
}

impl FromRequestParts<Shared> for Origin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Origin, Problem> {
        let by = parts.extensions.get::<Caller>().map_or("-", |caller| &caller.name).to_owned();
        let from = parts.extensions.get::<Arc<Peer>>().map_or_else(String::new, |peer| peer.address.to_string());
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let repeat = match parts.headers.get("idempotency-key").map(|key| key.to_str().unwrap_or_default()) {
            Some(key) if !is_word(key) || key.chars().count() > REPEAT_CHARS_MAX => {
                let cure = format!("use 1 to {REPEAT_CHARS_MAX} letters, digits and the signs . _ -, as in a UUID");
                return Err(Problem::bad_request("the Idempotency-Key is none", cure));
            }
            key => key.map(str::to_owned),
        };
        let what = format!("{} {}", parts.method, parts.uri.path());
        Ok(Origin { by, from, what, repeat, path })
    }
}

impl Origin {
    /// Adds what is asked for in the body, which has no secrets.
    pub fn with(mut self, body: &impl Serialize) -> Origin {
        // Plain data always serialises.
        let text = serde_json::to_string(body).unwrap_or_default();
        if text != "{}" {
            self.what.push(' ');
            self.what.extend(text.chars().take(BODY_CHARS_MAX));
        }
        self
    }

    /// Says who asks where nobody is known by a token.
    pub fn asked_by(mut self, by: String) -> Origin {
        self.by = by;
        self
    }

    /// Has the core answer, or says which controller does.
    pub async fn ask(self, app: &App, ask: Ask) -> Result<Answer, Problem> {
        let driver = &app.driver;
        if !driver.leads() {
            return Err(self.elsewhere(app));
        }
        let Origin { by, from, what, repeat, .. } = self;
        match driver.ask(move |id| Asked { id, by, from, what, repeat, ask }).await {
            Answer::Refused(refused) => Err(refused.into()),
            answer => Ok(answer),
        }
    }

    /// Leads a caller to the controller that leads.
    fn elsewhere(&self, app: &App) -> Problem {
        let leader = app.driver.leader().filter(|leader| leader.member.name != app.driver.member().name);
        let url = leader.map(|leader| format!("{}{}", leader.member.url, self.path));
        match url.as_ref().and_then(|url| HeaderValue::from_str(url).ok()) {
            Some(location) => {
                let detail = "another controller leads";
                let problem = Problem::new(StatusCode::TEMPORARY_REDIRECT, detail, "ask there: see Location");
                problem.with(header::LOCATION, location)
            }
            None => {
                let cure = "ask again in some seconds";
                let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no controller leads at the moment", cure);
                problem.with(header::RETRY_AFTER, HeaderValue::from_static("2"))
            }
        }
    }
}

/// Returns whether a text may be part of a key of the store: letters, digits and the signs `. _ -`.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// How long a name is at most that somebody gives.
const NAME_CHARS_MAX: usize = 64;

/// Refuses a name that cannot be part of a key, or is hard to write.
pub(crate) fn check_name(name: &str) -> Result<(), Problem> {
    if is_word(name) && name.len() <= NAME_CHARS_MAX && name.as_bytes()[0].is_ascii_alphanumeric() {
        return Ok(());
    }
    let cure = format!("use 1 to {NAME_CHARS_MAX} letters, digits and the signs . _ -, a letter or digit first");
    Err(Problem::invalid("the name cannot be used", cure))
}

/// Returns the version that `If-Match` names. `None`: any.
pub(crate) fn if_match(headers: &axum::http::HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    // The quotes, which RFC 9110 asks for, are easily lost in a shell.
    text.trim_matches('"')
        .parse()
        .map(Some)
        .map_err(|_| Problem::bad_request("If-Match is no ETag of this API", "send the ETag back as it came, or '*'"))
}

/// Returns the ETag of a version.
pub(crate) fn etag(version: u64) -> [(header::HeaderName, String); 1] {
    [(header::ETAG, format!("\"{version}\""))]
}
