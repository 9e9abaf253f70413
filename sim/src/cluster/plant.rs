//! Bugs that can be planted at the edges.

use crate::world::Sabotage;

/// A bug that is planted at the edges, to show that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Acknowledgements stop to count ([`Sabotage::LostAcks`]).
    LostAck,
    /// Bytes of another place win ([`Sabotage::StaleRange`]).
    StaleRange,
    /// An agent in doubt resumes the guest at the source.
    DoubleResume,
    /// A disk forgets what it acknowledged last.
    ForgottenJournal,
    /// A sent frame is kept for ever ([`Sabotage::LeakedFrame`]).
    LeakedBuffer,
    /// Credit is given once and never again ([`Sabotage::LostCredits`]).
    CreditDeadlock,
}

impl Plant {
    /// Returns what the bug is to sessions, if it is in them.
    pub fn in_sessions(self) -> Option<Sabotage> {
        match self {
            Plant::LostAck => Some(Sabotage::LostAcks),
            Plant::StaleRange => Some(Sabotage::StaleRange),
            Plant::LeakedBuffer => Some(Sabotage::LeakedFrame),
            Plant::CreditDeadlock => Some(Sabotage::LostCredits),
            Plant::DoubleResume | Plant::ForgottenJournal => None,
        }
    }
}
