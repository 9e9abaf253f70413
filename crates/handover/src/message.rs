//! What agents tell each other of their migrations.

use serde::{Deserialize, Serialize};

use crate::record::MigrationId;
use crate::words::{FailureReason, Intent, Report};

/// What agents tell each other of a migration. `O` is the edges' matter: what the target's QEMU is started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message<O> {
    /// From the source.
    Intent {
        /// Of which migration.
        id: MigrationId,
        /// What is wanted.
        intent: Intent,
        /// The VM.
        vm: String,
        /// Greater goes first.
        priority: u8,
        /// What the target's QEMU is started from, with [`Intent::Prepare`].
        offer: Option<O>,
        /// Why it is called off, with [`Intent::Abort`], in words.
        #[serde(default)]
        detail: String,
    },
    /// From the target.
    Report {
        /// Of which migration.
        id: MigrationId,
        /// Where it stands.
        report: Report,
        /// Why it was called off, if it was.
        why: Option<FailureReason>,
        /// The same in words.
        detail: String,
        /// What its QEMU said as it ended, where nobody knows more.
        #[serde(rename = "said")]
        last_words: String,
    },
}

impl<O> Message<O> {
    /// Returns the migration that it is about.
    pub fn id(&self) -> MigrationId {
        match self {
            Message::Intent { id, .. } | Message::Report { id, .. } => *id,
        }
    }

    /// Returns the same with another form of the offer.
    ///
    /// # Errors
    ///
    /// Those of `map`.
    pub fn try_map_offer<P, E>(self, map: impl FnOnce(O) -> Result<P, E>) -> Result<Message<P>, E> {
        Ok(match self {
            Message::Intent { id, intent, vm, priority, offer, detail } => {
                Message::Intent { id, intent, vm, priority, offer: offer.map(map).transpose()?, detail }
            }
            Message::Report { id, report, why, detail, last_words } => {
                Message::Report { id, report, why, detail, last_words }
            }
        })
    }
}
