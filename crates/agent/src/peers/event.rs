//! Is what the agents of other hosts do.

use std::sync::Arc;

use skein_handover::{Message, MigrationId};

use crate::migrations::Offer;

/// An event of a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerEvent {
    /// A host can be reached, or not any more. Each new control stream is told; a listener that is slow is told only
    /// the latest.
    Contact(String, bool),
    /// A host sends a message about a migration.
    Message(String, Message<Arc<Offer>>),
    /// A host wants a migration, and its offer cannot be read.
    UnreadableOffer {
        /// The name of the source's host.
        host: String,
        /// The migration.
        id: MigrationId,
        /// The VM.
        vm: String,
        /// The reason in words.
        reason: String,
    },
    /// A host has a fact for the log of a migration, printable.
    Note(String, MigrationId, String),
    /// A host's agent and this agent cannot read each other's messages; with the reason in words.
    NotUnderstood(String, String),
}
