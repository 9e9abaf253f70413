//! What cases are built from.

use skein_lab_guest::Rewrite;

use super::scene::{Case, Guest, Links, Moves, Scene};
use crate::{figure::Check, mover::Mover};

/// The movers of cases about agents. QEMU's own by one NIC comes first of the peers, as what a quick bench compares
/// with: it is there without MPTCP, too.
pub(super) const BY_AGENTS: &[Mover] = &[Mover::SkeinAgents, Mover::QemuMultifd, Mover::MptcpMultifd, Mover::SkeinTls];

/// Mb/s of the usual link.
pub(super) const GIGABIT: Option<u32> = Some(1000);

pub(super) fn links(rates_mbit: &[Option<u32>]) -> Links {
    Links { rates_mbit: rates_mbit.to_vec(), same_subnet: false, mtu: 1500 }
}

/// A guest that is idle, but for its heartbeat, and holds nothing that compresses.
pub(super) fn idle(memory_mb: u32, fill_mb: u32) -> Guest {
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

pub(super) fn stage(links: Links, guest: Guest, movers: &[Mover]) -> Scene {
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

/// Two links of 1 Gb/s.
pub(super) fn two() -> Links {
    links(&[GIGABIT, GIGABIT])
}

/// Large against what begins and ends a migration, small enough for ten runs on an emulated guest.
pub(super) fn usual() -> Guest {
    idle(2048, 1536)
}

/// The usual guest on links of these rates.
pub(super) fn on(rates: &[Option<u32>], movers: &[Mover]) -> Scene {
    stage(links(rates), usual(), movers)
}

/// A guest half of whose pages compress well, as the peers' zstd does them too.
pub(super) fn half(memory_mb: u32, fill_mb: u32) -> Guest {
    Guest { compressible: 50, ..idle(memory_mb, fill_mb) }
}

/// A guest that writes to 120 MB a second: as they are, its pages fill one link of 1 Gb/s, and half of two.
pub(super) fn hot(rewrite: Rewrite) -> Guest {
    Guest { rewrite_mb: 400, rewrite, rewrite_pages_per_s: 30_000, ..half(800, 600) }
}

/// A case whose figure is about a tunnel.
pub(super) fn case(name: &'static str, shows: &'static str, stages: &[Scene], checks: &[Check]) -> Case {
    Case { name, shows, subject: Mover::SkeinTls, stages: stages.to_vec(), checks: checks.to_vec() }
}

/// The case with agents as its subject.
pub(super) fn of_agents(case: Case) -> Case {
    Case { subject: Mover::SkeinAgents, ..case }
}
