//! Several controllers on one store: one leads, the others answer, and one of them goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use http_body_util::BodyExt;
use skein_api::cluster::{MoveState, Operation as ClusterOperation, OperationState};
use skein_controller::client::Client;
use skein_store::election::leader_key;
use skein_store::{
    Lease, LeaseId, Operation, Outcome, Prefix, Range, Revision, Snapshot, Store, StoreError, Transaction, Watch,
    WatchBatch, WatchError,
};
use tokio::time::timeout;

use crate::drain::all_seen;
use crate::setup::{LONG, Method, TestCluster, TestController, get, over, send, until};

async fn two(cluster: &TestCluster) -> (TestController, TestController) {
    let first = cluster.start("c1").await;
    until("the first leads", async || first.driver.leads().then_some(())).await;
    let second = cluster.start("c2").await;
    until("the second follows", async || second.driver.leader().map(drop)).await;
    (first, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_goes_on_when_the_leader_stops() {
    let cluster = TestCluster::new();
    let vms: Vec<String> = (0..12).map(|vm| format!("vm{vm:02}")).collect();
    vms.iter().for_each(|vm| cluster.world.add_vm("alpha", vm));
    let (first, second) = two(&cluster).await;
    let agents = ["alpha", "beta", "gamma"].map(|host| cluster.agent(host, &[&first, &second]));
    let (at_first, at_second) = (cluster.client(&first, "operator"), cluster.client(&second, "operator"));
    all_seen(&at_first, 3, 12).await;
    // Any controller answers reads.
    all_seen(&at_second, 3, 12).await;

    // Whoever asks a follower is led to the leader.
    let led = send(&at_second, Method::POST, "/api/v1/hosts/alpha/drain", "").await;
    assert_eq!(led.status, 307);
    assert_eq!(led.headers["location"], format!("https://{}/api/v1/hosts/alpha/drain", first.address));

    let begun = send(&at_first, Method::POST, "/api/v1/hosts/alpha/drain", "").await;
    let id = begun.json::<ClusterOperation>().unwrap().id;
    until("some are moved", async || {
        let drain: ClusterOperation = get(&at_first, &format!("/api/v1/operations/{id}")).await;
        (drain.progress.moves_done >= 2).then_some(())
    })
    .await;
    let stopped = std::time::Instant::now();
    first.stop().await;
    until("the second leads", async || second.driver.leads().then_some(())).await;
    assert!(stopped.elapsed() < LONG / 2, "a leader that resigns is followed at once");
    let drain = over(&at_second, &id).await;
    assert_eq!(drain.state, OperationState::Done, "{drain:?}");
    let done: BTreeSet<&str> =
        drain.moves.iter().filter(|of| of.state == MoveState::Done).map(|of| of.vm.as_str()).collect();
    assert_eq!(done.len(), 12);
    assert_eq!(cluster.world.migrations(), 12, "nothing is moved twice");
    assert!(cluster.world.running("alpha").is_empty());
    drop(agents);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_key_is_taken_away_leads_no_more() {
    let cluster = TestCluster::new();
    let (first, second) = two(&cluster).await;
    let term = first.driver.leader().unwrap().term;
    let taken = Transaction::new().then(Operation::Delete(leader_key()));
    cluster.store.commit(&taken, LONG).unwrap();
    until("one leads, in a later term", async || {
        let leads = [&first, &second].into_iter().filter(|of| of.driver.leads()).count();
        let is_later = |of: &TestController| of.driver.leader().is_some_and(|leader| leader.term > term);
        (leads == 1 && is_later(&first) && is_later(&second)).then_some(())
    })
    .await;
    first.stop().await;
    second.stop().await;
}

/// A store whose watches say nothing, as that of a member of etcd that has died without a word.
struct Deaf(Arc<dyn Store>);

struct Silence;

impl Watch for Silence {
    fn next(&mut self, wait: Duration) -> Result<Option<WatchBatch>, WatchError> {
        std::thread::sleep(wait);
        Ok(None)
    }
}

impl Store for Deaf {
    fn read(&self, range: &Range, within: Duration) -> Result<Snapshot, StoreError> {
        self.0.read(range, within)
    }

    fn commit(&self, transaction: &Transaction, within: Duration) -> Result<Outcome, StoreError> {
        self.0.commit(transaction, within)
    }

    fn watch(&self, _: &Prefix, _: Revision, _: Duration) -> Result<Box<dyn Watch>, WatchError> {
        Ok(Box::new(Silence))
    }

    fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        self.0.grant(ttl, within)
    }

    fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<Duration, StoreError> {
        self.0.keep_alive(lease, within)
    }

    fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        self.0.revoke(lease, within)
    }

    fn compact(&self, through: Revision, within: Duration) -> Result<(), StoreError> {
        self.0.compact(through, within)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_leads_though_its_watch_does_not_tell_that_the_leader_is_gone() {
    let mut cluster = TestCluster::new();
    let first = cluster.start("c1").await;
    until("the first leads", async || first.driver.leads().then_some(())).await;
    cluster.store = Arc::new(Deaf(cluster.store.clone()));
    let second = cluster.start("c2").await;
    until("the second follows", async || second.driver.leader().map(drop)).await;
    first.stop().await;
    until("the second leads", async || second.driver.leads().then_some(())).await;
    second.stop().await;
}

/// A subscriber to events.
struct Events {
    body: http_body_util::BodyDataStream<hyper::body::Incoming>,
    text: String,
}

impl Events {
    async fn open(client: &Client, last: &str) -> Events {
        let headers: &[(&str, &str)] = if last.is_empty() { &[] } else { &[("last-event-id", last)] };
        let response = client.open(Method::GET, "/api/v1/events", headers, None).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body().into_data_stream(), text: String::new() }
    }

    /// Returns the next event: id, name, data. Comments are passed over.
    async fn next(&mut self) -> (String, String, String) {
        loop {
            while !self.text.contains("\n\n") {
                let more = timeout(LONG, self.body.next()).await.expect("an event comes").expect("there are more");
                self.text += std::str::from_utf8(&more.unwrap()).unwrap();
            }
            let (event, rest) = self.text.split_once("\n\n").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
            self.text = rest;
            let field = |name: &str| {
                let line = event.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
                line.unwrap_or_default().to_owned()
            };
            if !field("data").is_empty() {
                return (field("id"), field("event"), field("data"));
            }
        }
    }

    async fn until(&mut self, what: impl Fn(&str, &str) -> bool) -> String {
        loop {
            let (id, name, data) = self.next().await;
            if what(&name, &data) {
                return id;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_go_on_where_they_were_also_at_another_controller() {
    let cluster = TestCluster::new();
    let (first, second) = two(&cluster).await;
    let (at_first, at_second) = (cluster.client(&first, "viewer"), cluster.client(&second, "viewer"));
    let mut early = Events::open(&at_first, "").await;
    let is_host = |host: &str| {
        let words = format!("\"name\":\"{host}\"");
        move |name: &str, data: &str| name == "host" && data.contains(&words)
    };
    let alpha = cluster.agent("alpha", &[&first, &second]);
    let last = early.until(is_host("alpha")).await;
    drop(early);
    let beta = cluster.agent("beta", &[&first, &second]);
    all_seen(&at_first, 2, 0).await;
    for client in [&at_first, &at_second] {
        let mut again = Events::open(client, &last).await;
        again.until(is_host("beta")).await;
        let mut never = Events::open(client, "1.1").await;
        assert_eq!(never.next().await.1, "reset");
    }
    // A stop ends the streams, and does not wait for them.
    let open = Events::open(&at_first, "").await;
    timeout(LONG, first.stop()).await.unwrap();
    drop((open, alpha, beta));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_silent_is_lost() {
    let cluster = TestCluster::new();
    cluster.world.add_vm("alpha", "web");
    let controller = cluster.start("c1").await;
    let client = cluster.client(&controller, "viewer");
    let agent = cluster.agent("alpha", &[&controller]);
    all_seen(&client, 1, 1).await;
    let admin = cluster.client(&controller, "admin");
    let set = send(&admin, Method::PUT, "/api/v1/settings", r#"{"host_lease_s":3}"#).await;
    assert_eq!(set.status, 204, "{}", String::from_utf8_lossy(&set.body));
    drop(agent);
    let status = until("the host is lost", async || {
        let status: skein_api::cluster::ClusterStatus = get(&client, "/api/v1/cluster").await;
        (status.hosts.lost == 1).then_some(status)
    })
    .await;
    assert_eq!(status.vms.lost, 1);
    assert!(status.attention[0].contains("'alpha' does not report"), "{:?}", status.attention);
    let _agent = cluster.agent("alpha", &[&controller]);
    all_seen(&client, 1, 1).await;
    controller.stop().await;
}
