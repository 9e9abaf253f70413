//! Identifiers: a newtype for each number, so that two of them cannot be swapped. Also the kinds of ends and of
//! connections.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A stream of a session. Even numbers: opened by the dialling end; odd: by the accepting end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub u32);

/// A connection of a session. The dialling end chooses the number and never uses it twice in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConnectionId(pub u32);

/// A path: one local address to one remote address. The dialling end chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathId(pub u32);

/// A session: 128 random bits chosen by the accepting end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

impl fmt::Display for SessionId {
    /// Writes the first 32 bits: enough to tell sessions apart in a log, too little to join one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Which end of the session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Dials connections; opens even streams.
    Dialer,
    /// Accepts connections; opens odd streams.
    Acceptor,
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionKind {
    /// Everything small: acknowledgements, credit, openings, urgent streams. Each path has one control connection.
    Control,
    /// Bulk data. Each path has several data connections.
    Data,
}
