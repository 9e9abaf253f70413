//! What controllers tell scrapers of metrics: the one that leads, and the one that does not.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use skein_controller::metrics::serve_metrics;
use skein_controller::signer::Signer;
use skein_metrics::{ScrapeAddress, ScrapeServer, controller, scraping};

use crate::drain::all_seen;
use crate::setup::{LONG, Method, TestCluster, TestController, over, send, until};

type Values = BTreeMap<String, f64>;

fn serve(of: &TestController) -> (ScrapeServer, SocketAddr) {
    let signer = Arc::new(Signer::new(None, Duration::from_secs(86_400)));
    // No other test listens at this address, so nobody takes the port once it is let go.
    let address = "127.77.0.3:0".parse().unwrap();
    let server = serve_metrics(&address, &of.driver, signer, of.identity.clone()).unwrap();
    let ScrapeAddress::Tcp(address) = server.address().clone() else { unreachable!() };
    (server, address)
}

/// Scrapes a controller. Every sample is one of a declared family.
fn scrape(address: SocketAddr) -> Values {
    let mut socket = TcpStream::connect_timeout(&address, LONG).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: c\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0;"),
        "{head}"
    );
    let samples = text.strip_suffix("# EOF\n").unwrap().lines().filter(|line| !line.starts_with("# "));
    let values: Values = samples
        .map(|line| line.rsplit_once(' ').expect(line))
        .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
        .collect();
    let families = || controller::FAMILIES.iter().chain(scraping::FAMILIES);
    let names: Vec<String> = families().flat_map(|family| family.sample_names()).collect();
    for series in values.keys() {
        let name = series.split('{').next().unwrap();
        assert!(names.iter().any(|declared| declared == name), "{name}");
    }
    values
}

async fn told(address: SocketAddr, what: &str, is: impl Fn(&Values) -> bool) -> Values {
    until(what, async || {
        let values = tokio::task::spawn_blocking(move || scrape(address)).await.unwrap();
        is(&values).then_some(values)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_controllers_tell_what_they_see() {
    let cluster = TestCluster::new();
    (0..3).for_each(|vm| cluster.world.add_vm("alpha", &format!("vm{vm}")));
    let first = cluster.start("c1").await;
    until("the first leads", async || first.driver.leads().then_some(())).await;
    let second = cluster.start("c2").await;
    until("the second follows", async || second.driver.leader().map(drop)).await;
    until("the first knows the second", async || (first.driver.members().len() == 2).then_some(())).await;
    let _agents = ["alpha", "beta"].map(|host| cluster.agent(host, &[&first, &second]));
    let client = cluster.client(&first, "operator");
    all_seen(&client, 2, 3).await;
    let ((leader, at_leader), (follower, at_follower)) = (serve(&first), serve(&second));

    let seen = |values: &Values, series: &str| values.get(series).copied();
    let values =
        told(at_leader, "the leader has looked", |of| of.contains_key("skein_cluster_rules_check_time_seconds"));
    let values = values.await;
    for (series, value) in [
        ("skein_controller_leads", 1.0),
        ("skein_controllers{state=\"there\"}", 2.0),
        ("skein_controller_agents", 2.0),
        ("skein_cluster_hosts{contact=\"online\"}", 2.0),
        ("skein_cluster_hosts{contact=\"lost\"}", 0.0),
        ("skein_cluster_vms{state=\"running\"}", 3.0),
        ("skein_cluster_vms_running_twice", 0.0),
        ("skein_cluster_migrations", 0.0),
        ("skein_cluster_rules_broken{weight=\"hard\"}", 0.0),
    ] {
        assert_eq!(seen(&values, series), Some(value), "{series}: {values:#?}");
    }
    assert!(values["skein_store_write_seconds_count"] > 0.0 && values["skein_store_revision"] > 0.0);
    // Events are told after what they tell of is seen.
    let host_events = "skein_controller_events_total{kind=\"host\"}";
    told(at_leader, "the hosts' events are counted", |of| of[host_events] >= 2.0).await;

    // An operation that ends is counted once, by what it did and how it ended; so are requests.
    let begun = send(&client, Method::POST, "/api/v1/hosts/alpha/drain", "").await;
    over(&client, &begun.json::<skein_api::cluster::Operation>().unwrap().id).await;
    let ended = "skein_cluster_operations_ended_total{operation=\"drain\",state=\"done\"}";
    let values = told(at_leader, "the drain is counted", |values| values.get(ended) == Some(&1.0)).await;
    assert_eq!(seen(&values, "skein_cluster_moves{state=\"waiting\"}"), Some(0.0));
    assert!(values["skein_controller_requests_total{status=\"2xx\"}"] >= 2.0, "{values:#?}");
    send(&client, Method::GET, "/nowhere", "").await;
    told(at_leader, "it is counted", |values| values["skein_controller_requests_total{status=\"4xx\"}"] >= 1.0).await;

    let values = told(at_follower, "the follower sees the hosts", |values| {
        values["skein_cluster_hosts{contact=\"online\"}"] == 2.0
    });
    let values = values.await;
    assert_eq!(seen(&values, "skein_controller_leads"), Some(0.0));
    assert_eq!(
        (seen(&values, "skein_controller_leader_known"), seen(&values, "skein_controller_term").unwrap() > 0.0),
        (Some(1.0), true)
    );
    assert_eq!(seen(&values, "skein_cluster_vms_running_twice"), None, "only the leader knows");

    first.stop().await;
    drop(leader);
    told(at_follower, "it leads", |values| values["skein_controller_leads"] == 1.0).await;
    drop(follower);
    assert!(TcpStream::connect_timeout(&at_follower, LONG).is_err());
    second.stop().await;
}
