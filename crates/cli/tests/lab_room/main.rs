//! Tests targets and sources with real limits: no guest at the target is killed for a guest that comes, what two guests
//! need is not promised twice, and a guest that is killed all the same is named. The control groups are of the version
//! that is mounted. Needs root.
//!
//! `ROOM_MOVES=N` (8), `ROOM_SEED=N` (1): how many guests move towards a target that is nearly full.
// Timeout: 600 s

mod full;
mod group;
mod world;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use skein_api::{
    CheckResult, LogEntry, MigrateOptions, Migration, Outcome, Problem, ProblemKind, Reply, Request, StartOptions,
    VmOrigin,
};
use skein_lab_cluster::{Cluster, Settings, noise};
use skein_lab_hosts::Cut;

use group::Group;
use world::{MIB, PATIENCE, cluster, guest, settings, with_shared_memory};

fn of_kind(problems: &[Problem], kind: ProblemKind) -> Vec<String> {
    problems.iter().filter(|problem| problem.kind == kind).map(ToString::to_string).collect()
}

/// Returns what stands against a move. An emulated machine takes some time.
fn check_move(cluster: &Cluster, vm: &str, from: &str, to: &str) -> CheckResult {
    let request = Request::Check { vm: vm.into(), to: to.into(), options: MigrateOptions::default() };
    match cluster.client(from).call(&request, PATIENCE) {
        Ok(Reply::Check(check)) => check,
        other => panic!("{vm}: {other:?}\n{}", cluster.report()),
    }
}

/// Moves a guest, which has to succeed.
fn moved(cluster: &Cluster, vm: &str, from: &str, to: &str) {
    let (end, why) = full::move_one(cluster, vm, from, to);
    assert_eq!(end, full::End::Moved, "{why}");
}

/// Returns what a migration says about guests that were killed.
fn kills_told(migration: &Migration) -> Vec<String> {
    let notes = migration.events.iter().filter_map(|logged| match &logged.event {
        LogEntry::Note { text } => Some(text.clone()),
        _ => None,
    });
    notes.filter(|text| text.contains("the kernel killed")).collect()
}

#[test]
fn a_check_sees_every_limit_above_the_agent() {
    let Some(group) = Group::new() else { return };
    group.limit(400 * MIB);
    let cluster = cluster(&group, settings());
    let noise = noise(cluster.dir(), 40);
    cluster.start_vm("b", &guest(&cluster, "old", 128, Some(&noise)));
    cluster.start_vm("a", &guest(&cluster, "new", 192, Some(&noise)));
    let check = check_move(&cluster, "new", "a", "b");
    let told = of_kind(&check.problems, ProblemKind::Ram).join("; ");
    for part in
        [group.dir().to_str().unwrap(), "of b has", "left of 400 MiB", group.limit_file(), "that old may still take"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(check.blocks());
    // More memory, and fewer tasks.
    group.limit(2048 * MIB);
    assert!(!check_move(&cluster, "new", "a", "b").blocks());
    group.limit_tasks(Some(group.tasks() + 20));
    let check = check_move(&cluster, "new", "a", "b");
    let told = of_kind(&check.problems, ProblemKind::Tasks).join("; ");
    assert!(check.blocks() && told.contains("threads left of") && told.contains("pids.max"), "{told}");
    group.limit_tasks(None);
    moved(&cluster, "new", "a", "b");
    assert_eq!(group.kills(), 0);
    cluster.wait_clean(PATIENCE);
    cluster.check();
}

#[test]
fn room_for_one_is_not_given_to_two() {
    let Some(group) = Group::new() else { return };
    group.limit(4096 * MIB);
    let cluster = cluster(&group, settings());
    let noise = noise(cluster.dir(), 40);
    for vm in ["v1", "v2"] {
        cluster.start_vm("a", &guest(&cluster, vm, 128, Some(&noise)));
    }
    // Each guest needs 128 MiB and some 140 more. A few are for what the agent itself takes meanwhile.
    group.limit(group.used() + 400 * MIB);
    let ended: Vec<Migration> = thread::scope(|scope| {
        let moves = ["v1", "v2"].map(|vm| {
            let cluster = &cluster;
            scope.spawn(move || {
                assert!(!check_move(cluster, vm, "a", "b").blocks(), "{vm} alone fits");
                let migration = cluster.begin(vm, "a", "b", MigrateOptions::default());
                cluster.watched("a", migration.id)
            })
        });
        moves.into_iter().map(|moved| moved.join().unwrap()).collect()
    });
    let kept: Vec<&Migration> = ended.iter().filter(|one| one.outcome == Some(Outcome::CalledOff)).collect();
    let [kept] = kept[..] else { panic!("{ended:#?}\n{}", cluster.report()) };
    assert!(kept.detail.contains(group.dir().to_str().unwrap()), "{}", kept.detail);
    assert!(ended.iter().any(|one| one.outcome == Some(Outcome::Moved)), "{ended:#?}");
    assert_eq!(cluster.where_runs(&kept.vm), ["a"], "it goes on where it was");
    // The guest that ended gave its room back, so with as much again there is room for the other.
    group.limit(group.used() + 700 * MIB);
    moved(&cluster, &kept.vm, "a", "b");
    assert_eq!(group.kills(), 0);
    cluster.wait_clean(PATIENCE);
    cluster.check();
}

#[test]
fn a_guest_is_not_started_where_there_is_no_room_for_it() {
    let Some(group) = Group::new() else { return };
    group.limit(4096 * MIB);
    let cluster = cluster(&group, settings());
    cluster.start_vm("b", &guest(&cluster, "old", 128, None));
    group.limit(group.used() + 400 * MIB);
    let text = guest(&cluster, "hungry", 512, None);
    let from = VmOrigin::Definition { file: "hungry.toml".into(), text };
    let start = |overcommit| {
        let options = StartOptions { overcommit, ..StartOptions::default() };
        Request::VmStart { from: from.clone(), options }
    };
    let told = cluster.refused("b", &start(false));
    for part in [group.dir().to_str().unwrap(), "of b has", group.limit_file(), "old may still take", "--overcommit"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(cluster.vms("b").len(), 1, "nothing is left of it");
    assert_eq!(cluster.qemus("b").len(), 1);
    // Another guest fits, and one is started on purpose though it does not fit.
    cluster.start_vm("b", &guest(&cluster, "small", 64, None));
    cluster.asked("b", &start(true));
    cluster.wait(PATIENCE, "it runs", || cluster.where_runs("hungry") == ["b"]);
    assert_eq!(group.kills(), 0);
    cluster.check();
}

#[test]
fn a_sparse_guest_is_not_copied_where_its_source_has_no_room_for_that() {
    let Some(group) = Group::new() else { return };
    group.limit(4096 * MIB);
    let cluster = cluster(&group, settings());
    cluster.start_vm("b", &with_shared_memory(&guest(&cluster, "sparse", 1024, None)));
    group.limit(group.used() + 600 * MIB);
    let check = check_move(&cluster, "sparse", "b", "a");
    let told = of_kind(&check.problems, ProblemKind::SourceRam).join("; ");
    assert!(check.blocks() && told.contains("never wrote") && told.contains("the copy needs"), "{told}: {check:?}");
    group.limit(group.used() + 1200 * MIB);
    let check = check_move(&cluster, "sparse", "b", "a");
    assert!(!check.blocks(), "{check:?}");
    moved(&cluster, "sparse", "b", "a");
    assert_eq!(group.kills(), 0);
    cluster.wait_clean(PATIENCE);
    cluster.check();
}

/// Tests that a guest takes nothing at its source for what it never wrote, unless its RAM is shared.
#[test]
fn the_copy_of_a_sparse_guest_takes_nothing() {
    let Some(group) = Group::new() else { return };
    group.limit(4096 * MIB);
    let cluster = cluster(&group, settings());
    cluster.start_vm("b", &guest(&cluster, "sparse", 1024, None));
    let before = group.used();
    group.limit(before + 300 * MIB);
    let check = check_move(&cluster, "sparse", "b", "a");
    assert!(!check.blocks(), "{check:?}");
    let most = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                most.fetch_max(group.used(), Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        moved(&cluster, "sparse", "b", "a");
        is_over.store(true, Relaxed);
    });
    let most = most.into_inner();
    assert!(before <= most && most < before + 128 * MIB, "{before} {most}");
    assert_eq!(group.kills(), 0);
    cluster.wait_clean(PATIENCE);
    cluster.check();
}

/// Fills the group with pages of a file in memory, whose writer is smaller than any QEMU, until the kernel kills a
/// process. Before that the kernel drops page cache, of which it is unknown how much there is.
fn exhaust(group: &Group) {
    let file = PathBuf::from(format!("/dev/shm/skein-room-{}", std::process::id()));
    let script = format!(
        "echo $$ >{}/cgroup.procs; exec head -c {} /dev/zero >>{}",
        group.dir().display(),
        8 * MIB,
        file.display()
    );
    for _ in 0..64 {
        let _ = Command::new("sh").args(["-c", &script]).status();
        if group.kills() > 0 {
            break;
        }
    }
    let _ = fs::remove_file(&file);
}

#[test]
fn a_guest_that_the_kernel_kills_meanwhile_is_named_at_both_ends() {
    let Some(group) = Group::new() else { return };
    group.limit(4096 * MIB);
    // The copy does not end before the kill is told: 40 MiB at 1 Mb/s.
    let mut cluster = cluster(&group, Settings { rates: vec![Some(1)], ..settings() });
    let (large, small) = (noise(cluster.dir(), 100), noise(cluster.dir(), 30));
    let old = cluster.start_vm("b", &guest(&cluster, "old", 256, Some(&large)));
    cluster.start_vm("a", &guest(&cluster, "new", 64, Some(&small)));
    // The kernel chooses this guest, whatever the others have by then.
    fs::write(format!("/proc/{}/oom_score_adj", old.pid.unwrap()), "1000").unwrap();
    let id = cluster.begin("new", "a", "b", MigrateOptions::default()).id;
    cluster.wait(PATIENCE, "its QEMU waits there", || cluster.vms("b").iter().any(|vm| vm.name == "new"));
    thread::sleep(Duration::from_secs(2));
    group.limit(group.used() + 32 * MIB);
    // The hosts are out of contact at the moment of the kill.
    cluster.lab().cut("b", 0, Cut::BlackHole).unwrap();
    thread::sleep(Duration::from_secs(8));
    exhaust(&group);
    cluster.wait(PATIENCE, "somebody is killed", || group.kills() > 0);
    cluster.wait(PATIENCE, "b knows", || !kills_told(&cluster.migration("b", id)).is_empty());
    assert!(kills_told(&cluster.migration("a", id)).is_empty(), "a cannot know yet");
    cluster.lab().heal("b", 0).unwrap();
    for host in ["a", "b"] {
        let told = || kills_told(&cluster.migration(host, id));
        let is_told = || told().iter().any(|text| text.contains("guest old on b: out of memory"));
        cluster.wait(PATIENCE, &format!("{host} is told of the kill"), is_told);
        println!("{host}: {:?}", told());
    }
    let Reply::Vm(old) = cluster.asked("b", &Request::VmShow { name: "old".into() }) else { panic!("no VM") };
    assert!(old.note.contains("the kernel killed its QEMU"), "{old:?}");
    group.limit(4096 * MIB);
    cluster.asked("a", &Request::MigrationCancel { id: id.to_string() });
    cluster.watched("a", id);
    cluster.wait_clean(PATIENCE);
    // The next agent knows it as well.
    cluster.stop("b");
    let start = group.start(cluster.dir());
    cluster.start_as("b", &start);
    assert_eq!(cluster.vm("b", "old").note, old.note);
    cluster.check();
}

/// Tests a kernel that accounts memory before it is used. This setting is the whole machine's, so the test runs only in
/// a machine of its own.
#[test]
fn a_kernel_that_does_not_overcommit_bounds_what_comes() {
    if std::env::var_os("SKEIN_OWN_KERNEL").is_none() {
        println!("skipped: the kernel's overcommit mode is every program's: see scripts/emulated.sh");
        return;
    }
    let Some(group) = Group::new() else { return };
    group.limit(8192 * MIB);
    let set = |mode: u32, kib: u64| {
        fs::write("/proc/sys/vm/overcommit_kbytes", kib.to_string()).unwrap();
        fs::write("/proc/sys/vm/overcommit_memory", mode.to_string()).unwrap();
    };
    let cluster = cluster(&group, settings());
    let noise = noise(cluster.dir(), 40);
    cluster.start_vm("b", &guest(&cluster, "old", 96, Some(&noise)));
    cluster.start_vm("a", &guest(&cluster, "new", 96, Some(&noise)));
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let committed = meminfo.lines().find_map(|line| line.strip_prefix("Committed_AS:")?.trim().strip_suffix(" kB"));
    let committed: u64 = committed.unwrap().trim().parse().unwrap();
    set(2, committed + (300 << 10));
    let check = check_move(&cluster, "new", "a", "b");
    set(0, 0);
    let told = of_kind(&check.problems, ProblemKind::Ram).join("; ");
    println!("{told}");
    for part in ["b has", "(CommitLimit)", "that old may still take", "vm.overcommit"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!check_move(&cluster, "new", "a", "b").blocks());
    assert!(!cluster.where_runs("old").is_empty() && !cluster.where_runs("new").is_empty());
}

#[test]
fn moves_towards_a_full_target_kill_nobody_that_was_there() {
    full::soak();
}
