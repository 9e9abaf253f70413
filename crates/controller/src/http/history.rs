//! How busy hosts and VMs were.

use axum::Json;
use axum::extract::{Path, State};
use skein_api::cluster::History;

use super::app::Shared;
use super::guard::Viewer;
use super::problem::{Problem, ReadProblems};

/// How busy a host was in the last hours
#[utoipa::path(get, path = "/api/v1/hosts/{host}/history", tag = "hosts",
    params(("host" = String, Path, description = "The name")),
    responses((status = 200, description = "What this controller has seen since its start", body = History),
        ReadProblems))]
pub(crate) async fn host_history(
    _: Viewer,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<History>, Problem> {
    let is_known = app.driver.read(|core| core.tables().hosts.contains_key(&name));
    let found = app.driver.shared().load_history.lock().host(&name);
    if is_known { Ok(Json(found)) } else { Err(Problem::not_found("host", &name)) }
}

/// How busy a VM was in the last hours, on whichever hosts
#[utoipa::path(get, path = "/api/v1/vms/{vm}/history", tag = "vms",
    params(("vm" = String, Path, description = "The name")),
    responses((status = 200, description = "What this controller has seen since its start", body = History),
        ReadProblems))]
pub(crate) async fn vm_history(
    _: Viewer,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<History>, Problem> {
    let is_known = app.driver.read(|core| core.tables().vms.contains_key(&name));
    let found = app.driver.shared().load_history.lock().vm(&name);
    if is_known { Ok(Json(found)) } else { Err(Problem::not_found("VM", &name)) }
}
