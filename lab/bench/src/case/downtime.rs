//! Cases of how long the guest stands still.

use skein_lab_guest::Rewrite;

use super::build::{BY_AGENTS, case, hot, idle, of_agents, stage, two};
use super::scene::{Case, Guest, Scene};
use crate::{
    figure::Check::*,
    mover::Mover::{self, *},
};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    let downtime_peers: &[Mover] = &[MptcpMultifd, QemuMultifd];
    let downtime = |movers: &[Mover]| {
        let stage = |name, guest| Scene { name, ping: true, ..stage(two(), guest, movers) };
        let writing = Guest { rewrite_mb: 64, rewrite_pages_per_s: 5000, ..idle(512, 384) };
        [stage("idle", idle(512, 384)), stage("dirtying", writing)]
    };
    let kept =
        |name, downtime_limit_ms| Scene { name, downtime_limit_ms, ..stage(two(), hot(Rewrite::Word), &[SkeinAgents]) };
    let is_kept = |stage| GapKept { stage, factor: 1.3, slack_ms: 15.0, share: 0.9 };
    vec![
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
            &downtime(BY_AGENTS),
            &[
                GapOf { stage: "idle", peers: downtime_peers, factor: 1.2, slack_ms: 20.0 },
                GapOf { stage: "dirtying", peers: downtime_peers, factor: 1.2, slack_ms: 20.0 },
            ],
        )),
        of_agents(case(
            "downtime-kept",
            "A guest that writes to most of its memory stands still for no longer than was allowed.",
            &[kept("50ms", 50), kept("100ms", 100), kept("300ms", 300)],
            &[is_kept("50ms"), is_kept("100ms"), is_kept("300ms")],
        )),
    ]
}
