//! Is what the threads of [`Peers`](super::Peers) share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use skein_dataplane::{Dialer, RunningSession};
use skein_identity::Identity;
use skein_inventory::MigrationNetwork;

use super::control_message::{Answer, Question};
use super::errors::DialError;
use super::host_addresses::HostAddresses;
use super::probe_turns::ProbeTurns;
use super::settings::PeersSettings;
use super::state::{Peer, State};
use crate::IncomingChannels;
use crate::watched_file::WatchedFile;

/// Says how often sessions are checked.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Says after how many failed attempts to reach a host a caller that asks the host gets the reason.
pub(super) const ATTEMPTS_BEFORE_ERROR: u64 = 2;

/// Bounds a text of another host that people are told.
pub(super) const PEER_TEXT_BYTES_MAX: usize = 2000;

/// Answers the questions of a host. Several threads call this at once.
pub type Answerer = dyn Fn(&str, Question) -> Result<Answer, String> + Send + Sync;

/// The state that the threads share.
pub(super) struct Shared {
    pub(super) settings: PeersSettings,
    pub(super) identity: Identity,
    pub(super) addresses: HostAddresses,
    /// The migration network, and who may connect to this host there.
    pub(super) network: WatchedFile<MigrationNetwork>,
    /// The place where migrations to this host arrive.
    pub(super) incoming: IncomingChannels,
    pub(super) answer: Arc<Answerer>,
    pub(super) state: Mutex<State>,
    /// Notified when anything in `state` changes.
    pub(super) changed: Condvar,
    pub(super) stopping: AtomicBool,
    pub(super) asking: Arc<AtomicUsize>,
    /// The sessions that peers began.
    pub(super) sessions: Mutex<Vec<Weak<RunningSession>>>,
    pub(super) probes: ProbeTurns,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(super) fn dialers(&self) -> Vec<Arc<Dialer>> {
        self.lock().hosts.values().filter_map(|host| host.dialer.clone()).collect()
    }

    /// Waits for a change, or a little.
    pub(super) fn wait(&self, state: &mut MutexGuard<'_, State>, patience: Duration) {
        self.changed.wait_for(state, patience);
    }

    /// Changes whether a host is wanted, and makes sure that a thread dials a wanted host.
    pub(super) fn want(self: &Arc<Self>, name: &str, change: impl FnOnce(&mut Peer)) {
        let mut state = self.lock();
        let host = state.hosts.entry(name.to_owned()).or_default();
        change(host);
        if host.wanted() && !host.dialling && !self.is_stopping() {
            if name == self.identity.host() {
                host.failures += ATTEMPTS_BEFORE_ERROR;
                host.problem = Some(Arc::new(DialError::Itself));
            } else {
                let (shared, dialled) = (self.clone(), name.to_owned());
                match spawn("reach", move || shared.keep(&dialled)) {
                    Ok(()) => host.dialling = true,
                    Err(error) => {
                        // The next check tries again.
                        host.failures += 1;
                        host.problem = Some(Arc::new(DialError::Threads(error)));
                    }
                }
            }
        }
        state.tidy(name);
        drop(state);
        self.changed.notify_all();
    }

    /// Returns what `find` finds, once it does; `None` if the deadline is first, or `stop`.
    pub(super) fn wait_for<T>(
        &self,
        deadline: Instant,
        find: impl Fn(&State) -> Option<T>,
        stop: impl Fn(&State) -> bool,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            let found = find(&state);
            let left = deadline.saturating_duration_since(Instant::now());
            if found.is_some() || left.is_zero() || self.is_stopping() || stop(&state) {
                return found;
            }
            self.wait(&mut state, left.min(LOOK_PERIOD));
        }
    }
}

/// Starts a thread that nobody waits for.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}
