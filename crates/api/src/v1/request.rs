//! What somebody wants of the agent.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The newest version of this protocol, which the requests and replies here are of.
pub const API_VERSION: u32 = 1;

/// The line that a request is: the request, and what is said of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RequestLine {
    /// The version that it is of; none: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<u32>,
    /// A name that whoever asks chose for a migration, at random or by what it is for. The same name again means the
    /// same migration, with all its attempts, which is then followed and not begun anew: after an answer was lost, for
    /// instance. Remembered for a day, also when the agent is started again. With [`Request::Migrate`] only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// What is wanted.
    #[serde(flatten)]
    pub request: Request,
}

/// What somebody wants of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "request")]
pub enum Request {
    /// Start a VM from its definition, or a stopped one that is known by its name. → [`Reply::Vm`](super::Reply::Vm)
    VmStart {
        /// A definition, as TOML, and the file that it is from; or a name.
        from: VmOrigin,
        /// What is wanted all the same.
        #[serde(default)]
        options: StartOptions,
    },
    /// Take over a QEMU that somebody else started. → [`Reply::Vm`](super::Reply::Vm)
    VmAdopt {
        /// Its QMP socket, which nobody else may have open.
        qmp: PathBuf,
        /// The VM's name; else QEMU's own (`-name`).
        name: Option<String>,
    },
    /// All VMs of this host. → [`Reply::Vms`](super::Reply::Vms)
    VmList,
    /// One. → [`Reply::Vm`](super::Reply::Vm)
    VmShow {
        /// Its name.
        name: String,
    },
    /// Stop a VM: press its power button, wait, and pull the plug if told to. → [`Reply::Vm`](super::Reply::Vm)
    VmStop {
        /// Its name.
        name: String,
        /// Seconds until it has to be off.
        timeout_s: u64,
        /// Kill its QEMU after that, instead of giving up.
        force: bool,
    },
    /// Run a guest that somebody paused, or QEMU for a failing disk. → [`Reply::Vm`](super::Reply::Vm)
    VmResume {
        /// Its name.
        name: String,
    },
    /// Forget a stopped VM's definition. → [`Reply::Done`](super::Reply::Done)
    VmForget {
        /// Its name.
        name: String,
    },
    /// All hosts of the cluster, as far as this one knows them. → [`Reply::Hosts`](super::Reply::Hosts)
    HostList,
    /// One; none: this one. → [`Reply::Host`](super::Reply::Host)
    HostShow {
        /// Its name.
        name: Option<String>,
    },
    /// Say all that speaks against moving a VM, and how long it would take. → [`Reply::Check`](super::Reply::Check)
    Check {
        /// The VM.
        vm: String,
        /// The target host.
        to: String,
        /// What was asked for with the migration.
        options: MigrateOptions,
    },
    /// Move a VM. → [`Reply::Check`](super::Reply::Check), which is the end if something blocks it, and may be left out
    /// if nothing is to be said; [`Reply::Progress`](super::Reply::Progress) each time that something changes and every
    /// [`PROGRESS_PERIOD`](crate::PROGRESS_PERIOD); at its end, or at once with `detach`,
    /// [`Reply::Migration`](super::Reply::Migration).
    Migrate {
        /// The VM.
        vm: String,
        /// The target host.
        to: String,
        /// What was asked for with the migration.
        options: MigrateOptions,
        /// Answer as soon as it is begun or queued.
        detach: bool,
    },
    /// Migrations under way on this host, and the last ones. → [`Reply::Migrations`](super::Reply::Migrations)
    MigrationList,
    /// One, with its events. → [`Reply::Migration`](super::Reply::Migration)
    MigrationShow {
        /// The beginning of its id, or its VM's name for the last one.
        id: String,
    },
    /// Follow one until it is over. → as `Migrate`
    MigrationWatch {
        /// As in `MigrationShow`.
        id: String,
    },
    /// Call one off. → [`Reply::Migration`](super::Reply::Migration)
    MigrationCancel {
        /// As in `MigrationShow`.
        id: String,
    },
    /// Run a guest that is in doubt here, as the other host is off. → [`Reply::Migration`](super::Reply::Migration)
    MigrationResolve {
        /// As in `MigrationShow`.
        id: String,
        /// Somebody has made sure that the other host is off, and that it stays so until this is over.
        other_host_is_off: bool,
    },
    /// What the agent speaks. → [`Reply::Version`](super::Reply::Version)
    Version,
}

/// What a VM is started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VmOrigin {
    /// A definition.
    Definition {
        /// Where it is from, for error messages.
        file: String,
        /// TOML.
        text: String,
    },
    /// The name of a VM that this host knows and that is not running.
    Name(String),
}

/// What a start is refused for unless somebody wants it all the same. An agent that does not know a word ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StartOptions {
    /// More than the host has room for: the kernel may kill this guest for it, or another.
    pub overcommit: bool,
    /// With the images that its definition or command line names, though its guest last had others open.
    pub as_defined: bool,
    /// With new UEFI variables and a new TPM, though another host keeps those of a VM of that name.
    pub new_state: bool,
}

/// How to migrate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MigrateOptions {
    /// Greater goes first. None: the definition's.
    pub priority: Option<u8>,
    /// Milliseconds that the guest may be stopped; QEMU's `downtime-limit`.
    pub downtime_limit_ms: Option<u64>,
    /// Seconds until the guest has to be about to move; called off after that.
    pub deadline_s: Option<u64>,
    /// multifd channels; 0: one stream.
    pub channels: Option<u8>,
    /// How the guest's memory travels. None: as its host has it.
    pub transport: Option<Transport>,
    /// Per cent by which the guest may be slowed down if it writes faster than it is moved. None: not at all.
    pub allow_throttle: Option<u8>,
    /// Memory that the source may use to know what the target holds, in per cent of the guest's RAM; 0: no deltas.
    /// None: the agent's choice.
    pub delta_memory: Option<f64>,
    /// How often a migration that was called off, but not by somebody, is begun again, whoever watches.
    pub retries: u32,
}

/// How a guest's memory travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// All NICs, and compression as far as it pays.
    #[default]
    Auto,
    /// One connection on one NIC, as it is.
    Tcp,
    /// One NIC, compressed.
    Compression,
    /// All NICs, as it is.
    Multichannel,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 4] = [Transport::Auto, Transport::Tcp, Transport::Compression, Transport::Multichannel];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Tcp => "tcp",
            Transport::Compression => "compression",
            Transport::Multichannel => "multichannel",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is no transport's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it may be {}", Transport::ALL.map(Transport::name).join(", "))]
pub struct NoTransport;

impl FromStr for Transport {
    type Err = NoTransport;

    fn from_str(text: &str) -> Result<Transport, NoTransport> {
        Transport::ALL.into_iter().find(|transport| transport.name() == text).ok_or(NoTransport)
    }
}
