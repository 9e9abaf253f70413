//! Agents ask whether a person may start a VM on their host, or move a guest from there.

use skein_api::cluster::{AuditRecord, Page};
use skein_api::{MigrationId, Refusal, ToController};

use crate::drain::all_seen;
use crate::setup::{TestCluster, get, until};

fn start(ask: u64, vm: &str, is_here: bool) -> ToController {
    ToController::AskStart { ask, vm: vm.into(), is_here }
}

/// Has a host's agent ask, and returns the answer to the question of this number.
async fn asked(cluster: &TestCluster, host: &str, ask: u64, question: ToController) -> Result<(), (bool, Refusal)> {
    cluster.world.ask_by_hand(host, question);
    until("it is answered", async || cluster.world.may(host, ask)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_answers_agents_and_the_audit_log_has_it() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let _agents = ["alpha", "beta"].map(|host| cluster.agent(host, &[&controller]));
    let admin = cluster.client(&controller, "admin");
    all_seen(&admin, 2, 1).await;
    assert_eq!(asked(&cluster, "alpha", 1, start(1, "web", true)).await, Ok(()));
    assert_eq!(asked(&cluster, "beta", 2, start(2, "new", false)).await, Ok(()));
    let (passes, why) = asked(&cluster, "beta", 3, start(3, "web", true)).await.unwrap_err();
    assert!(!passes && why.message.contains("runs on 'alpha'") && why.cure.contains("skein migrate web"), "{why:?}");
    // Many at once are each answered.
    (10..20).for_each(|ask| cluster.world.ask_by_hand("beta", start(ask, "new", false)));
    for ask in 10..20 {
        assert_eq!(until("it is answered", async || cluster.world.may("beta", ask)).await, Ok(()));
    }
    let to =
        |ask, to: &str| ToController::AskMove { ask, vm: "web".into(), to: to.into(), migration: Some(MigrationId(7)) };
    assert_eq!(asked(&cluster, "alpha", 20, to(20, "beta")).await, Ok(()));
    let (_, why) = asked(&cluster, "beta", 21, to(21, "alpha")).await.unwrap_err();
    assert!(why.message.contains("runs on 'alpha'"), "{why:?}");
    let audit: Page<AuditRecord> = get(&admin, "/api/v1/audit?limit=100").await;
    let of = |what: &str| {
        let found: Vec<(&str, u16)> =
            audit.items.iter().filter(|of| of.what == what).map(|of| (of.by.as_str(), of.status)).collect();
        found
    };
    assert_eq!(of("start web by hand on alpha"), [("host:alpha", 204)]);
    assert_eq!(of("start web by hand on beta"), [("host:beta", 409)]);
    assert_eq!(of("start new by hand on beta").len(), 11);
    assert_eq!(of("move web by hand from alpha to beta"), [("host:alpha", 204)]);
    assert_eq!(of("move web by hand from beta to alpha"), [("host:beta", 409)]);
}
