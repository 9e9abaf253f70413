//! The state of both ends and of what is between them.

use skein_handover::{
    SourceGuest, SourceHandover, SourceInput, SourceOrder, SourceRecord, TargetHandover, TargetOrder, TargetRecord,
};

use super::faults::{Budget, Error};

/// The state of an agent, as far as this migration goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Agent<M> {
    /// The agent does not run.
    Down,
    /// The agent runs and does not know the migration.
    Idle,
    Busy(M),
}

impl<M> Agent<M> {
    pub(super) fn machine(&self) -> Option<&M> {
        match self {
            Agent::Busy(machine) => Some(machine),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SourceQemu {
    Running,
    Migrating,
    PreSwitchover,
    Device,
    Completed,
    /// A migration failed or was cancelled, and the guest runs again.
    Resumed,
    /// A migration was cancelled, and the guest stays stopped.
    Stopped,
    /// A person stopped the guest, or it stopped by itself, while it was copied and while it was not.
    HaltedMigrating,
    Halted,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TargetQemu {
    Absent,
    Waiting,
    Loaded,
    Running,
    Failed,
    Gone,
}

/// The rails by which NICs of the source's host write the guest's RAM at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rails {
    /// There are none, or they are closed.
    Closed,
    /// The target's agent has them, and receives pages.
    Open,
    /// The agent is gone, and with it what receives pages. Processes of rails may live on for a while.
    Left,
    /// These are gone, too.
    Ended,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) budget: Budget,
    pub(super) error: Option<Error>,

    pub(super) source: Agent<SourceHandover>,
    pub(super) source_on: bool,
    pub(super) source_disk: Option<SourceRecord>,
    /// The record on its way to the source's disk.
    pub(super) source_writes: Option<SourceRecord>,
    /// The order on its way to the source's QEMU.
    pub(super) source_orders: Option<SourceOrder>,
    pub(super) source_qemu: SourceQemu,

    pub(super) target: Agent<TargetHandover>,
    pub(super) target_on: bool,
    pub(super) target_disk: Option<TargetRecord>,
    pub(super) target_writes: Option<TargetRecord>,
    pub(super) target_orders: Option<TargetOrder>,
    pub(super) target_qemu: TargetQemu,
    /// Whether the target's agent knows that its QEMU never ran the guest, if the QEMU ends now or when it ended.
    pub(super) watched: bool,
    /// Whether the target has forgotten a migration whose guest runs there.
    pub(super) moved_in: bool,
    /// Whether the target has settled and forgotten the migration: a message that comes now comes late.
    pub(super) came_late: bool,
    /// Whether another migration of the guest was begun, as this migration was over. The source's QEMU belongs to the
    /// other migration then.
    pub(super) followed: bool,

    /// The intents and reports that were ever sent: bit `n` for number `n`.
    pub(super) intents: u8,
    pub(super) reports: u16,

    /// Whether the last byte is on its way to the target, or there.
    pub(super) all_sent: bool,
    /// Whether the source's end of the migration stream is closed.
    pub(super) stream_broken: bool,
    pub(super) rails: Rails,
    /// Whether a NIC wrote into the guest's RAM when that was whole.
    pub(super) written_late: bool,
    /// Whether the source ran after `all_sent`: what the target has is stale then.
    pub(super) image_stale: bool,
    pub(super) target_ran: bool,
    pub(super) rolled_back: bool,
    /// Whether a person vouched for the other host, to the source and to the target.
    pub(super) proved: [bool; 2],
    pub(super) said_moved: bool,
    pub(super) said_kept: bool,
    pub(super) broke_word: bool,
    pub(super) changed_its_mind: bool,
    /// Whether somebody said that the guest, which is held, may switch.
    pub(super) switched: bool,
    /// Whether a QEMU that held the guest was killed.
    pub(super) killed: bool,
    /// Whether something went wrong, or was called off.
    pub(super) disturbed: bool,
}

impl World {
    pub fn new(budget: Budget, error: Option<Error>) -> World {
        let mut source = if budget.hold { SourceHandover::held() } else { SourceHandover::new() };
        source.handle(SourceInput::Guest(SourceGuest::Running));
        World {
            budget,
            error,
            source: Agent::Busy(source),
            source_on: true,
            source_disk: None,
            source_writes: None,
            source_orders: None,
            source_qemu: SourceQemu::Running,
            target: Agent::Idle,
            target_on: true,
            target_disk: None,
            target_writes: None,
            target_orders: None,
            target_qemu: TargetQemu::Absent,
            watched: true,
            moved_in: false,
            came_late: false,
            followed: false,
            intents: 0,
            reports: 0,
            all_sent: false,
            stream_broken: false,
            rails: Rails::Closed,
            written_late: false,
            image_stale: false,
            target_ran: false,
            rolled_back: false,
            proved: [false, false],
            said_moved: false,
            said_kept: false,
            broke_word: false,
            changed_its_mind: false,
            switched: false,
            killed: false,
            disturbed: false,
        }
    }
}
