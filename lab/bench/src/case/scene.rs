//! What a case is made of: hosts, links, guest, movers, faults. Data only.

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
