//! Is what a command asks of the agent.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::console::ConsoleRequest;
use super::hold::HoldOptions;

/// Holds the newest version of the API, which the requests and replies here are of.
pub const API_VERSION: u32 = 1;

/// The line of a request: the request, and what is said about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RequestLine {
    /// The version of the API that the request is of; `None`: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<u32>,
    /// A name that the caller chose for a migration or a start, at random or by its purpose. The same name again means
    /// the same migration, with all its attempts, or the same start. It is then followed and not begun anew, for
    /// instance after an answer was lost. The agent remembers the name of a migration for a day, that of a start for a
    /// week, also when it is started again. With [`Request::Migrate`], [`Request::VmStart`] and [`Request::VmForget`]
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The request itself.
    #[serde(flatten)]
    pub request: Request,
}

/// A request to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "request")]
pub enum Request {
    /// Start a VM from its definition, or a stopped VM by its name. → [`Reply::Vm`](super::Reply::Vm); with a request
    /// id [`Reply::Vm`](super::Reply::Vm) if the VM was started by this request, now or before, or runs;
    /// [`Reply::NotStarted`](super::Reply::NotStarted) if it was not and never will be; an error says nothing of that.
    VmStart {
        /// A definition, as TOML, and the file that holds it; or a name.
        from: VmOrigin,
        /// What is wanted in spite of a refusal.
        #[serde(default)]
        options: StartOptions,
    },
    /// Take over a QEMU that another program started. → [`Reply::Vm`](super::Reply::Vm)
    VmAdopt {
        /// The QEMU's QMP socket, which no other program may have open.
        qmp: PathBuf,
        /// The VM's name; else QEMU's own (`-name`).
        name: Option<String>,
    },
    /// List all VMs of this host. → [`Reply::Vms`](super::Reply::Vms)
    VmList,
    /// Show a VM. → [`Reply::Vm`](super::Reply::Vm)
    VmShow {
        /// The VM's name.
        name: String,
    },
    /// Stop a VM: press its power button, wait, and pull the plug if `force` says so. → [`Reply::Vm`](super::Reply::Vm)
    VmStop {
        /// The VM's name.
        name: String,
        /// The seconds until the VM has to be off.
        timeout_s: u64,
        /// Whether to kill the VM's QEMU after that, instead of giving up.
        force: bool,
    },
    /// Run a guest that a person paused, or QEMU for a failing disk. → [`Reply::Vm`](super::Reply::Vm)
    VmResume {
        /// The VM's name.
        name: String,
    },
    /// Read and write a VM's serial console. An agent of before does not know this request. →
    /// [`Reply::Console`](super::Reply::Console), or an error if the VM has no console now
    VmConsole(Box<ConsoleRequest>),
    /// Forget a stopped VM's definition. → [`Reply::Done`](super::Reply::Done); with a request id
    /// [`Reply::Done`](super::Reply::Done) if the VM was forgotten by this request, now or before;
    /// [`Reply::NotForgotten`](super::Reply::NotForgotten) if it was not and never will be; an error says nothing of
    /// that.
    VmForget {
        /// The VM's name.
        name: String,
    },
    /// Say what this host keeps of a VM that is off, for another host that is to have the VM. →
    /// [`Reply::Offer`](super::Reply::Offer), or an error if the VM cannot be moved while it is off
    VmOffer {
        /// The VM's name.
        name: String,
    },
    /// Keep a VM that is off on another host, and do not start it before the reservation is released. Asked again, the
    /// reservation stays. → [`Reply::Vm`](super::Reply::Vm)
    VmReserve {
        /// The reservation, which names the move.
        reservation: String,
        /// The other host's word of [`Reply::Offer`](super::Reply::Offer).
        offer: String,
    },
    /// End a reservation. Nothing is done if the VM has no such reservation. → [`Reply::Vm`](super::Reply::Vm), or
    /// [`Reply::Done`](super::Reply::Done) if this host does not have the VM any more
    VmRelease {
        /// The VM's name.
        name: String,
        /// The reservation.
        reservation: String,
        /// Whether the VM is this host's from now on, and can be started. Else it is forgotten.
        keep: bool,
    },
    /// List all hosts of the cluster, as far as this host knows them. → [`Reply::Hosts`](super::Reply::Hosts)
    HostList,
    /// Show a host; without a name, this host. → [`Reply::Host`](super::Reply::Host)
    HostShow {
        /// The host's name.
        name: Option<String>,
    },
    /// Show the network interfaces of a host. An agent of before does not know this request. →
    /// [`Reply::Network`](super::Reply::Network)
    NetShow {
        /// The host's name.
        name: String,
    },
    /// Measure what the paths to a host carry. An agent of before does not know this request. →
    /// [`Reply::ProbeStep`](super::Reply::ProbeStep) each time that something is found;
    /// [`Reply::Probe`](super::Reply::Probe) at the end. It ends if the caller hangs up.
    NetProbe {
        /// The host's name.
        to: String,
    },
    /// Tell what was measured last of each host. An agent of before does not know this request. →
    /// [`Reply::Probes`](super::Reply::Probes)
    NetProbes,
    /// Find all that stands against moving a VM, and how long the move would take. →
    /// [`Reply::Check`](super::Reply::Check)
    Check {
        /// The VM.
        vm: String,
        /// The target host.
        to: String,
        /// The options of the migration.
        options: MigrateOptions,
    },
    /// Move a VM. → [`Reply::Check`](super::Reply::Check), which is the last reply if a problem blocks the migration,
    /// and may be left out if there is nothing to say; [`Reply::Progress`](super::Reply::Progress) each time that
    /// something changes and every [`PROGRESS_PERIOD`](crate::PROGRESS_PERIOD);
    /// [`Reply::Migration`](super::Reply::Migration) at the end, or at once with `detach`.
    Migrate {
        /// The VM.
        vm: String,
        /// The target host.
        to: String,
        /// The options of the migration.
        options: MigrateOptions,
        /// Whether to answer as soon as the migration is begun or queued.
        detach: bool,
    },
    /// Move a VM, and hold it: copy it until it would switch within its downtime limit, and keep the target fresh until
    /// somebody says that it may switch. An agent that does not hold does not know this request. → as `Migrate`
    MigrateHeld {
        /// The VM.
        vm: String,
        /// The target host.
        to: String,
        /// The options of the migration.
        options: MigrateOptions,
        /// How the guest is held.
        hold: HoldOptions,
        /// Whether to answer as soon as the migration is begun or queued.
        detach: bool,
    },
    /// List the migrations under way on this host, and the last ones. → [`Reply::Migrations`](super::Reply::Migrations)
    MigrationList,
    /// Show a migration with its events. → [`Reply::Migration`](super::Reply::Migration)
    MigrationShow {
        /// The beginning of the migration's id, or the name of a VM for its last migration.
        id: String,
    },
    /// Show how busy this host is now, and the migrations under way. Whoever asks again within some seconds is told
    /// means over the last [`SAMPLE_PERIOD_MS`](super::SAMPLE_PERIOD_MS). →
    /// [`Reply::HostSample`](super::Reply::HostSample)
    HostSample,
    /// Show a migration with its events and what was seen of it as it ran. →
    /// [`Reply::MigrationRecord`](super::Reply::MigrationRecord)
    MigrationRecord {
        /// The migration, as in `MigrationShow`.
        id: String,
    },
    /// Follow a migration until it is over. → as `Migrate`
    MigrationWatch {
        /// The migration, as in `MigrationShow`.
        id: String,
    },
    /// Call a migration off. → [`Reply::Migration`](super::Reply::Migration)
    MigrationCancel {
        /// The migration, as in `MigrationShow`.
        id: String,
    },
    /// Call off what was asked for under a request id: nothing is begun under that id any more. →
    /// [`Reply::Migration`](super::Reply::Migration), the last that was begun under that id; or
    /// [`Reply::Done`](super::Reply::Done): none was, and none will be. An error says nothing: it is to be asked again.
    MigrationWithdraw {
        /// The request id.
        id: String,
    },
    /// Limit how fast a migration sends from now on. → [`Reply::Migration`](super::Reply::Migration)
    MigrationLimit {
        /// The migration, as in `MigrationShow`.
        id: String,
        /// The bits that it may send a second, 8 Mbit/s or more; `None`: it has no limit of its own any more.
        #[serde(default)]
        rate_bits_per_s: Option<u64>,
    },
    /// Begin a migration's copy again with other options: its guest is held then, or may be throttled. What was begun
    /// is called off, and another attempt follows. → [`Reply::Migration`](super::Reply::Migration)
    MigrationRestart {
        /// The migration, as in `MigrationShow`.
        id: String,
        /// How the guest is held. `None`: as before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldOptions>,
        /// The per cent by which the guest may be throttled. `None`: as before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allow_throttle: Option<u8>,
    },
    /// Limit how fast all migrations from this host together send, for a time. The limit of the host's settings holds
    /// beside it. → [`Reply::Done`](super::Reply::Done)
    HostLimit {
        /// The bits a second, 8 Mbit/s or more; `None`: there is no such limit any more.
        #[serde(default)]
        rate_bits_per_s: Option<u64>,
        /// The seconds after which the limit is forgotten.
        for_s: u64,
    },
    /// Take no guest from now on for a time, since the host is about to be switched off: no start, and no migration.
    /// Refused if there is a guest, or one is on its way. → [`Reply::Done`](super::Reply::Done)
    HostClose {
        /// The seconds after which the host takes guests again; 0: at once.
        for_s: u64,
        /// Whether to shut the host down then, by the command that its administrator gave the agent.
        #[serde(default)]
        power_off: bool,
        /// Whether a person says that the host is not booted any more by what an update had ordered. The order is then
        /// over, unless the host may be going down; with 0 seconds only.
        #[serde(default)]
        stays_on: bool,
    },
    /// Bring the host up to date for a controller, once for each id; or only tell how far that is. An order is refused
    /// if there is a guest, or one is on its way; once it is taken, the host takes no guest. →
    /// [`Reply::HostUpdate`](super::Reply::HostUpdate)
    HostUpdate {
        /// The id of the order: what comes again under the same id is done no second time.
        id: String,
        /// What is done.
        how: UpdateHow,
        /// Whether it is to be done. `false`: only say what is known of it.
        order: bool,
        /// The seconds for which the host takes no guests then, unless it is booted, or told otherwise.
        for_s: u64,
    },
    /// Have a guest switch that is held, or is to be. Saying so twice does no harm. →
    /// [`Reply::Migration`](super::Reply::Migration)
    MigrationSwitch {
        /// The migration, as in `MigrationShow`.
        id: String,
        /// The seconds until the guest has to be stopped. After that the migration is called off. `None`: the deadline
        /// of the copy, once more.
        deadline_s: Option<u64>,
    },
    /// Run a guest that is in doubt here, because the other host is off. →
    /// [`Reply::Migration`](super::Reply::Migration)
    MigrationResolve {
        /// The migration, as in `MigrationShow`.
        id: String,
        /// Whether a person has made sure that the other host is off, and that it stays off until the migration is
        /// over.
        other_host_is_off: bool,
    },
    /// Tell the versions that the agent speaks. → [`Reply::Version`](super::Reply::Version)
    Version,
}

/// How a host is brought up to date. The commands are the host's own: its administrator gave them to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum UpdateHow {
    /// The host's agent runs its update command (`skein agent --update`), and then reboots the host (`--reboot`).
    #[default]
    UpdateReboot,
    /// The agent runs the update command, which must not reboot the host.
    Update,
    /// The agent reboots the host.
    Reboot,
    /// A person does all that, and boots the host.
    Manual,
}

impl UpdateHow {
    /// Returns whether the host is to be booted.
    pub fn boots(self) -> bool {
        self != UpdateHow::Update
    }
}

/// What a VM is started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VmOrigin {
    /// A definition.
    Definition {
        /// The file that holds the definition, for error messages.
        file: String,
        /// The definition, as TOML.
        text: String,
    },
    /// The name of a VM that this host knows and that is not running.
    Name(String),
}

/// How a VM is started: what a start is refused for unless it is wanted all the same, and what a controller found. An
/// agent that does not know a field ignores it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StartOptions {
    /// Start the VM though it needs more than the host has room for. The kernel may kill this guest for that, or
    /// another.
    pub overcommit: bool,
    /// Start the VM with the images that its definition or command line names, though its guest last had others open.
    pub as_defined: bool,
    /// Start the VM with new UEFI variables and a new TPM, though another host keeps those of a VM of that name.
    pub new_state: bool,
    /// Start the VM though no controller of the cluster answers whether the VM runs elsewhere. What a controller
    /// refuses stays refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_controller: bool,
    /// The CPU model in place of `baseline` in the VM's definition, which a controller found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
}

/// The options of a migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MigrateOptions {
    /// The priority; a greater priority goes first. `None`: the definition's.
    pub priority: Option<u8>,
    /// The milliseconds that the guest may be stopped; QEMU's `downtime-limit`.
    pub downtime_limit_ms: Option<u64>,
    /// The seconds until the guest has to be about to move. After that the migration is called off.
    pub deadline_s: Option<u64>,
    /// The multifd channels; 0: one stream.
    pub channels: Option<u8>,
    /// How the guest's memory travels. `None`: as its host has it.
    pub transport: Option<Transport>,
    /// The per cent by which the guest may be slowed down if it writes faster than it is moved. `None`: not at all.
    pub allow_throttle: Option<u8>,
    /// The memory that the source may use to know what the target holds, in per cent of the guest's RAM; 0: no deltas.
    /// `None`: the agent's choice.
    pub delta_memory: Option<f64>,
    /// The bits that the migration may send a second, 8 Mbit/s or more. `None`: it has no limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_s: Option<u64>,
    /// Keep the migration off RDMA, and meanwhile all else that this host sends to the other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_rdma: bool,
    /// How often a migration that was called off, but not by a person, is begun again, whether or not a command follows
    /// it.
    pub retries: u32,
    /// On a host of a cluster: begin even if no controller answers whether the guest may be moved. What a controller
    /// refuses is refused all the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_controller: bool,
}

/// How a guest's memory travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// All NICs, with compression as far as it pays.
    #[default]
    Auto,
    /// One connection on one NIC, uncompressed.
    Tcp,
    /// One NIC, compressed.
    Compression,
    /// All NICs, uncompressed.
    Multichannel,
}

impl Transport {
    /// Holds all transports.
    pub const ALL: [Transport; 4] = [Transport::Auto, Transport::Tcp, Transport::Compression, Transport::Multichannel];

    /// Returns the transport's name.
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

/// The error for a text that is no transport's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it may be {}", Transport::ALL.map(Transport::name).join(", "))]
pub struct NoTransport;

impl FromStr for Transport {
    type Err = NoTransport;

    fn from_str(text: &str) -> Result<Transport, NoTransport> {
        Transport::ALL.into_iter().find(|transport| transport.name() == text).ok_or(NoTransport)
    }
}
