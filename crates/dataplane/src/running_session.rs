//! Is a session with its threads.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use skein_fabric::Rails;
use skein_link::{LinkEnd, Shutdown as LinkShutdown, Writer};
use skein_session::address::NicAddress;
use skein_session::limits::STREAMS_MAX;
use skein_session::{
    ConnectionEnd, ConnectionId, Ended, Event, PathId, Received, Role, Session, SessionId, Settings, StreamId,
};
use tracing::{debug, info, warn};

use crate::ResetCode;
use crate::clock::Clock;
use crate::decode::Decode;
use crate::error_chain::error_chain;
use crate::excluded::{ExcludedBy, PathAddresses, excluded_words};
use crate::local_end::LocalEnd;
use crate::network_problem::NetworkProblem;
use crate::pool::Pool;
use crate::rail_use::{RailUse, RailsHeldOff};

/// Says how often a session is told the time.
const CLOCK_PERIOD: Duration = Duration::from_millis(50);
/// Says after how long a thread that waits for capacity asks again, whatever happens.
const CAPACITY_WAIT: Duration = Duration::from_secs(1);
/// Bounds how long the last words of a local end that broke may take to reach the peer.
pub(crate) const LAST_WORDS_TIME: Duration = Duration::from_secs(5);
/// Bounds the goodbye and the peer's own end. On a busy host a thread may wait a second for a core, in tests longer.
const BYE_TIME: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 2 });
/// A connection over RDMA that the other end drops sooner than this after its begin counts as failed.
const SHORT_LIVED: Duration = Duration::from_secs(10);

/// A stream that the peer opened.
#[derive(Debug)]
pub struct IncomingStream {
    /// The stream's number.
    pub stream: StreamId,
    /// The destination that the peer wants to reach.
    pub destination: String,
    /// When the stream's opening arrived.
    pub since: Instant,
}

/// The ends of a path, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PathInfo {
    /// This end's NIC, if known.
    pub nic: String,
    /// This end's address.
    pub local: SocketAddr,
    /// The other end's address.
    pub remote: SocketAddr,
}

impl PathInfo {
    fn addresses(&self) -> PathAddresses {
        [self.local.ip(), self.remote.ip()]
    }
}

/// The state of a session at a moment, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct SessionSnapshot {
    /// The other host's name.
    pub peer: String,
    /// The first bytes of the session's number.
    pub session: String,
    /// The number of open streams.
    pub streams: usize,
    /// The bytes that were sent a second time.
    pub resent_bytes: u64,
    /// The paths with a connection, by NIC.
    pub paths: Vec<PathSnapshot>,
    /// The problems of the network between the two hosts. The end that dialled knows them.
    #[serde(rename = "faults")]
    pub problems: Vec<NetworkProblem>,
    /// How many paths are being probed for the size of their packets. More problems may follow from these.
    #[serde(skip)]
    pub mtu_probes_under_way: usize,
}

/// The state of a path at a moment.
#[derive(Clone, Debug, Serialize)]
pub struct PathSnapshot {
    /// The path's ends.
    #[serde(flatten)]
    pub info: PathInfo,
    /// The path's numbers.
    #[serde(flatten)]
    pub status: skein_session::PathStatus,
    /// What the path carries, in words; empty: data, or the other end knows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub carries: String,
    /// How many data connections the path is to have, and why, in words; empty: it carries no data, or the other end
    /// knows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub connections: String,
    /// How many of the data connections go over RDMA.
    #[serde(skip_serializing_if = "is_zero")]
    pub rdma_connections: usize,
    /// Which ends exclude the path's network from data.
    #[serde(skip)]
    pub excluded: ExcludedBy,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl PathSnapshot {
    /// Returns whether the path carries data, or is about to.
    pub fn carries_data(&self) -> bool {
        // The end that dials has the words. The other end sees the connections.
        let is_to = !self.connections.is_empty() || (self.carries.is_empty() && self.status.data_connections > 0);
        self.status.usable && is_to && !self.excluded.any()
    }
}

/// What the end that dials knows of a path, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathWords {
    /// What the path carries; `None`: data.
    pub(crate) carries: Option<String>,
    /// How many data connections the path is to have, and why.
    pub(crate) connections: Option<String>,
}

pub(crate) struct ConnectionHandle {
    pub(crate) sender: Arc<ConnectionSender>,
    /// Whether the connection's thread is to check for something to send.
    pub(crate) has_work: bool,
    pub(crate) shutdown: Box<dyn LinkShutdown>,
    pub(crate) path: PathId,
    /// Whether the connection goes over RDMA.
    pub(crate) over_rdma: bool,
    /// When the connection was added.
    pub(crate) since: Instant,
    /// Why the connection failed, once that is known.
    pub(crate) failure: Option<String>,
}

/// Returns why a connection over RDMA counts as failed; `None`: it does not. The other end's agent may end one for good
/// reasons, and a new one takes its place; one that is ended right after it was opened would be opened again and again.
fn rail_failure(handle: &ConnectionHandle, how: ConnectionEnd) -> Option<String> {
    match how {
        ConnectionEnd::Failed => Some(handle.failure.clone().unwrap_or_else(|| "it was given up".into())),
        ConnectionEnd::Reset if handle.since.elapsed() < SHORT_LIVED => Some("the other end gave it up".into()),
        ConnectionEnd::Reset | ConnectionEnd::Closed => None,
    }
}

/// The sending half of a connection, for its own thread and for others.
pub(crate) struct ConnectionSender {
    pub(crate) writer: Mutex<Box<dyn Writer>>,
    pub(crate) wake: Condvar,
}

pub(crate) struct StreamHandle {
    /// What the stream leads to, by the name that it was opened with.
    destination: Box<str>,
    /// Wakes the thread that waits for the first byte.
    readable: Arc<Condvar>,
    pub(crate) writable: Arc<Condvar>,
    /// The local end, once it is connected.
    pub(crate) egress: Option<Arc<Egress>>,
    /// Whether the egress thread is to check for something to receive.
    pub(crate) has_work: bool,
}

impl StreamHandle {
    pub(crate) fn new(destination: &str) -> StreamHandle {
        let destination = destination.into();
        StreamHandle { destination, readable: Arc::default(), writable: Arc::default(), egress: None, has_work: false }
    }
}

/// A stream's way out: the local end, and what is on the way there.
pub(crate) struct Egress {
    pub(crate) local_end: LocalEnd,
    pub(crate) undelivered: Mutex<Undelivered>,
    pub(crate) wake: Condvar,
}

/// The part of a stream that was received and is not written yet.
pub(crate) struct Undelivered {
    /// Makes what is written from what was received. `None`: both are the same.
    pub(crate) decoder: Option<Box<dyn Decode>>,
    /// The pieces to write next.
    pub(crate) pieces: VecDeque<Bytes>,
    /// The bytes of the stream that are done with, of which the session does not know yet.
    pub(crate) consumed: u64,
    /// The bytes written since the stream began.
    pub(crate) written: u64,
    /// The end that comes after the pieces.
    pub(crate) end: Option<Received>,
}

impl Egress {
    pub(crate) fn new(local_end: LocalEnd, decoder: Option<Box<dyn Decode>>) -> Egress {
        let undelivered = Undelivered { decoder, pieces: VecDeque::new(), consumed: 0, written: 0, end: None };
        Egress { local_end, undelivered: Mutex::new(undelivered), wake: Condvar::new() }
    }
}

/// The state that the lock protects.
pub(crate) struct State {
    pub(crate) core: Session,
    pub(crate) connections: HashMap<ConnectionId, ConnectionHandle>,
    pub(crate) streams: HashMap<StreamId, StreamHandle>,
    pub(crate) paths: HashMap<PathId, PathInfo>,
    peer_addresses: Vec<NicAddress>,
    problems: Vec<NetworkProblem>,
    /// What is known of the paths, at the end that dials.
    path_words: BTreeMap<PathId, PathWords>,
    /// The paths of which a connection over RDMA has failed, and why.
    pub(crate) rails_failed: BTreeMap<PathId, String>,
    /// The bytes that rails of the paths have written into guests' RAM at the peer.
    rail_bytes: BTreeMap<PathId, u64>,
    mtu_probes_under_way: usize,
    incoming: Option<SyncSender<IncomingStream>>,
}

impl State {
    fn rdma_connections(&self, path: PathId) -> usize {
        self.connections.values().filter(|handle| handle.over_rdma && handle.path == path).count()
    }

    /// Returns which ends exclude a path from data, as far as this end was told.
    fn excluded_by(&self, path: &PathInfo) -> ExcludedBy {
        ExcludedBy::of(path.addresses(), self.core.addresses(), &self.peer_addresses)
    }

    /// Has the session know whether the paths that are up may carry data. While none is up, that stays as it was.
    fn bar_paths(&mut self) {
        if !self.paths.is_empty() {
            let why = excluded_words(self.paths.values().map(|path| (path.addresses(), self.excluded_by(path))));
            self.core.bar_paths(&why);
        }
    }

    /// Makes a connection's own thread check for something to send.
    pub(crate) fn wake_connection(&mut self, id: ConnectionId) {
        if let Some(handle) = self.connections.get_mut(&id) {
            handle.has_work = true;
            handle.sender.wake.notify_one();
        }
    }

    /// Makes a stream's egress thread check for something to receive.
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
    clock: Clock,
    /// The rails of this host, for one-sided writes.
    rails: Option<Arc<dyn Rails>>,
    pub(crate) rail_use: Arc<RailUse>,
}

impl RunningSession {
    /// Makes a session without connections. Returns it, and the queue of streams that its peer opens.
    pub(crate) fn start(
        role: Role,
        settings: Settings,
        id: SessionId,
        peer: String,
        peer_addresses: Vec<NicAddress>,
        rails: Option<Arc<dyn Rails>>,
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
                path_words: BTreeMap::new(),
                rails_failed: BTreeMap::new(),
                rail_bytes: BTreeMap::new(),
                mtu_probes_under_way: 0,
                incoming: Some(incoming),
            }),
            changed: Condvar::new(),
            clock: Clock::default(),
            rails,
            rail_use: Arc::default(),
        });
        let kept = live.clone();
        spawn("keeper", move || kept.tell_time())?;
        Ok((live, streams))
    }

    /// Returns the time as the session knows it.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Lets the session see so much time pass.
    #[cfg(test)]
    pub(crate) fn skip(&self, time: Duration) {
        self.clock.skip(time);
    }

    /// Runs `work` under the lock, then does what the session asks for.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State, Duration) -> T) -> T {
        let mut state = self.lock();
        let result = work(&mut state, self.now());
        self.dispatch(&mut state);
        result
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the host at the other end.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns where the peer can be reached, as the peer said last.
    pub(crate) fn peer_addresses(&self) -> Vec<NicAddress> {
        self.lock().peer_addresses.clone()
    }

    /// Tells the peer where this end can be reached.
    pub(crate) fn announce(&self, addresses: Vec<NicAddress>) {
        self.with(|state, _| state.core.announce(addresses));
    }

    /// Returns why the session is over, if it is.
    pub fn ended(&self) -> Option<Ended> {
        self.lock().core.ended().cloned()
    }

    /// Returns the state of the session at this moment.
    pub fn snapshot(&self) -> SessionSnapshot {
        let state = self.lock();
        let status = state.core.status();
        let paths = status.paths.into_iter().filter_map(|mut status| {
            status.sent_bytes += state.rail_bytes.get(&status.path).copied().unwrap_or(0);
            let words = state.path_words.get(&status.path).cloned().unwrap_or_default();
            let info = state.paths.get(&status.path)?;
            Some(PathSnapshot {
                excluded: state.excluded_by(info),
                rdma_connections: state.rdma_connections(status.path),
                info: info.clone(),
                status,
                carries: words.carries.unwrap_or_default(),
                connections: words.connections.unwrap_or_default(),
            })
        });
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

    pub(crate) fn rails(&self) -> Option<&dyn Rails> {
        self.rails.as_deref()
    }

    /// Returns the paths that have data connections over RDMA.
    pub(crate) fn rdma_paths(&self) -> Vec<u32> {
        let state = self.lock();
        let paths: BTreeSet<u32> =
            state.connections.values().filter(|handle| handle.over_rdma).map(|handle| handle.path.0).collect();
        paths.into_iter().collect()
    }

    /// Returns how many paths have data connections, over RDMA or not.
    pub(crate) fn data_path_count(&self) -> usize {
        self.lock().core.status().paths.iter().filter(|path| path.data_connections > 0).count()
    }

    /// Returns the address of this end of a path.
    pub(crate) fn path_address(&self, path: u32) -> Option<IpAddr> {
        self.lock().paths.get(&PathId(path)).map(|info| info.local.ip())
    }

    /// Counts bytes that the rail of a path has written into guests' RAM at the peer.
    pub(crate) fn count_written(&self, path: u32, bytes: u64) {
        *self.lock().rail_bytes.entry(PathId(path)).or_default() += bytes;
    }

    /// Returns whether a stream is open to a destination for which `is_such` is true.
    pub fn leads_to(&self, is_such: impl Fn(&str) -> bool) -> bool {
        self.lock().streams.values().any(|stream| is_such(&stream.destination))
    }

    /// Runs what finds how large a path's packets may be. Snapshots of the session show that it runs.
    pub(crate) fn while_probing_mtu<T>(&self, survey: impl FnOnce() -> T) -> T {
        self.lock().mtu_probes_under_way += 1;
        let found = survey();
        self.lock().mtu_probes_under_way -= 1;
        found
    }

    /// Remembers what is known of the paths.
    pub(crate) fn set_path_words(&self, words: BTreeMap<PathId, PathWords>) {
        self.lock().path_words = words;
    }

    /// Remembers the problems between the two hosts, and logs the new ones.
    pub(crate) fn set_problems(&self, faults: Vec<NetworkProblem>) {
        let known = std::mem::replace(&mut self.lock().problems, faults.clone());
        for fault in faults.iter().filter(|fault| !known.contains(fault)) {
            warn!(session = %self.id, peer = self.peer, "{}; {}", fault.what(&self.peer), fault.cure());
        }
    }

    /// Waits until the session takes more of a stream, as `capacity` tells. Returns `None` if it never will.
    pub(crate) fn wait_for_capacity<T>(
        &self,
        id: StreamId,
        writable: &Condvar,
        mut capacity: impl FnMut(&mut Session, Duration) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.core.is_reset(id) {
                return None;
            }
            let found = capacity(&mut state.core, self.now());
            self.dispatch(&mut state);
            if found.is_some() {
                return found;
            }
            writable.wait_for(&mut state, CAPACITY_WAIT);
        }
    }

    /// Tears down a stream whose local end is gone, once the peer has what the local end said before.
    pub(crate) fn reset_for_broken_socket(&self, id: StreamId, local_end: &LocalEnd, error: &io::Error) {
        debug!(session = %self.id, stream = id.0, "local socket: {error}");
        if !local_end.resets() {
            self.with(|state, _| state.core.finish(id));
        }
        self.wait_delivered(id, LAST_WORDS_TIME);
        self.reset(id, ResetCode::SocketClosed, &format!("its local socket broke: {error}"));
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

    /// Waits until a stream has bytes or an end, for at most `patience`.
    pub fn wait_readable(&self, id: StreamId, patience: Duration) {
        let mut state = self.lock();
        let Some(readable) = state.streams.get(&id).map(|handle| handle.readable.clone()) else { return };
        readable.wait_while_for(&mut state, |state| !state.core.is_readable(id), patience);
    }

    /// Waits until the session has a connection, as long as the stream lives. Returns false if the stream is over.
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

    /// Drops a connection that is of no use any more. The connection's threads end.
    pub(crate) fn drop_connection(&self, id: ConnectionId, how: ConnectionEnd) {
        let mut state = self.lock();
        if state.core.ended().is_none() {
            let failed = state.connections.get(&id).filter(|handle| handle.over_rdma);
            let failed = failed.and_then(|handle| Some((handle.path, rail_failure(handle, how)?)));
            state.rails_failed.extend(failed);
        }
        drop(state);
        self.remove_connection(id, how);
    }

    /// Drops a connection whose key has protected enough. Another takes its place, and nothing has failed.
    pub(crate) fn retire_connection(&self, id: ConnectionId) {
        self.remove_connection(id, ConnectionEnd::Failed);
    }

    fn remove_connection(&self, id: ConnectionId, how: ConnectionEnd) {
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

    /// Returns why a connection of a path over RDMA has failed since this was asked last, if one has.
    pub(crate) fn take_rail_failure(&self, path: PathId) -> Option<String> {
        self.lock().rails_failed.remove(&path)
    }

    /// Logs why a connection failed: at length if a person may want to know, as of a rail that TCP stands in for.
    pub(crate) fn log_failure(&self, id: ConnectionId, doing: &str, end: &LinkEnd) {
        let why = error_chain(end);
        let mut state = self.lock();
        let is_over = state.core.ended().is_some();
        match state.connections.get_mut(&id) {
            Some(handle) if handle.over_rdma && matches!(end, LinkEnd::Failed(_)) && !is_over => {
                if handle.failure.is_none() {
                    warn!(session = %self.id, peer = self.peer, connection = id.0, "RDMA: cannot {doing}: {why}");
                    handle.failure = Some(format!("cannot {doing}: {why}"));
                }
            }
            _ => debug!(session = %self.id, connection = id.0, "cannot {doing}: {why}"),
        }
    }

    /// Notes that nothing more is sent on a connection. The connection's receiver goes on to the peer's end.
    pub(crate) fn finish_sending(&self, id: ConnectionId) {
        if let Some(handle) = self.lock().connections.get(&id) {
            handle.shutdown.finish();
        }
    }

    /// Notes that a path's NIC is gone or its network link is down.
    pub(crate) fn path_down(&self, path: PathId) {
        self.with(|state, _| state.core.path_down(path));
    }

    /// Notes that the other host says that nobody listens there any more.
    pub(crate) fn connection_refused(&self) {
        self.with(|state, _| state.core.connection_refused());
    }

    /// Returns whether a path has its control connection, and how many data connections the path has.
    pub(crate) fn path_connections(&self, path: PathId) -> (bool, usize) {
        let status = self.lock().core.status();
        let path = status.paths.iter().find(|p| p.path == path);
        path.map_or((false, 0), |p| (p.has_control_connection, p.data_connections))
    }

    /// Returns how many data connections of a path go over RDMA.
    pub(crate) fn rdma_connections(&self, path: PathId) -> usize {
        self.lock().rdma_connections(path)
    }

    /// Returns how many bytes the session has carried, both ways.
    pub(crate) fn carried_bytes(&self) -> u64 {
        self.lock().core.status().paths.iter().map(|path| path.sent_bytes + path.received_bytes).sum()
    }

    /// Keeps the session's data off RDMA as long as the result exists. Connections over RDMA are dropped once there are
    /// others.
    pub fn hold_rails_off(&self) -> RailsHeldOff {
        self.rail_use.hold_off()
    }

    /// Returns whether data goes over RDMA on any path.
    pub fn has_rails(&self) -> bool {
        !self.rdma_paths().is_empty()
    }

    /// Drops the data connections of a path that go over RDMA. What was on the way there goes again over others.
    pub(crate) fn drop_rdma(&self, path: PathId) {
        let connections = self.data_connections(path).0;
        self.drop_connections(connections, "nothing is to go over RDMA");
    }

    /// Drops data connections of a path that has more than so many: first those over TCP, if there are others, and the
    /// newest. What was on the way there goes again over others.
    pub(crate) fn drop_more_data_than(&self, path: PathId, number: usize) {
        let (rdma, tcp) = self.data_connections(path);
        self.drop_connections(rdma.into_iter().chain(tcp).skip(number), "its path is to have fewer");
    }

    /// Returns the data connections of a path: those over RDMA, and the others.
    fn data_connections(&self, path: PathId) -> (Vec<ConnectionId>, Vec<ConnectionId>) {
        let state = self.lock();
        let over_rdma = |id: &ConnectionId| state.connections.get(id).is_some_and(|handle| handle.over_rdma);
        state.core.data_connections_of(path).into_iter().partition(over_rdma)
    }

    fn drop_connections(&self, connections: impl IntoIterator<Item = ConnectionId>, why: &str) {
        for id in connections {
            debug!(session = %self.id, connection = id.0, "dropped: {why}");
            self.remove_connection(id, ConnectionEnd::Failed);
        }
    }

    /// Ends the session: tells the peer, and tears down every stream and connection.
    pub fn close(&self, reason: &str) {
        self.with(|state, _| state.core.close());
        debug!(session = %self.id, "closed: {reason}");
        // The senders say goodbye on their connections, the receivers wait for the peer's end. What takes longer is cut
        // off.
        let mut state = self.lock();
        self.changed.wait_while_for(&mut state, |state| !state.connections.is_empty(), BYE_TIME);
        for handle in state.connections.values() {
            handle.shutdown.close();
        }
        self.dispatch(&mut state);
    }

    fn tell_time(&self) {
        let mut ended = None;
        loop {
            thread::sleep(CLOCK_PERIOD);
            let over = self.with(|state, now| {
                state.bar_paths();
                state.core.handle_timeout(now);
                if state.core.ended().is_some() && now - *ended.get_or_insert(now) >= BYE_TIME {
                    // This ends the connections whose goodbye does not leave; TCP would try for a quarter of an hour.
                    state.connections.values().for_each(|connection| connection.shutdown.abort());
                }
                state.core.ended().is_some() && state.connections.is_empty()
            });
            if over {
                return;
            }
        }
    }

    /// Makes the threads do what the session asks for. The caller holds the lock.
    pub(crate) fn dispatch(&self, state: &mut State) {
        while let Some(event) = state.core.poll_event() {
            self.handle_event(state, event);
        }
    }

    /// Dispatches as [`Self::dispatch`] does, but leaves a connection to send on to the caller, who sends while the
    /// bytes are in its core's cache.
    pub(crate) fn dispatch_but_send(&self, state: &mut State) -> Option<(ConnectionId, Arc<ConnectionSender>)> {
        let mut own = None;
        while let Some(event) = state.core.poll_event() {
            match event {
                Event::Transmit(id) if own.is_none() => {
                    own = state.connections.get(&id).map(|handle| (id, handle.sender.clone()));
                }
                event => self.handle_event(state, event),
            }
        }
        own
    }

    /// Dispatches as [`Self::dispatch`] does, but leaves a stream to deliver from to the caller, who delivers while the
    /// bytes are in its core's cache.
    pub(crate) fn dispatch_but_delivery(&self, state: &mut State) -> Option<(StreamId, Arc<Egress>)> {
        let mut own = None;
        while let Some(event) = state.core.poll_event() {
            let ready = match event {
                Event::Readable(id) if own.is_none() && !state.core.is_reset(id) => {
                    state.streams.get(&id).and_then(|handle| Some((id, handle.egress.clone()?)))
                }
                _ => None,
            };
            match ready {
                Some(ready) => own = Some(ready),
                None => self.handle_event(state, event),
            }
        }
        own
    }

    fn handle_event(&self, state: &mut State, event: Event) {
        match event {
            Event::Transmit(id) => state.wake_connection(id),
            Event::Close(id) => {
                // The connection's receiver notices the end, and reports the connection down.
                if let Some(connection) = state.connections.get_mut(&id) {
                    connection.failure.get_or_insert_with(|| "nothing has passed for too long".into());
                    connection.shutdown.abort();
                    connection.sender.wake.notify_all();
                }
            }
            Event::Opened(stream, target) => {
                self.pass_on(state, IncomingStream { stream, destination: target, since: Instant::now() })
            }
            Event::Readable(id) => {
                let egress = state.streams.get(&id).and_then(|handle| handle.egress.as_ref());
                if let Some(egress) = egress.filter(|_| state.core.is_reset(id)) {
                    egress.local_end.tear_down();
                }
                state.wake_egress(id);
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

    fn pass_on(&self, state: &mut State, incoming: IncomingStream) {
        let id = incoming.stream;
        state.streams.insert(id, StreamHandle::new(&incoming.destination));
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
/// # Errors
/// The system has no room for a thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|error| io::Error::new(error.kind(), format!("no thread for {name}: {error}")))
}
