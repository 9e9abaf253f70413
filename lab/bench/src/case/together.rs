//! Cases of guests that move together.

use super::build::{case, idle, stage, two};
use super::scene::{Case, Moves, Scene};
use crate::{figure::Check::*, mover::Mover::*};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "six-guests",
            "Six guests leave a host at once, share the links, and arrive together.",
            &[Scene {
                moves: Moves::Together(6),
                ..stage(two(), idle(448, 320), &[SkeinTls, MptcpMultifd, QemuMultifd])
            }],
            &[OfLinks { stage: "", share: 0.93 }, FinishWithin { stage: "", factor: 1.1 }],
        ),
        case(
            "both-ways",
            "Two guests change places: links are full duplex.",
            &[Scene { moves: Moves::BothWays, ..stage(two(), idle(1024, 768), &[SkeinTls, MptcpMultifd]) }],
            &[EachWay { stage: "", share: 0.9 }],
        ),
    ]
}
