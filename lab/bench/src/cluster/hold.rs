//! Holds a guest that writes for five minutes, and has it switch; beside that the same guest is moved without a hold.

use std::{
    thread,
    time::{Duration, Instant},
};

use skein_api::{HoldOptions, MigrateOptions, MigrationPhase, Outcome, Request, SourcePhase};
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;

use super::hold_figure::Held;
use super::options::{ClusterOptions, rounds};
use crate::error::BenchError;

const HOSTS: [&str; 2] = ["a", "b"];
const VM: &str = "hot";
/// The rate of each of the two links, in Mb/s.
const LINK_MBIT: u32 = 200;
/// What the guest writes, over and over: nothing of that compresses.
const REWRITE_MB: u32 = 20;
const PAGES_PER_S: u32 = 1500;
const PAGE_BYTES: f64 = 4096.0;
/// How often it is moved without a hold.
const PLAIN: usize = 3;
const HOLDS: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(20)];
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the rounds.
pub fn run(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Held>, BenchError> {
    // One round says enough of five minutes.
    let options = ClusterOptions { runs: options.runs.or(Some(1)), ..options.clone() };
    rounds(&options, tell, || {
        let settings = Settings { nics: 2, rates: vec![Some(LINK_MBIT)], ..options.settings() };
        let mut cluster = Cluster::up(settings);
        let params = Params {
            fill_mb: 150,
            compressible: 0,
            rewrite_mb: REWRITE_MB,
            rate: PAGES_PER_S,
            verify_rate: 50,
            ..Params::default()
        };
        let definition = cluster.working(VM, &params);
        cluster.start_vm(HOSTS[0], &definition);
        cluster.wait_working(VM);
        let mut plain_ms = Vec::new();
        for nth in 0..PLAIN {
            options.check_interrupt()?;
            let (from, to) = (HOSTS[nth % 2], HOSTS[(nth + 1) % 2]);
            plain_ms.push(cluster.moved(VM, from, to).downtime_ms.expect("it stood still"));
        }
        held(&cluster, &options, plain_ms)
    })
}

fn held(cluster: &Cluster, options: &ClusterOptions, plain_ms: Vec<u64>) -> Result<Held, BenchError> {
    let (from, to) = (HOSTS[PLAIN % 2], HOSTS[(PLAIN + 1) % 2]);
    let id = cluster.begin_held(VM, from, to, MigrateOptions::default(), HoldOptions::default()).id;
    let is_held = || cluster.migration(from, id).stage == Some(MigrationPhase::Source(SourcePhase::Held));
    cluster.wait(PATIENCE, "it is held", is_held);
    let sent =
        || -> u64 { cluster.lab().counters(from).expect("the host is there").values().map(|nic| nic.tx_bytes).sum() };
    let (before, begun) = (sent(), Instant::now());
    while begun.elapsed() < HOLDS[usize::from(options.quick)] {
        options.check_interrupt()?;
        assert!(is_held(), "{:?}", cluster.migration(from, id));
        thread::sleep(Duration::from_secs(1));
    }
    let held_s = begun.elapsed().as_secs_f64();
    let sent_bytes_per_s = (sent() - before) as f64 / held_s;
    cluster.asked(from, &Request::MigrationSwitch { id: id.to_string(), deadline_s: None });
    let migration = cluster.watched(from, id);
    assert_eq!(migration.outcome, Some(Outcome::Moved), "{migration:?}");
    Ok(Held {
        plain_ms,
        held_ms: migration.downtime_ms.expect("it stood still"),
        held_s,
        writes_bytes_per_s: f64::from(PAGES_PER_S) * PAGE_BYTES,
        sent_bytes_per_s,
        intact: cluster.verify(VM).is_good(),
    })
}
