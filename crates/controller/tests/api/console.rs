//! A guest's serial console, by way of controllers.

use skein_api::cluster::{AuditRecord, ConsoleAnswer, Page, ProblemDetails};
use skein_api::{ConsoleState, ConsoleStep};
use skein_controller::client::Client;

use crate::drain::all_seen;
use crate::setup::{Method, TestCluster, get, send, until};

const PATH: &str = "/api/v1/vms/web/console";

async fn asked(client: &Client, body: &str) -> ConsoleAnswer {
    let answer = send(client, Method::POST, PATH, body).await;
    assert_eq!(answer.status, 200, "{body}: {}", String::from_utf8_lossy(&answer.body));
    answer.json().unwrap()
}

async fn refused(client: &Client, path: &str, body: &str) -> (u16, String) {
    let answer = send(client, Method::POST, path, body).await;
    let problem = answer.json::<ProblemDetails>().unwrap();
    (answer.status, format!("{}; {}", problem.detail, problem.cure))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_is_reached_at_the_guests_host_and_noted_once() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let _agents = ["alpha", "beta"].map(|host| cluster.agent(host, &[&controller]));
    let (operator, viewer) = (cluster.client(&controller, "operator"), cluster.client(&controller, "viewer"));
    let admin = cluster.client(&controller, "admin");
    all_seen(&operator, 2, 1).await;

    let begun = asked(&operator, r#"{"session":"s1","step":"begin"}"#).await;
    assert_eq!((begun.host.as_str(), begun.view.state), ("alpha", ConsoleState::Open));
    // "ls\r", in base64.
    let told = asked(&operator, r#"{"session":"s1","input":"bHMN","input_at":4,"after":7}"#).await;
    assert_eq!((told.view.output.0.as_slice(), told.view.at, told.view.typed), (&b"ls\r"[..], 7, 7));
    let seen = cluster.world.consoles("alpha");
    assert_eq!((seen.len(), seen[0].step, seen[1].step), (2, ConsoleStep::Begin, ConsoleStep::GoOn));
    assert!(seen.iter().all(|of| of.by == "operator" && of.session == "s1" && of.name == "web"), "{seen:?}");
    // Another caller is told who has it.
    let held = asked(&admin, r#"{"session":"s2","step":"begin"}"#).await;
    assert_eq!((held.view.state, held.view.holder.as_deref()), (ConsoleState::Held, Some("operator")));

    let log: Page<AuditRecord> = get(&admin, "/api/v1/audit?limit=500").await;
    let of_consoles: Vec<_> = log.items.iter().filter(|of| of.what.contains("/console")).collect();
    let by: Vec<_> = of_consoles.iter().map(|of| of.by.as_str()).collect();
    assert_eq!(by, ["operator", "admin"], "one of each session: {of_consoles:?}");
    assert_eq!(of_consoles[0].what, format!("POST {PATH} {{\"step\":\"begin\"}}"));

    let moved = send(&operator, Method::POST, "/api/v1/vms/web/migrate", r#"{"to":"beta"}"#).await;
    assert_eq!(moved.status, 202);
    until("it has moved", async || {
        let answer = send(&operator, Method::POST, PATH, r#"{"session":"s1"}"#).await;
        (answer.status == 200 && answer.json::<ConsoleAnswer>().unwrap().host == "beta").then_some(())
    })
    .await;

    assert_eq!(send(&viewer, Method::POST, PATH, r#"{"session":"s1"}"#).await.status, 403);
    let (status, words) = refused(&operator, "/api/v1/vms/none/console", r#"{"session":"s1"}"#).await;
    assert_eq!((status, words.contains("there is no VM")), (404, true), "{words}");
    for (body, says) in [
        (r#"{"session":""}"#, "no request id"),
        (r#"{"session":"s1","wait_ms":10001}"#, "wait_ms cannot be 10001"),
        (r#"{"session":"s1","after":9223372036854775807}"#, "after cannot be"),
        (r#"{"session":"s1","input":"?"}"#, "no base64"),
        (r#"{"session":"s1","by":"root"}"#, "unknown field"),
    ] {
        let (status, words) = refused(&operator, PATH, body).await;
        assert_eq!((status, words.contains(says)), (422, true), "{body}: {words}");
    }
    cluster.world.end_vms("beta");
    let (status, words) = refused(&operator, PATH, r#"{"session":"s1"}"#).await;
    assert_eq!((status, words.contains("beta: it is not running; start it")), (409, true), "{words}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_does_not_lead_carries_a_session_on_and_says_where_one_begins() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let leader = cluster.start("c1").await;
    let operator = cluster.client(&leader, "operator");
    leader.leads().await;
    let follower = cluster.start("c2").await;
    let _agent = cluster.agent("alpha", &[&leader, &follower]);
    all_seen(&operator, 1, 1).await;
    let other = cluster.client(&follower, "operator");
    all_seen(&other, 1, 1).await;

    let nowhere = send(&other, Method::POST, PATH, r#"{"session":"s1","step":"begin"}"#).await;
    assert_eq!(nowhere.status, 307);
    assert!(nowhere.headers["location"].to_str().unwrap().ends_with(&format!("{}{PATH}", leader.address)));
    asked(&operator, r#"{"session":"s1","step":"begin"}"#).await;
    let carried = until("the agent is at the follower, too", async || {
        let answer = send(&other, Method::POST, PATH, r#"{"session":"s1","input":"bHMN"}"#).await;
        (answer.status == 200).then(|| answer.json::<ConsoleAnswer>().unwrap())
    })
    .await;
    assert_eq!((carried.host.as_str(), carried.view.output.0.as_slice()), ("alpha", &b"ls\r"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_contact_is_said_to_be_so() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let operator = cluster.client(&controller, "operator");
    let agent = cluster.agent("alpha", &[&controller]);
    all_seen(&operator, 1, 1).await;
    drop(agent);
    let told = until("the connection is over", async || {
        // The agent may still answer.
        let answer = send(&operator, Method::POST, PATH, r#"{"session":"s1"}"#).await;
        (answer.status == 503).then(|| String::from_utf8_lossy(&answer.body).into_owned())
    })
    .await;
    assert!(told.contains("alpha has no contact with this controller"), "{told}");
}
