//! A management controller that speaks Redfish (DMTF DSP0266): a system's `PowerState`, and its action
//! `#ComputerSystem.Reset` with `ForceOff`, `GracefulShutdown` or `On`.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use skein_api::cluster::PowerState;
use skein_client::TlsConnector;
use ureq::Agent;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE};
use ureq::http::{Method, Request};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, TcpConnector};

use super::tls::{Trust, TrustError};

/// The systems of a management controller.
const SYSTEMS: &str = "/redfish/v1/Systems";
/// How many bytes an answer has at most.
const BODY_BYTES_MAX: u64 = 1 << 20;
/// How much of a device's words is told.
const TOLD_CHARS_MAX: usize = 200;

/// How the power is switched (`ResetType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetType {
    /// Off, at once.
    ForceOff,
    /// Off, by the system itself.
    GracefulShutdown,
    /// On.
    On,
}

impl ResetType {
    fn name(self) -> &'static str {
        match self {
            ResetType::ForceOff => "ForceOff",
            ResetType::GracefulShutdown => "GracefulShutdown",
            ResetType::On => "On",
        }
    }
}

/// Why a management controller did not do or say what it was to.
#[derive(Debug, thiserror::Error)]
pub enum RedfishError {
    /// Nobody can be trusted.
    #[error("its certificate cannot be checked")]
    Trust(#[source] TrustError),
    /// The URL has no name for a certificate.
    #[error("'{0}' is no URL of a device")]
    Url(String),
    /// Its certificate is not trusted.
    #[error("{url} is not trusted: {why}")]
    NotTrusted {
        /// The address.
        url: String,
        /// Why not.
        why: String,
    },
    /// The controller cannot be reached.
    #[error("{url} cannot be asked")]
    Ask {
        /// The address.
        url: String,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// A reset was sent, and the answer did not come.
    #[error("{url} does not answer the {kind}")]
    NoAnswer {
        /// The address.
        url: String,
        /// How the system was to be switched.
        kind: &'static str,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// The account is none.
    #[error("it refuses the account ({status}): check user, secret, and the account's rights to switch power")]
    Account {
        /// The HTTP status.
        status: u16,
    },
    /// It answered with an error.
    #[error("it answers {status} for {path}: {words}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The path.
        path: String,
        /// What it says.
        words: String,
    },
    /// The answer is none of Redfish.
    #[error("its answer for {path} is none of Redfish's")]
    NotRedfish {
        /// The path.
        path: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A path leads elsewhere.
    #[error("it leads to '{0}', which is no path below /redfish/")]
    Path(String),
    /// It has no system, or several.
    #[error("it has {count} systems: set which one it is{ids}")]
    WhichSystem {
        /// How many.
        count: usize,
        /// Their ids.
        ids: String,
    },
    /// The system cannot be switched so.
    #[error("the system cannot be switched with {kind}: it takes {takes}")]
    NoReset {
        /// How it was to be switched.
        kind: &'static str,
        /// How it can be switched.
        takes: String,
    },
}

impl RedfishError {
    /// Whether nothing was done for sure.
    pub fn is_refusal(&self) -> bool {
        match self {
            // 4xx and 5xx of a reset say little: some answer so if the power is as wanted already.
            RedfishError::Status { status, .. } => matches!(status, 404 | 405),
            RedfishError::NoAnswer { .. } => false,
            _ => true,
        }
    }
}

/// A management controller.
pub struct Redfish {
    agent: Agent,
    base: String,
    authorization: Option<String>,
    until: Instant,
}

#[derive(Debug, Deserialize)]
struct Collection {
    #[serde(rename = "Members", default)]
    members: Vec<Link>,
}

#[derive(Debug, Deserialize)]
struct Link {
    #[serde(rename = "@odata.id")]
    id: String,
}

/// A system, as far as it matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct System {
    #[serde(default)]
    power_state: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    host_name: Option<String>,
    #[serde(default)]
    manufacturer: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    serial_number: Option<String>,
    #[serde(default)]
    actions: Actions,
}

#[derive(Debug, Default, Deserialize)]
struct Actions {
    #[serde(rename = "#ComputerSystem.Reset", default)]
    reset: Option<Reset>,
}

#[derive(Debug, Deserialize)]
struct Reset {
    target: String,
    #[serde(rename = "ResetType@Redfish.AllowableValues", default)]
    allowable: Vec<String>,
}

impl System {
    /// Returns whether it has power.
    pub fn power(&self) -> PowerState {
        match self.power_state.as_deref() {
            Some("On") => PowerState::On,
            Some("Off") => PowerState::Off,
            _ => PowerState::Changing,
        }
    }

    /// Returns what the device says of the machine.
    pub fn words(&self) -> String {
        let named = |what: &str, value: &Option<String>| {
            value.as_ref().filter(|value| !value.is_empty()).map(|value| format!("{what} {}", told(value)))
        };
        let parts = [
            named("name", &self.name),
            named("host name", &self.host_name),
            named("manufacturer", &self.manufacturer),
            named("model", &self.model),
            named("serial number", &self.serial_number),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Returns where a reset of a kind is asked for.
    pub fn reset_target(&self, kind: ResetType) -> Result<String, RedfishError> {
        let none = |takes: String| RedfishError::NoReset { kind: kind.name(), takes };
        let Some(reset) = &self.actions.reset else { return Err(none("no reset at all".into())) };
        // A device that lists nothing takes what the standard has.
        if !reset.allowable.is_empty() && !reset.allowable.iter().any(|value| value == kind.name()) {
            return Err(none(told(&reset.allowable.join(", "))));
        }
        below_redfish(&reset.target)
    }
}

impl Redfish {
    /// Makes a client. All it does is over at a time.
    pub fn new(
        url: &str,
        account: Option<(String, String)>,
        trust: Trust,
        until: Instant,
    ) -> Result<Redfish, RedfishError> {
        let base = url.trim_end_matches('/').to_owned();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A proxy would be taken from the environment.
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("skein-controller/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = match trust {
            Trust::Nothing => Agent::with_parts(config, TcpConnector::default(), DefaultResolver::default()),
            Trust::Tls(tls) => {
                let uri: ureq::http::Uri = base.parse().map_err(|_| RedfishError::Url(base.clone()))?;
                let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(host.to_owned()).map_err(|_| RedfishError::Url(base.clone()))?;
                let connector = TcpConnector::default().chain(TlsConnector { config: tls, name });
                Agent::with_parts(config, connector, DefaultResolver::default())
            }
        };
        let basic = |(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        Ok(Redfish { agent, base, authorization: account.map(basic), until })
    }

    /// Returns the system with that id, or the only one that there is.
    pub fn system(&self, id: Option<&str>) -> Result<System, RedfishError> {
        let path = match id {
            Some(id) => format!("{SYSTEMS}/{id}"),
            None => {
                let Collection { members } = self.get(SYSTEMS)?;
                let [only] = &members[..] else {
                    let ids: Vec<&str> = members.iter().filter_map(|of| of.id.rsplit('/').next()).take(20).collect();
                    let ids = if ids.is_empty() { String::new() } else { format!(", {}", told(&ids.join(", "))) };
                    return Err(RedfishError::WhichSystem { count: members.len(), ids });
                };
                below_redfish(&only.id)?
            }
        };
        self.get(&path)
    }

    /// Asks for the power to be switched. The request is sent within a time, or not at all; the answer may take longer.
    pub fn reset(&self, target: &str, kind: ResetType, sent_within: Duration) -> Result<(), RedfishError> {
        let request = self.request(Method::POST, target).header(CONTENT_TYPE, "application/json");
        let request =
            request.body(format!("{{\"ResetType\":\"{}\"}}", kind.name())).map_err(|error| self.cannot(error))?;
        let left = self.left();
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(Some(left))
            // A device that closes connections has to shake hands again, which takes old ones a second.
            .timeout_connect(Some(sent_within * 2 / 3))
            .timeout_send_request(Some(sent_within / 6))
            .timeout_send_body(Some(sent_within / 6))
            .build();
        let answer = self.agent.run(request);
        let no_answer = |error| match error {
            // Nothing was sent.
            ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect)
            | ureq::Error::ConnectionFailed
            | ureq::Error::HostNotFound => self.failed(error),
            error => RedfishError::NoAnswer { url: self.base.clone(), kind: kind.name(), source: Box::new(error) },
        };
        self.checked(target, answer.map_err(no_answer)?).map(drop)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RedfishError> {
        let request = self.request(Method::GET, path).body(()).map_err(|error| self.cannot(error))?;
        let request = self.agent.configure_request(request).timeout_global(Some(self.left())).build();
        let answer = self.agent.run(request);
        let failed = |error| self.failed(error);
        let mut answer = self.checked(path, answer.map_err(failed)?)?;
        let not = |source| RedfishError::NotRedfish { path: told(path), source };
        let text = answer.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string();
        let text = text.map_err(|error| not(Box::new(error)))?;
        serde_json::from_str(&text).map_err(|error| not(Box::new(error)))
    }

    fn request(&self, method: Method, path: &str) -> ureq::http::request::Builder {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        match &self.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization),
            None => request,
        }
    }

    fn cannot(&self, error: ureq::http::Error) -> RedfishError {
        RedfishError::Ask { url: self.base.clone(), source: Box::new(error.into()) }
    }

    fn failed(&self, error: ureq::Error) -> RedfishError {
        let url = self.base.clone();
        let tls = match &error {
            ureq::Error::Io(io) => io.get_ref().and_then(|own| own.downcast_ref::<rustls::Error>()),
            _ => None,
        };
        match tls {
            // The reason of the check of a known certificate is its own error.
            Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(own))) => {
                RedfishError::NotTrusted { url, why: own.0.to_string() }
            }
            Some(tls) => RedfishError::NotTrusted { url, why: tls.to_string() },
            None => RedfishError::Ask { url, source: Box::new(error) },
        }
    }

    /// Returns the time that is left: a little at least, so that a call that is late fails as one that took too long.
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(10))
    }

    fn checked(
        &self,
        path: &str,
        mut answer: ureq::http::Response<ureq::Body>,
    ) -> Result<ureq::http::Response<ureq::Body>, RedfishError> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        if matches!(status.as_u16(), 401 | 403) {
            return Err(RedfishError::Account { status: status.as_u16() });
        }
        let text = answer.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string().unwrap_or_default();
        Err(RedfishError::Status { status: status.as_u16(), path: told(path), words: words(&text) })
    }
}

/// Returns what an error of Redfish says (DSP0266, "Error responses"), or its beginning.
fn words(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let error = &value["error"];
    let more = error["@Message.ExtendedInfo"][0]["Message"].as_str();
    told(more.or_else(|| error["message"].as_str()).unwrap_or(text))
}

/// Returns a device's words as they may be shown.
fn told(text: &str) -> String {
    text.chars().take(TOLD_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns a path that the device gave, if it stays at the device.
fn below_redfish(path: &str) -> Result<String, RedfishError> {
    let is_path = path.starts_with("/redfish/") && path.chars().all(|c| c.is_ascii_graphic()) && !path.contains("..");
    if is_path { Ok(path.to_owned()) } else { Err(RedfishError::Path(told(path))) }
}

#[cfg(test)]
mod tests;
