//! Hosts sleep and wake.

use skein_api::cluster::{AuditRecord, ClusterStatus, Contact, Host, Operation, OperationState, Page};

use crate::drain::all_seen;
use crate::setup::{Method, TestCluster, get, over, send, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_goes_to_sleep_and_is_woken() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    controller.leads().await;
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(|host| cluster.agent(host, &[&controller]));
    all_seen(&admin, 3, 1).await;
    let sleep = "/api/v1/hosts/alpha/sleep";
    let device = r#"{"fencing":{"kind":"redfish","url":"http://alpha"}}"#;
    assert_eq!(send(&admin, Method::PUT, "/api/v1/hosts/alpha/settings", device).await.status, 204);
    let viewer = cluster.client(&controller, "viewer");
    assert_eq!(send(&viewer, Method::POST, sleep, "").await.status, 403);
    assert_eq!(send(&admin, Method::POST, "/api/v1/hosts/nobody/wake", "").await.status, 404);
    assert_eq!(send(&admin, Method::POST, "/api/v1/hosts/alpha/wake", "").await.status, 409, "it is awake");
    // Where controllers are is known some seconds after they began.
    let operation: Operation = until("it goes to sleep", async || {
        let answer = send(&admin, Method::POST, sleep, "").await;
        (answer.status == 202).then(|| answer.json().unwrap())
    })
    .await;
    until("it is shut down", async || (cluster.devices.get("http://alpha").shutdowns > 0).then_some(())).await;
    assert!(cluster.world.running("alpha").is_empty(), "its guest has left");
    drop(alpha);
    let ended = over(&admin, &operation.id).await;
    assert_eq!((ended.state, ended.message.as_str()), (OperationState::Done, "it sleeps"), "{ended:?}");
    let host: Host = get(&admin, "/api/v1/hosts/alpha").await;
    assert_eq!(host.contact, Contact::Asleep);
    assert_eq!(host.power.unwrap().asleep_by.as_deref(), Some("admin"));
    let status: ClusterStatus = get(&admin, "/api/v1/cluster").await;
    assert_eq!((status.hosts.asleep, status.power.asleep, status.hosts.lost), (1, 1, 0), "{status:?}");

    let woken: Operation = send(&admin, Method::POST, "/api/v1/hosts/alpha/wake", "").await.json().unwrap();
    until("it is on", async || (!cluster.devices.get("http://alpha").is_off).then_some(())).await;
    let alpha = cluster.agent("alpha", &[&controller]);
    assert_eq!(over(&admin, &woken.id).await.state, OperationState::Done);
    let host: Host = get(&admin, "/api/v1/hosts/alpha").await;
    assert_eq!(host.contact, Contact::Online);
    let audit: Page<AuditRecord> = get(&admin, "/api/v1/audit").await;
    let done = |what: &str| audit.items.iter().any(|of| of.what.contains(what) && of.status == 202);
    assert!(done("/hosts/alpha/sleep") && done("/hosts/alpha/wake"), "{:?}", audit.items);
    drop((alpha, beta, gamma));
    controller.stop().await;
}
