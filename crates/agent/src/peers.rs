//! Sessions with the agents of other hosts, and what is said in them.
//!
//! A host that somebody wants has a thread that dials it, again and again, and keeps a control stream in the session.
//! Control streams of sessions that others dialled are the same. One thread looks whether each still has a path, one
//! passes on what is new. None of the threads is waited for by whoever uses this.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_api::LineError;
use skein_dataplane::target::TargetPages;
use skein_dataplane::{
    Acceptor, AcceptorSettings, Dialer, DialerSettings, IncomingStream, ResetCode, RunningSession, SessionSnapshot,
    StreamContent,
};
use skein_handover::{Message, MigrationId};
use skein_identity::Identity;
use skein_inventory::facts::{GuestFiles, HostFacts};
use skein_inventory::{Composition, HostsFile, printable};
use skein_link::ListenError;
use thiserror::Error;
use tracing::{debug, info, warn};

use crate::control_stream::{Answer, ControlMessage, ControlStream, ControlStreamError, HELLO_TIME, Question};
use crate::host_addresses::WatchedHostsFile;
use crate::migrations::Offer;
use crate::permit::Permit;
use crate::stream_destination::{Refusal, StreamDestination};
use crate::{Allow, IncomingChannels, error_chain, stream_destination};

/// After a host could not be reached it is dialled again after this, doubled each time …
const REDIAL_FIRST: Duration = Duration::from_millis(250);
/// … up to this: an agent that is started again is found within a second.
const REDIAL_MAX: Duration = Duration::from_millis(500);
/// One whose messages cannot be read is dialled again after this.
const REDIAL_NOT_UNDERSTOOD: Duration = Duration::from_secs(10);
/// And told to be so again after this.
const LOG_AGAIN_PERIOD: Duration = Duration::from_secs(600);
/// A session that nobody wants any more is kept for this long.
const UNWANTED_SESSION_TIME: Duration = Duration::from_secs(5);
/// How often sessions are looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Without a usable path for this long, a host counts as out of contact.
const CONTACT_LOST_TIME: Duration = Duration::from_secs(2);
/// Messages that wait to be passed on; beyond, the peers' control streams wait.
const MESSAGES_MAX: usize = 1024;
/// Questions to others at once.
const ASKING_MAX: usize = 64;
/// So much of what another host says is told to people.
const PEER_TEXT_BYTES_MAX: usize = 2000;
/// Who asks a host that cannot be reached is told so after so many attempts.
const ATTEMPTS_BEFORE_ERROR: u64 = 2;

/// What may be set.
#[derive(Clone, Debug)]
pub struct PeersSettings {
    /// How sessions are accepted; addresses and outage are those of the dialled ones, too.
    pub acceptor: AcceptorSettings,
    /// Which sockets of this host peers may connect to.
    pub allow: Allow,
    /// The file of hosts (`skein_inventory::Hosts`); need not exist.
    pub hosts_file: PathBuf,
    /// Data connections on each path of the sessions that this end dials.
    pub connections: usize,
    /// Send bulk data without encryption in the sessions that this end dials.
    pub plain_data: bool,
}

/// What peers do.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerEvent {
    /// A host can be reached, or not any more. Each new control stream is told; a listener that is slow is told only
    /// the latest.
    Contact(String, bool),
    /// A host says something.
    Message(String, Message<Arc<Offer>>),
    /// A host wants a migration whose offer cannot be read.
    UnreadableOffer {
        /// The source's host.
        host: String,
        /// The migration.
        id: MigrationId,
        /// The VM.
        vm: String,
        /// Why not, in words.
        reason: String,
    },
    /// A host has something for the log of a migration, printable.
    Note(String, MigrationId, String),
    /// A host's agent and this one cannot read each other's messages; in words.
    NotUnderstood(String, String),
}

/// What answers the questions of a host; called by several threads at once.
pub type Answerer = dyn Fn(&str, Question) -> Result<Answer, String> + Send + Sync;

/// A question that was not answered.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum AskError {
    #[error("{0} is this host")]
    Myself(String),
    #[error("the agent of {host} cannot be reached: {why}")]
    Unreachable { host: String, why: String },
    #[error("the agent of {0} did not answer in time")]
    NoAnswer(String),
    #[error("the agent of {host} answers: {reason}")]
    Refused { host: String, reason: String },
    #[error("the agent of {0} answers something else than it was asked")]
    Unasked(String),
    #[error("too many questions are under way: try again in a moment")]
    Busy,
    #[error("this agent stops")]
    Stopping,
}

/// The agents of other hosts. Dropping it closes every session.
pub struct Peers {
    shared: Arc<Shared>,
    acceptor: Acceptor,
}

struct Shared {
    settings: PeersSettings,
    identity: Identity,
    hosts_file: WatchedHostsFile,
    landings: IncomingChannels,
    answer: Arc<Answerer>,
    state: Mutex<State>,
    /// Notified when anything in `state` changes.
    changed: Condvar,
    stopping: AtomicBool,
    asking: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    hosts: HashMap<String, Peer>,
    links: u64,
    /// Hosts whose contact is news.
    news: BTreeSet<String>,
    messages: VecDeque<PeerEvent>,
    /// Hosts with which that was so: when it was told last, and when it was so last.
    not_understood: HashMap<String, (Instant, Instant)>,
    /// Nobody listens any more.
    deaf: bool,
}

/// Another host. Forgotten when nothing is left of it.
#[derive(Default)]
struct Peer {
    /// See [`Peers::set_wanted`].
    reached: bool,
    /// See [`Peers::hold`].
    holds: usize,
    /// Its thread runs.
    dialling: bool,
    dialer: Option<Arc<Dialer>>,
    /// Attempts to reach it that failed, and why the last did.
    failures: u64,
    why: String,
    /// Its control streams, oldest first.
    links: Vec<PeerControlStream>,
    contact: bool,
}

/// A control stream, and what is known of it.
struct PeerControlStream {
    link: Arc<ControlStream>,
    greeted: bool,
    /// Since when its session has no usable path.
    silent_since: Option<Instant>,
}

impl PeerControlStream {
    fn works(&self) -> bool {
        self.greeted
            && !self.link.is_over()
            && self.silent_since.is_none_or(|since| since.elapsed() < CONTACT_LOST_TIME)
    }
}

impl Peer {
    fn wanted(&self) -> bool {
        self.reached || self.holds > 0
    }

    /// The newest control stream, of those that have a path if any has.
    fn best(&self) -> Option<&Arc<ControlStream>> {
        let usable = self.links.iter().filter(|known| known.works());
        usable.max_by_key(|known| (known.silent_since.is_none(), known.link.number)).map(|known| &known.link)
    }

    /// Whether a control stream has no path, and another is better.
    fn is_replaced(&self, link: &Arc<ControlStream>) -> bool {
        let is_silent = |known: &PeerControlStream| Arc::ptr_eq(&known.link, link) && known.silent_since.is_some();
        self.links.iter().any(is_silent) && self.best().is_some_and(|best| !Arc::ptr_eq(best, link))
    }

    fn is_idle(&self) -> bool {
        !self.wanted() && !self.dialling && self.links.is_empty()
    }
}

impl Peers {
    /// Listens for sessions of other hosts; dials those that are wanted. What peers ask is answered by `answer`, what
    /// they do is told to `events`, until its other end is dropped.
    ///
    /// Errors: the address is in use, or not of this host.
    pub fn start(
        settings: PeersSettings,
        identity: &Identity,
        answer: Arc<Answerer>,
        events: SyncSender<PeerEvent>,
    ) -> Result<Peers, ListenError> {
        let acceptor = settings.acceptor.clone();
        let listen = acceptor.listen;
        let shared = Arc::new(Shared {
            hosts_file: WatchedHostsFile::new(&settings.hosts_file),
            settings,
            identity: identity.clone(),
            landings: IncomingChannels::default(),
            answer,
            state: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            asking: Arc::default(),
        });
        let serving = shared.clone();
        let on_session = move |live: Arc<RunningSession>, streams| serving.serve(&live, streams);
        let acceptor = Acceptor::start(acceptor, &shared.identity, Box::new(on_session))?;
        let peers = Peers { shared: shared.clone(), acceptor };
        let looking = shared.clone();
        spawn("contact", move || looking.check_contact())
            .and_then(|()| spawn("peer-events", move || shared.tell(&events)))
            .map_err(|source| ListenError { address: listen, nic: None, source })?;
        Ok(peers)
    }

    /// This host's name.
    pub fn host(&self) -> &str {
        self.shared.identity.host()
    }

    /// The port that is listened on.
    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    /// Where migrations to this host land.
    pub fn incoming_channels(&self) -> &IncomingChannels {
        &self.shared.landings
    }

    /// The hosts of the file as it is now, or what is wrong with it.
    pub fn hosts(&self) -> Result<HostsFile, String> {
        self.shared.hosts_file.hosts()
    }

    /// Keeps a session with a host from now on, or does not care any more. Does not wait.
    pub fn set_wanted(&self, host: &str, wanted: bool) {
        self.shared.want(host, |host| host.reached = wanted);
    }

    /// The same, as long as the result exists.
    pub fn hold(&self, host: &str) -> SessionHold {
        self.shared.want(host, |host| host.holds += 1);
        SessionHold { shared: self.shared.clone(), host: host.to_owned() }
    }

    /// Whether there is contact with a host at this moment.
    pub fn contact(&self, host: &str) -> bool {
        self.shared.lock().hosts.get(host).is_some_and(|host| host.contact)
    }

    /// Tells a host, whichever end dialled. Does not wait, and promises nothing. False: the host is not in contact, or
    /// does not take what it is told.
    pub fn send(&self, host: &str, message: &Message<Arc<Offer>>) -> bool {
        let line = match ControlMessage::handover(message).line() {
            Ok(line) => line,
            Err(error) => {
                warn!(peer = host, "{error}");
                return false;
            }
        };
        let Some(link) = self.shared.lock().hosts.get(host).and_then(|host| host.best().cloned()) else { return false };
        let sent = link.send(line);
        if !sent {
            warn!(peer = host, "it does not take what it is told: its control stream is begun anew");
        }
        sent
    }

    /// Tells a host something for the log of a migration. Lost if it cannot be told now: nothing depends on it.
    pub fn note(&self, host: &str, id: MigrationId, text: &str) {
        let note = ControlMessage::Note { id, text: text.to_owned() }.line();
        let link = self.shared.lock().hosts.get(host).and_then(|host| host.best().cloned());
        if let (Ok(line), Some(link)) = (note, link) {
            link.send(line);
        }
    }

    /// Asks a host, and reaches it for that. Waits, for `deadline` at most.
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
            let Some(link) = shared.wait_for(deadline, best, stop) else { return Err(hold.unreachable()) };
            let Some((number, answer)) = link.ask(question) else { continue };
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match answer.recv_timeout(left.min(LOOK_PERIOD)) {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(reason)) => return Err(AskError::Refused { host: host.to_owned(), reason }),
                    Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                        link.forget(number);
                        return Err(AskError::NoAnswer(host.to_owned()));
                    }
                    Err(RecvTimeoutError::Timeout)
                        if !shared.lock().hosts.get(host).is_some_and(|host| host.is_replaced(&link)) => {}
                    // The control stream broke, or has no path and another is better: over that one. The session
                    // of an agent that was killed outlives it.
                    Err(_) => break link.forget(number),
                }
            }
        }
    }

    /// Asks a host what it is and has; see [`Peers::ask`].
    pub(crate) fn ask_facts(
        &self,
        host: &str,
        qemu: Option<PathBuf>,
        files: GuestFiles,
        deadline: Instant,
    ) -> Result<HostFacts, AskError> {
        match self.ask(host, &Question::HostFacts { qemu, files }, deadline)? {
            Answer::HostFacts(facts) => Ok(*facts),
            Answer::Composition(_) => Err(AskError::Unasked(host.to_owned())),
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
            Answer::HostFacts(_) => Err(AskError::Unasked(host.to_owned())),
        }
    }

    /// Each session at this moment.
    pub fn snapshots(&self) -> Vec<SessionSnapshot> {
        let dialled = self.shared.dialers().into_iter().map(|dialer| dialer.live().clone());
        let all = dialled.chain(self.acceptor.sessions());
        all.filter(|live| live.ended().is_none()).map(|live| live.snapshot()).collect()
    }

    /// Closes every session, and stops listening and dialling.
    pub fn stop(&self) {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        // Whoever is about to wait has seen it, or gets the notice.
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

/// Keeps a session with a host, as long as it exists.
pub struct SessionHold {
    shared: Arc<Shared>,
    host: String,
}

impl SessionHold {
    /// The host.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The session with the host that this end dialled, once there is one; unless the deadline is first, or `stopped`.
    /// It lasts as long as this exists; one that the other end dialled would last as long as that end likes.
    pub(crate) fn session(&self, deadline: Instant, stopped: &dyn Fn() -> bool) -> Option<Arc<RunningSession>> {
        let dialled = |state: &State| {
            let live = state.hosts.get(&self.host)?.dialer.as_ref()?.live();
            live.ended().is_none().then(|| live.clone())
        };
        self.shared.wait_for(deadline, dialled, |_| stopped())
    }

    fn unreachable(&self) -> AskError {
        let host = self.host.clone();
        if self.shared.is_stopping() {
            return AskError::Stopping;
        }
        let why = self.shared.lock().hosts.get(&host).map(|host| host.why.clone()).unwrap_or_default();
        let why = if why.is_empty() { "it does not answer".to_owned() } else { why };
        AskError::Unreachable { host, why }
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        self.shared.want(&self.host, |host| host.holds -= 1);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn dialers(&self) -> Vec<Arc<Dialer>> {
        self.lock().hosts.values().filter_map(|host| host.dialer.clone()).collect()
    }

    /// Waits for a change, or a little.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, patience: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, patience).expect("no panic under this lock").0
    }

    /// Changes who wants a host, and sees to it that somebody dials it.
    fn want(self: &Arc<Self>, name: &str, change: impl FnOnce(&mut Peer)) {
        let mut state = self.lock();
        let host = state.hosts.entry(name.to_owned()).or_default();
        change(host);
        if host.wanted() && !host.dialling && !self.is_stopping() {
            if name == self.identity.host() {
                host.failures += ATTEMPTS_BEFORE_ERROR;
                host.why = "it is this host".into();
            } else {
                let (shared, dialled) = (self.clone(), name.to_owned());
                match spawn("reach", move || shared.keep(&dialled)) {
                    Ok(()) => host.dialling = true,
                    Err(error) => {
                        // The next look tries again.
                        host.failures += 1;
                        host.why = format!("no thread to dial it: {error}");
                    }
                }
            }
        }
        state.tidy(name);
        drop(state);
        self.changed.notify_all();
    }

    /// What `find` finds, once it does; unless the deadline is first, or `stop`.
    fn wait_for<T>(
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
            state = self.wait(state, left.min(LOOK_PERIOD));
        }
    }

    // ---- dialling ----

    /// Dials a host, and again, until nobody wants it.
    fn keep(self: &Arc<Self>, name: &str) {
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
                    // It ended as soon as it began: no better than none.
                }
                Err(why) => self.failed(name, why),
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
                state = self.wait(state, left);
            }
        }
    }

    fn failed(&self, name: &str, why: String) {
        let mut state = self.lock();
        let host = state.hosts.entry(name.to_owned()).or_default();
        if host.why != why {
            warn!(peer = name, "cannot be reached: {why}");
        }
        host.failures += 1;
        host.why = why;
        drop(state);
        self.changed.notify_all();
    }

    fn dial(&self, name: &str, last_good: Option<SocketAddr>) -> Result<Arc<Dialer>, String> {
        let mut to = self.hosts_file.find(name)?;
        // What worked last first: an address that does not answer costs a second.
        to.sort_by_key(|address| Some(*address) != last_good);
        let acceptor = &self.settings.acceptor;
        let settings = DialerSettings {
            to,
            host: Some(name.to_owned()),
            addresses: acceptor.addresses.clone(),
            connections: self.settings.connections,
            plain_data: self.settings.plain_data,
            outage: acceptor.outage,
        };
        // Streams go from who dials to who is dialled: where those that the peer would open appear is dropped.
        let (dialer, _) = Dialer::start(settings, &self.identity).map_err(|error| error_chain(&error))?;
        Ok(dialer)
    }

    /// Keeps a control stream in a session that this end dialled, until the session is over or nobody wants it.
    fn accompany(self: &Arc<Self>, name: &str, dialer: &Arc<Dialer>) {
        self.lock().hosts.entry(name.to_owned()).or_default().dialer = Some(dialer.clone());
        self.changed.notify_all();
        dialer.stop(self.attend(name, dialer.live()));
        if let Some(host) = self.lock().hosts.get_mut(name) {
            host.dialer = None;
        }
    }

    /// Returns why the session is not wanted any more.
    fn attend(self: &Arc<Self>, name: &str, live: &Arc<RunningSession>) -> &'static str {
        let mut link: Option<Arc<ControlStream>> = None;
        let mut next_link = Instant::now();
        let mut unwanted_since = None;
        loop {
            if live.ended().is_some() {
                return "it is over";
            }
            if link.as_ref().is_none_or(|link| link.is_over()) && Instant::now() >= next_link {
                next_link = Instant::now() + REDIAL_MAX;
                let begun = self.begin(live).and_then(|(link, far)| {
                    let opened = live.open(&StreamDestination::Control.to_string(), far.into(), StreamContent::Bytes);
                    opened.map(|_| link).map_err(io::Error::other)
                });
                match begun {
                    Ok(begun) => link = Some(begun),
                    Err(error) => self.failed(name, format!("no control stream: {error}")),
                }
            }
            let state = self.lock();
            if self.is_stopping() {
                return "the agent stops";
            }
            let wanted = state.hosts.get(name).is_some_and(Peer::wanted);
            unwanted_since = if wanted { None } else { unwanted_since.or(Some(Instant::now())) };
            if unwanted_since.is_some_and(|since| since.elapsed() >= UNWANTED_SESSION_TIME) {
                return "nobody needs it any more";
            }
            drop(self.wait(state, LOOK_PERIOD));
        }
    }

    // ---- control streams ----

    /// Serves the streams that a peer opens, until the session is over.
    fn serve(self: &Arc<Self>, live: &Arc<RunningSession>, streams: Receiver<IncomingStream>) {
        stream_destination::serve(live, streams, &|live, incoming| match incoming.destination.parse() {
            Ok(StreamDestination::Control) => self.welcome(live, incoming).map(|()| None),
            Ok(StreamDestination::Migration(id)) => self.landings.take(id, live, incoming.stream).map(Some),
            Ok(StreamDestination::Socket(path)) => {
                stream_destination::allowed(&self.settings.allow, &path, StreamContent::Bytes)
            }
            Ok(StreamDestination::Pages(path)) => stream_destination::allowed(
                &self.settings.allow,
                &path,
                StreamContent::Target(TargetPages::new(None, None)),
            ),
            Err(reason) => Err((ResetCode::NoDestination, reason)),
        });
    }

    /// A peer opened its control stream.
    fn welcome(self: &Arc<Self>, live: &Arc<RunningSession>, incoming: &IncomingStream) -> Result<(), Refusal> {
        if live.peer() == self.identity.host() {
            let reason = format!("this is {}, and so are you: an agent needs no session with itself", live.peer());
            return Err((ResetCode::NotAllowed, reason));
        }
        // One in each session: its last one is broken.
        let before: Vec<Arc<ControlStream>> = {
            let state = self.lock();
            let links = state.hosts.get(live.peer()).into_iter().flat_map(|host| &host.links);
            links.filter(|known| Arc::ptr_eq(&known.link.live, live)).map(|known| known.link.clone()).collect()
        };
        before.iter().for_each(|link| link.break_off());
        let begun = self.begin(live);
        let (_, far) = begun.map_err(|error| (ResetCode::Busy, format!("no control stream on that host: {error}")))?;
        live.join_socket(incoming.stream, far, StreamContent::Bytes);
        Ok(())
    }

    /// Begins a control stream in a session; the socket is to be joined to it.
    fn begin(self: &Arc<Self>, live: &Arc<RunningSession>) -> io::Result<(Arc<ControlStream>, UnixStream)> {
        let (hearing, ending) = (self.clone(), self.clone());
        let mut state = self.lock();
        state.links += 1;
        let (link, far) = ControlStream::start(
            live,
            state.links,
            move |link, wire| hearing.handle_message(link, wire),
            move |link, fault| ending.over(link, fault),
        )?;
        let known = PeerControlStream { link: link.clone(), greeted: false, silent_since: None };
        state.hosts.entry(live.peer().to_owned()).or_default().links.push(known);
        Ok((link, far))
    }

    /// A peer says something.
    fn handle_message(self: &Arc<Self>, link: &Arc<ControlStream>, wire: ControlMessage) {
        let peer = link.peer();
        match wire {
            ControlMessage::Hello { release, .. } => {
                let mut state = self.lock();
                if let Some(host) = state.hosts.get_mut(peer) {
                    let known = host.links.iter_mut().find(|known| known.link.number == link.number);
                    known.into_iter().for_each(|known| known.greeted = true);
                    host.why.clear();
                }
                state.news.insert(peer.to_owned());
                state.settle(peer);
                drop(state);
                info!(peer, "in contact (skein {})", printable(release, PEER_TEXT_BYTES_MAX));
                self.changed.notify_all();
            }
            ControlMessage::Handover(message) => self.queue(link, self.handover_event(peer, message)),
            ControlMessage::NotUnderstood => {
                let us = self.identity.host();
                self.not_understood(
                    link,
                    format!("the agent of {peer} does not understand {us}'s messages: are both of one release?"),
                );
            }
            ControlMessage::Note { id, text } => {
                self.queue(link, PeerEvent::Note(peer.to_owned(), id, printable(text, PEER_TEXT_BYTES_MAX)));
            }
            ControlMessage::Ask { number, question } => {
                let (answer, peer) = (self.answer.clone(), peer.to_owned());
                link.answer(number, move || answer(&peer, question));
            }
            ControlMessage::Answer { number, answer } => {
                link.complete_question(number, answer.map_err(|reason| printable(reason, PEER_TEXT_BYTES_MAX)))
            }
        }
    }

    /// Reads what a peer says of a migration.
    fn handover_event(&self, peer: &str, message: Message<Value>) -> PeerEvent {
        let (id, vm) = match &message {
            Message::Intent { id, vm, .. } => (*id, vm.clone()),
            Message::Report { id, .. } => (*id, String::new()),
        };
        match message.try_map_offer(|offer| Offer::from_json(&offer).map(Arc::new)) {
            Ok(message) => PeerEvent::Message(peer.to_owned(), fit_to_print(message)),
            Err(error) => {
                let reason = format!(
                    "{} cannot read what {peer} offers: {}: are both of one release?",
                    self.identity.host(),
                    error_chain(&error)
                );
                let reason = printable(reason, PEER_TEXT_BYTES_MAX);
                PeerEvent::UnreadableOffer { host: peer.to_owned(), id, vm, reason }
            }
        }
    }

    /// Has something passed on that a peer said. Its control stream waits while too much is there.
    fn queue(&self, link: &ControlStream, event: PeerEvent) {
        let mut state = self.lock();
        while state.messages.len() >= MESSAGES_MAX && !link.is_over() && !self.is_stopping() {
            state = self.wait(state, LOOK_PERIOD);
        }
        if !state.deaf && state.messages.len() < MESSAGES_MAX {
            state.messages.push_back(event);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Tells, and not again and again, that the two agents cannot read each other's messages.
    fn not_understood(&self, link: &ControlStream, words: String) {
        let peer = link.peer().to_owned();
        let now = Instant::now();
        let mut state = self.lock();
        let told =
            state.not_understood.get(&peer).map(|(told, _)| *told).filter(|told| told.elapsed() < LOG_AGAIN_PERIOD);
        state.not_understood.insert(peer.clone(), (told.unwrap_or(now), now));
        drop(state);
        if told.is_none() {
            warn!(peer, "{words}");
        }
        self.queue(link, PeerEvent::NotUnderstood(peer, words));
    }

    /// A control stream is over.
    fn over(&self, link: &Arc<ControlStream>, fault: Option<ControlStreamError>) {
        let peer = link.peer();
        let mut state = self.lock();
        if let Some(host) = state.hosts.get_mut(peer) {
            let known = host.links.iter().position(|known| known.link.number == link.number);
            let known = known.map(|at| host.links.remove(at));
            let why = match &fault {
                Some(fault) => Some(error_chain(fault)),
                // Of a session that this end dialled and that goes on.
                None if known.is_some_and(|known| !known.greeted)
                    && host.dialer.as_ref().is_some_and(|dialer| Arc::ptr_eq(dialer.live(), &link.live))
                    && link.live.ended().is_none() =>
                {
                    Some("it does not take a control stream: is it another version of skein?".to_owned())
                }
                None => None,
            };
            if let Some(why) = why.filter(|_| !self.is_stopping()) {
                host.failures += 1;
                host.why = why;
            }
        }
        state.settle(peer);
        state.tidy(peer);
        drop(state);
        self.changed.notify_all();
        if let Some(fault) = fault {
            if matches!(&fault, ControlStreamError::Line(LineError::Malformed { .. })) {
                let us = self.identity.host();
                let words =
                    format!("the agent of {us} does not understand {peer}'s messages: are both of one release?");
                self.not_understood(link, words);
                debug!(peer, "its session is closed: {}", error_chain(&fault));
            } else {
                warn!(peer, "its session is closed: {}", error_chain(&fault));
            }
            link.live.close("the other agent does not keep to the protocol");
        }
    }

    // ---- looking and telling ----

    /// Looks whether control streams have paths.
    fn check_contact(self: &Arc<Self>) {
        while !self.is_stopping() {
            let links: Vec<Arc<ControlStream>> = {
                let state = self.lock();
                state.hosts.values().flat_map(|host| host.links.iter().map(|known| known.link.clone())).collect()
            };
            let mut silent = BTreeSet::new();
            for link in links {
                if !link.live.snapshot().paths.iter().any(|path| path.status.usable) {
                    silent.insert(link.number);
                }
            }
            let now = Instant::now();
            let mut state = self.lock();
            let State { hosts, .. } = &mut *state;
            let mut late = Vec::new();
            for known in hosts.values_mut().flat_map(|host| &mut host.links) {
                let since = known.silent_since.unwrap_or(now);
                known.silent_since = silent.contains(&known.link.number).then_some(since);
                if !known.greeted && known.link.since.elapsed() >= HELLO_TIME {
                    late.push(known.link.clone());
                }
            }
            let names: Vec<String> = hosts.keys().cloned().collect();
            let unserved: Vec<String> = hosts
                .iter()
                .filter(|(_, host)| host.wanted() && !host.dialling)
                .map(|(name, _)| name.clone())
                .collect();
            names.iter().for_each(|name| state.settle(name));
            drop(state);
            self.changed.notify_all();
            unserved.iter().for_each(|name| self.want(name, |_| {}));
            for link in late {
                debug!(peer = link.peer(), "no greeting within {} s", HELLO_TIME.as_secs());
                link.break_off();
            }
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Passes on what is new.
    fn tell(&self, events: &SyncSender<PeerEvent>) {
        let mut state = self.lock();
        while !self.is_stopping() {
            let event = if let Some(host) = state.news.pop_first() {
                let contact = state.hosts.get(&host).is_some_and(|host| host.contact);
                PeerEvent::Contact(host, contact)
            } else if let Some(event) = state.messages.pop_front() {
                event
            } else {
                state = self.wait(state, LOOK_PERIOD);
                continue;
            };
            drop(state);
            self.changed.notify_all();
            let sent = events.send(event);
            state = self.lock();
            if sent.is_err() {
                break;
            }
        }
        state.deaf = true;
        state.messages.clear();
    }
}

/// The same with words that can be shown.
fn fit_to_print<O>(mut message: Message<O>) -> Message<O> {
    let fit = |text: &mut String| *text = printable(std::mem::take(text), PEER_TEXT_BYTES_MAX);
    match &mut message {
        Message::Intent { detail, .. } => fit(detail),
        Message::Report { detail, last_words: said, .. } => [detail, said].into_iter().for_each(fit),
    }
    message
}

impl State {
    /// Whether a host's messages, or this one's there, could not be read of late.
    fn is_not_understood(&self, name: &str) -> bool {
        self.not_understood.get(name).is_some_and(|(_, last)| last.elapsed() < 2 * REDIAL_NOT_UNDERSTOOD)
    }

    /// Finds out whether a host is in contact; a change is news.
    fn settle(&mut self, name: &str) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        let contact = host.links.iter().any(PeerControlStream::works);
        if contact != host.contact {
            host.contact = contact;
            if !contact {
                info!(peer = name, "out of contact");
            }
            self.news.insert(name.to_owned());
        }
    }

    /// Forgets a host that nothing is left of.
    fn tidy(&mut self, name: &str) {
        if self.hosts.get(name).is_some_and(Peer::is_idle) {
            self.hosts.remove(name);
        }
    }
}
