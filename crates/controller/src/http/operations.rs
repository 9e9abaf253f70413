//! Operations: what takes a while.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use skein_api::cluster::{Operation, Page};
use skein_cluster::Ask;
use utoipa::IntoParams;

use super::answer::response;
use super::app::Shared;
use super::guard::{Operator, Viewer};
use super::origin::{Origin, etag};
use super::page::{items, page};
use super::problem::{Problem, ReadProblems, WriteProblems};

/// Which operations.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Before {
    /// The page begins before this id: `next` of the page before
    #[param(pattern = "^[0-9]{1,20}-[0-9]{1,20}$")]
    before: Option<String>,
    /// The most items, 100 if not given
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Whether only those that are under way are wanted
    #[serde(default)]
    open: bool,
}

/// The operations, the newest first
#[utoipa::path(get, path = "/api/v1/operations", tag = "operations", params(Before),
    responses((status = 200, description = "A page of operations", body = Page<Operation>), ReadProblems))]
pub(crate) async fn list_operations(
    _: Viewer,
    State(app): State<Shared>,
    Query(of): Query<Before>,
) -> Result<Json<Page<Operation>>, Problem> {
    let most = items(of.limit)?;
    if let Some(odd) = of.before.as_deref().filter(|before| !is_id(before)) {
        return Err(Problem::bad_request(format!("'{odd}' is no operation's id"), "give 'next' of the page before"));
    }
    let before = of.before.unwrap_or_default();
    let found = app.driver.read(|core| match of.open {
        true => core.operations_under_way(&before, most + 1),
        false => core.operations(&before, most + 1),
    });
    Ok(Json(page(found, most, |operation| &operation.id)))
}

/// Returns whether a text may be an operation's id, whether there is one or not any more.
fn is_id(text: &str) -> bool {
    let is_number = |part: &str| (1..=20).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('-').is_some_and(|(term, number)| is_number(term) && is_number(number))
}

/// An operation
#[utoipa::path(get, path = "/api/v1/operations/{id}", tag = "operations",
    params(("id" = String, Path, description = "The id")),
    responses((status = 200, description = "The operation", body = Operation,
        headers(("ETag" = String, description = "Changes with each change"))), ReadProblems))]
pub(crate) async fn get_operation(
    _: Viewer,
    State(app): State<Shared>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let found = app.driver.read(|core| core.operation_view(&id)).ok_or_else(|| Problem::not_found("operation", &id))?;
    Ok((etag(found.version), Json(found)).into_response())
}

/// Calls an operation off
///
/// What was not begun is not begun any more, and what is under way is called off where that is still possible.
#[utoipa::path(post, path = "/api/v1/operations/{id}/cancel", tag = "operations",
    params(("id" = String, Path, description = "The id"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    responses((status = 202, description = "It is being called off", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn cancel_operation(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(operation): Path<String>,
) -> Result<Response, Problem> {
    response(origin.ask(&app, Ask::Cancel { operation }).await?)
}
