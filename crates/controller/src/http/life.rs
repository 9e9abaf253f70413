//! VMs are created, started, stopped and deleted.

use axum::extract::{Path, State};
use axum::response::Response;
use skein_api::cluster::{CreateVmRequest, Operation, StartVmRequest, StopVmRequest};
use skein_cluster::Ask;

use super::answer::response;
use super::app::Shared;
use super::body::{Body, OptionalBody};
use super::guard::{Admin, Operator, Viewer};
use super::hosts::check_size;
use super::origin::Origin;
use super::problem::{Problem, ReadProblems, WriteProblems};

/// Creates a VM, and starts it
///
/// Without `on` the controller picks the host, and says why. A VM of that name that is off is started from this
/// definition. With `dry_run` it is only said what would be done, which takes a viewer only. It takes an admin: a
/// definition names files and programs of a host, which are used as root.
#[utoipa::path(post, path = "/api/v1/vms", tag = "vms",
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
        description = "The same key is the same request")),
    request_body = CreateVmRequest,
    responses((status = 200, description = "What would be done", body = Operation),
        (status = 202, description = "The VM is being started", body = Operation),
        (status = 204, description = "The cluster knows the VM, which is off"), ReadProblems, WriteProblems))]
pub(crate) async fn create_vm(
    _: Viewer,
    admin: Result<Admin, Problem>,
    origin: Origin,
    State(app): State<Shared>,
    body: Result<Body<CreateVmRequest>, Problem>,
) -> Result<Response, Problem> {
    // Who may not create a VM is not told what is wrong with the body.
    if !matches!(&body, Ok(Body(request)) if request.dry_run) {
        admin?;
    }
    let Body(request) = body?;
    check_size(&request)?;
    response(origin.with(&request).ask(&app, Ask::CreateVm { request: Box::new(request) }).await?)
}

/// Starts a VM that is off
///
/// Without `on` it starts on the host that has it; if that takes no guests, is off, or refuses, on another. With
/// `dry_run` it is only said what would be done, which takes a viewer only.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/start", tag = "vms",
    params(("vm" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    request_body = Option<StartVmRequest>,
    responses((status = 200, description = "What would be done", body = Operation),
        (status = 202, description = "The VM is being started", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn start_vm(
    _: Viewer,
    operator: Result<Operator, Problem>,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    OptionalBody(request): OptionalBody<StartVmRequest>,
) -> Result<Response, Problem> {
    if !request.dry_run {
        operator?;
    }
    response(origin.with(&request).ask(&app, Ask::StartVm { vm, request }).await?)
}

/// Stops a VM
///
/// Its power button is pressed. With `force` its QEMU is killed if it still runs after `timeout_s`.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/stop", tag = "vms",
    params(("vm" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    request_body = Option<StopVmRequest>,
    responses((status = 202, description = "The VM is being stopped", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn stop_vm(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    OptionalBody(request): OptionalBody<StopVmRequest>,
) -> Result<Response, Problem> {
    response(origin.with(&request).ask(&app, Ask::StopVm { vm, request }).await?)
}

/// Deletes a VM that is off
///
/// Its host and the cluster forget it. Its disks stay. It takes an admin, as does creating it again.
#[utoipa::path(delete, path = "/api/v1/vms/{vm}", tag = "vms",
    params(("vm" = String, Path, description = "The name"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
            description = "The same key is the same request")),
    responses((status = 202, description = "It is being forgotten", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn delete_vm(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
) -> Result<Response, Problem> {
    response(origin.ask(&app, Ask::DeleteVm { vm }).await?)
}
