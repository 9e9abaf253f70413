//! VMs' serial consoles.

use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use skein_api::cluster::{ConsoleAnswer, ConsoleAsk};
use skein_api::{ConsoleRequest, ConsoleStep, Refusal, Reply};
use skein_cluster::{Answer, Ask};

use super::answer::unexpected;
use super::app::Shared;
use super::body::Body;
use super::guard::{Caller, Operator, Waited};
use super::origin::Origin;
use super::problem::{Mark, Problem, ReadProblems, WriteProblems};
use crate::driver::NotShown;

/// Reads and writes a VM's serial console
///
/// A caller has the console for a session, and asks again and again: `after` and `input_at` say how many bytes the
/// caller has read and typed before, so that a request or an answer that is lost is repeated and nothing is doubled.
/// The VM's host lets the console go 15 s after the last request. One session has it at a time; `skein vm console` on
/// the host is another client of the same console, and waits its turn. To begin a session is asked of the controller
/// that leads, as the audit log notes it; whatever follows, any controller takes to the VM's host.
#[utoipa::path(post, path = "/api/v1/vms/{vm}/console", tag = "vms",
    params(("vm" = String, Path, description = "The name")), request_body = ConsoleAsk,
    responses((status = 200, description = "How the session is, and what the VM wrote", body = ConsoleAnswer),
        ReadProblems, WriteProblems))]
pub(crate) async fn vm_console(
    _: Operator,
    Extension(caller): Extension<Caller>,
    origin: Origin,
    State(app): State<Shared>,
    Path(vm): Path<String>,
    Body(asked): Body<ConsoleAsk>,
) -> Result<Response, Problem> {
    let ConsoleAsk { session, step, input, input_at, after, wait_ms } = asked;
    let request = ConsoleRequest { name: vm.clone(), session, by: caller.name, step, input, input_at, after, wait_ms };
    let found = app.driver.read(|core| core.vm(&vm)).ok_or_else(|| Problem::not_found("VM", &vm))?;
    request.check().map_err(|Refusal { message, cure }| Problem::invalid(message, cure))?;
    let host = found.host.ok_or_else(|| not_now(format!("{vm} is on no host"), "start it: skein vm start"))?;
    if matches!(step, ConsoleStep::Begin | ConsoleStep::TakeOver) {
        // First the log, then the word. What is typed is in no log: it may be a password.
        match origin.with(&json!({ "step": step })).ask(&app, Ask::OpenConsole { vm }).await? {
            Answer::Done => {}
            answer => return Err(unexpected(&answer)),
        }
    }
    let (begun, patience) = (Instant::now(), Duration::from_millis(request.wait_ms));
    let told = app.driver.shared().watched.console(&host, request, patience).await;
    let mut response = answered(host, told).into_response();
    response.extensions_mut().insert(Waited(begun.elapsed()));
    Ok(response)
}

fn answered(host: String, told: Result<Reply, NotShown>) -> Result<Json<ConsoleAnswer>, Problem> {
    match told {
        Ok(Reply::Console(view)) => match view.check() {
            Ok(()) => Ok(Json(ConsoleAnswer { host, view: *view })),
            Err(refusal) => Err(unavailable(format!("{host} says what cannot be: {}", refusal.message))),
        },
        Ok(Reply::Error(Refusal { message, cure })) => Err(not_now(format!("{host}: {message}"), &cure)),
        Ok(_) => Err(unavailable(format!("{host} answers something else than was asked"))),
        Err(NotShown::NoContact) => Err(unavailable(format!("{host} has no contact with this controller"))),
        Err(NotShown::NoAnswer) => {
            Err(unavailable(format!("{host} does not answer: is its agent of a release without consoles?")))
        }
    }
}

/// Returns the refusal where the VM has no console now. It is not noted: whoever waits for a VM asks again and again.
fn not_now(detail: String, cure: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, detail, cure).marked(Mark::Audited)
}

fn unavailable(detail: String) -> Problem {
    let cure = "ask again in some seconds; on the VM's host, skein vm console does without a controller";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, cure).marked(Mark::Audited)
}
