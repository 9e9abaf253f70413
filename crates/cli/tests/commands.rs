//! Tests the commands that ask this host's agent: the program itself, its output and its exit status, with an agent
//! that plays back answers.

mod fake;

use std::process::Stdio;
use std::time::Duration;

use fake::{Act, Agent, ID, Ran, at, events, in_doubt, indirect, last, migration, over, progress, say, vm};
use skein_api::{
    Attempt, CheckResult, Forecast, ForecastConvergence, HostFacts, HostView, Hugepages, Migration, MigrationId,
    MigrationPhase, MigrationSlots, NicFacts, Outcome, Presence, Problem, ProblemKind, QemuFacts, QemuVersion, Refusal,
    Reply, Request, Resource, Role, Room, RoomLimit, Severity, SourcePhase, StartOptions, TargetPhase, VmFacts,
    VmOrigin, VmState, VmView,
};

fn vms() -> Vec<VmView> {
    let moving = VmView { migration: Some(ID), ..vm("web1", VmState::Running) };
    let odd = VmView { note: "its disk is full\u{1b}[2J\nnow".into(), ..vm("a-longer-name", VmState::Paused) };
    vec![odd, VmView { memory_bytes: 96 << 20, ..vm("off", VmState::Stopped) }, moving]
}

#[test]
fn vms_are_listed_and_shown() {
    let agent = Agent::start(vec![
        say(Reply::Vms { vms: vms() }),
        say(Reply::Vms { vms: vms() }),
        say(Reply::Vms { vms: vec![] }),
        say(Reply::Vm(Box::new(vms().remove(2)))),
        say(Reply::Vm(Box::new(vms().remove(2)))),
    ]);
    agent.run(&["vm", "list"]).exits(0).is("vm-list");
    let json = agent.run(&["vm", "list", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<Vec<VmView>>(&json.out).unwrap(), vms());
    agent.run(&["vm", "list"]).exits(0).says("no VM on this host");
    agent.run(&["vm", "show", "web1"]).exits(0).is("vm-show");
    let json = agent.run(&["vm", "show", "web1", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<VmView>(&json.out).unwrap(), vms().remove(2));
    let show = Request::VmShow { name: "web1".into() };
    assert_eq!(agent.asked(), [Request::VmList, Request::VmList, Request::VmList, show.clone(), show]);
}

#[test]
fn vms_are_started_stopped_and_forgotten() {
    let running = || say(Reply::Vm(Box::new(vm("web1", VmState::Running))));
    let stopped = say(Reply::Vm(Box::new(vm("web1", VmState::Stopped))));
    let mut replies: Vec<_> = (0..5).map(|_| running()).collect();
    replies.extend([stopped, running(), say(Reply::Done)]);
    let agent = Agent::start(replies);
    let text = "name = \"web1\"\nmemory = \"4 GiB\"\n";
    std::fs::write(agent.dir().join("web1.toml"), text).unwrap();
    agent.run(&["vm", "start", "web1.toml"]).exits(0).says("web1 is running (QEMU 10.0.2, pid 4711)\n");
    let input = std::fs::File::open(agent.dir().join("web1.toml")).unwrap();
    let output = agent.command(&["vm", "start", "-"]).stdin(input).output().unwrap();
    Ran::new(&["vm", "start", "-"], output).exits(0);
    agent.run(&["vm", "start", "web1"]).exits(0);
    agent.run(&["vm", "start", "web1", "--overcommit", "--as-defined", "--new-state", "--without-controller"]).exits(0);
    agent.run(&["vm", "adopt", "--qmp", "vm7.qmp", "web7"]).exits(0);
    agent.run(&["vm", "stop", "web1", "--timeout", "5", "--force"]).exits(0).says("web1 is stopped\n");
    agent.run(&["vm", "resume", "web1"]).exits(0).says("web1 is running");
    agent.run(&["vm", "forget", "web1"]).exits(0).says("web1 is forgotten");
    let (qmp, file) =
        (agent.dir().join("vm7.qmp"), |file: &str| VmOrigin::Definition { file: file.into(), text: text.into() });
    let all = r#"{"overcommit":true,"as_defined":true,"new_state":true,"without_controller":true}"#;
    let all: StartOptions = serde_json::from_str(all).unwrap();
    assert_eq!(
        agent.asked(),
        [
            Request::VmStart { from: file("web1.toml"), options: Default::default() },
            Request::VmStart { from: file("standard input"), options: Default::default() },
            Request::VmStart { from: VmOrigin::Name("web1".into()), options: Default::default() },
            Request::VmStart { from: VmOrigin::Name("web1".into()), options: all },
            Request::VmAdopt { qmp, name: Some("web7".into()) },
            Request::VmStop { name: "web1".into(), timeout_s: 5, force: true },
            Request::VmResume { name: "web1".into() },
            Request::VmForget { name: "web1".into() },
        ]
    );
}

#[test]
fn a_bad_file_needs_no_agent() {
    let agent = Agent::start(vec![]);
    std::fs::write(agent.dir().join("web1.toml"), "name = \"Web 1\"\nmemory = 4096\nnics = 2\n").unwrap();
    let ran = agent.run(&["vm", "start", "web1.toml"]).exits(1);
    let ran =
        ran.complains("web1.toml:1:8: ").complains("web1.toml:2:10: ").complains("web1.toml:3:1: ").complains("help: ");
    assert!(ran.out.is_empty());
    agent.run(&["vm", "start", "none.toml"]).exits(1).complains("cannot read none.toml: No such file");
    agent.run(&["vm", "start", "Web 1"]).exits(1).complains("neither a file nor a VM's name");
    assert_eq!(agent.asked(), []);
}

#[test]
fn what_the_agent_cannot_do_is_said_once() {
    let refusal =
        |cure: &str| say(Reply::Error(Refusal { message: "there is no VM web9 here".into(), cure: cure.into() }));
    let agent = Agent::start(vec![refusal("see `skein vm list`"), refusal(""), refusal(""), say(Reply::Done)]);
    let ran = agent.run(&["vm", "show", "web9"]).exits(1);
    assert_eq!(ran.err, "skein: there is no VM web9 here: see `skein vm list`\n");
    agent.run(&["vm", "stop", "web9"]).exits(1).complains("skein: there is no VM web9 here\n");
    agent.run(&["migrate", "web9", "--to", "b"]).exits(1).complains("skein: there is no VM web9 here\n");
    agent.run(&["vm", "list"]).exits(1).complains("something else than was asked (done)");
}

#[test]
fn without_an_agent_it_is_said_what_to_do() {
    let agent = Agent::start(vec![]);
    for args in [&["vm", "list"][..], &["host", "show"], &["migration", "list"], &["migrate", "a", "--to", "b"]] {
        let ran = agent.command(args).env("SKEIN_SOCKET", "/no/such.sock").output().unwrap();
        Ran::new(args, ran).exits(1).complains("no agent listens on /no/such.sock: start it");
    }
    let args = ["vm", "list", "--socket", "/another.sock"];
    agent.run(&args).exits(1).complains("no agent listens on /another.sock");
}

#[test]
fn garbage_is_an_error_and_no_more() {
    let garbage: [&'static [u8]; 6] = [
        b"",
        b"\n",
        b"hello\n",
        b"{\"reply\":\"vms\"}\n",
        b"\xff\xfe\x00\n",
        b"{\"reply\":\"progress\",\"id\":\"zz\"}\n",
    ];
    let commands: [&[&str]; 4] =
        [&["vm", "list"], &["migrate", "web1", "--to", "b"], &["migration", "watch", "web1"], &["host", "list"]];
    for args in commands {
        let agent = Agent::start(garbage.iter().map(|bytes| vec![Act::Raw(bytes)]).collect());
        for _ in garbage {
            agent.run(args).exits(1).complains("skein: ");
        }
        assert_eq!(agent.asked().len(), garbage.len());
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let agent = Agent::start(vec![
        say(Reply::Vms { vms: vms() }),
        vec![progress(at(SourcePhase::Prepare, 1)), progress(at(SourcePhase::Precopy, 2)), last(over(Outcome::Moved))],
    ]);
    for args in [&["vm", "list"][..], &["migrate", "web1", "--to", "hostb"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = agent.command(args).stdout(Stdio::from(writer)).output().unwrap();
        let ran = Ran::new(args, output).exits(0);
        assert_eq!(ran.err, "");
    }
}

/// Returns the room of an agent in a control group that has less than the host.
fn room() -> Room {
    let limit = |owner: &str, (limit, used, promised)| RoomLimit {
        resource: Resource::Ram,
        owner: owner.into(),
        name: "memory.max".into(),
        limit,
        used,
        promised,
        promised_to: vec!["web1".into()],
    };
    let limits = vec![
        limit("", (64 << 30, 23 << 30, 2 << 30)),
        limit("the control group /sys/fs/cgroup/machine.slice", (16 << 30, 6 << 30, 2 << 30)),
    ];
    Room { limits, unread: vec![] }
}

fn hosts() -> Vec<HostView> {
    let facts = HostFacts {
        name: "hosta".into(),
        boot_id: None,
        ram_bytes: 64 << 30,
        ram_available_bytes: 41 << 30,
        kept_ram_bytes: 6 << 30,
        room: Some(room()),
        hugepages: vec![Hugepages { page_bytes: 2 << 20, total: 1024, free: 1000 }],
        cpus: 16,
        cpu_vendor: "AuthenticAMD".into(),
        cpu_flags: ["sse2".to_owned(), "avx2".to_owned()].into(),
        kvm: Err("there is no /dev/kvm".into()),
        qemu: Ok(QemuFacts {
            program: "/usr/bin/qemu-system-x86_64".into(),
            version: QemuVersion { major: 10, minor: 0, micro: 2 },
            machines: vec![],
            accels: vec![],
        }),
        bridges: ["br0".to_owned()].into(),
        taps_in_use: Default::default(),
        vms: vec![
            VmFacts { name: "web1".into(), presence: Presence::Guest },
            VmFacts { name: "off".into(), presence: Presence::Stopped },
            VmFacts { name: "db1".into(), presence: Presence::Leftover { migration: None } },
        ],
        incoming: MigrationSlots { limit: 2, used: 0 },
        outgoing: MigrationSlots { limit: 2, used: 1 },
        swtpm: None,
        closed: None,
        journal: Ok(()),
        digests: Default::default(),
        files: vec![],
        nics: vec![
            NicFacts { name: "eth0".into(), speed_bits_per_s: Some(25_000_000_000) },
            NicFacts { name: "eth1".into(), speed_bits_per_s: None },
        ],
    };
    let host = |name: &str, reachable, note: &str| HostView {
        name: name.into(),
        addresses: vec!["10.0.0.2:7070".into(), "10.0.1.2:7070".into()],
        is_local: false,
        reachable,
        note: note.into(),
        problems: vec![],
        facts: None,
    };
    let local =
        HostView { is_local: true, facts: Some(facts), addresses: vec!["[::]:7070".into()], ..host("hosta", None, "") };
    vec![
        local,
        host("hostb", Some(true), ""),
        host("hostc", Some(false), "connection refused"),
        host("hostd", None, ""),
    ]
}

#[test]
fn hosts_are_listed_and_shown() {
    let list = || say(Reply::Hosts { hosts: hosts() });
    let show = || say(Reply::Host(Box::new(hosts().remove(0))));
    let agent = Agent::start(vec![list(), list(), show(), show(), say(Reply::Host(Box::new(hosts().remove(2))))]);
    agent.run(&["host", "list"]).exits(0).is("host-list");
    let json = agent.run(&["host", "list", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<Vec<HostView>>(&json.out).unwrap(), hosts());
    agent.run(&["host", "show"]).exits(0).is("host-show");
    let json = agent.run(&["host", "show", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<HostView>(&json.out).unwrap(), hosts().remove(0));
    agent.run(&["host", "show", "hostc"]).exits(0).is("host-show-unreachable");
    let asked = agent.asked();
    assert_eq!(asked[2], Request::HostShow { name: None });
    assert_eq!(asked[4], Request::HostShow { name: Some("hostc".into()) });
}

fn check(blocks: bool) -> CheckResult {
    let problem = |severity, what: &str, cure: &str| Problem {
        kind: ProblemKind::NoPath,
        severity,
        what: what.into(),
        cure: cure.into(),
    };
    let mut problems = vec![problem(Severity::Warns, "eth1 has no counterpart", "plug it in")];
    if blocks {
        problems
            .insert(0, problem(Severity::Blocks, "hostb has 1 GiB of RAM free, web1 needs 4.2 GiB", "stop a VM there"));
        problems.insert(1, problem(Severity::Blocks, "hostb has no bridge br0", "make one there"));
    }
    let why = "at most about 13 s at 1.9 Gb/s on the wire over 2 paths (transport auto); less where its memory is \
               zeros or compresses";
    let (seconds, converges) = (Some(12.7), ForecastConvergence::Yes);
    let forecast = Forecast { seconds, downtime_ms_estimate: Some(50.0), converges, why: why.into() };
    CheckResult { vm: "web1".into(), to: "hostb".into(), problems, forecast: Some(forecast) }
}

#[test]
fn a_check_tells_everything_at_once() {
    let agent = Agent::start(vec![
        say(Reply::Check(check(true))),
        say(Reply::Check(check(false))),
        say(Reply::Check(check(true))),
        say(Reply::Check(check(true))),
    ]);
    agent.run(&["migrate", "web1", "--to", "hostb", "--check"]).exits(3).is("check-blocked");
    agent.run(&["migrate", "web1", "--to", "hostb", "--check"]).exits(0).is("check-good");
    let json = agent.run(&["migrate", "web1", "--to", "hostb", "--check", "--json"]).exits(3);
    assert_eq!(serde_json::from_str::<CheckResult>(&json.out).unwrap(), check(true));
    agent.run(&["migrate", "web1", "--to", "hostb"]).exits(3).is("check-blocked");
    let asked = agent.asked();
    assert!(matches!(&asked[0], Request::Check { vm, to, .. } if vm == "web1" && to == "hostb"));
    assert!(matches!(&asked[3], Request::Migrate { detach: false, .. }));
}

/// Returns a whole migration, as an agent reports it.
fn whole() -> Vec<Act> {
    let copying =
        |round, left, elapsed| Migration { copy: Some(fake::copy(round, left)), ..at(SourcePhase::Precopy, elapsed) };
    vec![
        Act::Say(Reply::Check(check(false))),
        progress(migration(Some(MigrationPhase::Queued), 0)),
        progress(at(SourcePhase::Prepare, 20)),
        progress(copying(1, 4096, 1030)),
        // Only figures change, so a pipe gets no line yet.
        progress(copying(1, 2900, 1530)),
        progress(copying(2, 300, 5900)),
        progress(at(SourcePhase::Switchover, 7150)),
        progress(at(SourcePhase::Grant, 7290)),
        progress(at(SourcePhase::Release, 7300)),
        last(over(Outcome::Moved)),
    ]
}

#[test]
fn a_migration_is_lines_in_a_pipe() {
    let again = vec![last(at(SourcePhase::Prepare, 1))];
    let agent = Agent::start(vec![whole(), whole(), whole(), again]);
    agent.run(&["migrate", "web1", "--to", "hostb"]).exits(0).is("migrate");
    agent.run(&["migration", "watch", "web1"]).exits(0).is("migrate");
    let all = ["migrate", "web1", "--to", "hostb", "--priority", "7", "--downtime-limit", "100ms", "--deadline", "10m"];
    let all = [&all[..], &["--channels", "4", "--detach", "--json"]].concat();
    let json = agent.run(&all).exits(0);
    let replies: Vec<Reply> = json.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<Reply> =
        whole().into_iter().filter_map(|act| if let Act::Say(reply) = act { Some(reply) } else { None }).collect();
    assert_eq!(replies, told);
    agent.run(&["migrate", "web1", "--to", "hostb", "--retries", "2", "--detach"]).exits(0);
    let asked = agent.asked();
    let Request::Migrate { options, detach: true, .. } = &asked[3] else { panic!("{asked:?}") };
    assert_eq!(options.retries, 2, "the agent tries again, whoever watches");
    let Request::Migrate { options, detach: true, .. } = &asked[2] else { panic!("{asked:?}") };
    assert_eq!((options.priority, options.downtime_limit_ms, options.deadline_s), (Some(7), Some(100), Some(600)));
    assert_eq!((options.channels, options.retries), (Some(4), 0));

    assert_eq!(asked[1], Request::MigrationWatch { id: "web1".into() });
}

#[test]
fn exit_codes_tell_how_it_ended() {
    let agent = Agent::start(vec![
        vec![last(over(Outcome::CalledOff))],
        vec![last(over(Outcome::Ended))],
        vec![progress(at(SourcePhase::Grant, 7300)), progress(in_doubt()), last(in_doubt())],
        vec![last(at(SourcePhase::Prepare, 1))],
    ]);
    agent.run(&["migrate", "web1", "--to", "hostb"]).exits(4).is("migrate-kept");
    agent.run(&["migrate", "web1", "--to", "hostb"]).exits(1).says("web1 ended during the migration");
    agent.run(&["migrate", "web1", "--to", "hostb"]).exits(5).is("migrate-in-doubt");
    agent.run(&["migrate", "web1", "--to", "hostb", "--detach"]).exits(0).is("migrate-detached");
    let bad = [
        &["--downtime-limit", "300"][..],
        &["--downtime-limit", "1h"],
        &["--deadline", "soon"],
        &["--channels", "65"],
        &["--priority", "101"],
        &["--check", "--detach"],
    ];
    for args in bad {
        agent.run(&[&["migrate", "web1", "--to", "hostb"], args].concat()).exits(2);
    }
    let help = agent.run(&["migrate", "--help"]).exits(0);
    let help = ["0  moved", "3  something blocks it", "4  called off", "5  in doubt"]
        .iter()
        .fold(help, |help, code| help.says(code));
    drop(help);
    assert_eq!(agent.asked().len(), 4);
}

#[test]
fn an_agent_that_is_started_again_is_asked_again() {
    let again = vec![progress(at(SourcePhase::Precopy, 4000)), last(over(Outcome::Moved))];
    let begun = vec![progress(at(SourcePhase::Precopy, 2000)), Act::Restart(Duration::from_millis(800))];
    let agent = Agent::start(vec![begun, again]);
    let ran = agent.run(&["migrate", "web1", "--to", "hostb"]).exits(0);
    ran.says("web1: the agent is gone; waiting for it to come back\n").says("web1 runs on hostb: moved in 7.3 s");
    let asked = agent.asked();
    assert_eq!(asked[1], Request::MigrationWatch { id: ID.to_string() });
}

#[test]
fn a_migration_whose_answer_was_lost_is_asked_for_again_under_the_same_name() {
    let lost = || vec![Act::Restart(Duration::from_millis(10))];
    let agent = Agent::start(vec![lost(), lost(), vec![last(over(Outcome::Moved))], vec![last(over(Outcome::Moved))]]);
    let ran = agent.run(&["migrate", "web1", "--to", "hostb"]).exits(0);
    ran.complains("the agent is gone; waiting for it to come back").says("web1 runs on hostb");
    agent.run(&["migrate", "web1", "--to", "hostb"]).exits(0);
    let asked = agent.asked_lines();
    assert!(matches!(&asked[0].request, Request::Migrate { .. }) && asked[0].request_id.is_some(), "{asked:?}");
    assert_eq!((&asked[1], &asked[2]), (&asked[0], &asked[0]));
    assert_ne!(asked[3].request_id, asked[0].request_id, "another migration has another name");
    // A migration that is only watched is asked for again, too.
    let agent = Agent::start(vec![lost(), vec![last(over(Outcome::Moved))]]);
    agent.run(&["migration", "watch", "web1"]).exits(0).says("web1 runs on hostb");
    assert_eq!(agent.asked().len(), 2);
}

#[test]
fn a_migration_that_is_begun_again_is_followed() {
    let second = MigrationId(0x77);
    let next = |migration| Migration { id: second, ..migration };
    let agent = Agent::start(vec![vec![
        progress(at(SourcePhase::Precopy, 2000)),
        progress(at(SourcePhase::Keep, 3000)),
        progress(over(Outcome::CalledOff)),
        // The agent says so until the next attempt has begun.
        progress(over(Outcome::CalledOff)),
        progress(Migration { attempt: Some(attempt(None)), ..next(at(SourcePhase::Prepare, 10)) }),
        last(next(over(Outcome::Moved))),
    ]]);
    let ran = agent.run(&["migrate", "web1", "--to", "hostb", "--retries", "1"]).exits(0);
    assert_eq!(ran.out.matches("web1: called off: ").count(), 1, "{}", ran.out);
    ran.says("begun again, as 0000000000000077\n").says("attempt 2 of 3");
}

fn attempt(next_in_ms: Option<u64>) -> Attempt {
    Attempt { number: 2, of: 3, not_begun: None, next_in_ms }
}

#[test]
fn an_attempt_is_shown_where_there_are_several() {
    let failed = Migration { attempt: Some(attempt(Some(1500))), ..over(Outcome::CalledOff) };
    let only = Migration {
        attempt: Some(Attempt { number: 1, of: 1, not_begun: None, next_in_ms: None }),
        ..over(Outcome::Moved)
    };
    let checked = Migration { attempt: Some(attempt(Some(0))), ..failed.clone() };
    let gave_up = Attempt { number: 1, not_begun: Some(3), ..attempt(None) };
    let gave_up = Migration { attempt: Some(gave_up), ..failed.clone() };
    let scripts = [failed.clone(), only.clone(), checked, gave_up.clone()].map(|migration| vec![last(migration)]);
    let list = vec![Act::Say(Reply::Migrations { migrations: vec![failed, only, gave_up] })];
    let agent = Agent::start(scripts.into_iter().chain([list]).collect());
    agent.run(&["migration", "show", "web1"]).exits(0).says("attempt     2 of 3, the next one in 1.5 s\n");
    assert!(!agent.run(&["migration", "show", "web1"]).exits(0).out.contains("attempt"));
    agent.run(&["migration", "show", "web1"]).exits(0).says("2 of 3, the next one is being checked\n");
    agent
        .run(&["migration", "show", "web1"])
        .exits(0)
        .says("attempt     1 of 3; attempt 3 was not begun: see --events\n");
    let list = agent.run(&["migration", "list"]).exits(0).says("called off, attempt 2 of 3  ");
    let list = list.says("called off, attempt 1 of 3, 3 not begun  ");
    assert_eq!(list.out.matches("attempt").count(), 2, "{}", list.out);
    assert_eq!(agent.asked().len(), 5);
}

#[test]
fn an_interrupt_ends_the_watching_only() {
    use nix::sys::signal::{Signal, kill};
    for (json, signal) in [(false, Signal::SIGINT), (true, Signal::SIGTERM)] {
        let agent = Agent::start(vec![vec![progress(at(SourcePhase::Precopy, 2000)), Act::Hold]]);
        let args = ["migrate", "web1", "--to", "hostb", "--json"];
        let args = &args[..if json { 5 } else { 4 }];
        let mut child = agent.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut begun = [0; 10];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut begun).unwrap();
        kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
        let ran = Ran::new(args, child.wait_with_output().unwrap()).exits(130);
        ran.complains("The migration of web1 goes on.")
            .complains(&format!("skein migration watch {ID}"))
            .complains(&format!("skein migration cancel {ID}"));
        // Nothing was cancelled.
        assert_eq!(agent.asked().len(), 1);
    }
}

fn migrations() -> Vec<Migration> {
    let here = Migration {
        role: Role::Target,
        source: "hostb".into(),
        target: "hosta".into(),
        id: MigrationId(1),
        vm: "db1".into(),
        ..migration(Some(MigrationPhase::Target(TargetPhase::Ready)), 61_000)
    };
    vec![
        here,
        at(SourcePhase::Precopy, 1530),
        in_doubt(),
        over(Outcome::CalledOff),
        over(Outcome::Moved),
        over(Outcome::Ended),
    ]
}

#[test]
fn migrations_are_listed_and_shown() {
    let show = |migration: Migration| vec![last(Migration { events: events(), ..migration })];
    let agent = Agent::start(vec![
        say(Reply::Migrations { migrations: migrations() }),
        say(Reply::Migrations { migrations: migrations() }),
        say(Reply::Migrations { migrations: vec![] }),
        show(at(SourcePhase::Precopy, 1530)),
        show(over(Outcome::Moved)),
        show(in_doubt()),
        show(indirect()),
        show(over(Outcome::Moved)),
    ]);
    agent.run(&["migration", "list"]).exits(0).is("migration-list");
    let json = agent.run(&["migration", "list", "--json"]).exits(0);
    assert_eq!(serde_json::from_str::<Vec<Migration>>(&json.out).unwrap(), migrations());
    agent.run(&["migration", "list"]).exits(0).says("no migration on this host");
    agent.run(&["migration", "show", "4f1c"]).exits(0).is("migration-show");
    agent.run(&["migration", "show", "4f1c", "--events"]).exits(0).is("migration-show-events");
    agent.run(&["migration", "show", "4f1c"]).exits(0).is("migration-show-in-doubt");
    agent.run(&["migration", "show", "4f1c"]).exits(0).is("migration-show-indirect");
    let json = agent.run(&["migration", "show", "4f1c", "--events", "--json"]).exits(0);
    let shown = serde_json::from_str::<Migration>(&json.out).unwrap();
    assert_eq!((&shown.events, &shown.copy), (&events(), &over(Outcome::Moved).copy));
    // All fields are there, as they are documented.
    let pages = &serde_json::from_str::<serde_json::Value>(&json.out).unwrap()["copy"]["pages"];
    let fields: Vec<&str> = pages.as_object().unwrap().keys().map(|name| &name[..]).collect();
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pages.md")).unwrap();
    let undocumented: Vec<_> = fields.iter().filter(|name| !docs.contains(&format!("| `{name}` |"))).collect();
    assert!(fields.len() > 10 && undocumented.is_empty(), "not in docs/pages.md: {undocumented:?}");
}

#[test]
fn a_migration_is_called_off() {
    let agent = Agent::start(vec![
        vec![last(at(SourcePhase::Keep, 1000))],
        vec![last(over(Outcome::CalledOff))],
        vec![last(over(Outcome::Moved))],
    ]);
    agent.run(&["migration", "cancel", "web1"]).exits(0).says("is being called off; web1 goes on at hosta");
    agent.run(&["migration", "cancel", "web1"]).exits(0).says("web1 stays on hosta");
    agent.run(&["migration", "cancel", "web1"]).exits(1).says("web1 runs on hostb: moved");
    assert_eq!(agent.asked()[0], Request::MigrationCancel { id: "web1".into() });
}

#[test]
fn a_doubt_is_resolved_by_a_clear_word_only() {
    let agent = Agent::start(vec![
        vec![last(in_doubt())],
        vec![last(in_doubt())],
        vec![last(over(Outcome::CalledOff))],
        vec![last(over(Outcome::Moved))],
    ]);
    agent.run(&["migration", "resolve", "web1"]).exits(2).complains("--other-host-is-off");
    let args = ["migration", "resolve", "web1", "--other-host-is-off"];
    agent.run(&args).exits(1).complains("nobody can be asked here: make sure that hostb is off, then give --yes");
    agent.run(&[&args[..], &["--yes"]].concat()).exits(0).says("web1 stays on hosta");
    agent.run(&[&args[..], &["--yes"]].concat()).exits(1).complains("is not in doubt (moved)");
    let asked = agent.asked();
    assert_eq!(asked.len(), 4);
    assert_eq!(asked[2], Request::MigrationResolve { id: ID.to_string(), other_host_is_off: true });
}

#[test]
fn the_doctor_looks_at_everything() {
    let show = || say(Reply::Host(Box::new(hosts().remove(0))));
    let agent = Agent::start(vec![show(), say(Reply::Hosts { hosts: hosts() }), show(), vec![Act::Raw(b"odd\n")]]);
    let dir = agent.dir();
    agent.run(&["ca", "init", "--dir", "ca"]).exits(0);
    agent.run(&["ca", "issue", "hosta", "--dir", "ca", "--out", "id"]).exits(0);
    std::fs::create_dir(dir.join("state")).unwrap();
    std::fs::write(dir.join("hosts.toml"), "[[host]]\nname = 'hostb'\naddress = ['10.0.0.2']\n").unwrap();
    // Has another process write the program: what this process writes may be open in a child that another test forks,
    // and cannot be executed then.
    let script = "printf '#!/bin/sh\\necho \"QEMU emulator version 9.2.1 (x)\"\\n' >qemu && chmod 755 qemu";
    assert!(std::process::Command::new("sh").args(["-c", script]).current_dir(dir).status().unwrap().success());
    let args = ["doctor", "--identity", "id", "--state", "state", "--hosts", "hosts.toml", "--qemu", "./qemu"];

    let findings = |ran: Ran| -> Vec<(String, String, String)> {
        let findings: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let text = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap().to_owned();
        let findings: Vec<_> = findings
            .as_array()
            .unwrap()
            .iter()
            .map(|f| (text(f, "severity"), text(f, "topic"), text(f, "what")))
            .collect();
        let bad = findings.iter().any(|(severity, ..)| severity == "bad");
        assert_eq!(ran.code, i32::from(bad), "{findings:?}");
        findings
    };
    let first = findings(agent.run(&[&args[..], &["--json"]].concat()));
    let has = |findings: &[(String, String, String)], severity: &str, topic: &str, what: &str| {
        let found = findings.iter().any(|(s, t, w)| s == severity && t == topic && w.contains(what));
        assert!(found, "no {severity} {topic} {what} in {findings:#?}");
    };
    has(&first, "ok", "identity", "hosta, valid until 2");
    has(&first, "ok", "agent", "runs and answers, as hosta");
    has(&first, "warn", "hosts", "out of reach: hostc (connection refused)");
    has(&first, "ok", "hosts", "hosts.toml names 1 host");
    has(&first, "ok", "limits", "the agent may open");
    assert!(first.iter().any(|(_, topic, what)| topic == "qemu" && what.contains("9.2.1")));
    for topic in ["state", "kvm", "nic", "tcp"] {
        assert!(first.iter().any(|(_, other, _)| other == topic), "nothing of {topic}");
    }

    std::fs::write(dir.join("hosts.toml"), "[[host]]\nname = 'hostb'\n").unwrap();
    let second = findings(agent.run(&[&args[..7], &["--qemu", "/no/qemu", "--json"]].concat()));
    has(&second, "bad", "hosts", "hosts.toml:1:1: address is missing");
    has(&second, "bad", "qemu", "/no/qemu");
    has(&second, "bad", "agent", "does not answer");

    let args = ["doctor", "--identity", "none", "--socket", "/no/such.sock"];
    let ran = agent
        .run(&args)
        .exits(1)
        .says("BAD   identity  there is no identity in none")
        .says("help: systemctl start skein-agent");
    assert!(ran.out.trim_end().lines().last().unwrap().contains("bad; "), "{}", ran.out);
}

#[test]
fn there_are_manual_pages_and_completions() {
    let agent = Agent::start(vec![]);
    agent.run(&["man", "--out", "man/man1"]).exits(0);
    let page = |name: &str| std::fs::read_to_string(agent.dir().join("man/man1").join(name)).unwrap();
    for name in [
        "skein.1",
        "skein-vm.1",
        "skein-vm-start.1",
        "skein-vm-console.1",
        "skein-host-show.1",
        "skein-migration-resolve.1",
        "skein-doctor.1",
    ] {
        assert!(page(name).contains(".SH NAME"), "{name}");
    }
    assert!(page("skein-migrate.1").contains("something blocks it; nothing was begun"));
    assert!(!agent.dir().join("man/man1/skein-lab.1").exists(), "it has its own");
    agent.run(&["man", "--out", "man/man1/skein.1"]).exits(1).complains("cannot make man/man1/skein.1");
    for shell in ["bash", "zsh", "fish"] {
        let ran = agent.run(&["completions", shell]).exits(0);
        let ran = ran.says("downtime-limit").says("other-host-is-off").says("doctor");
        assert!(!ran.out.contains("pack-pages"), "not for people");
        assert!(!ran.out.contains("black-hole"), "of another program");
    }
}

#[test]
fn the_labs_commands_are_said_to_be_elsewhere() {
    let agent = Agent::start(vec![]);
    for (args, now) in [
        (&["lab"][..], "`skein lab` is `skein-lab` now"),
        (&["lab", "exec", "a", "--", "skein", "--help"], "`skein lab` is `skein-lab` now"),
        (&["bench", "run", "--help"], "`skein bench` is `skein-lab bench` now"),
        (&["demo", "--no-such-option"], "`skein demo` is `skein-lab demo` now"),
    ] {
        let ran = agent.run(args).exits(2).complains(now);
        assert_eq!((ran.err.lines().count(), ran.out.as_str()), (1, ""));
    }
}

#[test]
fn the_documentations_files_are_valid() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/migrate.md")).unwrap();
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [hosts, vm, rate] = blocks[..] else { panic!("{} files", blocks.len()) };
    assert_eq!(skein_inventory::hosts_file::HostsFile::parse(hosts, "docs").unwrap().hosts.len(), 1);
    assert_eq!(skein_inventory::definition::Definition::parse(vm, "docs").unwrap().name, "web1");
    assert!(skein_inventory::hosts_file::HostsFile::parse(rate, "docs").unwrap().rate.is_some());
    let help = Agent::start(vec![]).run(&["vm", "start", "--help"]).exits(0).out;
    let smallest = help.split("The smallest file:\n").nth(1).unwrap();
    let smallest: String = smallest.lines().map(|line| line.trim_start().to_owned() + "\n").collect();
    assert_eq!(skein_inventory::definition::Definition::parse(&smallest, "help").unwrap().disks.len(), 1);
}
