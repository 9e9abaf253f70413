//! Lost hosts are switched off by their fencing devices, and their guests start elsewhere.

use skein_api::cluster::{
    ClusterStatus, Contact, Host, Operation, OperationKind, OperationState, Page, PowerReading, PowerState,
};
use skein_controller::client::Client;

use crate::drain::all_seen;
use crate::setup::{Method, TestCluster, TestController, get, over, send, until};

/// Starts a controller that takes hosts for lost soon, and switches them off at once.
async fn started(cluster: &TestCluster) -> (TestController, Client) {
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    // The other agents' reports may come late on a busy machine, and with most hosts silent none is switched off.
    let quick = r#"{"host_lease_s":10,"failover":{"grace_s":0}}"#;
    controller.leads().await;
    assert_eq!(send(&admin, Method::PUT, "/api/v1/settings", quick).await.status, 204);
    (controller, admin)
}

async fn set_device(admin: &Client, host: &str) {
    let device = format!(r#"{{"fencing":{{"kind":"redfish","url":"http://{host}"}}}}"#);
    let set = send(admin, Method::PUT, &format!("/api/v1/hosts/{host}/settings"), &device).await;
    assert_eq!(set.status, 204, "{}", String::from_utf8_lossy(&set.body));
}

async fn contact(client: &Client, host: &str) -> Contact {
    get::<Host>(client, &format!("/api/v1/hosts/{host}")).await.contact
}

async fn newest(client: &Client, is_it: impl Fn(&OperationKind) -> bool) -> Option<Operation> {
    let page: Page<Operation> = get(client, "/api/v1/operations").await;
    page.items.into_iter().find(|operation| is_it(&operation.kind))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_host_is_switched_off_and_its_guests_start_elsewhere() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let (controller, admin) = started(&cluster).await;
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(|host| cluster.agent(host, &[&controller]));
    all_seen(&admin, 3, 1).await;
    set_device(&admin, "alpha").await;

    // The host dies: its guests with it, and no word of it.
    alpha.end().await;
    cluster.world.end_vms("alpha");
    let failover =
        until("the failover", async || newest(&admin, |kind| matches!(kind, OperationKind::Failover { .. })).await)
            .await;
    assert_eq!(over(&admin, &failover.id).await.state, OperationState::Done);
    assert_eq!(contact(&admin, "alpha").await, Contact::Off);
    assert_eq!(cluster.devices.orders("http://alpha"), 1);
    let at = ["beta", "gamma"].map(|host| cluster.world.running(host).contains("web"));
    assert!(at[0] != at[1], "it runs on one host: {at:?}");
    let fence = newest(&admin, |kind| matches!(kind, OperationKind::Fence { .. })).await.unwrap();
    assert_eq!((fence.state, fence.by.as_str()), (OperationState::Done, "the controller"), "{fence:?}");
    assert!(fence.message.contains(&failover.id), "{fence:?}");

    // It is back, and is no longer off.
    cluster.devices.set("http://alpha", |device| device.is_off = false);
    let alpha = cluster.agent("alpha", &[&controller]);
    until("it is back", async || (contact(&admin, "alpha").await == Contact::Online).then_some(())).await;
    drop((alpha, beta, gamma));
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_fails_is_told_and_a_persons_word_does_as_well() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let (controller, admin) = started(&cluster).await;
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(|host| cluster.agent(host, &[&controller]));
    all_seen(&admin, 3, 1).await;
    set_device(&admin, "alpha").await;
    cluster.devices.set("http://alpha", |device| device.is_broken = true);
    let reports = send(&admin, Method::POST, "/api/v1/hosts/alpha/fence", "").await;
    assert_eq!(reports.status, 409, "a host that reports is not switched off");
    alpha.end().await;
    cluster.world.end_vms("alpha");
    let told = until("it is told", async || {
        let status: ClusterStatus = get(&admin, "/api/v1/cluster").await;
        let told = status.attention.into_iter().find(|told| told.contains("'alpha' does not report"))?;
        if told.contains("it was not switched off") {
            // On a busy machine the others were silent, too. A person tries again before the controller does.
            send(&admin, Method::POST, "/api/v1/hosts/alpha/fence", "").await;
        }
        told.contains("nobody answers").then_some(told)
    })
    .await;
    assert!(told.contains("'alpha' does not report") && told.contains("it is being switched off"), "{told}");
    assert!(cluster.world.running("beta").is_empty() && cluster.world.running("gamma").is_empty());
    let again = send(&admin, Method::POST, "/api/v1/hosts/alpha/fence", "").await;
    assert_eq!(again.status, 409, "it is under way already");
    // Whoever may not is told the role that it takes.
    let viewer = cluster.client(&controller, "viewer");
    for (body, role) in [(r#"{"is_off":true}"#, "takes an admin"), ("{}", "takes an operator")] {
        let refused = send(&viewer, Method::POST, "/api/v1/hosts/alpha/fence", body).await;
        assert_eq!(refused.status, 403);
        let told = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(told.contains(role), "{told}");
    }
    let said = send(&admin, Method::POST, "/api/v1/hosts/alpha/fence", r#"{"is_off":true}"#).await;
    assert_eq!(said.status, 202, "{}", String::from_utf8_lossy(&said.body));
    let failover: Operation = said.json().unwrap();
    assert_eq!(over(&admin, &failover.id).await.state, OperationState::Done);
    let fence = newest(&admin, |kind| matches!(kind, OperationKind::Fence { .. })).await.unwrap();
    let fence = over(&admin, &fence.id).await;
    assert_eq!((fence.state, fence.message.as_str()), (OperationState::Done, "it is proven to be off otherwise"));
    drop((beta, gamma));
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_tried_without_switching_anything() {
    let cluster = TestCluster::new();
    let (controller, admin) = started(&cluster).await;
    let alpha = cluster.agent("alpha", &[&controller]);
    all_seen(&admin, 1, 0).await;
    let test = "/api/v1/hosts/alpha/fencing/test";
    assert_eq!(send(&admin, Method::POST, test, "").await.status, 409, "it has no device");
    assert_eq!(send(&admin, Method::POST, "/api/v1/hosts/nobody/fencing/test", "").await.status, 404);
    set_device(&admin, "alpha").await;
    let viewer = cluster.client(&controller, "viewer");
    assert_eq!(send(&viewer, Method::POST, test, "").await.status, 403);
    let read: PowerReading = send(&admin, Method::POST, test, "").await.json().unwrap();
    let expected = PowerReading { host: "alpha".into(), power: PowerState::On, detail: "name alpha".into() };
    assert_eq!(read, expected);
    cluster.devices.set("http://alpha", |device| device.is_broken = true);
    let broken = send(&admin, Method::POST, test, "").await;
    let text = String::from_utf8_lossy(&broken.body);
    assert!(broken.status == 409 && text.contains("nobody answers"), "{text}");
    assert_eq!(cluster.devices.orders("http://alpha"), 0);
    // What cannot be a device is refused.
    for bad in [r#"{"kind":"redfish","url":"https://alpha"}"#, r#"{"kind":"agent","agent":"/bin/sh"}"#] {
        let body = format!(r#"{{"fencing":{bad}}}"#);
        assert_eq!(send(&admin, Method::PUT, "/api/v1/hosts/alpha/settings", &body).await.status, 422, "{bad}");
    }
    drop(alpha);
    controller.stop().await;
}
