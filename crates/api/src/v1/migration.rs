//! Shows a migration as commands see it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::copy::{CopyProgress, PathView};
use super::event::LoggedEvent;
use super::hold::HoldView;
use super::phase::{FailureReason, MigrationPhase, Outcome, Role};

/// The id of a migration, chosen at random by its source and never used again. The id has 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub struct MigrationId(pub u64);

impl fmt::Display for MigrationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The error for a text that is no migration's id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a migration's id (16 hexadecimal digits)")]
pub struct NoMigrationId(String);

impl FromStr for MigrationId {
    type Err = NoMigrationId;

    fn from_str(text: &str) -> Result<MigrationId, NoMigrationId> {
        let is_plain = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = is_plain.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(MigrationId).ok_or_else(|| NoMigrationId(text.to_owned()))
    }
}

impl From<MigrationId> for String {
    fn from(id: MigrationId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for MigrationId {
    type Error = NoMigrationId;

    fn try_from(text: String) -> Result<MigrationId, NoMigrationId> {
        text.parse()
    }
}

/// A migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Migration {
    /// The migration's id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: MigrationId,
    /// The VM.
    pub vm: String,
    /// The end of the migration that this host is.
    pub role: Role,
    /// The source host.
    pub source: String,
    /// The target host.
    pub target: String,
    /// The phase; `None` once the migration is over.
    pub stage: Option<MigrationPhase>,
    /// The outcome, from the moment that it is certain.
    pub outcome: Option<Outcome>,
    /// The reason why the migration was called off.
    pub why: Option<FailureReason>,
    /// The same reason in words.
    pub detail: String,
    /// Whether the guest is in doubt: paused, and this end can do nothing about it.
    pub in_doubt: bool,
    /// When the migration was asked for: RFC 3339.
    pub begun: String,
    /// The milliseconds from then until the outcome, or until now.
    pub elapsed_ms: u64,
    /// The milliseconds that the guest was stopped, as the source's QEMU and agent saw it.
    pub downtime_ms: Option<u64>,
    /// How far the copy is, or was at its end.
    pub copy: Option<CopyProgress>,
    /// The paths that carry the migration.
    pub paths: Vec<PathView>,
    /// What limits how fast the migration sends; `None`: nothing but the links, or this host is the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Which attempt of the request this is; `None`: the request is not known here any more, or this host is the
    /// target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// How the migration is held, if it is held or is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldView>,
    /// What happened, oldest first; with [`Request::MigrationShow`](super::Request::MigrationShow) only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<LoggedEvent>,
}

impl Migration {
    /// Makes a migration that has no phase yet, as the host with this role sees the migration.
    pub fn new(id: MigrationId, vm: &str, role: Role, source: &str, target: &str) -> Migration {
        Migration {
            id,
            vm: vm.to_owned(),
            role,
            source: source.to_owned(),
            target: target.to_owned(),
            stage: None,
            outcome: None,
            why: None,
            detail: String::new(),
            in_doubt: false,
            begun: String::new(),
            elapsed_ms: 0,
            downtime_ms: None,
            copy: None,
            paths: Vec::new(),
            rate_limit: None,
            attempt: None,
            hold: None,
            events: Vec::new(),
        }
    }
}

/// What limits how fast a migration sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RateLimit {
    /// The bits a second. A limit of the host or the cluster is for all its migrations together.
    pub bits_per_s: u64,
    /// Whose limit it is.
    pub by: RateLimitedBy,
}

/// Whose limit holds a migration back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RateLimitedBy {
    /// The migration's own.
    Migration,
    /// The limit of all migrations from the host, by the host's settings.
    Host,
    /// The host's part of the cluster's limit.
    Cluster,
}

impl fmt::Display for RateLimit {
    /// Writes `1 Gbit/s, by its host's limit`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.by {
            RateLimitedBy::Migration => "its own",
            RateLimitedBy::Host => "its host's",
            RateLimitedBy::Cluster => "the cluster's",
        };
        match skein_units::Rate::of_bits_per_s(self.bits_per_s) {
            Some(rate) => write!(f, "{rate}, by {whose} limit"),
            None => write!(f, "{} bit/s, by {whose} limit", self.bits_per_s),
        }
    }
}

/// The place of a migration among the attempts of a request. A request is begun again, as another migration, as often
/// as [`MigrateOptions::retries`](super::MigrateOptions::retries) says, and once more if direct placement failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    /// The number, from 1 on.
    pub number: u32,
    /// How many attempts are allowed.
    pub of: u32,
    /// The newest attempt after this, if that attempt was not begun; `None`: none was tried, or the newest is another
    /// migration. The reason is in the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_begun: Option<u32>,
    /// The milliseconds until the next attempt is checked and begun, 0 while it is; `None`: no attempt is to come, or
    /// this attempt is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_in_ms: Option<u64>,
}
