//! Hosts join.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::{Extension, Json};
use skein_api::cluster::{JoinRequest, Joined};
use skein_cluster::{Answer, Ask, error_chain};
use skein_identity::{CaFingerprint, JoinToken, SigningRequest, certificate_pem};

use super::access::no_ca;
use super::answer::unexpected;
use super::app::{App, Peer, Shared};
use super::body::Body;
use super::origin::Origin;
use super::problem::{Problem, ReadProblems, WriteProblems};
use super::secret::sha256_hex;

/// Lets a host join
///
/// By the token of a ticket, which is used up. The host's key stays on the host.
#[utoipa::path(post, path = "/api/v1/join", tag = "hosts", security(()), request_body = JoinRequest,
    responses((status = 200, description = "The host has joined", body = Joined), ReadProblems, WriteProblems))]
pub(crate) async fn join(
    origin: Origin,
    Extension(peer): Extension<Arc<Peer>>,
    State(app): State<Shared>,
    Body(request): Body<JoinRequest>,
) -> Result<Json<Joined>, Problem> {
    let joined = try_join(origin, &app, &request).await;
    if let Err(problem) = &joined
        && problem.status == StatusCode::FORBIDDEN
        && !app.wrong.note(peer.address, Instant::now())
    {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens", "wait a minute");
        return Err(problem.with(header::RETRY_AFTER, HeaderValue::from_static("60")));
    }
    joined.map(Json)
}

async fn try_join(origin: Origin, app: &App, request: &JoinRequest) -> Result<Joined, Problem> {
    let forbidden = |detail: &str| {
        let cure = "get a new token where a controller runs: skein-controller ticket";
        Problem::new(StatusCode::FORBIDDEN, detail, cure)
    };
    let ca = app.signer.ca().ok_or_else(no_ca)?;
    let token: JoinToken = request.token.trim().parse().map_err(|_| forbidden("that is no token for a join"))?;
    if token.ca != ca.fingerprint() {
        return Err(forbidden("the token is another cluster's"));
    }
    let signing = SigningRequest::parse(request.signing_request.as_bytes())
        .map_err(|error| Problem::invalid(error_chain(&error), "make a request with `skein join`"))?;
    // The ticket is used up by the core's word, so that whatever else may fail comes before.
    let certificate = app
        .signer
        .sign(ca, &signing, &request.host)
        .map_err(|error| Problem::invalid(error_chain(&error), "make a request with `skein join`"))?;
    let host = signing.name().to_owned();
    let ask = Ask::Join {
        host: host.clone(),
        boot_id: request.boot_id.clone(),
        ticket: token.id,
        secret_sha256: sha256_hex(token.secret.as_bytes()),
        certificate_sha256: CaFingerprint::of(&certificate).to_hex(),
    };
    match origin.asked_by(format!("host:{host}")).ask(app, ask).await? {
        Answer::Done => {}
        answer => return Err(unexpected(&answer)),
    }
    let cluster = app.driver.read(|core| core.tables().cluster.as_ref().map(|of| of.name.clone()));
    Ok(Joined {
        cluster: cluster.unwrap_or_default(),
        certificate: certificate_pem(&certificate),
        ca: ca.certificate_pem(),
        controllers: app.driver.members().into_iter().map(|member| member.address).collect(),
    })
}
