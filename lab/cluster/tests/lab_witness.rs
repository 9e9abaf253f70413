//! Tests that the witness sees two guests that run at once, and only those, with QEMUs that are controlled by the test.
// QEMU: 7.2 10

use std::process::Command;
use std::time::Duration;

use skein_hypervisor::{Config, Qemu};
use skein_lab_cluster::{Witness, arguments, until};

const SOON: Duration = Duration::from_secs(20);

struct Two {
    // The QEMUs are dropped before the directory with their sockets.
    a: Qemu,
    b: Qemu,
    witness: Witness,
    _dir: tempfile::TempDir,
}

/// Starts two QEMUs of one guest, paused.
fn two() -> Two {
    let dir = tempfile::tempdir().unwrap();
    let witness = Witness::new([("/proc/self/ns/net".into(), "here".to_owned())]);
    witness.watch(dir.path(), "v");
    let start = |name: &str| {
        let mut config = Config::new("v", 64 << 10, dir.path().join(name));
        config.paused = true;
        config.extra = arguments(dir.path(), "v").iter().map(Into::into).collect();
        let qemu = Qemu::start(&config, |program| Command::new(program), SOON).unwrap();
        assert!(until(SOON, || witness.knows("v", qemu.pid())), "a QEMU that is not seen");
        qemu
    };
    let (a, b) = (start("a"), start("b"));
    Two { a, b, witness, _dir: dir }
}

#[test]
fn two_that_run_at_once_are_seen() {
    let two = two();
    assert!(two.witness.runs("v").is_empty());
    two.a.qmp.query("cont").unwrap();
    assert!(two.witness.doubles().is_empty());
    two.b.qmp.query("cont").unwrap();
    // It is seen, however short it was, and however long ago.
    two.b.qmp.query("stop").unwrap();
    two.a.qmp.query("stop").unwrap();
    assert!(until(SOON, || two.witness.runs("v").iter().filter(|run| run.until.is_some()).count() == 2));
    let doubles = two.witness.doubles();
    let [double] = &doubles[..] else { panic!("{doubles:?}") };
    assert_eq!((double.first.pid, double.second.pid), (two.a.pid(), two.b.pid()));
    assert!(two.witness.contradictions().is_empty());
}

#[test]
fn one_after_the_other_is_none() {
    let two = two();
    for _ in 0..20 {
        two.a.qmp.query("cont").unwrap();
        two.a.qmp.query("stop").unwrap();
        two.b.qmp.query("cont").unwrap();
        two.b.qmp.query("stop").unwrap();
    }
    assert!(until(SOON, || two.witness.runs("v").iter().filter(|run| run.until.is_some()).count() == 40));
    assert_eq!(two.witness.doubles(), []);
    assert!(two.witness.runs("v").iter().all(|run| run.host == "here"));
}

/// Tests that a run in a QEMU that is killed ends with the QEMU.
#[test]
fn after_one_was_killed_the_other_may_run() {
    let Two { a, b, witness, _dir: dir } = two();
    a.qmp.query("cont").unwrap();
    drop(a);
    // The witness knows of the kill when it sees it, no earlier.
    assert!(until(SOON, || witness.runs("v").first().is_some_and(|run| run.until.is_some())));
    b.qmp.query("cont").unwrap();
    assert!(until(SOON, || witness.runs("v").len() == 2), "{:?}", witness.runs("v"));
    assert_eq!(witness.doubles(), []);
    assert!(witness.runs("v")[0].until.is_some() && witness.runs("v")[1].until.is_none());
    // For a late witness, a QEMU that runs when it comes counts as running since its socket was there.
    let late = Witness::new([]);
    late.watch(dir.path(), "v");
    drop(witness);
    assert!(until(SOON, || late.runs("v").len() == 1), "{:?}", late.runs("v"));
    assert_eq!(late.runs("v")[0].host, "?");
}
