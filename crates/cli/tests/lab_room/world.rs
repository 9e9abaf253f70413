//! Two hosts, of which one has little room, and guests of a given size.

use std::path::Path;
use std::time::Duration;

use skein_api::Request;
use skein_lab_cluster::{Cluster, Settings, filled};

use super::group::Group;

pub const MIB: u64 = 1 << 20;

/// The time within which anything happens, on a busy or an emulated machine, too.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Starts two hosts, with b's agent in the group.
pub fn cluster(group: &Group, settings: Settings) -> Cluster {
    let mut cluster = Cluster::idle(settings);
    let start = group.start(cluster.dir());
    cluster.start("a");
    cluster.start_as("b", &start);
    // The agents remember what their QEMUs can do. In an emulated machine, finding that out takes longer than a request
    // waits.
    for host in ["a", "b"] {
        cluster.asked(host, &Request::HostShow { name: None });
    }
    cluster
}

pub fn settings() -> Settings {
    Settings::new(env!("CARGO_BIN_EXE_skein").into())
}

/// Returns a guest of `mib` MiB, of which `full` are in use.
pub fn guest(cluster: &Cluster, name: &str, mib: u64, full: Option<&Path>) -> String {
    let bare = cluster.bare(name).replace("64 MiB", &format!("{mib} MiB"));
    match full {
        Some(file) => filled(&bare, file),
        None => bare,
    }
}

/// Returns a VM's file with RAM that other processes can map.
pub fn with_shared_memory(file: &str) -> String {
    format!("shared_memory = true\n{file}")
}
