//! Has one probe at a time to or from this host, and none beside what else is carried.

use std::sync::Arc;
use std::time::Instant;

use skein_dataplane::{IncomingStream, PathId, ResetCode, RunningSession, Width};

use super::shared::{Shared, spawn};
use crate::permit::Permit;
use crate::probe::{self, ProbeOrder};
use crate::stream_destination::{Refusal, StreamDestination};

/// Bounds the streams of a probe at once: two, and some that are about to end.
const STREAMS_MAX: usize = 6;

/// This host's turn to probe. It is given back when dropped.
pub(crate) struct ProbeTurn {
    shared: Arc<Shared>,
    _own: Permit,
}

impl ProbeTurn {
    /// Keeps the turn.
    ///
    /// # Errors
    /// It was too long until now, and another host probes this one.
    pub(crate) fn renew(&self) -> Result<(), String> {
        let taken = self.shared.probes.take(self.shared.identity.host());
        taken.map_err(|by| format!("{} here", under_way(&by)))
    }

    /// Returns when this host's last probe ended.
    pub(crate) fn last_ended(&self) -> Option<Instant> {
        *self.shared.probes.ended.lock()
    }
}

fn under_way(by: &str) -> String {
    format!("another probe, by {by}, is under way")
}

impl Drop for ProbeTurn {
    fn drop(&mut self) {
        *self.shared.probes.ended.lock() = Some(Instant::now());
        self.shared.probes.give_back(self.shared.identity.host());
    }
}

impl Shared {
    /// Takes this host's turn to probe.
    ///
    /// # Errors
    /// It is another's turn.
    pub(super) fn take_probe_turn(self: &Arc<Self>) -> Result<ProbeTurn, String> {
        let own = Permit::take(&self.probes.own, 1);
        let own = own.ok_or("this host probes already: wait until that is over")?;
        let turn = ProbeTurn { shared: self.clone(), _own: own };
        turn.renew()?;
        Ok(turn)
    }

    /// Returns whether a session carries something else than agents' words and probes.
    pub(super) fn carries_else(&self) -> bool {
        let is_else = |destination: &str| {
            !matches!(destination.parse(), Ok(StreamDestination::Control | StreamDestination::Probe(_)))
        };
        let dialled = self.dialers().into_iter().map(|dialer| dialer.live().clone());
        let accepted = self.sessions.lock().iter().filter_map(std::sync::Weak::upgrade).collect::<Vec<_>>();
        dialled.chain(accepted).any(|session| session.leads_to(is_else))
    }

    /// Does what a stream of a probe is for.
    pub(super) fn serve_probe(
        self: &Arc<Self>,
        session: &Arc<RunningSession>,
        incoming: &IncomingStream,
        order: ProbeOrder,
    ) -> Result<(), Refusal> {
        let busy = |reason: String| (ResetCode::Busy, reason);
        match order {
            ProbeOrder::Done => self.probes.give_back(session.peer()),
            _ => self.probes.take(session.peer()).map_err(|by| busy(format!("{} there", under_way(&by))))?,
        }
        let permit = Permit::take(&self.probes.streams, STREAMS_MAX);
        let permit = permit.ok_or_else(|| busy("too much is asked for at once".into()))?;
        let width = match order {
            ProbeOrder::Source { path: Some(path), .. } => Width::Only(PathId(path)),
            _ => Width::All,
        };
        let flow = session.take_flow(incoming.stream, width);
        let shared = self.clone();
        let work = move || {
            let _permit = permit;
            probe::serve(&order, &flow, &|| shared.carries_else());
        };
        spawn("probe", work).map_err(|error| busy(format!("that host cannot start another thread: {error}")))
    }

    /// Remembers a session that a peer began.
    pub(super) fn know_session(&self, session: &Arc<RunningSession>) {
        let mut sessions = self.sessions.lock();
        sessions.retain(|known| known.strong_count() > 0);
        sessions.push(Arc::downgrade(session));
    }
}
