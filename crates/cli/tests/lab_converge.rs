//! A guest that writes faster than the links carry: it is said so, with what would be enough; it is throttled if it may be, and only
//! while it moves. Needs root.
// Timeout: 600 s
// QEMU: 7.2 10

use std::time::Duration;

use skein_api::{LogEntry, MigrateOptions, Migration, Reply, Request};
use skein_handover::{MigrationId, Outcome, Why};
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;
use skein_machine::convergence::Convergence;

const VM: &str = "hot";
const DEADLINE: Duration = Duration::from_secs(60);
/// Mb/s of the two pairs of NICs: they carry 23 MB/s, and the guest writes 33, nothing of which compresses.
const RATE: u32 = 100;
const PAGES_PER_S: u32 = 8000;

fn notes(cluster: &Cluster, id: MigrationId) -> Vec<String> {
    let Reply::Migration(shown) = cluster.asked("a", &Request::MigrationShow { id: id.to_string() }) else { panic!() };
    let text = shown.events.into_iter().filter_map(|logged| match logged.event {
        LogEntry::Note { text } => Some(text),
        _ => None,
    });
    text.collect()
}

#[test]
fn a_guest_that_is_too_hot_is_throttled_or_stays() {
    let rates = vec![Some(RATE)];
    let mut cluster = Cluster::up(Settings { nics: 2, rates, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) });
    let params = Params { fill_mb: 48, compressible: 0, rewrite_mb: 40, rate: PAGES_PER_S, ..Params::default() };
    let definition = cluster.working(VM, &params);
    cluster.start_vm("a", &definition);
    cluster.wait_working(VM);

    let begin = |options| cluster.begin(VM, "a", "b", options).id;
    let lacks = |migration: &Migration| {
        assert_eq!(migration.outcome, Some(Outcome::Kept), "{migration:?}");
        let why = &migration.detail;
        assert!(why.starts_with("will not converge: dirties ") && why.contains(" NIC"), "{why}");
        let throttle = why.split("--allow-throttle ").nth(1).unwrap_or_else(|| panic!("{why}"));
        throttle.parse::<u8>().unwrap()
    };

    // At once, as nobody said until when to try.
    let id = begin(MigrateOptions::default());
    let never =
        || matches!(cluster.migration("a", id).copy.and_then(|copy| copy.converges), Some(Convergence::Never(_)));
    cluster.wait(DEADLINE, "it is said", never);
    let kept = cluster.watched("a", id);
    eprintln!("{:.1} s: {}", kept.elapsed_ms as f64 / 1e3, kept.detail);
    let throttle = lacks(&kept);
    assert_eq!(kept.why, Some(Why::MigrationFailed));
    assert!((20..=90).contains(&throttle), "{throttle}");
    assert!(cluster.where_runs(VM) == ["a"]);

    // When that is over.
    let kept = cluster.watched("a", begin(MigrateOptions { deadline_s: Some(20), ..MigrateOptions::default() }));
    assert_eq!(kept.why, Some(Why::Deadline));
    lacks(&kept);

    let id = begin(MigrateOptions { allow_throttle: Some(99), ..MigrateOptions::default() });
    let moved = cluster.watched("a", id);
    let notes = notes(&cluster, id);
    eprintln!("{} ms stopped, {:.1} s: {notes:#?}", moved.downtime_ms.unwrap_or(0), moved.elapsed_ms as f64 / 1e3);
    assert_eq!(moved.outcome, Some(Outcome::Moved), "{moved:?}");
    assert!(notes.iter().any(|note| note.starts_with("throttles the guest's CPUs to ")), "{notes:?}");
    assert!(notes.iter().any(|note| note.starts_with("the guest was throttled by up to ")), "{notes:?}");
    assert!(moved.detail.is_empty(), "{moved:?}");
    assert!(cluster.verify(VM).is_good());
    cluster.wait_clean(DEADLINE);
    cluster.check();
}
