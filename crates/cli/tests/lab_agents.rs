//! Tests agents that own VMs and move them, with real hosts, agents and QEMUs. Needs root.
// Timeout: 900 s
// QEMU: 7.2 10
// Cores: 0.7

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use skein_api::{
    FailureReason, MigrateOptions, Migration, MigrationId, MigrationPhase, Outcome, ProblemKind, RateLimit,
    RateLimitedBy, Reply, Request, Role, Severity, SourcePhase, VmOrigin, VmState,
};
use skein_lab_cluster::{Cluster, Settings, Start, configuration, filled, noise, until};
use skein_lab_guest::{Params, Rewrite};

/// The time within which everything is tidied up after a migration.
const SOON: Duration = Duration::from_secs(60);
/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(60);
/// At this rate a busy guest is copied for ever.
const SLOW_MBIT: u32 = 50;

fn settings() -> Settings {
    Settings::new(env!("CARGO_BIN_EXE_skein").into())
}

#[track_caller]
fn runs_on(cluster: &Cluster, vm: &str, host: &str) {
    let mut found = Vec::new();
    let runs = until(SOON, || {
        found = cluster.where_runs(vm);
        found == [host]
    });
    assert!(runs, "{vm} runs on {found:?}");
}

/// Checks that nothing is left over, and that no guest ever ran twice.
#[track_caller]
fn end(cluster: &Cluster) {
    cluster.wait_clean(SOON);
    cluster.check();
}

/// Returns options for a guest that is copied for ever, and would be called off without a deadline.
fn patient() -> MigrateOptions {
    MigrateOptions { deadline_s: Some(600), ..MigrateOptions::default() }
}

#[track_caller]
fn is_slow(cluster: &Cluster, slow: bool) {
    cluster.lab().rate("a", 0, slow.then_some(SLOW_MBIT)).unwrap();
}

/// Starts a guest on `a` that writes 250 Mb/s.
#[track_caller]
fn start_busy(cluster: &mut Cluster, vm: &str) {
    let params = Params { fill_mb: 16, rewrite_mb: 16, rate: 8000, ..Params::default() };
    let definition = cluster.working(vm, &params);
    cluster.start_vm("a", &definition);
    cluster.wait_working(vm);
}

/// Begins a migration of a busy guest over links that are too slow for it. Returns when the guest is being copied.
#[track_caller]
fn copying(cluster: &Cluster, vm: &str) -> Migration {
    is_slow(cluster, true);
    let id = cluster.begin(vm, "a", "b", patient()).id;
    let copies = || {
        let now = cluster.migration("a", id);
        now.stage == Some(MigrationPhase::Source(SourcePhase::Precopy)) && now.copy.is_some()
    };
    cluster.wait(DEADLINE, "it copies", copies);
    cluster.migration("a", id)
}

#[test]
fn a_guest_is_started_shown_moved_and_stopped() {
    let cluster = Cluster::up(settings());
    let definition = cluster.bare("v1");
    let started = cluster.start_vm("a", &definition);
    assert_eq!((started.name.as_str(), started.state, started.memory_bytes), ("v1", VmState::Running, 64 << 20));
    runs_on(&cluster, "v1", "a");
    assert_eq!(cluster.vms("a"), [cluster.vm("a", "v1")]);
    assert!(cluster.vms("b").is_empty());

    // A name that is taken, an invalid definition, and a file that does not exist.
    let start = |text: &str| Request::VmStart {
        from: VmOrigin::Definition { file: "t.toml".into(), text: text.into() },
        options: Default::default(),
    };
    assert!(cluster.refused("a", &start(&definition)).contains("'v1' is running"));
    assert!(cluster.refused("a", &start("name = 'v2'\nmemory = 3\n")).contains("t.toml:2"));
    assert!(cluster.refused("a", &Request::VmShow { name: "v2".into() }).contains("no VM 'v2'"));
    let migrate = |vm: &str, to: &str| Request::Migrate {
        vm: vm.into(),
        to: to.into(),
        options: MigrateOptions::default(),
        detach: false,
    };
    assert!(cluster.refused("a", &migrate("v2", "b")).contains("no VM 'v2'"));
    let unknown = cluster.refused("a", &migrate("v1", "nowhere"));
    assert!(unknown.contains("nowhere") && unknown.contains("hosts.toml"), "{unknown}");
    assert!(cluster.migrations("a").is_empty(), "nothing was begun");

    for (from, to) in [("a", "b"), ("b", "a")] {
        let moved = cluster.moved("v1", from, to);
        assert_eq!((moved.source.as_str(), moved.target.as_str(), moved.role), (from, to, Role::Source));
        assert!(moved.downtime_ms.is_some_and(|ms| ms < 5000), "{moved:?}");
        runs_on(&cluster, "v1", to);
        cluster.wait(SOON, "the VM is the target's alone", || cluster.vms(from).is_empty());
        assert_eq!(cluster.vm(to, "v1").state, VmState::Running);
        let there = cluster.migration(to, moved.id);
        assert_eq!((there.role, there.outcome), (Role::Target, Some(Outcome::Moved)));
    }
    end(&cluster);

    let Reply::Vm(stopped) = cluster.asked("a", &Request::VmStop { name: "v1".into(), timeout_s: 0, force: true })
    else {
        panic!()
    };
    assert_eq!(stopped.state, VmState::Stopped);
    assert!(cluster.where_runs("v1").is_empty() && cluster.qemus("a").is_empty());
    cluster.asked("a", &Request::VmStart { from: VmOrigin::Name("v1".into()), options: Default::default() });
    runs_on(&cluster, "v1", "a");
    end(&cluster);
}

#[test]
fn a_console_speaks() {
    let cluster = Cluster::up(settings());
    // The firmware writes to the serial port, and waits for a key first.
    let definition = cluster.bare("v1").replace("args = [", "args = ['-boot', 'menu=on,splash-time=2000', ");
    cluster.start_vm("a", &definition.replace("[qemu]", "machine = 'q35,graphics=off'\n[qemu]"));
    let mut console = Command::new(env!("CARGO_BIN_EXE_skein"));
    console.args(["vm", "--socket"]).arg(cluster.run_dir("a").join("agent.sock"));
    let said = console.args(["console", "v1", "--linger", "4"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("Booting from") || said.contains("No bootable device"), "{said}");
}

#[test]
fn a_working_guest_moves_over_two_nics_and_stays_whole() {
    let mut cluster = Cluster::up(Settings { nics: 2, rates: vec![Some(300)], ..settings() });
    let params = Params { fill_mb: 100, rewrite_mb: 40, rewrite: Rewrite::Quarter, rate: 3000, ..Params::default() };
    let definition = cluster.working("w1", &params);
    cluster.start_vm("a", &definition);
    cluster.wait_working("w1");
    for (from, to) in [("a", "b"), ("b", "a")] {
        let before = cluster.lab().counters(from).unwrap();
        cluster.moved("w1", from, to);
        runs_on(&cluster, "w1", to);
        assert!(cluster.beats_on("w1", to, DEADLINE), "its heart beats on {to}");
        let after = cluster.lab().counters(from).unwrap();
        for nic in ["nic0", "nic1"] {
            let sent = after[nic].tx_bytes - before[nic].tx_bytes;
            assert!(sent > 20 << 20, "{nic} carried {sent} bytes");
        }
        assert_eq!(cluster.verify("w1").pages, 100 << 8);
        let written = || cluster.talk("w1", |agent| agent.status()).written;
        let before = written();
        cluster.wait(DEADLINE, "it goes on writing", || written() > before);
    }
    // Verifying would find a wrong page.
    cluster.talk("w1", |agent| agent.corrupt(None));
    assert_eq!(cluster.talk("w1", |agent| agent.verify(DEADLINE)).bad, 1);
    end(&cluster);
}

/// Tests that an end's configuration keeps guests off the network over which the hosts find each other, by the
/// counters of its NIC.
#[test]
fn an_excluded_network_carries_no_guest() {
    let mut cluster = Cluster::idle(Settings { nics: 2, ..settings() });
    cluster.start("a");
    let args = ["--exclude-network", "10.77.0.0/24"].map(str::to_owned).to_vec();
    cluster.start_as("b", &Start { args, ..Start::default() });
    let noise = noise(cluster.dir(), 24);
    cluster.start_vm("a", &filled(&cluster.bare("v1"), &noise));
    let sent = |nic: &str| cluster.lab().counters("a").unwrap()[nic].tx_bytes;
    let before = [sent("nic0"), sent("nic1")];
    // The connections for data of the second NIC may come a moment after the session.
    let moved = cluster.moved("v1", "a", "b");
    let [excluded, other] = [sent("nic0") - before[0], sent("nic1") - before[1]];
    println!("excluded {excluded} bytes, other {other} bytes: {:?}", moved.paths);
    assert!(excluded < 1 << 20 && other > 24 << 20, "{excluded} {other}");
    end(&cluster);
}

/// Tests that a migration waits and is called off once no path may carry it, says so, and is refused as long as that is
/// so.
#[test]
fn a_migration_that_no_path_may_carry_is_called_off_and_refused() {
    let mut cluster = Cluster::idle(settings());
    let args = |words: &str| words.split(' ').map(str::to_owned).collect();
    cluster.start_as("a", &Start { args: args("--outage 5"), ..Start::default() });
    cluster.start_as("b", &Start { args: args("--exclude-network 10.99.0.0/24"), ..Start::default() });
    start_busy(&mut cluster, "v1");
    let id = copying(&cluster, "v1").id;
    let address = |change: &str| {
        let mut ip = cluster.lab().command("b", "ip").unwrap();
        assert!(ip.args(["addr", change, "10.99.0.2/24", "dev", "nic0"]).status().unwrap().success());
    };
    address("add");
    let waits = || cluster.migration("a", id).paths.iter().any(|path| path.note == skein_api::EXCLUDED_PATH);
    cluster.wait(DEADLINE, "it is said that the path is excluded", waits);
    let over = cluster.watched("a", id);
    assert_eq!(over.outcome, Some(Outcome::CalledOff), "{over:?}");
    assert!(over.detail.contains("no path may carry data") && over.detail.contains("excluded"), "{over:?}");
    runs_on(&cluster, "v1", "a");
    cluster.wait_clean(SOON);
    let check = cluster.check_move("v1", "a", "b");
    let blocking: Vec<_> = check.problems.iter().filter(|problem| problem.severity == Severity::Blocks).collect();
    assert!(matches!(&blocking[..], [no_path] if no_path.kind == ProblemKind::NoPath), "{check:?}");
    assert!(blocking[0].what.contains("may carry guests: b excludes the network of 10.77.0."), "{check:?}");
    address("del");
    is_slow(&cluster, false);
    let fine = || cluster.check_move("v1", "a", "b").problems.iter().all(|found| found.severity != Severity::Blocks);
    cluster.wait(DEADLINE, "the path may carry guests again", fine);
    cluster.moved("v1", "a", "b");
    end(&cluster);
}

#[test]
fn what_stands_against_a_migration_is_told_before_anything_is_touched() {
    let mut cluster = Cluster::up(settings());
    for vm in ["v1", "v2"] {
        cluster.start_vm("a", &cluster.bare(vm));
    }
    let blocking = |cluster: &Cluster, vm: &str, to: &str| {
        let check = cluster.check_move(vm, "a", to);
        let blocking = check.problems.iter().filter(|problem| problem.severity == Severity::Blocks);
        blocking.map(|problem| (problem.kind, problem.cure.clone())).collect::<Vec<_>>()
    };
    assert_eq!(blocking(&cluster, "v1", "b"), [], "{:?}", cluster.check_move("v1", "a", "b"));
    assert!(cluster.check_move("v1", "a", "b").problems.iter().all(|problem| !problem.cure.is_empty()));
    assert!(matches!(&blocking(&cluster, "v1", "a")[..], [(ProblemKind::SameHost, _)]));

    // If it were moved, a guest that a person paused would run.
    runs_on(&cluster, "v1", "a");
    let qemu = cluster.witness().seen("v1").pop().expect("it runs");
    qemu.monitor().stop().unwrap();
    assert_eq!(cluster.vm("a", "v1").state, VmState::Paused);
    let paused = blocking(&cluster, "v1", "b");
    assert!(
        matches!(&paused[..], [(ProblemKind::NotRunning, cure)] if cure.contains("`skein vm resume`")),
        "{paused:?}"
    );
    let migrate =
        Request::Migrate { vm: "v1".into(), to: "b".into(), options: MigrateOptions::default(), detach: false };
    assert!(matches!(cluster.asked("a", &migrate), Reply::Check(check) if check.blocks()));
    assert!(!qemu.monitor().is_running().unwrap() && cluster.migrations("a").is_empty(), "nothing was touched");
    cluster.asked("a", &Request::VmResume { name: "v1".into() });
    assert!(qemu.monitor().is_running().unwrap());
    assert_eq!(blocking(&cluster, "v1", "b"), []);

    // The name is taken at the target, by another guest of the same name.
    let other = "name = 'v1'\nmemory = '32 MiB'\naccel = 'tcg'\n";
    cluster.start_vm("b", other);
    assert!(matches!(&blocking(&cluster, "v1", "b")[..], [(ProblemKind::NameTaken, _)]));
    assert!(matches!(cluster.asked("a", &migrate), Reply::Check(check) if check.blocks()));
    cluster.asked("b", &Request::VmStop { name: "v1".into(), timeout_s: 0, force: true });
    assert!(matches!(&blocking(&cluster, "v1", "b")[..], [(ProblemKind::NameTaken, _)]));
    cluster.asked("b", &Request::VmForget { name: "v1".into() });
    assert_eq!(blocking(&cluster, "v1", "b"), []);

    // No room and no QEMU are reported together.
    cluster.stop("b");
    let usual = cluster.settings().clone();
    *cluster.settings() = Settings { incoming: 0, qemu: "/nonexistent/qemu".into(), ..usual.clone() };
    cluster.start("b");
    let mut kinds: Vec<_> = blocking(&cluster, "v1", "b").into_iter().map(|(kind, _)| kind).collect();
    kinds.sort();
    assert_eq!(kinds, [ProblemKind::Places, ProblemKind::QemuMissing]);

    // There is no agent at the target.
    cluster.stop("b");
    let begin = Instant::now();
    let refused =
        cluster.refused("a", &Request::Check { vm: "v1".into(), to: "b".into(), options: MigrateOptions::default() });
    assert!(refused.contains('b') && begin.elapsed() < SOON, "{refused} {:?}", begin.elapsed());
    assert!(cluster.migrations("a").is_empty(), "nothing was begun");
    *cluster.settings() = usual;
    cluster.start("b");
    assert!(cluster.vms("b").is_empty());
    for vm in ["v1", "v2"] {
        cluster.moved(vm, "a", "b");
    }
    end(&cluster);
}

/// Tests a source whose host was lost and set up anew: no agent will ever ask the target for what it has.
#[test]
fn what_an_earlier_try_left_is_named_and_can_be_removed() {
    let mut cluster = Cluster::up(settings());
    start_busy(&mut cluster, "v1");
    let migration = copying(&cluster, "v1");
    cluster.kill("a");
    assert!(cluster.kill_qemu("v1", "a"));
    for dir in [cluster.state_dir("a"), cluster.run_dir("a")] {
        fs::remove_dir_all(dir).unwrap();
    }
    is_slow(&cluster, false);
    cluster.start("a");
    cluster.start_vm("a", &cluster.bare("v1"));
    runs_on(&cluster, "v1", "a");
    let check = cluster.check_move("v1", "a", "b");
    let left: Vec<_> = check.problems.iter().filter(|problem| problem.kind == ProblemKind::Leftover).collect();
    assert!(matches!(&left[..], [one] if one.cure.contains(&migration.id.to_string())), "{check:?}");
    cluster.asked("b", &Request::MigrationCancel { id: migration.id.to_string() });
    cluster.wait(DEADLINE, "it is gone", || !cluster.check_move("v1", "a", "b").blocks());
    cluster.moved("v1", "a", "b");
    runs_on(&cluster, "v1", "b");
    cluster.check();
}

#[test]
fn a_migration_that_is_called_off_leaves_nothing_and_can_be_repeated() {
    let mut cluster = Cluster::up(settings());
    start_busy(&mut cluster, "v1");
    for host in ["a", "b"] {
        let migration = copying(&cluster, "v1");
        // What the first migration has at the target is no leftover that could be called off.
        let second = cluster.check_move("v1", "a", "b");
        let blocking = second.problems.iter().filter(|problem| problem.severity == Severity::Blocks);
        assert_eq!(blocking.map(|problem| problem.kind).collect::<Vec<_>>(), [ProblemKind::MigrationUnderWay]);
        assert!(cluster.refused(host, &Request::MigrationCancel { id: String::new() }).contains("an empty id"));
        let begin = Instant::now();
        cluster.asked(host, &Request::MigrationCancel { id: migration.id.to_string()[..8].to_owned() });
        let over = cluster.watched("a", migration.id);
        let expected = if host == "a" { FailureReason::Cancelled } else { FailureReason::TargetRefused };
        assert_eq!((over.outcome, over.why), (Some(Outcome::CalledOff), Some(expected)), "{over:?}");
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        is_slow(&cluster, false);
        runs_on(&cluster, "v1", "a");
        cluster.wait(SOON, "nothing is left there", || cluster.vms("b").is_empty() && cluster.qemus("b").is_empty());
        cluster.wait_clean(SOON);
        let again = cluster.refused("a", &Request::MigrationCancel { id: migration.id.to_string() });
        assert!(again.contains("is over"), "{again}");
    }
    cluster.moved("v1", "a", "b");
    end(&cluster);
}

#[test]
fn limits_queue_and_priorities_order() {
    let mut cluster = Cluster::up(Settings { outgoing: 1, ..settings() });
    let vms = ["v1", "v2", "v3", "v4"];
    // The first migration takes some time, in which the others are asked for.
    start_busy(&mut cluster, "v1");
    for vm in &vms[1..] {
        cluster.start_vm("a", &cluster.bare(vm));
    }
    is_slow(&cluster, true);
    let begin = |vm, priority| cluster.begin(vm, "a", "b", MigrateOptions { priority: Some(priority), ..patient() }).id;
    let ids = [begin("v1", 50), begin("v2", 50), begin("v3", 100), begin("v4", 50)];
    // A VM can be in one migration only.
    let twice = cluster.check_move("v2", "a", "b");
    assert!(twice.problems.iter().any(|problem| problem.kind == ProblemKind::MigrationUnderWay), "{twice:?}");
    // A migration that waits is called off at once.
    cluster.asked("a", &Request::MigrationCancel { id: "v4".into() });
    assert_eq!(cluster.migration("a", ids[3]).outcome, Some(Outcome::CalledOff));
    is_slow(&cluster, false);
    let over: Vec<Migration> = ids.iter().map(|id| cluster.watched("a", *id)).collect();
    let outcomes: Vec<_> = over.iter().filter_map(|migration| migration.outcome).collect();
    assert_eq!(outcomes, [Outcome::Moved, Outcome::Moved, Outcome::Moved, Outcome::CalledOff]);
    // The times at which each left the queue and was over.
    let spans = ids[..3].iter().map(|id| {
        let events = cluster.migration("a", *id).events;
        let time_of = |word: &str| {
            let of = |event: &&skein_api::LoggedEvent| serde_json::to_string(event).unwrap().contains(word);
            events.iter().find(of).unwrap_or_else(|| panic!("no {word}: {events:?}")).time.clone()
        };
        (time_of("\"begin\""), time_of("\"over\""))
    });
    let spans: Vec<_> = spans.collect();
    assert!(spans[0].1 <= spans[2].0 && spans[2].1 <= spans[1].0, "v1, then v3, then v2: {spans:?}");
    for vm in &vms[..3] {
        runs_on(&cluster, vm, "b");
    }
    runs_on(&cluster, "v4", "a");
    end(&cluster);
}

/// The limit of the migration holds, is told, and can be lifted while the migration runs.
#[test]
fn a_migration_sends_no_faster_than_its_limit() {
    const LIMIT: u64 = 16_000_000;
    let mut cluster = Cluster::up(settings());
    // 32 MiB that do not compress take 17 s at 2 MB/s.
    let definition = cluster.working("v1", &Params { fill_mb: 32, compressible: 0, ..Params::default() });
    cluster.start_vm("a", &definition);
    cluster.wait_working("v1");
    let options = MigrateOptions { rate_bits_per_s: Some(LIMIT), ..MigrateOptions::default() };
    let begun = Instant::now();
    let id = cluster.begin("v1", "a", "b", options).id;
    let shown = |cluster: &Cluster, host: &str, id: MigrationId| match cluster
        .asked(host, &Request::MigrationShow { id: id.to_string() })
    {
        Reply::Migration(migration) => *migration,
        other => panic!("{other:?}"),
    };
    let sent = |migration: &Migration| migration.paths.iter().map(|path| path.sent_bytes).sum::<u64>();
    cluster.wait(DEADLINE, "4 MB are sent", || sent(&shown(&cluster, "a", id)) > 4_000_000);
    // What may have been sent by now is bounded, whatever the machine is busy with: the limit's bytes, and a record of
    // each stream.
    let migration = shown(&cluster, "a", id);
    let most = begun.elapsed().as_secs_f64() * LIMIT as f64 / 8.0 * 1.1 + 17.0 * 263_000.0;
    assert!((sent(&migration) as f64) < most, "{} of {most} bytes: {migration:?}", sent(&migration));
    assert_eq!(migration.rate_limit, Some(RateLimit { bits_per_s: LIMIT, by: RateLimitedBy::Migration }));
    let refused = Request::MigrationLimit { id: id.to_string(), rate_bits_per_s: None };
    assert!(cluster.refused("b", &refused).contains("this host is the target"));
    cluster.asked("a", &Request::MigrationLimit { id: id.to_string(), rate_bits_per_s: None });
    let moved = cluster.watched("a", id);
    assert_eq!(moved.outcome, Some(Outcome::Moved), "{moved:?}");
    assert!(cluster.refused("a", &refused).contains("is over"));
    // The host's limit is in its file, which is read again.
    let hosts = cluster.dir().join("hosts.toml");
    let text = fs::read_to_string(&hosts).unwrap();
    fs::write(&hosts, format!("rate = \"mon-sun 16 Mbit/s\"\n{text}")).unwrap();
    let id = cluster.begin("v1", "b", "a", MigrateOptions::default()).id;
    let by_host = Some(RateLimit { bits_per_s: LIMIT, by: RateLimitedBy::Host });
    cluster.wait(DEADLINE, "the host's limit holds", || shown(&cluster, "b", id).rate_limit == by_host);
    fs::write(&hosts, text).unwrap();
    assert_eq!(cluster.watched("b", id).outcome, Some(Outcome::Moved));
    assert!(cluster.verify("v1").is_good());
    end(&cluster);
}

#[test]
fn guests_pass_each_other() {
    let cluster = Cluster::up(Settings { nics: 2, ..settings() });
    cluster.start_vm("a", &cluster.bare("v1"));
    cluster.start_vm("b", &cluster.bare("v2"));
    let (mut from, mut to) = ("a", "b");
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| cluster.moved("v1", from, to));
            scope.spawn(|| cluster.moved("v2", to, from));
        });
        (from, to) = (to, from);
        runs_on(&cluster, "v1", from);
        runs_on(&cluster, "v2", to);
    }
    end(&cluster);
}

#[test]
fn guests_outlive_their_agent() {
    let mut cluster = Cluster::up(settings());
    let pids: Vec<_> = ["v1", "v2"].map(|vm| cluster.start_vm("a", &cluster.bare(vm)).pid).into();
    let found = |cluster: &Cluster| {
        let vms = cluster.vms("a");
        assert_eq!(vms.iter().map(|vm| vm.pid).collect::<Vec<_>>(), pids);
        assert!(vms.iter().all(|vm| vm.state == VmState::Running), "{vms:?}");
    };
    // The agent is stopped in order, killed, and replaced by another build.
    let upgrade = cluster.dir().join("skein-upgrade");
    fs::copy(env!("CARGO_BIN_EXE_skein"), &upgrade).unwrap();
    for round in 0..3 {
        if round == 1 {
            cluster.kill("a")
        } else {
            cluster.stop("a")
        }
        runs_on(&cluster, "v1", "a");
        let program = (round == 2).then(|| upgrade.clone());
        cluster.start_as("a", &Start { program, ..Start::default() });
        found(&cluster);
    }
    // An agent that hangs comes back.
    cluster.signal("a", Signal::SIGSTOP);
    thread::sleep(Duration::from_secs(1));
    cluster.signal("a", Signal::SIGCONT);
    found(&cluster);
    for vm in ["v1", "v2"] {
        cluster.moved(vm, "a", "b");
    }
    end(&cluster);
}

#[test]
fn a_guest_whose_agent_dies_in_mid_migration_stays_where_it_is() {
    let mut cluster = Cluster::up(settings());
    start_busy(&mut cluster, "v1");
    let upgrade = cluster.dir().join("skein-upgrade");
    fs::copy(env!("CARGO_BIN_EXE_skein"), &upgrade).unwrap();
    for (host, replaced) in [("a", false), ("b", false), ("a", true), ("b", true)] {
        let migration = copying(&cluster, "v1");
        let begin = Instant::now();
        if replaced {
            cluster.stop(host);
            cluster.start_as(host, &Start { program: Some(upgrade.clone()), ..Start::default() });
        } else {
            cluster.kill(host);
            thread::sleep(Duration::from_millis(200));
            cluster.start(host);
        }
        is_slow(&cluster, false);
        let over = || {
            let there = cluster.migrations("b").into_iter().find(|one| one.id == migration.id);
            cluster.migration("a", migration.id).outcome == Some(Outcome::CalledOff)
                && there.is_none_or(|one| one.outcome == Some(Outcome::CalledOff))
        };
        cluster.wait(DEADLINE, "both know that it is kept", over);
        let after = begin.elapsed();
        runs_on(&cluster, "v1", "a");
        println!(
            "agent of {host} {}: kept after {} ms",
            if replaced { "replaced" } else { "killed" },
            after.as_millis()
        );
        assert!(after < SOON, "{after:?}");
        cluster.wait_clean(SOON);
        cluster.moved("v1", "a", "b");
        cluster.moved("v1", "b", "a");
        cluster.verify("v1");
    }
    end(&cluster);
}

#[test]
fn a_qemu_that_somebody_else_started_is_adopted_and_moved() {
    let mut cluster = Cluster::idle(settings());
    let program = cluster.settings().qemu.clone();
    cluster.witness().watch(&cluster.sockets(), "old1");
    let (qmp, config) = (cluster.dir().join("old1.qmp"), cluster.dir().join("old1.cfg"));
    fs::write(&config, configuration(&cluster.sockets(), "old1")).unwrap();
    let line = format!(
        "-name old1 -nodefaults -no-user-config -display none -accel tcg -machine q35 -m 64 \
         -qmp unix:{},server=on,wait=off -readconfig {}",
        qmp.display(),
        config.display()
    );
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let mut child = cluster.spawn("a", &program, &words);
    runs_on(&cluster, "old1", "a");
    let start = Start::with_libraries_of(child.id());
    for host in cluster.hosts() {
        cluster.start_as(&host, &start);
    }
    let adopt = |qmp: &std::path::Path| Request::VmAdopt { qmp: qmp.to_owned(), name: None };
    assert!(cluster.refused("a", &adopt(&cluster.dir().join("none.qmp"))).contains("none.qmp"));
    let Reply::Vm(vm) = cluster.asked("a", &adopt(&qmp)) else { panic!() };
    assert!(vm.adopted && vm.name == "old1" && vm.state == VmState::Running, "{vm:?}");
    assert_eq!(vm.pid, Some(child.id()));
    let moved = cluster.moved("old1", "a", "b");
    runs_on(&cluster, "old1", "b");
    assert!(until(SOON, || child.try_wait().unwrap().is_some()), "the old QEMU is gone: {moved:?}");
    cluster.wait(SOON, "it is the target's alone", || cluster.vms("a").is_empty());
    cluster.moved("old1", "b", "a");
    runs_on(&cluster, "old1", "a");
    end(&cluster);
}

#[test]
fn a_disk_that_takes_nothing_refuses_new_migrations_and_harms_none() {
    let mut cluster = Cluster::idle(settings());
    cluster.mount_state("a", 3 << 20);
    cluster.start("a");
    cluster.start("b");
    start_busy(&mut cluster, "v1");
    cluster.start_vm("a", &cluster.bare("v2"));
    // The disk gets full in the middle of a migration, which ends like any other.
    let migration = copying(&cluster, "v1");
    let filler = cluster.state_dir("a").join("filler");
    let full = fs::write(&filler, vec![0; 4 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    is_slow(&cluster, false);
    assert_eq!(cluster.watched("a", migration.id).outcome, Some(Outcome::Moved));
    runs_on(&cluster, "v1", "b");
    // New migrations are refused with a reason, and the guest runs on.
    let check = cluster.check_move("v2", "a", "b");
    let told: Vec<_> = check.problems.iter().filter(|problem| problem.kind == ProblemKind::Journal).collect();
    assert!(check.blocks() && matches!(&told[..], [one] if one.what.contains("space")), "{check:?}");
    runs_on(&cluster, "v2", "a");
    fs::remove_file(&filler).unwrap();
    cluster.moved("v2", "a", "b");
    cluster.moved("v2", "b", "a");

    // The directory becomes read-only. A file system with open writers cannot become so, so the agent is started anew.
    cluster.stop("a");
    cluster.make_state_read_only("a");
    cluster.begin_start("a", &Start::default());
    assert!(until(DEADLINE, || !cluster.is_up("a")), "an agent that cannot keep its promises does not start");
    let log = fs::read_to_string(cluster.dir().join("a/agent.log")).unwrap();
    assert!(log.lines().last().is_some_and(|line| line.to_lowercase().contains("read-only")), "{log}");
    runs_on(&cluster, "v2", "a");
    cluster.kill("a");
    cluster.make_state_writable("a");
    cluster.start("a");
    cluster.moved("v2", "a", "b");
    end(&cluster);
}
