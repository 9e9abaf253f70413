//! Moves guests over the migration network as those do that have no Skein: QEMU alone, and Proxmox VE.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skein_agent::redirect_status;
use skein_hypervisor::QemuVersion;
use skein_lab_guest::{Guest, Image, Params, Rewrite, SharedDisk, Spec, Tuning, default_cache, migrate};

use crate::world::{PATIENCE, World};

/// Moves a guest by QEMU's own means to an address in the migration network, as Proxmox VE does, and with multifd.
#[test]
fn qemus_migrate_to_the_address() {
    let world = World::new("nq");
    world.install();
    // A word of each page changes again and again, which xbzrle sends as deltas.
    let (fill_mb, rewrite_mb) = (64, 4);
    let params = Params { fill_mb, rewrite_mb, rate: 500, rewrite: Rewrite::Word, ..Params::default() };
    let memory_mb = Spec::memory_mb_for(fill_mb);
    let image = Image::prepare(&default_cache()).unwrap();
    let spec = Spec::new("network", image, memory_mb, params);
    let slow = Tuning { max_bandwidth: 60 << 20, downtime_limit_ms: 30, ..Tuning::default() };
    for (nth, tuning) in [
        Tuning { xbzrle_cache: Some(64 << 20), ..slow },
        Tuning { multifd: Some(4), ..Tuning::default() },
        Tuning::default(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut source = Guest::boot(&spec, |qemu| world.lab.command("a", qemu).unwrap()).unwrap();
        source.wait_ready(3 * PATIENCE).unwrap();
        let mut target = Guest::incoming(&spec, |qemu| world.lab.command("b", qemu).unwrap()).unwrap();
        let address = format!("tcp:{}:{}", if nth == 1 { "[fd09::2]" } else { "10.9.9.2" }, 60000 + nth);
        let sent = || world.lab.counters("a").unwrap().values().map(|nic| nic.tx_bytes).collect::<Vec<_>>();
        let before = sent();
        let moved = migrate(&mut source, &mut target, (&address, &address), &tuning, 3 * PATIENCE, |_| {}).unwrap();
        let over: Vec<u64> = sent().iter().zip(before).map(|(after, before)| after - before).collect();
        let told = source.qemu.qmp.query("query-migrate").unwrap();
        eprintln!("{address}: {:?}, {over:?} bytes over NICs, xbzrle {}", moved.total, told["xbzrle-cache"]);
        assert!(target.agent().verify(3 * PATIENCE).unwrap().is_good(), "{address}");
        let carried: u64 = over.iter().sum();
        assert!(carried > 20 << 20, "what was carried went over the wire: {over:?}");
    }
    assert_eq!(world.lab.enter("a", redirect_status).unwrap().unwrap().unwrap().connections, 1 + 5 + 1);
}

/// The disk in MiB.
const DISK_MB: u32 = 48;

/// A guest that Proxmox VE moves: the two QEMUs, and where the target listens.
struct Proxmox<'a> {
    source: &'a Guest,
    target: &'a Guest,
    address: &'a str,
    memory_mb: u32,
}

/// Replays what qemu-server commands two QEMUs to do for a guest with a local disk and `migration: insecure` (its
/// QemuMigrate.pm, QemuServer.pm and BlockJob.pm of August 2026): an NBD server at the target, a mirror of the disk
/// into it, then the memory with xbzrle, and the mirror's end.
impl Proxmox<'_> {
    fn at_source(&self, command: &str, arguments: Value) -> Value {
        self.source.qemu.qmp.execute(command, arguments).unwrap_or_else(|error| panic!("source, {command}: {error}"))
    }

    fn at_target(&self, command: &str, arguments: Value) -> Value {
        self.target.qemu.qmp.execute(command, arguments).unwrap_or_else(|error| panic!("target, {command}: {error}"))
    }

    fn is_at_least(&self, major: u32, minor: u32) -> bool {
        *self.source.qemu.qmp.version() >= QemuVersion { major, minor, micro: 0 }
    }

    /// Sets all capabilities as Proxmox VE does: these two are on, and all others off.
    fn capabilities(guest: &Guest) {
        let all = guest.qemu.qmp.query("query-migrate-capabilities").unwrap();
        let names = all.as_array().unwrap().iter().map(|entry| entry["capability"].as_str().unwrap());
        let set: Vec<Value> = names
            .map(|name| {
                let is_on = ["auto-converge", "xbzrle"].contains(&name);
                json!({"capability": name, "state": is_on})
            })
            .collect();
        guest.qemu.qmp.execute("migrate-set-capabilities", json!({"capabilities": set})).unwrap();
    }

    fn open_target(&self) {
        self.at_target("migrate-incoming", json!({"uri": format!("tcp:{}:60000", self.address)}));
        let host = self.address.trim_matches(['[', ']']);
        let address = json!({"type": "inet", "data": {"host": host, "port": "60001"}});
        self.at_target("nbd-server-start", json!({"addr": address}));
        let export = json!({
            "id": "drive-virtio0", "node-name": "disk0", "writable": true, "type": "nbd", "name": "drive-virtio0"
        });
        self.at_target("block-export-add", export);
        Self::capabilities(self.target);
    }

    /// Starts the mirror, and waits until it follows the guest. Returns the job's name.
    fn mirror(&self) -> &'static str {
        let job = if self.is_at_least(10, 0) {
            let server = json!({"type": "inet", "host": self.address.trim_matches(['[', ']']), "port": "60001"});
            let node = json!({
                "driver": "nbd", "node-name": "mirrored", "server": server, "export": "drive-virtio0",
                "discard": "unmap", "detect-zeroes": "unmap"
            });
            self.at_source("blockdev-add", node);
            self.at_source(
                "blockdev-mirror",
                json!({
                    "device": "disk0", "target": "mirrored", "sync": "full", "auto-dismiss": false,
                    "job-id": "mirror-virtio0", "replaces": "disk0"
                }),
            );
            "mirror-virtio0"
        } else {
            self.at_source(
                "drive-mirror",
                json!({
                    "device": "disk0", "sync": "full", "auto-dismiss": false, "mode": "existing", "format": "nbd",
                    "target": format!("nbd:{}:60001:exportname=drive-virtio0", self.address), "job-id": "drive-virtio0"
                }),
            );
            "drive-virtio0"
        };
        self.wait_for_job(job, |job| job["ready"] == true);
        if self.is_at_least(8, 2) {
            self.at_source("block-job-change", json!({"id": job, "type": "mirror", "copy-mode": "write-blocking"}));
            self.wait_for_job(job, |job| job["actively-synced"] == true);
        }
        job
    }

    fn wait_for_job(&self, name: &str, is_so: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + 3 * PATIENCE;
        loop {
            let jobs = self.at_source("query-block-jobs", Value::Null);
            let job = jobs.as_array().unwrap().iter().find(|job| job["device"] == name);
            let job = job.unwrap_or_else(|| panic!("there is no job {name}: {jobs}"));
            if is_so(job) {
                return;
            }
            assert!(job["status"] != "concluded" && Instant::now() < deadline, "{job}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn memory(&self) {
        Self::capabilities(self.source);
        // A tenth of the memory, as a power of two.
        let cache = (u64::from(self.memory_mb) << 20) / 10;
        let cache = 1_u64 << cache.ilog2();
        self.at_source(
            "migrate-set-parameters",
            json!({"max-bandwidth": 16_u64 << 30, "downtime-limit": 100, "xbzrle-cache-size": cache}),
        );
        self.at_source("migrate", json!({"uri": format!("tcp:{}:60000", self.address)}));
        let deadline = Instant::now() + 3 * PATIENCE;
        loop {
            let told = self.at_source("query-migrate", Value::Null);
            match told["status"].as_str().unwrap() {
                "completed" => return,
                "failed" | "cancelled" => panic!("{told}"),
                _ => assert!(Instant::now() < deadline, "{told}"),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends the mirror at the source, which has the guest no more, and lets the guest run at the target.
    fn hand_over(&self, job: &str) {
        self.at_source("block-job-cancel", json!({"device": job}));
        self.wait_for_job(job, |job| job["status"] == "concluded");
        self.at_source("job-dismiss", json!({"id": job}));
        if job == "mirror-virtio0" {
            self.at_source("blockdev-del", json!({"node-name": "mirrored"}));
        }
        self.at_target("nbd-server-stop", Value::Null);
        self.at_target("cont", Value::Null);
    }
}

#[test]
fn proxmoxs_calls_move_a_guest_with_its_local_disk() {
    let world = World::with("nv", "allow = ['a', 'b']");
    ["a", "b"].into_iter().for_each(|host| world.install_at(host));
    let (fill_mb, rewrite_mb) = (64, 4);
    let params =
        Params { fill_mb, rewrite_mb, rate: 500, rewrite: Rewrite::Word, disk_mb: DISK_MB, ..Params::default() };
    let image = Image::prepare(&default_cache()).unwrap();
    let mut spec = Spec::new("proxmox", image, Spec::memory_mb_for(fill_mb), params);
    let of_own_disk = |spec: &Spec, dir: &str| {
        let dir = world.path(dir);
        std::fs::create_dir(&dir).unwrap();
        Spec { disk: Some(SharedDisk::create(&dir, DISK_MB).unwrap()), ..spec.clone() }
    };
    spec = of_own_disk(&spec, "disk-0");
    let mut source = Guest::boot(&spec, |qemu| world.lab.command("a", qemu).unwrap()).unwrap();
    source.wait_ready(3 * PATIENCE).unwrap();
    // There and back: each host is source and target once.
    for (nth, (to, address)) in [("b", "10.9.9.2"), ("a", "[fd09::1]")].into_iter().enumerate() {
        let spec = of_own_disk(&spec, &format!("disk-{}", nth + 1));
        let target = Guest::incoming_paused(&spec, |qemu| world.lab.command(to, qemu).unwrap()).unwrap();
        let from = if to == "b" { "a" } else { "b" };
        let caught = || world.lab.enter(from, redirect_status).unwrap().unwrap().unwrap().connections;
        let before = caught();
        let calls = Proxmox { source: &source, target: &target, address, memory_mb: spec.memory_mb };
        calls.open_target();
        let job = calls.mirror();
        calls.memory();
        calls.hand_over(job);
        assert_eq!(caught() - before, 2, "NBD's and the memory's connection were carried to {address}");
        source = target;
        let check = source.agent().verify(3 * PATIENCE).unwrap();
        assert!(check.is_good() && check.blocks > 0, "{address}: {check:?}");
    }
}
