//! What the agents of other hosts do.

use std::sync::Arc;

use skein_handover::{Message, MigrationId};

use crate::migrations::Offer;

/// What peers do.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerEvent {
    /// A host can be reached, or not any more. Each new control stream is told; a listener that is slow is told only
    /// the latest.
    Contact(String, bool),
    /// A host says something.
    Message(String, Message<Arc<Offer>>),
    /// A host wants a migration whose offer cannot be read.
    UnreadableOffer {
        /// The source's host.
        host: String,
        /// The migration.
        id: MigrationId,
        /// The VM.
        vm: String,
        /// Why not, in words.
        reason: String,
    },
    /// A host has something for the log of a migration, printable.
    Note(String, MigrationId, String),
    /// A host's agent and this one cannot read each other's messages; in words.
    NotUnderstood(String, String),
}
