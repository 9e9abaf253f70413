//! Cases of how far links are filled.

use super::build::{BY_AGENTS, GIGABIT, case, idle, links, of_agents, on, stage, two};
use super::scene::{Case, Links, Scene};
use crate::{
    figure::Check::*,
    mover::Mover::{self, *},
};

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    let both_nics_filled = [
        OfIperf3 { stage: "", share: 0.95 },
        TimeOf { stage: "", peer: QemuMultifd, at_most: 0.55 },
        TimeOf { stage: "", peer: MptcpMultifd, at_most: 1.05 },
    ];
    let everyone = [
        SkeinTls,
        MptcpMultifd,
        QemuMultifd,
        QemuTcp,
        Mptcp,
        MptcpMultifdZstd,
        QemuMultifdZstd,
        QemuMultifdTls,
        QemuXbzrle,
        Ssh,
        Socat,
        SkeinPlain,
    ];
    vec![
        case(
            "two-nics",
            "Two NICs of 1 Gb/s are both filled, with TLS on, by a guest that does not compress; every peer beside it.",
            &[Scene { iperf3: true, ..on(&[GIGABIT, GIGABIT], &everyone) }],
            &both_nics_filled,
        ),
        of_agents(case(
            "agent-two-nics",
            "Two NICs of 1 Gb/s are as well filled where agents move the guest.",
            &[Scene { iperf3: true, ..on(&[GIGABIT, GIGABIT], BY_AGENTS) }],
            &both_nics_filled,
        )),
        case(
            "same-subnet",
            "The same with both NICs of each host in one subnet, where the kernel alone would send all by one NIC.",
            &[Scene {
                iperf3: true,
                links: Links { same_subnet: true, ..two() },
                ..on(&[GIGABIT, GIGABIT], &[SkeinTls, MptcpMultifd, QemuMultifd])
            }],
            &both_nics_filled,
        ),
        case(
            "uneven",
            "NICs of 1 Gb/s and 250 Mb/s are each used as far as they go.",
            &[Scene { iperf3: true, ..on(&[GIGABIT, Some(250)], &[SkeinTls, MptcpMultifd, QemuMultifd]) }],
            &[OfLinks { stage: "", share: 0.93 }],
        ),
        case(
            "eight-nics",
            "Eight NICs of 200 Mb/s are all used.",
            &[Scene { iperf3: true, ..on(&[Some(200); 8], &[SkeinTls, MptcpMultifd, QemuMultifd]) }],
            &[OfLinks { stage: "", share: 0.93 }],
        ),
        case(
            "one-nic",
            "On a single NIC of 1 Gb/s nothing is lost.",
            &[Scene { iperf3: true, ..on(&[GIGABIT], &[SkeinTls, QemuMultifd, QemuTcp, Ssh, Socat]) }],
            &[OfLinks { stage: "", share: 0.93 }],
        ),
        slow_beside_fast(),
        management_nic(),
        migration_network(),
    ]
}

/// Returns a stage of a case of two stages: smaller, so that a quick one keeps its rounds.
fn smaller(rates: &[Option<u32>], movers: &[Mover]) -> Scene {
    stage(links(rates), idle(1280, 1024), movers)
}

fn slow_beside_fast() -> Case {
    case(
        "slow-beside-fast",
        "A NIC of 10 Mb/s beside one of 1 Gb/s does not hold it up.",
        &[
            Scene { name: "beside", ..smaller(&[GIGABIT, Some(10)], &[SkeinTls, MptcpMultifd, QemuMultifd]) },
            Scene { name: "alone", ..smaller(&[GIGABIT], &[SkeinTls, QemuMultifd]) },
        ],
        &[GoodputOfStage { stage: "beside", other: "alone", at_least: 0.97 }],
    )
}

/// Of the others QEMU is what a user has today, and the tunnel what carries the same without a kernel's rules.
fn migration_network() -> Case {
    let movers = [SkeinNetwork, QemuMultifd, SkeinTls];
    let checks =
        [TimeOf { stage: "", peer: QemuMultifd, at_most: 0.55 }, TimeOf { stage: "", peer: SkeinTls, at_most: 1.02 }];
    let case = case(
        "migration-network",
        "QEMU's multifd to an address in the migration network fills two NICs of 1 Gb/s as a tunnel does, with TLS on.",
        &[on(&[GIGABIT, GIGABIT], &movers)],
        &checks,
    );
    Case { subject: SkeinNetwork, ..case }
}

fn management_nic() -> Case {
    case(
        "management-nic",
        "A NIC of 100 Mb/s, of which nothing tells that it is one for management, does not hold up two of 1 Gb/s.",
        &[
            Scene { name: "beside", ..smaller(&[GIGABIT, GIGABIT, Some(100)], &[SkeinTls, QemuMultifd]) },
            Scene { name: "alone", ..smaller(&[GIGABIT, GIGABIT], &[SkeinTls, QemuMultifd]) },
        ],
        &[GoodputOfStage { stage: "beside", other: "alone", at_least: 0.99 }],
    )
}
