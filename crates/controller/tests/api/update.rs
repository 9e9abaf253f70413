//! Hosts are updated one after the other.

use skein_api::cluster::{AuditRecord, HostUpdateState, Operation, OperationState, Page};

use crate::drain::all_seen;
use crate::setup::{Method, TestCluster, get, over, send};

const UPDATE: &str = "/api/v1/cluster/update";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_are_updated_one_after_the_other() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let admin = cluster.client(&controller, "admin");
    controller.leads().await;
    let agents = ["alpha", "beta"].map(|host| cluster.agent(host, &[&controller]));
    all_seen(&admin, 2, 1).await;
    let viewer = cluster.client(&controller, "viewer");
    assert_eq!(send(&viewer, Method::POST, UPDATE, "").await.status, 403);
    let shown = send(&viewer, Method::POST, UPDATE, r#"{"dry_run":true}"#).await;
    assert_eq!(shown.status, 200);
    let shown: Operation = shown.json().unwrap();
    assert!(shown.update.unwrap().hosts.iter().all(|of| of.state == HostUpdateState::Waiting));
    for (body, status) in [(r#"{"hosts":["nobody"]}"#, 404), (r#"{"wait_s":1}"#, 422), (r#"{"command":"rm"}"#, 422)] {
        assert_eq!(send(&admin, Method::POST, UPDATE, body).await.status, status, "{body}");
    }

    let begun = send(&admin, Method::POST, UPDATE, r#"{"how":"update"}"#).await;
    assert_eq!(begun.status, 202);
    let operation: Operation = begun.json().unwrap();
    assert_eq!(send(&admin, Method::POST, UPDATE, "").await.status, 409, "one at a time");
    let ended = over(&admin, &operation.id).await;
    assert_eq!(ended.state, OperationState::Done, "{ended:?}");
    let hosts = ended.update.unwrap().hosts;
    assert!(hosts.iter().all(|of| of.state == HostUpdateState::Done && of.taken), "{hosts:?}");
    assert!(cluster.world.running("alpha").contains("web"), "it has come home");
    let kept: Operation = get(&admin, &format!("/api/v1/operations/{}", operation.id)).await;
    assert_eq!(kept.update.unwrap().hosts, hosts);
    let audit: Page<AuditRecord> = get(&admin, "/api/v1/audit").await;
    assert!(audit.items.iter().any(|of| of.what.contains(UPDATE) && of.status == 202), "{:?}", audit.items);
    drop(agents);
    controller.stop().await;
}
