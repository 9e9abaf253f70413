//! Holds an example of each request, reply and value that a line may have: each variant, and each field once with a
//! value and once without.

use serde_json::json;
use skein_network::{Interface, RdmaCounters, SentAndReceived};

use super::*;

fn id() -> MigrationId {
    MigrationId(0x0123_4567_89ab_cdef)
}

fn options() -> MigrateOptions {
    MigrateOptions {
        priority: Some(70),
        downtime_limit_ms: Some(300),
        deadline_s: Some(600),
        channels: Some(4),
        transport: Some(Transport::Multichannel),
        allow_throttle: Some(50),
        delta_memory: Some(2.5),
        rate_bits_per_s: Some(500_000_000),
        without_rdma: true,
        retries: 3,
        without_controller: true,
    }
}

pub(crate) fn requests() -> Vec<Request> {
    let name = || "web1".to_owned();
    let start = StartOptions {
        overcommit: true,
        as_defined: true,
        new_state: true,
        without_controller: true,
        cpu_model: Some("EPYC-v4".into()),
    };
    let definition = VmOrigin::Definition { file: "web1.toml".into(), text: "name = \"web1\"\n".into() };
    let migrate = |options, detach| Request::Migrate { vm: name(), to: "hostb".into(), options, detach };
    [
        Request::VmStart { from: definition, options: start },
        Request::VmStart { from: VmOrigin::Name(name()), options: StartOptions::default() },
        Request::VmAdopt { qmp: "/run/vm7.qmp".into(), name: Some(name()) },
        Request::VmAdopt { qmp: "/run/vm7.qmp".into(), name: None },
        Request::VmList,
        Request::VmShow { name: name() },
        Request::VmStop { name: name(), timeout_s: 60, force: true },
        Request::VmResume { name: name() },
        Request::VmForget { name: name() },
        Request::VmOffer { name: name() },
        Request::VmReserve { reservation: "1795687159798-000028.0.1".into(), offer: "{}".into() },
        Request::VmRelease { name: name(), reservation: "1795687159798-000028.0.1".into(), keep: true },
        Request::HostList,
        Request::HostShow { name: Some("hostb".into()) },
        Request::HostShow { name: None },
        Request::NetShow { name: "hostb".into() },
        Request::NetProbe { to: "hostb".into() },
        Request::NetProbes,
        Request::Check { vm: name(), to: "hostb".into(), options: options() },
        migrate(options(), false),
        migrate(MigrateOptions::default(), true),
        Request::MigrationList,
        Request::MigrationShow { id: "0123".into() },
        Request::MigrationRecord { id: "0123".into() },
        Request::HostSample,
        Request::MigrationWatch { id: name() },
        Request::MigrationCancel { id: name() },
        Request::MigrationWithdraw { id: "1795687159798-000028.0.1".into() },
        Request::MigrationLimit { id: name(), rate_bits_per_s: Some(1_000_000_000) },
        Request::MigrationLimit { id: name(), rate_bits_per_s: None },
        Request::MigrationRestart { id: name(), hold: Some(HoldOptions::default()), allow_throttle: None },
        Request::MigrationRestart { id: name(), hold: None, allow_throttle: Some(60) },
        Request::HostLimit { rate_bits_per_s: Some(8_000_000), for_s: 300 },
        Request::HostLimit { rate_bits_per_s: None, for_s: 300 },
        Request::HostClose { for_s: 0, power_off: false, stays_on: false },
        Request::HostClose { for_s: 0, power_off: false, stays_on: true },
        Request::HostClose { for_s: 600, power_off: true, stays_on: false },
        Request::MigrationResolve { id: name(), other_host_is_off: true },
        held(HoldOptions { longest_s: Some(3600), window: None }),
        held(HoldOptions { longest_s: None, window: Some(window(None)) }),
        held(HoldOptions { longest_s: None, window: Some(window(Some(1_795_903_200))) }),
        Request::MigrationSwitch { id: name(), deadline_s: None },
        Request::MigrationSwitch { id: name(), deadline_s: Some(60) },
    ]
    .into_iter()
    .chain(updates())
    .chain(consoles().map(|asked| Request::VmConsole(Box::new(asked))))
    .collect()
}

fn consoles() -> impl Iterator<Item = ConsoleRequest> {
    let all = [ConsoleStep::Begin, ConsoleStep::GoOn, ConsoleStep::TakeOver, ConsoleStep::End];
    let input = |step| if step == ConsoleStep::GoOn { ConsoleBytes(b"ls\r".to_vec()) } else { ConsoleBytes::default() };
    let of = move |step| ConsoleRequest {
        name: "web1".into(),
        session: "0f8fad5bd9cb469fa16570867728950e".into(),
        by: "ops".into(),
        step,
        input: input(step),
        input_at: 17,
        after: 4096,
        wait_ms: 10_000,
    };
    all.into_iter().map(of)
}

fn console_views() -> impl Iterator<Item = ConsoleView> {
    let bare = [ConsoleState::Unknown, ConsoleState::Closed].map(|state| ConsoleView { state, ..Default::default() });
    let output = ConsoleBytes(b"\xff\x1b[1mlogin:".to_vec());
    let open = ConsoleView { state: ConsoleState::Open, output, at: 4096, typed: 20, holder: None };
    let held = ConsoleView { state: ConsoleState::Held, holder: Some("bob".into()), ..Default::default() };
    bare.into_iter().chain([open, held])
}

fn updates() -> impl Iterator<Item = Request> {
    let all = [UpdateHow::UpdateReboot, UpdateHow::Update, UpdateHow::Reboot, UpdateHow::Manual];
    all.map(|how| Request::HostUpdate { id: "op.a".into(), how, order: true, for_s: 2700 }).into_iter()
}

fn held(hold: HoldOptions) -> Request {
    let (vm, to, options) = ("web1".into(), "hostb".into(), MigrateOptions::default());
    Request::MigrateHeld { vm, to, options, hold, detach: false }
}

fn window(until_unix_s: Option<u64>) -> SwitchWindow {
    SwitchWindow { from_unix_s: 1_795_899_600, until_unix_s }
}

/// Returns the requests, with the fields around them.
pub(crate) fn request_lines() -> Vec<RequestLine> {
    let line = |api, request_id: Option<&str>| RequestLine {
        api,
        request_id: request_id.map(str::to_owned),
        request: Request::Migrate {
            vm: "web1".into(),
            to: "hostb".into(),
            options: MigrateOptions::default(),
            detach: true,
        },
    };
    let version = RequestLine { api: None, request_id: None, request: Request::Version };
    vec![line(Some(API_VERSION), Some("0f8fad5b-d9cb-469f-a165-70867728950e")), line(None, None), version]
}

fn vm(state: VmState) -> VmView {
    VmView {
        name: "web1".into(),
        state,
        memory_bytes: 4 << 30,
        cpus: 2,
        pid: Some(4711),
        qemu: Some("10.0.2".into()),
        machine: Some("pc-q35-10.0".into()),
        qmp: Some("/run/skein/vms/web1/qmp".into()),
        console: Some("/run/skein/vms/web1/console".into()),
        adopted: true,
        migration: Some(id()),
        drives: vec![
            Drive { name: "disk0".into(), image: Some("/srv/web1.qcow2".into()), backing: vec!["/srv/base".into()] },
            Drive { name: "cd0".into(), image: None, backing: vec![] },
        ],
        definition: Some("name = \"web1\"\n".into()),
        note: "a note".into(),
        reserved: Some("1795687159798-000028.0.1".into()),
    }
}

fn bare_vm() -> VmView {
    VmView {
        pid: None,
        qemu: None,
        machine: None,
        qmp: None,
        console: None,
        adopted: false,
        migration: None,
        drives: vec![],
        definition: None,
        note: String::new(),
        reserved: None,
        ..vm(VmState::Stopped)
    }
}

const VM_STATES: [VmState; 9] = [
    VmState::Running,
    VmState::Paused,
    VmState::Starting,
    VmState::Incoming,
    VmState::Handover,
    VmState::Moved,
    VmState::InDoubt,
    VmState::Stopped,
    VmState::Unresponsive,
];

fn limits() -> Vec<RoomLimit> {
    let resources = [
        Resource::Ram,
        Resource::Commit,
        Resource::HugePages { page_bytes: 2 << 20 },
        Resource::Tasks,
        Resource::Addresses,
        Resource::LockedRam,
        Resource::Other,
    ];
    let limit = |resource| RoomLimit {
        resource,
        owner: "the control group /sys/fs/cgroup/machine.slice".into(),
        name: "memory.max".into(),
        limit: 8 << 30,
        used: 1 << 30,
        promised: 2 << 30,
        promised_to: vec!["web2".into()],
    };
    resources.into_iter().map(limit).collect()
}

fn file(file_system: FileSystem, has_all: bool) -> FileFacts {
    FileFacts {
        path: "/srv/web1.qcow2".into(),
        readable: true,
        writable: false,
        file_system,
        file_system_name: "nfs".into(),
        mounted_from: has_all.then(|| "nas:/export/vm".into()),
        handle: has_all.then(|| "01ab".into()),
        device: 42,
        inode: 4711,
        wwid: has_all.then(|| "naa.5000".into()),
    }
}

fn accels() -> Vec<AccelFacts> {
    let models = vec![
        CpuModel { name: "EPYC-v4".into(), missing: vec!["avx512f".into()], feature_count: None },
        CpuModel { name: "qemu64-v1".into(), missing: vec![], feature_count: Some(28) },
    ];
    vec![
        AccelFacts { accel: Accel::Kvm, cpu_models: models, features: Some(["avx2".to_owned()].into()) },
        AccelFacts { accel: Accel::Tcg, cpu_models: vec![], features: None },
        AccelFacts { accel: Accel::Auto, cpu_models: vec![], features: None },
    ]
}

fn facts() -> HostFacts {
    let presences = [
        Presence::Guest,
        Presence::Stopped,
        Presence::Leftover { migration: Some("0123456789abcdef".into()) },
        Presence::Leftover { migration: None },
    ];
    let file_systems = [(FileSystem::Local, true), (FileSystem::Network, false), (FileSystem::Unknown, false)];
    HostFacts {
        name: "hosta".into(),
        boot_id: Some("4a0d".into()),
        ram_bytes: 64 << 30,
        ram_available_bytes: 32 << 30,
        kept_ram_bytes: 1 << 30,
        room: Some(Room { limits: limits(), unread: vec!["a limit".into()] }),
        hugepages: vec![Hugepages { page_bytes: 2 << 20, total: 512, free: 256 }],
        cpus: 16,
        cpu_vendor: "AuthenticAMD".into(),
        cpu_flags: ["avx2".to_owned(), "svm".to_owned()].into(),
        kvm: Ok(()),
        qemu: Ok(QemuFacts {
            program: "/usr/bin/qemu-system-x86_64".into(),
            version: QemuVersion { major: 10, minor: 0, micro: 2 },
            machines: vec![
                MachineType { name: "pc-q35-10.0".into(), alias: Some("q35".into()) },
                MachineType { name: "microvm".into(), alias: None },
            ],
            accels: accels(),
        }),
        bridges: ["br0".to_owned()].into(),
        taps_in_use: ["tap0".to_owned()].into(),
        vms: presences.into_iter().map(|presence| VmFacts { name: "web1".into(), presence }).collect(),
        incoming: MigrationSlots { limit: 4, used: 1 },
        outgoing: MigrationSlots { limit: 4, used: 0 },
        journal: Ok(()),
        files: file_systems.into_iter().map(|(system, has_all)| file(system, has_all)).collect(),
        digests: [("/boot/vmlinuz".into(), "00ff".to_owned())].into(),
        nics: vec![
            NicFacts { name: "eth0".into(), speed_bits_per_s: Some(1_000_000_000) },
            NicFacts { name: "eth1".into(), speed_bits_per_s: None },
        ],
        swtpm: Some("0.8.2".into()),
        closed: Some("it is to be booted".into()),
    }
}

fn bare_facts() -> HostFacts {
    HostFacts {
        boot_id: None,
        room: None,
        hugepages: vec![],
        cpu_flags: Default::default(),
        kvm: Err("no /dev/kvm".into()),
        qemu: Err("none is installed".into()),
        bridges: Default::default(),
        taps_in_use: Default::default(),
        vms: vec![],
        journal: Err("no room".into()),
        files: vec![],
        digests: Default::default(),
        nics: vec![],
        swtpm: None,
        closed: None,
        ..facts()
    }
}

fn problem(kind: ProblemKind, severity: Severity) -> Problem {
    Problem { kind, severity, what: "something is the matter".into(), cure: "mend it".into() }
}

const KINDS: [ProblemKind; 45] = [
    ProblemKind::SameHost,
    ProblemKind::MigrationUnderWay,
    ProblemKind::NotRunning,
    ProblemKind::NoPath,
    ProblemKind::NicsUnused,
    ProblemKind::LargePacketsLost,
    ProblemKind::Journal,
    ProblemKind::Places,
    ProblemKind::NameTaken,
    ProblemKind::Leftover,
    ProblemKind::QemuMissing,
    ProblemKind::QemuTooOld,
    ProblemKind::QemuOlder,
    ProblemKind::MachineType,
    ProblemKind::Accel,
    ProblemKind::CpuVendor,
    ProblemKind::CpuModel,
    ProblemKind::CpuFlags,
    ProblemKind::CpuDiffers,
    ProblemKind::CpuUnknown,
    ProblemKind::CpusFew,
    ProblemKind::Blocker,
    ProblemKind::PassedThrough,
    ProblemKind::FileMissing,
    ProblemKind::FileDiffers,
    ProblemKind::DiskMissing,
    ProblemKind::DiskDiffers,
    ProblemKind::DiskLocal,
    ProblemKind::DiskUnknown,
    ProblemKind::DiskAccess,
    ProblemKind::Bridge,
    ProblemKind::Tap,
    ProblemKind::Ram,
    ProblemKind::RamShared,
    ProblemKind::Hugepages,
    ProblemKind::Tasks,
    ProblemKind::SourceRam,
    ProblemKind::RoomUnknown,
    ProblemKind::DefinitionDiffers,
    ProblemKind::Composition,
    ProblemKind::DiskChanged,
    ProblemKind::Tuning,
    ProblemKind::TpmMissing,
    ProblemKind::NotAllowed,
    ProblemKind::Other,
];

fn host(facts: Option<HostFacts>) -> HostView {
    HostView {
        name: "hosta".into(),
        addresses: vec!["10.0.0.1:7070".into()],
        is_local: false,
        reachable: Some(true),
        note: "a note".into(),
        problems: vec![problem(ProblemKind::NicsUnused, Severity::Warns)],
        facts,
    }
}

fn checks() -> Vec<CheckResult> {
    let (vm, to) = (|| "web1".to_owned(), || "hostb".to_owned());
    let problems = KINDS.map(|kind| problem(kind, Severity::Blocks)).to_vec();
    let forecast = |converges, seconds: Option<f64>| {
        let why = "at most about 12 s".to_owned();
        Some(Forecast { seconds, downtime_ms_estimate: seconds.map(|s| s * 2.5), converges, why })
    };
    vec![
        CheckResult { vm: vm(), to: to(), problems, forecast: None },
        CheckResult { vm: vm(), to: to(), problems: vec![], forecast: forecast(ForecastConvergence::Yes, Some(12.5)) },
        CheckResult { vm: vm(), to: to(), problems: vec![], forecast: forecast(ForecastConvergence::No, None) },
        CheckResult { vm: vm(), to: to(), problems: vec![], forecast: forecast(ForecastConvergence::Unknown, None) },
    ]
}

fn pages() -> PageFigures {
    PageFigures {
        transport: Transport::Auto,
        direct: Some(true),
        why_not_direct: "a reason".into(),
        not_compared: "another reason".into(),
        again_bytes: 1,
        counts: PageCounts {
            pages: 2,
            zero_pages: 3,
            packed_pages: 4,
            packed_bytes: 5,
            stored_pages: 6,
            written_pages: 18,
            unchanged_pages: 7,
            delta_pages: 8,
            delta_bytes: 9,
            packed_delta_bytes: 10,
            repaired_pages: 11,
            missed_pages: 12,
            other_bytes: 13,
            copied_bytes: 19,
            target_copied_bytes: 20,
            late_pages: 14,
            packing_us: 15,
            zstd_level: Some(-1),
            compared_us: Some(17),
        },
    }
}

fn copies() -> Vec<CopyProgress> {
    let copy = |converges, pages| CopyProgress {
        total_bytes: 4 << 30,
        remaining_bytes: 1 << 30,
        remaining_wire_bytes: Some(1 << 28),
        transferred_bytes: 3 << 30,
        round: 2,
        dirty_bytes_per_s: 21_000_000,
        bits_per_s: 1_880_000_000,
        converges,
        throttle_percent: 20,
        pages,
    };
    let rates = CopyRates { dirties_bytes_per_s: 300_000_000, moves_bytes_per_s: 230_000_000 };
    vec![
        copy(None, None),
        copy(Some(Convergence::FirstRound { seconds: 1.5 }), Some(pages())),
        copy(
            Some(Convergence::In { seconds: 2.5 }),
            Some(PageFigures { transport: Transport::Tcp, ..Default::default() }),
        ),
        copy(
            Some(Convergence::Never(rates)),
            Some(PageFigures { transport: Transport::Compression, direct: Some(false), ..Default::default() }),
        ),
    ]
}

const SOURCE_PHASES: [SourcePhase; 9] = [
    SourcePhase::Begin,
    SourcePhase::Prepare,
    SourcePhase::Precopy,
    SourcePhase::Held,
    SourcePhase::Switchover,
    SourcePhase::Grant,
    SourcePhase::Release,
    SourcePhase::Keep,
    SourcePhase::Done,
];

const TARGET_PHASES: [TargetPhase; 8] = [
    TargetPhase::Begin,
    TargetPhase::Prepare,
    TargetPhase::Ready,
    TargetPhase::Completed,
    TargetPhase::Run,
    TargetPhase::Running,
    TargetPhase::Refuse,
    TargetPhase::Done,
];

const REPORTS: [Report; 9] = [
    Report::Queued,
    Report::Preparing,
    Report::Ready,
    Report::Completed,
    Report::Run,
    Report::Refusing,
    Report::Running,
    Report::Refused,
    Report::Settled,
];

const REASONS: [FailureReason; 16] = [
    FailureReason::Cancelled,
    FailureReason::Deadline,
    FailureReason::ContactLost,
    FailureReason::MigrationFailed,
    FailureReason::GuestChanged,
    FailureReason::TargetRefused,
    FailureReason::QemuEnded,
    FailureReason::CannotRun,
    FailureReason::Journal,
    FailureReason::AgentRestarted,
    FailureReason::Proof,
    FailureReason::Aborted,
    FailureReason::NotUnderstood,
    FailureReason::NotHeld,
    FailureReason::HoldOver,
    FailureReason::Other,
];

const OUTCOMES: [Outcome; 3] = [Outcome::Moved, Outcome::CalledOff, Outcome::Ended];

fn stages() -> Vec<MigrationPhase> {
    let of_source = SOURCE_PHASES.map(MigrationPhase::Source);
    let of_target = TARGET_PHASES.map(MigrationPhase::Target);
    [MigrationPhase::Queued].into_iter().chain(of_source).chain(of_target).collect()
}

fn events() -> Vec<LoggedEvent> {
    let begun = |role| LogEntry::Begun { vm: "web1".into(), role, source: "hosta".into(), target: "hostb".into() };
    let mut entries = vec![begun(Role::Source), begun(Role::Target)];
    let happened = |event| LogEntry::Handover { event };
    entries.push(happened(MigrationEvent::Queued));
    entries.extend(stages().into_iter().map(|stage| happened(MigrationEvent::Phase { stage })));
    let reported = |report, detail: &str| happened(MigrationEvent::Reported { report, detail: detail.into() });
    entries.extend(REPORTS.map(|report| reported(report, "")));
    entries.push(reported(Report::Refused, "no room"));
    let called_off = |why, detail: &str| happened(MigrationEvent::CalledOff { why, detail: detail.into() });
    entries.extend(REASONS.map(|why| called_off(why, "")));
    entries.push(called_off(FailureReason::QemuEnded, "it was killed"));
    entries.extend([MigrationEvent::InDoubt, MigrationEvent::Recovered, MigrationEvent::WriteFailed].map(happened));
    entries.extend(OUTCOMES.map(|outcome| happened(MigrationEvent::Over { outcome })));
    entries.push(LogEntry::Note { text: "a word".into() });
    entries.extend(copies().into_iter().map(|copy| LogEntry::Copied { copy: Box::new(copy) }));
    entries.push(LogEntry::Downtime { ms: 121 });
    entries.into_iter().map(|event| LoggedEvent { time: "2026-11-25T12:00:00.000Z".into(), event }).collect()
}

fn migration() -> Migration {
    Migration {
        id: id(),
        vm: "web1".into(),
        role: Role::Source,
        source: "hosta".into(),
        target: "hostb".into(),
        stage: Some(MigrationPhase::Source(SourcePhase::Precopy)),
        outcome: None,
        why: None,
        detail: String::new(),
        in_doubt: false,
        begun: "2026-11-25T12:00:00.000Z".into(),
        elapsed_ms: 1200,
        downtime_ms: None,
        copy: None,
        paths: vec![],
        rate_limit: None,
        attempt: None,
        hold: None,
        events: vec![],
    }
}

fn rate_limit(by: RateLimitedBy) -> RateLimit {
    RateLimit { bits_per_s: 1_000_000_000, by }
}

fn migrations() -> Vec<Migration> {
    let path = |usable| PathView {
        nic: "eth0".into(),
        remote: "10.0.0.2".into(),
        usable,
        sent_bytes: 1 << 20,
        rdma_connections: 2,
        rdma: Some(RdmaCounters {
            device: "mlx5_0".into(),
            bytes: Some(SentAndReceived { sent: 1 << 20, received: 4096 }),
            packets: Some(SentAndReceived { sent: 256, received: 64 }),
            priorities: vec![SentAndReceived { sent: 1 << 20, received: 4096 }],
        }),
        bits_per_s: 940_000_000,
        note: if usable { String::new() } else { "carries no data: its network is excluded".into() },
        connections: if usable { "4: the NICs have 8 queues or more at both ends".into() } else { String::new() },
    };
    let over = Migration {
        role: Role::Target,
        stage: None,
        outcome: Some(Outcome::CalledOff),
        why: Some(FailureReason::QemuEnded),
        detail: "it was killed".into(),
        in_doubt: true,
        downtime_ms: Some(121),
        copy: copies().pop(),
        paths: vec![path(true), path(false)],
        rate_limit: Some(rate_limit(RateLimitedBy::Host)),
        attempt: Some(Attempt { number: 2, of: 4, not_begun: Some(3), next_in_ms: Some(1500) }),
        events: events(),
        ..migration()
    };
    let tried =
        Migration { attempt: Some(Attempt { number: 3, of: 4, not_begun: None, next_in_ms: None }), ..migration() };
    let limited = [RateLimitedBy::Migration, RateLimitedBy::Cluster]
        .map(|by| Migration { rate_limit: Some(rate_limit(by)), ..migration() });
    [vec![migration(), over, tried], limited.to_vec()].concat()
}

pub(crate) fn replies() -> Vec<Reply> {
    let mut replies = vec![
        Reply::Done,
        Reply::Error(Refusal { message: "it cannot be done".into(), cure: "do this".into() }),
        Reply::NotStarted(Refusal { message: "it was not started".into(), cure: "see why".into() }),
        Reply::NotForgotten(Refusal { message: "it runs".into(), cure: "stop it".into() }),
        Reply::Offer { offer: "{}".into() },
        Reply::Vms { vms: vec![] },
        Reply::Vms { vms: [vec![bare_vm()], VM_STATES.map(vm).to_vec()].concat() },
        Reply::Vm(Box::new(vm(VmState::Running))),
        Reply::Host(Box::new(host(Some(facts())))),
        Reply::Host(Box::new(HostView { reachable: None, problems: vec![], ..host(Some(bare_facts())) })),
        Reply::Network { interfaces: interfaces() },
        Reply::ProbeStep { words: "nic0: 941 Mb/s out".into() },
        Reply::Probe(Box::default()),
        Reply::Probes { probes: vec![Probe::example()] },
        Reply::Hosts { hosts: vec![host(None)] },
        Reply::Migrations { migrations: migrations() },
        Reply::MigrationRecord(Box::new(MigrationRecord { migration: migration(), samples: vec![sample()] })),
        Reply::HostSample(Box::new(SampledHost {
            at: 1_795_687_159_798,
            host: host_sample(),
            migrations: vec![sample()],
        })),
        Reply::HostSample(Box::default()),
    ];
    replies.extend(checks().into_iter().map(Reply::Check));
    replies.extend(migrations().into_iter().map(|migration| Reply::Progress(Box::new(migration))));
    replies.extend(migrations().into_iter().map(|migration| Reply::Migration(Box::new(migration))));
    for state in [UpdateRunState::Unknown, UpdateRunState::Running, UpdateRunState::Done, UpdateRunState::Failed] {
        replies.push(Reply::HostUpdate(HostUpdateView { state, message: "it is updated".into() }));
    }
    replies.extend(console_views().map(|view| Reply::Console(Box::new(view))));
    replies.push(Reply::Version(VersionView { release: "0.1.0".into(), api: API_VERSION }));
    replies
}

/// Returns interfaces that differ in what has several variants.
fn interfaces() -> Vec<Interface> {
    let modes =
        ["802.3ad", "active-backup", "balance-alb", "balance-rr", "balance-tlb", "balance-xor", "broadcast", "other"];
    let hashes = ["layer3+4", "layer2", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac", "other"];
    let selectors = ["dscp", "any", "datagram", "ethertype", "stream", "other"];
    let all =
        modes.iter().zip(hashes.iter().cycle()).zip(selectors.iter().cycle()).zip(["full", "half"].iter().cycle());
    let bonds = all.map(|(((mode, hash), selector), duplex)| interface(mode, hash, selector, duplex));
    bonds.chain(on_teams_and_ovs()).collect()
}

/// Returns interfaces that are teams, their members, or made by Open vSwitch.
fn on_teams_and_ovs() -> Vec<Interface> {
    let bare = || Interface { layer: None, ..interface("other", "other", "other", "full") };
    let hashes = [json!("none"), json!({ "fields": ["eth", "l4"] }), json!("unknown")];
    let modes = ["roundrobin", "activebackup", "loadbalance", "broadcast", "random", "other"];
    let teams = modes.iter().zip(hashes.into_iter().cycle()).map(|(mode, hash)| Interface {
        team: serde_json::from_value(json!({ "mode": mode, "active": 3, "hash": hash, "runner": "lacp" })).unwrap(),
        team_port: serde_json::from_value(json!({ "active": true })).unwrap(),
        not_known: Some("Open vSwitch did not answer (Permission denied)".into()),
        ..bare()
    });
    let ports = ["active-backup", "balance-slb", "balance-tcp", "other"].iter().map(|mode| Interface {
        ovs: serde_json::from_value(json!({
            "bridge": "br-int", "vlan": 7,
            "uplinks": [{
                "port": "bond0", "bridges": ["br-int", "br-ex"], "vlan": 100,
                "bond": { "mode": mode, "lacp": true, "fallback": false },
                "members": [{ "name": "ens1f0", "index": 3, "link": true, "answered": true }],
            }],
        }))
        .unwrap(),
        ..bare()
    });
    teams.chain(ports).collect()
}

fn interface(mode: &str, hash: &str, selector: &str, duplex: &str) -> Interface {
    let example = json!({
        "name": "ens1f0", "index": 3, "mac": "02:00:00:00:00:01", "mtu": 9000, "admin_up": true, "carrier": true,
        "loopback": false, "kind": null, "master": 5, "lower": null, "speed_mbit": 25000, "rx_queues": 16,
        "addresses": [{ "ip": "10.0.0.1", "prefix_len": 24, "usable": true }],
        "counters": {
            "rx_bytes": 1, "tx_bytes": 2, "rx_packets": 3, "tx_packets": 4, "rx_dropped": 5, "tx_dropped": 6,
            "rx_errors": 7, "tx_errors": 8,
        },
        "uplink": null, "port_of": "bond0", "tx_queues": 16,
        "layer": { "bond": {
            "mode": mode, "hash": hash, "active": null, "aggregated": 2, "partner": "02:00:00:00:00:09",
        } },
        "bond_port": { "active": true, "link": true, "failures": 1, "own_mac": "02:00:00:00:00:02" },
        "driver": {
            "name": "mlx5_core", "firmware": "26.35", "duplex": duplex,
            "channels": { "combined": 16, "combined_max": 63, "rx": 0, "rx_max": 0, "tx": 0, "tx_max": 0 },
            "rings": { "rx": 1024, "rx_max": 8192, "tx": 1024, "tx_max": 8192 }, "pause": false,
            "offloads": {
                "tso": true, "gso": true, "gro": true, "lro": false, "tx_checksum": true, "rx_checksum": true,
            },
        },
        "device": {
            "bus": "pci", "name": "0000:3b:00.0", "numa_node": 0, "near_cores": "0-15", "slot": "8.0 GT/s PCIe x8",
            "functions": 0, "functions_max": 8, "is_function": false,
            "interrupts": [{ "number": 27, "name": "mlx5_comp0@pci:0000:3b:00.0", "cores": "0", "count": 9 }],
        },
        "dcb": {
            "ets": {
                "willing": false, "classes": 8, "class_of": [0, 0, 0, 1, 0, 0, 0, 0],
                "share_percent": [50, 50, null, null, null, null, null, null],
            },
            "pfc": {
                "priorities_max": 8, "priorities": [3], "sent": [0, 0, 0, 1, 0, 0, 0, 0],
                "received": [0, 0, 0, 2, 0, 0, 0, 0],
            },
            "applications": [{ "selector": selector, "protocol": 26, "priority": 3 }],
            "dcbx": { "host": true, "ieee": true },
        },
        "rdma": [{
            "device": "mlx5_0", "port": 1, "active": true, "link_layer": "Ethernet", "rate": "25 Gb/sec (1X EDR)",
        }],
        "qdisc": "mq",
    });
    serde_json::from_value(example).unwrap()
}

fn host_load() -> HostLoad {
    HostLoad {
        cpu_millicores: 1500,
        ram_bytes: 64 << 30,
        ram_available_bytes: 40 << 30,
        disk_read_bytes_per_s: 1 << 20,
        disk_write_bytes_per_s: 2 << 20,
        net_receive_bytes_per_s: 3 << 20,
        net_send_bytes_per_s: 4 << 20,
    }
}

fn vm_load() -> VmLoad {
    VmLoad {
        cpu_millicores: 750,
        ram_bytes: 4 << 30,
        disk_read_bytes_per_s: 1 << 20,
        disk_write_bytes_per_s: 2 << 20,
        net_receive_bytes_per_s: 3 << 20,
        net_send_bytes_per_s: 4 << 20,
    }
}

fn addresses() -> Vec<String> {
    vec!["10.0.0.1:7070".into(), "hosta.example.org:7070".into()]
}

/// Returns the lines that an agent sends.
pub(crate) fn to_controller() -> Vec<ToController> {
    let bare = Hello {
        host: "hosta".into(),
        release: "0.2.0".into(),
        api: API_VERSION,
        instance: 7,
        boot_id: None,
        addresses: vec![],
        highest_term: Term(0),
        moves_off: false,
    };
    let full = Hello {
        boot_id: Some("3b2b1f0c-6f0e-4b7f-9f57-2f5b8a8f1f2e".into()),
        addresses: addresses(),
        highest_term: Term(3),
        moves_off: true,
        ..bare.clone()
    };
    let report = HostReport {
        sequence: 1,
        facts: Some(Box::new(facts())),
        load: Some(host_load()),
        nics: host_sample().nics,
        vms: vec![vm(VmState::Running), bare_vm()],
        vms_gone: vec!["web2".into()],
        vms_forgotten: vec!["web2".into()],
        vm_loads: [("web1".into(), vm_load())].into(),
        migrations: vec![migration()],
        contacts: Some([("hostb".into(), true), ("hostc".into(), false)].into()),
        moves_asked: vec![MigrationId(8)],
        led: Some(Term(3)),
        heard: Some(HeardEcho { term: Term(3), number: 7, voters: 2 }),
        watchdog: Some(WatchdogState {
            armed: Some(ArmedWatchdog {
                identity: "iTCO_wdt".into(),
                acknowledged_ms: 15_000,
                asked_ms: 5_000,
                period_ms: 1_000,
                timeout_ms: 10_000,
            }),
            why_not: String::new(),
        }),
    };
    vec![
        ToController::Hello(bare),
        ToController::Hello(full),
        ToController::Report(Box::new(report)),
        ToController::Report(Box::new(HostReport { sequence: 2, ..HostReport::default() })),
        ToController::Reply { command: 5, reply: Box::new(Reply::Done) },
        ToController::Deposed { command: 6, highest: Term(4) },
        ToController::Renew,
        ToController::Sample(Box::new(MigrationSample { migration: seen_migration(), ..sample() })),
        ToController::Sample(Box::new(MigrationSample { migration: seen_migration(), forecast: None, ..sample() })),
        ToController::Seen { look: 9, reply: Box::new(Reply::Done) },
        ToController::AskStart { ask: 7, vm: "web1".into(), is_here: true },
        ToController::AskMove { ask: 8, vm: "web1".into(), to: "hostb".into(), migration: Some(MigrationId(7)) },
        ToController::Other,
    ]
}

fn host_sample() -> HostSample {
    let nic = |name: &str, speed_bits_per_s| NicRates {
        name: name.into(),
        speed_bits_per_s,
        send_bits_per_s: 900_000_000,
        receive_bits_per_s: 1_000_000,
    };
    HostSample {
        nics: vec![nic("eth0", Some(1_000_000_000)), nic("eth1", None)],
        cores_permille: vec![1000, 250],
        mover_millicores: 700,
    }
}

fn sample() -> MigrationSample {
    let forecast = TimeLeft { done_permille: 250, left_ms: 30_000, left_low_ms: 27_000, left_high_ms: 34_000 };
    MigrationSample { at: 1_795_687_159_798, migration: migration(), host: host_sample(), forecast: Some(forecast) }
}

/// Returns a migration without its events.
fn seen_migration() -> Migration {
    Migration { events: Vec::new(), ..migration() }
}

/// Returns the lines that a controller sends.
pub(crate) fn to_agent() -> Vec<ToAgent> {
    let command = |request_id: Option<&str>, request| ToAgent::Command {
        command: 5,
        term: Term(3),
        request_id: request_id.map(str::to_owned),
        request: Box::new(request),
    };
    let migrate =
        Request::Migrate { vm: "web1".into(), to: "hostb".into(), options: MigrateOptions::default(), detach: true };
    vec![
        ToAgent::Welcome(Welcome {
            cluster: "rack7".into(),
            controller: "ctl1".into(),
            release: "0.2.0".into(),
            report_period_ms: 1000,
        }),
        ToAgent::Refused(Refusal { message: "the host was removed".into(), cure: "join again".into() }),
        ToAgent::Leads { term: Term(3) },
        command(Some("drain-7:web1"), migrate),
        command(None, Request::VmList),
        ToAgent::Hosts { addresses: [("hosta".into(), addresses()), ("hostb".into(), vec![])].into() },
        ToAgent::Controllers { addresses: [("ctl2".into(), "10.0.0.2:7443".into())].into() },
        ToAgent::Renewed { certificate: "-----BEGIN CERTIFICATE-----".into() },
        ToAgent::NotRenewed(Refusal { message: "no key".into(), cure: "let another lead".into() }),
        ToAgent::May { ask: 7 },
        ToAgent::Watch { migrations: [MigrationId(7), MigrationId(8)].into() },
        ToAgent::Look { look: 9, request: Box::new(Request::VmList) },
        ToAgent::Console { look: 10, request: Box::new(consoles().next().unwrap()) },
        ToAgent::MayNot {
            ask: 7,
            again: false,
            refusal: Refusal { message: "it runs on hostb".into(), cure: "move it".into() },
        },
        ToAgent::Heard {
            term: Term(3),
            number: 7,
            sequence: 41,
            voters: 2,
            hosts: ["hosta".into(), "hostb".into()].into(),
        },
        ToAgent::Other,
    ]
}
