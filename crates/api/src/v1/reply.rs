//! What the agent answers.

use serde::{Deserialize, Serialize};

use super::check::CheckResult;
use super::host::HostView;
use super::migration::Migration;
use super::vm::VmView;

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "reply")]
pub enum Reply {
    /// It goes on.
    Progress(Box<Migration>),
    /// Nothing more to say.
    Done,
    /// It cannot be done.
    Error(Refusal),
    /// A VM.
    Vm(Box<VmView>),
    /// VMs, by name.
    Vms {
        /// The VMs of this host.
        vms: Vec<VmView>,
    },
    /// A host.
    Host(Box<HostView>),
    /// Hosts, by name.
    Hosts {
        /// The hosts that this one knows.
        hosts: Vec<HostView>,
    },
    /// What a check found.
    Check(CheckResult),
    /// A migration.
    Migration(Box<Migration>),
    /// Migrations, the newest first.
    Migrations {
        /// The migrations that this host remembers.
        migrations: Vec<Migration>,
    },
    /// What the agent speaks.
    Version(VersionView),
}

/// Why something cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Refusal {
    /// What is wrong.
    pub message: String,
    /// What to do about it; may be empty.
    pub cure: String,
}

/// What an agent is, and speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VersionView {
    /// The release of its program.
    pub release: String,
    /// The newest version of this protocol that it speaks; it speaks all from 1 on.
    pub api: u32,
}
