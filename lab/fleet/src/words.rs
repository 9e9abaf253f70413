//! What the fleet's process and those of agents say to each other, a line of JSON each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skein_api::{MigrationId, VmState};

/// What an agents' process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToAgents {
    /// First of all.
    Begin(Begin),
    /// What a host's agent says to another host's.
    Peer(Peer),
    /// Some guest says something of itself, which is told at once, with this number and the time.
    Mark { number: u64 },
    /// A fault of a host.
    Fault { host: String, kind: Fault, for_ms: u64 },
    /// Say what all hosts know.
    Look { number: u64 },
}

/// What agents' processes are begun with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub ca: PathBuf,
    pub controller: SocketAddr,
    pub seed: u64,
    /// The numbers of the first host, and of that behind the last.
    pub first: u32,
    pub end: u32,
    pub guests_per_host: u32,
    pub copy_bytes_per_s: u64,
    pub planetlab: Option<PathBuf>,
}

/// What an agents' process tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromAgents {
    /// The hosts are there.
    Ready,
    /// See [`ToAgents::Peer`].
    Peer(Peer),
    /// What all hosts know.
    Known { number: u64, reports: u64, hosts: Vec<Known> },
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// The agent ends, and is started again.
    Restart,
    /// The host reaches no controller.
    Cut,
    /// The host loses power, and is booted.
    Off,
}

/// A host's word to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub to: String,
    pub from: String,
    pub migration: MigrationId,
    pub word: PeerWord,
}

/// What the agents of a migration's two hosts say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum PeerWord {
    /// A guest is to come.
    Begin { vm: String, memory_bytes: u64, cpus: u32 },
    /// The guest runs there from now on.
    Take,
    /// It does.
    Taken,
    /// The migration is over, and the guest runs at its source, or not at all.
    Over,
}

/// What a host knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub host: String,
    /// Whether its agent reaches the controller, as far as its host is concerned.
    pub is_there: bool,
    pub vms: BTreeMap<String, KnownVm>,
}

/// What a host knows of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownVm {
    pub state: VmState,
    pub is_moving: bool,
}

/// Returns the name of a host.
pub(crate) fn host_name(number: u32) -> String {
    format!("h{number:04}")
}

/// Returns the name of a VM.
pub(crate) fn vm_name(number: u32) -> String {
    format!("v{number:05}")
}

/// Returns the number in a name of this fleet.
pub(crate) fn number_of(name: &str) -> u32 {
    name.get(1..).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
