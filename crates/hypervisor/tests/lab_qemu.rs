//! Tests real QEMUs: processes that outlive their starter, a monitor for several threads, facts, and what both ends of
//! a migration do, step by step, also if an end dies. The guest is a BIOS without anything to boot.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.3

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getsid};
use serde_json::json;
use skein_hypervisor::guest::facts::{Accel, InspectedGuest};
use skein_hypervisor::inspect::{QemuProgram, block_nodes};
use skein_hypervisor::{
    Announcement, Config, Disk, Error, Events, Exit, Log, MigrationStatus, Monitor, MonitorEvent, Nic, NicBackend,
    Process, ProcessId, QemuVersion, QmpError, RunState, Tuning, connect_started, kvm, spawn_detached,
};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(20);
/// Says how many checks in a row of a halted CPU, and with what time between, show that its guest has come to rest.
const HALTED_LOOKS: u32 = 10;
const HALTED_LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Says how many looks in a row at threads that all sleep show that a QEMU has read what was sent to it.
const ASLEEP_LOOKS: u32 = 5;
const ASLEEP_LOOK_PERIOD: Duration = Duration::from_millis(20);
/// The rate, in bytes a second, and the milliseconds by which a switchover begins only when less is left than a socket
/// holds: 50 kB.
const SMALL_SWITCHOVER: (u64, u64) = (50_000_000, 1);
/// Says in what time something that must not happen would have happened.
const A_WHILE: Duration = Duration::from_millis(400);

fn config(directory: &Path) -> Config {
    let mut config = Config::new("lab", 64 << 10, directory.join("qmp"));
    config.sandbox = true;
    config.no_reboot = false;
    config
}

/// A process that is killed when this is dropped, also if a test fails.
struct Killed(Process);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill(DEADLINE);
    }
}

/// A QEMU, its monitor, and the events so far.
struct Vm {
    process: Killed,
    monitor: Monitor,
    events: Events,
    told: Vec<String>,
    log: Log,
    directory: TempDir,
}

impl Drop for Vm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            while self.hear(Duration::ZERO).is_some_and(|heard| heard != "closed") {}
            eprintln!("a QEMU of this test told {:?} and wrote: {}", self.told, self.log.tail());
        }
    }
}

impl Vm {
    fn start(change: impl FnOnce(Config) -> Config) -> Self {
        let directory = TempDir::with_prefix("skein-lab-qemu").unwrap();
        let config = change(config(directory.path()));
        let (process, log) = spawn_detached(&config, &directory.path().join("log"), |p| Command::new(p)).unwrap();
        let process = Killed(process);
        let monitor = connect_started(&process.0, &log, &config.qmp, DEADLINE).unwrap();
        let events = monitor.subscribe(100);
        Self { process, monitor, events, told: Vec::new(), log, directory }
    }

    /// Reads events until `wanted`: an event's name, or the status of a MIGRATION event.
    fn await_event(&mut self, wanted: &str) {
        let end = Instant::now() + DEADLINE;
        while self.hear(end.saturating_duration_since(Instant::now())).is_none_or(|heard| heard != wanted) {
            assert!(Instant::now() < end, "no {wanted} after {:?}: {:?}", self.told, self.monitor.migration());
        }
    }

    /// Waits until the BIOS has found that there is nothing to boot. From then on it dirties no more RAM than a socket
    /// holds.
    fn await_rest(&self) {
        let end = Instant::now() + DEADLINE;
        let mut halted = 0;
        while halted < HALTED_LOOKS {
            assert!(Instant::now() < end, "the BIOS does not come to rest");
            let registers = self.monitor.execute("human-monitor-command", json!({ "command-line": "info registers" }));
            halted = if registers.unwrap().as_str().unwrap().contains("HLT=1") { halted + 1 } else { 0 };
            std::thread::sleep(HALTED_LOOK_PERIOD);
        }
    }

    /// Waits until this target has read all that was sent so far: a thread that has something to read is runnable, also
    /// on a busy machine.
    fn await_all_read(&self) {
        let tasks = format!("/proc/{}/task", self.process.0.id().pid);
        let asleep = || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                // The state follows the name, which is in parentheses.
                std::fs::read_to_string(task.unwrap().path().join("stat"))
                    .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
            })
        };
        let end = Instant::now() + DEADLINE;
        let mut looks = 0;
        while looks < ASLEEP_LOOKS {
            assert!(Instant::now() < end, "the target does not come to the end of what was sent");
            looks = if asleep() { looks + 1 } else { 0 };
            std::thread::sleep(ASLEEP_LOOK_PERIOD);
        }
    }

    /// Returns the next event within `wait`. Passes over the RAM are left out: their number does not matter.
    fn hear(&mut self, wait: Duration) -> Option<String> {
        let end = Instant::now() + wait;
        loop {
            let heard = match self.events.next(end.saturating_duration_since(Instant::now()))? {
                MonitorEvent::Closed => "closed".into(),
                MonitorEvent::Event(event) if event.name == "MIGRATION_PASS" => continue,
                MonitorEvent::Event(event) => match MigrationStatus::of_event(&event) {
                    Some(status) => serde_json::to_value(status).unwrap().as_str().unwrap().into(),
                    None => event.name,
                },
            };
            self.told.push(heard.clone());
            return Some(heard);
        }
    }

    /// Returns the names of all events so far, with those that come within a while.
    fn event_names(&mut self) -> Vec<&str> {
        while self.told.last().is_none_or(|last| last != "closed") && self.hear(A_WHILE).is_some() {}
        // 10.0 sometimes sends it twice.
        self.told.dedup_by(|a, b| a == b && a == "failed");
        self.told.iter().map(String::as_str).collect()
    }

    /// Waits until a cancelled migration is over. The migration may end in `failed`, if the cut connections are noticed
    /// before the reason is; the guest runs then, too. Returns whether it did.
    fn failed_instead(&mut self) -> bool {
        let end = Instant::now() + DEADLINE;
        while !self.told.iter().any(|told| ["cancelled", "failed"].contains(&told.as_str())) {
            assert!(Instant::now() < end, "not cancelled after {:?}: {:?}", self.told, self.monitor.migration());
            self.hear(A_WHILE);
        }
        let failed = self.event_names().contains(&"failed");
        if failed {
            assert_eq!(self.state(), (MigrationStatus::Failed, RunState::Running));
        }
        failed
    }

    /// Forgets an event: cancelled in pre-switchover, 7.2 sometimes goes on before it goes back.
    fn forget(&mut self, event: &str) {
        self.told.retain(|told| told != event);
    }

    fn state(&self) -> (MigrationStatus, RunState) {
        (self.monitor.migration().unwrap().status, self.monitor.run_state().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.0.id().pid as i32), signal).unwrap();
    }

    fn kill(&self) {
        self.process.0.kill(DEADLINE).unwrap().expect("is gone");
    }
}

/// How far a migration goes before something happens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The guest is copied, and a low rate keeps the migration there.
    Active,
    PreSwitchover,
    /// All bytes have left, and a target that does not run keeps the migration there.
    Device,
    Completed,
}

/// Returns a source and a target, migrated up to `phase`; with multifd if a migration that fails is not left to luck:
/// see [`skein_hypervisor::migration`] about QEMU 7.2.
fn migrate(phase: Phase) -> (Vm, Vm) {
    let safe = |version: &QemuVersion| phase == Phase::Completed || version.major >= 8;
    migrate_over(phase, safe, Path::to_owned)
}

/// Returns the same, with multifd if `multifd`, over the socket that `relay` makes of the target's.
fn migrate_over(
    phase: Phase,
    multifd: impl FnOnce(&QemuVersion) -> bool,
    relay: impl FnOnce(&Path) -> PathBuf,
) -> (Vm, Vm) {
    let mut source = Vm::start(|config| config);
    let mut target = Vm::start(Config::as_incoming);
    let multifd = multifd(source.monitor.version());
    if phase == Phase::Device {
        source.await_rest();
    }
    let defaults = Tuning::default();
    // What is left has to fit into the sockets of a target that does not read: a source that waits for room holds what
    // its monitor needs, and does not answer.
    let (switchover_rate, downtime_limit_ms) =
        if phase == Phase::Device { SMALL_SWITCHOVER } else { (1 << 30, defaults.downtime_limit_ms) };
    let tuning = Tuning {
        multifd: multifd.then_some(2),
        pause_before_switchover: true,
        events: true,
        max_bandwidth: if phase == Phase::Active { 100_000 } else { u64::MAX },
        downtime_limit_ms,
        avail_switchover_bandwidth: (phase != Phase::Active).then_some(switchover_rate),
        ..defaults
    };
    source.monitor.tune(&tuning).unwrap();
    target.monitor.tune(&Tuning { pause_before_switchover: false, ..tuning }).unwrap();
    let socket = target.directory.path().join("migration");
    target.monitor.migrate_incoming(&format!("unix:{}", socket.display())).unwrap();
    source.monitor.migrate(&format!("unix:{}", relay(&socket).display())).unwrap();
    source.await_event("active");
    target.await_event("active");
    if phase == Phase::Active {
        return (source, target);
    }
    source.await_event("pre-switchover");
    assert_eq!(source.state(), (MigrationStatus::PreSwitchover, RunState::FinishMigrate));
    assert_eq!(target.state(), (MigrationStatus::Active, RunState::InMigrate));
    if phase == Phase::PreSwitchover {
        return (source, target);
    }
    if phase == Phase::Device {
        target.await_all_read();
        target.signal(Signal::SIGSTOP);
    }
    source.monitor.migrate_continue().unwrap();
    source.await_event("device");
    if phase == Phase::Device {
        assert_eq!(source.hear(A_WHILE), None, "the source waits for the target's word");
        assert_eq!(source.state(), (MigrationStatus::Device, RunState::FinishMigrate));
        return (source, target);
    }
    source.await_event("completed");
    target.await_event("completed");
    (source, target)
}

const BEFORE_DEVICE: [&str; 4] = ["setup", "active", "STOP", "pre-switchover"];

#[test]
fn a_migration_by_events() {
    let (mut source, mut target) = migrate(Phase::Completed);
    assert_eq!(source.event_names(), ["setup", "active", "STOP", "pre-switchover", "device", "completed"]);
    assert_eq!(target.event_names(), ["setup", "active", "completed"]);
    assert_eq!(source.state(), (MigrationStatus::Completed, RunState::PostMigrate));
    assert_eq!(target.state(), (MigrationStatus::Completed, RunState::Paused));

    // The cancel is too late: nothing happens.
    source.monitor.migrate_cancel().unwrap();
    assert_eq!(source.state(), (MigrationStatus::Completed, RunState::PostMigrate));

    target.monitor.announce_self(&Announcement::default()).unwrap();
    target.monitor.cont().unwrap();
    target.await_event("RESUME");
    assert!(target.monitor.is_running().unwrap());
    // QEMU does not mind: a grant is needed for this.
    source.monitor.cont().unwrap();
    source.await_event("RESUME");
    assert!(source.monitor.is_running().unwrap());
}

#[test]
fn the_target_dies() {
    for phase in [Phase::Active, Phase::PreSwitchover, Phase::Device, Phase::Completed] {
        let (mut source, target) = migrate(phase);
        target.kill();
        match phase {
            Phase::Active => {
                source.await_event("failed");
                assert_eq!(source.event_names(), ["setup", "active", "failed"]);
                assert_eq!(source.state(), (MigrationStatus::Failed, RunState::Running));
            }
            Phase::PreSwitchover => {
                assert_eq!(source.hear(A_WHILE), None, "it does not notice");
                assert_eq!(source.state(), (MigrationStatus::PreSwitchover, RunState::FinishMigrate));
                let refused = source.monitor.cont().unwrap_err();
                assert!(matches!(&refused, QmpError::Refused { .. }), "{refused}");
                source.monitor.migrate_cancel().unwrap();
                if source.failed_instead() {
                    continue;
                }
                source.forget("device");
                assert_eq!(source.event_names(), [&BEFORE_DEVICE[..], &["cancelling", "RESUME", "cancelled"]].concat());
                assert_eq!(source.state(), (MigrationStatus::Cancelled, RunState::Running));
            }
            Phase::Device => {
                // The source runs by itself, whatever the target had.
                source.await_event("RESUME");
                assert_eq!(source.event_names(), [&BEFORE_DEVICE[..], &["device", "failed", "RESUME"]].concat());
                assert_eq!(source.state(), (MigrationStatus::Failed, RunState::Running));
            }
            Phase::Completed => {
                assert_eq!(source.hear(A_WHILE), None);
                assert_eq!(source.state(), (MigrationStatus::Completed, RunState::PostMigrate));
                source.monitor.cont().unwrap();
                assert!(source.monitor.is_running().unwrap());
            }
        }
    }
}

/// Carries connections to `socket`, and reads from the source also when the target is gone. Returns the source's ends,
/// in order.
fn relay(socket: &Path, count: usize) -> (PathBuf, Arc<Mutex<Vec<UnixStream>>>) {
    fn carry(mut from: UnixStream, mut to: UnixStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let _ = to.write_all(&buffer[..count]);
        }
    }
    let path = socket.with_extension("relay");
    let listener = UnixListener::bind(&path).unwrap();
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let (accepting, socket) = (Arc::clone(&accepted), socket.to_owned());
    std::thread::spawn(move || {
        for source in listener.incoming().take(count).map(Result::unwrap) {
            let target = UnixStream::connect(&socket).unwrap();
            let (source_reads, target_reads) = (source.try_clone().unwrap(), target.try_clone().unwrap());
            accepting.lock().unwrap().push(source.try_clone().unwrap());
            std::thread::spawn(move || carry(source, target));
            std::thread::spawn(move || carry(target_reads, source_reads));
        }
    });
    (path, accepted)
}

#[test]
fn a_source_survives_if_its_main_channel_goes_first() {
    for cancel in [false, true].repeat(3) {
        let mut channels = None;
        let (mut source, target) = migrate_over(
            Phase::PreSwitchover,
            |_| true,
            |socket| {
                let (path, accepted) = relay(socket, 3);
                channels = Some(accepted);
                path
            },
        );
        let channels = channels.unwrap();
        target.kill();
        source.monitor.migrate_continue().unwrap();
        source.await_event("device");
        if cancel {
            source.monitor.migrate_cancel().unwrap();
        } else {
            channels.lock().unwrap()[0].shutdown(Shutdown::Both).unwrap();
        }
        source.await_event("RESUME");
        let told = source.event_names();
        assert!(told.contains(&"failed") || cancel && told.contains(&"cancelled"), "{told:?}");
        assert!(source.monitor.is_running().unwrap());
        for channel in channels.lock().unwrap().iter() {
            let _ = channel.shutdown(Shutdown::Both);
        }
        assert!(source.monitor.is_running().unwrap());
    }
}

#[test]
fn a_migration_is_cancelled() {
    for phase in [Phase::Active, Phase::PreSwitchover, Phase::Device] {
        let (mut source, mut target) = migrate(phase);
        if phase == Phase::Device {
            assert!(matches!(source.monitor.cont(), Err(QmpError::Refused { .. })));
        }
        source.monitor.migrate_cancel().unwrap();
        if source.failed_instead() {
            continue;
        }
        let wanted = match phase {
            Phase::Active => vec!["setup", "active", "cancelling", "cancelled"],
            Phase::PreSwitchover => [&BEFORE_DEVICE[..], &["cancelling", "RESUME", "cancelled"]].concat(),
            _ => [&BEFORE_DEVICE[..], &["device", "cancelling", "RESUME", "cancelled"]].concat(),
        };
        if phase == Phase::PreSwitchover {
            source.forget("device");
        }
        assert_eq!(source.event_names(), wanted);
        assert_eq!(source.state(), (MigrationStatus::Cancelled, RunState::Running));
        if phase == Phase::Device {
            target.signal(Signal::SIGCONT);
            target.await_event("completed");
            assert_eq!(
                target.state(),
                (MigrationStatus::Completed, RunState::Paused),
                "the guest runs on the source, and the target could run it too"
            );
        } else {
            target.await_event("closed");
            assert_eq!(target.event_names(), ["setup", "active", "failed", "closed"]);
            assert_eq!(target.process.0.wait_exit(DEADLINE).unwrap(), Some(Exit::Status(1)));
        }
    }
}

#[test]
fn the_source_dies() {
    for phase in [Phase::Active, Phase::PreSwitchover, Phase::Completed] {
        let (source, mut target) = migrate(phase);
        source.kill();
        if phase == Phase::Completed {
            assert_eq!(target.hear(A_WHILE), None);
            assert_eq!(target.state(), (MigrationStatus::Completed, RunState::Paused));
            target.monitor.cont().unwrap();
            assert!(target.monitor.is_running().unwrap());
        } else {
            target.await_event("closed");
            assert_eq!(target.event_names(), ["setup", "active", "failed", "closed"]);
        }
    }
}

#[test]
fn nobody_listens() {
    let mut source = Vm::start(|config| config);
    source.monitor.tune(&Tuning { events: true, ..Tuning::default() }).unwrap();
    source.monitor.migrate("unix:/nonexistent/migration").unwrap();
    source.await_event("failed");
    assert_eq!(source.event_names(), ["setup", "failed"]);
    let info = source.monitor.migration().unwrap();
    assert!(info.error.is_some_and(|error| error.contains("/nonexistent/migration")));
    assert!(source.monitor.is_running().unwrap());
}

/// Is not a test, but the process that starts a QEMU in the next test.
#[test]
#[ignore = "started by a_detached_qemu_outlives_its_starter"]
fn starter() {
    let directory = std::env::var("SKEIN_LAB_DIRECTORY").unwrap();
    let directory = Path::new(&directory);
    // The descriptor is not close-on-exec: a library might leave such a descriptor open.
    let marker = nix::unistd::dup(std::fs::File::create(directory.join("marker")).unwrap()).unwrap();
    let (process, _) = spawn_detached(&config(directory), &directory.join("log"), |p| Command::new(p)).unwrap();
    println!("\nstarted {}", serde_json::to_string(&process.id()).unwrap());
    std::thread::sleep(DEADLINE);
    drop(marker);
}

#[test]
fn a_detached_qemu_outlives_its_starter() {
    use std::os::unix::process::CommandExt;
    let directory = TempDir::with_prefix("skein-lab-qemu").unwrap();
    let mut starter = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "starter", "--ignored", "--nocapture"])
        .env("SKEIN_LAB_DIRECTORY", directory.path())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let id = BufReader::new(starter.stdout.take().unwrap())
        .lines()
        .find_map(|line| serde_json::from_str::<ProcessId>(line.unwrap().strip_prefix("started ")?).ok())
        .expect("it says what it started");
    let held = Killed(Process::attach(id).unwrap().expect("it runs"));
    // The whole group is killed, as a terminal or a service manager would do.
    killpg(Pid::from_raw(starter.id() as i32), Signal::SIGKILL).unwrap();
    starter.wait().unwrap();

    let monitor = Monitor::connect(&directory.path().join("qmp"), DEADLINE).unwrap();
    assert!(monitor.is_running().unwrap());
    assert_eq!(getsid(Some(Pid::from_raw(id.pid as i32))).unwrap().as_raw(), id.pid as i32);
    for entry in std::fs::read_dir(format!("/proc/{}/fd", id.pid)).unwrap() {
        let open = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert_ne!(open, directory.path().join("marker"), "the starter's files are not QEMU's");
    }

    let adopted = Process::of_monitor(&monitor).unwrap().expect("it runs");
    assert_eq!(adopted.id(), id);
    let waiting = std::thread::spawn(move || (adopted.wait_exit(DEADLINE).unwrap(), Instant::now()));
    let again = Process::attach(id).unwrap().expect("it runs");
    assert!(again.is_alive().unwrap());
    let gone = again.kill(DEADLINE).unwrap();
    let killed = Instant::now();
    assert!(gone.is_some());
    let (exit, seen) = waiting.join().unwrap();
    assert!(exit.is_some());
    assert!(seen.saturating_duration_since(killed) < Duration::from_millis(100));
    assert!(Process::attach(id).unwrap().is_none());
    assert!(!held.0.is_alive().unwrap());
}

#[test]
fn a_qemu_that_cannot_start_says_why() {
    let directory = TempDir::with_prefix("skein-lab-qemu").unwrap();
    let mut config = config(directory.path());
    config.machine = "no-such-machine".into();
    let (process, log) = spawn_detached(&config, &directory.path().join("log"), |p| Command::new(p)).unwrap();
    let process = Killed(process);
    let error = connect_started(&process.0, &log, &config.qmp, DEADLINE).unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error:?}");
    assert!(error.to_string().starts_with("QEMU ended with exit status: 1"), "{error}");
    assert!(error.to_string().contains("unsupported machine type"), "{error}");
}

#[test]
fn several_threads_use_one_monitor() {
    let vm = Vm::start(|config| config);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert!(vm.monitor.query("query-status").unwrap()["running"].is_boolean());
                    assert!(vm.monitor.query("query-version").unwrap()["qemu"].is_object());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..10 {
                vm.monitor.stop().unwrap();
                vm.monitor.cont().unwrap();
            }
        });
    });
    let (mut vm, mut wanted) = (vm, Vec::new());
    wanted.resize_with(10, || ["STOP", "RESUME"]);
    assert_eq!(vm.event_names(), wanted.concat());

    // QEMU dies while several threads wait.
    vm.signal(Signal::SIGSTOP);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope
                    .spawn(|| (vm.monitor.execute_within("query-status", Default::default(), DEADLINE), Instant::now()))
            })
            .collect();
        std::thread::sleep(A_WHILE);
        vm.kill();
        let killed = Instant::now();
        for waiter in waiters {
            let (answer, at) = waiter.join().unwrap();
            assert!(matches!(answer, Err(QmpError::Closed)), "{answer:?}");
            assert!(at.saturating_duration_since(killed) < Duration::from_millis(100));
        }
    });
    assert_eq!(vm.event_names().last(), Some(&"closed"));
}

#[test]
fn facts_of_a_program_and_of_a_guest() {
    let program = config(Path::new("/")).program();
    let begin = Instant::now();
    let facts = QemuProgram::probe(&program, None, Accel::Tcg, DEADLINE).unwrap();
    eprintln!("probe: {} ms", begin.elapsed().as_millis());
    assert_eq!(facts.version, skein_hypervisor::version_of(&program).unwrap());
    let q35 = facts.machines.iter().find(|machine| machine.alias.as_deref() == Some("q35")).unwrap();
    assert_eq!(q35.name, format!("pc-q35-{}.{}", facts.version.major, facts.version.minor));
    assert_eq!(facts.machines.iter().filter(|machine| machine.is_default).count(), 1);
    let model = |name: &str| facts.cpu_models.iter().find(|model| model.name == name).unwrap();
    assert!(model("max").unavailable_features.is_empty() && !model("max").migration_safe);
    assert!(model("Skylake-Server").unavailable_features.contains(&"avx512f".into()));
    assert_eq!(model("Haswell").alias_of.as_deref(), Some("Haswell-v1"));
    // Each of these CPUs was made after the one before, and has more features.
    let counts = ["Conroe-v1", "Penryn-v1", "Nehalem-v1", "Westmere-v1"].map(|of| model(of).feature_count);
    assert!(counts[0].is_some() && counts.is_sorted_by(|fewer, more| fewer < more), "{counts:?}");
    assert!(["max", "host", "Skylake-Server-v1", "Westmere"].iter().all(|of| model(of).feature_count.is_none()));
    assert_eq!(model("host").unavailable_features, ["kvm"]);
    assert!(facts.cpu_features.contains("aes") && !facts.cpu_features.contains("avx512f"));
    assert!(facts.migration_capabilities.contains("multifd"));
    assert_eq!(facts.migration_parameters.contains("avail-switchover-bandwidth"), facts.version.major > 7);

    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let vm = Vm::start(|mut config| {
        config.cpu = "Nehalem".into();
        config.cpus = 2;
        config.disks = vec![Disk { read_only: true, ..Disk::new(image.path()) }];
        config.nics = vec![Nic::new("52:54:00:00:00:01", NicBackend::Other("hubport,hubid=0".into()))];
        config.extra = ["-blockdev", "driver=null-co,node-name=null", "-device", "nvme,id=stays,drive=null,serial=1"]
            .map(Into::into)
            .into();
        config
    });
    let begin = Instant::now();
    let guest = InspectedGuest::of(&vm.monitor).unwrap();
    eprintln!("guest: {} ms", begin.elapsed().as_millis());
    assert_eq!((guest.machine.as_str(), guest.accel, guest.cpus), (q35.name.as_str(), Accel::Tcg, 2));
    assert_eq!(guest.cpu_model, "Nehalem");
    assert!(guest.cpu_features.contains("sse4.2") && !guest.cpu_features.contains("avx"));
    assert!(
        guest.cpu_features.is_subset(&facts.cpu_features),
        "{:?}",
        guest.cpu_features.difference(&facts.cpu_features)
    );
    assert_eq!(guest.memory_bytes, 64 << 20);
    let memory = &guest.memory[0];
    assert_eq!((memory.id.as_deref(), memory.size, memory.share), (Some("ram0"), 64 << 20, true));
    let nodes = block_nodes(&vm.monitor).unwrap();
    let disk = nodes.iter().find(|node| node.name == "disk0").unwrap();
    assert_eq!(
        (disk.driver.as_str(), disk.read_only, disk.filename.as_str()),
        ("raw", true, image.path().to_str().unwrap())
    );
    let kinds: Vec<_> = guest.devices.iter().map(|device| device.kind.as_str()).collect();
    assert!(["nvme", "virtio-blk-pci", "virtio-net-pci"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    assert!(!guest.devices.iter().any(|device| device.is_passed_through()));
    assert!(guest.blocked_reasons.iter().any(|reason| reason.contains("nvme")), "{:?}", guest.blocked_reasons);
    let refused = vm.monitor.migrate("unix:/nonexistent").unwrap_err();
    assert!(refused.to_string().contains("nvme"), "{refused}");
    // What one host writes, another reads.
    assert_eq!(serde_json::from_str::<InspectedGuest>(&serde_json::to_string(&guest).unwrap()).unwrap(), guest);
    assert_eq!(serde_json::from_str::<QemuProgram>(&serde_json::to_string(&facts).unwrap()).unwrap(), facts);
    let running = QemuProgram::of(&vm.monitor).unwrap();
    assert_eq!((running.cpu_features, running.version), (facts.cpu_features, facts.version));
}

/// What tries KVM works if nothing of KVM's is in the way. What it says of this host's KVM is a word, not a wait.
#[test]
fn the_guest_that_tries_kvm_comes_to_its_end() {
    kvm::run_guest(&Config::new("", 0, "").program(), Accel::Tcg).unwrap();
    let begun = Instant::now();
    let kvm = kvm::works(None);
    println!("KVM on this host: {kvm:?}, after {:?}", begun.elapsed());
    assert!(begun.elapsed() < DEADLINE);
    // A second try costs nothing.
    let begun = Instant::now();
    assert_eq!(kvm::works(None), kvm);
    assert!(begun.elapsed() < Duration::from_secs(5));
}
