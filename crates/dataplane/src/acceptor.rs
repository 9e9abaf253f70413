//! Is the end that is dialled: listens on every NIC, shakes hands, and sorts connections into sessions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use skein_fabric::Rails;
use skein_identity::Identity;
use skein_link::{Incoming, ListenError, Listeners, ListeningNic, Pending, Security, Shutdown, TcpListeners};
use skein_session::frame::FrameKind;
use skein_session::handshake::{Hello, RefuseCode, Welcome};
use skein_session::limits::PROTOCOL_VERSION;
use skein_session::pairs::announced;
use skein_session::{ConnectionKind, Role, SessionId, Settings};
use tracing::{debug, info, warn};

use crate::addresses::Addresses;
use crate::handshake::{HandshakeFailed, RAIL_TIME, is_proof, listen, mark, rail, refuse, return_probe, take_apart};
use crate::host_nics::{HostNics, ThisHost};
use crate::running_session::{IncomingStream, PathInfo, RunningSession, spawn};

/// Bounds the time of a handshake. In tests a busy machine may keep a thread waiting.
const HANDSHAKE_TIME: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 5 });
/// Bounds the handshakes under way at once.
const HANDSHAKES_MAX: usize = 64;
/// Bounds the handshakes under way with one address. A host that dials all its paths needs one from each of its own
/// addresses.
const HANDSHAKES_PER_ADDRESS: usize = 16;
/// Says how often a message that strangers can cause is logged at most.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(1);
/// Bounds the sessions at once.
const SESSIONS_MAX: usize = 64;
/// Says by when listeners that are to close have closed.
const LISTENERS_TIME: Duration = Duration::from_millis(500);
/// Says after how long listeners of new NICs are waited on.
const ACCEPT_WAIT: Duration = Duration::from_millis(250);
/// Says how often NICs are checked.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// The settings of an acceptor.
#[derive(Clone, Debug)]
pub struct AcceptorSettings {
    /// The address to listen on. An unspecified address means each NIC, also NICs that appear later.
    pub listen: SocketAddr,
    /// The addresses that peers are told.
    pub addresses: Addresses,
    /// Whether peers may send bulk data unencrypted.
    pub allow_plain_data: bool,
    /// See [`Settings`].
    pub outage: Duration,
}

/// A session, and the streams that its peer opens.
type NewSession = (Arc<RunningSession>, Receiver<IncomingStream>);

/// Called with each new session and the streams that its peer opens, on a thread of its own.
pub type OnSession = dyn Fn(Arc<RunningSession>, Receiver<IncomingStream>) + Send + Sync;

struct OpenSession {
    live: Arc<RunningSession>,
    /// The key of the proofs on connections without TLS; empty if such connections are not allowed.
    plain_key: Vec<u8>,
}

/// A connection that may join a session.
struct Admitted {
    live: Arc<RunningSession>,
    /// The key that the peer is told; empty if there is nothing to tell.
    plain_key: Vec<u8>,
    /// The streams that the peer of a new session opens.
    streams: Option<Receiver<IncomingStream>>,
}

/// The listeners of an acceptor, and the host's NICs.
pub(crate) struct AcceptingHost {
    pub(crate) nics: Arc<dyn HostNics>,
    pub(crate) rails: Option<Arc<dyn Rails>>,
    pub(crate) listeners: Box<dyn Listeners>,
}

struct Shared {
    settings: AcceptorSettings,
    host: AcceptingHost,
    sessions: Mutex<HashMap<SessionId, OpenSession>>,
    on_session: Box<OnSession>,
    handshakes: Mutex<Handshakes>,
    complained: Mutex<Option<Instant>>,
    /// Whether listeners may be open.
    accepting: AtomicBool,
    stopping: AtomicBool,
}

/// Accepts sessions until it is dropped or stopped.
pub struct Acceptor {
    shared: Arc<Shared>,
    port: u16,
}

impl Acceptor {
    /// Listens, and accepts from now on.
    ///
    /// # Errors
    /// The address is in use, or is not this host's.
    pub fn start(
        settings: AcceptorSettings,
        identity: &Identity,
        on_session: Box<OnSession>,
    ) -> Result<Acceptor, ListenError> {
        let listeners = Box::new(TcpListeners::new(skein_identity::server_config(identity)));
        let (nics, rails) = (Arc::new(ThisHost), settings.addresses.rails.clone());
        Acceptor::start_at(AcceptingHost { nics, rails, listeners }, settings, on_session)
    }

    /// Starts as [`Self::start`] does, at a given host.
    pub(crate) fn start_at(
        host: AcceptingHost,
        settings: AcceptorSettings,
        on_session: Box<OnSession>,
    ) -> Result<Acceptor, ListenError> {
        host.nics.keep_apart(&settings.addresses.now(&*host.nics));
        let listen = settings.listen;
        let no_thread = move |source| ListenError { address: listen, nic: None, source };
        let shared = Arc::new(Shared {
            host,
            sessions: Mutex::default(),
            on_session,
            handshakes: Mutex::default(),
            complained: Mutex::default(),
            accepting: AtomicBool::new(true),
            stopping: AtomicBool::new(false),
            settings,
        });
        let mut port = listen.port();
        if listen.ip().is_unspecified() {
            for (index, name) in shared.nics() {
                // With port 0 the first NIC's choice of a port is the choice for all NICs.
                let nic = Some(ListeningNic { index, name });
                port = shared.host.listeners.listen(SocketAddr::new(listen.ip(), port), nic)?;
            }
        } else {
            port = shared.host.listeners.listen(listen, None)?;
        }
        let accepting = shared.clone();
        spawn("accept", move || accepting.accept()).map_err(no_thread)?;
        let looking = shared.clone();
        let listen = SocketAddr::new(listen.ip(), port);
        let look = move || {
            while !looking.stopping.load(Ordering::SeqCst) {
                looking.check_listeners(listen);
                thread::sleep(LOOK_PERIOD);
            }
        };
        if let Err(error) = spawn("nics", look) {
            shared.stopping.store(true, Ordering::SeqCst);
            return Err(no_thread(error));
        }
        Ok(Acceptor { shared, port })
    }

    /// Returns the port that is listened on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the sessions that are alive.
    pub fn sessions(&self) -> Vec<Arc<RunningSession>> {
        self.shared.lock().values().map(|member| member.live.clone()).collect()
    }

    /// Stops listening and closes every session.
    pub fn stop(&self, reason: &str) {
        if !self.shared.stopping.swap(true, Ordering::SeqCst) {
            thread::scope(|scope| {
                for live in self.sessions() {
                    scope.spawn(move || live.close(reason));
                }
            });
            // A peer that dials from now on is to find nobody, or the next agent.
            let end = Instant::now() + LISTENERS_TIME;
            while self.shared.accepting.load(Ordering::SeqCst) && Instant::now() < end {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop("the agent stops");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, OpenSession>> {
        self.sessions.lock().expect("no panic under this lock")
    }

    /// Returns this host's NICs that are to be listened on, up or not. Ports of bridges and bonds are left out, because
    /// what arrives on them is their master's. A host may have hundreds.
    fn nics(&self) -> BTreeMap<u32, String> {
        let wanted = &self.settings.addresses.nics;
        let all = self.host.nics.nics().unwrap_or_else(|error| {
            warn!("cannot list this host's NICs: {error}");
            Vec::new()
        });
        let swallows =
            |nic: &skein_host::Nic| matches!(nic.kind.as_deref(), Some("bridge" | "bond" | "team" | "openvswitch"));
        let masters: BTreeSet<u32> = all.iter().filter(|nic| swallows(nic)).map(|nic| nic.index).collect();
        let listed = all.into_iter().filter(|nic| match wanted.is_empty() {
            true => nic.master.is_none_or(|master| !masters.contains(&master)),
            false => wanted.contains(&nic.name),
        });
        listed.map(|nic| (nic.index, nic.name)).collect()
    }

    /// Takes connections until the end, on all listeners. A thread for each listener would make hundreds.
    fn accept(self: &Arc<Self>) {
        while !self.stopping.load(Ordering::SeqCst) {
            let taken = self.host.listeners.accept(ACCEPT_WAIT).unwrap_or_else(|error| {
                warn!("cannot wait for connections: {error}");
                thread::sleep(LOOK_PERIOD);
                Vec::new()
            });
            for incoming in taken {
                match incoming {
                    Ok(incoming) => self.clone().take(incoming),
                    Err(error) => {
                        warn!("cannot accept connections: {error}");
                        thread::sleep(LOOK_PERIOD);
                    }
                }
            }
        }
        self.host.listeners.close();
        self.accepting.store(false, Ordering::SeqCst);
    }

    /// Keeps listeners and sessions in step with the host's NICs.
    fn check_listeners(self: &Arc<Self>, listen: SocketAddr) {
        if listen.ip().is_unspecified() {
            let nics = self.nics();
            let listeners = &self.host.listeners;
            listeners.retain(&|nic| nics.contains_key(&nic.index));
            let known = listeners.nics();
            for (index, name) in nics.into_iter().filter(|(index, _)| !known.contains(index)) {
                if let Err(error) = listeners.listen(listen, Some(ListeningNic { index, name })) {
                    debug!("{error}: {}", error.source);
                }
            }
        }
        let mut sessions = self.lock();
        sessions.retain(|_, member| member.live.ended().is_none());
        let live: Vec<Arc<RunningSession>> = sessions.values().map(|member| member.live.clone()).collect();
        drop(sessions);
        if live.is_empty() {
            return;
        }
        let addresses = self.settings.addresses.now(&*self.host.nics);
        self.host.nics.keep_apart(&addresses);
        live.into_iter().for_each(|live| live.announce(announced(addresses.clone(), &live.peer_addresses(), &[])));
    }

    /// Shakes hands on a thread of its own, so that a slow peer holds up nobody.
    fn take(self: Arc<Self>, incoming: Box<dyn Incoming>) {
        let peer = incoming.remote();
        let slot = HandshakePermit::take(&self, peer.ip(), incoming.shutdown());
        let work = move || {
            let shared = slot.shared.clone();
            let met = shared.complete_handshake(incoming);
            // The session lasts, but its handshake is over.
            drop(slot);
            match met {
                Ok(Some((live, streams))) => (shared.on_session)(live, streams),
                Ok(None) => {}
                Err(error) => shared.complain(|| info!("{peer}: no session: {error}")),
            }
        };
        if let Err(error) = spawn("handshake", work) {
            self.complain(|| warn!("{peer}: dropped: {error}"));
        }
    }

    /// Logs a message that strangers can cause, at most once a second.
    fn complain(&self, say: impl FnOnce()) {
        let mut last = self.complained.lock().expect("no panic under this lock");
        if last.is_none_or(|last| last.elapsed() >= COMPLAINT_PERIOD) {
            *last = Some(Instant::now());
            say();
        }
    }

    /// Completes a handshake. Returns the session if it is new.
    fn complete_handshake(&self, incoming: Box<dyn Incoming>) -> Result<Option<NewSession>, HandshakeFailed> {
        let (local, peer) = (incoming.local().map_err(skein_link::LinkError::Io)?, incoming.remote());
        let nic = incoming.nic().unwrap_or_default().to_owned();
        // Without a byte in time the connection counts as encrypted, and the link's handshake times out.
        let first = incoming.first_byte(HANDSHAKE_TIME);
        let is_plain = self.settings.allow_plain_data && first == Some(FrameKind::Hello as u8);
        if first == Some(FrameKind::Probe as u8) {
            return_probe(&mut *incoming.open(Security::Plain, HANDSHAKE_TIME)?)?;
            return Ok(None);
        }
        let security = if is_plain { Security::Plain } else { Security::Encrypted };
        let mut pending = incoming.open(security, HANDSHAKE_TIME)?;
        let hello = listen(&mut *pending)?;
        let admitted = match hello.session {
            None => self.admit_new(&*pending, &hello),
            Some(session) => self.admit_known(&*pending, &hello, session),
        };
        let Admitted { live, plain_key, streams } = match admitted {
            Ok(admitted) => admitted,
            Err((code, reason)) => {
                refuse(&mut *pending, code, &reason);
                self.complain(|| info!("{peer}: refused: {reason}"));
                return Ok(None);
            }
        };
        // A new session whose first connection fails has no user.
        let abandoned = |error: HandshakeFailed| {
            if streams.is_some() {
                live.close("its first connection failed");
            }
            error
        };
        let rail = match hello.kind {
            ConnectionKind::Data if hello.rail => {
                pending.give_time(RAIL_TIME);
                rail(self.host.rails.as_deref(), &*self.host.nics, &nic, local.ip()).ok().flatten()
            }
            _ => None,
        };
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            session: live.id,
            plain_key,
            rail: rail.is_some(),
            addresses: announced(
                self.settings.addresses.now(&*self.host.nics),
                &hello.addresses,
                // The peer has found this host by this address.
                &[local.ip()],
            ),
        };
        pending.send(&welcome.encode()).map_err(|error| abandoned(error.into()))?;
        mark(&mut *pending, self.settings.addresses.class);
        let near = self.host.nics.near_cores(&nic);
        let info = PathInfo { nic, local, remote: peer };
        let connection = take_apart(pending, rail).map_err(|error| abandoned(error.into()))?;
        if let Err(error) = live.add_connection(hello.connection, hello.path, hello.kind, info, near, connection) {
            debug!(session = %live.id, "{peer}: connection not added: {error}");
        }
        Ok(streams.map(|streams| {
            info!(session = %live.id, peer = live.peer(), "session from {peer}");
            (live, streams)
        }))
    }

    fn admit_new(&self, pending: &dyn Pending, hello: &Hello) -> Result<Admitted, (RefuseCode, String)> {
        let Some(peer) = pending.peer() else {
            return Err((RefuseCode::NotAllowed, "a session begins under TLS".into()));
        };
        if hello.kind != ConnectionKind::Control {
            return Err((RefuseCode::Other, "a session begins with a control connection".into()));
        }
        if hello.plain_data && !self.settings.allow_plain_data {
            let reason = "data without encryption is not allowed here: start the agent with --allow-plain-data, \
                          or the tunnel without --plain-data";
            return Err((RefuseCode::NotAllowed, reason.into()));
        }
        let mut sessions = self.lock();
        sessions.retain(|_, member| member.live.ended().is_none());
        if sessions.len() >= SESSIONS_MAX || self.stopping.load(Ordering::SeqCst) {
            return Err((RefuseCode::Busy, format!("{SESSIONS_MAX} sessions are open already")));
        }
        let id = SessionId(random());
        let plain_key = if hello.plain_data { random::<32>().to_vec() } else { Vec::new() };
        let settings = Settings { outage: self.settings.outage };
        let started = RunningSession::start(
            Role::Acceptor,
            settings,
            id,
            peer.to_owned(),
            hello.addresses.clone(),
            self.host.rails.clone(),
        );
        let (live, streams) = started.map_err(|error| (RefuseCode::Busy, error.to_string()))?;
        sessions.insert(id, OpenSession { live: live.clone(), plain_key: plain_key.clone() });
        Ok(Admitted { live, plain_key, streams: Some(streams) })
    }

    fn admit_known(
        &self,
        pending: &dyn Pending,
        hello: &Hello,
        session: SessionId,
    ) -> Result<Admitted, (RefuseCode, String)> {
        let sessions = self.lock();
        let unknown = || (RefuseCode::UnknownSession, "no such session here (was the agent restarted?)".to_owned());
        let member = sessions.get(&session).filter(|m| m.live.ended().is_none()).ok_or_else(unknown)?;
        let is_allowed =
            pending.caps().encrypted || (hello.kind == ConnectionKind::Data && !member.plain_key.is_empty());
        let is_proven = match pending.peer() {
            Some(peer) => peer == member.live.peer(),
            None => !member.plain_key.is_empty() && is_proof(&member.plain_key, hello),
        };
        // To a stranger a session of others does not exist.
        if !is_allowed || !is_proven {
            return Err(unknown());
        }
        Ok(Admitted { live: member.live.clone(), plain_key: Vec::new(), streams: None })
    }
}

/// The handshakes under way, oldest first.
#[derive(Default)]
struct Handshakes {
    next: u64,
    under_way: BTreeMap<u64, (IpAddr, Box<dyn Shutdown>)>,
}

/// A permit for a handshake; given back when dropped.
struct HandshakePermit {
    shared: Arc<Shared>,
    number: u64,
}

impl HandshakePermit {
    /// Takes a permit. If there is none, the oldest handshake (of the same address, if that address has its share) is
    /// cut off: an honest peer is done in milliseconds, a peer that only holds permits is not.
    fn take(shared: &Arc<Shared>, ip: IpAddr, shutdown: Box<dyn Shutdown>) -> HandshakePermit {
        let mut handshakes = shared.handshakes.lock().expect("no panic under this lock");
        let under_way = &mut handshakes.under_way;
        let own = under_way.values().filter(|(other, _)| *other == ip).count();
        if own >= HANDSHAKES_PER_ADDRESS || under_way.len() >= HANDSHAKES_MAX {
            let of_address = own >= HANDSHAKES_PER_ADDRESS;
            let oldest = under_way.iter().find(|(_, (other, _))| !of_address || *other == ip).map(|(n, _)| *n);
            if let Some((other, shutdown)) = oldest.and_then(|number| under_way.remove(&number)) {
                shutdown.close();
                shared.complain(|| warn!("too many handshakes are under way: the oldest, with {other}, is cut off"));
            }
        }
        let number = handshakes.next;
        handshakes.next += 1;
        handshakes.under_way.insert(number, (ip, shutdown));
        HandshakePermit { shared: shared.clone(), number }
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut handshakes = self.shared.handshakes.lock().expect("no panic under this lock");
        handshakes.under_way.remove(&self.number);
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has randomness");
    bytes
}
