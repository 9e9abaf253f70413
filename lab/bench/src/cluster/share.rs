//! Fills links with foreign TCP in both directions, gives migrations a share of the source's NICs, and moves four
//! guests.

use std::{
    fmt,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use skein_api::MigrateOptions;
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;
use skein_units::measured;

use super::options::{ClusterOptions, rounds};
use super::share_figure::{GUESTS, Shared};
use crate::error::BenchError;

const SOURCE: &str = "a";
const TARGET: &str = "b";
/// The NICs, and the rate of each link in Mb/s.
const NICS: usize = 2;
const LINK_MBIT: u32 = 500;
/// What leaves each NIC at most: a little less than its link carries, so that what waits waits in the host.
const NIC_RATE: &str = "480Mbit/s";
/// The share of migrations in per cent.
const SHARE: u8 = 90;
/// The MiB in each guest that do not compress.
const FILL_MB: u32 = 320;
/// The foreign connections on each NIC: in the direction of the migrations, and against it.
const FOREIGN: u32 = 8;
const AGAINST: u32 = 2;
/// When the share has to be there, from the moment on at which the first data of migrations come.
const HOLDS_AFTER: Duration = Duration::from_secs(1);
/// For how long the direction against the migrations is measured before.
const UNDISTURBED: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(250);
const PORT: u16 = 5301;
const PATIENCE: Duration = Duration::from_secs(180);

/// Runs the rounds.
pub fn run(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Shared>, BenchError> {
    rounds(options, tell, || {
        let many = u16::try_from(GUESTS).unwrap_or(u16::MAX);
        let settings = Settings {
            nics: NICS,
            rates: vec![Some(LINK_MBIT); NICS],
            outgoing: many,
            incoming: many,
            ..options.settings()
        };
        let mut cluster = Cluster::up(settings);
        let vms: Vec<String> = (1..=GUESTS).map(|nth| format!("v{nth}")).collect();
        for vm in &vms {
            let params = Params { fill_mb: FILL_MB, compressible: 0, beat_ms: 100, ..Params::default() };
            let definition = cluster.working(vm, &params);
            cluster.start_vm(SOURCE, &definition);
        }
        vms.iter().for_each(|vm| cluster.wait_working(vm));
        Ok(shared(&cluster, options, &vms))
    })
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = [self.share, self.filled, self.against, self.foreign_alone];
        let [share, filled, against, alone] = shares.map(measured::percent);
        write!(
            f,
            "{share} for migrations, both fill {filled}; against them {against} of before; alone others have {alone}; \
             {} of {GUESTS} intact",
            self.intact
        )
    }
}

/// Programs that end with this.
struct Foreign(Vec<Child>);

impl Foreign {
    /// Starts connections on each NIC from one host to the other, which send until this ends.
    fn start(cluster: &Cluster, from: &str, to: &str, connections: u32, port: u16) -> Foreign {
        let mut children = Foreign(Vec::new());
        for nic in 0..NICS {
            let ip = |host: &str| cluster.lab().ip(host, nic).expect("the NIC has an address").to_string();
            let port = (port + nic as u16).to_string();
            let mut start = |host: &str, words: &[&str]| {
                let mut command = cluster.lab().command(host, "iperf3").expect("the host is there");
                command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                children.0.push(command.spawn().expect("iperf3 can be run"));
            };
            start(to, &["-s", "-p", &port]);
            // The server has to listen before its client dials.
            thread::sleep(Duration::from_millis(500));
            let many = connections.to_string();
            start(from, &["-c", &ip(to), "-B", &ip(from), "-p", &port, "-P", &many, "-t", "600"]);
        }
        children
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the source's NICs have sent, in bytes: of migrations, of others.
fn sent(cluster: &Cluster, options: &ClusterOptions) -> [u64; 2] {
    let shown = qos(cluster, options, &["show", "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let sum = |of: &str| shown.as_array().into_iter().flatten().filter_map(|nic| nic[of].as_u64()).sum();
    [sum("migrations_bytes"), sum("others_bytes")]
}

fn qos(cluster: &Cluster, options: &ClusterOptions, words: &[&str]) -> String {
    let mut command = cluster.lab().command(SOURCE, &options.skein).expect("the host is there");
    let said = command.args(["net", "qos"]).args(words).output().expect("skein can be run");
    assert!(said.status.success(), "skein net qos {words:?}: {said:?}");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Returns what the source's NICs have received, in bytes.
fn received(cluster: &Cluster) -> u64 {
    cluster.lab().counters(SOURCE).expect("the host is there").values().map(|nic| nic.rx_bytes).sum()
}

fn shared(cluster: &Cluster, options: &ClusterOptions, vms: &[String]) -> Shared {
    qos(cluster, options, &["apply", "--share", &SHARE.to_string(), "--rate", NIC_RATE, "nic0", "nic1"]);
    let foreign = Foreign::start(cluster, SOURCE, TARGET, FOREIGN, PORT);
    let against = Foreign::start(cluster, TARGET, SOURCE, AGAINST, PORT + NICS as u16);
    thread::sleep(UNDISTURBED);
    let (before, since) = (received(cluster), Instant::now());
    thread::sleep(UNDISTURBED);
    let undisturbed_bps = (received(cluster) - before) as f64 / since.elapsed().as_secs_f64();

    let quiet = sent(cluster, options)[0];
    // At once: what is checked before each takes its time beside all that traffic.
    let ids: Vec<_> = thread::scope(|scope| {
        let begin = |vm| scope.spawn(move || cluster.begin(vm, SOURCE, TARGET, MigrateOptions::default()).id);
        let begun: Vec<_> = vms.iter().map(String::as_str).map(begin).collect();
        begun.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let deadline = Instant::now() + PATIENCE;
    // What agents say to each other before is little.
    while sent(cluster, options)[0] < quiet + (4 << 20) {
        assert!(Instant::now() < deadline, "migrations do not begin to send");
        thread::sleep(LOOK_EVERY);
    }
    thread::sleep(HOLDS_AFTER);
    let (begun, came, since) = (sent(cluster, options), received(cluster), Instant::now());
    let (mut last, mut last_came, mut seconds) = (begun, came, 0.0);
    while ids.iter().all(|id| cluster.migration(SOURCE, *id).outcome.is_none()) {
        assert!(Instant::now() < deadline, "migrations do not end");
        (last, last_came, seconds) = (sent(cluster, options), received(cluster), since.elapsed().as_secs_f64());
        thread::sleep(LOOK_EVERY);
    }
    while !ids.iter().all(|id| cluster.migration(SOURCE, *id).outcome.is_some()) {
        assert!(Instant::now() < deadline, "migrations do not end");
        thread::sleep(LOOK_EVERY);
    }
    thread::sleep(HOLDS_AFTER);
    let (idle, alone_since) = (sent(cluster, options)[1], Instant::now());
    thread::sleep(UNDISTURBED);
    let alone = (sent(cluster, options)[1] - idle) as f64 * 8.0 / alone_since.elapsed().as_secs_f64();
    drop((foreign, against));

    let [own, others] = [0, 1].map(|of| (last[of] - begun[of]) as f64);
    let nics_bps = 480e6 * NICS as f64;
    let is_intact = |vm: &&String| cluster.where_runs(vm) == [TARGET] && cluster.verify(vm).is_good();
    Shared {
        share: own / (own + others),
        filled: (own + others) * 8.0 / seconds / nics_bps,
        against: (last_came - came) as f64 / seconds / undisturbed_bps,
        foreign_alone: alone / nics_bps,
        intact: vms.iter().filter(|vm| is_intact(vm)).count(),
    }
}
