//! The named cases: their hosts, links and guests, movers, faults, and the figure to reach. This is data only.

mod build;
mod cluster;
mod compression;
mod cost;
mod downtime;
mod faults;
mod hot;
mod links;
mod memory;
mod rdma;
mod scene;
mod together;
mod unshaped;

pub use self::scene::{Case, ClusterCase, Fault, FaultKind, Guest, Links, Moves, Scene};

use self::build::{idle, stage, two};
use crate::mover::Mover;

/// The MiB of a guest's RAM that its kernel needs.
pub const KERNEL_MB: u32 = 100;

/// Returns all cases, in the order of the documentation.
pub fn all() -> Vec<Case> {
    [
        links::cases(),
        together::cases(),
        unshaped::cases(),
        cost::cases(),
        memory::cases(),
        faults::cases(),
        downtime::cases(),
        compression::cases(),
        hot::cases(),
        rdma::cases(),
        cluster::cases(),
    ]
    .concat()
}

/// Returns what `skein-lab demo` shows. It is not a case of the bench.
pub fn demo() -> Case {
    let guest = Guest { rewrite_mb: 48, rewrite_pages_per_s: 2000, disk_mb: 16, ..idle(1280, 960) };
    let movers = [Mover::SkeinAgents, Mover::QemuMultifd];
    let stage = Scene { ping: true, kill_agent: true, ..stage(two(), guest, &movers) };
    Case {
        name: "demo",
        shows: "Two hosts, two NICs in each. Agents move a guest that is at work over both NICs, encrypted; beside \
                it, the \
                same guest moved by QEMU alone. Then an agent is killed in the middle of a move.",
        subject: Mover::SkeinAgents,
        stages: vec![stage],
        checks: vec![],
        cluster: None,
    }
}

/// Returns the case of this name.
pub fn named(name: &str) -> Option<Case> {
    all().into_iter().find(|case| case.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Check;
    use std::collections::BTreeSet;

    #[test]
    fn cases_are_whole() {
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(names.insert(case.name), "{} twice", case.name);
            assert!(!case.figure().is_empty() && case.shows.ends_with('.'), "{}", case.name);
            let mut stages = BTreeSet::new();
            for stage in &case.stages {
                assert!(stages.insert(stage.name), "{}: stage '{}' twice", case.name, stage.name);
                assert_eq!(stage.movers[0], case.subject, "{}: the subject comes first", case.name);
                let distinct: BTreeSet<_> = stage.movers.iter().collect();
                assert_eq!(distinct.len(), stage.movers.len(), "{}", case.name);
                assert!(!stage.links.rates_mbit.is_empty());
                assert!(
                    stage.guest.fill_mb + stage.guest.freed_mb + KERNEL_MB <= stage.guest.memory_mb,
                    "{}: room for the kernel",
                    case.name
                );
                assert!(stage.guest.rewrite_mb <= stage.guest.fill_mb);
            }
        }
        assert_eq!(names.len(), 59);
        assert!(named("two-nics").is_some() && named("three-nics").is_none());
    }

    /// Checks that every stage and peer that a check names exists, and that without runs nothing is judged.
    #[test]
    fn checks_speak_of_what_there_is() {
        for case in all() {
            for check in &case.checks {
                let check = match check {
                    Check::By { mover, check } => {
                        assert!(
                            case.stages.iter().any(|s| s.movers.contains(mover)),
                            "{}: {mover} is not run",
                            case.name
                        );
                        check
                    }
                    check => check,
                };
                let text = format!("{check:?}");
                for word in ["stage: \"", "other: \"", "undisturbed: \"", "idle: \"", "without: \""] {
                    let Some((_, rest)) = text.split_once(word) else { continue };
                    let name = rest.split('"').next().unwrap();
                    assert!(case.stages.iter().any(|s| s.name == name), "{}: no stage '{name}'", case.name);
                }
                if let Check::TimeOfBest { stage, peers, .. }
                | Check::MultipleOfBest { stage, peers, .. }
                | Check::GapOf { stage, peers, .. } = *check
                {
                    let stage = case.stages.iter().find(|s| s.name == stage).unwrap();
                    for peer in peers {
                        assert!(stage.movers.contains(peer), "{}: {peer} is not run", case.name);
                    }
                }
                let (Check::TimeOf { stage, peer, .. }
                | Check::GoodputOf { stage, peer, .. }
                | Check::CpuOf { stage, peer, .. }
                | Check::AllCpuOf { stage, peer, .. }
                | Check::WireOf { stage, peer, .. }
                | Check::ReadsOf { stage, peer, .. }
                | Check::LostOf { stage, peer, .. }) = *check
                else {
                    continue;
                };
                let stage = case.stages.iter().find(|s| s.name == stage).unwrap();
                assert!(stage.movers.contains(&peer), "{}: {peer} is not run", case.name);
            }
        }
    }

    #[test]
    fn quick_keeps_the_subject_and_the_strongest_peer() {
        for case in all() {
            let subject = case.subject;
            for stage in case.quick().stages {
                assert!(stage.movers.len() <= 2 && stage.movers[0] == subject);
            }
        }
        for (name, strongest) in [
            ("hot-two-nics", Mover::MptcpMultifdZstd),
            ("hot-quarter", Mover::MptcpMultifdZstd),
            ("hot-one-nic", Mover::QemuMultifdZstd),
            ("torture", Mover::MptcpMultifd),
        ] {
            let stages = named(name).unwrap().quick().stages;
            assert!(stages.iter().all(|stage| stage.movers == [Mover::SkeinAgents, strongest]), "{name}");
        }
    }
}
