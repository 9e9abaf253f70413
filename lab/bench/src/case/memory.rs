//! Cases of memory that guests do not use.

use super::build::{case, idle, links, of_agents, stage};
use super::scene::{Case, Guest, Scene};
use crate::{figure::Check::*, mover::Mover::*};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    let unshaped = || links(&[None, None]);
    vec![
        of_agents(case(
            "sparse",
            "A large guest that has touched little of its RAM: neither host gives memory for the rest.",
            &[Scene { watch_memory: true, ..stage(unshaped(), idle(8192, 200), &[SkeinAgents, QemuMultifdAnonymous]) }],
            &[
                AllocatedAtMost { stage: "", factor: 1.2 },
                TimeOf { stage: "", peer: QemuMultifdAnonymous, at_most: 1.2 },
            ],
        )),
        of_agents(case(
            "mostly-free",
            "A large guest most of whose RAM was used once and is free again: what is free is not sent. Agents' guests \
             have a balloon device by which they say so.",
            &[Scene {
                free_page_hint: true,
                watch_memory: true,
                ..stage(unshaped(), Guest { freed_mb: 4608, ..idle(6144, 256) }, &[SkeinAgents, QemuMultifdAnonymous])
            }],
            &[FirstTimeOf { stage: "", peer: QemuMultifdAnonymous, at_most: 0.5 }],
        )),
    ]
}
