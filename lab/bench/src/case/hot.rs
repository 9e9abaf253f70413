//! Cases of guests that write faster than links carry.

use skein_lab_guest::Rewrite;

use super::build::{GIGABIT, case, half, hot, idle, links, of_agents, stage, two};
use super::scene::{Case, Guest, Scene};
use crate::{
    figure::Check::*,
    mover::Mover::{self, *},
};

/// In pages per second: more than any guest can rewrite.
const UNENDING: u32 = 1_000_000;

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    let hot_peers: &[Mover] = &[MptcpMultifdZstd, Mptcp, QemuXbzrle, QemuMultifdZstd];
    let hot_movers = [&[SkeinAgents], hot_peers].concat();
    let hot_peers_one_nic: &[Mover] = &[QemuMultifdZstd, QemuXbzrle];
    let hot_movers_one_nic = [&[SkeinAgents], hot_peers_one_nic].concat();
    let torture_peers: &[Mover] = &[MptcpMultifd, QemuMultifd];
    let torture_movers = [&[SkeinAgents], torture_peers].concat();
    let torture = |name, rewrite_mb| Scene {
        name,
        allow_throttle: Some(95),
        ..stage(
            two(),
            Guest { rewrite_mb, rewrite_pages_per_s: UNENDING, vcpus: 2, ..idle(8192, 6144) },
            &torture_movers,
        )
    };
    // Far more of the RAM is hot than 5 % of its size could keep.
    let large_and_hot =
        Guest { rewrite_mb: 2048, rewrite: Rewrite::Word, rewrite_pages_per_s: 30_000, ..half(4096, 3072) };
    let deltas = Scene { name: "deltas", watch_memory: true, ..stage(two(), large_and_hot, &[SkeinAgents]) };
    vec![
        of_agents(case(
            "hot-two-nics",
            "A guest that writes to most of its memory all the time, a word a page, leaves over two NICs of 1 Gb/s.",
            &[stage(two(), hot(Rewrite::Word), &hot_movers)],
            &[TimeOfBest { stage: "", peers: hot_peers, at_most: 0.8 }, GapAtMost { stage: "", millis: 60.0 }],
        )),
        of_agents(case(
            "hot-quarter",
            "The same where each time a quarter of the page changes.",
            &[stage(two(), hot(Rewrite::Quarter), &hot_movers)],
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
                ..stage(two(), Guest { rewrite_mb: 400, rewrite_pages_per_s: 60_000, ..idle(800, 600) }, &[SkeinAgents])
            }],
            &[TotalAtMost { stage: "", seconds: 60.0 }, GuestSlowedAtMost { stage: "", share: 0.5 }],
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
    ]
}
