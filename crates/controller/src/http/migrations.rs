//! Migrations that are under way.

use axum::Json;
use axum::extract::{Path, State};
use skein_api::cluster::{LimitRequest, SwitchRequest, VmMigration};
use skein_cluster::{Answer, Ask, MigrationAsk};

use super::answer::unexpected;
use super::app::Shared;
use super::body::OptionalBody;
use super::guard::Operator;
use super::origin::Origin;
use super::problem::{Problem, ReadProblems, WriteProblems};

/// Has a VM switch that is held in its migration, or is to be
///
/// The source's agent does it, whoever began the migration.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/switch", tag = "vms",
    params(("vm" = String, Path, description = "The name")), request_body = Option<SwitchRequest>,
    responses((status = 200, description = "The migration, as it was just before", body = VmMigration), ReadProblems,
        WriteProblems))]
pub(crate) async fn switch_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    OptionalBody(request): OptionalBody<SwitchRequest>,
) -> Result<Json<VmMigration>, Problem> {
    let ask = MigrationAsk::Switch { deadline_s: request.deadline_s };
    answered(origin.with(&request), &app, vm, ask).await
}

/// Limits how fast a VM's migration sends from now on
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/limit", tag = "vms",
    params(("vm" = String, Path, description = "The name")), request_body = Option<LimitRequest>,
    responses((status = 200, description = "The migration", body = VmMigration), ReadProblems, WriteProblems))]
pub(crate) async fn limit_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    OptionalBody(request): OptionalBody<LimitRequest>,
) -> Result<Json<VmMigration>, Problem> {
    let ask = MigrationAsk::Limit { rate_bits_per_s: request.rate_bits_per_s };
    answered(origin.with(&request), &app, vm, ask).await
}

/// Calls a VM's migration off
///
/// The guest goes on at the source.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/cancel", tag = "vms",
    params(("vm" = String, Path, description = "The name")),
    responses((status = 200, description = "The migration, which is being called off", body = VmMigration),
        ReadProblems, WriteProblems))]
pub(crate) async fn cancel_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
) -> Result<Json<VmMigration>, Problem> {
    answered(origin, &app, vm, MigrationAsk::Cancel).await
}

async fn answered(origin: Origin, app: &Shared, vm: String, ask: MigrationAsk) -> Result<Json<VmMigration>, Problem> {
    match origin.ask(app, Ask::OfMigration { vm, ask }).await? {
        Answer::Migration(migration) => Ok(Json(*migration)),
        answer => Err(unexpected(&answer)),
    }
}
