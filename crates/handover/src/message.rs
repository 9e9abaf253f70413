//! The messages about migrations between agents.

use serde::{Deserialize, Serialize};

use crate::record::MigrationId;
use crate::words::{FailureReason, Intent, Report};

/// A message about a migration between two agents. `O` is the offer: what the target's QEMU is started from. Only the
/// edges know its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message<O> {
    /// From the source.
    Intent {
        /// The migration's id.
        id: MigrationId,
        /// What the source wants.
        intent: Intent,
        /// The VM.
        vm: String,
        /// Priority: greater goes first.
        priority: u8,
        /// What the target's QEMU is started from. Only with [`Intent::Prepare`].
        offer: Option<O>,
        /// Why the migration is called off, in words. Only with [`Intent::Abort`].
        #[serde(default)]
        detail: String,
    },
    /// From the target.
    Report {
        /// The migration's id.
        id: MigrationId,
        /// Where the target stands.
        report: Report,
        /// Why the migration was called off. `None`: it was not.
        why: Option<FailureReason>,
        /// The same reason in words.
        detail: String,
        /// What the target's QEMU said as it ended, for when nobody knows a better reason.
        #[serde(rename = "said")]
        last_words: String,
    },
}

impl<O> Message<O> {
    /// Returns the id of the migration that the message is about.
    pub fn id(&self) -> MigrationId {
        match self {
            Message::Intent { id, .. } | Message::Report { id, .. } => *id,
        }
    }

    /// Returns the same message with a converted offer.
    ///
    /// # Errors
    ///
    /// The error of `map`.
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
