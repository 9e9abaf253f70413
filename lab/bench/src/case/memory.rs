//! Cases of the memory that guests lie in: what they do not use of it, and what pages it is.

use super::build::{case, idle, links, of_agents, stage, usual};
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
        of_agents(case(
            "guest-at-work",
            "How fast memory is that lies on the pages of a guest's RAM, as agents start the guest and after each \
             move. A program of the host reads it, as an emulated guest does not feel the pages.",
            &[Scene { watch_pages: true, ..stage(unshaped(), usual(), &[SkeinAgents, QemuMultifdAnonymous]) }],
            &[ReadsOf { stage: "", peer: QemuMultifdAnonymous, at_least: 0.98 }],
        )),
    ]
}
