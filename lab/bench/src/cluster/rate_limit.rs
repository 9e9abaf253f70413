//! Limits a migration, changes the limit while it runs, and has two migrations share a NIC.

use std::{
    fmt, thread,
    time::{Duration, Instant},
};

use skein_api::{MigrateOptions, Migration, MigrationPhase, Request, SourcePhase};
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;
use skein_units::measured;

use super::options::{ClusterOptions, rounds};
use super::rate_limit_figure::{ASKED_BPS, Limited};
use crate::error::BenchError;

const SOURCE: &str = "a";
const TARGET: &str = "b";
/// The rate of the link, in Mb/s.
const LINK_MBIT: u32 = 1000;
/// How long a limit has to hold from the moment on at which it is asked for, and for how long that is measured.
const HOLDS_AFTER: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(4);
/// The MiB that do not compress in the guest that is limited, and in each of the two.
const FILL_MB: [u32; 2] = [640, 512];
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the rounds.
pub fn run(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Limited>, BenchError> {
    rounds(options, tell, || {
        let settings = Settings { rates: vec![Some(LINK_MBIT)], outgoing: 2, incoming: 2, ..options.settings() };
        let mut cluster = Cluster::up(settings);
        let vms = ["v1", "v2", "v3"];
        for (vm, fill_mb) in vms.into_iter().zip([FILL_MB[0], FILL_MB[1], FILL_MB[1]]) {
            let definition =
                cluster.working(vm, &Params { fill_mb, compressible: 0, beat_ms: 100, ..Params::default() });
            cluster.start_vm(SOURCE, &definition);
        }
        vms.iter().for_each(|vm| cluster.wait_working(vm));
        let bps = limited(&cluster);
        options.check_interrupt()?;
        let shared_bps = shared(&cluster);
        let is_intact = |vm: &&str| cluster.where_runs(vm) == [TARGET] && cluster.verify(vm).is_good();
        Ok(Limited { bps, shared_bps, intact: vms.iter().filter(|vm| is_intact(vm)).count() })
    })
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.bps.map(measured::bps);
        let [one, other] = self.shared_bps.map(measured::bps);
        write!(f, "{first} and {second} as asked, {one} and {other} side by side; {} of 3 intact", self.intact)
    }
}

/// Returns what the NIC has sent, in bytes.
fn sent(cluster: &Cluster) -> u64 {
    cluster.lab().counters(SOURCE).expect("the host is there")["nic0"].tx_bytes
}

/// Returns how fast the NIC sends from a moment on at which a limit has to hold.
fn rate_bps(cluster: &Cluster) -> f64 {
    thread::sleep(HOLDS_AFTER);
    let (before, since) = (sent(cluster), Instant::now());
    thread::sleep(MEASURED);
    (sent(cluster) - before) as f64 * 8.0 / since.elapsed().as_secs_f64()
}

fn is_copying(migration: &Migration) -> bool {
    assert!(migration.outcome.is_none(), "{migration:?}");
    matches!(migration.stage, Some(MigrationPhase::Source(phase)) if phase >= SourcePhase::Precopy)
}

fn limited(cluster: &Cluster) -> [f64; 2] {
    let options = MigrateOptions { rate_bits_per_s: Some(ASKED_BPS[0]), ..MigrateOptions::default() };
    let id = cluster.begin("v1", SOURCE, TARGET, options).id;
    cluster.wait(PATIENCE, "a migration gets on", || is_copying(&cluster.migration(SOURCE, id)));
    let first = rate_bps(cluster);
    let limit = |rate_bits_per_s| {
        cluster.asked(SOURCE, &Request::MigrationLimit { id: id.to_string(), rate_bits_per_s });
    };
    limit(Some(ASKED_BPS[1]));
    let second = rate_bps(cluster);
    limit(None);
    cluster.wait(PATIENCE, "a migration gets on", || cluster.migration(SOURCE, id).outcome.is_some());
    [first, second]
}

fn shared(cluster: &Cluster) -> [f64; 2] {
    let ids = ["v2", "v3"].map(|vm| cluster.begin(vm, SOURCE, TARGET, MigrateOptions::default()).id);
    cluster.wait(PATIENCE, "a migration gets on", || ids.iter().all(|id| is_copying(&cluster.migration(SOURCE, *id))));
    let copied = || ids.map(|id| cluster.migration(SOURCE, id).copy.map_or(0, |copy| copy.transferred_bytes));
    thread::sleep(HOLDS_AFTER);
    let (before, since) = (copied(), Instant::now());
    thread::sleep(MEASURED);
    let (after, seconds) = (copied(), since.elapsed().as_secs_f64());
    cluster.wait(PATIENCE, "a migration gets on", || {
        ids.iter().all(|id| cluster.migration(SOURCE, *id).outcome.is_some())
    });
    [0, 1].map(|of| (after[of] - before[of]) as f64 * 8.0 / seconds)
}
