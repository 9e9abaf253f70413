//! A session with its threads.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use skein_link::{Reader, Writer};
use skein_session::address::NicAddress;
use skein_session::limits::STREAMS_MAX;
use skein_session::{
    ConnectionEnd, ConnectionId, ConnectionKind, Ended, Event, OpenError, PathId, ProtocolError, Role, Session,
    SessionId, Settings, StreamId,
};
use thiserror::Error;
use tracing::{debug, info, warn};

use crate::connection::ConnectionSender;
use crate::network_problem::NetworkProblem;
use crate::pool::Pool;
use crate::source::SourcePages;
use crate::stream::Egress;
use crate::target::TargetPages;
use crate::{ResetCode, connection, source, stream};

/// How often a session is told the time.
const CLOCK_PERIOD: Duration = Duration::from_millis(50);
/// Send buffer of a local socket: two full packets of multifd (1344 + 524288 bytes each).
const SOCKET_BYTES: usize = 1 << 20;
/// A goodbye may take this long to leave.
const BYE_TIME: Duration = Duration::from_millis(500);

/// A stream that the peer opened.
#[derive(Debug)]
pub struct IncomingStream {
    /// Its number.
    pub stream: StreamId,
    /// What the peer wants to reach.
    pub destination: String,
    /// When its opening arrived.
    pub since: Instant,
}

/// What is known about a path's ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PathInfo {
    /// This end's NIC, if known.
    pub nic: String,
    /// This end's address.
    pub local: SocketAddr,
    /// The other end's address.
    pub remote: SocketAddr,
}

/// What a stream carries.
#[derive(Clone)]
pub enum StreamContent {
    /// Bytes, as they are.
    Bytes,
    /// A migration, whose source is here.
    Source(Arc<SourcePages>),
    /// A migration, whose target is here.
    Target(Arc<TargetPages>),
}

/// A session at a moment, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct SessionSnapshot {
    /// The other host.
    pub peer: String,
    /// The first bytes of the session's number.
    pub session: String,
    /// Streams that are open.
    pub streams: usize,
    /// Bytes that went out a second time.
    pub resent_bytes: u64,
    /// Paths with a connection, by NIC.
    pub paths: Vec<PathSnapshot>,
    /// What is not as it should be between the two hosts; known to the end that dialled.
    #[serde(rename = "faults")]
    pub problems: Vec<NetworkProblem>,
    /// Paths of which is being found out how large their packets may be: more faults may follow.
    #[serde(skip)]
    pub mtu_probes_under_way: usize,
}

/// A path at a moment.
#[derive(Clone, Debug, Serialize)]
pub struct PathSnapshot {
    /// Its ends.
    #[serde(flatten)]
    pub info: PathInfo,
    /// Its numbers.
    #[serde(flatten)]
    pub status: skein_session::PathStatus,
}

/// A stream that does not lead to its local end.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum JoinError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("it was torn down meanwhile")]
    TornDown,
    #[error("no thread can be started: raise the limit on processes, or free memory")]
    Threads(#[source] io::Error),
}

pub(crate) struct ConnectionHandle {
    sender: Arc<ConnectionSender>,
    /// Its thread is to look whether there is something to send.
    pub(crate) has_work: bool,
    shutdown: skein_link::Shutdown,
}

pub(crate) struct StreamHandle {
    /// Whoever waits for the first byte.
    readable: Arc<Condvar>,
    writable: Arc<Condvar>,
    /// The local end, once connected.
    egress: Option<Arc<Egress>>,
    /// The egress thread is to look whether there is something to receive.
    pub(crate) has_work: bool,
}

impl StreamHandle {
    fn new() -> StreamHandle {
        StreamHandle { readable: Arc::default(), writable: Arc::default(), egress: None, has_work: false }
    }
}

/// Who does what the session asks for: the threads whose it is, but for one thing that the caller does itself.
pub(crate) enum Dispatch<'a> {
    /// The threads, all of it.
    Threads,
    /// The caller sends on one connection.
    Connection(&'a mut Option<(ConnectionId, Arc<ConnectionSender>)>),
    /// The caller writes to one stream's socket.
    Egress(&'a mut Option<(StreamId, Arc<Egress>)>),
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) core: Session,
    pub(crate) connections: HashMap<ConnectionId, ConnectionHandle>,
    pub(crate) streams: HashMap<StreamId, StreamHandle>,
    paths: HashMap<PathId, PathInfo>,
    peer_addresses: Vec<NicAddress>,
    problems: Vec<NetworkProblem>,
    mtu_probes_under_way: usize,
    incoming: Option<SyncSender<IncomingStream>>,
}

impl State {
    /// Has a connection's own thread look for something to send.
    pub(crate) fn wake_connection(&mut self, id: ConnectionId) {
        if let Some(handle) = self.connections.get_mut(&id) {
            handle.has_work = true;
            handle.sender.wake.notify_one();
        }
    }

    /// Has a stream's egress thread look for something to receive.
    pub(crate) fn wake_egress(&mut self, id: StreamId) {
        if let Some(handle) = self.streams.get_mut(&id) {
            handle.has_work = true;
            handle.readable.notify_one();
            if let Some(egress) = &handle.egress {
                egress.wake.notify_one();
            }
        }
    }
}

/// A session and the threads that serve it.
pub struct RunningSession {
    pub(crate) id: SessionId,
    pub(crate) peer: String,
    pub(crate) pool: Pool,
    state: Mutex<State>,
    /// Notified when the session ends or a connection goes.
    changed: Condvar,
    epoch: Instant,
}

impl RunningSession {
    /// A session without connections, and where the streams that its peer opens appear.
    pub(crate) fn start(
        role: Role,
        settings: Settings,
        id: SessionId,
        peer: String,
        peer_addresses: Vec<NicAddress>,
    ) -> io::Result<(Arc<RunningSession>, Receiver<IncomingStream>)> {
        let (incoming, streams) = sync_channel(STREAMS_MAX as usize);
        let live = Arc::new(RunningSession {
            id,
            peer,
            pool: Pool::default(),
            state: Mutex::new(State {
                core: Session::new(Duration::ZERO, role, settings),
                connections: HashMap::new(),
                streams: HashMap::new(),
                paths: HashMap::new(),
                peer_addresses,
                problems: Vec::new(),
                mtu_probes_under_way: 0,
                incoming: Some(incoming),
            }),
            changed: Condvar::new(),
            epoch: Instant::now(),
        });
        let clock = live.clone();
        spawn("keeper", move || clock.tell_time())?;
        Ok((live, streams))
    }

    /// The time as the session knows it.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Runs `work` under the lock, then does what the session asks for.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State, Duration) -> T) -> T {
        let mut state = self.lock();
        let result = work(&mut state, self.now());
        self.dispatch(&mut state, Dispatch::Threads);
        result
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The host at the other end.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Where the peer can be reached, as it said last.
    pub(crate) fn peer_addresses(&self) -> Vec<NicAddress> {
        self.lock().peer_addresses.clone()
    }

    /// Tells the peer where this end can be reached.
    pub(crate) fn announce(&self, addresses: Vec<NicAddress>) {
        self.with(|state, _| state.core.announce(addresses));
    }

    /// Why the session is over, if it is.
    pub fn ended(&self) -> Option<Ended> {
        self.lock().core.ended().cloned()
    }

    /// The session at this moment.
    pub fn snapshot(&self) -> SessionSnapshot {
        let state = self.lock();
        let status = state.core.status();
        let paths = status
            .paths
            .into_iter()
            .filter_map(|status| Some(PathSnapshot { info: state.paths.get(&status.path)?.clone(), status }));
        SessionSnapshot {
            peer: self.peer.clone(),
            session: self.id.to_string(),
            streams: status.streams,
            resent_bytes: status.resent_bytes,
            paths: paths.collect(),
            problems: state.problems.clone(),
            mtu_probes_under_way: state.mtu_probes_under_way,
        }
    }

    /// Runs what finds out how large a path's packets may be; whoever looks at the session sees that.
    pub(crate) fn while_probing_mtu<T>(&self, survey: impl FnOnce() -> T) -> T {
        self.lock().mtu_probes_under_way += 1;
        let found = survey();
        self.lock().mtu_probes_under_way -= 1;
        found
    }

    /// Remembers what is not as it should be between the two hosts, and tells what is new of it.
    pub(crate) fn set_problems(&self, faults: Vec<NetworkProblem>) {
        let known = std::mem::replace(&mut self.lock().problems, faults.clone());
        for fault in faults.iter().filter(|fault| !known.contains(fault)) {
            warn!(session = %self.id, peer = self.peer, "{}; {}", fault.what(&self.peer), fault.cure());
        }
    }

    /// Opens a stream to `target` at the peer and joins it to `socket`.
    ///
    /// `held`: the socket stays open when the stream is torn down, and what comes from it is dropped, until its other
    /// end closes it or the caller shuts it down.
    ///
    /// Errors: nobody reads the socket.
    pub fn open(
        self: &Arc<Self>,
        target: &str,
        socket: impl Into<Arc<UnixStream>>,
        content: StreamContent,
        held: bool,
    ) -> Result<StreamId, JoinError> {
        let id = self.with(|state, _| {
            let id = state.core.open(target)?;
            if let StreamContent::Source(source) = &content {
                state.core.confine(id, source.width());
            }
            state.streams.insert(id, StreamHandle::new());
            Ok::<_, OpenError>(id)
        })?;
        self.join_as(id, socket.into(), content, held)?;
        Ok(id)
    }

    /// Joins a stream to its local end: bytes flow until both directions are done.
    pub fn join_socket(self: &Arc<Self>, id: StreamId, socket: UnixStream, content: StreamContent) {
        if let Err(error) = self.join_as(id, socket.into(), content, false) {
            info!(session = %self.id, stream = id.0, "stream not joined: {error}");
        }
    }

    fn join_as(
        self: &Arc<Self>,
        id: StreamId,
        socket: Arc<UnixStream>,
        content: StreamContent,
        held: bool,
    ) -> Result<(), JoinError> {
        // As much as the kernel grants (net.core.wmem_max): less waking of two threads for each packet of multifd.
        let _ = socket2::SockRef::from(&*socket).set_send_buffer_size(SOCKET_BYTES);
        let egress = Arc::new(Egress::new(id, socket, &content, held));
        let writable = self.with(|state, _| {
            let handle = state.streams.get_mut(&id)?;
            handle.egress = Some(egress.clone());
            handle.has_work = true;
            Some(handle.writable.clone())
        });
        // Torn down while its local end was being connected: dropping the socket says so.
        let writable = writable.ok_or(JoinError::TornDown)?;
        let (live, from) = (self.clone(), egress.clone());
        let threads = spawn("ingest", move || match content {
            StreamContent::Source(source) => source::ingest(&live, id, &from, &writable, &source),
            content => stream::ingest(&live, id, &from, &writable, matches!(content, StreamContent::Target(_))),
        })
        .and_then(|ingest| {
            let live = self.clone();
            spawn("egress", move || {
                stream::egress(&live, id, &egress, ingest);
                live.lock().streams.remove(&id);
            })
        });
        threads.map(drop).map_err(|error| {
            self.reset(id, ResetCode::Busy, "that host cannot start another thread: raise its limit on processes");
            self.lock().streams.remove(&id);
            JoinError::Threads(error)
        })
    }

    /// Tears down a stream.
    pub fn reset(&self, id: StreamId, code: ResetCode, reason: &str) {
        self.with(|state, _| {
            state.core.reset(id, code as u64, reason);
            if let Some(handle) = state.streams.get(&id)
                && handle.egress.is_none()
            {
                state.streams.remove(&id);
            }
        });
    }

    /// Waits until a stream has bytes or an end, or for as long as `patience` lasts.
    pub fn wait_readable(&self, id: StreamId, patience: Duration) {
        let mut state = self.lock();
        let Some(readable) = state.streams.get(&id).map(|handle| handle.readable.clone()) else { return };
        readable.wait_while_for(&mut state, |state| !state.core.is_readable(id), patience);
    }

    /// Waits until the session has a connection, as long as the stream lives. False: it does not any more.
    pub fn wait_connected(&self, id: StreamId) -> bool {
        let mut state = self.lock();
        while state.connections.is_empty() && !state.core.is_reset(id) {
            self.changed.wait_for(&mut state, CLOCK_PERIOD);
        }
        !state.core.is_reset(id)
    }

    /// Waits until the peer has all that was sent on a stream, or the stream is over, or `patience` ends.
    pub(crate) fn wait_delivered(&self, id: StreamId, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        while !state.core.is_delivered(id) && Instant::now() < deadline {
            self.changed.wait_for(&mut state, CLOCK_PERIOD);
        }
    }

    /// Adds a connection that has shaken hands, and starts its threads.
    pub(crate) fn add_connection(
        self: &Arc<Self>,
        id: ConnectionId,
        path: PathId,
        kind: ConnectionKind,
        info: PathInfo,
        (reader, writer, shutdown): (Reader, Writer, skein_link::Shutdown),
    ) -> Result<(), ProtocolError> {
        let outlet = Arc::new(ConnectionSender::new(writer));
        self.with(|state, now| {
            state.core.connection_up(now, id, path, kind)?;
            state.paths.insert(path, info);
            state.connections.insert(id, ConnectionHandle { sender: outlet.clone(), has_work: true, shutdown });
            Ok(())
        })?;
        let live = self.clone();
        let threads = spawn("sender", move || connection::send(&live, id, &outlet)).and_then(|sender| {
            let live = self.clone();
            spawn("receiver", move || {
                let down = connection::receive(&live, id, reader);
                live.drop_connection(id, down);
                let _ = sender.join();
            })
        });
        if let Err(error) = threads {
            warn!(session = %self.id, "connection given up: {error}");
            self.drop_connection(id, ConnectionEnd::Failed);
        }
        Ok(())
    }

    /// The connection is of no use any more: its threads end.
    pub(crate) fn drop_connection(&self, id: ConnectionId, how: ConnectionEnd) {
        self.with(|state, now| {
            if let Some(handle) = state.connections.remove(&id) {
                handle.shutdown.close();
                handle.sender.wake.notify_all();
                state.core.connection_down(now, id, how);
                let alive: Vec<PathId> = state.core.status().paths.iter().map(|path| path.path).collect();
                state.paths.retain(|path, _| alive.contains(path));
            }
        });
        self.changed.notify_all();
    }

    /// A path's NIC is gone or its link down.
    pub(crate) fn path_down(&self, path: PathId) {
        self.with(|state, _| state.core.path_down(path));
    }

    /// The other host says that nobody listens there any more.
    pub(crate) fn connection_refused(&self) {
        self.with(|state, _| state.core.connection_refused());
    }

    /// Whether a path has its control connection, and how many data connections it has.
    pub(crate) fn path_connections(&self, path: PathId) -> (bool, usize) {
        let status = self.lock().core.status();
        let path = status.paths.iter().find(|p| p.path == path);
        path.map_or((false, 0), |p| (p.has_control_connection, p.data_connections))
    }

    /// Ends the session: tells the peer, tears down every stream and connection.
    pub fn close(&self, reason: &str) {
        self.with(|state, _| state.core.close());
        debug!(session = %self.id, "closed: {reason}");
        // The senders say goodbye on their connections and end; those that cannot are cut off.
        let mut state = self.lock();
        self.changed.wait_while_for(&mut state, |state| !state.connections.is_empty(), BYE_TIME);
        for handle in state.connections.values() {
            handle.shutdown.close();
        }
        self.dispatch(&mut state, Dispatch::Threads);
    }

    fn tell_time(&self) {
        let mut ended = None;
        loop {
            thread::sleep(CLOCK_PERIOD);
            let over = self.with(|state, now| {
                state.core.handle_timeout(now);
                if state.core.ended().is_some() && now - *ended.get_or_insert(now) >= BYE_TIME {
                    // Those whose goodbye does not leave; TCP would try for a quarter of an hour.
                    state.connections.values().for_each(|connection| connection.shutdown.abort());
                }
                state.core.ended().is_some() && state.connections.is_empty()
            });
            if over {
                return;
            }
        }
    }

    /// Does what the session asks for; the lock is held.
    pub(crate) fn dispatch(&self, state: &mut State, mut urge: Dispatch<'_>) {
        while let Some(event) = state.core.poll_event() {
            match event {
                Event::Transmit(id) => match (&mut urge, state.connections.get(&id)) {
                    (Dispatch::Connection(mine @ None), Some(handle)) => **mine = Some((id, handle.sender.clone())),
                    _ => state.wake_connection(id),
                },
                Event::Close(id) => {
                    // Its receiver notices, and reports it down.
                    if let Some(connection) = state.connections.get(&id) {
                        connection.shutdown.abort();
                        connection.sender.wake.notify_all();
                    }
                }
                Event::Opened(stream, target) => {
                    self.pass_on(state, IncomingStream { stream, destination: target, since: Instant::now() })
                }
                Event::Readable(id) => {
                    let reset = state.core.is_reset(id);
                    match (&mut urge, state.streams.get(&id).and_then(|handle| handle.egress.as_ref())) {
                        (Dispatch::Egress(mine @ None), Some(egress)) if !reset => **mine = Some((id, egress.clone())),
                        (_, egress) => {
                            if let Some(egress) = egress.filter(|_| reset) {
                                egress.shut_down();
                            }
                            state.wake_egress(id);
                        }
                    }
                }
                Event::Writable(id) => {
                    if let Some(stream) = state.streams.get(&id) {
                        stream.writable.notify_one();
                    }
                }
                Event::PeerAddresses(addresses) => state.peer_addresses = addresses,
                Event::Stalled(path, stalled) => {
                    if let Some(PathInfo { nic, remote, .. }) = state.paths.get(&path) {
                        let what = if stalled { "stalls: its data goes over the others" } else { "moves again" };
                        info!(session = %self.id, "path {nic} > {remote} {what}");
                    }
                }
                Event::Ended(why) => {
                    match &why {
                        Ended::Closed | Ended::ClosedByPeer { .. } => {
                            info!(session = %self.id, peer = self.peer, "session over: {why}");
                        }
                        _ => warn!(session = %self.id, peer = self.peer, "session over: {why}"),
                    }
                    state.incoming = None;
                    for connection in state.connections.values() {
                        connection.sender.wake.notify_all();
                    }
                    self.changed.notify_all();
                }
            }
        }
    }

    fn pass_on(&self, state: &mut State, incoming: IncomingStream) {
        let id = incoming.stream;
        state.streams.insert(id, StreamHandle::new());
        let sent = state.incoming.as_ref().map(|sender| sender.try_send(incoming));
        if !matches!(sent, Some(Ok(()))) {
            let reason = match sent {
                Some(Err(TrySendError::Full(_))) => "too many streams wait to be connected",
                _ => "this end takes no streams",
            };
            state.streams.remove(&id);
            state.core.reset(id, ResetCode::Busy as u64, reason);
        }
    }
}

/// Starts a named thread.
///
/// Errors: the system has no room for it.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|error| io::Error::new(error.kind(), format!("no thread for {name}: {error}")))
}
