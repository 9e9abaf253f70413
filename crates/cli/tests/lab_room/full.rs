//! Tests many moves towards a target that is nearly full, 1 to 6 at once, with limits of several kinds drawn anew each
//! time.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use skein_api::{MigrateOptions, Outcome, Reply, Request};
use skein_client::CallError;
use skein_lab_cluster::{Cluster, Settings, noise};

use super::group::Group;
use super::world::{MIB, PATIENCE, cluster, guest, settings, with_shared_memory};

/// How many guests move.
const MOVERS: usize = 6;
/// The guests that are at the target, and stay.
const RESIDENTS: [&str; 2] = ["old1", "old2"];
/// The RAM of each guest, and how much of that it uses, in MiB.
const RAM: u64 = 112;
const FULL: u64 = 48;

/// The end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Moved,
    /// The check refused the move.
    Blocked,
    /// The target refused the move, or it was called off otherwise.
    Kept,
}

/// The generator splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map_or(default, |text| text.parse().unwrap())
}

/// Moves a guest. Returns how that ended, and why it did not move, if so.
pub fn move_one(cluster: &Cluster, vm: &str, from: &str, to: &str) -> (End, String) {
    let options = MigrateOptions { deadline_s: Some(PATIENCE.as_secs()), ..MigrateOptions::default() };
    let request = Request::Migrate { vm: vm.into(), to: to.into(), options, detach: false };
    let mut conversation = cluster.client(from).ask(&request).unwrap();
    loop {
        match conversation.next(PATIENCE) {
            Ok(Some(Reply::Progress(_))) => {}
            Ok(Some(Reply::Check(check))) if !check.blocks() => {}
            Ok(Some(Reply::Check(check))) => return (End::Blocked, format!("{:?}", check.problems)),
            Ok(Some(Reply::Migration(migration))) => {
                let end = if migration.outcome == Some(Outcome::Moved) { End::Moved } else { End::Kept };
                return (end, format!("{:?} {}", migration.why, migration.detail));
            }
            Err(CallError::Refused(refusal)) => return (End::Blocked, refusal.message),
            other => panic!("{vm}: {other:?}"),
        }
    }
}

/// Lets a guest begin to use RAM that it was promised: 24 MiB above what it has in use, below what firmware took. With
/// `take` false the guest gives the RAM back. The writer is in the group, so the group is charged as for the guest's
/// own writes.
fn use_ram(cluster: &Cluster, group: &Group, vm: &str, take: bool) {
    let pid = cluster.vm("b", vm).pid.expect("it runs");
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().map(|fd| fd.path());
    let is_ram = |fd: &std::path::PathBuf| {
        std::fs::read_link(fd).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:memory-backend-memfd"))
    };
    let ram = fds.into_iter().find(is_ram).expect("its RAM is a memfd");
    let (from, mib) = (16 + FULL, RAM - 16 - FULL - 8);
    let write = format!("dd if=/dev/zero of={} bs=1M seek={from} count={mib} conv=notrunc status=none", ram.display());
    let punch = format!("fallocate --punch-hole --offset {from}MiB --length {mib}MiB {}", ram.display());
    let script = format!("echo $$ >{}/cgroup.procs; exec {}", group.dir().display(), if take { write } else { punch });
    let done = std::process::Command::new("sh").args(["-c", &script]).status().unwrap();
    assert!(done.success(), "{script}: {done}");
}

pub fn soak() {
    let Some(group) = Group::new() else { return };
    let (wanted, seed) = (variable("ROOM_MOVES", 8), variable("ROOM_SEED", 1));
    let mut random = Random(seed);
    group.limit(8192 * MIB);
    let cluster = cluster(&group, Settings { incoming: 6, outgoing: 6, ..settings() });
    let file = noise(cluster.dir(), FULL);
    for vm in RESIDENTS {
        // What `use_ram` writes to.
        cluster.start_vm("b", &with_shared_memory(&guest(&cluster, vm, RAM, Some(&file))));
    }
    let movers: Vec<String> = (0..MOVERS).map(|number| format!("v{number}")).collect();
    for vm in &movers {
        cluster.start_vm("a", &guest(&cluster, vm, RAM, Some(&file)));
    }
    let (begin, mut tally, mut towards, mut rounds) = (Instant::now(), BTreeMap::new(), 0, 0);
    while towards < wanted {
        rounds += 1;
        let at_once = 1 + random.below(MOVERS as u64).min(wanted - towards - 1) as usize;
        let kind = random.below(4);
        // The room is never less than what the guests at the target were promised: for their sake others are refused.
        let promised = RESIDENTS.len() as u64 * (RAM - FULL) * MIB;
        let room = promised + random.below(at_once as u64 * (RAM + 160) * MIB + 1);
        let limit = group.used() + room;
        if kind == 0 {
            group.limit_tasks(Some(group.tasks() + random.below(at_once as u64 * 140)));
        } else {
            group.limit(limit);
        }
        let ends: Vec<(End, String)> = thread::scope(|scope| {
            let moves: Vec<_> = movers[..at_once]
                .iter()
                .map(|vm| {
                    let cluster = &cluster;
                    scope.spawn(move || move_one(cluster, vm, "a", "b"))
                })
                .collect();
            // These guests take what they were promised, whatever guests come.
            if kind == 1 {
                RESIDENTS.iter().for_each(|vm| use_ram(&cluster, &group, vm, true));
            }
            moves.into_iter().map(|one| one.join().unwrap()).collect()
        });
        towards += at_once as u64;
        let words: Vec<String> = ends.iter().map(|(end, _)| format!("{end:?}")).collect();
        let limited = match kind {
            0 => "threads".to_owned(),
            1 => format!("memory, {} MiB left, and guests take what they were promised", room / MIB),
            _ => format!("memory, {} MiB left", room / MIB),
        };
        println!("{rounds:3} {at_once} at once, {limited}: {}", words.join(" "));
        for (end, why) in ends {
            if end == End::Kept {
                println!("      {why}");
            }
            *tally.entry(end).or_insert(0u32) += 1;
        }
        // Each guest that was at the target is there, and each guest runs once.
        assert_eq!(group.kills(), 0, "round {rounds} of seed {seed}: the kernel killed somebody\n{}", cluster.report());
        for vm in RESIDENTS {
            assert_eq!(cluster.where_runs(vm), ["b"], "round {rounds} of seed {seed}");
        }
        group.limit(8192 * MIB);
        group.limit_tasks(None);
        if kind == 1 {
            RESIDENTS.iter().for_each(|vm| use_ram(&cluster, &group, vm, false));
        }
        for vm in &movers {
            cluster.wait(PATIENCE, "each guest runs once", || cluster.where_runs(vm).len() == 1);
            if cluster.where_runs(vm) == ["b"] {
                let (end, why) = move_one(&cluster, vm, "b", "a");
                assert_eq!(end, End::Moved, "{vm} goes back: {why}");
            }
        }
        cluster.wait_clean(PATIENCE);
        cluster.check();
    }
    println!(
        "{towards} moves in {rounds} rounds, seed {seed}, {} s: {tally:?}; killed by the kernel: {}",
        begin.elapsed().as_secs(),
        group.kills()
    );
}
