//! One request: which controller is asked, how often, and what its answer is.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use skein_api::cluster::ProblemDetails;
use skein_identity::controller_name;
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use ureq::http::{self, Method, Response};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, TcpConnector};
use ureq::{Agent, Body};

use super::error::{ControllerError, failed};
use super::transport::{Credentials, TlsConnector};
use super::url::ControllerUrl;

/// How many bytes an answer has at most.
const BODY_BYTES_MAX: u64 = 64 << 20;
/// How often a controller may name another for one request.
const REDIRECTS_MAX: u32 = 4;
/// The time between two tries of a request that may succeed soon.
const RETRY_PERIOD: Duration = Duration::from_millis(250);

/// How long requests may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For a connection with its handshake, to each controller.
    pub connect: Duration,
    /// For an answer; a controller ends a request after 30 s.
    pub answer: Duration,
    /// For controllers that have no leader at the moment.
    pub leaderless: Duration,
}

impl Times {
    pub const USUAL: Times =
        Times { connect: Duration::from_secs(5), answer: Duration::from_secs(35), leaderless: Duration::from_secs(12) };
    /// Another controller is asked before a user loses patience with one that is cut off.
    pub const OF_SEVERAL: Times = Times { connect: Duration::from_secs(2), ..Times::USUAL };
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub method: Method,
    /// Below `/api/v1`, with its query.
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Vec<u8>>,
}

impl Ask {
    pub fn get(path: impl Into<String>) -> Ask {
        Ask { method: Method::GET, path: path.into(), headers: Vec::new(), body: None }
    }

    /// Returns a request that is done once, however often it is sent.
    pub fn post(path: impl Into<String>, body: Option<Vec<u8>>) -> Ask {
        let headers = random_key().map(|key| ("idempotency-key", key)).into_iter().collect();
        Ask { method: Method::POST, path: path.into(), headers, body }
    }
}

/// Returns a random UUID. `None`: the kernel gives none.
pub fn random_key() -> Option<String> {
    // The kernel makes a new UUID for each reader of this file.
    let key = std::fs::read_to_string("/proc/sys/kernel/random/uuid").ok()?;
    Some(key.trim().to_owned()).filter(|key| !key.is_empty())
}

/// Returns a name as a part of a path or a query.
pub(super) fn encoded(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
            // Writing to a String always works.
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

/// Sends requests to a cluster's controllers.
#[derive(Debug)]
pub(super) struct Sender {
    urls: Vec<ControllerUrl>,
    agent: Agent,
    secret: Option<String>,
    times: Times,
    /// The controller that answered last.
    good: AtomicUsize,
}

impl Sender {
    pub fn new(urls: Vec<ControllerUrl>, credentials: &Credentials, times: Times) -> Result<Sender, ControllerError> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(true)
            // A proxy would be taken from the environment.
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("skein/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(times.connect))
            .timeout_send_request(Some(times.connect))
            .timeout_send_body(Some(times.answer))
            .timeout_recv_response(Some(times.answer))
            .timeout_per_read(Some(times.answer))
            .build();
        let connector =
            TcpConnector::default().chain(TlsConnector { config: credentials.tls()?, name: controller_name() });
        let agent = Agent::with_parts(config, connector, DefaultResolver::default());
        let secret = credentials.secret().map(str::to_owned);
        Ok(Sender { urls, agent, secret, times, good: AtomicUsize::new(0) })
    }

    /// Sends a request, to each controller until one answers. Where none leads, the request waits a while.
    pub fn send(&self, ask: &Ask) -> Result<(String, Response<Body>), ControllerError> {
        let end = Instant::now() + self.times.leaderless;
        let mut is_lost = false;
        loop {
            let in_time = Instant::now() + RETRY_PERIOD < end;
            match self.send_round(ask) {
                Err(error) if in_time && error.status() == Some(503) => {}
                // The answer may be lost while the request was done: the key makes it one request.
                Err(ControllerError::Unreachable { .. }) if in_time && !is_lost => is_lost = true,
                answer => return answer,
            }
            std::thread::sleep(RETRY_PERIOD);
        }
    }

    /// Returns what a path has.
    pub fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ControllerError> {
        self.whole(&Ask::get(path))
    }

    /// Sends a request whose answer has a body.
    pub fn whole<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, ControllerError> {
        let answer = self.send(ask)?;
        let (at, status) = (answer.0.clone(), answer.1.status().as_u16());
        json(answer)?.ok_or(ControllerError::NoReason { at, status })
    }

    /// Asks each controller once.
    fn send_round(&self, ask: &Ask) -> Result<(String, Response<Body>), ControllerError> {
        let first = self.good.load(Ordering::Relaxed);
        let mut failure = None;
        for place in (0..self.urls.len()).map(|n| (first + n) % self.urls.len()) {
            match self.send_from(&self.urls[place], ask) {
                Ok(answer) => {
                    self.good.store(place, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) if error.may_pass() || matches!(error, ControllerError::NotTrusted { .. }) => {
                    // What a controller said is worth more than that another cannot be reached.
                    failure = failure.filter(|earlier: &ControllerError| earlier.status().is_some()).or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or(ControllerError::NoUrl))
    }

    /// Asks a controller, and whom it names in its place.
    fn send_from(&self, url: &ControllerUrl, ask: &Ask) -> Result<(String, Response<Body>), ControllerError> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let at = url.to_string();
            let response = self.send_once(&at, ask).map_err(|error| failed(&at, error))?;
            let status = response.status();
            if status.is_success() {
                return Ok((at, response));
            }
            if status != http::StatusCode::TEMPORARY_REDIRECT {
                return Err(refusal(at, response));
            }
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok()).unwrap_or_default();
            let parsed = next.strip_prefix("https://").map(|_| next.parse());
            // Whoever that is has to show a certificate of a controller before anything is sent there.
            url = match parsed {
                Some(Ok(next)) => next,
                _ => return Err(ControllerError::BadRedirect { at, next: next.chars().take(256).collect() }),
            };
        }
        Err(ControllerError::Circle)
    }

    fn send_once(&self, at: &str, ask: &Ask) -> Result<Response<Body>, ureq::Error> {
        let mut request = http::Request::builder().method(&ask.method).uri(format!("{at}/api/v1{}", ask.path));
        if let Some(secret) = &self.secret {
            request = request.header(AUTHORIZATION, format!("Bearer {secret}"));
        }
        if !ask.headers.iter().any(|(name, _)| *name == "accept") {
            request = request.header(ACCEPT, "application/json");
        }
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        match &ask.body {
            Some(body) => self.agent.run(request.header(CONTENT_TYPE, "application/json").body(&body[..])?),
            None => self.agent.run(request.body(())?),
        }
    }
}

/// Reads the body of an answer. `None`: the answer has none.
pub(super) fn json<T: DeserializeOwned>(
    (at, response): (String, Response<Body>),
) -> Result<Option<T>, ControllerError> {
    if response.status() == http::StatusCode::NO_CONTENT {
        return Ok(None);
    }
    let body = read(response, BODY_BYTES_MAX).map_err(|error| failed(&at, error))?;
    serde_json::from_slice(&body).map(Some).map_err(|source| ControllerError::Malformed { at, source })
}

fn read(response: Response<Body>, most: u64) -> Result<Vec<u8>, ureq::Error> {
    response.into_body().into_with_config().limit(most).read_to_vec()
}

fn refusal(at: String, response: Response<Body>) -> ControllerError {
    let status = response.status().as_u16();
    let body = read(response, 64 << 10).unwrap_or_default();
    match serde_json::from_slice::<ProblemDetails>(&body) {
        Ok(problem) => ControllerError::Refused(Box::new(ProblemDetails { status, ..problem })),
        Err(_) => ControllerError::NoReason { at, status },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_and_keys_differ() {
        assert_eq!(encoded("web-1.a_b~"), "web-1.a_b~");
        assert_eq!(encoded("a/b?c%é"), "a%2Fb%3Fc%25%C3%A9");
        let (one, two) = (random_key().unwrap(), random_key().unwrap());
        assert!(one != two && one.len() == 36, "{one} {two}");
    }
}
