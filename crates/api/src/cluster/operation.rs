//! Shows what a controller does over a while.

use serde::{Deserialize, Serialize};

use super::{Fencing, HostsUpdate, PowerChange, UnixMs};
use crate::v1::{CopyProgress, HoldOptions, HoldRequest, MigrationId, UpdateHow};

impl Operation {
    /// The id of all operations that are only shown.
    pub const NOT_BEGUN: &str = "not-begun";

    /// Returns whether the operation is only shown.
    pub fn is_only_shown(&self) -> bool {
        self.id == Operation::NOT_BEGUN
    }
}

/// What a controller does over a while. The operation goes on when another controller takes the lead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Operation {
    /// The operation's id, which the controller made. `not-begun`: the operation is only shown, and was not begun.
    pub id: String,
    /// What is done.
    pub kind: OperationKind,
    /// How far it is.
    pub state: OperationState,
    /// Who asked for it.
    pub by: String,
    /// When it was asked for.
    pub created: UnixMs,
    /// When it was over.
    pub ended: Option<UnixMs>,
    /// Whether somebody called it off.
    pub cancelled: bool,
    /// What remains to be said, as why it failed. May be empty.
    pub message: String,
    /// The moves that are part of it, in the order in which they were planned.
    pub moves: Vec<Move>,
    /// How far a fencing is; of other operations `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing: Option<Fencing>,
    /// How far a host is on its way to sleep, or awake; of other operations `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerChange>,
    /// How far an update of hosts is; of other operations `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<HostsUpdate>,
    /// How much of it is done.
    pub progress: Progress,
    /// Changes with each change of what is stored of the operation: the operation's ETag.
    pub version: u64,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum OperationKind {
    /// Moves a VM.
    Migrate {
        /// The VM.
        vm: String,
        /// The target that was asked for. `None`: the controller picks the target.
        to: Option<String>,
        /// The bits that it may send a second. `None`: it has no limit of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_bits_per_s: Option<u64>,
        /// How it is held. `None`: it is not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldOptions>,
    },
    /// Empties a host.
    Drain {
        /// The host.
        host: String,
        /// When the host has to be empty; guests that are not away by then stay.
        deadline: Option<UnixMs>,
        /// Whether the host is about to fail: what is most important goes first.
        evacuate: bool,
        /// The drain before, if the host's guests of before that drain were not brought home since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follows: Option<String>,
    },
    /// Moves guests where less is broken, or where load is better spread.
    Optimize {
        /// Whether nobody asked for it.
        automatic: bool,
        /// How much is done, from 1 to 5.
        aggressiveness: u8,
    },
    /// Starts the guests elsewhere that ended with a host.
    Failover {
        /// The host, which is proven to be off.
        host: String,
    },
    /// Starts a VM that runs nowhere.
    Start {
        /// The VM.
        vm: String,
        /// The host that was asked for. `None`: the controller picks the host.
        on: Option<String>,
        /// The definition to start the VM from, as TOML, if that is a new one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        definition: Option<String>,
    },
    /// Stops a VM: presses its power button, waits, and pulls the plug if `force` says so.
    Stop {
        /// The VM.
        vm: String,
        /// The seconds until the VM has to be off.
        timeout_s: u64,
        /// Whether to kill the VM's QEMU after that, instead of giving up.
        force: bool,
    },
    /// Has a VM's host and the cluster forget a VM that is off. Its disks stay.
    Delete {
        /// The VM.
        vm: String,
    },
    /// Starts VMs again whose guests ended when their host was booted.
    Autostart {
        /// The host.
        host: String,
        /// The VMs.
        vms: Vec<String>,
    },
    /// Switches a lost host off by its fencing device, which proves that it is off.
    Fence {
        /// The host.
        host: String,
        /// Whether nobody asked for it.
        automatic: bool,
    },
    /// Empties a host that is not needed, and shuts it down in order.
    Sleep {
        /// The host.
        host: String,
        /// Whether nobody asked for it.
        automatic: bool,
    },
    /// Switches a host on, and waits until its agent reports.
    Wake {
        /// The host.
        host: String,
        /// Whether nobody asked for it.
        automatic: bool,
    },
    /// Updates hosts, one after the other.
    Update {
        /// How each host is brought up to date.
        how: UpdateHow,
        /// Whether guests come home to a host that is updated.
        bring_home: bool,
        /// The seconds within which each host has to be updated and back.
        wait_s: u64,
        /// Whether hosts that cannot be emptied are left out.
        skip_blocked: bool,
    },
    /// Brings the guests of a drain home, and those of the drains that it follows.
    Resume {
        /// The host.
        host: String,
        /// The drain whose guests come home.
        drain: String,
    },
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OperationState {
    /// Its moves are being decided.
    Planning,
    /// It is being carried out.
    Running,
    /// It was called off, and what cannot be stopped any more comes to its end.
    Cancelling,
    /// It is over, and all of it was done.
    Done,
    /// It is over, and a part of it was not done.
    Failed,
    /// It is over, because somebody called it off.
    Cancelled,
}

impl OperationState {
    /// Returns whether nothing more happens.
    pub fn is_over(self) -> bool {
        matches!(self, OperationState::Done | OperationState::Failed | OperationState::Cancelled)
    }
}

/// The move of a VM from one host to another, or its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Move {
    /// The VM.
    pub vm: String,
    /// The host where the VM is at the beginning. Empty: no host has it.
    pub from: String,
    /// The host where the VM goes. `None`: there is none, and `reason` says why.
    pub to: Option<String>,
    /// Why the VM goes there, or why it cannot be moved.
    pub reason: String,
    /// How far the move is.
    pub state: MoveState,
    /// The moves that have to be over before, as indices in the operation's list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<u32>,
    /// VMs that were to leave the target when this was planned, and have to have left it before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// How often the move was begun.
    #[serde(default)]
    pub attempts: u32,
    /// The newest attempt's migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub migration: Option<MigrationId>,
    /// How far the guest's copy is, while it is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyProgress>,
    /// Until when the next attempt waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixMs>,
    /// What went wrong in the newest attempt. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// When the first attempt was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<UnixMs>,
    /// When the move was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<UnixMs>,
    /// The milliseconds that the guest was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime_ms: Option<u64>,
    /// How long the move was forecast to take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast_ms: Option<u64>,
    /// How far the move is of a VM that is off. `None`: the guest runs, or is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<OffStage>,
}

impl Move {
    /// Makes a move that waits; without a target, the record of a VM that cannot be moved.
    pub fn new(vm: &str, from: &str, to: Option<&str>, reason: &str) -> Move {
        Move {
            vm: vm.to_owned(),
            from: from.to_owned(),
            to: to.map(str::to_owned),
            reason: reason.to_owned(),
            state: if to.is_some() { MoveState::Waiting } else { MoveState::Left },
            waits: Vec::new(),
            after: Vec::new(),
            attempts: 0,
            migration: None,
            copy: None,
            not_before: None,
            detail: String::new(),
            begun: None,
            ended: None,
            downtime_ms: None,
            forecast_ms: None,
            off: None,
        }
    }

    /// Makes the move of a VM that is off.
    pub fn of_off(vm: &str, from: &str, to: Option<&str>, reason: &str) -> Move {
        Move { off: Some(OffStage::Reserve), ..Move::new(vm, from, to, reason) }
    }
}

/// How far the move is of a VM that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OffStage {
    /// The target is to keep the VM, without starting it. The VM is the source's.
    Reserve,
    /// The source is to forget the VM.
    Leave,
    /// The VM is the target's, which is to hear so.
    Keep,
}

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MoveState {
    /// The move waits for other moves, or for a free slot of a host.
    Waiting,
    /// The source's agent is asked for a migration, or the target's for a start.
    Begun,
    /// The VM is where it was to go.
    Done,
    /// The VM was not moved.
    Failed,
    /// The VM cannot be moved, or was not to be any more.
    Left,
}

impl MoveState {
    /// Returns whether nothing more happens.
    pub fn is_over(self) -> bool {
        matches!(self, MoveState::Done | MoveState::Failed | MoveState::Left)
    }
}

/// How much of an operation is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Progress {
    /// The moves that are part of it, without those that cannot be made.
    pub moves: u32,
    /// The moves that are done.
    pub moves_done: u32,
    /// The moves that are under way.
    pub moves_running: u32,
    /// The milliseconds until its end, as far as can be told.
    pub left_ms: Option<u64>,
    /// How long it was forecast to take when it was planned, in milliseconds.
    pub forecast_ms: Option<u64>,
}

/// Asks for a VM's migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct MigrateRequest {
    /// The target. `None`: the controller picks the target.
    pub to: Option<String>,
    /// Whether to say only what would be done.
    pub dry_run: bool,
    /// The bits that it may send a second, 8 Mbit/s or more. `None`: it has no limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 8000000, maximum = 100000000000000u64))]
    pub rate_bits_per_s: Option<u64>,
    /// How the guest is held once it is copied. `None`: it switches as soon as it may.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "HoldRequest::read")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<HoldRequest>))]
    pub hold: Option<HoldOptions>,
}

/// Asks for a guest to switch that is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SwitchRequest {
    /// The seconds until the guest has to be stopped. After that the migration is called off. `None`: the deadline of
    /// the copy, once more.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2592000))]
    pub deadline_s: Option<u64>,
}

/// Asks for a limit of how fast a migration sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LimitRequest {
    /// The bits a second, 8 Mbit/s or more. `None`: it has no limit of its own any more.
    #[cfg_attr(feature = "openapi", schema(minimum = 8000000, maximum = 100000000000000u64))]
    pub rate_bits_per_s: Option<u64>,
}

/// Asks for a migration to begin again so that its guest may be throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ThrottleRequest {
    /// The per cent by which the guest's CPUs may be throttled at most.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 99))]
    pub percent: u8,
}

/// Asks for a host to be emptied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DrainRequest {
    /// The seconds until the host has to be empty. Guests that are not away by then stay.
    #[cfg_attr(feature = "openapi", schema(maximum = 315360000))]
    pub deadline_s: Option<u64>,
    /// Whether the host is about to fail: what is most important goes first.
    pub evacuate: bool,
    /// Whether to say only what would be done.
    pub dry_run: bool,
}

/// Asks for a lost host to be switched off, or says that it is off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FenceRequest {
    /// `false`: the host's fencing device switches it off. `true`: a person has made sure that the host is off, and
    /// that it stays off until it is to run again. Its guests are then started elsewhere: were one of them still
    /// running, it would run twice.
    pub is_off: bool,
}

/// Asks for a host to take guests again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ResumeRequest {
    /// Whether the guests come home that the last drain moved away.
    pub bring_home: bool,
}
