//! Cases of what a migration costs: CPU and memory.

use super::build::{GIGABIT, case, half, idle, of_agents, on, stage, two};
use super::scene::{Case, Scene};
use crate::{figure::Check::*, mover::Mover::*};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "cpu",
            "What tunnel and agent take of the CPU for each GB, TLS on, against ssh and sshd.",
            &[on(&[GIGABIT, GIGABIT], &[SkeinTls, Ssh, Socat])],
            &[CpuOf { stage: "", peer: Ssh, at_most: 1.0 / 3.0 }],
        ),
        case(
            "mover-memory",
            "What tunnel and agent hold of memory while they move a guest of 8 GB.",
            &[Scene { watch_memory: true, ..stage(two(), idle(8192, 6144), &[SkeinTls]) }],
            &[MemoryAtMost { stage: "", bytes: 200_000_000 }],
        ),
        Case {
            subject: SkeinAgentsMultichannelPlain,
            ..case(
                "cpu-per-gb",
                "What a migration takes of the CPU for each GB, at both hosts, QEMU and mover together; raw, without \
                 TLS.",
                &[on(
                    &[GIGABIT, GIGABIT],
                    &[
                        SkeinAgentsMultichannelPlain,
                        QemuMultifd,
                        QemuMultifdAnonymous,
                        MptcpMultifd,
                        SkeinAgentsMultichannel,
                        SkeinAgents,
                    ],
                )],
                &[
                    AllCpuOf { stage: "", peer: QemuMultifd, at_most: 1.15 },
                    AllCpuOf { stage: "", peer: QemuMultifdAnonymous, at_most: 1.3 },
                ],
            )
        },
        Case {
            subject: SkeinAgentsMultichannel,
            ..case(
                "cpu-per-gb-tls",
                "What an encrypted migration takes of the CPU for each GB, at both hosts, QEMU and mover together.",
                &[on(
                    &[GIGABIT, GIGABIT],
                    &[SkeinAgentsMultichannel, QemuMultifd, QemuMultifdTls, QemuMultifdAnonymous],
                )],
                &[AllCpuOf { stage: "", peer: QemuMultifd, at_most: 1.4 }],
            )
        },
        of_agents(case(
            "busy-host",
            "All cores are busy with guests' work, and one guest leaves: the CPU that the others lose by that. Lost \
             is what \
             their control group would have got in the migration's time, by what it got just before, and did not get.",
            &[Scene { busy_host: true, ..stage(two(), half(1280, 1024), &[SkeinAgents, SkeinAgentsTcp]) }],
            &[LostOf { stage: "", peer: SkeinAgentsTcp, at_most: 1.05 }],
        )),
        of_agents(case(
            "page-memory",
            "What an agent's own memory grows by while it moves a guest of 8 GB: bookkeeping of pages, and all its \
             buffers.",
            // What is kept to send changes is part of another figure.
            &[Scene { watch_memory: true, delta_memory: Some(0.0), ..stage(two(), half(8192, 6144), &[SkeinAgents]) }],
            &[GrowthAtMost { stage: "", share: 0.01 }],
        )),
    ]
}
