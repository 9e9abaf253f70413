//! Shows a migration as it runs, several times a second.

use serde::{Deserialize, Serialize};

use super::migration::Migration;

/// The milliseconds from one sample of a migration to the next, while it is under way.
pub const SAMPLE_PERIOD_MS: u64 = 200;
/// Bounds the samples of a migration that a host keeps.
pub const SAMPLES_MAX: usize = 600;

/// A migration that is under way as one of its hosts sees it, with what that host is busy with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MigrationSample {
    /// The time by the host's clock, in milliseconds since 1970.
    pub at: u64,
    /// The migration, without its events.
    pub migration: Migration,
    /// How busy the host is.
    #[serde(flatten)]
    pub host: HostSample,
    /// How much is done and how long the rest takes, while the guest is copied; at the source only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<TimeLeft>,
}

/// A host as it is now: how busy it is, and the migrations under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledHost {
    /// The time by the host's clock, in milliseconds since 1970; 0: nothing was measured yet.
    pub at: u64,
    /// How busy the host is.
    #[serde(flatten)]
    pub host: HostSample,
    /// The migrations from and to the host.
    pub migrations: Vec<MigrationSample>,
}

/// A migration with what was seen of it at one of its hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MigrationRecord {
    /// The migration, with its events.
    pub migration: Migration,
    /// What was seen of it, oldest first: at most [`SAMPLES_MAX`], the same time apart, but after a doubt. The
    /// migration in each has only what changes: phase, copy, paths, times, outcome.
    pub samples: Vec<MigrationSample>,
}

/// How busy a host is: means over the time since the sample before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HostSample {
    /// The host's own NICs that have a link, each once, by name.
    pub nics: Vec<NicRates>,
    /// How busy each core is, in thousandths.
    pub cores_permille: Vec<u16>,
    /// The CPU time of the agent and the processes that work for it, in thousandths of a core.
    pub mover_millicores: u64,
}

/// How much passes a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct NicRates {
    /// The NIC's name.
    pub name: String,
    /// The link's speed; left out where the driver does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_bits_per_s: Option<u64>,
    /// The bits sent a second.
    pub send_bits_per_s: u64,
    /// The bits received a second.
    pub receive_bits_per_s: u64,
}

/// How much of a copy is done, and how long the rest takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimeLeft {
    /// The part of the whole time that is over, in thousandths.
    pub done_permille: u16,
    /// The milliseconds until the guest runs at the target, as is most likely.
    pub left_ms: u64,
    /// The milliseconds that it takes at least, in nine cases of ten together with the next.
    pub left_low_ms: u64,
    /// The milliseconds that it takes at most.
    pub left_high_ms: u64,
}
