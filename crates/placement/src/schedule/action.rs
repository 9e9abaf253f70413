//! The action of a step.

use std::fmt;

use serde::Serialize;

use crate::problem::{GuestId, HostId, NOWHERE};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// A guest moves while it runs.
    Migrate {
        /// The guest that moves.
        guest: GuestId,
        /// The host that it leaves.
        from: HostId,
        /// The host that it moves to.
        to: HostId,
    },
    /// A guest that is nowhere starts.
    Start {
        /// The guest that starts.
        guest: GuestId,
        /// The host on which it starts.
        on: HostId,
    },
    /// A guest stops, and is nowhere then.
    Stop {
        /// The guest that stops.
        guest: GuestId,
        /// The host on which it was.
        on: HostId,
    },
    /// A host is switched on.
    Boot {
        /// The host that is switched on.
        host: HostId,
    },
    /// A host is switched off.
    Shutdown {
        /// The host that is switched off.
        host: HostId,
    },
}

impl Action {
    /// Returns the guest that moves, starts or stops. `None` for an action on a host.
    pub fn guest(self) -> Option<GuestId> {
        match self {
            Action::Migrate { guest, .. } | Action::Start { guest, .. } | Action::Stop { guest, .. } => Some(guest),
            Action::Boot { .. } | Action::Shutdown { .. } => None,
        }
    }

    /// Returns the hosts from which and to which the action's guest goes, or [`NOWHERE`].
    pub fn ends(self) -> (HostId, HostId) {
        match self {
            Action::Migrate { from, to, .. } => (from, to),
            Action::Start { on, .. } => (NOWHERE, on),
            Action::Stop { on, .. } => (on, NOWHERE),
            Action::Boot { .. } | Action::Shutdown { .. } => (NOWHERE, NOWHERE),
        }
    }

    /// Returns the hosts that take part in the action.
    pub fn hosts(self) -> impl Iterator<Item = HostId> {
        let pair = match self {
            Action::Boot { host } | Action::Shutdown { host } => [host, NOWHERE],
            _ => self.ends().into(),
        };
        pair.into_iter().filter(|host| *host != NOWHERE)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Migrate { guest, from, to } => write!(f, "migrate guest {guest} from host {from} to host {to}"),
            Action::Start { guest, on } => write!(f, "start guest {guest} on host {on}"),
            Action::Stop { guest, on } => write!(f, "stop guest {guest} on host {on}"),
            Action::Boot { host } => write!(f, "boot host {host}"),
            Action::Shutdown { host } => write!(f, "shut host {host} down"),
        }
    }
}
