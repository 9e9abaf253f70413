//! What a bench leaves behind: one object a run, one a case, in one JSON document.
//!
//! Units are in the names: `_s` seconds, `_ms` milliseconds, `_us` microseconds, `_bps` bits a second, `_bytes` bytes.
//! Times within a run count from the moment `migrate` was given to the source QEMU; earlier moments are negative.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skein_api::PageFigures;

use crate::{mover::Mover, stats::Summary};

/// Version of this schema; raised when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// Everything one `skein-lab bench run` measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// What was measured, when, on what.
    pub about: About,
    /// One object a case, in the order run.
    pub cases: Vec<CaseResult>,
    /// One object a migration, in the order run.
    pub runs: Vec<Run>,
}

/// What was measured, when, on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// `git describe` of the tree that was built or run in; `unknown` outside one.
    pub commit: String,
    /// Start, RFC 3339, UTC.
    pub started_at: String,
    /// The command line as given.
    pub command: Vec<String>,
    /// Strongest peer only, three runs.
    pub quick: bool,
    /// The machine that everything ran on.
    pub machine: Machine,
}

/// The machine that everything ran on: both hosts are namespaces of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// CPUs that may be used.
    pub cores: usize,
    /// Memory in all.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Distribution, as in os-release.
    pub os: String,
    /// What QEMU says of its version.
    pub qemu: String,
    /// How AES-GCM is computed: [`crate::machine::cipher_kernel`].
    #[serde(default)]
    pub cipher: String,
}

/// One case: its figure, what was measured, whether it was met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// Name of the case.
    pub case: String,
    /// What it shows.
    pub shows: String,
    /// The figure to reach, in words.
    pub figure: String,
    /// What was measured, in words.
    pub measured: String,
    /// All parts met; null when a part could not be judged (peer not measured or skipped) and none was missed.
    pub met: Option<bool>,
    /// The parts of the figure.
    pub parts: Vec<Part>,
    /// Reference measurements of the case's labs, one a stage.
    pub yardsticks: Vec<Yardstick>,
    /// Total times of each mover and stage, summed up.
    pub totals: Vec<Total>,
    /// What was left out, and why.
    pub skipped: Vec<Skipped>,
    /// Every stage ran to its end. Figures of a case that did not are judged by what there is.
    pub complete: bool,
    /// What else the reader should know.
    pub notes: Vec<String>,
}

/// One part of a case's figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The figure, in words.
    pub figure: String,
    /// What was measured, in words.
    pub measured: String,
    /// The number that was compared; null when it was not measured.
    pub value: Option<f64>,
    /// The number that it was compared with.
    pub limit: f64,
    /// Null when it could not be judged.
    pub met: Option<bool>,
}

/// What the links of a stage carry without any migration.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Yardstick {
    /// Stage of the case; empty for the only one.
    pub stage: String,
    /// TCP payload that iperf3 received over each link, all links at once, in the order of the links.
    pub iperf3_bps: Vec<f64>,
    /// What the target's NICs counted meanwhile.
    pub wire_bps: Vec<f64>,
}

/// Total times of one mover in one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// Stage of the case; empty for the only one.
    pub stage: String,
    /// The mover.
    pub mover: Mover,
    /// `total_s` of its completed runs; null when none completed.
    pub total_s: Option<Summary>,
    /// Runs that did not complete.
    pub failed: usize,
    /// Those of them that were called off, as they did not come to an end.
    #[serde(default)]
    pub called_off: usize,
    /// Median of [`Run::cpu_s_per_gb`]; null when none completed.
    #[serde(default)]
    pub cpu_s_per_gb: Option<f64>,
    /// Median of [`Run::all_wire_bytes`].
    #[serde(default)]
    pub wire_bytes: Option<f64>,
    /// Median of [`Run::wire_per_guest_byte`].
    #[serde(default)]
    pub wire_per_guest_byte: Option<f64>,
}

/// A mover that a case left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// Stage of the case; empty for the only one.
    pub stage: String,
    /// The mover.
    pub mover: Mover,
    /// What this machine lacks.
    pub why: String,
}

/// One migration of one guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the case.
    pub case: String,
    /// Stage of the case; empty for the only one.
    pub stage: String,
    /// The mover.
    pub mover: Mover,
    /// Number of the round, from 1. Guests that moved together share it.
    pub round: u32,
    /// Which of the guests that moved together, from 0.
    pub guest: u32,
    /// Host that the guest left.
    pub source: String,
    /// Host that it went to.
    pub target: String,
    /// Start, RFC 3339, UTC.
    pub started_at: String,
    /// As in [`About::commit`].
    pub commit: String,
    /// Why the migration did not complete; null when it did.
    pub error: Option<String>,
    /// After what time it was called off, as it did not come to an end; null when it did, or failed otherwise.
    #[serde(default)]
    pub called_off_s: Option<f64>,
    /// QEMU on the source, argument by argument.
    pub qemu_source_cmdline: Vec<String>,
    /// QEMU on the target.
    pub qemu_target_cmdline: Vec<String>,
    /// The source's guest RAM, as QEMU was told.
    pub memory_backend_source: String,
    /// The target's guest RAM.
    pub memory_backend_target: String,
    /// The guest's RAM.
    #[serde(default)]
    pub guest_memory_bytes: u64,
    /// Everything that was set for this mover: capabilities and parameters of QEMU's, addresses, options, command
    /// lines.
    pub parameters: BTreeMap<String, Value>,
    /// `downtime-limit`.
    #[serde(default)]
    pub downtime_limit_ms: u64,
    /// Nominal rate of each link in the order of the NICs; null where nothing limits it.
    pub link_bps: Vec<Option<u64>>,
    /// From `migrate` until QEMU's `completed`.
    pub total_s: Option<f64>,
    /// As QEMU reports it.
    pub downtime_ms: Option<f64>,
    /// Longest gap between heartbeats of the guest from just before `migrate` until just after the switchover.
    pub guest_gap_ms: Option<f64>,
    /// The gap over the switchover: the downtime as the guest saw it. Mostly the same one.
    pub guest_switchover_ms: Option<f64>,
    /// Longest gap that an outside pinger saw from the guest's stop on; null without one.
    pub ping_gap_ms: Option<f64>,
    /// The guest's own check of all its memory after the migration.
    pub guest_verdict: Option<GuestCheck>,
    /// Content of guest pages sent: QEMU's count of normal pages times their size. Zero pages, headers, compression,
    /// device state are not in it. (Deltas of xbzrle and pages of multifd are sent as they are counted.)
    pub guest_bytes: u64,
    /// Pages that QEMU sent as zeros, times their size.
    #[serde(default)]
    pub zero_bytes: u64,
    /// Where the bytes went, where agents moved the guest: as `skein migration show` has it.
    #[serde(default)]
    pub pages: Option<PageFigures>,
    /// What QEMU says that it transferred.
    pub transferred_bytes: u64,
    /// QEMU's passes over the memory.
    pub rounds: u64,
    /// When the source's NICs counted the first byte of bulk (see [`crate::goodput::window`]).
    pub first_byte_s: Option<f64>,
    /// When they had counted the last.
    pub last_byte_s: Option<f64>,
    /// What each NIC counted from `migrate`, or the order to move, to `completed`.
    pub wire_bytes: Vec<NicBytes>,
    /// CPU on the source from `migrate` to `completed`. Guests that moved together share the mover's equally.
    pub cpu_source_s: CpuSeconds,
    /// CPU on the target.
    pub cpu_target_s: CpuSeconds,
    /// Moments of the run.
    pub phases: Phases,
    /// The handover step by step, where agents do it: what both QEMUs said, and what both agents wrote down.
    pub handover: Vec<Step>,
    /// What was done to the links meanwhile.
    pub faults: Vec<FaultSeen>,
    /// Memory of the mover, where the case watches it.
    pub memory: Option<MoverMemory>,
    /// The mover's own of it, before and meanwhile.
    #[serde(default)]
    pub private_memory: Option<MoverPrivateMemory>,
    /// What became of other guests' CPU, where the case has them at work.
    #[serde(default)]
    pub guests_work: Option<GuestsWork>,
    /// How fast the guest rewrote its memory, where it does.
    #[serde(default)]
    pub rewriting: Option<Rewriting>,
    /// Round trips of a small stream beside the bulk, where the case has one.
    pub control: Option<ControlLatency>,
    /// NICs and cores over time; shared by the guests that moved together and given with the first of them.
    pub samples: Option<Samples>,
}

/// The guest's own check of its memory and disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestCheck {
    /// Nothing was wrong.
    pub ok: bool,
    /// Pages checked.
    pub pages: u64,
    /// Pages that did not hold what the guest had written.
    pub bad_pages: u64,
    /// Disk blocks that did not.
    pub bad_blocks: u64,
}

/// What one NIC counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicBytes {
    /// Host of the NIC.
    pub host: String,
    /// The NIC.
    pub nic: String,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Bytes received.
    pub rx_bytes: u64,
}

/// CPU seconds at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSeconds {
    /// QEMU's part in the migration: on the source the threads that the migration started, on the target all but vCPUs.
    pub qemu: f64,
    /// The guest itself: vCPUs, and on the source the devices that QEMU emulates meanwhile.
    pub guest: f64,
    /// The mover's processes: tunnel, agent, ssh, sshd, socat. 0 where QEMU is alone.
    pub mover: f64,
}

impl CpuSeconds {
    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        Self { qemu: self.qemu.max(other.qemu), guest: self.guest.max(other.guest), mover: self.mover.max(other.mover) }
    }
}

/// Moments of a run, in seconds from `migrate`. Null where it did not come to that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// The move was asked for; null where that is `migrate` itself.
    pub order_s: Option<f64>,
    /// Set-up over, first pass begins.
    pub active_s: Option<f64>,
    /// The guest stopped on the source.
    pub stop_s: Option<f64>,
    /// QEMU on the source says `completed`.
    pub completed_s: Option<f64>,
    /// The guest runs on the target.
    pub resume_s: Option<f64>,
}

impl Phases {
    /// Counts from a moment that is `by_s` later.
    pub fn shift(&mut self, by_s: f64) {
        let all = [&mut self.order_s, &mut self.active_s, &mut self.stop_s, &mut self.completed_s, &mut self.resume_s];
        all.into_iter().flatten().for_each(|at_s| *at_s -= by_s);
    }
}

/// A step of a handover.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// When, by the host's clock; agents round to milliseconds.
    pub at_s: f64,
    /// On which host.
    pub host: String,
    /// What: a QEMU's event, an agent's phase, what it heard.
    pub what: String,
}

/// One fault, and how the traffic took it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultSeen {
    /// What was done: `carrier`, `black-hole`.
    pub kind: String,
    /// Numbers of the links it was done to.
    pub links: Vec<usize>,
    /// When it was done, in seconds of the run.
    pub at_s: f64,
    /// When it was undone; null if not before the end.
    pub healed_s: Option<f64>,
    /// How long, until healed, the other links together carried less than 90 % of what they can; null with no other
    /// link.
    pub below_90_s: Option<f64>,
    /// How long after healing until the links concerned carried at least half of what they can; null if never.
    pub used_again_s: Option<f64>,
    /// How long after healing the transfer still went on; null if it was not healed before the end.
    pub went_on_s: Option<f64>,
}

/// Most memory that the mover's processes held at one moment of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MoverMemory {
    /// At the source.
    pub source: EndMemory,
    /// At the target.
    pub target: EndMemory,
}

/// Memory at one end, at the moment when the sum was highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndMemory {
    /// Anonymous pages.
    pub anonymous_bytes: u64,
    /// Locked pages.
    pub locked_bytes: u64,
    /// Socket buffers, both directions, TCP and unix.
    pub socket_bytes: u64,
}

/// Anonymous memory of the mover's processes at both ends: heap and stacks, no sockets, no program, nothing shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverPrivateMemory {
    /// At the source.
    pub source: PrivateMemory,
    /// At the target.
    pub target: PrivateMemory,
}

/// Anonymous memory at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateMemory {
    /// Just before the migration.
    pub before_bytes: u64,
    /// Most at one moment of the run.
    pub most_bytes: u64,
}

/// CPU of guests that were at work on all cores while another guest migrated. They are no real guests, but processes
/// that use all they get, one a core, in a control group of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestsWork {
    /// Cores that they were on.
    pub cores: u32,
    /// Cores' worth that they got while nothing migrated.
    pub cores_before: f64,
    /// The migration, from the order or `migrate` until `completed`.
    pub window_s: f64,
    /// CPU that they got in it.
    pub used_s: f64,
}

impl GuestsWork {
    /// CPU that the migration cost them: what they would have got in the same time, and did not.
    pub fn lost_s(&self) -> f64 {
        self.cores_before * self.window_s - self.used_s
    }

    /// Nothing else used the cores before; where something does, a loss may be its doing.
    pub fn undisturbed(&self) -> bool {
        self.cores_before >= 0.9 * f64::from(self.cores)
    }
}

/// How fast a guest rewrote its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rewriting {
    /// Pages a second while nothing migrated.
    pub before_pages_per_s: f64,
    /// The migration, from the order or `migrate` until the guest answered from the target.
    pub window_s: f64,
    /// Pages rewritten in it.
    pub pages: f64,
}

impl Rewriting {
    /// The share of what it would have rewritten in the migration's time that it did not.
    pub fn slowed(&self) -> f64 {
        1.0 - self.pages / (self.before_pages_per_s * self.window_s)
    }
}

impl From<skein_lab_guest::WorkloadCheck> for GuestCheck {
    fn from(verdict: skein_lab_guest::WorkloadCheck) -> Self {
        let skein_lab_guest::WorkloadCheck { pages, bad, bad_blocks, .. } = verdict;
        Self { ok: verdict.is_good(), pages, bad_pages: bad, bad_blocks }
    }
}

impl EndMemory {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.anonymous_bytes + self.locked_bytes + self.socket_bytes
    }
}

/// Round trips of a small stream through the same tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControlLatency {
    /// Before the migration.
    pub idle: RoundTrips,
    /// While all links carried bulk.
    pub loaded: RoundTrips,
}

/// Round trips, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// How many were measured.
    pub count: usize,
    /// Median.
    pub median_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Longest.
    pub max_us: f64,
}

/// NICs and cores over time, column by column; all columns are as long as `t_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// End of each interval.
    pub t_s: Vec<f64>,
    /// The NICs of both hosts.
    pub nics: Vec<NicSamples>,
    /// The machine's cores; both hosts share them.
    pub cores: Vec<CoreSamples>,
    /// CPU by whom it was used for, in cores.
    pub uses: Vec<UseSamples>,
}

/// One NIC over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicSamples {
    /// Host of the NIC.
    pub host: String,
    /// The NIC.
    pub nic: String,
    /// Number of its link.
    pub link: usize,
    /// Sent in each interval.
    pub tx_bps: Vec<f64>,
    /// Received in each interval.
    pub rx_bps: Vec<f64>,
}

/// One core over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreSamples {
    /// Number of the core.
    pub core: usize,
    /// Share of each interval that it was busy, 0 to 1.
    pub busy: Vec<f64>,
}

/// One use of CPU over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UseSamples {
    /// Host that it was used on.
    pub host: String,
    /// `qemu`, `guest` or `mover`, as in [`CpuSeconds`].
    pub what: String,
    /// Cores' worth in each interval.
    pub cores: Vec<f64>,
}

impl Run {
    /// From the order to move until the guest runs at the target, where that is more than a migration: an agent's.
    pub fn whole_s(&self) -> Option<f64> {
        Some(self.phases.resume_s? - self.phases.order_s?)
    }

    /// Guest content a second from the first to the last byte on the wire, in bits.
    pub fn goodput_bps(&self) -> Option<f64> {
        let (first, last) = (self.first_byte_s?, self.last_byte_s?);
        (self.error.is_none() && last > first).then(|| self.guest_bytes as f64 * 8.0 / (last - first))
    }

    /// Completed, and the guest found nothing wrong.
    pub fn intact(&self) -> bool {
        self.error.is_none() && self.guest_verdict.as_ref().is_some_and(|v| v.ok)
    }

    /// What all links carried, both directions: all that the NICs of both hosts sent.
    pub fn all_wire_bytes(&self) -> u64 {
        self.wire_bytes.iter().map(|nic| nic.tx_bytes).sum()
    }

    /// The same for each byte of guest content.
    pub fn wire_per_guest_byte(&self) -> Option<f64> {
        (self.guest_bytes > 0 && self.error.is_none()).then(|| self.all_wire_bytes() as f64 / self.guest_bytes as f64)
    }

    /// CPU at both ends, QEMU's part in the migration and the mover together, for each GB (10^9 bytes) of guest
    /// content.
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        let both = [self.cpu_source_s, self.cpu_target_s];
        (self.guest_bytes > 0 && self.error.is_none())
            .then(|| both.iter().map(|cpu| cpu.qemu + cpu.mover).sum::<f64>() / (self.guest_bytes as f64 / 1e9))
    }

    /// The mover's CPU at both ends for each GB (10^9 bytes) of guest content.
    pub fn mover_cpu_s_per_gb(&self) -> Option<f64> {
        (self.guest_bytes > 0 && self.error.is_none())
            .then(|| (self.cpu_source_s.mover + self.cpu_target_s.mover) / (self.guest_bytes as f64 / 1e9))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use skein_api::PageCounts;

    use super::*;

    /// What agents say of such a run.
    pub(crate) fn pages() -> PageFigures {
        let counts = PageCounts {
            pages: 250_000,
            zero_pages: 2000,
            packed_pages: 148_000,
            packed_bytes: 101_000_000,
            stored_pages: 100_000,
            other_bytes: 300_000,
            packing_us: 420_000,
            zstd_level: Some(1),
            compared_us: Some(11_200),
            ..PageCounts::default()
        };
        PageFigures { direct: Some(true), again_bytes: 50_000_000, counts, ..PageFigures::default() }
    }

    /// A run of 1 GB in 4 s, intact, to be changed by tests.
    pub(crate) fn run(case: &str, stage: &str, mover: Mover) -> Run {
        Run {
            case: case.into(),
            stage: stage.into(),
            mover,
            round: 1,
            guest: 0,
            source: "a".into(),
            target: "b".into(),
            started_at: "2026-01-02T03:04:05Z".into(),
            commit: "v0.1.0-3-gabc".into(),
            error: None,
            called_off_s: None,
            qemu_source_cmdline: vec![
                "qemu-system-x86_64".into(),
                "-machine".into(),
                "pc-q35-7.2,memory-backend=ram".into(),
            ],
            qemu_target_cmdline: vec!["qemu-system-x86_64".into(), "-incoming".into(), "defer".into()],
            memory_backend_source: "memory-backend-memfd,id=ram,size=1G,share=on".into(),
            memory_backend_target: "memory-backend-memfd,id=ram,size=1G,share=on".into(),
            guest_memory_bytes: 1 << 30,
            parameters: [("multifd-channels".to_string(), Value::from(4))].into(),
            downtime_limit_ms: 300,
            link_bps: vec![Some(1_000_000_000), None],
            total_s: Some(4.2),
            downtime_ms: Some(21.0),
            guest_gap_ms: Some(30.5),
            guest_switchover_ms: Some(30.5),
            ping_gap_ms: None,
            guest_verdict: Some(GuestCheck { ok: true, pages: 1000, bad_pages: 0, bad_blocks: 0 }),
            guest_bytes: 1_000_000_000,
            zero_bytes: 8_192_000,
            pages: None,
            transferred_bytes: 1_003_000_000,
            rounds: 2,
            first_byte_s: Some(0.1),
            last_byte_s: Some(4.1),
            wire_bytes: vec![NicBytes {
                host: "a".into(),
                nic: "nic0".into(),
                tx_bytes: 1_050_000_000,
                rx_bytes: 9_000_000,
            }],
            cpu_source_s: CpuSeconds { qemu: 0.4, guest: 1.0, mover: 0.5 },
            cpu_target_s: CpuSeconds { qemu: 0.3, guest: 0.0, mover: 0.6 },
            phases: Phases {
                order_s: None,
                active_s: Some(0.02),
                stop_s: Some(4.1),
                completed_s: Some(4.2),
                resume_s: Some(4.21),
            },
            handover: vec![],
            faults: vec![],
            memory: None,
            private_memory: None,
            guests_work: None,
            rewriting: None,
            control: None,
            samples: None,
        }
    }

    fn results() -> Results {
        let mut full = run("cut", "carrier", Mover::SkeinTls);
        full.faults = vec![FaultSeen {
            kind: "carrier".into(),
            links: vec![1],
            at_s: 1.0,
            healed_s: Some(2.5),
            below_90_s: Some(0.3),
            used_again_s: Some(0.8),
            went_on_s: Some(2.0),
        }];
        full.phases.order_s = Some(-1.1);
        full.handover = vec![Step { at_s: 4.11, host: "a".into(), what: "QEMU: MIGRATION device".into() }];
        full.memory = Some(MoverMemory {
            source: EndMemory { anonymous_bytes: 9 << 20, locked_bytes: 0, socket_bytes: 4 << 20 },
            target: EndMemory::default(),
        });
        full.private_memory = Some(MoverPrivateMemory {
            source: PrivateMemory { before_bytes: 7 << 20, most_bytes: 9 << 20 },
            target: PrivateMemory::default(),
        });
        full.pages = Some(pages());
        full.guests_work = Some(GuestsWork { cores: 2, cores_before: 1.96, window_s: 4.2, used_s: 5.5 });
        full.rewriting = Some(Rewriting { before_pages_per_s: 30_000.0, window_s: 5.3, pages: 151_000.0 });
        full.control = Some(ControlLatency {
            idle: RoundTrips { count: 400, median_us: 210.0, p99_us: 350.0, max_us: 900.0 },
            loaded: RoundTrips { count: 380, median_us: 950.0, p99_us: 4100.0, max_us: 7000.5 },
        });
        full.samples = Some(Samples {
            t_s: vec![0.2, 0.4],
            nics: vec![NicSamples {
                host: "a".into(),
                nic: "nic0".into(),
                link: 0,
                tx_bps: vec![1e9, 9.9e8],
                rx_bps: vec![1e7, 1.1e7],
            }],
            cores: vec![CoreSamples { core: 0, busy: vec![0.5, 1.0] }],
            uses: vec![UseSamples { host: "a".into(), what: "mover".into(), cores: vec![0.25, 0.5] }],
        });
        let mut failed = run("cut", "carrier", Mover::Ssh);
        failed.error = Some("QEMU on the source: Channel error".into());
        failed.total_s = None;
        failed.guest_verdict = None;
        failed.phases = Phases::default();
        Results {
            schema: SCHEMA,
            about: About {
                commit: "v0.1.0-3-gabc".into(),
                started_at: "2026-01-02T03:04:05Z".into(),
                command: vec!["skein-lab".into(), "bench".into(), "run".into(), "cut".into()],
                quick: true,
                machine: Machine {
                    cpu: "Example CPU".into(),
                    cores: 2,
                    memory_bytes: 24 << 30,
                    kernel: "6.1.0".into(),
                    os: "Debian GNU/Linux 12".into(),
                    qemu: "QEMU emulator version 7.2.22".into(),
                    cipher: "AES-GCM with AES-NI and AVX".into(),
                },
            },
            cases: vec![CaseResult {
                case: "cut".into(),
                shows: "one of two NICs lost".into(),
                figure: "at most 1 s".into(),
                measured: "0.3 s".into(),
                met: Some(true),
                parts: vec![Part {
                    figure: "at most 1 s".into(),
                    measured: "0.3 s".into(),
                    value: Some(0.3),
                    limit: 1.0,
                    met: Some(true),
                }],
                yardsticks: vec![Yardstick {
                    stage: "carrier".into(),
                    iperf3_bps: vec![9.4e8, 9.4e8],
                    wire_bps: vec![1e9, 1e9],
                }],
                totals: vec![Total {
                    stage: "carrier".into(),
                    mover: Mover::SkeinTls,
                    total_s: Summary::of(&[4.2]),
                    failed: 0,
                    called_off: 0,
                    cpu_s_per_gb: Some(1.8),
                    wire_bytes: Some(1_050_000_000.0),
                    wire_per_guest_byte: Some(1.05),
                }],
                skipped: vec![Skipped { stage: "carrier".into(), mover: Mover::Mptcp, why: "no MPTCP".into() }],
                complete: true,
                notes: vec!["stopped after 2 of 3 rounds".into()],
            }],
            runs: vec![full, failed],
        }
    }

    #[test]
    fn json_round_trip() {
        let text = serde_json::to_string(&results()).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results());
    }

    /// The schema is a promise to whoever reads the file: this golden file changes only on purpose.
    #[test]
    fn json_is_as_documented() {
        let golden = include_str!("../tests/golden/results.json");
        let text = serde_json::to_string_pretty(&results()).unwrap() + "\n";
        if std::env::var_os("SKEIN_BLESS").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/results.json"), &text).unwrap();
            return;
        }
        assert_eq!(text, golden, "after a change on purpose: SKEIN_BLESS=1 cargo test -p skein-bench");
    }

    #[test]
    fn what_guests_at_work_lost() {
        let work = GuestsWork { cores: 2, cores_before: 2.0, window_s: 3.0, used_s: 4.5 };
        assert!((work.lost_s() - 1.5).abs() < 1e-9 && work.undisturbed());
        assert!(!GuestsWork { cores_before: 1.7, ..work }.undisturbed());
    }

    #[test]
    fn goodput_counts_guest_content_between_first_and_last_byte() {
        let run = run("x", "", Mover::SkeinTls);
        assert!((run.goodput_bps().unwrap() - 2e9).abs() < 1.0);
        assert_eq!(run.mover_cpu_s_per_gb(), Some(1.1));
        assert!((run.cpu_s_per_gb().unwrap() - 1.8).abs() < 1e-9);
        assert_eq!((run.all_wire_bytes(), run.wire_per_guest_byte()), (1_050_000_000, Some(1.05)));
        let failed = Run { error: Some("x".into()), ..run };
        assert_eq!((failed.goodput_bps(), failed.cpu_s_per_gb(), failed.wire_per_guest_byte()), (None, None, None));
        assert!(!failed.intact());
    }
}
