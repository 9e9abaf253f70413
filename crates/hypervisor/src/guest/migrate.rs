//! Asks for a guest's migration, and steers it.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::GuestError;

/// A guest's migration, at its source or at its target.
///
/// A source is stopped before the switchover and waits for [`Migrate::continue_migration`]. Until then the guest can be
/// kept. A source whose migration fails runs the guest again by itself, unless the status was
/// [`MigrationStatus::Completed`]. A target never runs the guest by itself.
pub trait Migrate {
    /// Returns the state of the migration.
    fn migration(&self) -> Result<MigrationState, GuestError>;

    /// Returns whether the hypervisor still has something to do with a migration, in or out. The migration is under
    /// way, or is over by its [`MigrationStatus`] and not let go of. Another migration is refused until then.
    fn holds_migration(&self) -> Result<bool, GuestError> {
        Ok(false)
    }

    /// Begins to copy the guest into the unix socket `to`. If nobody listens there, [`MigrationStatus::Failed`] tells
    /// that, not this call.
    fn begin_outgoing(
        &self,
        settings: &MigrationSettings,
        throttling: Throttling,
        hold: Hold,
        to: &Path,
    ) -> Result<(), GuestError>;

    /// Listens for the guest at the unix socket `at`.
    fn begin_incoming(&self, settings: &MigrationSettings, at: &Path) -> Result<(), GuestError>;

    /// Goes on from [`MigrationStatus::PreSwitchover`] to the switchover. The call is refused in any other state, but
    /// in those that it leads to: a caller that had no answer may repeat it.
    fn continue_migration(&self) -> Result<(), GuestError>;

    /// Wakes a migration that is [`MigrationStatus::Cancelling`] and waits for [`Migrate::continue_migration`] all the
    /// same. The call is refused in any other state; repeated, it does no harm.
    fn continue_cancelling(&self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Ends a migration, on the source. Nothing happens if there is none or it is over.
    fn cancel_migration(&self) -> Result<(), GuestError>;

    /// Undoes what [`Self::begin_outgoing`], [`Self::set_switchover`], [`Self::limit_rate`] and
    /// [`Self::set_throttle`] set, for the next migration of this guest, whatever program begins it.
    fn forget_migration_settings(&self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Makes a migration under way switch over as soon as no more than `bytes` are left, within a downtime limit of
    /// `limit_ms`. `socket_mbit_per_s` is what its sockets took of late ([`CopyState::socket_mbit_per_s`]).
    fn set_switchover(&self, bytes: u64, limit_ms: u64, socket_mbit_per_s: f64) -> Result<(), GuestError> {
        let _ = (bytes, limit_ms, socket_mbit_per_s);
        Err(GuestError::Unsupported("be told when to switch over"))
    }

    /// Returns what a source that was begun with [`Hold::Held`] has to read from its target before it goes to the
    /// switchover. `None`: the source waits for nothing. It goes to the switchover as soon as no more is left than
    /// [`Self::set_switchover`] says, and as soon as nothing is left, whatever that says.
    fn switchover_word(&self) -> Option<&'static [u8]> {
        None
    }

    /// Has a migration under way send no more than so many bytes a second. `None`: as much as it can.
    fn limit_rate(&self, bytes_per_s: Option<u64>) -> Result<(), GuestError> {
        let _ = bytes_per_s;
        Err(GuestError::Unsupported("send slower"))
    }

    /// Throttles the guest by `percent` per cent, at the end of one of the next rounds. With [`Throttling::Allowed`]
    /// only.
    fn set_throttle(&self, percent: u8) -> Result<(), GuestError> {
        let _ = percent;
        Err(GuestError::Unsupported("throttle a guest"))
    }

    /// Measures for `time`, in whole seconds, what the guest writes, by samples: `pages_per_gib` pages of each GiB of
    /// RAM. The guest does not notice. [`Self::dirty_rate`] returns the result. The call is refused during a
    /// measurement.
    fn measure_dirty_rate(&self, time: Duration, pages_per_gib: u64) -> Result<(), GuestError> {
        let _ = (time, pages_per_gib);
        Err(GuestError::Unsupported("measure what a guest writes"))
    }

    /// Returns the bytes a second that the guest dirtied, once that has been measured. A page counts once however often
    /// it was written.
    fn dirty_rate(&self) -> Result<Option<u64>, GuestError> {
        Err(GuestError::Unsupported("measure what a guest writes"))
    }
}

/// The settings that the two ends of a migration have to agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationSettings {
    /// The channels beside the main channel; `None`: one stream.
    pub channels: Option<u8>,
    /// The milliseconds for which the guest may stand still.
    pub downtime_limit_ms: u64,
}

/// Whether a guest may be throttled while it is copied. That has to be known before the copy begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttling {
    /// [`Migrate::set_throttle`] may throttle the guest.
    Allowed,
    /// Nothing throttles the guest.
    Forbidden,
}

/// Whether a source goes to the switchover by itself. That has to be known before the copy begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The source goes to the switchover as soon as little enough is left.
    NotHeld,
    /// The source waits for [`Migrate::switchover_word`], if there is such a word.
    Held,
}

/// The state of a migration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MigrationState {
    /// The status.
    pub status: MigrationStatus,
    /// The per cent that the guest is throttled by; `None`: not at all.
    pub throttle_percent: Option<u8>,
    /// How far the copy is, once the copy has begun.
    pub copy: Option<CopyState>,
    /// The reason of a failure.
    pub error: Option<String>,
}

/// How far a copy is. Totals grow over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CopyState {
    /// The bytes of the guest's RAM.
    pub total_bytes: u64,
    /// The bytes that are left to send in this round.
    pub remaining_bytes: u64,
    /// The bytes that were sent so far.
    pub transferred_bytes: u64,
    /// The bytes of pages that were sent so far, as they are in the guest: zeros count like any other.
    pub sent_page_bytes: u64,
    /// The number of the pass over the RAM, from 1.
    pub round: u64,
    /// The bytes dirtied a second, in the last round.
    pub dirty_bytes_per_s: u64,
    /// The Mb/s that the hypervisor's sockets took of late.
    pub socket_mbit_per_s: f64,
}

/// The status of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationStatus {
    /// There was no migration.
    #[default]
    None,
    /// The hypervisor connects and allocates.
    Setup,
    /// The guest is copied while it runs.
    Active,
    /// The guest is stopped by `pause-before-switchover`.
    PreSwitchover,
    /// The guest is stopped and its devices move.
    Device,
    /// The hypervisor waits for the guest's failover NIC to be unplugged.
    WaitUnplug,
    /// The hypervisor has received `migrate_cancel`.
    Cancelling,
    /// The migration is cancelled.
    Cancelled,
    /// The guest is the target's.
    Completed,
    /// The migration failed: see [`MigrationInfo::error`](crate::MigrationInfo::error).
    Failed,
    /// The status is one of postcopy's, or one that this program does not know.
    #[serde(other)]
    Other,
}

impl MigrationStatus {
    /// Returns whether nothing more will happen.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}
