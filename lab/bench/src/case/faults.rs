//! Cases of links that are lost, and of small streams beside bulk.

use std::time::Duration;

use super::build::{GIGABIT, case, idle, on, stage, two};
use super::scene::{Case, Fault, FaultKind, Scene};
use crate::{figure::Check::*, mover::Mover::*};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    let cut = |name, kind| Scene {
        name,
        fault: Some(Fault { kind, all_links: false, after_percent: 25, lasts: Duration::from_secs(3) }),
        iperf3: true,
        ..stage(two(), idle(1792, 1536), &[SkeinTls, MptcpMultifd])
    };
    // A peer that loses all links takes a minute a run, which is too long for a quick bench.
    let darkness = Scene { quick_movers: 1, ..on(&[GIGABIT, GIGABIT], &[SkeinTls, QemuMultifd]) };
    vec![
        case(
            "cut",
            "One of two NICs is lost in mid-migration and comes back, with loss of carrier and as a black hole.",
            &[cut("carrier", FaultKind::Carrier), cut("black-hole", FaultKind::BlackHole)],
            &[
                BelowAtMost { stage: "carrier", seconds: 1.0 },
                UsedAgainWithin { stage: "carrier", seconds: 2.0 },
                BelowAtMost { stage: "black-hole", seconds: 2.0 },
                UsedAgainWithin { stage: "black-hole", seconds: 2.0 },
            ],
        ),
        case(
            "dark",
            "All NICs are lost for 20 s in mid-migration.",
            &[
                Scene { name: "undisturbed", ..darkness.clone() },
                Scene {
                    name: "dark",
                    fault: Some(Fault {
                        kind: FaultKind::BlackHole,
                        all_links: true,
                        after_percent: 40,
                        lasts: Duration::from_secs(20),
                    }),
                    ..darkness
                },
            ],
            &[Adds { stage: "dark", undisturbed: "undisturbed", seconds: 21.0 }],
        ),
        case(
            "control-latency",
            "Round trips of a small stream through the same tunnel while all links carry bulk.",
            &[Scene { control_stream: true, ..on(&[GIGABIT, GIGABIT], &[SkeinTls, Ssh]) }],
            &[LatencyOver { stage: "", millis: 10.0 }],
        ),
    ]
}
