//! Measures paths as `skein net probe` does, where a switch drops large packets, where two NICs share a cable, and
//! beside a migration.

use std::{
    thread,
    time::{Duration, Instant},
};

use skein_api::{FindingKind, MigrateOptions, Outcome, Probe, Reply, Request};
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;
use skein_units::measured;

use super::options::{ClusterOptions, rounds};
use super::probe_figure::{Cost, Lie, Shared};
use crate::error::BenchError;

const SOURCE: &str = "a";
const TARGET: &str = "b";
const VM: &str = "v";
/// The rate of each link where one lies, in Mb/s: packets of 1500 bytes are made one by one there.
const LIE_MBIT: u32 = 100;
/// The rate of the one cable that two NICs share, in Mb/s.
const CABLE_MBIT: u32 = 400;
/// The NICs of the case of cost, and the rate of each in Mb/s.
const COST_NICS: usize = 4;
const COST_MBIT: u32 = 200;
/// The MiB in a guest that do not compress.
const FILL_MB: u32 = 256;
/// In what time a probe says something.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a migration is asked about: its time is known by as much.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs the rounds of `mtu-lie`.
pub fn lie(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Lie>, BenchError> {
    rounds(options, tell, || {
        let mut cluster = cluster(options, 2, Some(LIE_MBIT));
        for host in [SOURCE, TARGET] {
            // A veth passes what TCP leaves to the NIC to cut, however large.
            let of_nic = |nic| format!("link set nic{nic} mtu 9000 gso_max_segs 1\n");
            in_host(&cluster, host, &[of_nic(0), of_nic(1)].concat());
        }
        let ports = "link set seg.0 mtu 1500\nlink set a-0 mtu 1500\nlink set b-0 mtu 1500";
        in_switch(&cluster, "ip", ports);
        boot(&mut cluster);
        let (probe, named_s) = probe(&cluster, "nic0: packets of 1500 bytes pass");
        let is_named = probe
            .verdict
            .findings
            .iter()
            .any(|found| found.kind == FindingKind::LargePacketsLost && found.nics.iter().any(|nic| nic == "nic0"));
        let lie_s = moved_s(&cluster, SOURCE, TARGET);
        in_switch(&cluster, "ip", "link set seg.0 mtu 9216\nlink set a-0 mtu 9216\nlink set b-0 mtu 9216");
        let honest_s = moved_s(&cluster, TARGET, SOURCE);
        Ok(Lie { named_s: named_s.filter(|_| is_named), lie_s, honest_s, is_intact: is_intact(&cluster) })
    })
}

/// Runs the rounds of `shared-bottleneck`.
pub fn shared(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Shared>, BenchError> {
    rounds(options, tell, || {
        let mut cluster = cluster(options, 2, None);
        let cable = "link add far type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
                         link set far up\n\
                         link add up0 type veth peer name up1\n\
                         link set up0 master seg.0 up\nlink set up1 master far up\n\
                         link set a-1 master seg.0\nlink set b-0 master far\nlink set b-1 master far\n";
        in_switch(&cluster, "ip", cable);
        let shaper = |end| format!("qdisc add dev {end} root tbf rate {CABLE_MBIT}mbit burst 131072 limit 524288\n");
        in_switch(&cluster, "tc", &[shaper("up0"), shaper("up1")].concat());
        boot(&mut cluster);
        let (probe, _) = probe(&cluster, "");
        let is_found = probe.verdict.findings.iter().any(|found| found.kind == FindingKind::SharedBottleneck);
        let both_s = moved_s(&cluster, SOURCE, TARGET);
        for host in [SOURCE, TARGET] {
            in_host(&cluster, host, "link set nic1 down");
        }
        let one_s = moved_s(&cluster, TARGET, SOURCE);
        Ok(Shared { is_found, both_s, one_s, is_intact: is_intact(&cluster) })
    })
}

/// Runs the rounds of `probe-cost`.
pub fn cost(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Cost>, BenchError> {
    rounds(options, tell, || {
        let mut cluster = cluster(options, COST_NICS, Some(COST_MBIT));
        boot(&mut cluster);
        let before = cluster.lab().counters(SOURCE).expect("the host is there");
        let (probed, _) = probe(&cluster, "");
        let after = cluster.lab().counters(SOURCE).expect("the host is there");
        let most = after.iter().map(|(nic, after)| after.tx_bytes - before[nic].tx_bytes).max().unwrap_or(0);
        let alone_s = moved_s(&cluster, SOURCE, TARGET);
        moved_s(&cluster, TARGET, SOURCE);
        let beside_s = thread::scope(|scope| {
            let moving = scope.spawn(|| moved_s(&cluster, SOURCE, TARGET));
            while !moving.is_finished() {
                probe(&cluster, "");
            }
            moving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        Ok(Cost {
            paths: probed.paths.len(),
            took_s: probed.took_ms as f64 / 1e3,
            of_minute: most as f64 * 8.0 / (60.0 * f64::from(COST_MBIT) * 1e6),
            alone_s,
            beside_s,
            is_intact: is_intact(&cluster),
        })
    })
}

/// Builds two hosts without agents.
fn cluster(options: &ClusterOptions, nics: usize, rate: Option<u32>) -> Cluster {
    Cluster::idle(Settings { nics, rates: vec![rate; nics], ..options.settings() })
}

fn in_host(cluster: &Cluster, host: &str, lines: &str) {
    cluster.lab().in_host(host, "ip", lines).expect("the host's NICs can be changed");
}

fn in_switch(cluster: &Cluster, tool: &'static str, lines: &str) {
    cluster.lab().in_switch(tool, lines).expect("the switch can be changed");
}

/// Starts the agents and the guest.
fn boot(cluster: &mut Cluster) {
    for host in [SOURCE, TARGET] {
        cluster.start(host);
    }
    let params = Params { fill_mb: FILL_MB, compressible: 0, beat_ms: 100, ..Params::default() };
    let definition = cluster.working(VM, &params);
    cluster.start_vm(SOURCE, &definition);
    cluster.wait_working(VM);
}

/// Measures from the source to the target. Returns what came of it, and after how many seconds something was said that
/// begins with these words.
fn probe(cluster: &Cluster, awaited: &str) -> (Probe, Option<f64>) {
    let begun = Instant::now();
    let mut conversation =
        cluster.client(SOURCE).ask(&Request::NetProbe { to: TARGET.into() }).expect("the agent answers");
    let mut named_s = None;
    loop {
        match conversation.next(PATIENCE).expect("the agent answers") {
            Some(Reply::ProbeStep { words }) if words.starts_with(awaited) => {
                named_s.get_or_insert(begun.elapsed().as_secs_f64());
            }
            Some(Reply::ProbeStep { .. }) => {}
            Some(Reply::Probe(probe)) => return (*probe, named_s),
            other => panic!("{other:?}"),
        }
    }
}

/// Moves the guest. Returns how long that took, in seconds.
fn moved_s(cluster: &Cluster, from: &str, to: &str) -> f64 {
    let begun = Instant::now();
    let id = cluster.begin(VM, from, to, MigrateOptions::default()).id;
    let end = loop {
        let migration = cluster.migration(from, id);
        if let Some(outcome) = migration.outcome {
            assert_eq!(outcome, Outcome::Moved, "{migration:?}");
            break begun.elapsed().as_secs_f64();
        }
        assert!(begun.elapsed() < PATIENCE, "{migration:?}");
        thread::sleep(LOOK_EVERY);
    };
    cluster.wait(PATIENCE, "the guest works where it was moved to", || cluster.where_runs(VM) == [to]);
    end
}

fn is_intact(cluster: &Cluster) -> bool {
    cluster.verify(VM).is_good()
}

impl std::fmt::Display for Lie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named =
            self.named_s.map_or("not named".into(), |seconds| format!("named after {}", measured::seconds(seconds)));
        let (lie, honest) = (measured::seconds(self.lie_s), measured::seconds(self.honest_s));
        write!(f, "{named}; moved in {lie}, and in {honest} when the switch passes them")
    }
}

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = if self.is_found { "found" } else { "not found" };
        let (both, one) = (measured::seconds(self.both_s), measured::seconds(self.one_s));
        write!(f, "{found}; moved in {both} over both NICs, in {one} over one")
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} paths in {}, {} of a minute; moved in {} alone, in {} beside probes",
            self.paths,
            measured::seconds(self.took_s),
            measured::percent(self.of_minute),
            measured::seconds(self.alone_s),
            measured::seconds(self.beside_s)
        )
    }
}
