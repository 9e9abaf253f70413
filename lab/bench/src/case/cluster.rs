//! Cases that are not one migration after the other.

use super::scene::{Case, ClusterCase};
use crate::mover::Mover;

/// Returns the cases.
pub(super) fn cases() -> Vec<Case> {
    let case = |name, shows, cluster| Case {
        name,
        shows,
        subject: Mover::SkeinAgents,
        stages: Vec::new(),
        checks: Vec::new(),
        cluster: Some(cluster),
    };
    vec![
        case(
            "drain",
            "A host with 12 guests is emptied onto three others, 4 at a time, over links of 200 Mb/s, within rules.",
            ClusterCase::Drain,
        ),
        case(
            "fleet-1000",
            "A controller with its store and 1,000 simulated hosts with 20,000 guests: load, faults, drains, kill -9.",
            ClusterCase::Fleet,
        ),
        case(
            "forecast",
            "100 migrations say a quarter in how long they still take: cold, hot, packed, of a link that changes.",
            ClusterCase::Forecast,
        ),
        case(
            "hold",
            "A guest that writes 6 MB/s is held for five minutes before it switches, and moved without a hold.",
            ClusterCase::Hold,
        ),
        case(
            "page-1000",
            "The page of 1,000 hosts with 20,000 guests and 200 migrations, in a browser, for half an hour.",
            ClusterCase::PageLarge,
        ),
        case(
            "page-live",
            "The page of a migration under way, in a browser: how old its samples are, and what 50 such pages cost.",
            ClusterCase::PageLive,
        ),
        case(
            "rate-limit",
            "A migration keeps to its limit, and to one that is set in the middle; two migrations share a NIC evenly.",
            ClusterCase::RateLimit,
        ),
        case(
            "qos-share",
            "Four guests move over two NICs that foreign TCP fills, with a share of 90 % (HTB).",
            ClusterCase::Share,
        ),
        case(
            "mtu-lie",
            "A switch drops jumbo frames on one of two paths: a probe names the path, and a migration is as fast.",
            ClusterCase::MtuLie,
        ),
        case(
            "shared-bottleneck",
            "Two NICs share one cable: a probe says so, and a migration over both is no slower than over one.",
            ClusterCase::SharedBottleneck,
        ),
        case(
            "probe-cost",
            "What a probe of four paths takes, and what a migration loses beside probes.",
            ClusterCase::ProbeCost,
        ),
        case(
            "page-clustering",
            "Scattered pages of 4 KiB go over a rail of libfabric's provider for TCP: 64 in one write, against a write \
             each.",
            ClusterCase::PageClustering,
        ),
        case(
            "rdma-read-write",
            "A rail of libfabric's provider for TCP writes and reads, 4 KiB to 4 MiB at once.",
            ClusterCase::ReadWrite,
        ),
    ]
}
