//! The parts that cases are built from.

use skein_lab_guest::Rewrite;

use super::scene::{Case, Guest, Links, Moves, Scene};
use crate::{figure::Check, mover::Mover};

/// The movers of cases about agents. QEMU's own by one NIC is the first peer, with which a quick bench compares: it
/// works without MPTCP, too.
pub(super) const BY_AGENTS: &[Mover] = &[Mover::SkeinAgents, Mover::QemuMultifd, Mover::MptcpMultifd, Mover::SkeinTls];

/// The rate of the usual link, in Mb/s.
pub(super) const GIGABIT: Option<u32> = Some(1000);

pub(super) fn links(rates_mbit: &[Option<u32>]) -> Links {
    Links { rates_mbit: rates_mbit.to_vec(), same_subnet: false, mtu: 1500 }
}

/// Returns a guest that is idle except for its heartbeat, and whose content does not compress.
pub(super) fn idle(memory_mb: u32, fill_mb: u32) -> Guest {
    Guest {
        memory_mb,
        fill_mb,
        freed_mb: 0,
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
        // This is QEMU's default.
        downtime_limit_ms: 300,
        allow_throttle: None,
        delta_memory: None,
        free_page_hint: false,
        keep_ram: false,
        movers: movers.to_vec(),
        quick_movers: 2,
        fault: None,
        iperf3: false,
        watch_memory: false,
        watch_pages: false,
        control_stream: false,
        ping: false,
        kill_agent: false,
        busy_host: false,
    }
}

/// Returns two links of 1 Gb/s.
pub(super) fn two() -> Links {
    links(&[GIGABIT, GIGABIT])
}

/// Returns a guest that is large compared with what begins and ends a migration, and small enough for ten runs if it is
/// emulated.
pub(super) fn usual() -> Guest {
    idle(2048, 1536)
}

/// Returns a stage with the usual guest on links of these rates.
pub(super) fn on(rates: &[Option<u32>], movers: &[Mover]) -> Scene {
    stage(links(rates), usual(), movers)
}

/// Returns a guest half of whose pages compress well, also by the peers' zstd.
pub(super) fn half(memory_mb: u32, fill_mb: u32) -> Guest {
    Guest { compressible: 50, ..idle(memory_mb, fill_mb) }
}

/// Returns a guest that writes to 120 MB per second. Uncompressed, its pages fill one link of 1 Gb/s, and half of two.
pub(super) fn hot(rewrite: Rewrite) -> Guest {
    Guest { rewrite_mb: 400, rewrite, rewrite_pages_per_s: 30_000, ..half(800, 600) }
}

/// Returns a case whose figure is about a tunnel.
pub(super) fn case(name: &'static str, shows: &'static str, stages: &[Scene], checks: &[Check]) -> Case {
    let (stages, checks) = (stages.to_vec(), checks.to_vec());
    Case { name, shows, subject: Mover::SkeinTls, stages, checks, cluster: None }
}

/// Returns the case with agents as its subject.
pub(super) fn of_agents(case: Case) -> Case {
    Case { subject: Mover::SkeinAgents, ..case }
}
