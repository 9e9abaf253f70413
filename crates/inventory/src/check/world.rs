//! What tests check, as a world that they change.

use std::collections::{BTreeMap, BTreeSet};

use skein_units::{GIB, MIB};

use super::{TargetLaunch, check};
use crate::composition::{Composition, Drive, Medium};
use crate::definition::{Accel, Attachment, Definition};
use crate::facts::{
    AccelFacts, CpuModel, FileFacts, FileSystem, GuestDisk, GuestFacts, GuestNic, HostFacts, Hugepages, MachineType,
    MigrationSlots, NicFacts, PathFacts, Presence, QemuFacts, QemuVersion, VmFacts,
};
use crate::problem::{Problem, ProblemKind, Severity};
use crate::room::{Resource, Room, RoomLimit};

/// Two hosts, a guest, and what its QEMU is started from.
pub(super) struct World {
    pub(super) guest: GuestFacts,
    pub(super) definition: Option<Definition>,
    pub(super) args: Vec<String>,
    pub(super) launched: Composition,
    pub(super) source: HostFacts,
    pub(super) target: HostFacts,
    pub(super) paths: Vec<PathFacts>,
}

pub(super) fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

pub(super) fn file(path: &str) -> FileFacts {
    FileFacts {
        path: path.into(),
        readable: true,
        writable: true,
        file_system: FileSystem::Network,
        file_system_name: "nfs".into(),
        device: 40,
        inode: 1234,
        mounted_from: Some("nas:/vm".into()),
        handle: None,
        wwid: None,
    }
}

/// Returns a model that is whole; the later in the list, the more features.
fn whole((name, features): (&&str, u32)) -> CpuModel {
    CpuModel { name: (*name).to_owned(), missing: Vec::new(), feature_count: Some(features) }
}

pub(super) fn host(name: &str) -> HostFacts {
    let accel = |accel, models: &[&str], features: &[&str]| AccelFacts {
        accel,
        cpu_models: models.iter().zip(1..).map(whole).collect(),
        features: Some(names(features)),
    };
    HostFacts {
        name: name.into(),
        boot_id: Some(format!("boot of {name}")),
        ram_bytes: 64 * GIB,
        ram_available_bytes: 32 * GIB,
        kept_ram_bytes: 0,
        room: None,
        hugepages: vec![Hugepages { page_bytes: 2 * MIB, total: 4096, free: 2048 }],
        cpus: 16,
        cpu_vendor: "AuthenticAMD".into(),
        cpu_flags: names(&["sse4_1", "avx2"]),
        kvm: Ok(()),
        qemu: Ok(QemuFacts {
            program: "/usr/bin/qemu-system-x86_64".into(),
            version: QemuVersion { major: 10, minor: 0, micro: 2 },
            machines: vec![MachineType { name: "pc-q35-10.0".into(), alias: Some("q35".into()) }],
            accels: vec![
                accel(Accel::Kvm, &["host", "max", "EPYC-v4"], &["sse4-1", "avx2"]),
                accel(Accel::Tcg, &["max"], &["sse4-1"]),
            ],
        }),
        bridges: names(&["br0"]),
        taps_in_use: names(&["tap0"]),
        vms: vec![VmFacts { name: "other".into(), presence: Presence::Guest }],
        incoming: MigrationSlots { limit: 2, used: 1 },
        outgoing: MigrationSlots { limit: 2, used: 1 },
        journal: Ok(()),
        files: vec![file("/srv/web1.qcow2"), file("/boot/vmlinuz"), file("/boot/initrd")],
        digests: BTreeMap::from([("/boot/vmlinuz".into(), "1".into()), ("/boot/initrd".into(), "2".into())]),
        nics: vec![NicFacts { name: "eth0".into(), speed_bits_per_s: Some(1_000_000_000) }],
        swtpm: Some("0.7.1".into()),
        closed: None,
    }
}

/// Returns a world in which nothing stands against the migration.
pub(super) fn world() -> World {
    let nic = |attachment| GuestNic { attachment, moved: None };
    let text = "name = 'web1'\nmemory = '4 GiB'\ncpus = 2\nmachine = 'pc-q35-10.0,smm=off'\nkernel = \
                '/boot/vmlinuz'\n\
                initrd = '/boot/initrd'\n[[disk]]\npath = '/srv/web1.qcow2'\nformat = 'qcow2'\n";
    World {
        guest: GuestFacts {
            name: "web1".into(),
            adopted: false,
            qemu: QemuVersion { major: 10, minor: 0, micro: 3 },
            machine_type: "pc-q35-10.0".into(),
            accel: Accel::Kvm,
            cpu: "EPYC-v4,+avx2".into(),
            cpu_features: names(&["sse4.1", "avx2"]),
            cpus: 2,
            ram_bytes: 4 * GIB,
            device_bytes: 0,
            ram_shared: true,
            hugepages: None,
            blockers: Vec::new(),
            passed_through: Vec::new(),
            disks: vec![GuestDisk {
                path: "/srv/web1.qcow2".into(),
                format: crate::DiskFormat::Qcow2,
                readonly: false,
            }],
            loaded: vec!["/boot/vmlinuz".into(), "/boot/initrd".into()],
            ram_files: vec!["/dev/shm/web1".into()],
            nics: vec![
                nic(Some(Attachment::Bridge("br0".into()))),
                nic(Some(Attachment::Tap("tap7".into()))),
                nic(None),
            ],
            composition: Composition::default(),
            hot_plugged: Vec::new(),
            left_behind: Vec::new(),
            run_state: "running".into(),
            copy: None,
            locks_ram: false,
            migration: None,
            holds_migration: false,
        },
        definition: Some(Definition::parse(text, "web1.toml").unwrap()),
        source: host("hosta"),
        target: host("hostb"),
        args: Vec::new(),
        launched: Composition::default(),
        paths: vec![PathFacts {
            local: "eth0".into(),
            remote: "10.0.0.2".into(),
            bits_per_s: Some(1_000_000_000),
            source_excludes: false,
            target_excludes: false,
        }],
    }
}

pub(super) fn qemu(host: &mut HostFacts) -> &mut QemuFacts {
    host.qemu.as_mut().unwrap()
}

/// A change to a world in which nothing stands against the migration.
pub(super) type Change = fn(&mut World);

pub(super) fn drive(device: &str) -> Drive {
    let medium = Medium {
        chain: Vec::new(),
        beside: BTreeMap::new(),
        read_only: true,
        tuning: BTreeMap::new(),
        bitmaps: BTreeSet::new(),
    };
    Drive { device: device.into(), name: String::new(), removable: true, medium: Some(medium) }
}

/// A change, and the one problem that it makes: its kind, its severity, and parts of its text.
pub(super) type Case = (Change, ProblemKind, Severity, &'static [&'static str]);

/// Returns the problems after a change.
pub(super) fn problems_after(change: Change) -> Vec<Problem> {
    let mut world = world();
    change(&mut world);
    let World { guest, definition, args, launched, source, target, paths } = &world;
    let start = match definition {
        Some(definition) => TargetLaunch::Definition { definition, launched: Some(launched), given: &[] },
        None => TargetLaunch::CommandLine(args),
    };
    check(guest, start, source, target, paths)
}

/// Returns a room with one limit of memory, of which so much is used.
pub(super) fn group_of(limit: u64, used: u64) -> Room {
    let (owner, name) = ("the control group /sys/fs/cgroup/m".into(), "memory.max".into());
    let (promised, promised_to) = (0, Vec::new());
    let limits = vec![RoomLimit { resource: Resource::Ram, owner, name, limit, used, promised, promised_to }];
    Room { limits, unread: Vec::new() }
}
