//! Tests real guests in real QEMUs: they boot, work, move, and notice what is wrong with them.
//!
//! Needs QEMU and the workload (`scripts/build.sh guest`), but not root.
// QEMU: 7.2 10
// Cores: 0.8

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use skein_lab_guest::{
    Compression, Error, Guest, Image, MemoryBackend, Migration, Params, Rewrite, SharedDisk, Spec, Tuning,
    default_cache, migrate,
};

/// The time for anything that a guest does; the machine may be busy with other things.
const DEADLINE: Duration = Duration::from_secs(120);

fn here(qemu: &Path) -> Command {
    Command::new(qemu)
}

fn spec(params: Params) -> Spec {
    let memory_mb = Spec::memory_mb_for(params.fill_mb);
    Spec::new("test", Image::prepare(&default_cache()).unwrap(), memory_mb, params)
}

fn ready(spec: &Spec) -> Guest {
    let mut guest = Guest::boot(spec, here).unwrap();
    guest.wait_ready(DEADLINE).unwrap();
    guest
}

/// Moves a guest to a QEMU of its own spec, over a unix socket.
fn moved(spec: &Spec, mut source: Guest, tuning: &Tuning) -> (Guest, Migration) {
    let mut target = Guest::incoming(spec, here).unwrap();
    let uri = format!("unix:{}", target.directory().join("migration").display());
    let migration = migrate(&mut source, &mut target, (&uri, &uri), tuning, DEADLINE, |_| {}).unwrap();
    assert!(!source.qemu.qmp.is_running().unwrap());
    assert!(target.qemu.qmp.is_running().unwrap());
    (target, migration)
}

/// Checks that QEMU and the guest agree on the same switchover.
fn check_gaps(migration: &Migration) {
    let gaps = migration.gaps.unwrap();
    let downtime_ms = migration.info.downtime.unwrap() as f64;
    // QEMU's downtime begins before the guest is stopped and ends after it runs again, or the other way round; beats
    // come every 2 ms. A busy machine adds tens of milliseconds to either, rarely more.
    assert!((gaps.stopped_ms - downtime_ms).abs() < 250.0, "{downtime_ms} ms, {gaps:?}");
    assert!(gaps.switchover_ms >= gaps.stopped_ms, "{gaps:?}");
    assert_eq!(gaps.lost, 0, "{gaps:?}");
    assert!(gaps.beats > 100, "{gaps:?}");
}

#[test]
fn a_working_guest_moves_and_stays_whole() {
    let params = Params {
        fill_mb: 150,
        rewrite_mb: 100,
        rewrite: Rewrite::Quarter,
        rate: 5000,
        disk_mb: 4,
        disk_rate: 50,
        ..Params::default()
    };
    let mut spec = spec(params);
    spec.disk = Some(SharedDisk::create(&std::env::temp_dir(), 4).unwrap());
    let mut guest = ready(&spec);
    let mut written = 0;
    for tuning in [
        Tuning::default(),
        Tuning { multifd: Some(4), ..Tuning::default() },
        Tuning { multifd: Some(2), compression: Compression::Zstd, ..Tuning::default() },
        Tuning { xbzrle_cache: Some(64 << 20), ..Tuning::default() },
    ] {
        let (target, migration) = moved(&spec, guest, &tuning);
        guest = target;
        check_gaps(&migration);
        let ram = migration.info.ram.unwrap();
        assert!(ram.total >= u64::from(spec.memory_mb) << 20);
        assert!(ram.dirty_sync_count >= 2);

        let verdict = guest.agent().verify(DEADLINE).unwrap();
        assert!(verdict.is_good(), "{tuning:?} {verdict:?}");
        assert_eq!((verdict.pages, verdict.blocks), (150 << 8, 4 << 8));
        let status = guest.agent().status().unwrap();
        assert!(status.written > written, "it goes on rewriting");
        written = status.written;
        let disk = status.disk.unwrap();
        assert_eq!((disk.error, disk.bad), (None, 0));
        assert!(disk.written > 0);
    }
}

/// Moves a guest many times in a row, with the hottest pages: a loss of single writes shows here.
#[test]
fn many_moves_lose_nothing() {
    let params = Params { fill_mb: 64, rewrite_mb: 64, rewrite: Rewrite::Word, rate: 20_000, ..Params::default() };
    let mut spec = spec(params);
    spec.cpus = 2;
    spec.params.threads = 2;
    let mut guest = ready(&spec);
    for _ in 0..10 {
        guest = moved(&spec, guest, &Tuning::default()).0;
        assert!(guest.agent().verify(DEADLINE).unwrap().is_good());
    }
}

#[test]
fn a_quiet_guest_has_the_same_hash_after_moving_over_tcp() {
    let mut spec = spec(Params { fill_mb: 50, rewrite_mb: 50, rate: 1000, ..Params::default() });
    spec.memory = MemoryBackend::Anonymous;
    let mut source = ready(&spec);
    source.agent().quiet().unwrap();
    let hash = source.agent().hash(DEADLINE).unwrap();
    assert_eq!(source.agent().hash(DEADLINE).unwrap(), hash, "nothing is rewritten while quiet");

    let mut target = Guest::incoming_paused(&spec, here).unwrap();
    // A port that is free now. QEMU cannot be asked which port it took.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let uri = format!("tcp:127.0.0.1:{port}");
    target.qemu.qmp.tune(&Tuning::default()).unwrap();
    target.qemu.qmp.migrate_incoming(&uri).unwrap();
    source.qemu.qmp.tune(&Tuning::default()).unwrap();
    source.qemu.qmp.migrate(&uri).unwrap();
    let mut polls = 0;
    let info = source.qemu.qmp.wait_migrated(DEADLINE, |_| polls += 1).unwrap();
    assert_eq!(info.status, skein_lab_guest::MigrationStatus::Completed, "{info:?}");
    assert!(polls > 0);

    assert!(!target.qemu.qmp.is_running().unwrap(), "started with -S");
    assert!(target.beats().last().is_none());
    target.qemu.qmp.query("cont").unwrap();
    target.wait_beat(DEADLINE).unwrap();
    assert_eq!(target.agent().hash(DEADLINE).unwrap(), hash);
    assert!(!target.agent().status().unwrap().dirtying);
    target.agent().dirty().unwrap();
    let before = target.agent().status().unwrap().written;
    std::thread::sleep(Duration::from_millis(500));
    assert!(target.agent().status().unwrap().written > before);
    assert_ne!(target.agent().hash(DEADLINE).unwrap(), hash);
}

#[test]
fn a_flipped_bit_is_found() {
    let mut guest =
        ready(&spec(Params { fill_mb: 20, rewrite_mb: 10, rate: 500, verify_rate: 20_000, ..Params::default() }));
    assert!(guest.agent().verify(DEADLINE).unwrap().is_good());
    let page = guest.agent().corrupt(None).unwrap();
    assert_eq!(page, (20 << 8) - 1);
    let verdict = guest.agent().verify(DEADLINE).unwrap();
    assert_eq!((verdict.bad, verdict.first_bad, verdict.is_good()), (1, Some(page), false));
    // The background verification finds it, too.
    let end = Instant::now() + DEADLINE;
    while guest.agent().status().unwrap().bad == 0 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(guest.agent().status().unwrap().first_bad, Some(page));
    // Flipped again, the bit is right again.
    guest.agent().corrupt(Some(page)).unwrap();
    assert!(guest.agent().verify(DEADLINE).unwrap().is_good());
    // A page in the part that is rewritten, while the rewriting is stopped.
    guest.agent().quiet().unwrap();
    guest.agent().corrupt(Some(7)).unwrap();
    assert_eq!(guest.agent().verify(DEADLINE).unwrap().first_bad, Some(7));

    let refused = guest.agent().corrupt(Some(1 << 40)).unwrap_err().to_string();
    assert!(refused.contains("the last is 5119"), "{refused}");
    let unknown = guest.agent().request("dance", DEADLINE).unwrap_err().to_string();
    assert_eq!(unknown, "the guest refuses: dance: no such command");
    let long = guest.agent().request(&"a".repeat(5000), DEADLINE).unwrap_err().to_string();
    assert_eq!(long, "the guest refuses: the line is too long");
}

#[test]
fn a_stale_disk_is_found() {
    let mut spec = spec(Params { disk_mb: 2, disk_rate: 0, ..Params::default() });
    let disk = SharedDisk::create(&std::env::temp_dir(), 2).unwrap();
    spec.disk = Some(disk.clone());
    let mut guest = ready(&spec);
    assert!(guest.agent().verify(DEADLINE).unwrap().is_good());
    // One block gets the content that it had before the guest wrote it.
    let file = std::fs::OpenOptions::new().write(true).open(disk.path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], 5 * 4096).unwrap();
    file.sync_all().unwrap();
    let verdict = guest.agent().verify(DEADLINE).unwrap();
    assert_eq!((verdict.blocks, verdict.bad_blocks, verdict.is_good()), (512, 1, false));
    let directory = disk.path().parent().unwrap().to_owned();
    drop((guest, spec, disk));
    assert!(!directory.exists());
}

#[test]
fn rates_are_kept_and_pauses_not_made_up_for() {
    let mut guest =
        ready(&spec(Params { fill_mb: 50, rewrite_mb: 50, rate: 2000, verify_rate: 0, ..Params::default() }));
    let reached = |guest: &mut Guest, wait: Duration| {
        let before = guest.agent().status().unwrap();
        std::thread::sleep(wait);
        let after = guest.agent().status().unwrap();
        (after.written - before.written) as f64 * 1e6 / (after.time_us - before.time_us) as f64
    };
    let rate = reached(&mut guest, Duration::from_secs(2));
    assert!((1000.0..2100.0).contains(&rate), "{rate}");
    guest.agent().set_rate(500).unwrap();
    let rate = reached(&mut guest, Duration::from_secs(2));
    assert!((250.0..530.0).contains(&rate), "{rate}");
    // Stops and starts again: what was not written in the pause is not written later.
    guest.agent().quiet().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    guest.agent().set_rate(1000).unwrap();
    guest.agent().dirty().unwrap();
    let rate = reached(&mut guest, Duration::from_secs(1));
    assert!(rate < 1100.0, "{rate}");
    guest.agent().reset_gap().unwrap();
    let beats = guest.agent().status().unwrap().beat.count;
    assert!(beats < 500, "{beats} beats since the reset");
}

#[test]
fn what_does_not_work_says_why() {
    // The guest fills more memory than it has.
    let mut spec = spec(Params { fill_mb: 500, ..Params::default() });
    spec.memory_mb = 256;
    let error = Guest::boot(&spec, here).unwrap().wait_ready(DEADLINE).unwrap_err();
    assert!(matches!(&error, Error::Ended { console, .. } if console.contains("give it more RAM")), "{error}");

    // The guest has no disk.
    let no_disk = self::spec(Params { disk_mb: 1, ..Params::default() });
    let error = Guest::boot(&no_disk, here).unwrap().wait_ready(DEADLINE).unwrap_err();
    assert!(error.to_string().contains("skein.disk_mb needs a virtio disk"), "{error}");

    // QEMU does not know the machine type.
    spec.machine = "abacus".into();
    let error = Guest::boot(&spec, here).unwrap_err();
    let causes = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(causes.contains("unsupported machine type"), "{causes}");
}

#[test]
fn a_target_that_dies_leaves_the_guest_running_on_the_source() {
    let spec = spec(Params { fill_mb: 100, rewrite_mb: 50, rate: 1000, ..Params::default() });
    let mut source = ready(&spec);
    source.take_first_stall().unwrap();
    let mut target = Guest::incoming(&spec, here).unwrap();
    let uri = format!("unix:{}", target.directory().join("migration").display());
    // The migration is slow enough to be in the middle: 10 MB/s.
    let slow = Tuning { max_bandwidth: 10_000_000, ..Tuning::default() };
    target.qemu.qmp.tune(&slow).unwrap();
    target.qemu.qmp.migrate_incoming(&uri).unwrap();
    source.qemu.qmp.tune(&slow).unwrap();
    source.qemu.qmp.migrate(&uri).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    target.qemu.kill();
    let info = source.qemu.qmp.wait_migrated(DEADLINE, |_| {}).unwrap();
    assert_eq!(info.status, skein_lab_guest::MigrationStatus::Failed, "{info:?}");
    assert!(source.qemu.qmp.is_running().unwrap());
    assert!(source.agent().verify(DEADLINE).unwrap().is_good());
    // The next try moves the guest.
    let (mut target, _) = moved(&spec, source, &Tuning::default());
    assert!(target.agent().verify(DEADLINE).unwrap().is_good());
}

#[test]
fn a_guest_is_throttled_as_told_and_only_while_it_moves() {
    let hot = Params { fill_mb: 64, rewrite_mb: 64, rewrite: Rewrite::Word, rate: 20_000, ..Params::default() };
    let spec = spec(hot);
    let source = ready(&spec);
    let target = Guest::incoming(&spec, here).unwrap();
    let uri = format!("unix:{}", target.directory().join("migration").display());
    // Each round takes a second, and leaves as much for the next.
    let endless = Tuning { throttle: true, max_bandwidth: 50_000_000, downtime_limit_ms: 1, ..Tuning::default() };
    target.qemu.qmp.tune(&endless).unwrap();
    target.qemu.qmp.migrate_incoming(&uri).unwrap();
    let qmp = &source.qemu.qmp;
    qmp.tune(&endless).unwrap();
    qmp.migrate(&uri).unwrap();
    let throttled = |until: Option<u8>| {
        let end = Instant::now() + DEADLINE;
        let mut seen = Vec::new();
        while seen.last() != Some(&until) {
            seen.push(qmp.migration().unwrap().throttle);
            assert!(Instant::now() < end, "{until:?}: {seen:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        seen.dedup();
        seen
    };
    throttled(Some(1));
    for percent in [40, 60, 20] {
        qmp.set_throttle(percent).unwrap();
        let seen = throttled(Some(percent));
        assert_eq!(seen.len(), 2, "{seen:?}");
    }
    qmp.migrate_cancel().unwrap();
    let info = qmp.wait_migrated(DEADLINE, |_| {}).unwrap();
    // QEMU 7.2 may find its socket shut down before it finds that it did so itself.
    use skein_lab_guest::MigrationStatus::{Cancelled, Failed};
    assert!(matches!(info.status, Cancelled | Failed), "{info:?}");
    throttled(None);
}

#[test]
fn nothing_is_left_behind() {
    let spec = spec(Params::default());
    let guest = ready(&spec);
    let (directory, pid) = (guest.directory().to_owned(), guest.qemu.pid());
    assert!(directory.exists() && Path::new(&format!("/proc/{pid}")).exists());
    drop(guest);
    assert!(!directory.exists() && !Path::new(&format!("/proc/{pid}")).exists());
}
