//! Tests the client of controllers with controllers that answer as a test says.

mod fake_controller;

use std::time::{Duration, Instant};

use fake_controller::{Answer, FakeController};
use skein_api::cluster::{
    ChangedObject, ClusterStatus, Event, Host, HostCounts, HostSettings, Operation, OperationKind, OperationState,
    Page, ResumeRequest, StoreKind, UnixMs, VmCounts,
};
use skein_client::{ControllerClient, ControllerError, Credentials, Settings};
use skein_identity::{ClusterCa, ClusterPeer, Validity};

fn ca() -> ClusterCa {
    ClusterCa::create("rack7").unwrap()
}

fn client(ca: &ClusterCa, controllers: &[&str]) -> ControllerClient {
    let credentials = Credentials::Token { ca: ca.fingerprint(), secret: "s3cret".into() };
    let urls = controllers.iter().map(|url| url.parse().unwrap()).collect();
    ControllerClient::new(urls, &credentials).unwrap()
}

fn status() -> ClusterStatus {
    ClusterStatus {
        name: "rack7".into(),
        id: "1".into(),
        controllers: vec![],
        store: StoreKind::Sqlite,
        store_members: vec![],
        term: skein_api::Term(1),
        hosts: HostCounts::default(),
        vms: VmCounts::default(),
        operations_running: 0,
        power: Default::default(),
        attention: vec![],
    }
}

fn operation() -> Operation {
    Operation {
        id: "op1".into(),
        kind: OperationKind::Resume { host: "a".into(), drain: "op0".into() },
        state: OperationState::Running,
        by: "admin".into(),
        created: UnixMs(1),
        ended: None,
        cancelled: false,
        message: String::new(),
        moves: vec![],
        fencing: None,
        power: None,
        update: None,
        progress: Default::default(),
        version: 1,
    }
}

fn host(name: &str) -> Host {
    let host = serde_json::json!({
        "name": name, "contact": "online", "contact_since": 1, "mode": "active", "drain": null, "settings": {},
        "addresses": [], "release": null, "cpus": null, "ram_bytes": null, "load": null, "vms_running": 0,
        "incoming": 0, "outgoing": 0, "note": "", "version": 7,
    });
    serde_json::from_value(host).unwrap()
}

/// Returns an address where nothing listens. No other test listens at this IP address, so nobody takes the port.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.77.0.1:0").unwrap();
    format!("https://{}", listener.local_addr().unwrap())
}

#[test]
fn a_token_or_a_hosts_certificate_is_shown() {
    let ca = ca();
    let controller = FakeController::start(&ca, |_, _| Answer::ok(&status()));
    assert_eq!(client(&ca, &[&controller.url()]).cluster().unwrap(), status());
    let identity = ca.issue("hosta", Validity::days(1)).unwrap();
    let urls = vec![controller.url().parse().unwrap()];
    let host = ControllerClient::new(urls, &Credentials::Host(Box::new(identity))).unwrap();
    assert_eq!(host.cluster().unwrap().name, "rack7");
    let asked = controller.asked();
    let shown = asked.iter().map(|asked| (asked.headers.get("authorization").cloned(), asked.peer.clone()));
    let token = (Some("Bearer s3cret".to_owned()), ClusterPeer::Nobody);
    assert_eq!(shown.collect::<Vec<_>>(), [token, (None, ClusterPeer::Host("hosta".into()))]);
    assert!(asked.iter().all(|asked| asked.what == "GET /api/v1/cluster"));
}

#[test]
fn refusals_are_told_with_their_cure() {
    let ca = ca();
    let controller = FakeController::start(&ca, |asked, _| match asked.what.as_str() {
        "GET /api/v1/vms/web%2F1" => Answer::refused(404, "there is no VM 'web/1'", "see `skein vm list`"),
        "GET /api/v1/hosts/a" => Answer::Json(200, "{}".into()),
        _ => Answer::Json(500, "oops".into()),
    });
    let client = client(&ca, &[&controller.url()]);
    let error = client.vm("web/1").unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.status()),
        ("there is no VM 'web/1': see `skein vm list`", Some(404))
    );
    assert!(matches!(client.host("a").unwrap_err(), ControllerError::Malformed { .. }));
    let error = client.cluster().unwrap_err();
    assert!(matches!(error, ControllerError::NoReason { status: 500, .. }) && !error.may_pass(), "{error}");
}

#[test]
fn another_clusters_controller_is_sent_nothing() {
    let (ca, other) = (ca(), ca());
    let imposter = FakeController::start(&other, |_, _| Answer::ok(&status()));
    let error = client(&ca, &[&imposter.url()]).cluster().unwrap_err();
    assert!(error.to_string().contains("it is of another cluster: no CA with the fingerprint"), "{error}");
    // Nor is it sent the token because a controller names it as the leader.
    let to = format!("{}/api/v1/cluster", imposter.url());
    let controller = FakeController::start(&ca, move |_, _| Answer::Elsewhere(to.clone()));
    let error = client(&ca, &[&controller.url()]).cluster().unwrap_err();
    assert!(matches!(error, ControllerError::NotTrusted { .. }), "{error}");
    assert_eq!((imposter.paths().len(), controller.paths().len()), (0, 1));
    let plain = FakeController::start(&ca, |_, _| Answer::Elsewhere("http://127.0.0.1:1/".into()));
    let error = client(&ca, &[&plain.url()]).cluster().unwrap_err();
    assert!(matches!(error, ControllerError::BadRedirect { .. }), "{error}");
}

#[test]
fn the_next_controller_is_asked_and_remembered() {
    let ca = ca();
    let one = FakeController::start(&ca, |_, _| Answer::ok(&status()));
    let (dead, also_dead) = (nobody(), nobody());
    let asks = client(&ca, &[&dead, &one.url()]);
    for _ in 0..2 {
        let begun = Instant::now();
        while let Err(error) = asks.cluster() {
            // On a busy machine a handshake may take longer than the client waits.
            assert!(error.may_pass() && begun.elapsed() < Duration::from_secs(60), "{error}");
        }
    }
    assert_eq!(one.paths().len(), 2);
    let error = client(&ca, &[&dead, &also_dead]).cluster().unwrap_err();
    assert!(matches!(&error, ControllerError::Unreachable { .. }) && error.may_pass(), "{error}");
    assert!(matches!(client(&ca, &[]).cluster().unwrap_err(), ControllerError::NoUrl));
}

#[test]
fn the_leader_is_found_and_circles_end() {
    let ca = ca();
    let leader = FakeController::start(&ca, |_, _| Answer::ok(&operation()));
    let to = format!("{}/api/v1/operations/op1/cancel", leader.url());
    let follower = FakeController::start(&ca, move |_, _| Answer::Elsewhere(to.clone()));
    assert_eq!(client(&ca, &[&follower.url()]).cancel("op1").unwrap(), operation());
    assert_eq!(leader.paths(), ["POST /api/v1/operations/op1/cancel"]);
    assert_eq!(leader.asked()[0].headers["authorization"], "Bearer s3cret");
    let lost = FakeController::start(&ca, |asked, _| Answer::Elsewhere(format!("https://{}/", asked.headers["host"])));
    assert!(matches!(client(&ca, &[&lost.url()]).cancel("op1").unwrap_err(), ControllerError::Circle));
}

#[test]
fn a_request_whose_answer_is_lost_is_made_again_under_the_same_key() {
    let ca = ca();
    let controller = FakeController::start(&ca, |_, before| match before {
        0 => Answer::HangUp,
        1 => Answer::refused(503, "no controller leads at the moment", ""),
        2 => Answer::Json(202, serde_json::to_string(&operation()).unwrap()),
        _ => Answer::Json(204, String::new()),
    });
    let client = client(&ca, &[&controller.url()]);
    let home = ResumeRequest { bring_home: true };
    assert_eq!(client.resume("a", &home).unwrap(), Some(operation()));
    assert_eq!(client.resume("a", &ResumeRequest::default()).unwrap(), None);
    let asked = controller.asked();
    let keys: Vec<&str> = asked.iter().map(|asked| asked.headers["idempotency-key"].as_str()).collect();
    assert!(keys[0] == keys[1] && keys[1] == keys[2] && keys[2] != keys[3], "{keys:?}");
    assert_eq!(asked[0].body, r#"{"bring_home":true}"#);
}

#[test]
fn lists_come_page_by_page_and_settings_with_their_version() {
    let ca = ca();
    let controller = FakeController::start(&ca, |asked, _| {
        let page = |names: &[&str], next: Option<&str>| {
            Answer::ok(&Page { items: names.iter().map(|name| host(name)).collect(), next: next.map(str::to_owned) })
        };
        match asked.what.as_str() {
            "GET /api/v1/hosts?limit=500" => page(&["a", "b"], Some("b")),
            "GET /api/v1/hosts?limit=500&after=b" => page(&["c"], None),
            _ => Answer::Json(204, String::new()),
        }
    });
    let client = client(&ca, &[&controller.url()]);
    let names: Result<Vec<String>, _> = client.hosts().map(|host| host.map(|host| host.name)).collect();
    assert_eq!(names.unwrap(), ["a", "b", "c"]);
    client.set("a", Settings::Host(&HostSettings::default()), 7).unwrap();
    let set = controller.asked().pop().unwrap();
    assert_eq!((set.what.as_str(), set.headers["if-match"].as_str()), ("PUT /api/v1/hosts/a/settings", "\"7\""));
}

#[test]
fn events_go_on_after_a_break() {
    let ca = ca();
    let event =
        |at: u64| Event { at: UnixMs(at), changed: ChangedObject::Gone { kind: "vm".into(), name: "w".into() } };
    let controller = FakeController::start(&ca, move |_, before| {
        let data = serde_json::to_string(&event(before as u64)).unwrap();
        Answer::Stream(format!(":\n\nid: {before}.0\nevent: gone\ndata: {data}\n\nid: 9.9\ndata: {{\"cut"))
    });
    let client = client(&ca, &[&controller.url()]);
    let mut events = client.events().unwrap();
    for at in 0..3 {
        assert_eq!(events.next_event().unwrap(), event(at));
    }
    let last: Vec<Option<String>> =
        controller.asked().into_iter().map(|asked| asked.headers.get("last-event-id").cloned()).collect();
    assert_eq!(last, [None, Some("0.0".into()), Some("1.0".into())]);
}
