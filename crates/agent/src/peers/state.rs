//! Is what is known of the agents of other hosts.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_dataplane::Dialer;
use tracing::info;

use super::control_stream::ControlStream;
use super::errors::DialError;
use super::event::PeerEvent;

/// Says after how long without a usable path a host counts as out of contact.
const CONTACT_LOST_TIME: Duration = Duration::from_secs(2);
/// Says how long an agent whose messages cannot be read is left alone before it is dialled again.
pub(super) const REDIAL_NOT_UNDERSTOOD: Duration = Duration::from_secs(10);

/// Everything that changes.
#[derive(Default)]
pub(super) struct State {
    pub(super) hosts: HashMap<String, Peer>,
    /// How many control streams were begun so far.
    pub(super) streams: u64,
    /// The hosts whose contact is news.
    pub(super) news: BTreeSet<String>,
    pub(super) messages: VecDeque<PeerEvent>,
    /// The hosts that were not understood: when that was told last, and when it happened last.
    pub(super) not_understood: HashMap<String, (Instant, Instant)>,
    /// Whether nobody reads the events any more.
    pub(super) deaf: bool,
}

/// Another host. The host is forgotten when nothing is left of it.
#[derive(Default)]
pub(super) struct Peer {
    /// Whether the host is to be reached: see [`Peers::reach`](super::Peers::reach).
    pub(super) reached: bool,
    /// How many hold the host: see [`Peers::hold`](super::Peers::hold).
    pub(super) holds: usize,
    /// Whether the host's thread runs.
    pub(super) dialling: bool,
    pub(super) dialer: Option<Arc<Dialer>>,
    /// How many attempts to reach the host failed.
    pub(super) failures: u64,
    /// The reason why the last attempt failed; `None`: it did not fail, or there was none.
    pub(super) problem: Option<Arc<DialError>>,
    /// The host's control streams, oldest first.
    pub(super) streams: Vec<PeerControlStream>,
    pub(super) contact: bool,
}

/// A control stream, and what is known of it.
pub(super) struct PeerControlStream {
    pub(super) stream: Arc<ControlStream>,
    /// Since when the stream's session has no usable path.
    pub(super) silent_since: Option<Instant>,
}

impl PeerControlStream {
    pub(super) fn works(&self) -> bool {
        self.stream.greeting().is_some()
            && !self.stream.is_over()
            && self.silent_since.is_none_or(|since| since.elapsed() < CONTACT_LOST_TIME)
    }
}

impl Peer {
    pub(super) fn wanted(&self) -> bool {
        self.reached || self.holds > 0
    }

    /// Returns the newest control stream, of those that have a path if any has.
    pub(super) fn best(&self) -> Option<&Arc<ControlStream>> {
        let usable = self.streams.iter().filter(|known| known.works());
        usable.max_by_key(|known| (known.silent_since.is_none(), known.stream.number())).map(|known| &known.stream)
    }

    /// Returns whether a control stream has no path, and another is better.
    pub(super) fn is_replaced(&self, stream: &Arc<ControlStream>) -> bool {
        let is_silent = |known: &PeerControlStream| Arc::ptr_eq(&known.stream, stream) && known.silent_since.is_some();
        self.streams.iter().any(is_silent) && self.best().is_some_and(|best| !Arc::ptr_eq(best, stream))
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.wanted() && !self.dialling && self.streams.is_empty()
    }
}

impl State {
    /// Returns whether a host's messages, or this host's messages there, could not be read of late.
    pub(super) fn is_not_understood(&self, name: &str) -> bool {
        self.not_understood.get(name).is_some_and(|(_, last)| last.elapsed() < 2 * REDIAL_NOT_UNDERSTOOD)
    }

    /// Finds whether a host is in contact; a change is news.
    pub(super) fn settle(&mut self, name: &str) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        let contact = host.streams.iter().any(PeerControlStream::works);
        if contact != host.contact {
            host.contact = contact;
            if !contact {
                info!(peer = name, "out of contact");
            }
            self.news.insert(name.to_owned());
        }
    }

    /// Forgets a host that nothing is left of.
    pub(super) fn tidy(&mut self, name: &str) {
        if self.hosts.get(name).is_some_and(Peer::is_idle) {
            self.hosts.remove(name);
        }
    }
}
