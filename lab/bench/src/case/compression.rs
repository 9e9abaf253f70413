//! Cases of how much of a guest's memory goes over the links.

use super::build::{GIGABIT, case, half, idle, links, of_agents, on, stage, two, usual};
use super::scene::{Case, Guest, Scene};
use crate::{figure::Check::*, mover::Mover::*};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    vec![
        of_agents(case(
            "compressible-two-nics",
            "600 MB, half of it compressible, over two NICs of 1 Gb/s: both are used, and less has to go over them.",
            &[stage(
                two(),
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
        of_agents(case(
            "real-image",
            "A guest that has unpacked and built real software, and not patterns: what goes over the links, and how \
             long.",
            &[stage(
                two(),
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
            "return-trip",
            "A guest goes there and back, and rewrites a fifth of its memory meanwhile: hosts that kept it get what \
             differs.",
            &[Scene {
                keep_ram: true,
                ..stage(two(), Guest { rewrite_mb: 307, rewrite_pages_per_s: 8000, ..usual() }, &[SkeinAgents])
            }],
            &[WireBack { stage: "", at_most: 0.3 }],
        )),
    ]
}
