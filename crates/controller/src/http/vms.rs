//! VMs.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use skein_api::PRIORITY_RANGE;
use skein_api::cluster::{MigrateRequest, Operation, Page, Vm, VmDefinition, VmSettings};
use skein_cluster::{Ask, broken_by};
use tokio::time::timeout;
use utoipa::IntoParams;

use super::answer::response;
use super::app::Shared;
use super::body::{Body, OptionalBody};
use super::guard::{Admin, Operator, Viewer};
use super::hosts::check_size;
use super::origin::{Origin, etag, if_match};
use super::page::{items, page};
use super::problem::{Problem, ReadProblems, WriteProblems};
use super::rules::question;

/// How long it may take to say which rules a move would break: the move does not depend on that.
const RULES_WITHIN: Duration = Duration::from_secs(5);

/// Which VMs.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WhichVms {
    /// The page begins after this name: `next` of the page before
    after: Option<String>,
    /// The most items, 100 if not given
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Only the VMs on this host
    host: Option<String>,
}

/// The VMs, by name
#[utoipa::path(get, path = "/api/v1/vms", tag = "vms", params(WhichVms),
    responses((status = 200, description = "A page of VMs", body = Page<Vm>), ReadProblems))]
pub(crate) async fn list_vms(
    _: Viewer,
    State(app): State<Shared>,
    Query(of): Query<WhichVms>,
) -> Result<Json<Page<Vm>>, Problem> {
    let most = items(of.limit)?;
    let after = of.after.as_deref().unwrap_or_default();
    let found = app.driver.read(|core| core.vms(after, of.host.as_deref(), most + 1));
    Ok(Json(page(found, most, |vm| &vm.name)))
}

/// A VM
#[utoipa::path(get, path = "/api/v1/vms/{vm}", tag = "vms", params(("vm" = String, Path, description = "The name")),
    responses((status = 200, description = "The VM", body = Vm,
        headers(("ETag" = String, description = "For If-Match"))), ReadProblems))]
pub(crate) async fn get_vm(
    _: Viewer,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let vm = app.driver.read(|core| core.vm(&name)).ok_or_else(|| Problem::not_found("VM", &name))?;
    Ok((etag(vm.version), Json(vm)).into_response())
}

/// Sets what people set of a VM
///
/// All of it: what is left out is as for a new VM.
#[utoipa::path(put, path = "/api/v1/vms/{vm}/settings", tag = "vms",
    params(("vm" = String, Path, description = "The name"),
        ("If-Match" = Option<String>, Header, pattern = "^\"?[0-9]{1,19}\"?$",
            description = "Only if the VM still has this ETag, or with `*` if there is one")),
    request_body = VmSettings,
    responses((status = 204, description = "It is set"), ReadProblems, WriteProblems))]
pub(crate) async fn set_vm(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    headers: HeaderMap,
    Body(settings): Body<VmSettings>,
) -> Result<Response, Problem> {
    let version = if_match(&headers)?;
    check_size(&settings)?;
    if let Some(priority) = settings.priority.filter(|priority| !PRIORITY_RANGE.contains(priority)) {
        let (least, most) = PRIORITY_RANGE.into_inner();
        return Err(Problem::invalid(format!("a priority of {priority}"), format!("it may be {least} to {most}")));
    }
    let ask = Ask::SetVm { vm, settings: settings.clone(), version };
    response(origin.with(&settings).ask(&app, ask).await?)
}

/// A VM's definition, as its host last told
///
/// A definition names files of hosts.
#[utoipa::path(get, path = "/api/v1/vms/{vm}/definition", tag = "vms",
    params(("vm" = String, Path, description = "The name")),
    responses((status = 200, description = "The definition", body = VmDefinition), ReadProblems))]
pub(crate) async fn get_definition(
    _: Operator,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<VmDefinition>, Problem> {
    let found = app.driver.read(|core| core.tables().vms.get(&name).map(|vm| vm.value.definition.clone()));
    let found = found.ok_or_else(|| Problem::not_found("VM", &name))?;
    let none = || {
        let cure = "a VM that was adopted has none, and one of an agent that has not told yet";
        Problem::new(StatusCode::NOT_FOUND, format!("no definition of '{name}' is known"), cure)
    };
    Ok(Json(VmDefinition { toml: found.ok_or_else(none)? }))
}

/// Moves a VM to another host
///
/// Without `to` the controller picks the host, and says why. With `dry_run` it is only said what would be done,
/// which takes a viewer only.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migrate", tag = "vms",
    params(("vm" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    request_body = Option<MigrateRequest>,
    responses((status = 200, description = "What would be done", body = Operation),
        (status = 202, description = "The migration has begun", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn migrate_vm(
    _: Viewer,
    operator: Result<Operator, Problem>,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    OptionalBody(request): OptionalBody<MigrateRequest>,
) -> Result<Response, Problem> {
    if !request.dry_run {
        operator?;
    }
    let breaks = match &request.to {
        Some(to) => {
            let (vm, to) = (vm.clone(), to.clone());
            let asked = timeout(RULES_WITHIN, question(&app, move |cluster| Ok(broken_by(cluster, &vm, &to)))).await;
            let not_known = |why: &str| vec![format!("what it breaks is not known: {why}")];
            // Whoever chose the host goes by no rule: the VM is moved all the same.
            match asked {
                Ok(Ok(breaks)) => breaks,
                Ok(Err(problem)) => not_known(&problem.detail),
                Err(_) => not_known("too much else is asked"),
            }
        }
        None => Vec::new(),
    };
    response(origin.with(&request).ask(&app, Ask::Migrate { vm, request, breaks }).await?)
}
