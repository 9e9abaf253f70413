//! Each problem alone, all problems at once, and what is no problem.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::world::{Case, Change, World, file, names, problems_after, qemu, world};
use super::{PROBLEMS_MAX, agents, cpu, files, launch, networks, qemu_blockers, room};
use crate::claim::CLAIM_BYTES_MAX;
use crate::definition::{Accel, Definition};
use crate::facts::{
    FileSystem, GuestDisk, GuestFacts, HostFacts, Hugepages, PathFacts, Presence, QemuVersion, VmFacts,
};
use crate::problem::{Problem, ProblemKind as K, SENTENCE_BYTES_MAX, Severity::Blocks};
use crate::room::overhead_bytes;
use skein_units::{GIB, MIB};

const CASES: &[Case] = &[
    (|w| w.target.name = "hosta".into(), K::SameHost, Blocks, &["web1 runs on hosta already"]),
    (|w| w.target.qemu = Err("not installed".into()), K::QemuMissing, Blocks, &["hostb", "not installed", "install"]),
];

/// Returns all cases.
fn cases() -> impl Iterator<Item = &'static Case> {
    let all = [
        CASES,
        agents::tests::CASES,
        super::qemu::tests::CASES,
        cpu::tests::CASES,
        qemu_blockers::tests::CASES,
        files::tests::CASES,
        networks::tests::CASES,
        room::tests::CASES,
        launch::tests::CASES,
    ];
    all.into_iter().flatten()
}

#[test]
fn each_problem_is_found_alone_and_told_with_its_cure() {
    assert_eq!(problems_after(|_| {}), []);
    let overlay: Change = |w| {
        let (path, format) = ("/srv/base.raw".into(), crate::DiskFormat::Raw);
        w.guest.disks.push(GuestDisk { path, format, readonly: true });
        w.target.files.push(file("/srv/base.raw"));
        w.source.files.push(file("/srv/base.raw"));
    };
    assert_eq!(problems_after(overlay), [], "the definition does not name what is below an overlay");
    let second: Change = |w| {
        let (path, format) = (PathBuf::from("/srv/a.raw"), crate::DiskFormat::Raw);
        w.guest.disks.insert(0, GuestDisk { path: path.clone(), format, readonly: false });
        let text = "name = 'web1'\nmemory = '4 GiB'\n[[disk]]\npath = '/srv/a.raw'\nformat = 'raw'\n";
        w.definition.as_mut().unwrap().disks.extend(Definition::parse(text, "").unwrap().disks);
        [&mut w.source, &mut w.target].into_iter().for_each(|host| host.files.push(file("/srv/a.raw")));
    };
    assert_eq!(problems_after(second), [], "in another order");
    let renamed: Change = |w| {
        w.target.files[0].mounted_from = Some("10.0.0.9:/vm".into());
        [&mut w.source, &mut w.target].into_iter().for_each(|host| host.files[0].handle = Some("1:aa".into()));
    };
    assert_eq!(problems_after(renamed), [], "one file of a server that has two names");
    for (number, (change, kind, severity, parts)) in cases().enumerate() {
        let problems = problems_after(*change);
        let [problem] = &problems[..] else { panic!("case {number}, {kind:?}: {problems:#?}") };
        assert_eq!((problem.kind, problem.severity), (*kind, *severity), "case {number}, {kind:?}: {problem}");
        let told = problem.to_string();
        assert!(parts.iter().all(|part| told.contains(part)), "case {number}, {kind:?}, {parts:?}: {told}");
        assert!(!problem.cure.is_empty(), "{told}");
    }
    // Those before Other, which no check makes; two are found by agents' sessions.
    let by_sessions = [K::NicsUnused, K::LargePacketsLost];
    let kinds: BTreeSet<K> = cases().map(|(_, kind, ..)| *kind).chain(by_sessions).collect();
    assert_eq!(kinds.len(), K::Other as usize, "a kind without a case");
}

#[test]
fn what_does_not_stand_against_it_is_no_problem() {
    let changes: &[Change] = &[
        |w| w.definition = None,
        // A disk in [qemu] args, and a variable store on shared storage.
        |w| {
            for path in ["/srv/more.raw", "/srv/vars.fd"] {
                w.guest.disks.push(GuestDisk { path: path.into(), format: crate::DiskFormat::Raw, readonly: false });
                w.source.files.push(file(path));
                w.target.files.push(file(path));
            }
            let text = "name = 'web1'\nmemory = '4 GiB'\n[firmware]\nvars = '/srv/vars.fd'\n\
                        [qemu]\nargs = ['-drive', 'file=/srv/more.raw,if=virtio']";
            let Definition { firmware, qemu, .. } = Definition::parse(text, "").unwrap();
            let definition = w.definition.as_mut().unwrap();
            (definition.firmware, definition.qemu) = (firmware, qemu);
        },
        |w| (w.guest.cpu, w.guest.accel, w.guest.cpu_features) = ("max".into(), Accel::Tcg, names(&["sse4_1"])),
        |w| w.guest.cpu = "host".into(),
        |w| w.target.cpu_vendor = String::new(),
        |w| w.target.ram_available_bytes = 4 * GIB + overhead_bytes(4 * GIB, 2),
        |w| w.guest.hugepages = Some(2 * MIB),
        |w| (w.guest.disks[0].readonly, w.target.files[0].writable) = (true, false),
        // Two hosts that are namespaces of one kernel share its local file systems.
        |w| {
            w.target.boot_id = w.source.boot_id.clone();
            w.source.files[0].file_system = FileSystem::Local;
            w.target.files[0].file_system = FileSystem::Local;
        },
        // An NFS mount has another device number on each host.
        |w| w.target.files[0].device = 77,
        |w| {
            for host in [&mut w.source, &mut w.target] {
                (host.files[0].file_system, host.files[0].wwid) = (FileSystem::Unknown, Some("naa.1".into()));
            }
            w.target.files[0].inode = 5;
        },
        |w| qemu(&mut w.target).version = QemuVersion { major: 10, minor: 1, micro: 0 },
        |w| w.source.kvm = Err("asked the wrong way".into()),
    ];
    for (number, change) in changes.iter().enumerate() {
        assert_eq!(problems_after(*change), [], "case {number}");
    }
}

#[test]
fn all_problems_are_told_at_once_those_that_block_first() {
    let problems = problems_after(|w| {
        w.source.outgoing.used = 2;
        w.paths.clear();
        w.target.bridges.clear();
        w.target.qemu = Err("none".into());
        w.target.cpus = 1;
        w.guest.blockers = vec!["a".into(), "b".into()];
    });
    let kinds: Vec<K> = problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [K::NoPath, K::QemuMissing, K::Blocker, K::Blocker, K::Bridge, K::Places, K::CpusFew]);
    let under_way = problems_after(|w| {
        w.guest.migration = Some("m7".into());
        let presence = Presence::Leftover { migration: Some("m3".into()) };
        w.target.vms[0] = VmFacts { name: "web1".into(), presence };
    });
    let kinds: Vec<K> = under_way.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [K::MigrationUnderWay, K::Leftover], "what another migration left is told all the same");
    let many = problems_after(|w| w.guest.blockers = vec!["x\u{1b}".repeat(9000); 1000]);
    assert_eq!(many.len(), PROBLEMS_MAX);
    assert!(many.iter().all(|problem| problem.what.len() <= SENTENCE_BYTES_MAX && !problem.what.contains('\u{1b}')));
    let flags = problems_after(|w| w.guest.cpu_features = (0..100).map(|n| format!("f{n:02}")).collect());
    assert!(flags[0].what.ends_with("f23 and 76 more"), "{}", flags[0]);
}

#[test]
fn no_number_is_too_odd() {
    problems_after(|w| {
        (w.guest.ram_bytes, w.guest.cpus, w.guest.hugepages) = (u64::MAX, u32::MAX, Some(1));
        w.target.hugepages[0] = Hugepages { page_bytes: 1, total: u64::MAX, free: 0 };
        (w.target.ram_bytes, w.target.ram_available_bytes) = (0, u64::MAX - 1);
    });
    problems_after(|w| w.guest.hugepages = Some(0));
}

#[test]
fn facts_and_problems_go_over_a_wire() {
    let World { guest, source, paths, .. } = world();
    let again = serde_json::to_string(&(&guest, &source, &paths)).unwrap();
    let again: (GuestFacts, HostFacts, Vec<PathFacts>) = serde_json::from_str(&again).unwrap();
    assert_eq!(again, (guest, source, paths));
    for (change, kind, ..) in cases() {
        let problems = problems_after(*change);
        let json = serde_json::to_value(&problems).unwrap();
        let code = json[0]["kind"].as_str().unwrap();
        assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{kind:?}: {code}");
        assert_eq!(serde_json::from_value::<Vec<Problem>>(json).unwrap(), problems);
    }
    let newer = r#"{"kind":"moon-phase","severity":"blocks","what":"w\u001b[2J","cure":"c"}"#;
    let newer: Problem = serde_json::from_str(newer).unwrap();
    assert_eq!((newer.kind, newer.what.as_str()), (K::Other, "w\u{fffd}[2J"));
}

#[test]
fn what_a_peer_says_is_short_and_printable() {
    let mut world = world();
    let bad = format!("\u{1b}[2J{}", "x".repeat(10_000));
    let host = &mut world.target;
    host.name = bad.clone();
    host.cpu_vendor = bad.clone();
    host.kvm = Err(bad.clone());
    host.bridges = [bad.clone()].into();
    host.vms[0].presence = Presence::Leftover { migration: Some(bad.clone()) };
    host.files[0].path = bad.clone().into();
    host.files[0].file_system_name = bad.clone();
    host.nics[0].name = bad.clone();
    qemu(host).program = bad.clone().into();
    qemu(host).machines[0].alias = Some(bad.clone());
    qemu(host).accels[0].cpu_models[0].missing = vec![bad.clone()];
    qemu(host).accels[0].features = Some([bad].into());
    let json = serde_json::to_string(host).unwrap();
    let heard: HostFacts = serde_json::from_str(&json).unwrap();
    let again = serde_json::to_string(&heard).unwrap();
    assert_eq!((again.matches("\\u001b").count(), json.matches("\\u001b").count()), (0, 12));
    assert_eq!((heard.name.len(), heard.cpu_vendor.len()), (CLAIM_BYTES_MAX, CLAIM_BYTES_MAX));
}
