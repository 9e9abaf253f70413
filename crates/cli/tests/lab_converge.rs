//! Tests a guest that writes faster than the links carry. It is reported with what would be enough. The guest is
//! throttled only if that is allowed, and only while it moves. Needs root.
// Timeout: 600 s
// QEMU: 7.2 10
// Cores: 0.7

use std::time::Duration;

use skein_api::{
    Convergence, FailureReason, HoldOptions, LogEntry, MigrateOptions, Migration, MigrationId, MigrationPhase, Outcome,
    Reply, Request, SourcePhase,
};
use skein_lab_cluster::{Cluster, Settings};
use skein_lab_guest::Params;
use skein_lab_hosts::Cut;

const VM: &str = "hot";
const DEADLINE: Duration = Duration::from_secs(60);
/// The rate of each of the two pairs of NICs, in Mb/s. They carry 9 MB/s, and the guest writes 16, nothing of which
/// compresses. Both take less than half a core, so they are the same on a busy machine as on an idle one.
const RATE: u32 = 40;
const PAGES_PER_S: u32 = 4000;

fn notes(cluster: &Cluster, id: MigrationId) -> Vec<String> {
    let Reply::Migration(shown) = cluster.asked("a", &Request::MigrationShow { id: id.to_string() }) else { panic!() };
    let text = shown.events.into_iter().filter_map(|logged| match logged.event {
        LogEntry::Note { text } => Some(text),
        _ => None,
    });
    text.collect()
}

/// Starts two hosts, with the guest on one of them.
fn up(rate: u32) -> Cluster {
    let rates = vec![Some(rate)];
    let mut cluster = Cluster::up(Settings { nics: 2, rates, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) });
    let params = Params { fill_mb: 24, compressible: 0, rewrite_mb: 20, rate: PAGES_PER_S, ..Params::default() };
    let definition = cluster.working(VM, &params);
    cluster.start_vm("a", &definition);
    cluster.wait_working(VM);
    cluster
}

#[test]
fn a_throttled_guest_does_not_wait_for_the_network() {
    // With less, the guest is not through before the links are cut, on a busy machine, too.
    let cluster = up(RATE * 2 / 3);
    let options = MigrateOptions { allow_throttle: Some(80), deadline_s: Some(300), ..MigrateOptions::default() };
    cluster.talk(VM, |guest| guest.reset_gap());
    let id = cluster.begin(VM, "a", "b", options).id;
    let throttled = || cluster.migration("a", id).copy.is_some_and(|copy| copy.throttle_percent > 0);
    cluster.wait(DEADLINE, "it is throttled", throttled);
    for nic in 0..2 {
        cluster.lab().cut("b", nic, Cut::BlackHole).unwrap();
    }
    let kept = || cluster.migration("a", id).outcome == Some(Outcome::CalledOff);
    cluster.wait(Duration::from_secs(20), "it is called off", kept);
    let detail = cluster.migration("a", id).detail;
    assert!(detail.starts_with("nothing got through to b for 3 s"), "{detail}");
    // The guest stands still for at most a part of that time, whatever this QEMU does.
    let beats = || cluster.beats_on(VM, "a", Duration::from_secs(1));
    cluster.wait(Duration::from_secs(10), "it runs", beats);
    let beat = cluster.talk(VM, |guest| guest.status()).beat;
    eprintln!("longest gap {} ms", beat.longest_us / 1000);
    assert!(beat.longest_us < 8_000_000, "{beat:?}");
    for nic in 0..2 {
        cluster.lab().heal("b", nic).unwrap();
    }
    cluster.wait_clean(DEADLINE);
    assert!(notes(&cluster, id).iter().any(|note| note.starts_with("the guest was throttled by up to ")));
    assert!(cluster.verify(VM).is_good());
    cluster.check();
}

/// Returns a guest that fits into its downtime limit, held at a, with this hold.
fn held(cluster: &Cluster, hold: HoldOptions) -> MigrationId {
    let options = MigrateOptions { downtime_limit_ms: Some(1500), ..MigrateOptions::default() };
    let id = cluster.begin_held(VM, "a", "b", options, hold).id;
    wait_held(cluster, id);
    id
}

fn wait_held(cluster: &Cluster, id: MigrationId) {
    let is_held = || {
        let now = cluster.migration("a", id);
        assert_eq!(now.outcome, None, "{now:?}");
        now.stage == Some(MigrationPhase::Source(SourcePhase::Held))
    };
    cluster.wait(DEADLINE, "it is held", is_held);
}

/// Has a migration of the guest begin again with other options, as it copies. Returns the migration that follows.
fn restarted(
    cluster: &Cluster,
    first: MigrationId,
    hold: Option<HoldOptions>,
    allow_throttle: Option<u8>,
) -> MigrationId {
    let copies = || cluster.migration("a", first).copy.is_some_and(|copy| copy.transferred_bytes > 0);
    cluster.wait(DEADLINE, "it copies", copies);
    cluster.asked("a", &Request::MigrationRestart { id: first.to_string(), hold, allow_throttle });
    let newest = || match cluster.asked("a", &Request::MigrationShow { id: VM.to_owned() }) {
        Reply::Migration(migration) => migration.id,
        reply => panic!("{reply:?}"),
    };
    cluster.wait(DEADLINE, "another attempt", || newest() != first);
    let before = cluster.migration("a", first);
    assert_eq!((before.outcome, before.why), (Some(Outcome::CalledOff), Some(FailureReason::Cancelled)), "{before:?}");
    assert!(notes(cluster, first).iter().any(|note| note.starts_with("somebody has it begin again: its guest ")));
    newest()
}

#[test]
fn a_guest_is_held_and_kept_fresh_until_it_is_to_switch() {
    let rates = vec![Some(4 * RATE)];
    let mut cluster = Cluster::up(Settings { nics: 2, rates, ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) });
    // The guest writes 2 MB/s to 4 MB.
    let params = Params { fill_mb: 24, compressible: 0, rewrite_mb: 4, rate: 500, ..Params::default() };
    let definition = cluster.working(VM, &params);
    cluster.start_vm("a", &definition);
    cluster.wait_working(VM);

    // Somebody decides so while it is copied, slowly.
    let slow =
        MigrateOptions { downtime_limit_ms: Some(1500), rate_bits_per_s: Some(8_000_000), ..MigrateOptions::default() };
    let first = cluster.begin(VM, "a", "b", slow).id;
    let id = restarted(&cluster, first, Some(HoldOptions::default()), None);
    let again =
        Request::MigrationRestart { id: id.to_string(), hold: Some(HoldOptions::default()), allow_throttle: None };
    assert!(cluster.refused("a", &again).contains("held already, or is to be"));
    cluster.asked("a", &Request::MigrationLimit { id: id.to_string(), rate_bits_per_s: None });
    wait_held(&cluster, id);
    let rounds = || cluster.migration("a", id).copy.map_or(0, |copy| copy.round);
    let first = rounds();
    cluster.wait(DEADLINE, "the target is kept fresh", || rounds() >= first + 3);
    let now = cluster.migration("a", id);
    let hold = now.hold.clone().expect("it is held");
    eprintln!("{hold:?}, {:?}", now.copy);
    assert!(hold.dirty_bytes.is_some_and(|bytes| bytes < 12_000_000) && hold.since.is_some(), "{hold:?}");
    assert!(hold.downtime_ms.is_some_and(|ms| ms <= 1500) && hold.called_off_at.is_some(), "{hold:?}");
    assert!(cluster.where_runs(VM) == ["a"]);
    let refused = cluster.refused("b", &Request::MigrationSwitch { id: id.to_string(), deadline_s: None });
    assert!(refused.contains("the source of migration"), "{refused}");

    // Called off while it is held, it runs on as before.
    cluster.asked("a", &Request::MigrationCancel { id: id.to_string() });
    assert_eq!(cluster.watched("a", id).outcome, Some(Outcome::CalledOff));
    cluster.wait_clean(DEADLINE);

    // An agent that is killed calls it off, as every migration, and says so.
    let id = held(&cluster, HoldOptions::default());
    cluster.kill("a");
    cluster.start("a");
    let is_over = || cluster.migration("a", id).outcome == Some(Outcome::CalledOff);
    cluster.wait(DEADLINE, "it is called off", is_over);
    assert_eq!(cluster.migration("a", id).why, Some(FailureReason::AgentRestarted));
    cluster.wait_clean(DEADLINE);

    let id = held(&cluster, HoldOptions::default());
    let switched = Request::MigrationSwitch { id: id.to_string(), deadline_s: Some(DEADLINE.as_secs()) };
    cluster.asked("a", &switched);
    let moved = cluster.watched("a", id);
    assert_eq!(moved.outcome, Some(Outcome::Moved), "{moved:?}");
    eprintln!("moved, {} ms stopped: {:#?}", moved.downtime_ms.unwrap_or(0), notes(&cluster, id));
    assert!(notes(&cluster, id).contains(&"the guest may switch: somebody says so".to_owned()));
    assert!(cluster.verify(VM).is_good());
    cluster.wait_clean(DEADLINE);
    cluster.check();
}

#[test]
fn a_guest_that_is_too_hot_is_throttled_or_stays() {
    let cluster = up(RATE);
    let begin = |options| cluster.begin(VM, "a", "b", options).id;
    let lacks = |migration: &Migration| {
        assert_eq!(migration.outcome, Some(Outcome::CalledOff), "{migration:?}");
        let why = &migration.detail;
        // On a busy machine the links are not full, and another NIC is no cure.
        assert!(why.starts_with("will not converge: dirties "), "{why}");
        let throttle = why.split("--allow-throttle ").nth(1).unwrap_or_else(|| panic!("{why}"));
        throttle.parse::<u8>().unwrap()
    };

    // The migration is called off at once, as no deadline was given.
    let id = begin(MigrateOptions::default());
    let never =
        || matches!(cluster.migration("a", id).copy.and_then(|copy| copy.converges), Some(Convergence::Never(_)));
    cluster.wait(DEADLINE, "it is said", never);
    let kept = cluster.watched("a", id);
    eprintln!("{:.1} s: {}", kept.elapsed_ms as f64 / 1e3, kept.detail);
    let throttle = lacks(&kept);
    assert_eq!(kept.why, Some(FailureReason::MigrationFailed));
    assert!((20..=90).contains(&throttle), "{throttle}");
    assert!(cluster.where_runs(VM) == ["a"]);

    // With a deadline, it is called off when that is over.
    let kept = cluster.watched("a", begin(MigrateOptions { deadline_s: Some(60), ..MigrateOptions::default() }));
    assert_eq!(kept.why, Some(FailureReason::Deadline));
    lacks(&kept);

    // Somebody sees that, and lets its guest be throttled: it begins again.
    let first = begin(MigrateOptions { deadline_s: Some(600), ..MigrateOptions::default() });
    let id = restarted(&cluster, first, None, Some(99));
    let moved = cluster.watched("a", id);
    let notes = notes(&cluster, id);
    eprintln!("{} ms stopped, {:.1} s: {notes:#?}", moved.downtime_ms.unwrap_or(0), moved.elapsed_ms as f64 / 1e3);
    assert_eq!(moved.outcome, Some(Outcome::Moved), "{moved:?}");
    assert!(notes.iter().any(|note| note.starts_with("throttles the guest's CPUs by ")), "{notes:?}");
    assert!(notes.iter().any(|note| note.starts_with("the guest was throttled by up to ")), "{notes:?}");
    assert!(moved.detail.is_empty(), "{moved:?}");
    assert!(cluster.verify(VM).is_good());
    cluster.wait_clean(DEADLINE);
    cluster.check();
}
