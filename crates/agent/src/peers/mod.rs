//! Is the sessions with the agents of other hosts, and what is said in them.
//!
//! A host that is wanted has a thread that dials it, again and again, and keeps a control stream in the session.
//! Control streams of sessions that other hosts dialled are the same. One thread checks whether each still has a path,
//! one passes on what is new. The users of this module wait for none of the threads.
//!
//! | module | what it is |
//! |---|---|
//! | `version` | which version of the protocol two agents speak |
//! | `control_message` | what they say, and how two versions read each other |
//! | `control_stream`, `outgoing_lines` | one end of a control stream: its greeting, its questions, what waits to be said |
//! | `state`, `shared` | what is known of each host, and what the threads share |
//! | `dial`, `hear`, `contact` | the threads: sessions are dialled, control streams served and looked after |
//! | `hold`, `event`, `errors`, `settings` | what the users of this module get, hear and set |
//! | `probing`, `probe_turns` | whose turn it is to measure what paths carry |
//! | `host_addresses`, `learnt_hosts` | where other hosts listen: by the hosts file, and by a controller's word |

mod contact;
mod control_message;
mod control_stream;
mod dial;
mod errors;
mod event;
mod hear;
mod hold;
mod host_addresses;
mod learnt_hosts;
mod outgoing_lines;
mod probe_turns;
mod probing;
mod queues;
mod settings;
mod shared;
mod state;
mod version;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use skein_dataplane::{Acceptor, RunningSession, SessionSnapshot};
use skein_handover::{Message, MigrationId};
use skein_identity::Identity;
use skein_inventory::facts::{GuestFiles, HostFacts};
use skein_inventory::{Composition, HostsFile, MigrationNetwork};
use skein_link::ListenError;
use skein_network::Interface;
use tracing::warn;

pub use control_message::{Answer, ControlMessage, Question, TooLong};
pub use control_stream::ControlStreamError;
pub use errors::{AskError, DialError};
pub use event::PeerEvent;
pub use hold::SessionHold;
pub(crate) use hold::SessionHolder;
pub use host_addresses::{DEFAULT_PORT, FindError, ResolveError, resolve};
pub use settings::PeersSettings;
pub use shared::Answerer;
pub use version::{CONTROL_VERSIONS, ControlVersions};

use control_stream::{Asking, ControlStream};
pub(crate) use host_addresses::HostAddresses;
pub(crate) use probing::ProbeTurn;
use shared::{ATTEMPTS_BEFORE_ERROR, LOOK_PERIOD, Shared, spawn};
use state::State;

use crate::IncomingChannels;
use crate::migrations::Offer;
use crate::permit::Permit;
use crate::watched_file::{WatchedFile, WatchedFileError};

/// Bounds the questions to other hosts at once.
const ASKING_MAX: usize = 64;
/// How often who waits for a question's turn looks.
const TURN_CHECK: Duration = Duration::from_millis(10);

/// The agents of other hosts. Dropping it closes every session.
pub struct Peers {
    shared: Arc<Shared>,
    acceptor: Acceptor,
}

impl Peers {
    /// Listens for sessions of other hosts, and dials those that are wanted. `answer` answers what peers ask. `events`
    /// gets what they do, until its other end is dropped.
    ///
    /// # Errors
    ///
    /// The address is in use, or is not this host's.
    pub fn start(
        settings: PeersSettings,
        identity: &Identity,
        answer: Arc<Answerer>,
        events: SyncSender<PeerEvent>,
    ) -> Result<Peers, ListenError> {
        let acceptor = settings.acceptor.clone();
        let listen = acceptor.listen;
        let shared = Arc::new(Shared {
            addresses: HostAddresses::new(&settings.hosts_file, settings.hosts_cache.as_deref()),
            network: WatchedFile::new(&settings.migration_network, MigrationNetwork::parse),
            settings,
            identity: identity.clone(),
            incoming: IncomingChannels::default(),
            answer,
            state: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            asking: Arc::default(),
            sessions: Mutex::default(),
            probes: Default::default(),
        });
        let serving = shared.clone();
        let on_session = move |session: Arc<RunningSession>, streams| serving.serve(&session, streams);
        let acceptor = Acceptor::start(acceptor, &shared.identity, Box::new(on_session))?;
        let peers = Peers { shared: shared.clone(), acceptor };
        let looking = shared.clone();
        spawn("contact", move || looking.check_contact())
            .and_then(|()| spawn("peer-events", move || shared.tell(&events)))
            .map_err(|source| ListenError { address: listen, nic: None, source })?;
        Ok(peers)
    }

    /// Returns this host's name.
    pub fn host(&self) -> &str {
        self.shared.identity.host()
    }

    /// Returns the port that is listened on.
    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    /// Returns where migrations to this host arrive.
    pub fn incoming_channels(&self) -> &IncomingChannels {
        &self.shared.incoming
    }

    /// Returns the hosts of the file as it is now, and those that a controller named ([`Peers::learn_hosts`]).
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn hosts(&self) -> Result<HostsFile, WatchedFileError> {
        self.shared.addresses.hosts()
    }

    /// Takes a controller's word on where all hosts listen, in place of its last word. The hosts file wins.
    pub fn learn_hosts(&self, addresses: &BTreeMap<String, Vec<String>>) {
        self.shared.addresses.learn(addresses);
    }

    /// Returns whether there is contact with each of the hosts that contact is kept with, or is tried to be.
    pub fn contacts(&self) -> BTreeMap<String, bool> {
        self.shared.lock().hosts.iter().map(|(name, host)| (name.clone(), host.contact)).collect()
    }

    /// Keeps a session with a host from now on. The call does not wait.
    pub fn reach(&self, host: &str) {
        self.shared.want(host, |host| host.reached = true);
    }

    /// Keeps no session with a host any more, unless the host is held ([`Peers::hold`]).
    pub fn leave(&self, host: &str) {
        self.shared.want(host, |host| host.reached = false);
    }

    /// Keeps a session with a host as long as the result exists. The call does not wait.
    pub fn hold(&self, host: &str) -> SessionHold {
        self.holder().hold(host)
    }

    /// Returns what wants sessions with hosts.
    pub(crate) fn holder(&self) -> SessionHolder {
        SessionHolder { shared: self.shared.clone() }
    }

    /// Returns whether there is contact with a host at this moment.
    pub fn contact(&self, host: &str) -> bool {
        self.shared.lock().hosts.get(host).is_some_and(|host| host.contact)
    }

    /// Sends a message to a host, whichever end dialled. The call does not wait, and promises nothing. Returns false if
    /// the host is not in contact, or does not take the message.
    pub fn send(&self, host: &str, message: &Message<Arc<Offer>>) -> bool {
        let line = match ControlMessage::handover(message).line() {
            Ok(line) => line,
            Err(error) => {
                warn!(peer = host, "{error}");
                return false;
            }
        };
        let Some(stream) = self.best(host) else { return false };
        let sent = stream.send(line);
        if !sent {
            warn!(peer = host, "it does not take what it is told: its control stream is begun anew");
        }
        sent
    }

    /// Sends a fact for the log of a migration to a host. The fact is lost if the host is out of contact.
    pub fn note(&self, host: &str, id: MigrationId, text: &str) {
        let note = ControlMessage::Note { id, text: text.to_owned() }.line();
        if let (Ok(line), Some(stream)) = (note, self.best(host)) {
            stream.send(line);
        }
    }

    fn best(&self, host: &str) -> Option<Arc<ControlStream>> {
        self.shared.lock().hosts.get(host)?.best().cloned()
    }

    /// Asks a host, and reaches it for that. The call waits, until `deadline` at most.
    ///
    /// # Errors
    ///
    /// There is no answer, or none that can be read.
    pub fn ask(&self, host: &str, question: &Question, deadline: Instant) -> Result<Answer, AskError> {
        let shared = &self.shared;
        if host == self.host() {
            return Err(AskError::Myself(host.to_owned()));
        }
        let _place = Permit::take(&shared.asking, ASKING_MAX).ok_or(AskError::Busy)?;
        let hold = self.hold(host);
        let failures = shared.lock().hosts.get(host).map_or(0, |host| host.failures);
        loop {
            let best = |state: &State| state.hosts.get(host)?.best().cloned();
            let stop = |state: &State| {
                state.hosts.get(host).is_none_or(|host| host.failures >= failures + ATTEMPTS_BEFORE_ERROR)
            };
            let Some(stream) = shared.wait_for(deadline, best, stop) else { return Err(hold.unreachable()) };
            let (number, answer) = match stream.ask(question) {
                Asking::Now(number, answer) => (number, answer),
                Asking::Over => continue,
                Asking::Later if Instant::now() >= deadline => return Err(AskError::Busy),
                Asking::Later => {
                    thread::sleep(TURN_CHECK);
                    continue;
                }
            };
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match answer.recv_timeout(left.min(LOOK_PERIOD)) {
                    Ok(Ok(answer)) => return self.read_answer(&stream, answer),
                    Ok(Err(reason)) => return Err(AskError::Refused { host: host.to_owned(), reason }),
                    Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                        stream.forget(number);
                        return Err(AskError::NoAnswer(host.to_owned()));
                    }
                    Err(RecvTimeoutError::Timeout)
                        if !shared.lock().hosts.get(host).is_some_and(|host| host.is_replaced(&stream)) => {}
                    // The control stream broke, or has no path and another is better: then over that stream. The
                    // session of an agent that was killed outlives the agent.
                    Err(_) => break stream.forget(number),
                }
            }
        }
    }

    fn read_answer(&self, stream: &ControlStream, answer: Value) -> Result<Answer, AskError> {
        serde_json::from_value(answer).map_err(|source| AskError::Unreadable {
            us: self.host().to_owned(),
            host: stream.peer().to_owned(),
            release: stream.greeting().map(|greeting| greeting.release.clone()).unwrap_or_default(),
            source,
        })
    }

    /// Asks a host for its facts; see [`Peers::ask`].
    pub(crate) fn ask_facts(
        &self,
        host: &str,
        qemu: Option<PathBuf>,
        files: GuestFiles,
        deadline: Instant,
    ) -> Result<HostFacts, AskError> {
        match self.ask(host, &Question::HostFacts { qemu, files }, deadline)? {
            Answer::HostFacts(facts) => Ok(*facts),
            _ => Err(AskError::Unasked(host.to_owned())),
        }
    }

    /// Asks the source of a migration what its guest is composed of; see [`Peers::ask`].
    pub(crate) fn ask_composition(
        &self,
        host: &str,
        migration: MigrationId,
        deadline: Instant,
    ) -> Result<Composition, AskError> {
        match self.ask(host, &Question::Composition { migration }, deadline)? {
            Answer::Composition(composition) => Ok(*composition),
            _ => Err(AskError::Unasked(host.to_owned())),
        }
    }

    /// Asks a host whether it has a leader; see [`Peers::ask`].
    pub(crate) fn ask_leader(&self, host: &str, deadline: Instant) -> Result<bool, AskError> {
        match self.ask(host, &Question::Leader, deadline)? {
            Answer::Leader { acknowledged } => Ok(acknowledged),
            _ => Err(AskError::Unasked(host.to_owned())),
        }
    }

    /// Asks a host for its network interfaces; see [`Peers::ask`].
    pub(crate) fn ask_network(&self, host: &str, deadline: Instant) -> Result<Vec<Interface>, AskError> {
        match self.ask(host, &Question::Network, deadline)? {
            Answer::Network(interfaces) => Ok(interfaces),
            _ => Err(AskError::Unasked(host.to_owned())),
        }
    }

    /// Takes this host's turn to measure what paths carry.
    ///
    /// # Errors
    ///
    /// Another host measures paths to this one, or this host does already.
    pub(crate) fn take_probe_turn(&self) -> Result<ProbeTurn, String> {
        self.shared.take_probe_turn()
    }

    /// Returns whether a session carries something else than agents' words and probes.
    pub(crate) fn carries_else(&self) -> bool {
        self.shared.carries_else()
    }

    /// Returns the state of each session at this moment.
    pub fn snapshots(&self) -> Vec<SessionSnapshot> {
        let dialled = self.shared.dialers().into_iter().map(|dialer| dialer.live().clone());
        let all = dialled.chain(self.acceptor.sessions());
        all.filter(|session| session.ended().is_none()).map(|session| session.snapshot()).collect()
    }

    /// Closes every session, and stops listening and dialling.
    pub fn stop(&self) {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        // A thread that is about to wait has seen the flag, or gets the notice.
        drop(self.shared.lock());
        self.shared.changed.notify_all();
        let dialers = self.shared.dialers();
        thread::scope(|scope| {
            for dialer in &dialers {
                scope.spawn(|| dialer.stop("the agent stops"));
            }
            self.acceptor.stop("the agent stops");
        });
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}
