//! Limits a migration, changes the limit while it runs, and has two migrations share a NIC. Judged beside the runs.

use std::{
    thread,
    time::{Duration, Instant},
};

use skein_api::{MigrateOptions, Migration, MigrationPhase, Request, SourcePhase};
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;
use skein_units::measured;

use super::options::{ClusterOptions, in_thread};
use crate::{
    error::BenchError,
    figure::{Limit::AtMost, part},
    results::Part,
};

const SOURCE: &str = "a";
const TARGET: &str = "b";
/// The rate of the link, in Mb/s.
const LINK_MBIT: u32 = 1000;
/// What is asked for first, and in the middle, in bits per second.
const ASKED_BPS: [u64; 2] = [300_000_000, 600_000_000];
/// How long a limit has to hold from the moment on at which it is asked for, and for how long that is measured.
const HOLDS_AFTER: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(4);
/// The MiB that do not compress in the guest that is limited, and in each of the two.
const FILL_MB: [u32; 2] = [640, 320];
/// How far from its limit a migration may be, as a share of that, and how far two from each other.
const OFF_SHARE: f64 = 0.03;
const APART_SHARE: f64 = 0.1;
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What was seen in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Limited {
    /// What each limit came to, in bits per second.
    pub bps: [f64; 2],
    /// How fast each of two migrations was that shared the NIC, in bits per second.
    pub shared_bps: [f64; 2],
    /// How many of the guests found their memory intact.
    pub intact: usize,
}

/// Runs the rounds.
pub fn run(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Limited>, BenchError> {
    in_thread(tell, |tell| rounds(options, tell))
}

fn rounds(options: &ClusterOptions, tell: &dyn Fn(String)) -> Result<Vec<Limited>, BenchError> {
    let mut seen = Vec::new();
    for round in 1..=options.runs.unwrap_or(if options.quick { 1 } else { 3 }) {
        options.check_interrupt()?;
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
        let limited = Limited { bps, shared_bps, intact: vms.iter().filter(|vm| is_intact(vm)).count() };
        tell(format!(
            "round {round}: {} and {} as asked, {} and {} side by side; {} of 3 intact",
            measured::bps(limited.bps[0]),
            measured::bps(limited.bps[1]),
            measured::bps(limited.shared_bps[0]),
            measured::bps(limited.shared_bps[1]),
            limited.intact
        ));
        seen.push(limited);
    }
    Ok(seen)
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

fn wait_until(mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "a migration does not get on");
        thread::sleep(LOOK_EVERY);
    }
}

fn limited(cluster: &Cluster) -> [f64; 2] {
    let options = MigrateOptions { rate_bits_per_s: Some(ASKED_BPS[0]), ..MigrateOptions::default() };
    let id = cluster.begin("v1", SOURCE, TARGET, options).id;
    wait_until(|| is_copying(&cluster.migration(SOURCE, id)));
    let first = rate_bps(cluster);
    let limit = |rate_bits_per_s| {
        cluster.asked(SOURCE, &Request::MigrationLimit { id: id.to_string(), rate_bits_per_s });
    };
    limit(Some(ASKED_BPS[1]));
    let second = rate_bps(cluster);
    limit(None);
    wait_until(|| cluster.migration(SOURCE, id).outcome.is_some());
    [first, second]
}

fn shared(cluster: &Cluster) -> [f64; 2] {
    let ids = ["v2", "v3"].map(|vm| cluster.begin(vm, SOURCE, TARGET, MigrateOptions::default()).id);
    wait_until(|| ids.iter().all(|id| is_copying(&cluster.migration(SOURCE, *id))));
    let copied = || ids.map(|id| cluster.migration(SOURCE, id).copy.map_or(0, |copy| copy.transferred_bytes));
    thread::sleep(HOLDS_AFTER);
    let (before, since) = (copied(), Instant::now());
    thread::sleep(MEASURED / 2);
    let (after, seconds) = (copied(), since.elapsed().as_secs_f64());
    wait_until(|| ids.iter().all(|id| cluster.migration(SOURCE, *id).outcome.is_some()));
    [0, 1].map(|of| (after[of] - before[of]) as f64 * 8.0 / seconds)
}

/// Returns the figure's parts, by the worst round. Without rounds nothing was measured.
pub fn judge(rounds: &[Limited]) -> Vec<Part> {
    let worst = |of: &dyn Fn(&Limited) -> (f64, String)| {
        rounds.iter().map(of).max_by(|a, b| a.0.total_cmp(&b.0)).ok_or_else(|| "nothing was measured".to_owned())
    };
    let off = |nth: usize| {
        worst(&|round| {
            let off = (round.bps[nth] / ASKED_BPS[nth] as f64 - 1.0).abs();
            (off, format!("{} off ({})", measured::percent(off), measured::bps(round.bps[nth])))
        })
    };
    let apart = worst(&|round| {
        let [one, other] = round.shared_bps;
        let apart = 1.0 - one.min(other) / one.max(other);
        let words = format!("{} ({} and {})", measured::percent(apart), measured::bps(one), measured::bps(other));
        (if apart.is_finite() { apart } else { 1.0 }, words)
    });
    let lost = worst(&|round| ((3 - round.intact) as f64, format!("{} of 3", round.intact)));
    vec![
        part("300 Mb/s that are asked for come within 3 %, after 1 s".into(), AtMost(OFF_SHARE), off(0)),
        part("600 Mb/s that are asked for in the middle do, too".into(), AtMost(OFF_SHARE), off(1)),
        part("two migrations that share a NIC are within 10 % of each other".into(), AtMost(APART_SHARE), apart),
        part("every guest finds its memory intact".into(), AtMost(0.0), lost),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Limited = Limited { bps: [301e6, 598e6], shared_bps: [470e6, 490e6], intact: 3 };

    fn met(rounds: &[Limited]) -> Vec<Option<bool>> {
        judge(rounds).iter().map(|part| part.met).collect()
    }

    #[test]
    fn a_figure_is_judged_by_its_worst_round() {
        assert_eq!(met(&[GOOD]), [Some(true); 4]);
        let bad = Limited { bps: [289e6, 640e6], shared_bps: [400e6, 500e6], intact: 2 };
        assert_eq!(met(&[GOOD, bad]), [Some(false); 4]);
        assert_eq!(met(&[Limited { shared_bps: [0.0, 0.0], ..GOOD }])[2], Some(false));
        assert_eq!(met(&[]), [None; 4]);
    }
}
