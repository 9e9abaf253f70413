//! Tests an agent that ends at the moment at which its QEMU opens the connections of a migration: the guest runs on,
//! and can be moved a second later. Needs root.
//!
//! `SKEIN_OPENINGS=N` tries N times.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.8

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use skein_api::{MigrateOptions, MigrationPhase, SourcePhase};
use skein_lab_cluster::{Cluster, Settings, until};

const VM: &str = "v";
const TRIES: u32 = 24;
const SOON: Duration = Duration::from_secs(60);
/// The time after which QEMU has its connections, or has failed, once it was told to migrate.
const OPENING: Duration = Duration::from_millis(6);

#[test]
fn an_agent_that_ends_as_channels_open_leaves_a_guest_that_can_be_moved() {
    let tries = std::env::var("SKEIN_OPENINGS").map_or(TRIES, |text| text.parse().expect("a number"));
    let program = env!("CARGO_BIN_EXE_skein").into();
    let mut cluster = Cluster::up(Settings { nics: 2, ..Settings::new(program) });
    cluster.start_vm("a", &cluster.bare(VM));
    let mut at = ["a", "b"];
    let mut moved_at_once = 0;
    for number in 0..tries {
        let [source, target] = at;
        let id = cluster.begin(VM, source, target, MigrateOptions::default()).id;
        let is_told = || {
            let now = cluster.migration(source, id);
            now.outcome.is_some()
                || matches!(now.stage, Some(MigrationPhase::Source(phase)) if phase >= SourcePhase::Precopy)
        };
        let end = Instant::now() + SOON;
        while !is_told() {
            assert!(Instant::now() < end, "QEMU is told to migrate");
        }
        // Every moment of the opening is tried, in an order that does not matter.
        thread::sleep(OPENING * (number * 7 % tries) / tries);
        match number % 3 {
            0 => cluster.kill(source),
            1 => cluster.stop(source),
            _ => {
                cluster.signal(source, Signal::SIGTERM);
                cluster.kill(target);
                cluster.kill(source);
                cluster.start(target);
            }
        }
        cluster.start(source);
        cluster.wait_clean(SOON);
        if cluster.where_runs(VM) == [target] {
            moved_at_once += 1;
        } else {
            assert!(until(SOON, || cluster.where_runs(VM) == [source]), "try {number}: {:?}", cluster.where_runs(VM));
            cluster.moved(VM, source, target);
        }
        cluster.wait_clean(SOON);
        cluster.check();
        at.reverse();
    }
    println!("{tries} tries; moved before its agent ended: {moved_at_once}");
}
