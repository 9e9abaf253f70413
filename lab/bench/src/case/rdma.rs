//! Cases of RDMA, by libfabric's providers that need no device. They cost CPU where a NIC would not.

use super::build::{case, idle, links, stage};
use super::scene::{Case, Moves, Scene};
use crate::{
    figure::Check::*,
    mover::Mover::{self, *},
};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    let unshaped = |movers: &[Mover]| stage(links(&[None, None]), idle(2560, 2048), movers);
    let narrow = || links(&[Some(400), Some(400)]);
    let of = |subject, case| Case { subject, ..case };
    vec![
        of(
            SkeinAgentsRdma,
            case(
                "rdma-first-page",
                "A guest of 8 GiB goes as early over two links of 400 Mb/s whether or not rails take it over later.",
                &[stage(narrow(), idle(8192, 512), &[SkeinAgentsRdma, SkeinAgentsMultichannelPlain])],
                &[
                    FirstByteAfter { stage: "", peer: SkeinAgentsMultichannelPlain, seconds: 0.05 },
                    FullWithin { stage: "", share: 0.9, seconds: 0.3 },
                    WrittenAtLeast { stage: "", share: 0.5 },
                ],
            ),
        ),
        of(
            SkeinAgentsRdma,
            case(
                "rdma-vs-tcp",
                "Pages that rails write one-sided, over libfabric's provider for TCP, against our own TCP without TLS, \
                 on links as fast as the machine.",
                &[unshaped(&[SkeinAgentsRdma, SkeinAgentsMultichannelPlain])],
                &[
                    GoodputOf { stage: "", peer: SkeinAgentsMultichannelPlain, at_least: 0.8 },
                    WrittenAtLeast { stage: "", share: 0.5 },
                ],
            ),
        ),
        of(
            SkeinAgentsRdmaSealed,
            case(
                "rdma-sealed",
                "What sealing costs: pages go encrypted through rails' rings, against pages that rails write as plain \
                 text, over the same provider.",
                &[unshaped(&[SkeinAgentsRdmaSealed, SkeinAgentsRdma])],
                &[GoodputOf { stage: "", peer: SkeinAgentsRdma, at_least: 0.6 }],
            ),
        ),
        of(
            SkeinAgentsSharedMemory,
            case(
                "rdma-cpu",
                "What the movers take of the CPU for each GB where rails write one-sided in shared memory, against our \
                 own TCP without TLS. The provider for shared memory waits by asking again and again.",
                &[unshaped(&[SkeinAgentsSharedMemory, SkeinAgentsMultichannelPlain])],
                &[
                    CpuOf { stage: "", peer: SkeinAgentsMultichannelPlain, at_most: 1.0 },
                    WrittenAtLeast { stage: "", share: 0.5 },
                ],
            ),
        ),
        of(
            SkeinAgentsRdma,
            case(
                "rdma-evacuate",
                "Six guests leave a host at once over rails of libfabric's provider for TCP on two NICs of 400 Mb/s.",
                &[
                    Scene {
                        name: "six",
                        moves: Moves::Together(6),
                        ..stage(narrow(), idle(448, 320), &[SkeinAgentsRdma])
                    },
                    Scene { name: "alone", ..stage(narrow(), idle(448, 320), &[SkeinAgentsRdma]) },
                ],
                &[
                    FinishNearMean { stage: "six", share: 0.1 },
                    CpuOfStage { stage: "six", other: "alone", at_most: 1.1 },
                ],
            ),
        ),
    ]
}
