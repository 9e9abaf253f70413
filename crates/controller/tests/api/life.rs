//! VMs are created, started, stopped and deleted.

use serde_json::json;
use skein_api::cluster::{AuditRecord, Operation, OperationState, Page, Vm, VmRunState};

use crate::drain::all_seen;
use crate::setup::{Method, TestCluster, get, over, send, send_with, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_lives_and_each_step_is_done_once_by_whoever_may() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "other");
    let controller = cluster.start("c1").await;
    let agents = ["alpha", "beta"].map(|host| cluster.agent(host, &[&controller]));
    let (viewer, operator) = (cluster.client(&controller, "viewer"), cluster.client(&controller, "operator"));
    let admin = cluster.client(&controller, "admin");
    all_seen(&operator, 2, 1).await;
    let create = |dry_run: bool| {
        let definition = "name = 'web'\nmemory = '1 GiB'\n";
        json!({"definition": definition, "on": "beta", "dry_run": dry_run}).to_string()
    };

    let would = send(&viewer, Method::POST, "/api/v1/vms", &create(true)).await;
    assert_eq!(would.status, 200, "{would:?}");
    assert_eq!(would.json::<Operation>().unwrap().moves[0].to.as_deref(), Some("beta"));
    for (method, path, body) in [
        (Method::POST, "/api/v1/vms", create(false)),
        (Method::POST, "/api/v1/vms/other/start", String::new()),
        (Method::POST, "/api/v1/vms/other/stop", String::new()),
        (Method::DELETE, "/api/v1/vms/other", String::new()),
    ] {
        assert_eq!(send(&viewer, method, path, &body).await.status, 403, "{path}");
    }
    // A definition is a program that runs as root.
    for (method, path, body) in [
        (Method::POST, "/api/v1/vms", create(false)),
        (Method::DELETE, "/api/v1/vms/other", String::new()),
        (Method::POST, "/api/v1/hosts/beta/fence", r#"{"is_off": true}"#.to_owned()),
    ] {
        assert_eq!(send(&operator, method, path, &body).await.status, 403, "{path}");
    }
    let odd = send(&admin, Method::POST, "/api/v1/vms", r#"{"definition": "name = 7"}"#).await;
    assert_eq!(odd.status, 422, "{odd:?}");

    let key = [("idempotency-key", "once")];
    let mut ids = Vec::new();
    for _ in 0..2 {
        let begun = send_with(&admin, Method::POST, "/api/v1/vms", &key, &create(false)).await;
        assert_eq!(begun.status, 202, "{begun:?}");
        ids.push(begun.json::<Operation>().unwrap().id);
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(over(&operator, &ids[0]).await.state, OperationState::Done);
    assert!(cluster.world.running("beta").contains("web"));

    let done = async |method: Method, path: &str, body: &str| {
        let client = if method == Method::DELETE { &admin } else { &operator };
        let begun = send(client, method, path, body).await;
        assert_eq!(begun.status, 202, "{path}: {begun:?}");
        let operation = over(&operator, &begun.json::<Operation>().unwrap().id).await;
        assert_eq!(operation.state, OperationState::Done, "{operation:?}");
    };
    done(Method::POST, "/api/v1/vms/web/stop", r#"{"timeout_s": 5, "force": true}"#).await;
    assert!(!cluster.world.running("beta").contains("web"));
    done(Method::POST, "/api/v1/vms/web/start", "").await;
    assert!(cluster.world.running("beta").contains("web"), "on the host that has it");
    assert_eq!(send(&admin, Method::DELETE, "/api/v1/vms/web", "").await.status, 409, "it runs");
    done(Method::POST, "/api/v1/vms/web/stop", "").await;
    until("it is off", async || {
        let vm: Vm = get(&operator, "/api/v1/vms/web").await;
        (vm.state == VmRunState::Stopped).then_some(())
    })
    .await;
    done(Method::DELETE, "/api/v1/vms/web", "").await;
    assert_eq!(send(&operator, Method::GET, "/api/v1/vms/web", "").await.status, 404);
    let audit: Page<AuditRecord> = get(&admin, "/api/v1/audit?limit=500").await;
    for what in
        ["POST /api/v1/vms {", "POST /api/v1/vms/web/stop", "POST /api/v1/vms/web/start", "DELETE /api/v1/vms/web"]
    {
        assert!(audit.items.iter().any(|record| record.what.starts_with(what)), "{what}");
    }
    drop(agents);
    controller.stop().await;
}
