//! The named cases: which hosts, links and guest, which movers, which faults, and the figure to reach. Data only.

use std::time::Duration;

use skein_lab_guest::Rewrite;

use crate::{figure::Check, mover::Mover};

/// One named case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name on the command line and in results.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub shows: &'static str,
    /// The mover that the figure is about.
    pub subject: Mover,
    /// Each builds its own hosts, links and guest.
    pub stages: Vec<Scene>,
    /// The figure, part by part.
    pub checks: Vec<Check>,
}

/// One set-up within a case.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Name within the case; empty for the only one.
    pub name: &'static str,
    /// The links between the two hosts.
    pub links: Links,
    /// The guests; all are alike.
    pub guest: Guest,
    /// How many move, and where to.
    pub moves: Moves,
    /// `downtime-limit` of all movers.
    pub downtime_limit_ms: u64,
    /// Per cent by which a mover may slow the guest: QEMU's `auto-converge`, an agent's `allow_throttle`. None: not at
    /// all.
    pub allow_throttle: Option<u8>,
    /// What agents are told of `delta_memory`, per cent of the guest's RAM. None: nothing, so that it is their default.
    pub delta_memory: Option<f64>,
    /// Agents keep the RAM of a guest that leaves, for its way back in the next round.
    pub keep_ram: bool,
    /// The movers compared: the case's subject first, then its strongest peer.
    pub movers: Vec<Mover>,
    /// How many of them a quick bench keeps.
    pub quick_movers: usize,
    /// What is done to the links in mid-migration.
    pub fault: Option<Fault>,
    /// iperf3 on all links together, before the first migration.
    pub iperf3: bool,
    /// Watch the memory of the mover's processes.
    pub watch_memory: bool,
    /// Echo a small stream through the same tunnel.
    pub control_stream: bool,
    /// Ping the guests from outside.
    pub ping: bool,
    /// After all rounds, move the agents' first guest once more and kill its agent meanwhile.
    pub kill_agent: bool,
    /// While a guest moves, other guests are at work on all cores, in a control group of their own (see
    /// [`crate::busy`]).
    pub busy_host: bool,
}

/// The links between the two hosts: one a NIC at each end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// Rate of each in Mb/s, both ways; None: as fast as the machine.
    pub rates_mbit: Vec<Option<u32>>,
    /// All NICs are in one subnet; otherwise each pair has its own.
    pub same_subnet: bool,
    /// Bytes.
    pub mtu: u32,
}

/// A guest and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// RAM.
    pub memory_mb: u32,
    /// Part of it that the workload fills and checks.
    pub fill_mb: u32,
    /// Share of compressible bytes in it, per cent.
    pub compressible: u8,
    /// Part of it that is rewritten all the time.
    pub rewrite_mb: u32,
    /// How much of a page a rewrite changes.
    pub rewrite: Rewrite,
    /// Pages rewritten a second.
    pub rewrite_pages_per_s: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Shared disk that it writes and checks; 0: none.
    pub disk_mb: u32,
    /// It has unpacked and built real software, and keeps all of it in memory; see `docs/guest.md`.
    pub software: bool,
}

/// How many guests move, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// This many at once, all in the same direction.
    Together(u32),
    /// One each way at once.
    BothWays,
}

/// What is done to links in mid-migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is done to the links.
    pub kind: FaultKind,
    /// To the last of them, or to all.
    pub all_links: bool,
    /// When, as a share of the guest's filled memory that QEMU has sent, per cent.
    pub after_percent: u32,
    /// How long.
    pub lasts: Duration,
}

/// How a link is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The NIC sees its carrier go.
    Carrier,
    /// Everything sent is lost; the NIC sees nothing.
    BlackHole,
}

impl FaultKind {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Carrier => "carrier",
            FaultKind::BlackHole => "black-hole",
        }
    }
}

impl Moves {
    /// How many guests there are.
    pub fn guests(self) -> u32 {
        match self {
            Moves::Together(n) => n,
            Moves::BothWays => 2,
        }
    }
}

impl Case {
    /// The case's figure in words, without the part that all have in common.
    pub fn figure(&self) -> String {
        let data = crate::figure::Data { subject: self.subject, runs: &[], yardsticks: &[] };
        self.checks.iter().map(|check| check.judge(data).figure).collect::<Vec<_>>().join("; ")
    }

    /// As it is run with `--quick`: of the peers, only the strongest.
    pub fn quick(mut self) -> Self {
        for stage in &mut self.stages {
            stage.movers.truncate(stage.quick_movers);
        }
        self
    }
}

/// MiB of a guest's RAM that its kernel needs.
pub const KERNEL_MB: u32 = 100;

/// Pages a second: more than any guest can rewrite.
const UNENDING: u32 = 1_000_000;

/// Mb/s of the usual link.
const GIGABIT: Option<u32> = Some(1000);

fn links(rates_mbit: &[Option<u32>]) -> Links {
    Links { rates_mbit: rates_mbit.to_vec(), same_subnet: false, mtu: 1500 }
}

/// A guest that is idle, but for its heartbeat, and holds nothing that compresses.
fn idle(memory_mb: u32, fill_mb: u32) -> Guest {
    Guest {
        memory_mb,
        fill_mb,
        compressible: 0,
        rewrite_mb: 0,
        rewrite: Rewrite::Page,
        rewrite_pages_per_s: 0,
        vcpus: 1,
        disk_mb: 0,
        software: false,
    }
}

fn stage(links: Links, guest: Guest, movers: &[Mover]) -> Scene {
    Scene {
        name: "",
        links,
        guest,
        moves: Moves::Together(1),
        // QEMU's default.
        downtime_limit_ms: 300,
        allow_throttle: None,
        delta_memory: None,
        keep_ram: false,
        movers: movers.to_vec(),
        quick_movers: 2,
        fault: None,
        iperf3: false,
        watch_memory: false,
        control_stream: false,
        ping: false,
        kill_agent: false,
        busy_host: false,
    }
}

/// All cases, in the order of the documentation.
pub fn all() -> Vec<Case> {
    use Check::*;
    use Mover::*;

    // Large against what begins and ends a migration, small enough for ten runs on an emulated guest.
    let usual = idle(2048, 1536);
    let two = links(&[GIGABIT, GIGABIT]);
    let case = |name, shows, stages: &[Scene], checks: &[Check]| Case {
        name,
        shows,
        subject: SkeinTls,
        stages: stages.to_vec(),
        checks: checks.to_vec(),
    };
    let on = |rates: &[Option<u32>], movers: &[Mover]| stage(links(rates), usual.clone(), movers);

    // For cases of two stages, so that a quick one keeps its rounds.
    let smaller = |rates: &[Option<u32>], movers: &[Mover]| stage(links(rates), idle(1280, 1024), movers);

    let both_nics_filled = [
        OfIperf3 { stage: "", share: 0.95 },
        TimeOf { stage: "", peer: QemuMultifd, at_most: 0.55 },
        TimeOf { stage: "", peer: MptcpMultifd, at_most: 1.05 },
    ];
    let everyone = [
        SkeinTls,
        MptcpMultifd,
        QemuMultifd,
        QemuTcp,
        Mptcp,
        MptcpMultifdZstd,
        QemuMultifdZstd,
        QemuMultifdTls,
        QemuXbzrle,
        Ssh,
        Socat,
        SkeinPlain,
    ];
    let cut = |name, kind| Scene {
        name,
        fault: Some(Fault { kind, all_links: false, after_percent: 25, lasts: Duration::from_secs(3) }),
        iperf3: true,
        ..stage(two.clone(), idle(1792, 1536), &[SkeinTls, MptcpMultifd])
    };
    let downtime_peers: &[Mover] = &[MptcpMultifd, QemuMultifd];
    let downtime = |movers: &[Mover]| {
        let stage = |name, guest| Scene { name, ping: true, ..stage(two.clone(), guest, movers) };
        let writing = Guest { rewrite_mb: 64, rewrite_pages_per_s: 5000, ..idle(512, 384) };
        [stage("idle", idle(512, 384)), stage("dirtying", writing)]
    };
    // QEMU's own by one NIC comes first, as what a quick bench compares with: it is there without MPTCP too.
    let by_agents = &[SkeinAgents, QemuMultifd, MptcpMultifd, SkeinTls];
    // A peer's darkness takes a minute a run: not for a quick bench.
    let darkness = Scene { quick_movers: 1, ..on(&[GIGABIT, GIGABIT], &[SkeinTls, QemuMultifd]) };
    let unshaped = links(&[None, None]);
    let mut plain = case(
        "unshaped-plain",
        "Without TLS, a deliberate option, little is lost against QEMU's own multifd on links as fast as the machine.",
        &[stage(unshaped.clone(), idle(3072, 2560), &[SkeinPlain, QemuMultifd, Socat])],
        &[GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.8 }],
    );
    plain.subject = SkeinPlain;
    let of_agents = |case| Case { subject: SkeinAgents, ..case };
    // Half of its pages compress well, as the peers' zstd does them too.
    let half = |memory_mb, fill_mb| Guest { compressible: 50, ..idle(memory_mb, fill_mb) };
    // It writes to 120 MB a second: as they are, its pages fill one link of 1 Gb/s, and half of two.
    let hot = |rewrite| Guest { rewrite_mb: 400, rewrite, rewrite_pages_per_s: 30_000, ..half(800, 600) };
    let hot_peers: &[Mover] = &[MptcpMultifdZstd, Mptcp, QemuXbzrle, QemuMultifdZstd];
    let hot_movers = [&[SkeinAgents], hot_peers].concat();
    let hot_peers_one_nic: &[Mover] = &[QemuMultifdZstd, QemuXbzrle];
    let hot_movers_one_nic = [&[SkeinAgents], hot_peers_one_nic].concat();
    let kept = |name, downtime_limit_ms| Scene {
        name,
        downtime_limit_ms,
        ..stage(two.clone(), hot(Rewrite::Word), &[SkeinAgents])
    };
    let is_kept = |stage| GapKept { stage, factor: 1.3, slack_ms: 15.0, share: 0.9 };
    let torture_peers: &[Mover] = &[MptcpMultifd, QemuMultifd];
    let torture_movers = [&[SkeinAgents], torture_peers].concat();
    let torture = |name, rewrite_mb| Scene {
        name,
        allow_throttle: Some(95),
        ..stage(
            two.clone(),
            Guest { rewrite_mb, rewrite_pages_per_s: UNENDING, vcpus: 2, ..idle(8192, 6144) },
            &torture_movers,
        )
    };
    // Far more of it is hot than what 5 % of its RAM could keep of it.
    let large_and_hot =
        Guest { rewrite_mb: 2048, rewrite: Rewrite::Word, rewrite_pages_per_s: 30_000, ..half(4096, 3072) };
    let deltas = Scene { name: "deltas", watch_memory: true, ..stage(two.clone(), large_and_hot, &[SkeinAgents]) };

    vec![
        case(
            "two-nics",
            "Two NICs of 1 Gb/s are both filled, with TLS on, by a guest that does not compress; every peer beside it.",
            &[Scene { iperf3: true, ..on(&[GIGABIT, GIGABIT], &everyone) }],
            &both_nics_filled,
        ),
        of_agents(case(
            "agent-two-nics",
            "Two NICs of 1 Gb/s are as well filled where agents move the guest.",
            &[Scene { iperf3: true, ..on(&[GIGABIT, GIGABIT], by_agents) }],
            &both_nics_filled,
        )),
        case(
            "same-subnet",
            "The same with both NICs of each host in one subnet, where the kernel alone would send all by one NIC.",
            &[Scene {
                iperf3: true,
                links: Links { same_subnet: true, ..two.clone() },
                ..on(&[GIGABIT, GIGABIT], &[SkeinTls, MptcpMultifd, QemuMultifd])
            }],
            &both_nics_filled,
        ),
        case(
            "uneven",
            "NICs of 1 Gb/s and 250 Mb/s are each used as far as they go.",
            &[Scene { iperf3: true, ..on(&[GIGABIT, Some(250)], &[SkeinTls, MptcpMultifd, QemuMultifd]) }],
            &[OfLinks { stage: "", share: 0.93 }],
        ),
        case(
            "eight-nics",
            "Eight NICs of 200 Mb/s are all used.",
            &[Scene { iperf3: true, ..on(&[Some(200); 8], &[SkeinTls, MptcpMultifd, QemuMultifd]) }],
            &[OfLinks { stage: "", share: 0.93 }],
        ),
        case(
            "one-nic",
            "On a single NIC of 1 Gb/s nothing is lost.",
            &[Scene { iperf3: true, ..on(&[GIGABIT], &[SkeinTls, QemuMultifd, QemuTcp, Ssh, Socat]) }],
            &[OfLinks { stage: "", share: 0.93 }],
        ),
        case(
            "slow-beside-fast",
            "A NIC of 10 Mb/s beside one of 1 Gb/s does not hold it up.",
            &[
                Scene { name: "beside", ..smaller(&[GIGABIT, Some(10)], &[SkeinTls, MptcpMultifd, QemuMultifd]) },
                Scene { name: "alone", ..smaller(&[GIGABIT], &[SkeinTls, QemuMultifd]) },
            ],
            &[GoodputOfStage { stage: "beside", other: "alone", at_least: 0.97 }],
        ),
        case(
            "unshaped-tls",
            "Encrypted, on links as fast as the machine, where CPU is the limit.",
            &[stage(unshaped, idle(3072, 2560), &[SkeinTls, QemuMultifd, Ssh, QemuMultifdTls, MptcpMultifd])],
            &[
                GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.6 },
                GoodputOf { stage: "", peer: Ssh, at_least: 3.0 },
                GoodputOf { stage: "", peer: QemuMultifdTls, at_least: 2.5 },
            ],
        ),
        plain,
        case(
            "cpu",
            "What tunnel and agent take of the CPU for each GB, TLS on, against ssh and sshd.",
            &[on(&[GIGABIT, GIGABIT], &[SkeinTls, Ssh, Socat])],
            &[CpuOf { stage: "", peer: Ssh, at_most: 1.0 / 3.0 }],
        ),
        case(
            "downtime",
            "How long the guest itself sees nothing, idle and while it writes, against QEMU alone on the same links.",
            &downtime(&[SkeinTls, MptcpMultifd, QemuMultifd]),
            &[
                GapOf { stage: "idle", peers: downtime_peers, factor: 1.2, slack_ms: 15.0 },
                GapOf { stage: "dirtying", peers: downtime_peers, factor: 1.2, slack_ms: 15.0 },
            ],
        ),
        of_agents(case(
            "agent-downtime",
            "The same where agents move the guest: with their journal, and the handover that never has two guests run.",
            &downtime(by_agents),
            &[
                GapOf { stage: "idle", peers: downtime_peers, factor: 1.2, slack_ms: 20.0 },
                GapOf { stage: "dirtying", peers: downtime_peers, factor: 1.2, slack_ms: 20.0 },
            ],
        )),
        case(
            "mover-memory",
            "What tunnel and agent hold of memory while they move a guest of 8 GB.",
            &[Scene { watch_memory: true, ..stage(two.clone(), idle(8192, 6144), &[SkeinTls]) }],
            &[MemoryAtMost { stage: "", bytes: 200_000_000 }],
        ),
        case(
            "cut",
            "One of two NICs is lost in mid-migration and comes back, with loss of carrier and as a black hole.",
            &[cut("carrier", FaultKind::Carrier), cut("black-hole", FaultKind::BlackHole)],
            &[
                BelowAtMost { stage: "carrier", seconds: 1.0 },
                UsedAgainWithin { stage: "carrier", seconds: 2.0 },
                BelowAtMost { stage: "black-hole", seconds: 2.0 },
                UsedAgainWithin { stage: "black-hole", seconds: 2.0 },
            ],
        ),
        case(
            "dark",
            "All NICs are lost for 20 s in mid-migration.",
            &[
                Scene { name: "undisturbed", ..darkness.clone() },
                Scene {
                    name: "dark",
                    fault: Some(Fault {
                        kind: FaultKind::BlackHole,
                        all_links: true,
                        after_percent: 40,
                        lasts: Duration::from_secs(20),
                    }),
                    ..darkness
                },
            ],
            &[Adds { stage: "dark", undisturbed: "undisturbed", seconds: 21.0 }],
        ),
        case(
            "control-latency",
            "Round trips of a small stream through the same tunnel while all links carry bulk.",
            &[Scene { control_stream: true, ..on(&[GIGABIT, GIGABIT], &[SkeinTls, Ssh]) }],
            &[LatencyOver { stage: "", millis: 10.0 }],
        ),
        case(
            "six-guests",
            "Six guests leave a host at once, share the links, and arrive together.",
            &[Scene {
                moves: Moves::Together(6),
                ..stage(two.clone(), idle(448, 320), &[SkeinTls, MptcpMultifd, QemuMultifd])
            }],
            &[OfLinks { stage: "", share: 0.93 }, FinishWithin { stage: "", factor: 1.1 }],
        ),
        case(
            "both-ways",
            "Two guests change places: links are full duplex.",
            &[Scene { moves: Moves::BothWays, ..stage(two.clone(), idle(1024, 768), &[SkeinTls, MptcpMultifd]) }],
            &[EachWay { stage: "", share: 0.9 }],
        ),
        of_agents(case(
            "compressible-two-nics",
            "600 MB, half of it compressible, over two NICs of 1 Gb/s: both are used, and less has to go over them.",
            &[stage(
                two.clone(),
                half(800, 600),
                &[SkeinAgents, MptcpMultifdZstd, MptcpMultifd, QemuMultifdZstd, QemuMultifd],
            )],
            &[
                TimeOf { stage: "", peer: MptcpMultifd, at_most: 0.65 },
                TimeOf { stage: "", peer: QemuMultifdZstd, at_most: 0.55 },
                TimeOf { stage: "", peer: MptcpMultifdZstd, at_most: 0.75 },
            ],
        )),
        of_agents(case(
            "compressible-one-nic",
            "The same guest over one NIC of 1 Gb/s, where QEMU's own zstd has all that there is to use.",
            &[stage(links(&[GIGABIT]), half(800, 600), &[SkeinAgents, QemuMultifdZstd, QemuMultifd])],
            &[TimeOf { stage: "", peer: QemuMultifdZstd, at_most: 0.95 }],
        )),
        Case {
            subject: SkeinAgentsPlain,
            ..case(
                "direct-unshaped",
                "On links as fast as the machine nothing is lost against QEMU alone in plain text, and little with \
                 TLS on.",
                // Three sets of guests stand beside each other: smaller than those of the other unshaped cases.
                &[stage(
                    links(&[None, None]),
                    idle(2560, 2048),
                    &[SkeinAgentsPlain, QemuMultifd, SkeinAgents, QemuMultifdAnonymous],
                )],
                &[
                    GoodputOf { stage: "", peer: QemuMultifd, at_least: 1.0 },
                    By { mover: SkeinAgents, check: &GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.8 } },
                ],
            )
        },
        Case {
            subject: SkeinAgentsMultichannelPlain,
            ..case(
                "cpu-per-gb",
                "What a migration takes of the CPU for each GB, at both hosts, QEMU and mover together; raw, without \
                 TLS.",
                &[on(
                    &[GIGABIT, GIGABIT],
                    &[SkeinAgentsMultichannelPlain, QemuMultifd, MptcpMultifd, SkeinAgentsMultichannel, SkeinAgents],
                )],
                &[AllCpuOf { stage: "", peer: QemuMultifd, at_most: 1.15 }],
            )
        },
        of_agents(case(
            "real-image",
            "A guest that has unpacked and built real software, and not patterns: what goes over the links, and how \
             long.",
            &[stage(
                two.clone(),
                Guest { vcpus: 2, software: true, ..idle(1024, 0) },
                &[SkeinAgents, MptcpMultifdZstd, QemuMultifdZstd, MptcpMultifd],
            )],
            &[
                WireOf { stage: "", peer: MptcpMultifdZstd, at_most: 0.92 },
                TimeOf { stage: "", peer: MptcpMultifdZstd, at_most: 0.9 },
            ],
        )),
        of_agents(case(
            "incompressible",
            "Compression is allowed and there is nothing to gain: it costs next to nothing against sending pages as \
             they are.",
            &[on(&[GIGABIT, GIGABIT], &[SkeinAgents, SkeinAgentsMultichannel, SkeinAgentsCompression])],
            &[
                TimeOf { stage: "", peer: SkeinAgentsMultichannel, at_most: 1.03 },
                AllCpuOf { stage: "", peer: SkeinAgentsMultichannel, at_most: 1.1 },
            ],
        )),
        of_agents(case(
            "busy-host",
            "All cores are busy with guests' work, and one guest leaves: the CPU that the others lose by that. Lost \
             is what \
             their control group would have got in the migration's time, by what it got just before, and did not get.",
            &[Scene { busy_host: true, ..stage(two.clone(), half(1280, 1024), &[SkeinAgents, SkeinAgentsTcp]) }],
            &[LostOf { stage: "", peer: SkeinAgentsTcp, at_most: 1.05 }],
        )),
        of_agents(case(
            "page-memory",
            "What an agent's own memory grows by while it moves a guest of 8 GB: bookkeeping of pages, and all its \
             buffers.",
            // What is kept to send changes by is another figure's.
            &[Scene {
                watch_memory: true,
                delta_memory: Some(0.0),
                ..stage(two.clone(), half(8192, 6144), &[SkeinAgents])
            }],
            &[GrowthAtMost { stage: "", share: 0.01 }],
        )),
        of_agents(case(
            "hot-two-nics",
            "A guest that writes to most of its memory all the time, a word a page, leaves over two NICs of 1 Gb/s.",
            &[stage(two.clone(), hot(Rewrite::Word), &hot_movers)],
            &[TimeOfBest { stage: "", peers: hot_peers, at_most: 0.8 }, GapAtMost { stage: "", millis: 60.0 }],
        )),
        of_agents(case(
            "hot-quarter",
            "The same where each time a quarter of the page changes.",
            &[stage(two.clone(), hot(Rewrite::Quarter), &hot_movers)],
            &[TimeOfBest { stage: "", peers: hot_peers, at_most: 0.8 }],
        )),
        of_agents(case(
            "hot-one-nic",
            "The guest that writes a word a page leaves over one NIC of 1 Gb/s, which would not carry its pages as \
             they are.",
            &[stage(links(&[GIGABIT]), hot(Rewrite::Word), &hot_movers_one_nic)],
            &[TimeOfBest { stage: "", peers: hot_peers_one_nic, at_most: 0.8 }],
        )),
        of_agents(case(
            "hotter",
            "Whole pages are rewritten with what does not compress, faster than two NICs of 1 Gb/s carry them: the \
             guest has to \
             be slowed, and comes to an end.",
            &[Scene {
                allow_throttle: Some(95),
                ..stage(
                    two.clone(),
                    Guest { rewrite_mb: 400, rewrite_pages_per_s: 60_000, ..idle(800, 600) },
                    &[SkeinAgents],
                )
            }],
            &[TotalAtMost { stage: "", seconds: 60.0 }, GuestSlowedAtMost { stage: "", share: 0.5 }],
        )),
        of_agents(case(
            "downtime-kept",
            "A guest that writes to most of its memory stands still for no longer than was allowed.",
            &[kept("50ms", 50), kept("100ms", 100), kept("300ms", 300)],
            &[is_kept("50ms"), is_kept("100ms"), is_kept("300ms")],
        )),
        of_agents(case(
            "torture",
            "Two CPUs of a guest of 8 GB rewrite 6 GB as fast as they can, as Prime95's torture test does; all movers \
             may slow it.",
            &[torture("idle", 0), torture("torture", 6144)],
            &[MultipleOfBest { stage: "torture", idle: "idle", peers: torture_peers, at_most: 0.6 }],
        )),
        of_agents(case(
            "delta-memory",
            "What the source's agent holds to send changes by, over all else, while it moves a hot guest of 4 GB.",
            &[deltas.clone(), Scene { name: "none", delta_memory: Some(0.0), ..deltas }],
            &[GrowthOver { stage: "deltas", without: "none", share: 0.05 }],
        )),
        of_agents(case(
            "return-trip",
            "A guest goes there and back, and rewrites a fifth of its memory meanwhile: hosts that kept it get what \
             differs.",
            &[Scene {
                keep_ram: true,
                ..stage(two, Guest { rewrite_mb: 307, rewrite_pages_per_s: 8000, ..usual.clone() }, &[SkeinAgents])
            }],
            &[WireBack { stage: "", at_most: 0.3 }],
        )),
    ]
}

/// What `skein-lab demo` shows; no case of the bench.
pub fn demo() -> Case {
    let guest = Guest { rewrite_mb: 48, rewrite_pages_per_s: 2000, disk_mb: 16, ..idle(1280, 960) };
    let movers = [Mover::SkeinAgents, Mover::QemuMultifd];
    let stage = Scene { ping: true, kill_agent: true, ..stage(links(&[GIGABIT, GIGABIT]), guest, &movers) };
    Case {
        name: "demo",
        shows: "Two hosts, two NICs in each. Agents move a guest that is at work over both NICs, encrypted; beside \
                it, the \
                same guest moved by QEMU alone. Then an agent is killed in the middle of a move.",
        subject: Mover::SkeinAgents,
        stages: vec![stage],
        checks: vec![],
    }
}

/// The case of this name.
pub fn named(name: &str) -> Option<Case> {
    all().into_iter().find(|case| case.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn cases_are_whole() {
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(names.insert(case.name), "{} twice", case.name);
            assert!(!case.figure().is_empty() && case.shows.ends_with('.'), "{}", case.name);
            let mut stages = BTreeSet::new();
            for stage in &case.stages {
                assert!(stages.insert(stage.name), "{}: stage '{}' twice", case.name, stage.name);
                assert_eq!(stage.movers[0], case.subject, "{}: the subject comes first", case.name);
                let distinct: BTreeSet<_> = stage.movers.iter().collect();
                assert_eq!(distinct.len(), stage.movers.len(), "{}", case.name);
                assert!(!stage.links.rates_mbit.is_empty());
                assert!(stage.guest.fill_mb + KERNEL_MB <= stage.guest.memory_mb, "{}: room for the kernel", case.name);
                assert!(stage.guest.rewrite_mb <= stage.guest.fill_mb);
            }
        }
        assert_eq!(names.len(), 34);
        assert!(named("two-nics").is_some() && named("three-nics").is_none());
    }

    /// Every stage and peer that a check speaks of is there; with none of the runs, nothing is judged.
    #[test]
    fn checks_speak_of_what_there_is() {
        for case in all() {
            for check in &case.checks {
                let check = match check {
                    Check::By { mover, check } => {
                        assert!(
                            case.stages.iter().any(|s| s.movers.contains(mover)),
                            "{}: {mover} is not run",
                            case.name
                        );
                        check
                    }
                    check => check,
                };
                let text = format!("{check:?}");
                for word in ["stage: \"", "other: \"", "undisturbed: \"", "idle: \"", "without: \""] {
                    let Some((_, rest)) = text.split_once(word) else { continue };
                    let name = rest.split('"').next().unwrap();
                    assert!(case.stages.iter().any(|s| s.name == name), "{}: no stage '{name}'", case.name);
                }
                if let Check::TimeOfBest { stage, peers, .. }
                | Check::MultipleOfBest { stage, peers, .. }
                | Check::GapOf { stage, peers, .. } = *check
                {
                    let stage = case.stages.iter().find(|s| s.name == stage).unwrap();
                    for peer in peers {
                        assert!(stage.movers.contains(peer), "{}: {peer} is not run", case.name);
                    }
                }
                let (Check::TimeOf { stage, peer, .. }
                | Check::GoodputOf { stage, peer, .. }
                | Check::CpuOf { stage, peer, .. }
                | Check::AllCpuOf { stage, peer, .. }
                | Check::WireOf { stage, peer, .. }
                | Check::LostOf { stage, peer, .. }) = *check
                else {
                    continue;
                };
                let stage = case.stages.iter().find(|s| s.name == stage).unwrap();
                assert!(stage.movers.contains(&peer), "{}: {peer} is not run", case.name);
            }
        }
    }

    #[test]
    fn quick_keeps_the_subject_and_the_strongest_peer() {
        for case in all() {
            let subject = case.subject;
            for stage in case.quick().stages {
                assert!(stage.movers.len() <= 2 && stage.movers[0] == subject);
            }
        }
        for (name, strongest) in [
            ("hot-two-nics", Mover::MptcpMultifdZstd),
            ("hot-quarter", Mover::MptcpMultifdZstd),
            ("hot-one-nic", Mover::QemuMultifdZstd),
            ("torture", Mover::MptcpMultifd),
        ] {
            let stages = named(name).unwrap().quick().stages;
            assert!(stages.iter().all(|stage| stage.movers == [Mover::SkeinAgents, strongest]), "{name}");
        }
    }
}
