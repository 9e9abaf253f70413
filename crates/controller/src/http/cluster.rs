//! The cluster as a whole.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use skein_api::Term;
use skein_api::cluster::{ClusterStatus, ControllerView, Operation, StoreMemberView, UpdateRequest};
use skein_cluster::Ask;
use utoipa::ToSchema;

use super::answer::response;
use super::app::Shared;
use super::body::OptionalBody;
use super::guard::{Operator, Viewer};
use super::origin::Origin;
use super::problem::{Problem, ReadProblems, WriteProblems};
use crate::attention::attention;
use crate::driver::{Member, wall};

/// The most hosts that may be named: as the document says.
const HOSTS_MAX: usize = 10_000;

/// The cluster
///
/// Hosts and VMs counted, the controllers, and what needs a person.
#[utoipa::path(get, path = "/api/v1/cluster", tag = "cluster",
    responses((status = 200, description = "The cluster", body = ClusterStatus), ReadProblems))]
pub(crate) async fn get_cluster(_: Viewer, State(app): State<Shared>) -> Result<Json<ClusterStatus>, Problem> {
    let leader = app.driver.leader();
    let leads = |name: &str| leader.as_ref().is_some_and(|leader| leader.member.name == name);
    let view =
        |of: Member, gone_since| ControllerView { leads: leads(&of.name), name: of.name, url: of.url, gone_since };
    let mut controllers: Vec<_> = app.driver.members().into_iter().map(|of| view(of, None)).collect();
    controllers.extend(app.driver.gone_members().into_iter().map(|(of, since)| view(of, Some(since))));
    let term = Term(leader.as_ref().map_or(0, |leader| leader.term));
    let store = app.driver.store_kind();
    let members = app.driver.store_members();
    let attention = attention(&app.driver, &app.signer, &app.identity);
    app.driver.read(|of| {
        let Some(cluster) = &of.tables().cluster else {
            let cure = "ask again in a moment; a new controller needs 'skein-controller init'";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the cluster is not known yet", cure));
        };
        let open = of.tables().operations.values().filter(|found| !found.value.state.is_over()).count();
        Ok(Json(ClusterStatus {
            name: cluster.name.clone(),
            id: cluster.id.clone(),
            controllers,
            store,
            term,
            hosts: of.host_counts(),
            vms: of.vm_counts(),
            power: of.power_status(wall()),
            operations_running: u32::try_from(open).unwrap_or(u32::MAX),
            attention,
            store_members: members
                .into_iter()
                .map(|of| StoreMemberView { address: of.address, problem: of.problem })
                .collect(),
        }))
    })
}

/// Updates hosts, one after the other
///
/// Each is emptied, updated and booted by the commands that its administrator gave its agent, and takes guests again.
/// First it is seen whether each can be emptied. The first that fails ends it, and stays in maintenance. With
/// `dry_run` it is only said what would be done, which takes a viewer only.
#[utoipa::path(post, path = "/api/v1/cluster/update", tag = "cluster",
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[A-Za-z0-9._-]{1,64}$",
        description = "The same key is the same request")),
    request_body = Option<UpdateRequest>,
    responses((status = 200, description = "What would be done", body = Operation),
        (status = 202, description = "It has begun", body = Operation), ReadProblems, WriteProblems))]
pub(crate) async fn update_hosts(
    _: Viewer,
    operator: Result<Operator, Problem>,
    origin: Origin,
    State(app): State<Shared>,
    OptionalBody(request): OptionalBody<UpdateRequest>,
) -> Result<Response, Problem> {
    if !request.dry_run {
        operator?;
    }
    if request.hosts.len() > HOSTS_MAX {
        return Err(Problem::invalid("too many hosts", format!("at most {HOSTS_MAX} may be named")));
    }
    response(origin.with(&request).ask(&app, Ask::Update { request }).await?)
}

/// How a controller is.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// This controller's name.
    name: String,
    /// Whether this controller leads.
    leads: bool,
    /// The name of the controller that leads.
    leader: String,
}

/// How this controller is
#[utoipa::path(get, path = "/healthz", tag = "cluster", security(()),
    responses((status = 200, description = "This controller answers, and one leads", body = Health),
        (status = 503, description = "No controller leads", body = skein_api::cluster::ProblemDetails,
            content_type = "application/problem+json")))]
pub(crate) async fn health(State(app): State<Shared>) -> Result<Json<Health>, Problem> {
    let leads = app.driver.leads();
    let leader = app.driver.leader().map(|leader| leader.member.name);
    let Some(leader) = leader else {
        let cure = "ask again in some seconds; then see what skein cluster status says";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no controller leads at the moment", cure));
    };
    Ok(Json(Health { name: app.driver.member().name.clone(), leads, leader }))
}
