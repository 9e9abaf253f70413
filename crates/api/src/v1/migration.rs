//! A migration as commands see it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::copy::{CopyProgress, PathView};
use super::event::LoggedEvent;
use super::phase::{FailureReason, MigrationPhase, Outcome, Role};

/// A migration's name, chosen at random by its source, never used again. 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub struct MigrationId(pub u64);

impl fmt::Display for MigrationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that is no migration's id.
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
pub struct Migration {
    /// Its name.
    pub id: MigrationId,
    /// The VM.
    pub vm: String,
    /// As what this host takes part.
    pub role: Role,
    /// Source host.
    pub source: String,
    /// Target host.
    pub target: String,
    /// Its phase; none once it is over.
    pub stage: Option<MigrationPhase>,
    /// How it ended, from the moment that this is certain.
    pub outcome: Option<Outcome>,
    /// Why it was called off.
    pub why: Option<FailureReason>,
    /// The same in words.
    pub detail: String,
    /// The guest is paused, and this end can do nothing about it.
    pub in_doubt: bool,
    /// When it was asked for: RFC 3339.
    pub begun: String,
    /// Milliseconds from then until its outcome, or now.
    pub elapsed_ms: u64,
    /// Milliseconds that the guest was stopped, as the source's QEMU and agent saw it.
    pub downtime_ms: Option<u64>,
    /// How far the copy is, while it is under way, or was at its end.
    pub copy: Option<CopyProgress>,
    /// Paths that carry it.
    pub paths: Vec<PathView>,
    /// Which attempt of what was asked for; none: that is not known here any more, or this host is the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// What happened, oldest first; with [`Request::MigrationShow`](super::Request::MigrationShow) only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<LoggedEvent>,
}

/// Which attempt a migration is: what was asked for is begun again, as another migration, as often as
/// [`MigrateOptions::retries`](super::MigrateOptions::retries) says, and once more where direct placement did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Attempt {
    /// From 1 on.
    pub number: u32,
    /// Attempts that are allowed.
    pub of: u32,
    /// The newest attempt after this one, if that was not begun; none: none was tried, or it is another migration. The
    /// reason is in the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_begun: Option<u32>,
    /// Milliseconds until the next one is checked and begun, 0 while it is; none: none is to come, or this one is under
    /// way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_in_ms: Option<u64>,
}
