//! Hosts' certificates are renewed by the link; what cannot be renewed is told.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skein_api::Refusal;
use skein_api::cluster::{AuditRecord, ClusterStatus, Contact, Host, JoinTicket, Joined, Page, ProblemDetails, UnixMs};
use skein_controller::client::Client;
use skein_controller::signer::Signer;
use skein_identity::{
    CertificateDer, ClusterCa, ControllerNames, Identity, IdentityRequest, JoinToken, Validity,
    controller_client_config, controller_name, parse_pem,
};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::fake_agent::FakeAgent;
use crate::setup::{LONG, Method, TestCluster, TestController, get, send, until};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns an identity whose certificate is to be renewed.
fn due(ca: &ClusterCa, host: &str) -> Identity {
    let now = SystemTime::now();
    ca.issue(host, Validity { not_before: now - 6 * HOUR, not_after: now + HOUR }).unwrap()
}

/// Returns a client that shows a host's certificate, and nothing else.
fn client_as(controller: &TestController, identity: &Identity) -> Client {
    let mut tls = (*controller_client_config(identity).unwrap()).clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Client::with_tls(&controller.address.to_string(), Arc::new(tls), None)
}

async fn host(client: &Client, name: &str) -> Host {
    until("the host is online", async || {
        let found: Host =
            client.send(Method::GET, &format!("/api/v1/hosts/{name}"), &[], None).await.ok()?.json().ok()?;
        (found.contact == Contact::Online).then_some(found)
    })
    .await
}

/// Has a host's agent ask for another certificate.
async fn renewed(cluster: &TestCluster, host: &str) -> Result<String, Refusal> {
    cluster.world.ask_renewal(host);
    until("it is answered", async || cluster.world.renewed(host)).await
}

fn seconds(time: UnixMs) -> i64 {
    i64::try_from(time.0 / 1000).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_renewed_and_the_one_of_before_is_refused_once_the_new_one_was_shown() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    let identity = due(&cluster.ca, "alpha");
    // The same certificate and key, as they are left on a backup.
    let dir = tempfile::tempdir().unwrap();
    identity.save(&dir.path().join("identity")).unwrap();
    let backup = Identity::load(&dir.path().join("identity")).unwrap();
    let agent = FakeAgent::start_as(&identity, &cluster.world, vec![controller.address]);
    let before = host(&admin, "alpha").await;
    assert_eq!(before.certificate_ends.map(seconds), Some(identity.info().not_after.as_second()));

    let certificate = renewed(&cluster, "alpha").await.unwrap();
    let new = parse_pem(certificate.as_bytes()).unwrap().swap_remove(0);
    // The host does not show it yet: as if its agent had died now.
    assert_eq!(get::<Host>(&client_as(&controller, &backup), "/api/v1/hosts/alpha").await.name, "alpha");
    drop(agent);
    identity.renew(new).unwrap();
    assert!(!identity.is_renewal_due(SystemTime::now()));
    let _agent = FakeAgent::start_as(&identity, &cluster.world, vec![controller.address]);
    until("the new certificate is shown", async || {
        let ends = host(&admin, "alpha").await.certificate_ends.map(seconds);
        (ends == Some(identity.info().not_after.as_second())).then_some(())
    })
    .await;
    assert_eq!(get::<Host>(&client_as(&controller, &identity), "/api/v1/hosts/alpha").await.name, "alpha");
    let refused = send(&client_as(&controller, &backup), Method::GET, "/api/v1/hosts/alpha", "").await;
    let problem: ProblemDetails = refused.json().unwrap();
    assert!(refused.status == 403 && problem.detail.contains("was replaced"), "{problem:?}");
    let _old = FakeAgent::start_as(&backup, &cluster.world, vec![controller.address]);
    until("the old certificate is turned away", async || {
        cluster.world.turned_away("alpha").iter().any(|refusal| refusal.message.contains("was replaced")).then_some(())
    })
    .await;

    // A second one is not signed before half of the time is over.
    let early = renewed(&cluster, "alpha").await.unwrap_err();
    assert!(early.message.contains("more than half"), "{early:?}");
    let log: Page<AuditRecord> = get(&admin, "/api/v1/audit").await;
    let of_it = log.items.iter().filter(|record| record.what == "renew its certificate");
    let noted: Vec<_> = of_it.map(|record| (record.by.as_str(), record.from.as_str(), record.status)).collect();
    assert!(!noted.is_empty() && noted.iter().all(|of| *of == ("host:alpha", "127.0.0.1", 204)), "{noted:?}");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_without_the_key_renews_nothing_and_says_so() {
    let mut cluster = TestCluster::new();
    cluster.signs = false;
    cluster.valid_for = Duration::from_secs(400 * 86_400);
    let controller = cluster.start("c1").await;
    let viewer = cluster.client(&controller, "viewer");
    let _agent = FakeAgent::start_as(&due(&cluster.ca, "alpha"), &cluster.world, vec![controller.address]);
    host(&viewer, "alpha").await;
    let refused = renewed(&cluster, "alpha").await.unwrap_err();
    assert!(refused.message.contains("does not have the CA's key"), "{refused:?}");
    let status: ClusterStatus = get(&viewer, "/api/v1/cluster").await;
    let told = |words: &str| status.attention.iter().any(|line| line.contains(words));
    assert!(told("the certificate of host 'alpha' ends within a day and was not renewed"), "{:?}", status.attention);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_certificate_is_refused_is_told_with_both_times_and_is_not_said_to_be_off() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    let agent = cluster.agent("alpha", &[&controller]);
    host(&admin, "alpha").await;
    drop(agent);
    // As if the controller's clock were five hours behind that by which this was signed.
    let now = SystemTime::now();
    let ahead = Validity { not_before: now + 5 * HOUR, not_after: now + 500 * HOUR };
    let _agent =
        FakeAgent::start_as(&cluster.ca.issue("alpha", ahead).unwrap(), &cluster.world, vec![controller.address]);
    until("the host is lost, and answers", async || {
        let found: Host = get(&admin, "/api/v1/hosts/alpha").await;
        let is_told = found.note.contains("refused as not valid yet") && found.note.contains("clock says");
        (found.contact == Contact::Lost && is_told).then_some(())
    })
    .await;
    let status: ClusterStatus = get(&admin, "/api/v1/cluster").await;
    let told = |words: &str| status.attention.iter().any(|line| line.contains(words));
    assert!(told("host 'alpha' does not report, and is not off") && !told("--is-off"), "{:?}", status.attention);
    let refused = send(&admin, Method::POST, "/api/v1/hosts/alpha/fence", r#"{"is_off":true}"#).await;
    let problem: ProblemDetails = refused.json().unwrap();
    assert!(refused.status == 409 && problem.detail.contains("'alpha' is not off"), "{problem:?}");
    controller.stop().await;
}

#[test]
fn what_of_certificates_needs_a_person_is_told_by_the_controller() {
    let ca = ClusterCa::create("lab").unwrap();
    let names = ControllerNames::new("c1", ["127.0.0.1"]).unwrap();
    let own = ca.issue_controller(&names, Validity::days(300)).unwrap();
    let days = |days: u32| Duration::from_secs(86_400) * days;
    let without = Signer::new(None, days(365));
    let told = |signer: &Signer, in_days| signer.attention(&own, SystemTime::now() + days(in_days));
    assert!(told(&without, 0).is_empty());
    assert!(told(&without, 250)[0].contains("the certificate of the controller 'c1' ends on"));
    let with = Signer::new(Some(ca), days(365));
    assert!(told(&with, 250).is_empty());
    // The clock was ahead when the controller was started, and was set right since.
    let back = with.attention(&own, SystemTime::now() - days(40));
    assert!(back.len() == 1 && back[0].contains("so hosts refuse it: set the clock"), "{back:?}");
    // Then a certificate would last for less than a year.
    let late = told(&with, 3652 - 300);
    assert!(late.len() == 1 && late[0].contains("the cluster's CA ends on"), "{late:?}");
}

#[test]
fn a_controllers_certificate_from_the_future_is_replaced_where_the_cas_key_is() {
    let ca = ClusterCa::create("lab").unwrap();
    let names = ControllerNames::new("c1", ["127.0.0.1"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("identity");
    let now = SystemTime::now();
    let ahead = Validity { not_before: now + 10 * HOUR, not_after: now + 500 * HOUR };
    ca.issue_controller(&names, ahead).unwrap().save(&at).unwrap();
    let refused = Signer::new(None, HOUR).load_identity(&at).unwrap_err().to_string();
    assert!(refused.contains("start skein-controller with the CA's key"), "{refused}");
    let identity = Signer::new(Some(ca), HOUR).load_identity(&at).unwrap();
    assert_eq!(identity.name(), "c1");
    assert!(identity.info().not_after.as_second() < jiff::Timestamp::now().as_second() + 2 * 3600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controllers_own_certificate_is_renewed_while_it_serves() {
    let ca = ClusterCa::create("lab").unwrap();
    let names = ControllerNames::new("c1", ["127.0.0.1"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("identity");
    let now = SystemTime::now();
    let ended = Validity { not_before: now - 6 * HOUR, not_after: now - HOUR };
    ca.issue_controller(&names, ended).unwrap().save(&at).unwrap();
    let old = parse_pem(&std::fs::read(at.join("controller.pem")).unwrap()).unwrap().swap_remove(0);
    assert!(Signer::new(None, HOUR).load_identity(&at).is_err());
    // It has ended while the controller was off. The next ones last for so long that a busy machine reads them in time.
    let signer = Signer::new(Some(ca), Duration::from_secs(8));
    let identity = signer.load_identity(&at).unwrap();
    assert_ne!(identity.chain()[0], old);
    let mut seen = vec![identity.chain()[0].clone()];
    let watching = async {
        until("it is renewed three times", async || {
            let shown = identity.chain()[0].clone();
            if !seen.contains(&shown) {
                seen.push(shown);
            }
            (seen.len() > 3).then_some(())
        })
        .await;
    };
    tokio::select! {
        () = signer.keep_renewed(&identity) => unreachable!("it goes on"),
        () = watching => {}
        () = tokio::time::sleep(LONG) => panic!("it is not renewed"),
    }
    // The file alone is read, as the certificate may have ended on a busy machine.
    let kept = parse_pem(&std::fs::read(at.join("controller.pem")).unwrap()).unwrap().swap_remove(0);
    assert_eq!(kept, identity.chain()[0]);
    assert_eq!(signer.load_identity(&at).unwrap().name(), "c1");
}

/// Returns the certificate that a controller shows.
async fn shown_by(controller: &TestController, identity: &Identity) -> CertificateDer<'static> {
    let socket = TcpStream::connect(controller.address).await.unwrap();
    let tls = TlsConnector::from(controller_client_config(identity).unwrap());
    let stream = tls.connect(controller_name(), socket).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_serves_shows_its_new_certificate() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let host = cluster.ca.issue("alpha", Validity::days(1)).unwrap();
    let old = controller.identity.chain()[0].clone();
    assert_eq!(shown_by(&controller, &host).await, old);
    let new = cluster.ca.renew(&old, Validity::days(9)).unwrap();
    controller.identity.renew(new.clone()).unwrap();
    assert_eq!(shown_by(&controller, &host).await, new);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_certificate_has_ended_joins_by_a_ticket_for_its_name() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    let first = due(&cluster.ca, "alpha");
    let agent = FakeAgent::start_as(&first, &cluster.world, vec![controller.address]);
    host(&admin, "alpha").await;
    drop(agent);
    let joined = async |ticket: &str| {
        let made = send(&admin, Method::POST, "/api/v1/tickets", ticket).await;
        // There is no ticket for a host whose agent is here, or is not known to be gone yet.
        if made.status != 201 {
            return made;
        }
        let ticket: JoinTicket = made.json().unwrap();
        let token: JoinToken = ticket.token.parse().unwrap();
        let request = IdentityRequest::new("alpha").unwrap().pem().unwrap();
        let ask = serde_json::json!({"host": "alpha", "token": token.to_string(), "signing_request": request});
        send(&cluster.client(&controller, ""), Method::POST, "/api/v1/join", &ask.to_string()).await
    };
    let refused = joined("").await;
    let problem: ProblemDetails = refused.json().unwrap();
    assert!(refused.status == 409 && problem.cure.contains("ticket --host alpha"), "{problem:?}");
    let answer = until("its agent is known to be gone", async || {
        let answer = joined(r#"{"host":"alpha"}"#).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    let joined: Joined = answer.json().unwrap();
    assert!(joined.certificate.contains("BEGIN CERTIFICATE"));
    controller.stop().await;
}
