//! Wants a session with a host for a while.

use std::sync::Arc;
use std::time::Instant;

use skein_dataplane::RunningSession;

use super::errors::{AskError, DialError};
use super::shared::Shared;
use super::state::State;

/// Keeps a session with a host as long as this exists.
pub struct SessionHold {
    pub(super) shared: Arc<Shared>,
    pub(super) host: String,
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
        let dialled = |state: &State| {
            let session = state.hosts.get(&self.host)?.dialer.as_ref()?.live();
            session.ended().is_none().then(|| session.clone())
        };
        self.shared.wait_for(deadline, dialled, |_| stopped())
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
