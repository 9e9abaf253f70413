//! The REST API, below `/api/v1`, and its OpenAPI document, which is made of the same routes.
//!
//! | file | what |
//! |---|---|
//! | `app` | what all routes need |
//! | `guard` | who calls; refusals in one form, and noted for the audit log |
//! | `unread` | bodies that nobody has read when the answer is there |
//! | `problem` | RFC 9457, and which refusals a route documents |
//! | `cookie`, `files` | a browser's token; the page that people look at |
//! | `origin`, `body`, `answer` | requests to the core, and its answers |
//! | `cluster`, `hosts`, `vms`, `life`, `operations`, `migrations`, `rules`, `history`, `events` | the routes |
//! | `console`, `session`, `access`, `join`, `backup` | more of them |

mod access;
mod answer;
mod app;
mod backup;
mod body;
mod cluster;
mod console;
mod cookie;
mod events;
mod files;
mod guard;
mod history;
mod hosts;
mod join;
mod life;
mod migrations;
mod operations;
mod origin;
mod page;
mod problem;
mod rules;
mod secret;
mod session;
mod unread;
mod vms;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::{Router, middleware};
use skein_identity::ControllerIdentity;
use tokio::sync::Semaphore;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{RefOr, Schema, Type, schema::SchemaType};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::driver::Driver;
use crate::limits::Wrong;
use crate::signer::Signer;

use app::{App, Shared};

pub use app::Peer;
pub use body::BODY_BYTES_MAX;
pub use secret::{new_secrets, sha256_hex, token_secret};

#[derive(OpenApi)]
#[openapi(
    info(title = "Skein controller", description = "A cluster of hosts with KVM/QEMU guests: what it has, and what \
is done with it. Times are milliseconds since 1970. A list comes in pages by name: the next begins with `after` as \
`next` said. What takes a while is an operation. A request that changes something may be repeated under the same \
`Idempotency-Key`, for a day, and is done once."),
    modifiers(&Security),
    security(("token" = [])),
    tags(
        (name = "cluster", description = "The cluster as a whole"),
        (name = "hosts", description = "Hosts"),
        (name = "vms", description = "VMs"),
        (name = "migrations", description = "Migrations as they go on, and afterwards"),
        (name = "rules", description = "Where guests may and should be"),
        (name = "operations", description = "What takes a while"),
        (name = "access", description = "Who may do what, and who did what"),
    )
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "A token of `POST /api/v1/tokens`. A client certificate of the cluster's CA does as well.",
        ));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(token.build()));
    }
}

/// How many questions about placement are answered at the same time: each takes a core.
const QUESTIONS_MAX: usize = 2;

/// Returns the routes, and the document of them.
pub fn router(driver: Arc<Driver>, signer: Arc<Signer>, identity: ControllerIdentity) -> Router {
    let questions = Arc::new(Semaphore::new(QUESTIONS_MAX));
    let app = Arc::new(App { driver, signer, identity, wrong: Wrong::default(), questions });
    let (router, mut document) = routes().split_for_parts();
    plain_parameters(&mut document);
    // Written once: whoever does not read what was asked for holds no copy of it. Plain data always serialises.
    let document = Bytes::from(document.to_json().unwrap_or_default());
    router
        .merge(files::router())
        .route(
            "/openapi.json",
            axum::routing::get(move || async move { ([(CONTENT_TYPE, "application/json")], document) }),
        )
        .fallback(guard::no_route)
        .method_not_allowed_fallback(guard::no_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(app.clone(), guard::guard))
        .layer(middleware::map_response(answer::private))
        .with_state(app)
}

/// Returns the OpenAPI document as JSON.
///
/// # Errors
///
/// The document cannot be written.
pub fn openapi() -> Result<String, serde_json::Error> {
    let mut document = routes().into_openapi();
    plain_parameters(&mut document);
    document.to_pretty_json()
}

/// Lets a parameter that may be left out be a text or a number: in a header or a query there is no `null`.
fn plain_parameters(document: &mut utoipa::openapi::OpenApi) {
    for item in document.paths.paths.values_mut() {
        let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        let parameters = methods.into_iter().flatten().filter_map(|method| method.parameters.as_mut());
        for parameter in parameters.flatten() {
            if let RefOr::T(parameter) = parameter
                && let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema
                && let SchemaType::Array(types) = &schema.schema_type
                && let Some(kind) = types.iter().find(|kind| **kind != Type::Null)
            {
                schema.schema_type = SchemaType::Type(kind.clone());
            }
        }
    }
}

fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(cluster::get_cluster))
        .routes(routes!(cluster::update_hosts))
        .routes(routes!(cluster::health))
        .routes(routes!(hosts::list_hosts))
        .routes(routes!(hosts::get_host, hosts::remove_host))
        .routes(routes!(hosts::set_host))
        .routes(routes!(history::host_history))
        .routes(routes!(hosts::drain_host))
        .routes(routes!(hosts::fence_host))
        .routes(routes!(hosts::test_fencing))
        .routes(routes!(hosts::sleep_host))
        .routes(routes!(hosts::wake_host))
        .routes(routes!(hosts::resume_host))
        .routes(routes!(vms::list_vms, life::create_vm))
        .routes(routes!(vms::get_vm, life::delete_vm))
        .routes(routes!(life::start_vm))
        .routes(routes!(life::stop_vm))
        .routes(routes!(vms::set_vm))
        .routes(routes!(vms::get_definition))
        .routes(routes!(history::vm_history))
        .routes(routes!(console::vm_console))
        .routes(routes!(vms::migrate_vm))
        .routes(routes!(migrations::list_migrations))
        .routes(routes!(migrations::get_migration))
        .routes(routes!(migrations::watch_migration))
        .routes(routes!(migrations::switch_migration))
        .routes(routes!(migrations::limit_migration))
        .routes(routes!(migrations::hold_migration))
        .routes(routes!(migrations::throttle_migration))
        .routes(routes!(migrations::cancel_migration))
        .routes(routes!(operations::list_operations))
        .routes(routes!(operations::get_operation))
        .routes(routes!(operations::cancel_operation))
        .routes(routes!(rules::get_settings, rules::set_settings))
        .routes(routes!(rules::list_rules))
        .routes(routes!(rules::get_rule, rules::set_rule, rules::remove_rule))
        .routes(routes!(rules::list_complaints))
        .routes(routes!(rules::explain_vm))
        .routes(routes!(rules::optimize))
        .routes(routes!(events::get_events))
        .routes(routes!(session::get_session, session::begin_session, session::end_session))
        .routes(routes!(access::list_tokens, access::new_token))
        .routes(routes!(access::remove_token))
        .routes(routes!(access::new_ticket))
        .routes(routes!(access::list_audit))
        .routes(routes!(backup::get_backup))
        .routes(routes!(join::join))
}
