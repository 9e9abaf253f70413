//! Wants a session with a host for a while.

use std::sync::Arc;
use std::time::Instant;

use skein_dataplane::{Dialer, RunningSession};
use skein_inventory::HostsFile;

use super::errors::{AskError, DialError};
use super::shared::Shared;
use super::state::{Peer, State};
use crate::watched_file::WatchedFileError;

/// Wants sessions with hosts.
#[derive(Clone)]
pub(crate) struct SessionHolder {
    pub(super) shared: Arc<Shared>,
}

impl SessionHolder {
    /// Returns this host's name.
    pub(crate) fn host(&self) -> &str {
        self.shared.identity.host()
    }

    /// Returns the hosts that are known; see [`Peers::hosts`](super::Peers::hosts).
    pub(crate) fn hosts(&self) -> Result<HostsFile, WatchedFileError> {
        self.shared.addresses.hosts()
    }

    /// Keeps a session with a host as long as the result exists. The call does not wait.
    pub(crate) fn hold(&self, host: &str) -> SessionHold {
        let mut failures = 0;
        self.shared.want(host, |host| {
            host.holds += 1;
            failures = host.failures;
        });
        SessionHold { shared: self.shared.clone(), host: host.to_owned(), failures }
    }
}

/// Keeps a session with a host as long as this exists.
pub struct SessionHold {
    pub(super) shared: Arc<Shared>,
    host: String,
    /// How many attempts to reach the host had failed before.
    failures: u64,
}

impl SessionHold {
    /// Returns the host's name.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the session with the host that this end dialled, once there is one; `None` if the deadline is first, or
    /// `stopped`. The session lasts as long as this exists; a session that the other end dialled would last as long as
    /// that end likes.
    pub(crate) fn session(&self, deadline: Instant, stopped: &dyn Fn() -> bool) -> Option<Arc<RunningSession>> {
        self.shared.wait_for(deadline, |state| self.dialled(state), |_| stopped())
    }

    fn dialled(&self, state: &State) -> Option<Arc<RunningSession>> {
        let session = state.hosts.get(&self.host)?.dialer.as_ref()?.live();
        session.ended().is_none().then(|| session.clone())
    }

    /// Returns the session as [`SessionHold::session`] does.
    ///
    /// # Errors
    ///
    /// The last attempt to reach the host failed, or the next one does, or the deadline is first. Attempts go on.
    pub(crate) fn session_or_reason(&self, deadline: Instant) -> Result<Arc<RunningSession>, AskError> {
        let fails = |state: &State| {
            let fails = |host: &Peer| host.problem.is_some() && host.failures > self.failures;
            state.hosts.get(&self.host).is_none_or(fails)
        };
        self.shared.wait_for(deadline, |state| self.dialled(state), fails).ok_or_else(|| self.unreachable())
    }

    /// Returns what keeps the session with the host that this end dialled, once there is a session.
    ///
    /// # Errors
    ///
    /// As [`SessionHold::session_or_reason`].
    pub(crate) fn dialer_or_reason(&self, deadline: Instant) -> Result<Arc<Dialer>, AskError> {
        self.session_or_reason(deadline)?;
        let dialer = self.shared.lock().hosts.get(&self.host).and_then(|host| host.dialer.clone());
        dialer.ok_or_else(|| self.unreachable())
    }

    /// Returns why there is no contact with the host.
    pub(super) fn unreachable(&self) -> AskError {
        let host = self.host.clone();
        if self.shared.is_stopping() {
            return AskError::Stopping;
        }
        let problem = self.shared.lock().hosts.get(&host).and_then(|host| host.problem.clone());
        AskError::Unreachable { host, source: problem.unwrap_or_else(|| Arc::new(DialError::Silent)) }
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        self.shared.want(&self.host, |host| host.holds -= 1);
    }
}
