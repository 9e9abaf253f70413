//! The session: which connection sends what next, what is lost, what is dead.
//!
//! Four kinds of methods, as in quinn: what the application wants (`open`, `send`, `consumed` …), what
//! happened (`connection_up`, `handle_*`), what to do (`poll_*`), and what is (`status` and other
//! getters). Time comes in as the time since any fixed moment and must not go back.
//!
//! How data stays safe: a sent frame is kept by its connection until the peer has acknowledged the
//! connection's bytes up to it. One number does, since what waits on a connection is little: of a link that keeps no
//! order, frames are handled as they arrive, and the number waits for the slowest of those before it.
//! A connection that ends or stalls gives its chunks back, and others take them; the receiver drops
//! what it has already. Nothing is freed on a promise.
//!
//! How data stays balanced: connections *pull*. Whichever can send takes the next chunk of the next
//! stream in turn, as long as its path has room ([`crate::path::PathEstimate::inflight_limit`]). Streams give only what
//! there is room for.
//!
//! How small streams stay quick: each path has a control connection that never carries bulk. Frames
//! other than bulk, and the bytes of streams that send little, go over the control connections of two
//! paths at once, so that losing either costs nothing.

mod barred;
mod connection;
mod delivery;
mod sending;
mod status;
mod stream_frames;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use self::barred::Barred;
use self::connection::{Connection, PathState, QueuedFrame, Sender};
pub use self::status::{Footprint, PathStatus, Status};
use crate::address::NicAddress;
use crate::frame::{Frame, FrameKind, Header, truncated};
use crate::limits::*;
use crate::stream::{Fin, Opener, Stream, Width};
use crate::{ConnectionId, ConnectionKind, PathId, Role, StreamId};

/// What may be set on a session.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the session outlives the loss of all its paths. Default [`OUTAGE_TIME_DEFAULT`].
    pub outage: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { outage: OUTAGE_TIME_DEFAULT }
    }
}

/// A peer that broke the rules. The session is over: nothing it says can be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum ProtocolError {
    #[error("the peer sent byte {end} of a stream whose credit ends at {granted}")]
    BeyondCredit { end: u64, granted: u64 },
    #[error("the peer changed where a stream ends")]
    EndMoved,
    #[error("the peer acknowledged bytes that were never sent")]
    AckBeyondSent,
    #[error("the peer sent a stream in too many small pieces that do not join")]
    Confetti,
    #[error("the peer used a stream that it may not open, or too many of them")]
    BadStream,
    #[error("the peer opened more connections than a session may have")]
    TooManyConnections,
    #[error("the peer used a connection's number or a path's control connection twice")]
    ConnectionReused,
    #[error("the peer put two frames in the same place of a connection, or one where none can be")]
    BadPosition,
}

/// Errors of what an application asks for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum OpenError {
    #[error("{STREAMS_MAX} streams are open already")]
    TooMany,
    #[error("the name of the target has more than {DESTINATION_BYTES_MAX} bytes")]
    NameTooLong,
    #[error("the session has ended")]
    Ended,
}

/// What the caller has to do, or wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The connection has something to send: poll it.
    Transmit(ConnectionId),
    /// Give this connection up, and report it with [`Session::connection_down`]. An orderly end would reach the peer
    /// when the path is back, and tell the peer that this process is gone.
    Close(ConnectionId),
    /// The peer opened a stream.
    Opened(StreamId, String),
    /// [`Session::receive`] has something other than `Pending`.
    Readable(StreamId),
    /// [`Session::send_capacity`] may have grown.
    Writable(StreamId),
    /// The peer's addresses changed.
    PeerAddresses(Vec<NicAddress>),
    /// A path stalls (true) or moves again (false).
    Stalled(PathId, bool),
    /// The session is over, and why.
    Ended(Ended),
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Ended {
    #[error("closed in order")]
    Closed,
    #[error("the other end ended it: {reason}")]
    ClosedByPeer { code: u64, reason: String },
    #[error("the other end closed all its connections and did not come back: it was stopped or died")]
    PeerGone,
    #[error("no path worked for {} s", .0.as_secs())]
    Outage(Duration),
    #[error("no path may carry data: {why}; waited for {} s", .waited.as_secs())]
    Barred { why: String, waited: Duration },
    #[error(transparent)]
    Protocol(ProtocolError),
}

/// What [`Session::receive`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The next bytes. Report them with [`Session::consumed`] when they are dealt with.
    Data(Bytes),
    /// Nothing yet.
    Pending,
    /// The peer is done sending.
    Finished,
    /// The stream was torn down.
    Reset(u64, String),
}

/// A frame to put on a connection.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Its header.
    pub header: Header,
    /// Its payload, in the buffers it was handed over in.
    pub payload: Vec<Bytes>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The peer's host ended it in order, as a kernel does for a process that is no more. If it was so with the last
    /// connections and none failed, the accepting end waits [`PEER_CLOSED_WAIT`] for new ones, not
    /// [`OUTAGE_TIME_DEFAULT`]; the dialling end can ask, see [`Session::connection_refused`].
    Closed,
    /// The peer's host reset it. A kernel does so for a process that is no more, too, if the process had not read all.
    /// So does a peer that is alive and gave the connection up, but of that it stalled here before.
    Reset,
    /// This end closed it, or it failed.
    Failed,
}

/// One end of a session. See the module.
#[derive(Debug)]
pub struct Session {
    role: Role,
    settings: Settings,
    /// The latest time that was handed in.
    now: Duration,
    streams: BTreeMap<StreamId, Stream>,
    next_own: u32,
    next_peer: u32,
    /// The peer's next stream to tell the application of.
    next_announced: u32,
    /// The peer's streams that were reset here and that it may not know of. They bound how fast it can open
    /// others.
    resets: BTreeSet<StreamId>,
    /// Streams with bulk to send, in turn.
    turn: VecDeque<StreamId>,
    /// Streams whose applications have bulk to hand over and wait for room, in turn.
    waiting: VecDeque<StreamId>,
    connections: BTreeMap<ConnectionId, Connection>,
    paths: BTreeMap<PathId, PathState>,
    /// Small frames that wait for any control connection.
    backlog: VecDeque<QueuedFrame>,
    addresses: Vec<NicAddress>,
    /// How often they changed; and the latest such count that the peer told of its own.
    addresses_changed: u64,
    peer_addresses_changed: u64,
    events: VecDeque<Event>,
    resent_bytes: u64,
    /// When the last connection went.
    alone_since: Option<Duration>,
    /// When the peer last ended a connection that worked; forgotten when a new one comes up.
    closed_by_peer_at: Option<Duration>,
    /// When a connection or path last failed.
    failed_at: Option<Duration>,
    /// See [`Session::connection_refused`].
    refused: bool,
    barred: Barred,
    ended: Option<Ended>,
}

impl Session {
    /// A session without connections or streams. It ends by itself if none comes up in time.
    pub fn new(now: Duration, role: Role, settings: Settings) -> Session {
        let (next_own, next_peer) = match role {
            Role::Dialer => (0, 1),
            Role::Acceptor => (1, 0),
        };
        Session {
            role,
            settings,
            now,
            streams: BTreeMap::new(),
            next_own,
            next_peer,
            next_announced: next_peer,
            resets: BTreeSet::new(),
            turn: VecDeque::new(),
            waiting: VecDeque::new(),
            connections: BTreeMap::new(),
            paths: BTreeMap::new(),
            backlog: VecDeque::new(),
            addresses: Vec::new(),
            addresses_changed: 0,
            peer_addresses_changed: 0,
            events: VecDeque::new(),
            resent_bytes: 0,
            alone_since: Some(now),
            closed_by_peer_at: None,
            failed_at: None,
            refused: false,
            barred: Barred::default(),
            ended: None,
        }
    }

    // ---- what the application wants ----

    /// Opens a stream to what the peer knows by `destination`.
    pub fn open(&mut self, destination: &str) -> Result<StreamId, OpenError> {
        if self.ended.is_some() {
            return Err(OpenError::Ended);
        }
        if destination.len() > DESTINATION_BYTES_MAX {
            return Err(OpenError::NameTooLong);
        }
        let own = self.next_own % 2;
        let open = self.streams.keys().filter(|id| id.0 % 2 == own).count();
        if open >= STREAMS_MAX as usize || self.next_own >= STREAM_NUMBER_MAX {
            return Err(OpenError::TooMany);
        }
        let id = StreamId(self.next_own);
        self.next_own += 2;
        self.streams.insert(id, Stream::new(Opener::Here));
        self.queue_small_frame(QueuedFrame::Open(id, destination.to_owned()));
        Ok(id)
    }

    /// Says what the stream's bulk may use from now on.
    pub fn confine(&mut self, id: StreamId, width: Width) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.width = width;
        }
    }

    /// How many bytes the stream takes now; 0: [`Event::Writable`] says when to ask again. Ask when there are bytes
    /// to hand over, and then do: others wait meanwhile.
    ///
    /// It is little on purpose: nothing is taken that no path has room for, since it would only grow old and cold
    /// here and delay a guest's last pages. What is small and urgent is always taken.
    pub fn send_capacity(&mut self, now: Duration, id: StreamId) -> usize {
        self.capacity(now, id, 1)
    }

    /// Whether the stream takes `bytes` now, all at once or not at all: no more than [`CHUNK_BYTES_MAX`] and what their
    /// head takes. False: as 0 of [`Self::send_capacity`].
    pub fn takes(&mut self, now: Duration, id: StreamId, bytes: usize) -> bool {
        self.capacity(now, id, bytes) > 0
    }

    /// `whole`: what may not be split.
    fn capacity(&mut self, now: Duration, id: StreamId, whole: usize) -> usize {
        self.now = now;
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
        if !stream.accepts_data() {
            return 0;
        }
        let half = &mut stream.send;
        let limit = CHUNK_BYTES_MAX.saturating_sub(half.unsent_bytes());
        half.was_refused = limit < CHUNK_BYTES_MAX / 8;
        if half.was_refused {
            return 0;
        }
        // Whoever has begun a chunk with little may fill it.
        let begun = (1..CHUNK_BYTES_MAX / 2).contains(&half.burst);
        let next = self.waiting.is_empty() || half.burst < BURST_BYTES;
        let (granted, width) = (half.granted, stream.width);
        let may = granted || begun || (next && self.has_room(width));
        let half = &mut self.streams.get_mut(&id).expect("just found").send;
        if may {
            half.granted = true;
            return limit;
        }
        if whole <= URGENT_BYTES && half.is_quiet(now) {
            return URGENT_BYTES.min(limit);
        }
        if !half.waits_for_capacity {
            half.waits_for_capacity = true;
            self.waiting.push_back(id);
        }
        self.wake_data();
        // There may be room after all, and its turn come at once.
        let granted = self.streams.get(&id).is_some_and(|stream| stream.send.granted);
        if granted { limit } else { 0 }
    }

    /// Whether this end may still send on the stream: its end was not said, and it was not reset.
    pub fn may_send(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.send.fin == Fin::Open && stream.reset.is_none())
    }

    /// Hands over bytes to send. Call it with no more than about [`Self::send_capacity`].
    pub fn send(&mut self, now: Duration, id: StreamId, data: Bytes) {
        self.send_parts(now, id, [data]);
    }

    /// As [`Self::send`], of what is in several buffers.
    pub fn send_parts(&mut self, now: Duration, id: StreamId, parts: impl IntoIterator<Item = Bytes>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let mut parts = parts.into_iter().filter(|part| !part.is_empty()).peekable();
        if parts.peek().is_none() || stream.reset.is_some() || self.ended.is_some() {
            return;
        }
        debug_assert_eq!(stream.send.fin, Fin::Open, "send after finish");
        self.now = now;
        if std::mem::take(&mut stream.send.waits_for_capacity) {
            // It got through without its turn, being small or filling a chunk. A turn that nobody uses would hold up
            // those who wait after it, for ever.
            self.waiting.retain(|other| *other != id);
        }
        parts.for_each(|part| stream.send.push(now, part));
        self.flush(id);
    }

    /// Ends this end's direction of the stream: no more bytes follow.
    pub fn finish(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.send.fin == Fin::Open && stream.reset.is_none() {
            stream.send.fin = Fin::Sent;
            stream.send.granted = false;
            let end = stream.send.end();
            self.queue_small_frame(QueuedFrame::Fin(id, end));
            self.wake_data();
        }
    }

    /// Tears the stream down in both directions.
    pub fn reset(&mut self, id: StreamId, code: u64, reason: &str) {
        let Some(mut stream) = self.streams.remove(&id) else {
            return;
        };
        if stream.reset.is_none() {
            stream.send.clear();
            if id.0 % 2 == self.next_peer % 2 {
                self.resets.insert(id);
            }
            self.queue_small_frame(QueuedFrame::Reset(id, code, truncated(reason).to_owned()));
        }
        // Whoever waits on it learns that there is nothing to wait for.
        self.events.extend([Event::Readable(id), Event::Writable(id)]);
        self.spread_windows();
        self.wake_data();
    }

    /// Whether the stream was torn down, or is over and forgotten.
    pub fn is_reset(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(|stream| stream.reset.is_some())
    }

    /// Whether the peer has all that was sent on a stream, and its end if that was said; or the stream is over.
    pub fn is_delivered(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(|stream| stream.reset.is_some() || stream.send.is_delivered())
    }

    /// Whether [`Self::receive`] would find something other than [`Received::Pending`].
    pub fn is_readable(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(|stream| stream.reset.is_some() || stream.receive.is_readable())
    }

    /// The next bytes of a stream, in order.
    pub fn receive(&mut self, id: StreamId) -> Received {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Received::Finished;
        };
        let received = if let Some((code, reason)) = stream.reset.clone() {
            stream.reset_seen = true;
            Received::Reset(code, reason)
        } else if let Some(data) = stream.receive.reassembly.pop() {
            Received::Data(data)
        } else if stream.receive.finished {
            Received::Finished
        } else if stream.receive.is_at_end() {
            stream.receive.finished = true;
            Received::Finished
        } else {
            Received::Pending
        };
        self.drop_if_over(id);
        received
    }

    /// The application is done with so many bytes of what [`Self::receive`] gave it.
    pub fn consumed(&mut self, id: StreamId, bytes: u64) {
        let window = self.window();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.receive.consumed += bytes;
        debug_assert!(stream.receive.consumed <= stream.receive.reassembly.delivered());
        let half = &stream.receive;
        if half.end.is_none_or(|end| end > half.granted)
            && stream.receive.consumed + window >= stream.receive.granted + window / 4
        {
            self.grant(id);
        }
    }

    /// Returns where the peer was told last that this end can be reached.
    pub fn addresses(&self) -> &[NicAddress] {
        &self.addresses
    }

    /// Tells the peer where this end can be reached from now on.
    pub fn announce(&mut self, addresses: Vec<NicAddress>) {
        if self.addresses != addresses {
            self.addresses = addresses;
            self.addresses_changed += 1;
            self.queue_small_frame(QueuedFrame::Addresses);
        }
    }

    /// The session ends, from this end. The caller sends [`Self::bye`] on what is left of it.
    pub fn close(&mut self) {
        self.end(Ended::Closed);
    }

    /// The frame that tells the peer of the end.
    pub fn bye(code: u64, reason: &str) -> Transmit {
        let payload = Bytes::copy_from_slice(truncated(reason).as_bytes());
        let header = Header { kind: FrameKind::Bye, stream: 0, offset: code, len: payload.len() as u32 };
        Transmit { header, payload: vec![payload] }
    }

    // ---- what happened ----

    /// A connection has shaken hands.
    pub fn connection_up(
        &mut self,
        now: Duration,
        id: ConnectionId,
        path: PathId,
        kind: ConnectionKind,
    ) -> Result<(), ProtocolError> {
        self.now = now;
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(ProtocolError::TooManyConnections);
        }
        let control = kind == ConnectionKind::Control;
        let has_control = self.paths.get(&path).is_some_and(|state| state.control.is_some());
        if self.connections.contains_key(&id) || (control && has_control) {
            return Err(ProtocolError::ConnectionReused);
        }
        let state = self.paths.entry(path).or_insert_with(|| PathState::new(now));
        if control {
            state.control = Some(id);
        }
        self.connections.insert(id, Connection::new(now, path, kind));
        self.alone_since = None;
        self.closed_by_peer_at = None;
        self.refused = false;
        if control {
            // Credit may have been lost with the connections before; repeating it costs nothing.
            let mut items = std::mem::take(&mut self.backlog);
            items.extend(self.streams.keys().map(|id| QueuedFrame::Credit(*id)));
            items.push_front(QueuedFrame::Ping);
            let connection = self.connections.get_mut(&id).expect("just inserted");
            connection.queued_frames = items;
            connection.ping_open = Some(now);
            self.wake(id);
        }
        self.wake_data();
        Ok(())
    }

    /// A connection is no more.
    pub fn connection_down(&mut self, now: Duration, id: ConnectionId, how: ConnectionEnd) {
        self.now = now;
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        match how {
            ConnectionEnd::Closed if !connection.closing => self.closed_by_peer_at = Some(now),
            ConnectionEnd::Reset if connection.is_usable() => self.closed_by_peer_at = Some(now),
            // One that is closed because its path's control connection went says nothing of its own.
            _ if connection.closing && connection.suspect_since.is_none() => {}
            _ => self.failed_at = Some(now),
        }
        let path = connection.path;
        let was_control = connection.kind == ConnectionKind::Control;
        if let Some(state) = self.paths.get_mut(&path) {
            state.unacknowledged -= connection.unacknowledged;
            if !was_control {
                state.estimate.lost(connection.sent.iter().map(|s| s.bytes).sum());
            }
            if was_control {
                state.control = None;
            }
        }
        if was_control {
            // A path lives and dies with its control connection.
            self.close_path(path);
        }
        if !self.connections.values().any(|c| c.path == path) {
            self.paths.remove(&path);
        }
        if self.connections.is_empty() {
            // Which connection goes last is chance. But where some failed, the network is in trouble, and the others
            // may have been reset by a peer that is alive and had given them up.
            let within = |time: Duration| move |at: &Duration| now.saturating_sub(*at) < time;
            let trouble = self.failed_at.as_ref().is_some_and(within(STALLED_CONNECTION_TIME_MAX * 2));
            self.closed_by_peer_at = self.closed_by_peer_at.filter(within(PEER_CLOSED_WAIT)).filter(|_| !trouble);
            self.alone_since = Some(now);
        }
        self.requeue_unacknowledged(
            connection.kind,
            connection.sent.into_iter().map(|s| s.item).chain(connection.queued_frames),
        );
        self.wake_data();
    }

    /// The path cannot work at the moment (its NIC lost its carrier, say): its connections go.
    pub fn path_down(&mut self, path: PathId) {
        self.failed_at = Some(self.now);
        self.close_path(path);
    }

    /// A host that took connections refuses them now: nobody listens there any more. If no connection is left, that
    /// tells the end of the peer's process from that of the network.
    pub fn connection_refused(&mut self) {
        self.refused = self.alone_since.is_some();
    }

    /// A frame has arrived, behind all that arrived before on its connection.
    ///
    /// # Errors
    /// They end the session: the peer is broken, or an enemy.
    pub fn handle_frame(
        &mut self,
        now: Duration,
        id: ConnectionId,
        header: &Header,
        frame: Frame,
    ) -> Result<(), ProtocolError> {
        self.handle_arrived(now, id, None, header, frame)
    }

    /// As [`Self::handle_frame`], of a link that keeps no order. `position`: so many bytes of frames go before it on
    /// its connection, which may not have arrived yet. All frames of a connection come by this method, or none does.
    ///
    /// # Errors
    /// As of [`Self::handle_frame`]; two frames claim the same place.
    pub fn handle_frame_at(
        &mut self,
        now: Duration,
        id: ConnectionId,
        position: u64,
        header: &Header,
        frame: Frame,
    ) -> Result<(), ProtocolError> {
        self.handle_arrived(now, id, Some(position), header, frame)
    }

    fn handle_arrived(
        &mut self,
        now: Duration,
        id: ConnectionId,
        position: Option<u64>,
        header: &Header,
        frame: Frame,
    ) -> Result<(), ProtocolError> {
        if self.ended.is_some() {
            return Ok(());
        }
        self.now = now;
        let counted = self.account_received(now, id, position, header);
        let handled = counted.and_then(|()| self.handle_kind(now, id, frame));
        if let Err(error) = &handled {
            self.end(Ended::Protocol(error.clone()));
        }
        handled
    }

    fn handle_kind(&mut self, now: Duration, id: ConnectionId, frame: Frame) -> Result<(), ProtocolError> {
        match frame {
            Frame::Open { stream, destination: target } => self.handle_open(stream, target),
            Frame::Data { stream, offset, data } => self.handle_data(stream, offset, data),
            Frame::Fin { stream, offset } => self.handle_fin(stream, offset),
            Frame::Reset { stream, code, reason } => self.handle_reset(stream, code, reason),
            Frame::Credit { stream, offset } => self.handle_credit(stream, offset),
            Frame::Ack { connection, offset } => self.handle_ack(now, connection, offset),
            Frame::Ping { token } => {
                // Only the latest is answered, so that a peer that asks and does not read costs nothing.
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.pong = Some(token);
                    self.wake(id);
                }
                Ok(())
            }
            Frame::Pong { token } => {
                self.handle_pong(now, id, token);
                Ok(())
            }
            Frame::Addresses { change, addresses } => {
                // An earlier change may arrive later, over another connection.
                if change > self.peer_addresses_changed {
                    self.peer_addresses_changed = change;
                    self.events.push_back(Event::PeerAddresses(addresses));
                }
                Ok(())
            }
            Frame::Bye { code, reason } => {
                self.end(Ended::ClosedByPeer { code, reason });
                Ok(())
            }
        }
    }

    /// Time has passed: call it every few tens of milliseconds.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        if self.ended.is_some() {
            return;
        }
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.check_connection(now, id);
        }
        // Nobody would notice the silence of data connections whose control connection never came.
        let orphans = |state: &PathState| {
            state.control.is_none() && now.saturating_sub(state.up_at) >= STALLED_CONNECTION_TIME_MAX
        };
        let orphans: Vec<PathId> = self.paths.iter().filter(|(_, state)| orphans(state)).map(|(id, _)| *id).collect();
        orphans.into_iter().for_each(|path| self.close_path(path));
        self.wake_data();
        self.check_barred(now);
        if let Some(since) = self.alone_since {
            let alone = now.saturating_sub(since);
            if alone >= self.settings.outage {
                self.end(Ended::Outage(self.settings.outage));
            }
            // Who dials is told; who is dialled can only conclude.
            let gone = match self.role {
                Role::Dialer => self.refused,
                Role::Acceptor => self.closed_by_peer_at.is_some(),
            };
            if gone && alone >= PEER_CLOSED_WAIT {
                self.end(Ended::PeerGone);
            }
        }
    }

    // ---- what to do ----

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What to send on a connection now. After `None`, wait for [`Event::Transmit`] or
    /// [`Self::transmit_at`].
    pub fn poll_transmit(&mut self, now: Duration, id: ConnectionId) -> Option<Transmit> {
        self.now = now;
        let connection = self.connections.get_mut(&id)?;
        let transmit = match connection.kind {
            _ if connection.closing || self.ended.is_some() => None,
            ConnectionKind::Control => self.poll_control(now, id),
            ConnectionKind::Data => self.poll_data(now, id),
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.sender = if transmit.is_some() { Sender::Busy } else { Sender::Idle };
        }
        transmit
    }

    /// When to poll a control connection again though no event says so.
    pub fn transmit_at(&self, id: ConnectionId) -> Option<Duration> {
        let path = self.connections.get(&id).filter(|c| c.kind == ConnectionKind::Control)?.path;
        self.paths.get(&path)?.acknowledge_at
    }
}
