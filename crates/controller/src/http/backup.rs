//! Backups.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use skein_cluster::error_chain;
use skein_store::backup::export;

use super::app::Shared;
use super::guard::Admin;
use super::problem::{Problem, ReadProblems};

/// How long the store may take for a page.
const WITHIN: Duration = Duration::from_secs(5);

/// All that the controllers know, as lines of JSON
///
/// For `skein-controller restore`. Secrets are not in it, but what they are compared with.
#[utoipa::path(get, path = "/api/v1/backup", tag = "cluster",
    responses((status = 200, description = "The backup", body = String, content_type = "application/jsonl"),
        ReadProblems))]
pub(crate) async fn get_backup(_: Admin, State(app): State<Shared>) -> Result<Response, Problem> {
    let unavailable = |detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "try again");
    let store = app.driver.store();
    let cluster = app.driver.read(|core| core.tables().cluster.as_ref().map(|of| of.name.clone()));
    let cluster = cluster.unwrap_or_default();
    let exported = tokio::task::spawn_blocking(move || {
        let mut lines = Vec::new();
        export(&*store, &cluster, &mut lines, WITHIN).map(|_| lines)
    });
    let lines = exported.await.map_err(|error| unavailable(error_chain(&error)))?;
    let lines = lines.map_err(|error| unavailable(error_chain(&error)))?;
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], lines).into_response())
}
