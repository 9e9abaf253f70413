//! Migrations: those under way as they go on, and what their hosts keep of those that are over.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use skein_api::cluster::{
    LimitRequest, MigrationEnds, MigrationView, Page, SwitchRequest, ThrottleRequest, VmMigration,
};
use skein_api::{HoldRequest, MigrationId, MigrationRecord, MigrationSample, Outcome, Reply, Request, Role};
use skein_cluster::{Answer, Ask, MigrationAsk};
use tokio::time::{Instant, timeout_at};
use utoipa::IntoParams;

use super::answer::unexpected;
use super::app::Shared;
use super::body::{Body, OptionalBody};
use super::guard::{Operator, Valid, Viewer};
use super::origin::Origin;
use super::page::{items, page};
use super::problem::{Problem, ReadProblems, WriteProblems};
use crate::driver::{MigrationWatch, NotShown};

/// How often a stream without samples says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long a stream waits for a migration that its host does not tell of any more.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// How long the other end is waited for once one has said that the migration is over.
const OTHER_END: Duration = Duration::from_secs(2);

/// Which migrations.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MigrationsPart {
    /// The page begins after this id: `next` of the page before
    #[param(pattern = "^[0-9a-f]{16}$")]
    after: Option<String>,
    /// The most items, 100 if not given
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Only those of this VM
    vm: Option<String>,
}

/// Which migration of a VM is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// The migration's id: if the VM is in another by now, nothing is done
    #[param(pattern = "^[0-9a-f]{16}$")]
    id: Option<String>,
}

/// The migrations under way and those that ended of late, by id
///
/// Agents tell of a migration for some minutes after its end.
#[utoipa::path(get, path = "/api/v1/migrations", tag = "migrations", params(MigrationsPart),
    responses((status = 200, description = "A page of migrations", body = Page<MigrationView>), ReadProblems))]
pub(crate) async fn list_migrations(
    _: Viewer,
    State(app): State<Shared>,
    Query(of): Query<MigrationsPart>,
) -> Result<Json<Page<MigrationView>>, Problem> {
    let most = items(of.limit)?;
    let after = of.after.as_deref().map(id).transpose()?;
    let found = app.driver.read(|core| core.migrations(after, of.vm.as_deref(), most + 1));
    let ids: Vec<String> = found.iter().map(|migration| migration.id.to_string()).collect();
    let next = (ids.len() > most).then(|| ids[most - 1].clone());
    let Page { items, .. } = page(found, most, |migration| &migration.vm);
    Ok(Json(Page { items, next }))
}

/// What both hosts of a migration know of it, with what they saw as it ran
#[utoipa::path(get, path = "/api/v1/migrations/{id}", tag = "migrations",
    params(("id" = String, Path, pattern = "^[0-9a-f]{16}$", description = "The id")),
    responses((status = 200, description = "The migration", body = MigrationEnds), ReadProblems))]
pub(crate) async fn get_migration(
    _: Viewer,
    State(app): State<Shared>,
    Path(text): Path<String>,
) -> Result<Json<MigrationEnds>, Problem> {
    let id = id(&text)?;
    let known = app.driver.read(|core| core.migration(id)).ok_or_else(|| not_told(&text))?;
    let (source, target) = tokio::join!(recorded(&app, &known.source, id), recorded(&app, &known.target, id));
    let told = |record: &Result<MigrationRecord, String>| record.as_ref().err().cloned();
    let note = [told(&source), told(&target)].into_iter().flatten().collect::<Vec<_>>().join("; ");
    Ok(Json(MigrationEnds { source: source.ok(), target: target.ok(), note }))
}

/// Returns what a host knows of a migration, or why it does not tell.
async fn recorded(app: &Shared, host: &str, id: MigrationId) -> Result<MigrationRecord, String> {
    match app.driver.shared().watched.show(host, Request::MigrationRecord { id: id.to_string() }).await {
        Ok(Reply::MigrationRecord(record)) => Ok(*record),
        Ok(Reply::Error(refusal)) => Err(format!("{host}: {}", refusal.message)),
        Ok(_) => Err(format!("{host} answers something else than was asked")),
        Err(NotShown::NoContact) => Err(format!("{host} has no contact with this controller")),
        Err(NotShown::NoAnswer) => Err(format!("{host} does not answer: is its agent of an older release?")),
    }
}

/// A migration as it goes on
///
/// Server-sent events: `source` and `target` five times a second, each with a `MigrationSample` of that end; `end` when
/// it is over, and then the stream ends. Whoever reads slowly gets fewer of them.
#[utoipa::path(get, path = "/api/v1/migrations/{id}/live", tag = "migrations",
    params(("id" = String, Path, pattern = "^[0-9a-f]{16}$", description = "The id")),
    responses((status = 200, description = "A stream of samples", body = MigrationSample,
        content_type = "text/event-stream"), ReadProblems))]
pub(crate) async fn watch_migration(
    _: Viewer,
    valid: Valid,
    State(app): State<Shared>,
    Path(text): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let id = id(&text)?;
    let known = app.driver.read(|core| core.migration(id)).ok_or_else(|| not_told(&text))?;
    let watched = app.driver.shared().watched.watch(id, [&known.source, &known.target]);
    let watch = watched.ok_or_else(|| {
        let detail = "too many migrations of these hosts are watched";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "close pages that show others")
    })?;
    let over = if known.outcome.is_some() { Some(Instant::now()) } else { None };
    let stream = unfold(Some(Following { watch, over }), next_event);
    Ok(Sse::new(valid.until_invalid(app, stream)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Somebody who follows a migration.
struct Following {
    watch: MigrationWatch,
    /// When the stream ends, once the migration is over.
    over: Option<Instant>,
}

async fn next_event(following: Option<Following>) -> Option<(Result<Event, Infallible>, Option<Following>)> {
    let mut following = following?;
    let until = following.over.unwrap_or_else(|| Instant::now() + SILENT_MAX);
    let Ok(sample) = timeout_at(until, following.watch.next()).await else {
        return Some((Ok(Event::default().event("end").data("{}")), None));
    };
    if is_over(&sample) && following.over.is_none() {
        following.over = Some(Instant::now() + OTHER_END);
    }
    Some((Ok(sample_event(&sample)), Some(following)))
}

fn is_over(sample: &MigrationSample) -> bool {
    sample.migration.outcome.is_some_and(|outcome| sample.migration.role == Role::Source || outcome != Outcome::Moved)
}

fn sample_event(sample: &Arc<MigrationSample>) -> Event {
    let name = match sample.migration.role {
        Role::Source => "source",
        Role::Target => "target",
    };
    // Plain data always serialises.
    Event::default().event(name).data(serde_json::to_string(&**sample).unwrap_or_default())
}

fn id(text: &str) -> Result<MigrationId, Problem> {
    text.parse().map_err(|error| Problem::bad_request(format!("{error}"), "see GET /migrations"))
}

fn not_told(id: &str) -> Problem {
    let cure = "its hosts have it for longer: skein migration show, there";
    Problem::new(StatusCode::NOT_FOUND, format!("no host tells of a migration '{id}'"), cure)
}

/// Has a VM switch that is held in its migration, or is to be
///
/// The source's agent does it, whoever began the migration.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/switch", tag = "vms",
    params(("vm" = String, Path, description = "The name"), Which), request_body = Option<SwitchRequest>,
    responses((status = 200, description = "The migration, as it was just before", body = VmMigration), ReadProblems,
        WriteProblems))]
pub(crate) async fn switch_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    Query(of): Query<Which>,
    OptionalBody(request): OptionalBody<SwitchRequest>,
) -> Result<Json<VmMigration>, Problem> {
    let ask = MigrationAsk::Switch { deadline_s: request.deadline_s };
    answered(origin.with(&request), &app, (vm, of), ask).await
}

/// Limits how fast a VM's migration sends from now on
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/limit", tag = "vms",
    params(("vm" = String, Path, description = "The name"), Which), request_body = Option<LimitRequest>,
    responses((status = 200, description = "The migration", body = VmMigration), ReadProblems, WriteProblems))]
pub(crate) async fn limit_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    Query(of): Query<Which>,
    OptionalBody(request): OptionalBody<LimitRequest>,
) -> Result<Json<VmMigration>, Problem> {
    let ask = MigrationAsk::Limit { rate_bits_per_s: request.rate_bits_per_s };
    answered(origin.with(&request), &app, (vm, of), ask).await
}

/// Begins a VM's migration again, so that its guest is held before it switches
///
/// What was copied is copied again: QEMU takes a hold only when a copy begins. The migration has another id then.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/hold", tag = "vms",
    params(("vm" = String, Path, description = "The name"), Which), request_body = Option<HoldRequest>,
    responses((status = 200, description = "The migration that was called off for that", body = VmMigration),
        ReadProblems, WriteProblems))]
pub(crate) async fn hold_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    Query(of): Query<Which>,
    OptionalBody(request): OptionalBody<HoldRequest>,
) -> Result<Json<VmMigration>, Problem> {
    let origin = origin.with(&request);
    answered(origin, &app, (vm, of), MigrationAsk::Hold { hold: request.into() }).await
}

/// Begins a VM's migration again, so that its guest may be throttled
///
/// What was copied is copied again: QEMU takes that only when a copy begins. The migration has another id then.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/throttle", tag = "vms",
    params(("vm" = String, Path, description = "The name"), Which), request_body = ThrottleRequest,
    responses((status = 200, description = "The migration that was called off for that", body = VmMigration),
        ReadProblems, WriteProblems))]
pub(crate) async fn throttle_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    Query(of): Query<Which>,
    Body(request): Body<ThrottleRequest>,
) -> Result<Json<VmMigration>, Problem> {
    let ask = MigrationAsk::Throttle { percent: request.percent };
    answered(origin.with(&request), &app, (vm, of), ask).await
}

/// Calls a VM's migration off
///
/// The guest goes on at the source.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/migration/cancel", tag = "vms",
    params(("vm" = String, Path, description = "The name"), Which),
    responses((status = 200, description = "The migration, which is being called off", body = VmMigration),
        ReadProblems, WriteProblems))]
pub(crate) async fn cancel_migration(
    _: Operator,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    Query(of): Query<Which>,
) -> Result<Json<VmMigration>, Problem> {
    answered(origin, &app, (vm, of), MigrationAsk::Cancel).await
}

async fn answered(
    origin: Origin,
    app: &Shared,
    (vm, of): (String, Which),
    ask: MigrationAsk,
) -> Result<Json<VmMigration>, Problem> {
    let id = of.id.as_deref().map(id).transpose()?;
    match origin.ask(app, Ask::OfMigration { vm, id, ask }).await? {
        Answer::Migration(migration) => Ok(Json(*migration)),
        answer => Err(unexpected(&answer)),
    }
}
