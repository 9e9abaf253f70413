//! Hosts.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use skein_api::cluster::{
    DrainRequest, FenceRequest, FencingDevice, Host, HostSettings, Operation, Page, PowerReading, ResumeRequest,
};
use skein_cluster::{Answer, Ask, RefusedKind};
use utoipa::IntoParams;

use crate::fencing::shown_certificate;

use super::answer::{response, unexpected};
use super::app::Shared;
use super::body::{Body, OptionalBody};
use super::guard::{Admin, Operator, Viewer};
use super::origin::{Origin, etag, if_match};
use super::page::{After, items, page};
use super::problem::{Problem, ReadProblems, WriteProblems};

/// How many bytes of settings are kept.
const SETTINGS_BYTES_MAX: usize = 64 << 10;

/// The most migrations to or from a host that may be set: as the document says.
const MIGRATIONS_MAX: u32 = 65_535;
/// How long a fencing device may take to show its certificate.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
/// The longest deadline, in seconds: ten years.
const DEADLINE_MAX_S: u64 = 315_360_000;

/// How a host is removed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveQuery {
    /// Whether VMs that do not run are forgotten with the host
    #[serde(default)]
    pub force: bool,
}

/// The hosts, by name
#[utoipa::path(get, path = "/api/v1/hosts", tag = "hosts", params(After),
    responses((status = 200, description = "A page of hosts", body = Page<Host>), ReadProblems))]
pub(crate) async fn list_hosts(
    _: Viewer,
    State(app): State<Shared>,
    Query(of): Query<After>,
) -> Result<Json<Page<Host>>, Problem> {
    let most = items(of.limit)?;
    let found = app.driver.read(|core| core.hosts(of.after.as_deref().unwrap_or_default(), most + 1));
    Ok(Json(page(found, most, |host| &host.name)))
}

/// A host
#[utoipa::path(get, path = "/api/v1/hosts/{host}", tag = "hosts",
    params(("host" = String, Path, description = "The name")),
    responses((status = 200, description = "The host", body = Host,
        headers(("ETag" = String, description = "For If-Match"))), ReadProblems))]
pub(crate) async fn get_host(
    _: Viewer,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let host = app.driver.read(|core| core.host(&name)).ok_or_else(|| Problem::not_found("host", &name))?;
    Ok((etag(host.version), Json(host)).into_response())
}

/// Sets what people set of a host
///
/// All of it: what is left out is as for a new host.
#[utoipa::path(put, path = "/api/v1/hosts/{host}/settings", tag = "hosts",
    params(("host" = String, Path, description = "The name"),
        ("If-Match" = Option<String>, Header, pattern = "^\"?[0-9]{1,19}\"?$",
            description = "Only if the host still has this ETag, or with `*` if there is one")),
    request_body = HostSettings,
    responses((status = 204, description = "It is set"), ReadProblems, WriteProblems))]
pub(crate) async fn set_host(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
    headers: HeaderMap,
    Body(settings): Body<HostSettings>,
) -> Result<Response, Problem> {
    let version = if_match(&headers)?;
    check_size(&settings)?;
    if settings.incoming_max.max(settings.outgoing_max) > Some(MIGRATIONS_MAX) {
        return Err(Problem::invalid("too many migrations at once", format!("at most {MIGRATIONS_MAX} may be set")));
    }
    let ask = Ask::SetHost { host, settings: settings.clone(), version };
    let answer = origin.with(&settings).ask(&app, ask).await?;
    if let Answer::Refused(refused) = &answer
        && refused.kind == RefusedKind::Invalid
        && let Some(problem) = tell_certificate(&settings, &refused.message).await
    {
        return Err(problem);
    }
    response(answer)
}

/// Says which certificate a device shows, if what is to be set names none. Whoever compares the certificate with what
/// the device itself tells can set it then.
async fn tell_certificate(settings: &HostSettings, refused: &str) -> Option<Problem> {
    let Some(FencingDevice::Redfish { url, certificate_sha256: None, ca: None, .. }) = &settings.fencing else {
        return None;
    };
    let (url, until) = (url.clone(), Instant::now() + SHOWN_WITHIN);
    let seen = tokio::task::spawn_blocking(move || shown_certificate(&url, until)).await.ok()??;
    let cure = format!(
        "compare that with what the device itself tells (or set its CA), and name it: skein host fencing set ... \
         --certificate-sha256 {seen}"
    );
    Some(Problem::invalid(format!("{refused}: it shows one with the SHA-256 {seen}"), cure))
}

/// Removes a host that has no VMs
///
/// Its agent is refused, and its certificate with it, until the host joins anew. With `force` VMs that do not run are
/// forgotten with their host.
#[utoipa::path(delete, path = "/api/v1/hosts/{host}", tag = "hosts",
    params(("host" = String, Path, description = "The name"), RemoveQuery),
    responses((status = 204, description = "The host is removed"), ReadProblems, WriteProblems))]
pub(crate) async fn remove_host(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
    Query(RemoveQuery { force }): Query<RemoveQuery>,
) -> Result<Response, Problem> {
    response(origin.ask(&app, Ask::RemoveHost { host, force }).await?)
}

/// Empties a host
///
/// The host takes no guests from now on, and its guests move away. With `dry_run` it is only said what would be done,
/// which takes a viewer only.
#[utoipa::path(post, path = "/api/v1/hosts/{host}/drain", tag = "hosts",
    params(("host" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    request_body = Option<DrainRequest>,
    responses((status = 200, description = "What would be done", body = Operation),
        (status = 202, description = "The drain has begun", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn drain_host(
    _: Viewer,
    operator: Result<Operator, Problem>,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
    OptionalBody(request): OptionalBody<DrainRequest>,
) -> Result<Response, Problem> {
    if !request.dry_run {
        operator?;
    }
    if request.deadline_s > Some(DEADLINE_MAX_S) {
        return Err(Problem::invalid("the deadline is too far away", format!("at most {DEADLINE_MAX_S} s")));
    }
    response(origin.with(&request).ask(&app, Ask::Drain { host, request }).await?)
}

/// Switches a lost host off, or takes a person's word that it is off
///
/// Its fencing device switches it off, and says when it is off. With `is_off` a person says so: if the host is not off,
/// its guests run twice: this takes an admin. They are then started elsewhere, if the cluster's settings say so.
#[utoipa::path(post, path = "/api/v1/hosts/{host}/fence", tag = "hosts",
    params(("host" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    request_body = Option<FenceRequest>,
    responses((status = 202, description = "The host is being switched off, or its guests are started elsewhere",
            body = Operation),
        (status = 204, description = "The host counts as off"), ReadProblems, WriteProblems))]
pub(crate) async fn fence_host(
    _: Viewer,
    operator: Result<Operator, Problem>,
    admin: Result<Admin, Problem>,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
    OptionalBody(request): OptionalBody<FenceRequest>,
) -> Result<Response, Problem> {
    if request.is_off {
        admin?;
    } else {
        operator?;
    }
    response(origin.with(&request).ask(&app, Ask::Fence { host, request }).await?)
}

/// Asks a host's fencing device whether the host has power
///
/// Nothing is switched.
#[utoipa::path(post, path = "/api/v1/hosts/{host}/fencing/test", tag = "hosts",
    params(("host" = String, Path, description = "The name")),
    responses((status = 200, description = "What the device says", body = PowerReading), ReadProblems, WriteProblems))]
pub(crate) async fn test_fencing(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
) -> Result<Json<PowerReading>, Problem> {
    match origin.ask(&app, Ask::ReadPower { host }).await? {
        Answer::Power(reading) => Ok(Json(reading)),
        answer => Err(unexpected(&answer)),
    }
}

/// Puts a host to sleep
///
/// The host is emptied, takes no guests, and shuts itself down in order. It wakes when it is needed, or is asked for.
#[utoipa::path(post, path = "/api/v1/hosts/{host}/sleep", tag = "hosts",
    params(("host" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    responses((status = 202, description = "The host is emptied, and shut down", body = Operation), ReadProblems,
        WriteProblems))]
pub(crate) async fn sleep_host(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
) -> Result<Response, Problem> {
    response(origin.ask(&app, Ask::Sleep { host }).await?)
}

/// Wakes a host
///
/// Its device switches it on, and its agent is waited for. Of a host that is awake, what went wrong with its power
/// counts as mended.
#[utoipa::path(post, path = "/api/v1/hosts/{host}/wake", tag = "hosts",
    params(("host" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    responses((status = 202, description = "The host is switched on", body = Operation),
        (status = 204, description = "The host may be put to sleep again"), ReadProblems, WriteProblems))]
pub(crate) async fn wake_host(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
) -> Result<Response, Problem> {
    response(origin.ask(&app, Ask::Wake { host }).await?)
}

/// Lets a host take guests again
#[utoipa::path(post, path = "/api/v1/hosts/{host}/resume", tag = "hosts",
    params(("host" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    request_body = Option<ResumeRequest>,
    responses((status = 202, description = "Its guests come home", body = Operation),
        (status = 204, description = "The host takes guests"), ReadProblems, WriteProblems))]
pub(crate) async fn resume_host(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(host): Path<String>,
    OptionalBody(request): OptionalBody<ResumeRequest>,
) -> Result<Response, Problem> {
    response(origin.with(&request).ask(&app, Ask::Resume { host, request }).await?)
}

/// Refuses settings that are too large to be kept.
pub(crate) fn check_size(settings: &impl serde::Serialize) -> Result<(), Problem> {
    let bytes = serde_json::to_vec(settings).map_or(usize::MAX, |text| text.len());
    if bytes <= SETTINGS_BYTES_MAX {
        return Ok(());
    }
    Err(Problem::invalid(format!("settings of {bytes} bytes"), format!("at most {SETTINGS_BYTES_MAX} are kept")))
}
