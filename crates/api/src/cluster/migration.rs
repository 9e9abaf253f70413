//! Shows migrations, those that are over among them.

use serde::{Deserialize, Serialize};

use crate::v1::{
    CopyProgress, FailureReason, HoldView, Migration, MigrationId, MigrationPhase, MigrationRecord, Outcome, RateLimit,
};

/// A migration that is under way, or ended of late, as one of its hosts tells: the source's word goes first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MigrationView {
    /// The migration's id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: MigrationId,
    /// The VM.
    pub vm: String,
    /// The source host.
    pub source: String,
    /// The target host.
    pub target: String,
    /// When it was begun: RFC 3339, by the host's clock.
    pub begun: String,
    /// The milliseconds from then until its outcome, or until the host last told of it.
    pub elapsed_ms: u64,
    /// The phase. `None`: it is over.
    pub stage: Option<MigrationPhase>,
    /// Whether the guest is in doubt at either end: paused, as it is not known which of them runs it.
    #[serde(default)]
    pub in_doubt: bool,
    /// The outcome. `None`: it is under way.
    pub outcome: Option<Outcome>,
    /// Why it was called off.
    pub why: Option<FailureReason>,
    /// The same in words. May be empty.
    pub detail: String,
    /// The milliseconds that the guest was stopped.
    pub downtime_ms: Option<u64>,
    /// The operation that moves the VM. `None`: somebody began the migration on a host, or it is over.
    pub operation: Option<String>,
    /// How far the copy is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyProgress>,
    /// How it is held, if it is held or is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldView>,
    /// What limits how fast it sends. `None`: nothing but the links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
}

impl MigrationView {
    /// Shows a migration that an operation has begun, or none.
    pub fn new(migration: &Migration, operation: Option<String>) -> MigrationView {
        let Migration { id, vm, source, target, begun, elapsed_ms, stage, outcome, why, detail, .. } =
            migration.clone();
        MigrationView {
            id,
            vm,
            source,
            target,
            begun,
            elapsed_ms,
            stage,
            outcome,
            why,
            detail,
            in_doubt: migration.in_doubt,
            downtime_ms: migration.downtime_ms,
            operation,
            copy: migration.copy.clone(),
            hold: migration.hold.clone(),
            rate_limit: migration.rate_limit,
        }
    }
}

/// What both hosts of a migration know of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MigrationEnds {
    /// What the source knows. `None`: the source did not tell.
    pub source: Option<MigrationRecord>,
    /// What the target knows. `None`: the target did not tell.
    pub target: Option<MigrationRecord>,
    /// Why one of them did not tell. Empty: both have told.
    pub note: String,
}
