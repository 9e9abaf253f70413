//! Hosts are seen, drained and resumed, and VMs migrated, through the API to the end.

use skein_api::cluster::{
    ClusterStatus, Complaint, Contact, Explanation, Host, HostMode, MoveState, Operation, OperationState, Page, Rule,
    Vm,
};

use crate::fake_agent::FakeAgent;
use crate::setup::{LONG, Method, TestCluster, TestController, get, over, send, until};
use skein_controller::client::Client;

/// Waits until so many hosts report, and so many VMs are known.
pub async fn all_seen(client: &Client, hosts: u32, vms: u32) -> ClusterStatus {
    until("all is seen", async || {
        let answer = client.send(Method::GET, "/api/v1/cluster", &[], None).await.ok()?;
        let status: ClusterStatus = answer.json().ok()?;
        if (status.hosts.online, status.vms.running) != (hosts, vms) {
            return None;
        }
        // A host is online from its agent's first word on. What the host is comes with the first report.
        let known = client.send(Method::GET, "/api/v1/hosts?limit=500", &[], None).await.ok()?;
        let known: Page<Host> = known.json().ok()?;
        (known.items.iter().filter(|host| host.cpus.is_some()).count() >= hosts as usize).then_some(status)
    })
    .await
}

async fn three_hosts(cluster: &TestCluster, controller: &TestController) -> Vec<FakeAgent> {
    for vm in ["web1", "web2", "db"] {
        cluster.world.add_vm("alpha", vm);
    }
    cluster.world.add_vm("beta", "mail");
    ["alpha", "beta", "gamma"].map(|host| cluster.agent(host, &[controller])).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_drained_and_its_guests_come_home() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let _agents = three_hosts(&cluster, &controller).await;
    let client = cluster.client(&controller, "operator");
    let status = all_seen(&client, 3, 4).await;
    assert_eq!((status.name.as_str(), status.controllers.len(), status.controllers[0].leads), ("lab", 1, true));

    let hosts: Page<Host> = get(&client, "/api/v1/hosts?limit=2").await;
    assert_eq!(hosts.items.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), ["alpha", "beta"]);
    let rest: Page<Host> = get(&client, &format!("/api/v1/hosts?after={}", hosts.next.unwrap())).await;
    assert_eq!((rest.items[0].name.as_str(), rest.items[0].contact, rest.next), ("gamma", Contact::Online, None));
    let vms: Page<Vm> = get(&client, "/api/v1/vms?host=alpha").await;
    assert_eq!(vms.items.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>(), ["db", "web1", "web2"]);

    let shown = send(&client, Method::POST, "/api/v1/hosts/alpha/drain", r#"{"dry_run":true}"#).await;
    let shown_operation: Operation = shown.json().unwrap();
    assert_eq!((shown.status, shown_operation.moves.len()), (200, 3));
    assert_eq!(get::<Page<Operation>>(&client, "/api/v1/operations").await.items, []);

    let begun = send(&client, Method::POST, "/api/v1/hosts/alpha/drain", "").await;
    assert_eq!(begun.status, 202, "{}", String::from_utf8_lossy(&begun.body));
    let drain: Operation = begun.json().unwrap();
    assert_eq!(begun.headers["location"], format!("/api/v1/operations/{}", drain.id));
    let drain = over(&client, &drain.id).await;
    assert_eq!(drain.state, OperationState::Done, "{drain:?}");
    for vm in ["web1", "web2", "db"] {
        let last = drain.moves.iter().rfind(|of| of.vm == vm).unwrap();
        assert_eq!(last.state, MoveState::Done, "{drain:?}");
    }
    assert!(cluster.world.running("alpha").is_empty());
    assert_eq!(get::<Host>(&client, "/api/v1/hosts/alpha").await.mode, HostMode::Maintenance);

    let home = send(&client, Method::POST, "/api/v1/hosts/alpha/resume", r#"{"bring_home":true}"#).await;
    let home = over(&client, &home.json::<Operation>().unwrap().id).await;
    assert_eq!(home.state, OperationState::Done, "{home:?}");
    assert_eq!(cluster.world.running("alpha").len(), 3);
    assert_eq!(cluster.world.migrations(), 6);
    let ids = async |query: &str| -> Vec<String> {
        let page: Page<Operation> = get(&client, &format!("/api/v1/operations{query}")).await;
        page.items.into_iter().map(|of| of.id).collect()
    };
    assert_eq!(ids("").await, [home.id, drain.id.clone()]);
    assert_eq!(ids("?open=true").await, [""; 0]);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_is_migrated_once_however_often_it_is_asked() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let _agents = three_hosts(&cluster, &controller).await;
    let client = cluster.client(&controller, "operator");
    all_seen(&client, 3, 4).await;

    let ask = async |key: &str, body: &str| {
        let headers = [("Idempotency-Key", key)];
        crate::setup::send_with(&client, Method::POST, "/api/v1/vms/db/migrate", &headers, body).await
    };
    let first: Operation = ask("k1", r#"{"to":"gamma"}"#).await.json().unwrap();
    let open: Page<Operation> = get(&client, "/api/v1/operations?open=true").await;
    assert!(open.items.iter().all(|of| of.id == first.id && !of.state.is_over()), "{open:?}");
    let again: Operation = ask("k1", r#"{"to":"gamma"}"#).await.json().unwrap();
    assert_eq!(first.id, again.id);
    assert_eq!(ask("k1", r#"{"to":"beta"}"#).await.status, 409, "the key is another request's");
    assert_eq!(ask("k2", r#"{"to":"gamma"}"#).await.status, 409, "it moves already");
    assert_eq!(ask("not a key", "").await.status, 400);
    assert_eq!(over(&client, &first.id).await.state, OperationState::Done);
    let again: Operation = ask("k1", r#"{"to":"gamma"}"#).await.json().unwrap();
    assert_eq!((again.id, again.state), (first.id, OperationState::Done));
    assert_eq!(cluster.world.migrations(), 1);
    assert!(cluster.world.running("gamma").contains("db"));

    // The controller picks a host, and says why.
    let picked = ask("k3", "").await;
    let picked = over(&client, &picked.json::<Operation>().unwrap().id).await;
    assert_eq!(picked.state, OperationState::Done, "{picked:?}");
    assert!(picked.moves[0].reason.contains("of 2 hosts that can take it"), "{}", picked.moves[0].reason);
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_are_told_where_hosts_and_controllers_are() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let _agents = three_hosts(&cluster, &controller).await;
    for host in ["alpha", "beta", "gamma"] {
        until("it is told of all hosts", async || (cluster.world.told(host).len() == 3).then_some(())).await;
        assert_eq!(cluster.world.told(host)["beta"], ["192.0.2.98:7070"]);
    }
    // A controller that comes later is told to agents that know the first one only.
    let second = cluster.start("c2").await;
    let expected = [("c1", &controller), ("c2", &second)].map(|(name, of)| (name.to_owned(), of.address.to_string()));
    for host in ["alpha", "beta", "gamma"] {
        let is_told = || cluster.world.controllers(host) == std::collections::BTreeMap::from(expected.clone());
        until("it is told of both controllers", async || is_told().then_some(())).await;
    }
    second.stop().await;
    tokio::time::timeout(LONG, controller.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_set_found_broken_and_repaired() {
    let cluster = TestCluster::new();
    let controller = cluster.start("c1").await;
    let _agents = three_hosts(&cluster, &controller).await;
    let admin = cluster.client(&controller, "admin");
    all_seen(&admin, 3, 4).await;
    let apart = r#"{"apart":{"of":{"guests":["web1","web2"]},"force":"hard"}}"#;
    assert_eq!(send(&admin, Method::PUT, "/api/v1/rules/web", r#"{"asunder":{}}"#).await.status, 422);
    let set = send(&admin, Method::PUT, "/api/v1/rules/web", apart).await;
    assert_eq!(set.status, 204, "{}", String::from_utf8_lossy(&set.body));
    let rule: Rule = get(&admin, "/api/v1/rules/web").await;
    assert_eq!((rule.name.as_str(), rule.warnings.len()), ("web", 0), "{:?}", rule.warnings);
    let broken: Page<Complaint> = get(&admin, "/api/v1/complaints").await;
    assert!(broken.items.iter().any(|of| of.vms.contains(&"web1".into())), "{broken:?}");
    let why: Explanation = get(&admin, "/api/v1/vms/web1/explanation").await;
    assert_eq!((why.on.as_deref(), why.hosts.len()), (Some("alpha"), 3));

    let shown: Operation = send(&admin, Method::POST, "/api/v1/optimize", "").await.json().unwrap();
    assert!(shown.moves.iter().any(|of| of.vm.starts_with("web")), "{shown:?}");
    assert_eq!(cluster.world.migrations(), 0);
    let begun = send(&admin, Method::POST, "/api/v1/optimize", r#"{"apply":true}"#).await;
    assert_eq!(begun.status, 202, "{}", String::from_utf8_lossy(&begun.body));
    assert_eq!(over(&admin, &begun.json::<Operation>().unwrap().id).await.state, OperationState::Done);
    let together = ["alpha", "beta", "gamma"].iter().any(|host| {
        let here = cluster.world.running(host);
        here.contains("web1") && here.contains("web2")
    });
    assert!(!together);

    // A person may choose a host that a rule forbids, and is told so.
    let at = async |vm: &str| get::<Vm>(&admin, &format!("/api/v1/vms/{vm}")).await.host.unwrap();
    let request = format!(r#"{{"to":"{}","dry_run":true}}"#, at("web2").await);
    let shown = send(&admin, Method::POST, "/api/v1/vms/web1/migrate", &request).await;
    let reason = shown.json::<Operation>().unwrap().moves[0].reason.clone();
    assert!(reason.starts_with("asked for; BREAKS: ") && reason.contains("web"), "{reason}");
    assert_eq!(send(&admin, Method::DELETE, "/api/v1/rules/web", "").await.status, 204);
    assert_eq!(send(&admin, Method::DELETE, "/api/v1/rules/web", "").await.status, 404);
    controller.stop().await;
}
