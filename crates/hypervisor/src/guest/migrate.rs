//! A guest's migration: how it stands, and what it is told.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::GuestError;

/// A guest's migration, at its source or at its target.
///
/// A source is stopped before the switchover and waits for [`Migrate::continue_migration`]: until then it can be kept.
/// It runs again by itself where its migration fails, unless that was [`MigrationStatus::Completed`]. A target never
/// runs the guest by itself.
pub trait Migrate {
    /// How the migration stands.
    fn migration(&self) -> Result<MigrationState, GuestError>;

    /// Whether the hypervisor has something to do with a migration still, in or out: one is under way, or is over by
    /// its [`MigrationStatus`] and not let go of. Another one is refused until then.
    fn holds_migration(&self) -> Result<bool, GuestError> {
        Ok(false)
    }

    /// Begins to copy the guest into the unix socket `to`. That nobody listens there is told by
    /// [`MigrationStatus::Failed`], not here.
    fn begin_outgoing(&self, settings: &MigrationSettings, throttling: Throttling, to: &Path)
    -> Result<(), GuestError>;

    /// Listens for the guest at the unix socket `at`.
    fn begin_incoming(&self, settings: &MigrationSettings, at: &Path) -> Result<(), GuestError>;

    /// From [`MigrationStatus::PreSwitchover`] on to the switchover; refused in any other state, but in those that this
    /// leads to: who had no answer may say it again.
    fn continue_migration(&self) -> Result<(), GuestError>;

    /// Wakes a migration that is [`MigrationStatus::Cancelling`] and waits for [`Migrate::continue_migration`] all the
    /// same. Refused in any other state; repeated, it does no harm.
    fn continue_cancelling(&self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Ends a migration, on the source; nothing happens if there is none or it is over.
    fn cancel_migration(&self) -> Result<(), GuestError>;

    /// Undoes what [`Self::begin_outgoing`], [`Self::set_switchover`] and [`Self::set_throttle`] set, for the next
    /// migration of this guest, whoever begins it.
    fn forget_migration_settings(&self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Has a migration that runs switch over as soon as no more than `bytes` are left, within a downtime limit of
    /// `limit_ms`. `socket_mbit_per_s`: what its sockets took of late ([`CopyState::socket_mbit_per_s`]).
    fn set_switchover(&self, bytes: u64, limit_ms: u64, socket_mbit_per_s: f64) -> Result<(), GuestError> {
        let _ = (bytes, limit_ms, socket_mbit_per_s);
        Err(GuestError::Unsupported("be told when to switch over"))
    }

    /// Throttles the guest to so many per cent, at the end of one of the next rounds. With [`Throttling::Allowed`]
    /// only.
    fn set_throttle(&self, percent: u8) -> Result<(), GuestError> {
        let _ = percent;
        Err(GuestError::Unsupported("throttle a guest"))
    }

    /// Measures for `time`, in whole seconds, what the guest writes, by samples: so many pages of each GiB of RAM. The
    /// guest does not notice. What comes of it tells [`Self::dirty_rate`]. Refused while it measures.
    fn measure_dirty_rate(&self, time: Duration, pages_per_gib: u64) -> Result<(), GuestError> {
        let _ = (time, pages_per_gib);
        Err(GuestError::Unsupported("measure what a guest writes"))
    }

    /// Bytes a second that the guest dirtied, once that has been measured. A page counts once however often it was
    /// written.
    fn dirty_rate(&self) -> Result<Option<u64>, GuestError> {
        Err(GuestError::Unsupported("measure what a guest writes"))
    }
}

/// What the two ends of a migration have to agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationSettings {
    /// Channels beside the main one; none: one stream.
    pub channels: Option<u8>,
    /// Milliseconds for which the guest may stand still.
    pub downtime_limit_ms: u64,
}

/// Whether a guest may be throttled while it is copied: that has to be known before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttling {
    /// By [`Migrate::set_throttle`].
    Allowed,
    /// By nothing.
    Forbidden,
}

/// How a migration stands.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MigrationState {
    /// Where it stands.
    pub status: MigrationStatus,
    /// Per cent that the guest is throttled by; none: not at all.
    pub throttle_percent: Option<u8>,
    /// How far the copy is, once it has begun.
    pub copy: Option<CopyState>,
    /// Why it failed.
    pub error: Option<String>,
}

/// How far a copy is. Totals grow over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CopyState {
    /// The guest's RAM.
    pub total_bytes: u64,
    /// Left to send in this round.
    pub remaining_bytes: u64,
    /// Sent so far.
    pub transferred_bytes: u64,
    /// Pages sent so far, as they are in the guest: zeros count as any other.
    pub sent_page_bytes: u64,
    /// Pass over the RAM, from 1.
    pub round: u64,
    /// Dirtied a second, in the last round.
    pub dirty_bytes_per_s: u64,
    /// Mb/s that the hypervisor's sockets took of late.
    pub socket_mbit_per_s: f64,
}

/// Where a migration stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationStatus {
    /// There was none.
    #[default]
    None,
    /// Connecting, allocating.
    Setup,
    /// Copying while the guest runs.
    Active,
    /// Stopped by `pause-before-switchover`.
    PreSwitchover,
    /// The guest is stopped and its devices move.
    Device,
    /// Waiting for the guest's failover NIC to be unplugged.
    WaitUnplug,
    /// `migrate_cancel` was heard.
    Cancelling,
    /// And done.
    Cancelled,
    /// The guest is the target's.
    Completed,
    /// See [`MigrationInfo::error`](crate::MigrationInfo::error).
    Failed,
    /// Any of postcopy's, or one that this program does not know.
    #[serde(other)]
    Other,
}

impl MigrationStatus {
    /// Whether nothing more will happen.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}
