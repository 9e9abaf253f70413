//! Cases of RDMA, by libfabric's providers that need no device. They cost CPU where a NIC would not.

use super::build::{case, idle, links, stage};
use super::scene::{Case, Links, Moves, Scene};
use crate::{
    figure::Check::{self, *},
    mover::Mover::{self, *},
};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    [against_tcp(), copies(), evacuation()].into_iter().flatten().collect()
}

/// The share of the pages that are not zero which rails are to write: else a case is not about rails.
const WRITTEN: Check = WrittenAtLeast { stage: "", share: 0.5 };

/// Returns a case of the first of these movers, in one stage.
fn of(name: &'static str, shows: &'static str, scene: Scene, checks: &[Check]) -> Case {
    Case { subject: scene.movers[0], ..case(name, shows, &[scene], checks) }
}

/// Returns a stage of links as fast as the machine.
fn unshaped(movers: &[Mover]) -> Scene {
    stage(links(&[None, None]), idle(2560, 2048), movers)
}

/// Returns links that no mover's CPU holds up.
fn narrow() -> Links {
    links(&[Some(400), Some(400)])
}

fn against_tcp() -> Vec<Case> {
    let peer = SkeinAgentsMultichannelPlain;
    vec![
        of(
            "rdma-first-page",
            "A guest of 8 GiB goes as early over two links of 400 Mb/s whether or not rails take it over later.",
            stage(narrow(), idle(8192, 3072), &[SkeinAgentsRdma, peer]),
            &[
                FirstByteAfter { stage: "", peer, seconds: 0.05 },
                FullWithin { stage: "", share: 0.9, seconds: 0.3 },
                WRITTEN,
            ],
        ),
        of(
            "rdma-vs-tcp",
            "Pages that rails write one-sided, over libfabric's provider for TCP, against our own TCP without TLS, on \
             links as fast as the machine.",
            unshaped(&[SkeinAgentsRdma, peer]),
            &[GoodputOf { stage: "", peer, at_least: 0.8 }, WRITTEN],
        ),
        of(
            "rdma-sealed",
            "What sealing costs: pages go encrypted through rails' rings, against pages that rails write as plain \
             text, over the same provider.",
            unshaped(&[SkeinAgentsRdmaSealed, SkeinAgentsRdma]),
            &[GoodputOf { stage: "", peer: SkeinAgentsRdma, at_least: 0.6 }],
        ),
    ]
}

fn copies() -> Vec<Case> {
    let peer = SkeinAgentsMultichannelPlain;
    vec![
        of(
            "rdma-cpu",
            "What the movers copy, and take of the CPU for each GB, where rails write one-sided in shared memory, \
             against our own TCP without TLS. The provider for shared memory waits by asking again and again: its CPU \
             is bounded so that it does not become worse.",
            unshaped(&[SkeinAgentsSharedMemory, peer]),
            &[CopiesOf { stage: "", peer, at_most: 0.5 }, CpuOf { stage: "", peer, at_most: 2.0 }, WRITTEN],
        ),
        of(
            "rdma-target-copies",
            "What rails write in shared memory is copied by none of the target's threads, by their own count.",
            unshaped(&[SkeinAgentsSharedMemory]),
            &[TargetCopiesAtMost { stage: "", bytes: 0 }, WRITTEN],
        ),
    ]
}

fn evacuation() -> Vec<Case> {
    let alone = || Scene { name: "alone", ..stage(narrow(), idle(448, 320), &[SkeinAgentsRdma]) };
    let six = Scene { name: "six", moves: Moves::Together(6), ..alone() };
    let case = case(
        "rdma-evacuate",
        "Six guests leave a host at once over rails of libfabric's provider for TCP on two NICs of 400 Mb/s.",
        &[six, alone()],
        &[FinishNearMean { stage: "six", share: 0.1 }, CpuOfStage { stage: "six", other: "alone", at_most: 1.1 }],
    );
    vec![Case { subject: SkeinAgentsRdma, ..case }]
}
