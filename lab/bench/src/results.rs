//! The results of a bench: one object for each run and one for each case, in one JSON document.
//!
//! Units are in the names: `_s` seconds, `_ms` milliseconds, `_us` microseconds, `_bps` bits per second, `_bytes`
//! bytes. Times within a run count from the moment `migrate` was given to the source QEMU; earlier moments are
//! negative.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skein_api::PageFigures;

use crate::{memory_reads::MemoryReads, mover::Mover, page_sizes::GuestPages, stats::Summary};

/// The version of this schema, which is raised when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// Everything that one `skein-lab bench run` measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The [`SCHEMA`] of the writer.
    pub schema: u32,
    /// What was measured, when, on what.
    pub about: About,
    /// The cases, one object each, in the order they ran.
    pub cases: Vec<CaseResult>,
    /// The migrations, one object each, in the order they ran.
    pub runs: Vec<Run>,
}

/// What was measured, when, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The `git describe` of the tree that was built or run in; `unknown` outside one.
    pub commit: String,
    /// The start, RFC 3339, UTC.
    pub started_at: String,
    /// The command line as given.
    pub command: Vec<String>,
    /// Whether the bench was quick: only the strongest peer, three runs.
    pub quick: bool,
    /// The machine that everything ran on.
    pub machine: Machine,
}

/// The machine that everything ran on. Both hosts are namespaces of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU model, as the kernel names it.
    pub cpu: String,
    /// How many CPUs may be used.
    pub cores: usize,
    /// The memory in all.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution, as in os-release.
    pub os: String,
    /// QEMU's version, in its own words.
    pub qemu: String,
    /// How AES-GCM is computed, [`crate::machine::cipher_kernel`], and which cipher Skein prefers by itself here.
    #[serde(default)]
    pub cipher: String,
    /// What a core seals with each cipher that Skein has, as it measures that itself.
    #[serde(default)]
    pub cipher_speeds: String,
    /// Which transparent huge pages the kernel gives: `madvise; in shared memory never`.
    #[serde(default)]
    pub huge_pages: String,
}

/// One case: its figure, what was measured, and whether the figure was met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The name of the case.
    pub case: String,
    /// What the case shows.
    pub shows: String,
    /// The figure to reach, in words.
    pub figure: String,
    /// What was measured, in words.
    pub measured: String,
    /// Whether all parts were met. Null if a part could not be judged (its peer was not measured or skipped) and none
    /// was missed.
    pub met: Option<bool>,
    /// The parts of the figure.
    pub parts: Vec<Part>,
    /// The reference measurements of the case's labs, one for each stage.
    pub yardsticks: Vec<Yardstick>,
    /// The total times of each mover and stage, summed up.
    pub totals: Vec<Total>,
    /// What was left out, and why.
    pub skipped: Vec<Skipped>,
    /// Whether every stage ran to its end. Otherwise the figures are judged by the runs that there are.
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
    /// The number that was compared. Null if it was not measured.
    pub value: Option<f64>,
    /// The number that it was compared with.
    pub limit: f64,
    /// Whether the part was met. Null if it could not be judged.
    pub met: Option<bool>,
}

/// What the links of a stage carry without any migration.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Yardstick {
    /// The stage of the case. Empty for the only one.
    pub stage: String,
    /// The TCP payload that iperf3 received over each link, all links at once, in the order of the links.
    pub iperf3_bps: Vec<f64>,
    /// What the target's NICs counted meanwhile.
    pub wire_bps: Vec<f64>,
}

/// The total times of one mover in one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// The stage of the case. Empty for the only one.
    pub stage: String,
    /// The mover.
    pub mover: Mover,
    /// The `total_s` of its completed runs. Null if none completed.
    pub total_s: Option<Summary>,
    /// How many runs did not complete.
    pub failed: usize,
    /// How many of these were called off because they did not come to an end.
    #[serde(default)]
    pub called_off: usize,
    /// The median of [`Run::cpu_s_per_gb`]. Null if no run completed.
    #[serde(default)]
    pub cpu_s_per_gb: Option<f64>,
    /// The median of [`Run::all_wire_bytes`].
    #[serde(default)]
    pub wire_bytes: Option<f64>,
    /// The median of [`Run::wire_per_guest_byte`].
    #[serde(default)]
    pub wire_per_guest_byte: Option<f64>,
}

/// A mover that a case left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// The stage of the case. Empty for the only one.
    pub stage: String,
    /// The mover.
    pub mover: Mover,
    /// What this machine lacks.
    pub why: String,
}

/// One migration of one guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The name of the case.
    pub case: String,
    /// The stage of the case. Empty for the only one.
    pub stage: String,
    /// The mover.
    pub mover: Mover,
    /// The number of the round, from 1. Guests that moved together have the same.
    pub round: u32,
    /// The number of the guest among those that moved together, from 0.
    pub guest: u32,
    /// The host that the guest left.
    pub source: String,
    /// The host that the guest went to.
    pub target: String,
    /// The start, RFC 3339, UTC.
    pub started_at: String,
    /// The commit, as in [`About::commit`].
    pub commit: String,
    /// Why the migration did not complete. Null if it did.
    pub error: Option<String>,
    /// After how many seconds the migration was called off because it did not come to an end. Null if it did, or failed
    /// otherwise.
    #[serde(default)]
    pub called_off_s: Option<f64>,
    /// The command line of QEMU on the source, argument by argument.
    pub qemu_source_cmdline: Vec<String>,
    /// The command line of QEMU on the target.
    pub qemu_target_cmdline: Vec<String>,
    /// The source's guest RAM, as given to QEMU.
    pub memory_backend_source: String,
    /// The target's guest RAM, as given to QEMU.
    pub memory_backend_target: String,
    /// The size of the guest's RAM.
    #[serde(default)]
    pub guest_memory_bytes: u64,
    /// Everything that was set for this mover: capabilities and parameters of QEMU, addresses, options, command lines.
    pub parameters: BTreeMap<String, Value>,
    /// QEMU's `downtime-limit`.
    #[serde(default)]
    pub downtime_limit_ms: u64,
    /// The nominal rate of each link in the order of the NICs. Null if nothing limits it.
    pub link_bps: Vec<Option<u64>>,
    /// The time from `migrate` until QEMU's `completed`.
    pub total_s: Option<f64>,
    /// The downtime, as QEMU reports it.
    pub downtime_ms: Option<f64>,
    /// The longest gap between heartbeats of the guest from just before `migrate` until just after the switchover.
    pub guest_gap_ms: Option<f64>,
    /// The gap over the switchover: the downtime as the guest saw it. It is mostly the same as the longest gap.
    pub guest_switchover_ms: Option<f64>,
    /// The longest gap that an outside pinger saw from the guest's stop on. Null without a pinger.
    pub ping_gap_ms: Option<f64>,
    /// The guest's own check of all its memory after the migration.
    pub guest_verdict: Option<GuestCheck>,
    /// The content of guest pages that were sent: QEMU's count of normal pages times their size. Zero pages, headers,
    /// compression and device state are not part of it. (Deltas of xbzrle and pages of multifd are sent as they are
    /// counted.)
    pub guest_bytes: u64,
    /// The pages that QEMU sent as zeros, times their size.
    #[serde(default)]
    pub zero_bytes: u64,
    /// What became of the bytes, if agents moved the guest, as in `skein migration show`.
    #[serde(default)]
    pub pages: Option<PageFigures>,
    /// How much QEMU transferred, by its own account.
    pub transferred_bytes: u64,
    /// The number of QEMU's passes over the memory.
    pub rounds: u64,
    /// When the source's NICs counted the first byte of bulk (see [`crate::goodput::window`]).
    pub first_byte_s: Option<f64>,
    /// When they had counted the last byte.
    pub last_byte_s: Option<f64>,
    /// What each NIC counted from `migrate`, or from the order to move, to `completed`.
    pub wire_bytes: Vec<NicBytes>,
    /// The CPU on the source from `migrate` to `completed`. Guests that moved together share the mover's equally.
    pub cpu_source_s: CpuSeconds,
    /// The CPU on the target in the same time.
    pub cpu_target_s: CpuSeconds,
    /// The moments of the run.
    pub phases: Phases,
    /// The handover step by step, if agents do it: the events of both QEMUs, and the event logs of both agents.
    pub handover: Vec<Step>,
    /// The faults of the links in the run.
    pub faults: Vec<FaultSeen>,
    /// The memory of the mover, if the case watches it.
    pub memory: Option<MoverMemory>,
    /// The mover's private memory, before and during the run.
    #[serde(default)]
    pub private_memory: Option<MoverPrivateMemory>,
    /// The memory that the hosts gave for the guest's RAM, if the case watches memory.
    #[serde(default)]
    pub guest_ram: Option<GuestRam>,
    /// The pages of the guest's RAM, if the case is about them.
    #[serde(default)]
    pub guest_pages: Option<GuestPages>,
    /// How fast a program reads memory on the same pages, if the case is about them.
    #[serde(default)]
    pub memory_reads: Option<MemoryReads>,
    /// What other guests' CPU lost, if the case has guests at work.
    #[serde(default)]
    pub guests_work: Option<GuestsWork>,
    /// How fast the guest rewrote its memory, if it does.
    #[serde(default)]
    pub rewriting: Option<Rewriting>,
    /// The round trips of a small stream beside the bulk, if the case has one.
    pub control: Option<ControlLatency>,
    /// NICs and cores over time. Guests that moved together share them; they are given with the first of these.
    pub samples: Option<Samples>,
}

/// The guest's own check of its memory and disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestCheck {
    /// Whether nothing was wrong.
    pub ok: bool,
    /// How many pages were checked.
    pub pages: u64,
    /// How many of these did not hold what the guest had written.
    pub bad_pages: u64,
    /// How many disk blocks did not.
    pub bad_blocks: u64,
}

/// What one NIC counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicBytes {
    /// The NIC's host.
    pub host: String,
    /// The NIC's name.
    pub nic: String,
    /// The bytes that were sent.
    pub tx_bytes: u64,
    /// The bytes that were received.
    pub rx_bytes: u64,
}

/// CPU seconds at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSeconds {
    /// QEMU's part in the migration: on the source the threads that the migration started, on the target all but the
    /// vCPUs.
    pub qemu: f64,
    /// The guest itself: the vCPUs, and on the source the devices that QEMU emulates meanwhile.
    pub guest: f64,
    /// The mover's processes: tunnel, agent, ssh, sshd, socat. 0 if QEMU is alone.
    pub mover: f64,
}

impl CpuSeconds {
    /// Returns the larger of each value.
    pub fn max(self, other: Self) -> Self {
        Self { qemu: self.qemu.max(other.qemu), guest: self.guest.max(other.guest), mover: self.mover.max(other.mover) }
    }
}

/// The moments of a run, in seconds from `migrate`. Null for a moment that did not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// When the move was asked for. Null if that is `migrate` itself.
    pub order_s: Option<f64>,
    /// When the set-up was over and the first pass began.
    pub active_s: Option<f64>,
    /// When the guest stopped on the source.
    pub stop_s: Option<f64>,
    /// When QEMU on the source said `completed`.
    pub completed_s: Option<f64>,
    /// When the guest ran on the target.
    pub resume_s: Option<f64>,
}

impl Phases {
    /// Makes all moments count from a moment that is `by_s` later.
    pub fn shift(&mut self, by_s: f64) {
        let all = [&mut self.order_s, &mut self.active_s, &mut self.stop_s, &mut self.completed_s, &mut self.resume_s];
        all.into_iter().flatten().for_each(|at_s| *at_s -= by_s);
    }
}

/// A step of a handover.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// When the step was, by the host's clock. Agents round to milliseconds.
    pub at_s: f64,
    /// The host that the step was on.
    pub host: String,
    /// What the step was: a QEMU's event, an agent's phase, or a message that it received.
    pub what: String,
}

/// One fault, and how it affected the traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultSeen {
    /// The kind of the fault: `carrier`, `black-hole`.
    pub kind: String,
    /// The numbers of the links with the fault.
    pub links: Vec<usize>,
    /// When the fault began, in seconds of the run.
    pub at_s: f64,
    /// When the fault was healed. Null if not before the end.
    pub healed_s: Option<f64>,
    /// For how long, until healed, the other links together carried less than 90 % of what they can. Null if there is
    /// no other link.
    pub below_90_s: Option<f64>,
    /// How long after healing the links concerned carried at least half of what they can. Null if they never did.
    pub used_again_s: Option<f64>,
    /// How long after healing the transfer still went on. Null if the fault was not healed before the end.
    pub went_on_s: Option<f64>,
}

/// The most memory that the mover's processes held at one moment of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MoverMemory {
    /// The memory at the source.
    pub source: EndMemory,
    /// The memory at the target.
    pub target: EndMemory,
}

/// The memory at one end, at the moment when the sum was highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndMemory {
    /// Anonymous pages.
    pub anonymous_bytes: u64,
    /// Locked pages.
    pub locked_bytes: u64,
    /// Socket buffers in both directions, of TCP and unix sockets.
    pub socket_bytes: u64,
}

/// The anonymous memory of the mover's processes at both ends: heap and stacks, without sockets, program and shared
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverPrivateMemory {
    /// The memory at the source.
    pub source: PrivateMemory,
    /// The memory at the target.
    pub target: PrivateMemory,
}

/// The memory that the hosts gave for the RAM of a guest that moves, which is less than the guest's size as long as the
/// guest has not touched all of its RAM. With the rest of QEMU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRam {
    /// The memory at the source.
    pub source: PrivateMemory,
    /// The memory at the target.
    pub target: PrivateMemory,
}

/// The anonymous memory at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateMemory {
    /// The memory just before the migration.
    pub before_bytes: u64,
    /// The most at one moment of the run.
    pub most_bytes: u64,
}

/// The CPU of guests that were at work on all cores while another guest migrated. They are not real guests, but
/// processes in a control group of their own, one on each core, that use all the CPU they get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestsWork {
    /// How many cores they were on.
    pub cores: u32,
    /// How many cores' worth they got while nothing migrated.
    pub cores_before: f64,
    /// The length of the migration, from the order or `migrate` until `completed`.
    pub window_s: f64,
    /// The CPU that they got in that time.
    pub used_s: f64,
}

impl GuestsWork {
    /// Returns the CPU that the migration cost them: what they would have got in the same time, and did not.
    pub fn lost_s(&self) -> f64 {
        self.cores_before * self.window_s - self.used_s
    }

    /// Returns whether nothing else used the cores before. Otherwise that may be the cause of a loss.
    pub fn undisturbed(&self) -> bool {
        self.cores_before >= 0.9 * f64::from(self.cores)
    }
}

/// How fast a guest rewrote its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rewriting {
    /// How many pages it rewrote per second while nothing migrated.
    pub before_pages_per_s: f64,
    /// The length of the migration, from the order or `migrate` until the guest answered from the target.
    pub window_s: f64,
    /// How many pages it rewrote in that time.
    pub pages: f64,
}

impl Rewriting {
    /// Returns the share of what it would have rewritten in the migration's time that it did not.
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
    /// Returns the sum of all memory.
    pub fn total_bytes(&self) -> u64 {
        self.anonymous_bytes + self.locked_bytes + self.socket_bytes
    }
}

/// The round trips of a small stream through the same tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControlLatency {
    /// The round trips before the migration.
    pub idle: RoundTrips,
    /// The round trips while all links carried bulk.
    pub loaded: RoundTrips,
}

/// A summary of round trips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// How many were measured.
    pub count: usize,
    /// The median.
    pub median_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// NICs and cores over time, column by column. All columns are as long as `t_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// The end of each interval.
    pub t_s: Vec<f64>,
    /// The NICs of both hosts.
    pub nics: Vec<NicSamples>,
    /// The machine's cores, which both hosts share.
    pub cores: Vec<CoreSamples>,
    /// The CPU by what it was used for, in cores.
    pub uses: Vec<UseSamples>,
}

/// One NIC over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicSamples {
    /// The NIC's host.
    pub host: String,
    /// The NIC's name.
    pub nic: String,
    /// The number of its link.
    pub link: usize,
    /// The rate of sending in each interval.
    pub tx_bps: Vec<f64>,
    /// The rate of receiving in each interval.
    pub rx_bps: Vec<f64>,
}

/// One core over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreSamples {
    /// The number of the core.
    pub core: usize,
    /// The share of each interval in which the core was busy, 0 to 1.
    pub busy: Vec<f64>,
}

/// One use of CPU over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UseSamples {
    /// The host on which the CPU was used.
    pub host: String,
    /// What it was used for: `qemu`, `guest` or `mover`, as in [`CpuSeconds`].
    pub what: String,
    /// The cores' worth that was used in each interval.
    pub cores: Vec<f64>,
}

impl Run {
    /// Returns the time from the order to move until the guest runs at the target, if that is more than the migration,
    /// as with agents.
    pub fn whole_s(&self) -> Option<f64> {
        Some(self.phases.resume_s? - self.phases.order_s?)
    }

    /// Returns the guest content in bits per second from the first to the last byte on the wire.
    pub fn goodput_bps(&self) -> Option<f64> {
        let (first, last) = (self.first_byte_s?, self.last_byte_s?);
        (self.error.is_none() && last > first).then(|| self.guest_bytes as f64 * 8.0 / (last - first))
    }

    /// Returns whether the run completed and the guest found nothing wrong.
    pub fn intact(&self) -> bool {
        self.error.is_none() && self.guest_verdict.as_ref().is_some_and(|v| v.ok)
    }

    /// Returns what all links carried in both directions: all that the NICs of both hosts sent.
    pub fn all_wire_bytes(&self) -> u64 {
        self.wire_bytes.iter().map(|nic| nic.tx_bytes).sum()
    }

    /// Returns what all links carried for each byte of guest content.
    pub fn wire_per_guest_byte(&self) -> Option<f64> {
        (self.guest_bytes > 0 && self.error.is_none()).then(|| self.all_wire_bytes() as f64 / self.guest_bytes as f64)
    }

    /// Returns the CPU at both ends, of QEMU's part in the migration and the mover together, for each GB (10^9 bytes)
    /// of guest content.
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        let both = [self.cpu_source_s, self.cpu_target_s];
        (self.guest_bytes > 0 && self.error.is_none())
            .then(|| both.iter().map(|cpu| cpu.qemu + cpu.mover).sum::<f64>() / (self.guest_bytes as f64 / 1e9))
    }

    /// Returns the mover's CPU at both ends for each GB (10^9 bytes) of guest content.
    pub fn mover_cpu_s_per_gb(&self) -> Option<f64> {
        (self.guest_bytes > 0 && self.error.is_none())
            .then(|| (self.cpu_source_s.mover + self.cpu_target_s.mover) / (self.guest_bytes as f64 / 1e9))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use skein_api::PageCounts;

    use super::*;
    use crate::page_sizes::PageSizes;

    /// Returns what agents report of such a run.
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

    /// Returns an intact run of 1 GB in 4 s, which tests change.
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
            guest_ram: None,
            guest_pages: None,
            memory_reads: None,
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
        let pages = PageSizes { resident_bytes: 1_744_830_464, huge_bytes: 1_742_733_312 };
        full.guest_pages = Some(GuestPages { source: pages, target: pages });
        full.memory_reads = Some(MemoryReads { started_ns: 158.2, moved_ns: 158.9, huge_ns: 158.1, shared_ns: 197.4 });
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
                    cipher: "AES-GCM with AES-NI and AVX; Skein's auto: AEGIS-128X2".into(),
                    cipher_speeds: "AES-128-GCM 5.0 GB/s, AEGIS-128X2 14.0 GB/s".into(),
                    huge_pages: "madvise; in shared memory never".into(),
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

    /// Compares the schema with a golden file. The schema is a promise to readers of the file, so this file changes
    /// only on purpose.
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
