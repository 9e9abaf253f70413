//! Tests a QEMU that hangs before its main loop: it has its QMP socket, and takes no connection. A program stands for
//! it. Real agents, real sockets, no privileges.

mod openmetrics;
mod world;

use std::fs;
use std::io::{BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use serde_json::Value;
use skein_agent::{AcceptorSettings, Agent, AgentSettings, Allow, CONTROL_VERSIONS, ControlMessage, Dirs, VmSettings};
use skein_api::{Reply, Request, VmState, VmView};
use skein_client::Client;
use skein_dataplane::{Dialer, StreamContent};
use skein_handover::{Intent, Message, MigrationId, MigrationLimits, Record, Report, Role, TargetRecord, WaitTimes};
use skein_hypervisor::{Process, ProcessId};
use skein_journal::{Journal, JournalLimits};

use self::world::{SECOND, World, loopback};

const ID: MigrationId = MigrationId(7);
/// Names the variable with the QMP socket, for [`fake_qemu`].
const SOCKET: &str = "SKEIN_FAKE_QEMU";
/// Bounds every wait.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
#[ignore = "a process that other tests start"]
fn fake_qemu() {
    let Ok(words) = std::env::var(SOCKET) else { return };
    let path = words.split("unix:").nth(1).unwrap().split(',').next().unwrap();
    let own = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(own.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    // QEMU's socket has such a backlog.
    listen(&own, Backlog::new(1).unwrap()).unwrap();
    eprintln!("waiting for a peer that says nothing");
    fs::write(Path::new(path).with_extension("pid"), std::process::id().to_string()).unwrap();
    thread::sleep(Duration::from_secs(600));
}

fn fake(path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "fake_qemu", "--nocapture"]).env(SOCKET, format!("unix:{},", path.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A fake QEMU, which is ended when this is dropped.
struct Fake {
    process: Process,
    _child: Child,
}

impl Drop for Fake {
    fn drop(&mut self) {
        // An agent of this process may have waited for it.
        let _ = self.process.kill(10 * SECOND);
    }
}

#[track_caller]
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

struct Target {
    agent: Agent,
    client: Client,
    dirs: Dirs,
}

fn dirs(world: &World) -> Dirs {
    Dirs { state: world.path("state"), run: world.path("run") }
}

fn start(world: &World, waits: WaitTimes) -> Target {
    let dirs = dirs(world);
    let client = Client::new(&dirs.run.join("agent.sock"));
    let vms = VmSettings {
        dirs: dirs.clone(),
        controllers_file: world.path("controllers.toml"),
        qemu: None,
        limits: MigrationLimits { waits, ..MigrationLimits::default() },
        keeper_command: vec!["/nonexistent".into()],
        power_off: Vec::new(),
        update: Default::default(),
        watchdog: None,
    };
    let acceptor = AcceptorSettings {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        addresses: loopback(),
        allow_plain_data: false,
        outage: Duration::from_secs(60),
    };
    let settings = AgentSettings {
        hosts_file: world.path("hosts.toml"),
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        vms: Some(vms),
        ..AgentSettings::tunnels(acceptor, Allow::new(&["/nowhere/*"]).unwrap())
    };
    Target { agent: Agent::start(settings, &world.identity("b")).unwrap(), client, dirs }
}

impl Target {
    fn vms(&self) -> Vec<VmView> {
        match self.client.call(&Request::VmList, 10 * SECOND) {
            Ok(Reply::Vms { vms }) => vms,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the fake's pid, once it is there.
    fn pid(&self) -> u32 {
        let path = self.dirs.run.join("vms/web/qmp.pid");
        wait_until("it is started", || fs::read_to_string(&path).is_ok_and(|pid| !pid.is_empty()));
        fs::read_to_string(&path).unwrap().parse().unwrap()
    }
}

/// A source's agent, which says what the test wants it to.
struct Source {
    socket: UnixStream,
    lines: BufReader<UnixStream>,
    _dialer: Arc<Dialer>,
}

impl Source {
    fn new(world: &World, target: &Target) -> Source {
        let dialer = world.session_at("a", target.agent.port());
        let (socket, far) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        dialer.live().open("skein:control", far.into(), StreamContent::Bytes).unwrap();
        (&socket).write_all(&ControlMessage::hello(CONTROL_VERSIONS).line().unwrap()).unwrap();
        Source { lines: BufReader::new(socket.try_clone().unwrap()), socket, _dialer: dialer }
    }

    fn say(&self, intent: Intent, offer: Option<Value>) {
        let message = Message::Intent { id: ID, intent, vm: "web".into(), priority: 0, offer, detail: String::new() };
        (&self.socket).write_all(&ControlMessage::Handover(message).line().unwrap()).unwrap();
    }

    /// Reads on until this is reported, and returns the reason.
    #[track_caller]
    fn wait(&mut self, wanted: Report) -> String {
        loop {
            match ControlMessage::read(&mut self.lines).expect("the target goes on to talk") {
                ControlMessage::Handover(Message::Report { report, detail, .. }) if report == wanted => return detail,
                _ => {}
            }
        }
    }
}

/// Returns the offer of a source that wants the fake to be started.
fn offer(world: &World) -> Value {
    let (draft, program) = (world.path("qemu.sh"), world.path("qemu"));
    let exe = std::env::current_exe().unwrap();
    let script = format!("#!/bin/sh\n{SOCKET}=\"$*\" exec {} --ignored --exact fake_qemu --nocapture\n", exe.display());
    fs::write(&draft, script).unwrap();
    // Another process writes the program. Children of other tests have what this process writes open, too, and a file
    // that is open for writing cannot be started (ETXTBSY).
    assert!(Command::new("install").args(["-m", "755"]).args([&draft, &program]).status().unwrap().success());
    let need = serde_json::json!({
        "ram_bytes": 1 << 20, "hugepages": null, "cpus": 1, "is_emulated": true, "locks_ram": false,
    });
    serde_json::json!({
        "launch": launch(&program), "channels": 0, "downtime_limit_ms": 300, "transport": "tcp", "priority": 0,
        "need": need,
    })
}

fn launch(program: &Path) -> Value {
    serde_json::json!({"command-line": {"program": program, "args": []}})
}

#[test]
fn a_qemu_that_hangs_as_it_starts_is_killed_and_the_source_told_why() {
    let world = World::new();
    // Half of the time is for the start.
    let target = start(&world, WaitTimes { prepare: 40 * SECOND, ..WaitTimes::default() });
    let mut source = Source::new(&world, &target);
    source.say(Intent::Prepare, Some(offer(&world)));
    let pid = target.pid();
    // A path that was silent for a moment has no value.
    openmetrics::until(&target.agent, "what is begun is told", |begun| {
        begun.get("skein_migrations{role=\"target\",phase=\"prepare\"}") == Some(&1.0)
            && begun.get("skein_sessions{peer=\"a\"}") == Some(&1.0)
            && begun.keys().any(|of| of.starts_with("skein_path_usable{peer=\"a\",nic=\""))
    });
    let why = source.wait(Report::Refusing);
    assert!(
        why.contains("did not answer on its QMP socket within 20 s") && why.contains("a peer that says nothing"),
        "{why}"
    );
    source.say(Intent::Abort, None);
    source.wait(Report::Refused);
    assert!(!is_alive(pid) && target.vms().is_empty(), "{:?}", target.vms());
    source.say(Intent::Settle, None);
    openmetrics::until(&target.agent, "the end is counted", |values| {
        let is = |series: &str| values.get(series) == Some(&1.0);
        is("skein_migrations_called_off_total{role=\"target\",reason=\"qemu-ended\"}")
            && is("skein_migrations_ended_total{role=\"target\",outcome=\"kept\"}")
            && values["skein_journal_write_seconds_count"] >= 2.0
            && values["skein_migration_phases_total{role=\"target\",phase=\"prepare\"}"] >= 1.0
            && !values.keys().any(|series| series.starts_with("skein_migrations{"))
    });
}

#[test]
fn an_offer_that_cannot_be_read_is_refused_before_anything_is_started() {
    let world = World::new();
    let target = start(&world, WaitTimes::default());
    let mut source = Source::new(&world, &target);
    let mut newer = offer(&world);
    newer["mirror"] = true.into();
    source.say(Intent::Prepare, Some(newer));
    let why = source.wait(Report::Refused);
    assert!(why.contains(") cannot read what a (skein "), "{why}");
    assert!(!world.path("qemu.sock").exists() && target.vms().is_empty(), "{:?}", target.vms());
    source.say(Intent::Settle, None);
    source.wait(Report::Settled);
}

#[test]
fn one_that_hangs_ends_as_soon_as_its_migration_is_called_off() {
    let world = World::new();
    let target = start(&world, WaitTimes { prepare: 600 * SECOND, ..WaitTimes::default() });
    let mut source = Source::new(&world, &target);
    source.say(Intent::Prepare, Some(offer(&world)));
    let pid = target.pid();
    source.say(Intent::Abort, None);
    source.wait(Report::Refused);
    assert!(!is_alive(pid) && target.vms().is_empty(), "{:?}", target.vms());
}

/// Leaves what an agent leaves that was killed while its QEMU started.
fn left_behind(world: &World, last: TargetRecord) -> (Fake, PathBuf) {
    let dirs = dirs(world);
    dirs.create().unwrap();
    let dir = dirs.run.join("vms/web");
    fs::create_dir_all(&dir).unwrap();
    let qmp = dir.join("qmp");
    let child = fake(&qmp).spawn().unwrap();
    let process = Process::attach(ProcessId::of(child.id()).unwrap().unwrap()).unwrap().unwrap();
    let fake = Fake { process, _child: child };
    wait_until("it is started", || qmp.with_extension("pid").exists());
    let process = serde_json::json!({"process": fake.process.id(), "qmp": qmp, "incoming": ID, "outgoing": null});
    fs::write(dir.join("process.json"), process.to_string()).unwrap();
    let vm = serde_json::json!({"launch": launch(Path::new("/nonexistent")), "adopted": null});
    fs::write(dir.join("vm.json"), vm.to_string()).unwrap();
    let (mut journal, _) = Journal::<Record>::open(&dirs.journal(), JournalLimits::default()).unwrap();
    let begin = Record::Begin { id: ID, role: Role::Target, peer: "a".into(), vm: "web".into() };
    journal.append(&begin).unwrap();
    journal.append(&Record::Target(ID, last)).unwrap();
    (fake, qmp)
}

#[test]
fn an_agent_that_finds_a_hung_one_comes_up_and_gives_it_up() {
    let world = World::new();
    let (fake, _) = left_behind(&world, TargetRecord::Begin);
    let target = start(&world, WaitTimes { abandoned: 20 * SECOND, ..WaitTimes::default() });
    let vms = target.vms();
    let migration = Some(skein_api::MigrationId(ID.0));
    let is_known = matches!(&vms[..], [vm] if vm.state == VmState::Unresponsive && vm.migration == migration);
    assert!(is_known, "{vms:?}");
    wait_until("it is killed", || !fake.process.is_alive().unwrap());
    let mut detail = String::new();
    wait_until("nothing is left of it", || target.vms().is_empty());
    if let Ok(Reply::Migration(migration)) =
        target.client.call(&Request::MigrationShow { id: ID.to_string() }, 10 * SECOND)
    {
        detail = migration.detail;
    }
    assert!(detail.contains("does not answer"), "{detail:?}");
}

#[test]
fn one_whose_guest_may_run_is_left_alone() {
    let world = World::new();
    let (fake, qmp) = left_behind(&world, TargetRecord::Run);
    let target = start(&world, WaitTimes { abandoned: SECOND / 2, prepare: SECOND / 2, ..WaitTimes::default() });
    let mut source = Source::new(&world, &target);
    source.say(Intent::Abort, None);
    // This is the target's decision to run the guest, which it does not take back.
    source.wait(Report::Run);
    thread::sleep(3 * SECOND);
    assert!(fake.process.is_alive().unwrap() && qmp.exists());
    assert!(
        matches!(&target.vms()[..], [vm] if vm.name == "web" && vm.pid == Some(fake.process.id().pid)),
        "{:?}",
        target.vms()
    );
}
