//! Who may do what; ETags; tokens and tickets; what is noted.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skein_api::cluster::{
    AuditRecord, Contact, Host, JoinTicket, Joined, Page, ProblemDetails, Token, TokenSecret, Vm,
};
use skein_controller::client::{Answered, Client};
use skein_identity::{IdentityRequest, JoinToken, Validity};

use crate::setup::{Method, TestCluster, TestController, get, send, send_with, until};

async fn seen(client: &Client, vms: u32) {
    until("all is seen", async || {
        let page: Page<Vm> = client.send(Method::GET, "/api/v1/vms", &[], None).await.ok()?.json().ok()?;
        (page.items.len() == vms as usize).then_some(())
    })
    .await;
}

/// Returns the problem of a refusal, which has the one form.
fn problem(answer: &Answered) -> ProblemDetails {
    assert_eq!(answer.headers["content-type"], "application/problem+json", "{}", answer.status);
    let problem: ProblemDetails = answer.json().unwrap();
    assert_eq!(problem.status, answer.status);
    assert!(problem.kind.starts_with("urn:skein:") && !problem.title.is_empty() && !problem.detail.is_empty());
    problem
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_route_takes_its_role() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let client = |token| cluster.client(&controller, token);
    controller.leads().await;
    let document: Value = get(&client(""), "/openapi.json").await;
    let mut routes = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace(['{', '}'], "");
            let is_open =
                operation["security"].as_array().is_some_and(|security| security.iter().all(|of| *of == json!({})));
            let answer = send(&client(""), method.clone(), &path, "").await;
            if is_open {
                assert_ne!(answer.status, 401, "{method} {path}");
                continue;
            }
            routes += 1;
            assert_eq!(answer.status, 401, "{method} {path}");
            assert!(answer.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
            problem(&answer);
            let status = |of: Answered| of.status;
            let is_look = method == Method::GET;
            let is_admins = ["tokens", "tickets", "audit", "backup"].iter().any(|part| path.contains(part))
                || [Method::DELETE, Method::PUT].contains(&method)
                || method == Method::POST && path == "/api/v1/vms";
            // Without this the route only says what it would do, which anybody may read.
            let body = if path.ends_with("/optimize") { r#"{"apply":true}"# } else { "" };
            if is_admins || !is_look {
                assert_eq!(status(send(&client("viewer"), method.clone(), &path, body).await), 403, "{method} {path}");
            }
            if is_admins {
                assert_eq!(status(send(&client("operator"), method.clone(), &path, "").await), 403, "{method} {path}");
            } else if !is_look {
                assert_ne!(status(send(&client("operator"), method.clone(), &path, "").await), 403, "{method} {path}");
            }
        }
    }
    assert!(routes >= 20, "{routes}");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_one_form() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    controller.leads().await;
    let no_json = [("content-type", "text/plain")];
    let large = format!(r#"{{"name":"{}","role":"viewer"}}"#, "x".repeat(2 << 20));
    // Whoever still sends as the server refuses may find the connection closed before the answer is read.
    let sent = async || admin.send(Method::POST, "/api/v1/tokens", &[], Some(large.as_bytes())).await.ok();
    let too_large = until("there is an answer to a large body", sent).await;
    let cases = [
        (404, send(&admin, Method::GET, "/nothing", "").await),
        (404, send(&admin, Method::GET, "/api/v1/hosts/nobody", "").await),
        (405, send(&admin, Method::PATCH, "/api/v1/hosts", "").await),
        (400, send(&admin, Method::GET, "/api/v1/hosts?limit=0", "").await),
        (400, send(&admin, Method::GET, "/api/v1/hosts?limit=x", "").await),
        (400, send(&admin, Method::POST, "/api/v1/tokens", "{").await),
        (422, send(&admin, Method::POST, "/api/v1/tokens", r#"{"name":"a"}"#).await),
        (422, send(&admin, Method::POST, "/api/v1/tokens", r#"{"name":"a/b","role":"viewer"}"#).await),
        (413, too_large),
        (415, send_with(&admin, Method::POST, "/api/v1/tokens", &no_json, "{}").await),
        (400, send_with(&admin, Method::GET, "/api/v1/events", &[("last-event-id", "x")], "").await),
        (400, send(&admin, Method::GET, "/api/v1/audit?limit=-1", "").await),
        (404, send(&admin, Method::GET, "/api/v1/operations/zzz", "").await),
        (400, send(&admin, Method::GET, "/api/v1/operations?before=zzz", "").await),
        (404, send(&admin, Method::POST, "/api/v1/operations/zzz/cancel", "").await),
        (404, send(&admin, Method::POST, "/api/v1/hosts/nobody/sleep", "").await),
    ];
    for (status, answer) in &cases {
        assert_eq!(answer.status, *status, "{}", String::from_utf8_lossy(&answer.body));
        assert!(!problem(answer).cure.is_empty(), "{}", String::from_utf8_lossy(&answer.body));
    }
    let told = problem(&cases[8].1);
    assert!(told.detail.contains("more than 1048576 bytes") && !told.cure.contains("Content-Type"), "{told:?}");
    assert_eq!(cases[2].1.headers["allow"], "GET,HEAD");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_changed_only_as_they_were_seen() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let _agent = cluster.agent("alpha", &[&controller]);
    let admin = cluster.client(&controller, "admin");
    seen(&admin, 1).await;
    for (path, body) in [("hosts/alpha", r#"{"group":"g1"}"#), ("vms/web", r#"{"priority":7}"#)] {
        let path = format!("/api/v1/{path}");
        // The first reports may still change what is stored.
        let tag = until("nothing changes", async || {
            let tag = async || send(&admin, Method::GET, &path, "").await.headers["etag"].to_str().unwrap().to_owned();
            let before = tag().await;
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            (tag().await == before && before != "\"0\"").then_some(before)
        })
        .await;
        let put = async |tag: &str| {
            send_with(&admin, Method::PUT, &format!("{path}/settings"), &[("if-match", tag)], body).await.status
        };
        assert_eq!(put("\"1\"").await, 412);
        assert_eq!(put("W/\"1\"").await, 400);
        assert_eq!(put(&tag).await, 204);
        assert_eq!(put(&tag).await, 412, "it has changed");
        assert_eq!(put("*").await, 204);
    }
    assert_eq!(get::<Host>(&admin, "/api/v1/hosts/alpha").await.settings.group.as_deref(), Some("g1"));
    assert_eq!(get::<Vm>(&admin, "/api/v1/vms/web").await.settings.priority, Some(7));
    let owners = send(&admin, Method::PUT, "/api/v1/vms/web/settings", r#"{"owners":["nobody"]}"#).await;
    assert_eq!(owners.status, 422);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_come_and_go() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    controller.leads().await;
    let new = send(&admin, Method::POST, "/api/v1/tokens", r#"{"name":"ci","role":"operator","expires_s":60}"#).await;
    assert_eq!(new.status, 201);
    let new: TokenSecret = new.json().unwrap();
    assert!(new.token.expires.is_some());
    let again = send(&admin, Method::POST, "/api/v1/tokens", r#"{"name":"ci","role":"viewer"}"#).await;
    assert_eq!(again.status, 409);
    let names: Page<Token> = get(&admin, "/api/v1/tokens").await;
    let names: Vec<&str> = names.items.iter().map(|token| token.name.as_str()).collect();
    assert_eq!(names, ["admin", "ci", "operator", "viewer"]);

    let ci = cluster.client(&controller, &new.secret);
    assert_eq!(send(&ci, Method::GET, "/api/v1/hosts", "").await.status, 200);
    assert_eq!(send(&ci, Method::DELETE, "/api/v1/tokens/ci", "").await.status, 403);
    assert_eq!(send(&admin, Method::DELETE, "/api/v1/tokens/ci", "").await.status, 204);
    assert_eq!(send(&ci, Method::GET, "/api/v1/hosts", "").await.status, 401);

    let log: Page<AuditRecord> = until("all is noted", async || {
        let log: Page<AuditRecord> = get(&admin, "/api/v1/audit").await;
        (log.items.len() == 5).then_some(log)
    })
    .await;
    let noted: Vec<(&str, u16)> = log.items.iter().map(|of| (of.by.as_str(), of.status)).collect();
    assert_eq!(noted, [("admin", 201), ("admin", 409), ("ci", 403), ("admin", 204), ("-", 401)]);
    assert!(log.items.iter().all(|of| of.from == "127.0.0.1" && !of.what.contains(&new.secret)));
    let rest: Page<AuditRecord> = get(&admin, &format!("/api/v1/audit?after={}", log.items[2].id)).await;
    assert_eq!(rest.items.len(), 2);
    let newest: Page<AuditRecord> = get(&admin, "/api/v1/audit?newest=true&limit=2").await;
    assert_eq!(newest.items, [log.items[4].clone(), log.items[3].clone()]);
    let before: Page<AuditRecord> =
        get(&admin, &format!("/api/v1/audit?newest=true&after={}", newest.next.unwrap())).await;
    assert_eq!(before.items.len(), 3);
    controller.stop().await;
}

async fn ticket(admin: &Client, body: &str) -> JoinTicket {
    let answer = send(admin, Method::POST, "/api/v1/tickets", body).await;
    assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    answer.json().unwrap()
}

async fn join(cluster: &TestCluster, controller: &TestController, host: &str, token: &str) -> Answered {
    let signing = IdentityRequest::new(host).unwrap().pem().unwrap();
    let body = json!({"host": host, "token": token, "signing_request": signing}).to_string();
    send(&cluster.client(controller, ""), Method::POST, "/api/v1/join", &body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_joins_once_by_a_ticket() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    controller.leads().await;
    let token = ticket(&admin, "").await;
    assert_eq!(token.command, format!("skein join https://{} --token {}", controller.address, token.token));
    let joined = join(&cluster, &controller, "alpha", &token.token).await;
    assert_eq!(joined.status, 200, "{}", String::from_utf8_lossy(&joined.body));
    let joined: Joined = joined.json().unwrap();
    assert_eq!((joined.cluster.as_str(), &joined.controllers), ("lab", &vec![controller.address.to_string()]));
    assert_eq!(joined.ca, cluster.ca.certificate_pem());
    let certificate = skein_identity::parse_pem(joined.certificate.as_bytes()).unwrap();
    assert_eq!(skein_identity::peer_name(&certificate).unwrap(), "alpha");
    assert_eq!(get::<Host>(&admin, "/api/v1/hosts/alpha").await.name, "alpha");

    // Each refusal says why.
    let refused = async |host: &str, token: &str, status: u16, why: &str| {
        let answer = join(&cluster, &controller, host, token).await;
        let detail = problem(&answer).detail;
        assert!(answer.status == status && detail.contains(why), "{}: {detail}", answer.status);
    };
    refused("beta", &token.token, 403, "used already, by 'alpha'").await;
    let only = ticket(&admin, r#"{"host":"beta"}"#).await;
    refused("gamma", &only.token, 403, "another host").await;
    refused("beta", "skein-join-1.x", 403, "no token").await;
    let own: JoinToken = only.token.parse().unwrap();
    let other = skein_identity::ClusterCa::create("other").unwrap().fingerprint();
    refused("beta", &JoinToken { ca: other, ..own.clone() }.to_string(), 403, "another cluster").await;
    refused("beta", &JoinToken { secret: "00".into(), ..own.clone() }.to_string(), 403, "not one of this").await;
    let any = ticket(&admin, "").await;
    refused("alpha", &any.token, 409, "is a host of the cluster already").await;
    // Its agent is not here: by a ticket for its name its key is signed again.
    let again = ticket(&admin, r#"{"host":"alpha"}"#).await;
    refused("beta", &again.token, 403, "another host").await;
    assert_eq!(join(&cluster, &controller, "alpha", &again.token).await.status, 200);
    let short = ticket(&admin, r#"{"expires_s":1}"#).await;
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    refused("delta", &short.token, 403, "expired").await;

    // A request for another name does not use the ticket up.
    let signing = IdentityRequest::new("evil").unwrap().pem().unwrap();
    let body = json!({"host": "beta", "token": only.token, "signing_request": signing}).to_string();
    let answer = send(&cluster.client(&controller, ""), Method::POST, "/api/v1/join", &body).await;
    assert_eq!(answer.status, 422, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(join(&cluster, &controller, "beta", &only.token).await.status, 200);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_was_removed_is_refused_and_joins_anew() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    controller.leads().await;
    let online = async || {
        until("the host is online", async || {
            let answer = send(&admin, Method::GET, "/api/v1/hosts/alpha", "").await;
            answer.json::<Host>().ok().filter(|host| host.contact == Contact::Online).map(drop)
        })
        .await;
    };
    let agent = cluster.agent("alpha", &[&controller]);
    online().await;
    assert_eq!(send(&admin, Method::DELETE, "/api/v1/hosts/alpha", "").await.status, 204);
    // The agent that runs on is told once as it is removed, and again whenever it dials.
    until("the agent is refused twice", async || (cluster.world.turned_away("alpha").len() >= 2).then_some(())).await;
    let told = cluster.world.turned_away("alpha");
    assert!(told.iter().all(|of| of.message == "'alpha' was removed from the cluster"), "{told:?}");
    assert!(told.iter().all(|of| of.cure.contains("skein-controller ticket")), "{told:?}");
    assert!(get::<Page<Host>>(&admin, "/api/v1/hosts").await.items.is_empty());
    // Joined anew, the host is known; the certificate of before is not.
    let token = ticket(&admin, "").await;
    assert_eq!(join(&cluster, &controller, "alpha", &token.token).await.status, 200);
    let before = cluster.world.turned_away("alpha").len();
    until("it is refused again", async || (cluster.world.turned_away("alpha").len() > before).then_some(())).await;
    assert_eq!(get::<Host>(&admin, "/api/v1/hosts/alpha").await.contact, Contact::Joined);
    drop(agent);
    // A new agent shows another certificate of the same CA.
    let _agent = cluster.agent("alpha", &[&controller]);
    online().await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_say_who_calls() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    controller.leads().await;
    let client_of = |host: &str| {
        let identity = cluster.ca.issue(host, Validity::days(1)).unwrap();
        let mut tls = (*skein_identity::controller_client_config(&identity).unwrap()).clone();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Client::with_tls(&controller.address.to_string(), std::sync::Arc::new(tls), None)
    };
    let alpha = client_of("alpha");
    assert_eq!(send(&alpha, Method::GET, "/api/v1/hosts", "").await.status, 401, "it is no host of the cluster");
    let _agent = cluster.agent("alpha", &[&controller]);
    until("the host is known", async || {
        (send(&alpha, Method::GET, "/api/v1/hosts", "").await.status == 200).then_some(())
    })
    .await;
    let drain = send(&alpha, Method::POST, "/api/v1/hosts/alpha/drain", "").await;
    assert_eq!(problem(&drain).detail, "'host:alpha' is a viewer, and this takes an operator");
    assert!(problem(&drain).cure.contains("skein login URL --token-file FILE"), "{}", problem(&drain).cure);
    // A plan that is only shown changes nothing.
    let would = send(&alpha, Method::POST, "/api/v1/hosts/alpha/drain", r#"{"dry_run":true}"#).await;
    assert_eq!(would.status, 200, "{}", String::from_utf8_lossy(&would.body));
    assert_eq!(send(&alpha, Method::POST, "/api/v1/optimize", "").await.status, 200);
    assert_eq!(send(&alpha, Method::POST, "/api/v1/optimize", r#"{"apply":true}"#).await.status, 403);
    let names: BTreeSet<String> =
        get::<Page<Host>>(&alpha, "/api/v1/hosts").await.items.into_iter().map(|host| host.name).collect();
    assert_eq!(names, BTreeSet::from(["alpha".to_owned()]));
    controller.stop().await;
}
