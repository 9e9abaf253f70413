//! Rules, what is set of the cluster, and what placement says.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use skein_api::cluster::{ClusterSettings, Complaint, Explanation, Operation, OptimizeRequest, Page, Rule};
use skein_cluster::{Ask, PlanError, complaints, error_chain, explained, left_out_complaint, warnings};
use skein_placement_model::cluster::model::Cluster;

use super::answer::response;
use super::app::{App, Shared};
use super::body::{Body, OptionalBody};
use super::guard::{Admin, Operator, Viewer};
use super::hosts::check_size;
use super::origin::{Origin, check_name, etag, if_match};
use super::page::{After, items, page};
use super::problem::{Problem, ReadProblems, RuleProblems, WriteProblems};

/// How much is told of what is broken.
const COMPLAINTS_MAX: usize = 500;

/// What is set of the whole cluster
#[utoipa::path(get, path = "/api/v1/settings", tag = "cluster",
    responses((status = 200, description = "The settings", body = ClusterSettings,
        headers(("ETag" = String, description = "For If-Match"))), ReadProblems))]
pub(crate) async fn get_settings(_: Viewer, State(app): State<Shared>) -> Response {
    let settings = app.driver.read(|core| core.tables().settings.clone());
    (etag(settings.revision), Json(settings.value)).into_response()
}

/// Sets what is set of the whole cluster
///
/// All of it: what is left out is as in a new cluster.
#[utoipa::path(put, path = "/api/v1/settings", tag = "cluster",
    params(("If-Match" = Option<String>, Header, pattern = "^\"?[0-9]{1,19}\"?$",
        description = "Only if the settings still have this ETag")),
    request_body = ClusterSettings,
    responses((status = 204, description = "It is set"), ReadProblems, WriteProblems))]
pub(crate) async fn set_settings(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    headers: HeaderMap,
    Body(settings): Body<ClusterSettings>,
) -> Result<Response, Problem> {
    let version = if_match(&headers)?;
    let ask = Ask::SetSettings { settings: Box::new(settings.clone()), version };
    response(origin.with(&settings).ask(&app, ask).await?)
}

/// The rules, by name
#[utoipa::path(get, path = "/api/v1/rules", tag = "rules", params(After),
    responses((status = 200, description = "A page of rules, without their warnings", body = Page<Rule>),
        ReadProblems))]
pub(crate) async fn list_rules(
    _: Viewer,
    State(app): State<Shared>,
    Query(of): Query<After>,
) -> Result<Json<Page<Rule>>, Problem> {
    let most = items(of.limit)?;
    let found = app.driver.read(|core| core.rules(of.after.as_deref().unwrap_or_default(), most + 1));
    Ok(Json(page(found, most, |rule| &rule.name)))
}

/// A rule, with what is wrong with it beside the others
#[utoipa::path(get, path = "/api/v1/rules/{rule}", tag = "rules",
    params(("rule" = String, Path, description = "The name")),
    responses((status = 200, description = "The rule", body = Rule,
        headers(("ETag" = String, description = "For If-Match"))), ReadProblems))]
pub(crate) async fn get_rule(
    _: Viewer,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let stored = app.driver.read(|core| core.tables().rules.get(&name).cloned());
    let stored = stored.ok_or_else(|| Problem::not_found("rule", &name))?;
    let of = name.clone();
    let mut unknown = app.driver.read(|core| core.unknown_in(&stored.value.rule));
    let mut warnings = question(&app, move |cluster| warnings(cluster, &of)).await?;
    warnings.append(&mut unknown);
    let rule = Rule { name, rule: stored.value.rule, warnings, version: stored.revision };
    Ok((etag(stored.revision), Json(rule)).into_response())
}

/// Adds or changes a rule
///
/// In the words of the cluster file: an object with the kind as its only key.
#[utoipa::path(put, path = "/api/v1/rules/{rule}", tag = "rules",
    params(("rule" = String, Path, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description = "The name"),
        ("If-Match" = Option<String>, Header, pattern = "^\"?[0-9]{1,19}\"?$",
            description = "Only if the rule still has this ETag")),
    request_body = Object,
    responses((status = 204, description = "The rule holds"), ReadProblems, WriteProblems))]
pub(crate) async fn set_rule(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Body(rule): Body<Value>,
) -> Result<Response, Problem> {
    let version = if_match(&headers)?;
    check_name(&name)?;
    check_size(&rule)?;
    let origin = origin.with(&rule);
    response(origin.ask(&app, Ask::SetRule { name, rule, version }).await?)
}

/// Takes a rule away
#[utoipa::path(delete, path = "/api/v1/rules/{rule}", tag = "rules",
    params(("rule" = String, Path, description = "The name")),
    responses((status = 204, description = "The rule is gone"), ReadProblems, WriteProblems))]
pub(crate) async fn remove_rule(
    _: Admin,
    origin: Origin,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    response(origin.ask(&app, Ask::RemoveRule { name }).await?)
}

/// What is broken, the worst first
///
/// Rules that do not hold, and hosts that have too little free. At most 500, on one page.
#[utoipa::path(get, path = "/api/v1/complaints", tag = "rules",
    responses((status = 200, description = "What is broken", body = Page<Complaint>), ReadProblems,
        RuleProblems))]
pub(crate) async fn list_complaints(_: Viewer, State(app): State<Shared>) -> Result<Json<Page<Complaint>>, Problem> {
    let unreadable = app.driver.read(|core| core.unreadable_rules());
    let mut items: Vec<Complaint> = unreadable.into_iter().map(left_out_complaint).collect();
    items.extend(question(&app, complaints).await?);
    items.truncate(COMPLAINTS_MAX);
    Ok(Json(Page { items, next: None }))
}

/// Why a VM is where it is, and what speaks against each host
#[utoipa::path(get, path = "/api/v1/vms/{vm}/explanation", tag = "vms",
    params(("vm" = String, Path, description = "The name")),
    responses((status = 200, description = "The explanation", body = Explanation), ReadProblems,
        RuleProblems))]
pub(crate) async fn explain_vm(
    _: Viewer,
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<Explanation>, Problem> {
    let of = name.clone();
    let here = app.driver.read(|core| core.vm(&of).and_then(|vm| vm.host));
    let found = question(&app, move |cluster| explained(cluster, &of, here.as_deref())).await?;
    found.map(Json).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, format!("no VM '{name}' runs on a host that reports"), "skein vm list")
    })
}

/// Moves guests where less is broken, or load is better spread
///
/// Without `apply` the moves are only said, which takes a viewer only.
#[utoipa::path(post, path = "/api/v1/optimize", tag = "operations",
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
        description = "The same key is the same request")),
    request_body = Option<OptimizeRequest>,
    responses((status = 200, description = "What would be done", body = Operation),
        (status = 202, description = "It has begun", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn optimize(
    _: Viewer,
    operator: Result<Operator, Problem>,
    origin: Origin,
    State(app): State<Shared>,
    OptionalBody(request): OptionalBody<OptimizeRequest>,
) -> Result<Response, Problem> {
    if request.apply {
        operator?;
    }
    response(origin.with(&request).ask(&app, Ask::Optimize { request }).await?)
}

/// Asks placement, which takes a while in a large cluster: from a copy, and only a few at the same time.
pub(super) async fn question<T: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&Cluster) -> Result<T, PlanError> + Send + 'static,
) -> Result<T, Problem> {
    let unavailable =
        |detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "ask again in some seconds");
    let permit = app.questions.clone().acquire_owned().await.map_err(|error| unavailable(error_chain(&error)))?;
    let cluster = app.driver.read(|core| core.placement());
    let asked = tokio::task::spawn_blocking(move || {
        // Whoever asked may be gone before this is done.
        let _permit = permit;
        ask(&cluster)
    });
    let asked = asked.await;
    let answer = asked.map_err(|error| unavailable(error_chain(&error)))?;
    answer.map_err(|error| {
        Problem::new(StatusCode::CONFLICT, error_chain(&error), "see skein rule list, and what is set of hosts and VMs")
    })
}
