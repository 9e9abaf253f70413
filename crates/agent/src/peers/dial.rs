//! Dials the agents of other hosts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_dataplane::{Dialer, DialerSettings, RunningSession, StreamContent};
use tracing::warn;

use super::control_stream::ControlStream;
use super::errors::DialError;
use super::queues::QueueQuestion;
use super::shared::{LOOK_PERIOD, Shared};
use super::state::{Peer, REDIAL_NOT_UNDERSTOOD};
use crate::error_chain;
use crate::stream_destination::StreamDestination;

/// Says after how long an unreachable host is dialled again; the time is doubled after each attempt …
const REDIAL_FIRST: Duration = Duration::from_millis(250);
/// … up to this: an agent that is started again is found within a second.
const REDIAL_MAX: Duration = Duration::from_millis(500);
/// Says how long a session that nobody wants any more is kept.
const UNWANTED_SESSION_TIME: Duration = Duration::from_secs(5);

impl Shared {
    /// Dials a host again and again, until nobody wants it.
    pub(super) fn keep(self: &Arc<Self>, name: &str) {
        let mut pause = REDIAL_FIRST;
        let mut last_good = None;
        loop {
            {
                let mut state = self.lock();
                let host = state.hosts.entry(name.to_owned()).or_default();
                if !host.wanted() || self.is_stopping() {
                    host.dialling = false;
                    state.tidy(name);
                    return;
                }
            }
            let begun = Instant::now();
            match self.dial(name, last_good) {
                Ok(dialer) => {
                    last_good = Some(dialer.to());
                    self.accompany(name, &dialer);
                    if begun.elapsed() >= REDIAL_MAX && !self.lock().is_not_understood(name) {
                        pause = REDIAL_FIRST;
                        continue;
                    }
                    // The session ended as soon as it began: it is no better than none.
                }
                Err(problem) => self.failed(name, problem),
            }
            let mut state = self.lock();
            let is_odd = state.is_not_understood(name);
            let until = Instant::now() + if is_odd { REDIAL_NOT_UNDERSTOOD } else { pause };
            pause = (pause * 2).min(REDIAL_MAX);
            while let left = until.saturating_duration_since(Instant::now())
                && !left.is_zero()
                && !self.is_stopping()
                && state.hosts.get(name).is_some_and(Peer::wanted)
            {
                self.wait(&mut state, left);
            }
        }
    }

    fn failed(&self, name: &str, problem: DialError) {
        let mut state = self.lock();
        let host = state.hosts.entry(name.to_owned()).or_default();
        let words = error_chain(&problem);
        if host.problem.as_ref().is_none_or(|before| error_chain(before) != words) {
            warn!(peer = name, "cannot be reached: {words}");
        }
        host.failures += 1;
        host.problem = Some(Arc::new(problem));
        drop(state);
        self.changed.notify_all();
    }

    fn dial(&self, name: &str, last_good: Option<SocketAddr>) -> Result<Arc<Dialer>, DialError> {
        let mut to = self.addresses.find(name).map_err(DialError::Address)?;
        // The address that worked last comes first: an address that does not answer costs a second.
        to.sort_by_key(|address| Some(*address) != last_good);
        let acceptor = &self.settings.acceptor;
        let settings = DialerSettings {
            to,
            host: Some(name.to_owned()),
            addresses: acceptor.addresses.clone(),
            connections: self.settings.connections,
            tells_queues: true,
            plain_data: self.settings.plain_data,
            outage: acceptor.outage,
        };
        // Streams go from the dialling end to the dialled end. The queue of streams that the peer would open is
        // dropped.
        let (dialer, _) = Dialer::start(settings, &self.identity).map_err(DialError::Session)?;
        Ok(dialer)
    }

    /// Keeps a control stream in a session that this end dialled, until the session is over or nobody wants it.
    fn accompany(self: &Arc<Self>, name: &str, dialer: &Arc<Dialer>) {
        self.lock().hosts.entry(name.to_owned()).or_default().dialer = Some(dialer.clone());
        self.changed.notify_all();
        dialer.stop(self.attend(name, dialer));
        if let Some(host) = self.lock().hosts.get_mut(name) {
            host.dialer = None;
        }
    }

    /// Returns why the session is not wanted any more.
    fn attend(self: &Arc<Self>, name: &str, dialer: &Dialer) -> &'static str {
        let session = dialer.live();
        let mut queues = QueueQuestion::default();
        let mut stream: Option<Arc<ControlStream>> = None;
        let mut next_stream = Instant::now();
        let mut unwanted_since = None;
        loop {
            if session.ended().is_some() {
                return "it is over";
            }
            if stream.as_ref().is_none_or(|stream| stream.is_over()) && Instant::now() >= next_stream {
                next_stream = Instant::now() + REDIAL_MAX;
                match self.open_control_stream(session) {
                    Ok(begun) => stream = Some(begun),
                    Err(error) => self.failed(name, DialError::NoControlStream(error)),
                }
            }
            if let Some(stream) = &stream {
                queues.look(dialer, stream);
            }
            let mut state = self.lock();
            if self.is_stopping() {
                return "the agent stops";
            }
            let wanted = state.hosts.get(name).is_some_and(Peer::wanted);
            unwanted_since = if wanted { None } else { unwanted_since.or(Some(Instant::now())) };
            if unwanted_since.is_some_and(|since| since.elapsed() >= UNWANTED_SESSION_TIME) {
                return "nobody needs it any more";
            }
            self.wait(&mut state, LOOK_PERIOD);
        }
    }

    fn open_control_stream(self: &Arc<Self>, session: &Arc<RunningSession>) -> io::Result<Arc<ControlStream>> {
        let (stream, far) = self.begin(session)?;
        let destination = StreamDestination::Control.to_string();
        session.open(&destination, far.into(), StreamContent::Bytes).map_err(io::Error::other)?;
        Ok(stream)
    }
}
