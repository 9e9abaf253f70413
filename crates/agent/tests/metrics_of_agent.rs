//! Tests what an agent tells scrapers of metrics, over HTTP: a real agent on the loopback interface, no privileges. The
//! listener itself is tested in `skein-metrics`; what migrations are counted, in `hung_qemu` and `src/migrations`.

mod openmetrics;
mod world;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use skein_agent::{AcceptorSettings, Agent, AgentSettings, Allow, Dirs, ScrapeAddress, VmSettings};
use skein_api::{Reply, Request};
use skein_client::Client;
use skein_handover::MigrationLimits;
use skein_identity::{ClusterCa, Validity};

use self::openmetrics::{connect, scrape, until};
use self::world::{PATIENCE, loopback};

fn vms(dir: &Path) -> VmSettings {
    VmSettings {
        dirs: Dirs { state: dir.join("state"), run: dir.join("run") },
        controllers_file: dir.join("controllers.toml"),
        qemu: None,
        limits: MigrationLimits::default(),
        keeper_command: vec!["/nonexistent".into()],
        power_off: Vec::new(),
        update: Default::default(),
        watchdog: None,
    }
}

fn start(dir: &Path, vms: Option<VmSettings>) -> Agent {
    start_at(dir, vms, "127.0.0.1:0")
}

fn start_at(dir: &Path, vms: Option<VmSettings>, metrics: &str) -> Agent {
    let identity = ClusterCa::create("test").unwrap().issue("a", Validity::days(1)).unwrap();
    let acceptor = AcceptorSettings {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        addresses: loopback(),
        allow_plain_data: false,
        outage: Duration::from_secs(60),
    };
    let settings = AgentSettings {
        hosts_file: dir.join("hosts.toml"),
        metrics: Some(metrics.parse().unwrap()),
        vms,
        ..AgentSettings::tunnels(acceptor, Allow::new(&["/nowhere/*"]).unwrap())
    };
    Agent::start(settings, &identity).unwrap()
}

#[test]
fn an_agent_tells_openmetrics_of_its_host() {
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), Some(vms(dir.path())));
    let values = scrape(&agent);
    let value = |series: &str| *values.get(series).unwrap_or_else(|| panic!("{series} is not in {values:#?}"));
    assert_eq!(value("skein_vms{state=\"on\"}"), 0.0);
    assert_eq!(value("skein_migrations_in_doubt"), 0.0);
    assert!(value("skein_journal_free_slots") > 100.0 && value("skein_agent_start_time_seconds") > 1.7e9);
    assert!(value("skein_agent_cpu_seconds_total") > 0.0);
    assert!(!values.contains_key("skein_agent_leader_heard"), "the host has no controllers");
    std::fs::write(dir.path().join("controllers.toml"), "controllers = ['127.0.0.1:1']\n").unwrap();
    until(&agent, "controllers are seen", |values| values.get("skein_agent_leader_heard") == Some(&0.0));
    let Some(ScrapeAddress::Tcp(address)) = agent.metrics_address().cloned() else { panic!("it listens nowhere") };
    agent.stop();
    assert!(TcpStream::connect_timeout(&address, PATIENCE).is_err(), "it listens no more");
}

#[test]
fn an_agent_without_vms_tells_of_its_network_only() {
    let dir = tempfile::tempdir().unwrap();
    let agent = start(dir.path(), None);
    let values = scrape(&agent);
    assert!(values.contains_key("skein_agent_cpu_seconds_total"));
    assert!(!values.keys().any(|series| series.starts_with("skein_vms")));
}

#[test]
fn an_address_that_is_not_to_be_had_costs_the_metrics_only() {
    let dir = tempfile::tempdir().unwrap();
    // Of documentation (RFC 5737): no host has this address.
    let agent = start_at(dir.path(), None, "192.0.2.1:9100");
    assert!(agent.metrics_address().is_none());
    agent.stop();
}

#[test]
fn scrapers_of_all_kinds_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let settings = vms(dir.path());
    let client = Client::new(&settings.dirs.socket());
    let agent = start(dir.path(), Some(settings));
    let silent: Vec<TcpStream> = (0..50).map(|_| connect(&agent)).collect();
    for number in 0..50_usize {
        let mut socket = connect(&agent);
        let _ = socket.write_all(&vec![b'a' + (number % 20) as u8; number * 1000]);
        // Commands are answered meanwhile.
        let begun = Instant::now();
        assert_eq!(client.call(&Request::VmList, PATIENCE).unwrap(), Reply::Vms { vms: vec![] });
        assert!(begun.elapsed() < PATIENCE);
    }
    drop(silent);
    scrape(&agent);
}
