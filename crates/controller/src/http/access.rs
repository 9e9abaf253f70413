//! Tokens, tickets, and the audit log.

use std::ops::Bound;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use skein_api::cluster::{AuditRecord, JoinTicket, NewJoinTicket, NewToken, Page, Token, TokenSecret};
use skein_cluster::{Answer, Ask};
use skein_identity::JoinToken;
use utoipa::IntoParams;

use super::answer::{response, unexpected};
use super::app::Shared;
use super::body::{Body, OptionalBody};
use super::guard::Admin;
use super::origin::{Origin, check_name};
use super::page::{After, items, page};
use super::problem::{Problem, ReadProblems, WriteProblems};
use super::secret::{new_secrets, no_random, sha256_hex, token_secret};

/// The tokens, by name
#[utoipa::path(get, path = "/api/v1/tokens", tag = "access", params(After),
    responses((status = 200, description = "A page of tokens", body = Page<Token>), ReadProblems))]
pub(crate) async fn list_tokens(
    _: Admin,
    State(app): State<Shared>,
    Query(of): Query<After>,
) -> Result<Json<Page<Token>>, Problem> {
    let most = items(of.limit)?;
    let above = (Bound::Excluded(of.after.unwrap_or_default()), Bound::Unbounded);
    let found = app.driver.read(|core| {
        let tokens = core.tables().tokens.range::<String, _>(above).take(most + 1);
        tokens.map(|(_, found)| found.value.token.clone()).collect()
    });
    Ok(Json(page(found, most, |token: &Token| &token.name)))
}

/// Makes a token
///
/// The secret is shown this once.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "access", request_body = NewToken,
    responses((status = 201, description = "The token", body = TokenSecret), ReadProblems, WriteProblems))]
pub(crate) async fn new_token(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Body(new): Body<NewToken>,
) -> Result<(StatusCode, Json<TokenSecret>), Problem> {
    check_name(&new.name)?;
    let secret = token_secret().ok_or_else(no_random)?;
    let secret_sha256 = sha256_hex(secret.as_bytes());
    let origin = origin.with(&new);
    let ask = Ask::NewToken { name: new.name, role: new.role, expires_s: new.expires_s, secret_sha256 };
    match origin.ask(&app, ask).await? {
        Answer::Token(token) => Ok((StatusCode::CREATED, Json(TokenSecret { token, secret }))),
        answer => Err(unexpected(&answer)),
    }
}

/// Takes a token away
#[utoipa::path(delete, path = "/api/v1/tokens/{name}", tag = "access",
    params(("name" = String, Path, description = "The name")),
    responses((status = 204, description = "The token is gone"), ReadProblems, WriteProblems))]
pub(crate) async fn remove_token(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    response(origin.ask(&app, Ask::RemoveToken { name }).await?)
}

/// Makes a ticket with which one host joins, once
#[utoipa::path(post, path = "/api/v1/tickets", tag = "access", request_body = Option<NewJoinTicket>,
    responses((status = 201, description = "The ticket", body = JoinTicket), ReadProblems, WriteProblems))]
pub(crate) async fn new_ticket(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    OptionalBody(new): OptionalBody<NewJoinTicket>,
) -> Result<(StatusCode, Json<JoinTicket>), Problem> {
    if let Some(host) = &new.host {
        check_name(host)?;
    }
    let ca = app.signer.ca().ok_or_else(no_ca)?;
    let (id, secret) = new_secrets().ok_or_else(no_random)?;
    let secret_sha256 = sha256_hex(secret.as_bytes());
    let token = JoinToken { ca: ca.fingerprint(), id: id.clone(), secret }.to_string();
    let ask = Ask::NewTicket { id: id.clone(), host: new.host.clone(), expires_s: new.expires_s, secret_sha256 };
    match origin.with(&new).ask(&app, ask).await? {
        Answer::Ticket(expires) => {
            let command = format!("skein join {} --token {token}", app.driver.member().url);
            Ok((StatusCode::CREATED, Json(JoinTicket { id, token, command, expires })))
        }
        answer => Err(unexpected(&answer)),
    }
}

/// Which part of the audit log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditPart {
    /// The page begins after this id: `next` of the page before
    after: Option<String>,
    /// The most items, 100 if not given
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Whether the newest come first
    #[serde(default)]
    newest: bool,
}

/// The audit log, the oldest first unless asked for otherwise
#[utoipa::path(get, path = "/api/v1/audit", tag = "access", params(AuditPart),
    responses((status = 200, description = "A page of the log", body = Page<AuditRecord>), ReadProblems))]
pub(crate) async fn list_audit(
    _: Admin,
    State(app): State<Shared>,
    Query(of): Query<AuditPart>,
) -> Result<Json<Page<AuditRecord>>, Problem> {
    let most = items(of.limit)?;
    let beyond = of.after.map_or(Bound::Unbounded, Bound::Excluded);
    let part = if of.newest { (Bound::Unbounded, beyond) } else { (beyond, Bound::Unbounded) };
    let found = app.driver.read(|core| {
        let log = core.tables().audit.range::<String, _>(part).map(|(_, found)| found.value.clone());
        if of.newest { log.rev().take(most + 1).collect() } else { log.take(most + 1).collect() }
    });
    Ok(Json(page(found, most, |record: &AuditRecord| &record.id)))
}

/// Returns the refusal of a controller that cannot sign.
pub(crate) fn no_ca() -> Problem {
    let cure = "ask a controller that has the CA's key: where 'skein-controller init' was run";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "this controller does not have the CA's key", cure)
}
