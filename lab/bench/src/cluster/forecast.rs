//! Moves guests there and back, up to four at once, and compares what was said of the time left with what it took. Each
//! has a part of the links to itself: what is compared is the forecast of its own copy. One of the guests writes, the
//! memory of one compresses, and what one may send goes up and down by a fifth.

use std::{
    thread,
    time::{Duration, Instant},
};

use skein_api::{MigrateOptions, Migration, MigrationId, Outcome, Reply, Request};
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;

use super::forecast_figure::{AT_SHARE, Said};
use super::options::{ClusterOptions, in_thread};
use crate::error::BenchError;

const HOSTS: [&str; 2] = ["a", "b"];
/// The rate of each of two links, in Mb/s, which is more than all migrations together may send.
const LINK_MBIT: u32 = 300;
/// What a migration may send, in bits per second …
const RATE_BITS_PER_S: u64 = 60_000_000;
/// … and what one may whose link changes, each for so long.
const RATES_BITS_PER_S: [u64; 5] = [48_000_000, 54_000_000, 60_000_000, 66_000_000, 72_000_000];
const RATE_LASTS: Duration = Duration::from_secs(3);
/// How many migrations are judged.
const JUDGED: [usize; 2] = [100, 8];
/// Shorter ones are not: their forecast is of no use to anybody.
const LEAST_TIME: Duration = Duration::from_secs(20);
/// A migration that takes longer does not end.
const PATIENCE: Duration = Duration::from_secs(300);
const PERIOD: Duration = Duration::from_millis(100);

/// A guest with what it does, and where it goes.
struct Guest {
    name: &'static str,
    params: Params,
    /// Whether what its migrations may send goes up and down.
    changes: bool,
    at: usize,
    under_way: Option<Trip>,
}

/// A migration that is under way.
struct Trip {
    id: MigrationId,
    begun: Instant,
    /// When what it may send changes next.
    changes_at: Option<Instant>,
}

fn guests() -> [Guest; 4] {
    let params = |fill_mb, compressible, rewrite_mb, rate| Params {
        fill_mb,
        compressible,
        rewrite_mb,
        rate,
        verify_rate: 50,
        beat_ms: 100,
        ..Params::default()
    };
    let guest = |name, params| Guest { name, params, changes: false, at: 0, under_way: None };
    [
        guest("cold", params(150, 0, 0, 0)),
        guest("packs", params(240, 50, 0, 0)),
        guest("hot", params(130, 0, 20, 400)),
        Guest { changes: true, ..guest("changes", params(150, 10, 0, 0)) },
    ]
}

/// Draws numbers, the same in each run: a linear congruential generator (Knuth, MMIX).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Runs the case.
pub fn run(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Said>, BenchError> {
    let wanted = options.runs.map_or(JUDGED[usize::from(options.quick)], |runs| runs as usize);
    in_thread(tell, |tell| {
        let settings = Settings { nics: 2, rates: vec![Some(LINK_MBIT)], ..options.settings() };
        let mut cluster = Cluster::up(settings);
        let mut guests = guests();
        for Guest { name, params, .. } in &guests {
            let definition = cluster.working(name, params);
            cluster.start_vm(HOSTS[0], &definition);
        }
        guests.iter().for_each(|guest| cluster.wait_working(guest.name));
        let (mut said, mut dice) = (Vec::new(), Dice(1));
        while said.len() < wanted {
            options.check_interrupt()?;
            for guest in &mut guests {
                let Some(migration) = step(&cluster, guest, &mut dice) else { continue };
                assert_eq!(migration.outcome, Some(Outcome::Moved), "{migration:?}");
                let from = HOSTS[guest.at];
                guest.at = 1 - guest.at;
                let Some(of) = judged(&cluster, from, &migration) else { continue };
                tell(format!("{} of {wanted}, {}: {of}", said.len() + 1, guest.name));
                said.push(of);
            }
            thread::sleep(PERIOD);
        }
        Ok(said)
    })
}

/// Begins the guest's next migration, or goes on with the one that is under way. Returns one that is over.
fn step(cluster: &Cluster, guest: &mut Guest, dice: &mut Dice) -> Option<Migration> {
    let (from, to) = (HOSTS[guest.at], HOSTS[1 - guest.at]);
    let Some(trip) = &mut guest.under_way else {
        // Others are at other points of their way when this one begins.
        if dice.below(20) == 0 {
            let rate_bits_per_s = Some(RATE_BITS_PER_S);
            let id =
                cluster.begin(guest.name, from, to, MigrateOptions { rate_bits_per_s, ..MigrateOptions::default() }).id;
            let begun = Instant::now();
            guest.under_way = Some(Trip { id, begun, changes_at: guest.changes.then_some(begun + RATE_LASTS) });
        }
        return None;
    };
    assert!(trip.begun.elapsed() < PATIENCE, "{} does not get on: {}", guest.name, cluster.report());
    let id = trip.id;
    if let Some(at) = trip.changes_at.as_mut().filter(|at| **at <= Instant::now()) {
        *at += RATE_LASTS;
        let rate_bits_per_s = Some(RATES_BITS_PER_S[dice.below(5) as usize]);
        // It may just be over.
        let _ = cluster.ask(from, &Request::MigrationLimit { id: id.to_string(), rate_bits_per_s });
    }
    let migration = cluster.migration(from, id);
    migration.outcome?;
    guest.under_way = None;
    Some(migration)
}

/// Returns what was said of a migration when a part of its time was over. `None`: it was too short.
fn judged(cluster: &Cluster, from: &str, migration: &Migration) -> Option<Said> {
    if Duration::from_millis(migration.elapsed_ms) < LEAST_TIME {
        return None;
    }
    let Reply::MigrationRecord(record) =
        cluster.asked(from, &Request::MigrationRecord { id: migration.id.to_string() })
    else {
        panic!("no record of {migration:?}");
    };
    let begun: jiff::Timestamp = migration.begun.parse().expect("a time");
    let begun_ms = begun.as_millisecond() as u64;
    let looked_ms = begun_ms + (migration.elapsed_ms as f64 * AT_SHARE) as u64;
    let sample = record.samples.iter().find(|sample| sample.at >= looked_ms).expect("there is a sample of that time");
    let forecast = sample.forecast.as_ref().map(|of| [of.left_low_ms, of.left_ms, of.left_high_ms]);
    Some(Said { forecast, took: (begun_ms + migration.elapsed_ms).saturating_sub(sample.at) })
}
