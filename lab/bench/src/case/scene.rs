//! What a case is made of: hosts, links, guest, movers, faults. This is data only.

use std::time::Duration;

use skein_lab_guest::Rewrite;

use crate::{
    cluster::{
        drain_figure, fleet_figure, forecast_figure, hold_figure, page_figure, probe_figure, rails_figure,
        rate_limit_figure, share_figure,
    },
    figure::Check,
    mover::Mover,
    results::Part,
};

/// One named case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name on the command line and in results.
    pub name: &'static str,
    /// What the case shows, in a sentence.
    pub shows: &'static str,
    /// The mover that the figure is about.
    pub subject: Mover,
    /// The stages, each of which builds its own hosts, links and guest.
    pub stages: Vec<Scene>,
    /// The figure, part by part.
    pub checks: Vec<Check>,
    /// What the case is of a cluster as a whole. It has no stages and no checks then.
    pub cluster: Option<ClusterCase>,
}

/// Which case it is of those that are not one migration after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterCase {
    /// A host is emptied.
    Drain,
    /// A controller has a thousand hosts.
    Fleet,
    /// Migrations say how long they still take.
    Forecast,
    /// A guest that writes is held before it switches.
    Hold,
    /// The page of a thousand hosts is opened.
    PageLarge,
    /// A migration is watched in the page.
    PageLive,
    /// Migrations are limited, and share a NIC.
    RateLimit,
    /// Migrations have a share of NICs that others fill.
    Share,
    /// A switch drops packets that NICs send.
    MtuLie,
    /// Two NICs share a cable.
    SharedBottleneck,
    /// Four paths are probed, also beside a migration.
    ProbeCost,
    /// Scattered pages go over a rail.
    PageClustering,
    /// A rail writes and reads.
    ReadWrite,
}

impl ClusterCase {
    /// Returns the figure's parts. Nothing was measured.
    pub fn parts(self) -> Vec<Part> {
        match self {
            ClusterCase::Drain => drain_figure::judge(&[]),
            ClusterCase::Fleet => fleet_figure::judge(None),
            ClusterCase::Forecast => forecast_figure::judge(&[]),
            ClusterCase::Hold => hold_figure::judge(&[]),
            ClusterCase::PageLarge => page_figure::judge_large(None),
            ClusterCase::PageLive => page_figure::judge_live(None),
            ClusterCase::RateLimit => rate_limit_figure::judge(&[]),
            ClusterCase::Share => share_figure::judge(&[]),
            ClusterCase::MtuLie => probe_figure::judge_lie(&[]),
            ClusterCase::SharedBottleneck => probe_figure::judge_shared(&[]),
            ClusterCase::ProbeCost => probe_figure::judge_cost(&[]),
            ClusterCase::PageClustering => rails_figure::judge_clustering(&[]),
            ClusterCase::ReadWrite => rails_figure::judge_read_write(&[]),
        }
    }
}

/// One setting within a case.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The name within the case. Empty for the only one.
    pub name: &'static str,
    /// The links between the two hosts.
    pub links: Links,
    /// The guests, which are all alike.
    pub guest: Guest,
    /// How many guests move, and where to.
    pub moves: Moves,
    /// The `downtime-limit` of all movers.
    pub downtime_limit_ms: u64,
    /// By how many per cent a mover may slow the guest: QEMU's `auto-converge`, an agent's `allow_throttle`. `None`:
    /// not at all.
    pub allow_throttle: Option<u8>,
    /// The agents' `delta_memory`, in per cent of the guest's RAM. `None`: their default.
    pub delta_memory: Option<f64>,
    /// Whether agents' guests say during a migration which pages they do not use.
    pub free_page_hint: bool,
    /// Whether agents keep the RAM of a guest that leaves, for its way back in the next round.
    pub keep_ram: bool,
    /// The movers that are compared: the case's subject first, then its strongest peer.
    pub movers: Vec<Mover>,
    /// How many of the movers a quick bench keeps.
    pub quick_movers: usize,
    /// The fault of the links in mid-migration.
    pub fault: Option<Fault>,
    /// Whether iperf3 runs on all links together before the first migration.
    pub iperf3: bool,
    /// Whether the memory of the mover's processes is watched.
    pub watch_memory: bool,
    /// Whether the pages that guests' RAM lies on are looked at, and how fast a program reads memory on the same (see
    /// [`crate::memory_reads`]).
    pub watch_pages: bool,
    /// Whether a small stream is echoed through the same tunnel.
    pub control_stream: bool,
    /// Whether the guests are pinged from outside.
    pub ping: bool,
    /// Whether, after all rounds, the agents' first guest is moved once more and its agent killed meanwhile.
    pub kill_agent: bool,
    /// Whether other guests are at work on all cores while a guest moves, in a control group of their own (see
    /// [`crate::busy`]).
    pub busy_host: bool,
}

/// The links between the two hosts, each with a NIC at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// The rate of each link in Mb/s, in both directions. `None`: as fast as the machine.
    pub rates_mbit: Vec<Option<u32>>,
    /// Whether all NICs are in one subnet. Otherwise each pair has its own.
    pub same_subnet: bool,
    /// The MTU in bytes.
    pub mtu: u32,
}

/// A guest and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The RAM in MiB.
    pub memory_mb: u32,
    /// The part of the RAM that the workload fills and checks, in MiB.
    pub fill_mb: u32,
    /// The part of the RAM that the guest has used and given back to its kernel before, in MiB.
    pub freed_mb: u32,
    /// The share of compressible bytes in that part, in per cent.
    pub compressible: u8,
    /// The part of the RAM that is rewritten all the time, in MiB.
    pub rewrite_mb: u32,
    /// How much of a page a rewrite changes.
    pub rewrite: Rewrite,
    /// How many pages are rewritten per second.
    pub rewrite_pages_per_s: u32,
    /// The number of virtual CPUs.
    pub vcpus: u32,
    /// The size in MiB of the shared disk that the guest writes and checks. 0: none.
    pub disk_mb: u32,
    /// Whether the guest has unpacked and built real software, and keeps all of it in memory; see `docs/guest.md`.
    pub software: bool,
}

/// How many guests move, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// This many at once, all in the same direction.
    Together(u32),
    /// One guest each way at once.
    BothWays,
}

/// A fault of the links in mid-migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is done to the links.
    pub kind: FaultKind,
    /// Whether all links have the fault, or only the last.
    pub all_links: bool,
    /// When the fault begins: the share of the guest's filled memory that QEMU has sent, in per cent.
    pub after_percent: u32,
    /// How long the fault lasts.
    pub lasts: Duration,
}

/// How a link is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The NIC sees its carrier go.
    Carrier,
    /// Everything that is sent is lost, and the NIC notices nothing.
    BlackHole,
}

impl FaultKind {
    /// Returns the name in results.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Carrier => "carrier",
            FaultKind::BlackHole => "black-hole",
        }
    }
}

impl Moves {
    /// Returns how many guests there are.
    pub fn guests(self) -> u32 {
        match self {
            Moves::Together(n) => n,
            Moves::BothWays => 2,
        }
    }
}

impl Case {
    /// Returns the case's figure in words, without the part that all cases have in common.
    pub fn figure(&self) -> String {
        if let Some(cluster) = self.cluster {
            return cluster.parts().iter().map(|part| part.figure.as_str()).collect::<Vec<_>>().join("; ");
        }
        let data = crate::figure::Data { subject: self.subject, runs: &[], yardsticks: &[] };
        self.checks.iter().map(|check| check.judge(data).figure).collect::<Vec<_>>().join("; ")
    }

    /// Returns the case as it is run with `--quick`: of the peers, only the strongest.
    pub fn quick(mut self) -> Self {
        for stage in &mut self.stages {
            stage.movers.truncate(stage.quick_movers);
        }
        self
    }
}
