//! Is what the agent answers.

use serde::{Deserialize, Serialize};
use skein_network::Interface;

use super::check::CheckResult;
use super::console::ConsoleView;
use super::host::HostView;
use super::migration::Migration;
use super::probe::Probe;
use super::sample::{MigrationRecord, SampledHost};
use super::vm::VmView;

/// A reply of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "reply")]
pub enum Reply {
    /// The migration goes on.
    Progress(Box<Migration>),
    /// There is nothing more to say.
    Done,
    /// The request cannot be done.
    Error(Refusal),
    /// A VM.
    Vm(Box<VmView>),
    /// A VM's serial console.
    Console(Box<ConsoleView>),
    /// The VM was not started by the request of this id, and will not be: the agent remembers that. Only for
    /// [`Request::VmStart`](super::Request::VmStart) with a request id.
    NotStarted(Refusal),
    /// The VM was not forgotten by the request of this id, and will not be: the agent remembers that. Only for
    /// [`Request::VmForget`](super::Request::VmForget) with a request id.
    NotForgotten(Refusal),
    /// What a host keeps of a VM that is off.
    Offer {
        /// Text of the agent, which only an agent reads.
        offer: String,
    },
    /// The VMs, by name.
    Vms {
        /// The VMs of this host.
        vms: Vec<VmView>,
    },
    /// A host.
    Host(Box<HostView>),
    /// The network interfaces of a host.
    Network {
        /// All but loopback, by index.
        interfaces: Vec<Interface>,
    },
    /// What a probe does or found, in words.
    ProbeStep {
        /// The words.
        words: String,
    },
    /// What a probe measured.
    Probe(Box<Probe>),
    /// What was measured last of each host, the newest first.
    Probes {
        /// The results that this host keeps.
        probes: Vec<Probe>,
    },
    /// The hosts, by name.
    Hosts {
        /// The hosts that this host knows.
        hosts: Vec<HostView>,
    },
    /// The result of a check.
    Check(CheckResult),
    /// A migration.
    Migration(Box<Migration>),
    /// A host as it is now.
    HostSample(Box<SampledHost>),
    /// A migration with what was seen of it as it ran.
    MigrationRecord(Box<MigrationRecord>),
    /// The migrations, the newest first.
    Migrations {
        /// The migrations that this host remembers.
        migrations: Vec<Migration>,
    },
    /// How far an update of the host is.
    HostUpdate(HostUpdateView),
    /// The versions that the agent speaks.
    Version(VersionView),
}

/// The reason why a request cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Refusal {
    /// What is wrong.
    pub message: String,
    /// What to do about it. May be empty.
    pub cure: String,
}

/// How far an update of a host is, as its agent knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostUpdateView {
    /// How far it is.
    pub state: UpdateRunState,
    /// What remains to be said, as the end of what a command wrote that failed. May be empty.
    pub message: String,
}

/// How far an update of a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum UpdateRunState {
    /// The agent has taken no order of this id.
    Unknown,
    /// It is under way, or the host is about to be booted, or a person is waited for.
    Running,
    /// The commands have succeeded, and the host was booted if it was to be.
    Done,
    /// A command has failed, or nobody knows what became of it.
    Failed,
}

/// The versions of an agent's program and of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VersionView {
    /// The release of the agent's program.
    pub release: String,
    /// The newest version of the API that the agent speaks. The agent speaks all versions from 1 on.
    pub api: u32,
}
