//! Tests guests that change before they are moved and while they are. Each has to end where it should, with the very
//! drives that it had, and for the true reason. A witness apart from the agents, at a monitor of its own, compares what
//! is open and what the guest reads. Needs root. `SKEIN_CHANGES=500 SKEIN_SEED=7` tries this many migrations, drawn
//! from a seed.
// Timeout: 900 s
// QEMU: 7.2 10

mod change;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use change::{CD, CHANGES, Change, DISK, End, LATE, OTHER_CD, disk_io, open};
use skein_api::{
    FailureReason, MigrateOptions, Migration, MigrationPhase, Outcome, Reply, Request, SourcePhase, StartOptions,
    VmOrigin, VmState,
};
use skein_hypervisor::{MonitorEvent, QmpEvent};
use skein_lab_cluster::{Cluster, Seen, Settings, configuration, until};

/// At this rate the copy takes some seconds, so that there is time for a change.
const RATE_MBIT: u32 = 40;
const NOISE_BYTES: usize = 8 << 20;
/// How many labs run at the same time.
const WORLDS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(60);
/// The time within which a change that stops or affects a guest is reported: one second, and what a busy machine takes.
const NOTICE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    Meanwhile,
}

struct World {
    cluster: Cluster,
    number: u32,
}

impl World {
    fn new() -> World {
        let settings = Settings { rates: vec![Some(RATE_MBIT)], ..Settings::new(env!("CARGO_BIN_EXE_skein").into()) };
        World { cluster: Cluster::up(settings), number: 0 }
    }

    /// Makes a new guest with new images, on a.
    fn guest(&mut self) -> (String, std::path::PathBuf) {
        self.number += 1;
        let name = format!("g{}", self.number);
        let dir = self.cluster.dir().join(&name);
        fs::create_dir_all(&dir).unwrap();
        image(&["create", "-q", "-f", "qcow2", &dir.join(DISK).display().to_string(), "64M"]);
        for (name, bytes) in [(CD, 1 << 20), (OTHER_CD, 1 << 20), (LATE, 4 << 20)] {
            fs::write(dir.join(name), vec![7; bytes]).unwrap();
        }
        let noise: Vec<u8> = (0..NOISE_BYTES as u64 / 8)
            .flat_map(|n| scrambled(n ^ u64::from(self.number) << 40).to_le_bytes())
            .collect();
        fs::write(dir.join("noise"), noise).unwrap();
        let shown = dir.display();
        let args = [
            format!("'-device', 'loader,file={shown}/noise,addr=0x1000000,force-raw=on'"),
            "'-device', 'virtio-scsi-pci,id=scsi0', '-device', 'virtio-balloon-pci,id=balloon0'".into(),
            format!("'-drive', 'if=none,id=cd0,file={shown}/{CD},format=raw,media=cdrom,readonly=on'"),
            "'-device', 'scsi-cd,bus=scsi0.0,drive=cd0,id=cdrom', ".into(),
        ];
        let definition = self.cluster.bare(&name).replace("args = [", &format!("args = [{}", args.join(", ")));
        let disk = format!("[[disk]]\npath = '{shown}/{DISK}'\nformat = 'qcow2'\ncache = 'writeback'\n[qemu]\n");
        self.cluster.start_vm("a", &definition.replace("[qemu]\n", &disk));
        assert!(until(DEADLINE, || self.cluster.where_runs(&name) == ["a"]), "{name} runs");
        (name, dir)
    }

    fn seen(&self, name: &str, host: &str) -> Arc<Seen> {
        let seen =
            || self.cluster.witness().seen(name).into_iter().rfind(|seen| seen.host() == host && !seen.is_over());
        assert!(until(DEADLINE, || seen().is_some()), "{name} has a QEMU on {host}");
        seen().unwrap()
    }

    fn stop(&self, name: &str, host: &str) {
        self.cluster.asked(host, &Request::VmStop { name: name.into(), timeout_s: 0, force: true });
        self.forget(name, host);
    }

    fn forget(&self, name: &str, host: &str) {
        self.cluster.asked(host, &Request::VmForget { name: name.into() });
    }

    /// Checks that the guest is there, with the drives and the bytes that it should have.
    fn as_it_should_be(&self, name: &str, host: &str, change: Change, byte: u8) {
        let seen = self.seen(name, host);
        let told = open(seen.monitor());
        assert_eq!(told, (change.image().to_owned(), change.cd().map(str::to_owned)), "{change:?}: on {host}");
        disk_io(seen.monitor(), &format!("read -P {byte:#x} 0 64k"));
        let pid = seen.process().pid;
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let names: Vec<String> =
            fds.filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.display().to_string())).collect();
        let dir = self.cluster.dir().join(name);
        assert!(names.contains(&dir.join(change.image()).display().to_string()), "{names:?}");
    }

    /// Runs one migration. Returns how it ended.
    fn round(&mut self, change: Change, when: When) -> End {
        let (name, dir) = self.guest();
        let byte = (self.number % 255) as u8 + 1;
        let source = self.seen(&name, "a");
        disk_io(source.monitor(), &format!("write -P {byte:#x} 0 64k"));
        let end = match when {
            When::Before => {
                change.happen(source.monitor(), &dir);
                self.migrate_changed(&name)
            }
            When::Meanwhile => {
                let begun = self.cluster.begin(&name, "a", "b", MigrateOptions::default());
                self.wait_copying(&begun);
                change.happen(source.monitor(), &dir);
                let happened = Instant::now();
                let over = self.cluster.watched("a", begun.id);
                self.judge(&name, change, &over, happened)
            }
        };
        let host = if end == End::Moved { "b" } else { "a" };
        self.as_it_should_be(&name, host, change, byte);
        match end {
            End::CalledOffHalted => assert_eq!(self.cluster.vm("a", &name).state, VmState::Paused),
            End::Blocked if change == Change::Paused => {}
            _ => assert_eq!(self.cluster.where_runs(&name), [host], "{change:?} {when:?}"),
        }
        self.stop(&name, host);
        self.cluster.wait_clean(DEADLINE);
        let _ = fs::remove_dir_all(dir);
        end
    }

    fn migrate_changed(&self, name: &str) -> End {
        let check = self.cluster.check_move(name, "a", "b");
        check.problems.iter().for_each(|problem| println!("  {problem}"));
        if check.blocks() {
            // The migration is blocked, too, if no check is asked for first.
            let request =
                Request::Migrate { vm: name.into(), to: "b".into(), options: MigrateOptions::default(), detach: false };
            assert!(matches!(self.cluster.asked("a", &request), Reply::Check(check) if check.blocks()));
            return End::Blocked;
        }
        self.cluster.moved(name, "a", "b");
        End::Moved
    }

    fn wait_copying(&self, begun: &Migration) {
        let is_copying = || {
            let now = self.cluster.migration("a", begun.id);
            assert!(now.outcome.is_none(), "{now:?}");
            now.stage == Some(MigrationPhase::Source(SourcePhase::Precopy))
                && now.copy.is_some_and(|copy| copy.transferred_bytes > 100_000)
        };
        assert!(until(DEADLINE, is_copying), "the copy begins");
    }

    fn judge(&self, name: &str, change: Change, over: &Migration, happened: Instant) -> End {
        if over.outcome == Some(Outcome::Moved) {
            return End::Moved;
        }
        assert_eq!(
            (over.outcome, over.why),
            (Some(Outcome::CalledOff), Some(FailureReason::GuestChanged)),
            "{change:?}: {over:?}"
        );
        let is_named = change.reasons().iter().any(|reason| over.detail.contains(reason));
        assert!(is_named, "{change:?}: {}", over.detail);
        assert!(happened.elapsed() < NOTICE, "{change:?}: told after {:?}", happened.elapsed());
        match self.cluster.vm("a", name).state {
            VmState::Paused => End::CalledOffHalted,
            _ => End::CalledOff,
        }
    }
}

fn image(args: &[&str]) {
    let done = Command::new("qemu-img").args(args).status().expect("qemu-img is there");
    assert!(done.success(), "qemu-img {args:?}");
}

fn scrambled(n: u64) -> u64 {
    let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// Tests each kind of change, before and during a migration; or as many as are asked for, drawn from a seed.
#[test]
fn a_guest_that_changes_ends_where_it_has_to_with_what_it_has() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let can = |(change, when): &(Change, When)| *when == When::Before || change.may_come_meanwhile();
    let all: Vec<(Change, When)> = match number("SKEIN_CHANGES") {
        None => CHANGES
            .into_iter()
            .flat_map(|change| [(change, When::Before), (change, When::Meanwhile)])
            .filter(can)
            .collect(),
        Some(count) => {
            let seed = number("SKEIN_SEED").unwrap_or(1);
            println!("{count} migrations, seed {seed}");
            let draw = |n: u64| scrambled(scrambled(seed) ^ n) as usize;
            let pick = |n: u64| {
                let when = if draw(2 * n + 1) >> 8 & 1 == 0 { When::Before } else { When::Meanwhile };
                (CHANGES[(draw(2 * n) >> 8) % CHANGES.len()], when)
            };
            (0..).map(pick).filter(can).take(count as usize).collect()
        }
    };
    let next = Mutex::new(all.into_iter());
    let (ends, wrong) = (Mutex::new(BTreeMap::<String, u32>::new()), Mutex::new(Vec::new()));
    // The worlds mostly wait for slow links.
    thread::scope(|scope| {
        for _ in 0..WORLDS {
            scope.spawn(|| {
                let mut world = World::new();
                loop {
                    let drawn = next.lock().unwrap().next();
                    let Some((change, when)) = drawn else { break };
                    let since = Instant::now();
                    let end = world.round(change, when);
                    let expected = if when == When::Before { change.before() } else { change.meanwhile() };
                    if end != expected {
                        wrong.lock().unwrap().push(format!("{change:?} {when:?}: {end:?}, not {expected:?}"));
                    }
                    println!("{change:?} {when:?}: {end:?}, {:.1} s", since.elapsed().as_secs_f64());
                    *ends.lock().unwrap().entry(format!("{end:?}")).or_default() += 1;
                }
                world.cluster.check();
            });
        }
    });
    println!("{:?}", ends.lock().unwrap());
    assert!(wrong.lock().unwrap().is_empty(), "{wrong:#?}");
}

/// Tests changes while the guest stands still for the switchover: a change that QEMU still makes to its drives keeps
/// the guest at the source. A change that QEMU makes after the guest's state has left, or refuses, is not part of the
/// guest.
#[test]
fn what_changes_in_the_switchover_is_noticed_to_its_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, seed) = (number("SKEIN_CHANGES").map_or(3, |count| count / 5), number("SKEIN_SEED").unwrap_or(1));
    // There is no resize: QEMU 10 refuses one then, and QEMU 7.2 ends with an assertion of its own, even without a
    // migration by Skein.
    let kinds = [Change::Snapshot, Change::OtherMedium, Change::Ejected];
    let mut world = World::new();
    let mut in_time = 0;
    for n in 0..count {
        let change = kinds[n as usize % kinds.len()];
        let (name, dir) = world.guest();
        let byte = (world.number % 255) as u8 + 1;
        let source = world.seen(&name, "a");
        disk_io(source.monitor(), &format!("write -P {byte:#x} 0 64k"));
        let events = source.monitor().subscribe(1000);
        let begun = world.cluster.begin(&name, "a", "b", MigrateOptions::default());
        let is = |event: &QmpEvent, status: &str| event.name == "MIGRATION" && event.data["status"] == status;
        let mut heard = Vec::new();
        while !heard.iter().any(|event: &QmpEvent| event.name == "STOP") {
            let Some(MonitorEvent::Event(event)) = events.next(DEADLINE) else {
                panic!("it is never stopped: {heard:?}")
            };
            heard.push(event);
        }
        // The rest of the copy takes some tens of milliseconds.
        thread::sleep(Duration::from_micros(scrambled(seed << 32 | n) % 40_000));
        let (command, arguments) = change.command(&dir).unwrap();
        let was_done = source.monitor().execute(command, arguments);
        while let Some(MonitorEvent::Event(event)) = events.next(Duration::ZERO) {
            heard.push(event);
        }
        // Events and answers come in the order in which QEMU sent them.
        let was_in_time = was_done.is_ok() && !heard.iter().any(|event| is(event, "completed"));
        let happened = Instant::now();
        let over = world.cluster.watched("a", begun.id);
        let end = world.judge(&name, change, &over, happened);
        println!("{change:?}: {end:?}, done {was_done:?}, in time: {was_in_time}");
        assert!(!was_in_time || end == End::CalledOff, "{change:?} was done, and lost: {over:?}");
        in_time += u64::from(was_in_time);
        let (host, has) = match end {
            End::Moved => ("b", Change::Nothing),
            _ => ("a", change),
        };
        world.as_it_should_be(&name, host, has, byte);
        assert_eq!(world.cluster.where_runs(&name), [host]);
        world.stop(&name, host);
        world.cluster.wait_clean(DEADLINE);
        let _ = fs::remove_dir_all(dir);
    }
    println!("{in_time} of {count} before the guest's state had left");
    world.cluster.check();
}

/// Moves a guest back: the target knows its guest as well as the source did.
#[test]
fn a_guest_with_another_image_comes_back() {
    let mut world = World::new();
    let (name, dir) = world.guest();
    disk_io(world.seen(&name, "a").monitor(), "write -P 0x11 0 64k");
    Change::Snapshot.happen(world.seen(&name, "a").monitor(), &dir);
    world.cluster.moved(&name, "a", "b");
    world.as_it_should_be(&name, "b", Change::Snapshot, 0x11);
    disk_io(world.seen(&name, "b").monitor(), "write -P 0x22 0 64k");
    assert!(
        world.cluster.vm("b", &name).definition.unwrap().contains("overlay.qcow2"),
        "its definition names what it has"
    );
    world.cluster.moved(&name, "b", "a");
    world.as_it_should_be(&name, "a", Change::Snapshot, 0x22);
    assert!(Path::new(&dir).exists());
    world.stop(&name, "a");
    world.cluster.check();
}

fn start(from: VmOrigin, as_defined: bool) -> Request {
    Request::VmStart { from, options: StartOptions { as_defined, ..StartOptions::default() } }
}

/// Tests that what QEMU was told at a monitor that is not the agent's is known when the guest is started again.
#[test]
fn a_guest_that_is_started_again_has_what_it_last_had() {
    let mut world = World::new();
    let (name, dir) = world.guest();
    let by_name = || VmOrigin::Name(name.clone());
    let file = world.cluster.vm("a", &name).definition.unwrap();
    disk_io(world.seen(&name, "a").monitor(), "write -P 0x11 0 64k");
    Change::Snapshot.happen(world.seen(&name, "a").monitor(), &dir);
    disk_io(world.seen(&name, "a").monitor(), "write -P 0x22 0 64k");
    world.cluster.asked("a", &Request::VmStop { name: name.clone(), timeout_s: 0, force: true });
    let told = world.cluster.refused("a", &start(VmOrigin::Definition { file: "old.toml".into(), text: file }, false));
    for part in ["overlay.qcow2", DISK, "an overlay of", "qemu-img commit", "--as-defined"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    world.cluster.asked("a", &start(by_name(), false));
    world.as_it_should_be(&name, "a", Change::Snapshot, 0x22);
    // A CD that is changed, and a QEMU that is killed after it was looked at.
    Change::OtherMedium.happen(world.seen(&name, "a").monitor(), &dir);
    let shown = |device: &str| {
        let drives = world.cluster.vm("a", &name).drives;
        drives.into_iter().find(|drive| drive.name == device).unwrap().image.unwrap()
    };
    assert!(shown("cd0").ends_with(OTHER_CD));
    assert!(world.cluster.kill_qemu(&name, "a"));
    world.cluster.wait(DEADLINE, "it is off", || world.cluster.vm("a", &name).state == VmState::Stopped);
    let told = world.cluster.refused("a", &start(by_name(), false));
    assert!(told.contains(OTHER_CD) && told.contains(CD) && told.contains("cd0"), "{told}");
    world.cluster.asked("a", &start(by_name(), true));
    world.as_it_should_be(&name, "a", Change::Snapshot, 0x22);
    world.stop(&name, "a");
    world.cluster.check();
}

/// Tests the same with a guest that was adopted, whose `-blockdev` is not changed for it.
#[test]
fn an_adopted_guest_is_not_started_with_an_old_image_in_silence() {
    let world = World::new();
    let cluster = &world.cluster;
    let (dir, sockets) = (cluster.dir().join("old1"), cluster.sockets());
    fs::create_dir_all(&dir).unwrap();
    image(&["create", "-q", "-f", "qcow2", &dir.join(DISK).display().to_string(), "64M"]);
    cluster.witness().watch(&sockets, "old1");
    let qmp = dir.join("qmp");
    let program = std::env::var("SKEIN_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".into());
    let line = format!(
        "-name old1 -nodefaults -no-user-config -display none -accel tcg -machine q35 -m 64 -qmp \
         unix:{},server=on,wait=off \
         -blockdev driver=qcow2,node-name=disk0,file.driver=file,file.filename={} -device virtio-blk-pci,drive=disk0",
        qmp.display(),
        dir.join(DISK).display()
    );
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    fs::write(dir.join("cfg"), configuration(&sockets, "old1")).unwrap();
    words.extend(["-readconfig".into(), dir.join("cfg").display().to_string()]);
    let mut child = cluster.spawn("a", Path::new(&program), &words);
    cluster.wait(DEADLINE, "it runs", || cluster.where_runs("old1") == ["a"]);
    cluster.asked("a", &Request::VmAdopt { qmp, name: None });
    Change::Snapshot.happen(world.seen("old1", "a").monitor(), &dir);
    cluster.asked("a", &Request::VmStop { name: "old1".into(), timeout_s: 0, force: true });
    let _ = child.wait();
    let from = VmOrigin::Name("old1".into());
    let told = cluster.refused("a", &start(from, false));
    for part in ["last had", "overlay.qcow2", "its command line names", DISK, "skein vm adopt", "--as-defined"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    world.forget("old1", "a");
    cluster.check();
}
