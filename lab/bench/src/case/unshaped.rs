//! Cases of links as fast as the machine, where the CPU is the limit.

use super::build::{case, idle, links, stage};
use super::scene::Case;
use crate::{figure::Check::*, mover::Mover::*};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "unshaped-tls",
            "Encrypted, on links as fast as the machine, where CPU is the limit.",
            &[stage(
                links(&[None, None]),
                idle(3072, 2560),
                &[SkeinTls, QemuMultifd, Ssh, QemuMultifdTls, MptcpMultifd, QemuMultifdAnonymous],
            )],
            &[
                GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.7 },
                GoodputOf { stage: "", peer: Ssh, at_least: 3.0 },
                GoodputOf { stage: "", peer: QemuMultifdTls, at_least: 2.5 },
            ],
        ),
        Case {
            subject: SkeinPlain,
            ..case(
                "unshaped-plain",
                "Without TLS, a deliberate option, little is lost against QEMU's own multifd on links as fast as the \
                 machine.",
                &[stage(links(&[None, None]), idle(3072, 2560), &[SkeinPlain, QemuMultifd, Socat])],
                &[GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.8 }],
            )
        },
        Case {
            subject: SkeinAgentsPlain,
            ..case(
                "direct-unshaped",
                "On links as fast as the machine little is lost against QEMU alone in plain text, and not much more \
                 with TLS on.",
                // There are three sets of guests at the same time, so they are smaller than those of the other unshaped
                // cases.
                &[stage(
                    links(&[None, None]),
                    idle(2560, 2048),
                    &[SkeinAgentsPlain, QemuMultifd, SkeinAgents, QemuMultifdAnonymous],
                )],
                &[
                    GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.87 },
                    By { mover: SkeinAgents, check: &GoodputOf { stage: "", peer: QemuMultifd, at_least: 0.72 } },
                ],
            )
        },
    ]
}
